"""The weights of a mesh's members: each holds a part of each weight that it reads.

Parts are read from where the whole weights lie in the build. In the ``shared`` mode a part whose bytes follow each other there
refers to that place; any other is written once, whoever holds it, to ``parts.data``. In the ``per-stage`` mode each member has
a file of all that it holds. Small parts stay in the models, as small weights do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from dnnc.engines.onnxruntime.write.weights_file import INLINE_LIMIT, layout, write_weights
from ir.core.module import External, Inline, Resource, View
from ir.core.types import TensorType, type_bytes
from ir.ops.boxes import Box
from passes.model.spmd import Part

PARTS_FILE = "parts.data"
"""Parts of weights that are not contiguous, in the ``shared`` mode."""

Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(slots=True)
class PartsFile:
    """Parts that go to a file, and where they lie in it once ``write`` was called."""

    name: str
    parts: dict[str, Resource] = field(default_factory=dict)

    def add(self, part: Resource, box: Box) -> str:
        """Lines a part up; returns its key."""
        key = f"{part.name}{list(box)}"
        self.parts.setdefault(key, replace(part, name=key))
        return key

    def places(self) -> dict[str, External]:
        return layout(self.parts.values(), self.name, every=True)

    def write(self, stages: Path, progress: Progress) -> None:
        """Writes the file to ``stages``, where the whole weights lie."""
        if self.parts:
            write_weights(stages / self.name, self.parts, self.places(), stages, progress)


@dataclass(frozen=True, slots=True)
class Held:
    """What a member holds of its resources: those that are settled, and the keys in ``file`` of the others."""

    resources: tuple[Resource, ...]
    keys: Mapping[str, str]
    file: PartsFile

    def settled(self) -> tuple[Resource, ...]:
        """All, each where it lies."""
        if not self.keys:
            return self.resources
        places = self.file.places()
        return tuple(replace(r, data=places[self.keys[r.name]]) if r.name in self.keys else r for r in self.resources)


def hold(
    parts: Sequence[Part],
    resources: Mapping[str, Resource],
    wholes: Mapping[str, External],
    file: PartsFile,
    *,
    stages: Path,
    own: bool,
    written: bool,
) -> Held:
    """What a member holds. ``wholes``: places of whole weights in ``stages``, written there already if ``written``; the other
    ``resources`` have their data in them; ``own``: whether ``file`` takes all that is in files."""
    found: list[Resource] = []
    keys: dict[str, str] = {}
    for part in parts:
        resource = resources[part.name]
        if part.name not in wholes:
            found.append(_inlined(_boxed(resource, part, resource), stages))
            continue
        local = _boxed(resource, part, replace(resource, data=wholes[part.name]))
        small = (type_bytes(local.type) or 0) <= INLINE_LIMIT
        if small and written:
            local = _inlined(local, stages)
        elif own or isinstance(local.data, View):
            keys[part.name] = file.add(local, part.box)
        found.append(local)
    return Held(tuple(found), keys, file)


def _boxed(resource: Resource, part: Part, stored: Resource) -> Resource:
    """The part of ``stored``: a place in a file where its bytes follow each other there, else a view."""
    type_ = resource.type
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int)) if isinstance(type_, TensorType) else ()
    if not part.box or all((start, length) == (0, dim) for (start, length), dim in zip(part.box, shape, strict=True)):
        return stored
    assert isinstance(type_, TensorType)
    start, length = (tuple(side[i] for side in part.box) for i in range(2))
    first, count = (n * type_.dtype.bits for n in (_index(start, shape), math.prod(length)))
    if isinstance(stored.data, External) and is_contiguous(part.box, shape) and first % 8 == count % 8 == 0:
        data: External | View = External(stored.data.file, stored.data.offset + first // 8, count // 8)
    elif isinstance(stored.data, View):
        raise AssertionError(f"the view {stored.name} is neither in a model nor in a file")
    else:
        data = View(stored.data, shape, start, length)
    return replace(stored, type=part.type, data=data, digest="")


def _index(start: Sequence[int], shape: Sequence[int]) -> int:
    """Position of an element in row-major order."""
    return sum(s * math.prod(shape[i + 1 :]) for i, s in enumerate(start))


def is_contiguous(box: Box, shape: Sequence[int]) -> bool:
    """Whether the elements of a box follow each other in the tensor."""
    whole = True  # all dimensions behind this one
    for (_, length), dim in zip(reversed(box), reversed(shape), strict=True):
        if not whole and length != 1:
            return False
        whole = whole and length == dim
    return True


def _inlined(resource: Resource, folder: Path) -> Resource:
    """With its data, read from ``folder``."""
    from dnnc.onnx.arrays import to_data
    from dnnc.onnx.weights import read_resource

    assert isinstance(resource.type, TensorType)
    return replace(resource, data=Inline(to_data(read_resource(resource, folder), resource.type.dtype)))


__all__ = ["PARTS_FILE", "Held", "PartsFile", "hold", "is_contiguous"]
