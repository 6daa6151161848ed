"""Tensors and the parts of them that members of a mesh hold: cut apart and put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import EllipsisType

import numpy as np

from dnnc.build.members import Box, Part, is_whole
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.collectives import reduce_into
from dnnc.onnx.elements import BY_NUMBER


def inside(box: Box) -> tuple[slice | EllipsisType, ...]:
    """The box as an index, which gives a view of a scalar too."""
    return *(slice(start, start + length) for start, length in box), ...


def part_of(whole: Raw, box: Box) -> Raw:
    """A copy of what lies in the box; the tensor itself where that is all of it (a box of no ranges is)."""
    if not box or is_whole(box, whole.shape):
        return whole
    return Raw(whole.element, tuple(length for _, length in box), np.ascontiguousarray(whole.data[inside(box)]))


def assemble(shape: Sequence[int], pieces: Iterable[tuple[Part, Raw]]) -> Raw:
    """The tensor of ``shape`` from the parts that are delivered, in the order of the members: terms of one box are reduced in
    that order."""
    held: dict[Box, list[tuple[Part, Raw]]] = {}
    for part, raw in pieces:
        held.setdefault(part.box, []).append((part, raw))
    first = next(iter(held.values()))
    if len(held) == 1 and len(first) == 1:
        return first[0][1]
    element = first[0][1].element
    data = np.empty(tuple(shape), np.dtype(BY_NUMBER[element].carrier))
    for box, terms in held.items():
        if len(terms) == 1:
            data[inside(box)] = terms[0][1].data
        else:
            reduce_into(data[inside(box)], [raw.data for _, raw in terms], terms[0][0].reduction, element)
    return Raw(element, tuple(shape), data)


def neutral(like: Raw, reduction: str) -> Raw:
    """A term that changes nothing: zeros of a sum; of a maximum, the tensor itself."""
    return like if reduction == "max" else Raw(like.element, like.shape, np.zeros_like(like.data))


__all__ = ["assemble", "inside", "neutral", "part_of"]
