"""Changes to an op that runs on one shard of a factor, as data; ``localise`` applies them.

Most ops need none: only their tensors get smaller. An op that states a size or an index along the factor needs one. ``start``
and ``length`` are those of the shard, ``size`` is that of the factor, in units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LocalShape:
    """Operand ``operand`` is the shape of result ``result``; on a shard, it is the shape of the shard's result (Reshape,
    Expand)."""

    operand: int
    result: int = 0


@dataclass(frozen=True, slots=True)
class LocalEntry:
    """Entry ``position`` of the constant operand ``operand`` is a length along the factor; it is multiplied by length /
    size."""

    operand: int
    position: int


@dataclass(frozen=True, slots=True)
class LocalAttribute:
    """Attribute ``key`` is a length along the factor, such as the groups of a Conv or the heads of an attention; it is
    multiplied by length / size."""

    key: str


@dataclass(frozen=True, slots=True)
class ShiftIndices:
    """Operand ``operand`` holds indices i into the factor; i < 0 counts from its end. On a shard they become i - ``start``, and
    an index outside the shard has no effect: the first result, which has ``trailing`` dimensions after those of the indices, is
    zero there (Gather); or, with ``trailing`` None, the index becomes ``length``, which the op ignores (OneHot)."""

    operand: int
    trailing: int | None = 0


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The first result is a mean along the factor; multiplied by length / size, it is the shard's term of the whole mean."""


@dataclass(frozen=True, slots=True)
class AsReshape:
    """The op would also drop a sharded dimension that has length 1 on the shard (Squeeze without axes), so it becomes a Reshape
    to the shape of the shard's result."""


@dataclass(frozen=True, slots=True)
class FixedResult:
    """The result describes the whole tensor (Shape, Size), so the op becomes the constant ``values``."""

    values: tuple[int, ...]


Adapt: TypeAlias = LocalShape | LocalEntry | LocalAttribute | ShiftIndices | ScaleResult | AsReshape | FixedResult
