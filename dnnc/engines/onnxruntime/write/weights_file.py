"""Weights in one flat file, written in pieces: memory is bounded whatever the size of the weights.

A layout gives each resource a place in the file. Offsets are multiples of 64 bytes, those of resources of a page (4096 bytes)
or more multiples of a page, so that a runtime can map the file; gaps are zero.

Small resources and strings stay in the models: shape inference reads the values of small ones (shapes, axes), and ONNX has no
external strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.engines.onnxruntime.faults import WeightOfOtherSize, WeightWithoutData
from ir.core.diagnostics import InvalidInput
from ir.core.module import Declared, External, Inline, Module, Random, Resource, Splat, View
from ir.core.types import DType, TensorType, type_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dnnc.onnx.weights import WeightSource

INLINE_LIMIT = 1024
"""Resources up to this many bytes stay inside the models (onnx's own default)."""
PIECE = 8 << 20
"""Bytes read and written at once."""
ELEMENTS = 1 << 20
"""Elements generated at once; a multiple of eight, so that elements below a byte fill whole bytes."""


def in_file(resource: Resource) -> bool:
    """Whether the resource belongs in a weights file and not in the model: it is large, or has no data to put into the
    model."""
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.sparse or type_.dtype is DType.STRING:
        return False
    if isinstance(resource.data, Inline) and not isinstance(resource.data.data, bytes):
        return False
    return isinstance(resource.data, Declared) or (type_bytes(type_) or 0) > INLINE_LIMIT


def layout(resources: Iterable[Resource], file: str, *, every: bool = False) -> dict[str, External]:
    """The place in ``file`` of each resource that ``in_file`` puts there (of all with ``every``), by name. Places follow the
    order of ``resources``; of resources with one name the first counts."""
    places: dict[str, External] = {}
    offset = 0
    for resource in resources:
        if resource.name in places or not (every or in_file(resource)):
            continue
        length = type_bytes(resource.type) or 0
        step = 4096 if length >= 4096 else 64
        offset = -(-offset // step) * step
        places[resource.name] = External(file, offset, length)
        offset += length
    return places


def with_places(module: Module, places: Mapping[str, External], folder: str = "") -> Module:
    """The module whose resources named in ``places`` refer to those places, in files under ``folder`` (such as ``stages/``)."""
    return replace(
        module,
        symbols=tuple(
            replace(s, data=replace(places[s.name], file=folder + places[s.name].file))
            if isinstance(s, Resource) and s.name in places
            else s
            for s in module.symbols
        ),
    )


def write_weights(
    path: Path,
    resources: Mapping[str, Resource],
    places: Mapping[str, External],
    source: WeightSource,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> None:
    """Writes the weights file ``path``: the resources of ``places``, each at its place. ``source``: holds the data of external
    resources; ``progress``: called with the fraction written.

    Raises InvalidInput when the data of a resource is missing or has another size than its type."""
    from dnnc.onnx.weights import files_of

    files = files_of(source)
    total = max((place.offset + place.length for place in places.values()), default=0)
    with path.open("wb") as file:
        for name, place in sorted(places.items(), key=lambda item: item[1].offset):
            file.write(b"\0" * (place.offset - file.tell()))
            for piece in pieces(resources[name], files):
                file.write(piece)
                progress("write the weights", file.tell() / total)
            written = file.tell() - place.offset
            if written != place.length:
                raise InvalidInput(WeightOfOtherSize(written, place.length, str(resources[name].type)), where=name)


def pieces(resource: Resource, source: WeightSource) -> Iterator[bytes]:
    """The bytes of a resource as ONNX stores them, piece by piece. Raises InvalidInput when they are missing."""
    type_ = resource.type
    assert isinstance(type_, TensorType)
    match resource.data:
        case External() as data:
            yield from _external(resource.name, data, source)
        case Inline(data=bytes(raw)):
            yield raw
        case Splat() as data:
            yield from _splat(type_, data)
        case Random() as data:
            from dnnc.onnx.weights import random_pieces

            for array in random_pieces(type_, data, ELEMENTS):
                yield _packed(array, type_)
        case View(whole=(External() | Inline(data=bytes()) | Splat() | Random())) as data:
            yield from _view(resource, data, source)
        case _:
            raise InvalidInput(WeightWithoutData(), where=resource.name)


def _external(name: str, data: External, source: WeightSource) -> Iterator[bytes]:
    from dnnc.onnx.weights import files_of

    files = files_of(source)
    for start in range(0, data.length, PIECE):
        yield files.read(name, External(data.file, data.offset + start, min(PIECE, data.length - start))).tobytes()


def _view(resource: Resource, view: View, source: WeightSource) -> Iterator[bytes]:
    """The bytes of a view, about ``ELEMENTS`` elements at a time; all at once where elements are not whole bytes."""
    from dnnc.onnx.weights import box_of

    type_ = resource.type
    assert isinstance(type_, TensorType)
    box = box_of(resource, view, source)
    while box.ndim > 1 and box.shape[0] == 1:
        box = box[0]
    if type_.dtype.bits % 8 or not box.ndim or not box.size:
        yield _packed(box, type_)
        return
    rows = max(1, ELEMENTS * box.shape[0] // box.size)
    for row in range(0, box.shape[0], rows):
        yield _packed(box[row : row + rows], type_)


def _splat(type_: TensorType, data: Splat) -> Iterator[bytes]:
    import numpy as np

    from dnnc.onnx.arrays import numpy_dtype

    remaining = type_.elements or 0
    array = np.full(min(ELEMENTS, remaining), data.value).astype(numpy_dtype(type_.dtype))
    piece = _packed(array, type_)
    while remaining >= ELEMENTS:
        yield piece
        remaining -= ELEMENTS
    if remaining:
        yield _packed(array[:remaining], type_)


def _packed(array: NDArray[Any], type_: TensorType) -> bytes:
    from dnnc.onnx.arrays import to_data

    data = to_data(array, type_.dtype)
    assert isinstance(data, bytes)
    return data
