"""The weights of a mesh's members: a member reads a part (a box) of each weight of its stage.

Parts are cut from the whole weights, which are written to the build first. With ``--weights shared``, a part that is contiguous
in the file of the whole weights is a reference into that file; all others go to ``parts.data``, equal parts once. With
``per-stage``, each member has a file with all its parts. Parts of at most ``INLINE_LIMIT`` bytes are in the models, as small
weights are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from dnnc.engines.onnxruntime.write.weights_file import INLINE_LIMIT, layout, write_weights
from ir.core.module import External, Inline, Resource, State, View
from ir.core.types import TensorType, type_bytes
from ir.ops.boxes import Box
from passes.meshes import Part

PARTS_FILE = "parts.data"
"""File of the parts that are not contiguous, with ``--weights shared``."""

Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(slots=True)
class PartsFile:
    """A file of parts: collects the parts first (``add``), then lays out (``places``) and writes all of them."""

    name: str
    parts: dict[str, Resource] = field(default_factory=dict)

    def add(self, part: Resource, box: Box) -> str:
        """Adds a part unless the same box of the same weight is there; returns its key."""
        key = f"{part.name}{list(box)}"
        self.parts.setdefault(key, replace(part, name=key))
        return key

    def places(self) -> dict[str, External]:
        """The place of each part in the file, by key."""
        return layout(self.parts.values(), self.name, every=True)

    def write(self, stages: Path, progress: Progress) -> None:
        """Writes the file to the folder ``stages``, which holds the whole weights; writes none without parts."""
        if self.parts:
            write_weights(stages / self.name, self.parts, self.places(), stages, progress)


@dataclass(frozen=True, slots=True)
class MemberWeights:
    """The resources of a member, each with the type of its part. ``keys``: by resource, the keys of the parts in ``file``; the
    other resources have their data or refer to it."""

    resources: tuple[Resource, ...]
    keys: Mapping[str, str]
    file: PartsFile

    def located(self) -> tuple[Resource, ...]:
        """The resources; those in ``file`` refer to their places there. To be called once all members have added their
        parts."""
        if not self.keys:
            return self.resources
        places = self.file.places()
        return tuple(replace(r, data=places[self.keys[r.name]]) if r.name in self.keys else r for r in self.resources)


def member_weights(
    parts: Sequence[Part],
    resources: Mapping[str, Resource],
    wholes: Mapping[str, External],
    file: PartsFile,
    *,
    stages: Path,
    own_file: bool,
    written: bool,
) -> MemberWeights:
    """The resources of a member that reads ``parts``.

    ``wholes``: by name, the places of whole weights in files of the folder ``stages``, which are written already if
    ``written``; all other ``resources`` have inline data. ``own_file``: ``file`` gets every part that is not inline, not only
    those that are not contiguous."""
    local_resources: list[Resource] = []
    keys: dict[str, str] = {}
    for part in parts:
        resource = resources[part.name]
        if part.name not in wholes:
            cut = _cut(resource, part)
            local_resources.append(cut if isinstance(cut.data, State) else _inlined(cut, stages))
            continue
        local = _cut(replace(resource, data=wholes[part.name]), part)
        small = (type_bytes(local.type) or 0) <= INLINE_LIMIT
        if small and written:
            local = _inlined(local, stages)
        elif own_file or isinstance(local.data, View):
            keys[part.name] = file.add(local, part.box)
        local_resources.append(local)
    return MemberWeights(tuple(local_resources), keys, file)


def _cut(whole: Resource, part: Part) -> Resource:
    """The part of the resource ``whole``: a place in a file where the part is contiguous there, else a view."""
    type_ = whole.type
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int)) if isinstance(type_, TensorType) else ()
    if not part.box or all((start, length) == (0, dim) for (start, length), dim in zip(part.box, shape, strict=True)):
        return whole
    assert isinstance(type_, TensorType)
    start, length = (tuple(side[i] for side in part.box) for i in range(2))
    if isinstance(whole.data, State):  # an argument of the models of its members
        return replace(whole, type=part.type)
    first_bit, bits = (elements * type_.dtype.bits for elements in (_index(start, shape), math.prod(length)))
    if isinstance(whole.data, External) and is_contiguous(part.box, shape) and first_bit % 8 == bits % 8 == 0:
        data: External | View = External(whole.data.file, whole.data.offset + first_bit // 8, bits // 8)
    elif isinstance(whole.data, View):
        raise AssertionError(f"{whole.name} is neither in a model nor in a file")
    else:
        data = View(whole.data, shape, start, length)
    return replace(whole, type=part.type, data=data, digest="")


def _index(start: Sequence[int], shape: Sequence[int]) -> int:
    """Row-major position of the element at these coordinates."""
    return sum(s * math.prod(shape[i + 1 :]) for i, s in enumerate(start))


def is_contiguous(box: Box, shape: Sequence[int]) -> bool:
    """Whether the elements of a box follow each other in a row-major tensor of ``shape``: in the dimensions before the
    innermost one that the box does not span, it has length 1."""
    whole = True  # whether the box spans all dimensions after this one
    for (_, length), dim in zip(reversed(box), reversed(shape), strict=True):
        if not whole and length != 1:
            return False
        whole = whole and length == dim
    return True


def _inlined(resource: Resource, folder: Path) -> Resource:
    """The resource with its data inline, read from files of ``folder``."""
    from dnnc.onnx.arrays import to_data
    from dnnc.onnx.weights import read_resource

    assert isinstance(resource.type, TensorType)
    return replace(resource, data=Inline(to_data(read_resource(resource, folder), resource.type.dtype)))
