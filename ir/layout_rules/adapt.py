"""Changes of an op that runs on a shard, beside smaller tensors. They are data; ``localise`` applies them.

Most ops need no change. Ops that state a size or an index need one of these, along the sharded factor (``start`` and ``length``
are those of the shard, ``size`` that of the factor, in units).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LocalShape:
    """Operand ``operand`` is the shape of result ``result``; on a shard, the shape of the shard's result (Reshape, Expand)."""

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
    """Operand ``operand`` holds indices into the factor, negative ones from its end. On a shard they are taken from its start
    on; those of other shards must have no effect. ``trailing``: the first result has that many dimensions behind those of the
    indices, and is zero where an index lies outside (Gather); None: such an index becomes ``length``, one past the end, which
    the op itself takes for none (OneHot)."""

    operand: int
    trailing: int | None = 0


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The first result is a mean along the factor; multiplied by length / size, it is the shard's term of the whole mean."""


@dataclass(frozen=True, slots=True)
class AsReshape:
    """The op would mistake a shard's dimension of length 1 (Squeeze of all dimensions of length 1), so it becomes a Reshape to
    the shape of the shard's result."""


@dataclass(frozen=True, slots=True)
class FixedResult:
    """The result describes the whole tensor (Shape, Size), so the op becomes the constant ``values``."""

    values: tuple[int, ...]


Adapt: TypeAlias = LocalShape | LocalEntry | LocalAttribute | ShiftIndices | ScaleResult | AsReshape | FixedResult

__all__ = ["Adapt", "AsReshape", "FixedResult", "LocalAttribute", "LocalEntry", "LocalShape", "ScaleResult", "ShiftIndices"]
