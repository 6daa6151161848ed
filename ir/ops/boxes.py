"""The part of a tensor that a member of a mesh holds: a box, one range per dimension.

Members are numbered row by row, as the mesh lists its devices. A dimension that an axis splits is cut in the proportion of the
axis' shares (``ir.core.shares``), into ranges in the order of the members; with equal shares they are balanced, the first ones
longer by 1 where they cannot be equal. Where several axes split one dimension, each cuts the range that the axis before it
left. A replicated value, and each term of a reduction, is the whole range.

Invariant: the boxes of the members along an axis that splits a dimension are disjoint, in the order of their coordinates, and
join to the box that they would have without that axis. No box is empty unless the tensor is (``decided`` sees to that).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ir.core.module import Mesh
from ir.core.shares import Range, nested_cut
from ir.core.types import Partial, Placement, Replicate, Shard, TensorType, Type

Box: TypeAlias = tuple[Range, ...]
"""A range per dimension, in elements of the whole tensor."""
Placements: TypeAlias = tuple[Placement, ...]


def axis_number(mesh: Mesh, axis: str) -> int:
    """The position of an axis. Raises KeyError for none of this name."""
    for number, (name, _) in enumerate(mesh.axes):
        if name == axis:
            return number
    raise KeyError(axis)


def coordinates(mesh: Mesh, member: int) -> tuple[int, ...]:
    """The place of a member along each axis."""
    places = []
    for _, size in reversed(mesh.axes):
        member, place = divmod(member, size)
        places.append(place)
    return tuple(reversed(places))


def members_along(mesh: Mesh, member: int, axis: str) -> tuple[int, ...]:
    """The members that differ from ``member`` only along ``axis``, itself among them, in the order of their coordinates."""
    number = axis_number(mesh, axis)
    size = mesh.axes[number][1]
    stride = math.prod(count for _, count in mesh.axes[number + 1 :])
    first = member - coordinates(mesh, member)[number] * stride
    return tuple(range(first, first + size * stride, stride))


def box(type_: Type, placements: Sequence[Placement], mesh: Mesh, member: int) -> Box:
    """The part of a value of ``type_`` (whole) that ``member`` holds, or has a term of; ``()`` for what is no tensor of known
    shape, which is whole everywhere."""
    shape = shape_of(type_)
    if shape is None:
        return ()
    if len(placements) != len(mesh.axes):
        raise ValueError(f"{len(placements)} placements for the {len(mesh.axes)} axes of {mesh.name}")
    places = coordinates(mesh, member)
    ranges = []
    for dim, length in enumerate(shape):
        splits = [
            (mesh.along(axis), places[axis])
            for axis, placement in enumerate(placements)
            if isinstance(placement, Shard) and placement.dim == dim
        ]
        ranges.append(nested_cut(length, splits) if splits else (0, length))
    return tuple(ranges)


def delivers(placements: Sequence[Placement], mesh: Mesh, member: int) -> bool:
    """Whether ``member`` is the one that sends its part where several hold the same part: the first along replicated axes."""
    places = coordinates(mesh, member)
    return all([place == 0 for place, placement in zip(places, placements, strict=True) if isinstance(placement, Replicate)])


def placements_of(type_: Type, mesh: Mesh) -> Placements:
    """The placements of a value on ``mesh``: those of its layout, or replicated where it has none."""
    if isinstance(type_, TensorType) and type_.layout is not None and type_.layout.mesh == mesh.name:
        return type_.layout.placements
    return (Replicate(),) * len(mesh.axes)


def reduction_of(placements: Iterable[Placement]) -> str:
    """The reduction (``sum``, ``max``) of which a value holds terms; empty for none."""
    return next((placement.reduction for placement in placements if isinstance(placement, Partial)), "")


def shape_of(type_: Type) -> tuple[int, ...] | None:
    """The shape of a tensor in numbers, or None."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    shape = tuple(dim for dim in type_.shape if isinstance(dim, int))
    return shape if len(shape) == len(type_.shape) else None
