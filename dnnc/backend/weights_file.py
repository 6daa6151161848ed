"""Weights in one flat file, written with bounded memory whatever their size.

A layout gives each resource a place in the file: offsets are multiples of 64 bytes, and of 4096 (a page) from one page up, so
that a runtime can map the file; the gaps are zero. Bytes are copied in pieces from the original file, or generated in pieces.

Small resources and strings stay in the models: runtimes want shapes and axes at hand when they infer shapes, and ONNX
cannot store strings outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ir.diagnostics import InvalidInput
from ir.module import Declared, External, Inline, Module, Resource, Splat
from ir.types import DType, TensorType, type_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INLINE_LIMIT = 1024
"""Resources up to this many bytes stay inside the models (onnx's own default)."""
PIECE = 8 << 20
"""Bytes read, generated and written at once."""


def in_file(resource: Resource) -> bool:
    """Whether the resource belongs in a weights file rather than in the model."""
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.sparse or type_.dtype is DType.STRING:
        return False
    if isinstance(resource.data, Inline) and not isinstance(resource.data.data, bytes):
        return False
    return (type_bytes(type_) or 0) > INLINE_LIMIT


def layout(resources: Iterable[Resource], file: str) -> dict[str, External]:
    """The place of each resource that belongs in ``file``, by name, in the given order; a name that comes twice counts once."""
    places: dict[str, External] = {}
    offset = 0
    for resource in resources:
        if resource.name in places or not in_file(resource):
            continue
        length = type_bytes(resource.type) or 0
        step = 4096 if length >= 4096 else 64
        offset = -(-offset // step) * step
        places[resource.name] = External(file, offset, length)
        offset += length
    return places


def moved(module: Module, places: Mapping[str, External], folder: str = "") -> Module:
    """The module with the resources of ``places`` where those say, in files under ``folder`` (``stages/``)."""
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
    source: Path,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> None:
    """Writes the file of one layout. ``source`` is the folder of the original model, where external resources lie;
    ``progress`` is called with the fraction written.

    Raises InvalidInput when the data of a resource is missing, short, or was never given."""
    total = max((place.offset + place.length for place in places.values()), default=0)
    with path.open("wb") as file:
        for name, place in sorted(places.items(), key=lambda item: item[1].offset):
            file.write(b"\0" * (place.offset - file.tell()))
            for piece in pieces(resources[name], source):
                file.write(piece)
                progress("write the weights", file.tell() / total)
            written = file.tell() - place.offset
            if written != place.length:
                message = f"{written} bytes of data found, {place.length} expected for {resources[name].type}"
                raise InvalidInput(message, where=name)


def pieces(resource: Resource, source: Path) -> Iterator[bytes | memoryview]:
    """The bytes of a resource as ONNX stores them, a piece at a time. Raises InvalidInput as ``write_weights``."""
    from dnnc.frontends.weights import read_resource

    match resource.data:
        case External() as data:
            yield from _external(resource.name, data, source)
        case Inline(data=bytes(raw)):
            yield raw
        case Splat():
            yield from _splat(resource, resource.data)
        case Declared():
            hint = "it can be planned: use --plan-only"
            raise InvalidInput("the weight has no data, so nothing can be written for it", where=resource.name, hint=hint)
        case _:
            from dnnc.frontends.arrays import to_data

            data_bytes = to_data(read_resource(resource, source), _tensor(resource).dtype)
            assert isinstance(data_bytes, bytes)
            yield data_bytes


def _external(name: str, data: External, source: Path) -> Iterator[bytes | memoryview]:
    path = contained(source, data.file, name)
    try:
        with path.open("rb") as file:
            file.seek(data.offset)
            left = data.length
            while left:
                piece = file.read(min(PIECE, left))
                if not piece:
                    size = path.stat().st_size
                    message = f"the file has {size} bytes, the weight ends at byte {data.offset + data.length}"
                    raise InvalidInput(
                        message, where=f"{name} in {data.file}", hint="the weight file is incomplete: fetch it again"
                    )
                left -= len(piece)
                yield piece
    except FileNotFoundError:
        raise InvalidInput(
            "the weight file is missing", where=f"{name} in {data.file}", hint=f"expected it at {path}"
        ) from None


def contained(folder: Path, file: str, name: str) -> Path:
    """The path of an external file. Raises InvalidInput when it leaves the model's folder, by ``..`` or by a link."""
    path = folder / file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput(
            "the weight file lies outside the folder of the model", where=f"{name} in {file}", hint="copy it beside the model"
        )
    return path


def _splat(resource: Resource, data: Splat) -> Iterator[bytes]:
    import numpy as np

    from dnnc.frontends.arrays import numpy_dtype, to_data

    type_ = _tensor(resource)
    left = type_.elements or 0
    step = PIECE  # a multiple of eight elements, so that sub-byte elements fill whole bytes
    array: NDArray[np.generic] = np.full(min(step, left), data.value).astype(numpy_dtype(type_.dtype))
    whole = to_data(array, type_.dtype)
    assert isinstance(whole, bytes)
    while left >= len(array) > 0:
        yield whole
        left -= len(array)
    if left:
        rest = to_data(array[:left], type_.dtype)
        assert isinstance(rest, bytes)
        yield rest


def _tensor(resource: Resource) -> TensorType:
    assert isinstance(resource.type, TensorType)
    return resource.type
