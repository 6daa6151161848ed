"""Cuts tensors into the parts that members of a mesh hold, and assembles tensors from parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import EllipsisType

import numpy as np

from dnnc.build.members import Box, Part, is_whole
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.collectives import reduce_into
from dnnc.onnx.elements import BY_NUMBER


def inside(box: Box) -> tuple[slice | EllipsisType, ...]:
    """The index of a box; the ellipsis makes the result an array even for a scalar."""
    return *(slice(start, start + length) for start, length in box), ...


def part_of(whole: Raw, box: Box) -> Raw:
    """The part of ``whole`` in ``box``, copied; ``whole`` itself if the box is all of it. A box without ranges is all."""
    if not box or is_whole(box, whole.shape):
        return whole
    return Raw(whole.element, tuple(length for _, length in box), np.ascontiguousarray(whole.data[inside(box)]))


def assemble(shape: Sequence[int], pieces: Iterable[tuple[Part, Raw]]) -> Raw:
    """The tensor of ``shape`` from the parts that members deliver, at least one. Terms of the same box are reduced in the order
    of ``pieces``, which is that of the members."""
    by_box: dict[Box, list[tuple[Part, Raw]]] = {}
    for part, raw in pieces:
        by_box.setdefault(part.box, []).append((part, raw))
    first = next(iter(by_box.values()))
    if len(by_box) == 1 and len(first) == 1:
        return first[0][1]
    element = first[0][1].element
    data = np.empty(tuple(shape), np.dtype(BY_NUMBER[element].carrier))
    for box, terms in by_box.items():
        if len(terms) == 1:
            data[inside(box)] = terms[0][1].data
        else:
            reduce_into(data[inside(box)], [raw.data for _, raw in terms], terms[0][0].reduction, element)
    return Raw(element, tuple(shape), data)


def neutral(like: Raw, reduction: str) -> Raw:
    """A term that leaves a reduction with ``like`` unchanged: zeros for ``sum``, ``like`` itself for ``max``."""
    return like if reduction == "max" else Raw(like.element, like.shape, np.zeros_like(like.data))
