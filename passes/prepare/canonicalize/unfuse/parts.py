"""Parts of a resource: the data of a box of a tensor, said without reading it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ir.core.module import Declared, External, Inline, Random, Resource, ResourceData, Splat, View
from ir.core.types import TensorType


def part_data(resource: Resource, shape: Sequence[int], start: Sequence[int], length: Sequence[int]) -> ResourceData | None:
    """The data of the box of ``resource`` (read as a tensor of ``shape``); None where that cannot be said.

    What is one value everywhere, or declared, is so in part; a contiguous part of a file is a place in it, and the text of a
    small constant is cut. Everything else is a view."""
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.sparse or type_.elements != math.prod(shape):
        return None
    view = tuple(shape), tuple(start), tuple(length)
    size = type_.dtype.bits // 8 if type_.dtype.bits % 8 == 0 else 0
    match resource.data:
        case Splat() | Declared():
            return resource.data
        case Inline(data=bytes(raw)) if size:
            return Inline(b"".join(raw[at * size : (at + count) * size] for at, count in _rows(shape, start, length)))
        case External(file, offset, _) if size and (whole := _contiguous(shape, start, length)) is not None:
            return External(file, offset + whole * size, math.prod(length) * size)
        case External() | Random():
            return View(resource.data, *view)
    return None


def _contiguous(shape: Sequence[int], start: Sequence[int], length: Sequence[int]) -> int | None:
    """The place of the first element of a box whose elements follow each other, else None."""
    cut = [dim for dim, (size, count) in enumerate(zip(shape, length, strict=True)) if size != count]
    if cut and any(count != 1 for count in length[: cut[-1]]):
        return None
    return sum(first * math.prod(shape[dim + 1 :]) for dim, first in enumerate(start))


def _rows(shape: Sequence[int], start: Sequence[int], length: Sequence[int]) -> list[tuple[int, int]]:
    """The box as runs of elements: where each begins, and how long it is."""
    if not shape:
        return [(0, 1)]
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    outer = itertools.product(*(range(first, first + count) for first, count in zip(start[:-1], length[:-1], strict=True)))
    return [(sum(at * stride for at, stride in zip(place, strides, strict=False)) + start[-1], length[-1]) for place in outer]
