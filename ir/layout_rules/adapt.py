"""What changes in an op that runs on a shard, besides that its tensors are smaller: data that ``localise`` carries out.

Most ops need nothing: they work on what they get. Those that spell a size or a place need one of these, along the factor that
is sharded (``start`` and ``length`` are the shard's, ``size`` the factor's, in units).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LocalShape:
    """Operand ``operand`` spells the shape of result ``result``: on a shard, that of the shard's result (Reshape, Expand)."""

    operand: int
    result: int = 0


@dataclass(frozen=True, slots=True)
class LocalEntry:
    """Entry ``position`` of the constant operand ``operand`` counts along the factor: times length / size."""

    operand: int
    position: int


@dataclass(frozen=True, slots=True)
class LocalAttribute:
    """Attribute ``key`` (a number, such as the groups of a Conv or the heads of an attention) counts along the factor: times
    length / size."""

    key: str


@dataclass(frozen=True, slots=True)
class ShiftIndices:
    """Operand ``operand`` holds indices into the factor, negative ones from its end. On a shard they are taken from its start
    on; those of other shards must have no effect. ``trailing``: the first result has that many dimensions behind those of the
    indices, and is zero where an index lies outside (Gather); None: such an index becomes ``length``, one past the end, which
    the op itself takes for none (OneHot)."""

    operand: int
    trailing: int | None = 0


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The first result is a mean along the factor: times length / size it is the shard's term of the whole mean."""


@dataclass(frozen=True, slots=True)
class AsReshape:
    """The op would take a shard's dimension of length 1 for another (Squeeze of all that are 1): it becomes a Reshape to the
    shape of the shard's result."""


@dataclass(frozen=True, slots=True)
class FixedResult:
    """The result tells of the whole tensor (Shape, Size): the op becomes the constant ``values``."""

    values: tuple[int, ...]


Adapt: TypeAlias = LocalShape | LocalEntry | LocalAttribute | ShiftIndices | ScaleResult | AsReshape | FixedResult

__all__ = ["Adapt", "AsReshape", "FixedResult", "LocalAttribute", "LocalEntry", "LocalShape", "ScaleResult", "ShiftIndices"]
