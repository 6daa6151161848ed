"""Fused projections: one product whose columns are taken apart behind it.

A chain begins with ``MatMul(X, W)``, ``Gemm(X, W, C)`` or ``MatMulNBits(X, W, ..)``, ``W`` a resource, and goes on, each op
the only reader of the one before, with additions of a bias, reshapes and transposes. All the while the last dimension of the
product, its *columns*, stays a group of dimensions of its own (*factors*, row-major), apart from the *rows*. It ends in a value
whose readers are all *parts*: Split, Slice or Gather along one dimension of the columns, which do not overlap:

    MatMul [B, S, 3hd] -> Add -> Split                                                    factors 3hd
    Gemm [BS, 3hd] -> Reshape [B, S, 3hd] -> Split                                        factors 3hd
    MatMul -> Reshape [B, S, 3, h, d] -> Transpose [2, 0, 3, 1, 4] -> Gather 0, 1, 2      factors 3, h, d
    MatMul -> Reshape [B, S, h, 3d] -> Slice                                              factors h, 3d
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.core.module import Resource
from ir.core.names import ABSENT
from ir.core.ops import Op, Value
from ir.core.types import Dim, TensorType, Type

PACKED = "onnx.com.microsoft.MatMulNBits"

Ints = Callable[[str], tuple[int, ...] | None]
"""The elements of an integer constant, by name."""


@dataclass(frozen=True, slots=True)
class Part:
    """Columns ``start .. start + length`` along one of the factors; ``picked``: that dimension is gone (Gather by a number)."""

    value: Value
    factor: int
    start: int
    length: int
    picked: bool = False

    @property
    def cut(self) -> tuple[int, int, int]:
        return self.factor, self.start, self.length


@dataclass(frozen=True, slots=True)
class Chain:
    """``adds``: each addition with the place of its bias among the operands; ``reshape``, ``transpose``: the last of each.
    ``rows``: the dimensions before the columns; ``perm``: how (rows, factors) stand in the value ``name``. ``places``: of
    the ops of the chain, ``takers``: of those that take its parts."""

    product: Op
    weight: str
    columns: int
    name: str
    rows: tuple[Dim, ...]
    factors: tuple[int, ...]
    perm: tuple[int, ...]
    places: tuple[int, ...]
    adds: tuple[tuple[Op, int], ...] = ()
    reshape: Op | None = None
    transpose: Op | None = None
    parts: tuple[Part, ...] = ()
    takers: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Of the value ``name``."""
        whole = (*self.rows, *self.factors)
        return tuple(whole[axis] for axis in self.perm)

    @property
    def cuts(self) -> tuple[tuple[int, int, int], ...]:
        """What is taken, whoever takes it."""
        return tuple(sorted(part.cut for part in self.parts))

    @property
    def biases(self) -> tuple[str, ...]:
        """What varies by column beside the weight: what is added, by the product itself or behind it, and scales and zero
        points of a packed weight."""
        own = (2, 3, 5) if self.product.name == PACKED else (2,)
        return (
            *(name for i, name in enumerate(self.product.operands) if i in own and name != ABSENT),
            *(op.operands[side] for op, side in self.adds),
        )

    @property
    def by_row(self) -> tuple[str, ...]:
        """Those of which a column is a row: a transposed weight, or a packed one with its scales and zero points."""
        if self.product.name == PACKED:
            return tuple(name for name in self.product.operands[1:4] if name != ABSENT)
        return (self.weight,) if self.product.get("transB", 0) else ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of the function: its ops, the places of the readers of each value, what it yields, types and constants."""

    ops: Sequence[Op]
    resources: Mapping[str, Resource]
    types: Mapping[str, Type]
    readers: Mapping[str, Sequence[int]]
    kept: frozenset[str]
    ints: Ints


def chain_from(place: int, around: Surroundings) -> Chain | None:
    """The chain that begins with the op at ``place``; None where none does."""
    chain = _begin(place, around)
    while chain is not None:
        places = tuple(dict.fromkeys(around.readers.get(chain.name, ())))
        if not places or chain.name in around.kept:
            return None
        further = _further(chain, places[0], around) if len(places) == 1 else None
        if further is None:
            return _ended(chain, places, around)
        chain = further
    return None


def _begin(place: int, around: Surroundings) -> Chain | None:
    op = around.ops[place]
    if op.name == PACKED:
        return _begin_packed(place, op, around)
    if op.name not in ("onnx.MatMul", "onnx.Gemm") or len(op.operands) < 2 or op.operands[1] not in around.resources:
        return None
    shape, weight = _shape(op.results[0].type), _shape(around.resources[op.operands[1]].type)
    if shape is None or weight is None or len(weight) != 2 or op.operands[0] == op.operands[1]:
        return None
    columns = weight[0 if op.get("transB", 0) else 1]
    if not isinstance(columns, int) or shape[-1:] != (columns,):
        return None
    for name in op.operands[2:]:
        if name != ABSENT and (name == op.operands[1] or not _is_bias(name, columns, len(shape), around)):
            return None
    rank = len(shape)
    return Chain(op, op.operands[1], columns, op.results[0].name, shape[:-1], (columns,), tuple(range(rank)), (place,))


def _begin_packed(place: int, op: Op, around: Surroundings) -> Chain | None:
    """Of MatMulNBits(X, W [N, blocks, bytes], scales [N, blocks], zero points [N, ..], order, bias [N])."""
    shape, columns = _shape(op.results[0].type), op.get("N")
    own = [(i, name) for i, name in enumerate(op.operands) if i in (1, 2, 3, 5) and name != ABSENT]
    names = [name for _, name in own]
    if shape is None or shape[-1:] != (columns,) or op.get("weight_prepacked", 0) or len(op.operands) < 3:
        return None
    if len(set(names)) < len(names) or op.operands[0] in names or any(name not in around.resources for name in names):
        return None
    ranks = {1: 3, 2: 2, 3: 2, 5: 1}
    for i, name in own:
        found = _shape(around.resources[name].type)
        if found is None or len(found) != ranks[i] or found[0] != columns:
            return None
    rank = len(shape)
    return Chain(op, op.operands[1], columns, op.results[0].name, shape[:-1], (columns,), tuple(range(rank)), (place,))


def _further(chain: Chain, place: int, around: Surroundings) -> Chain | None:
    """The chain with the op at ``place``, where that is one of its ops."""
    op = around.ops[place]
    found: Chain | None = None
    if op.name == "onnx.Add":
        found = _added(chain, op, around)
    elif op.name == "onnx.Reshape" and op.operands[0] == chain.name:
        found = _reshaped(chain, op)
    elif op.name == "onnx.Transpose":
        perm = tuple(op.get("perm") or reversed(range(len(chain.perm))))
        if sorted(perm) == list(range(len(chain.perm))):
            found = replace(chain, transpose=op, perm=tuple(chain.perm[axis] for axis in perm))
    return None if found is None else replace(found, name=op.results[0].name, places=(*chain.places, place))


def _added(chain: Chain, op: Op, around: Surroundings) -> Chain | None:
    """A bias along the columns, added before they are divided; it may as well be added to the product at once."""
    if op.operands.count(chain.name) != 1 or len(op.operands) != 2:
        return None
    side = 1 - op.operands.index(chain.name)
    rank = len(_shape(chain.product.results[0].type) or ())
    if len(chain.factors) > 1 or chain.transpose or not _is_bias(op.operands[side], chain.columns, rank, around):
        return None
    return replace(chain, adds=(*chain.adds, (op, side)))


def _is_bias(name: str, columns: int, rank: int, around: Surroundings) -> bool:
    """Whether ``name`` is a resource that varies along the columns only, or not at all."""
    shape = _shape(around.resources[name].type) if name in around.resources else None
    return (
        shape is not None
        and len(shape) <= rank
        and all(dim == 1 for dim in shape[:-1])
        and shape[-1:] in ((), (1,), (columns,))
    )


def _reshaped(chain: Chain, op: Op) -> Chain | None:
    """The dimensions that the columns become are the last ones whose product they are."""
    shape = _shape(op.results[0].type)
    if shape is None or chain.transpose or not all(isinstance(dim, int) for dim in (*shape, *chain.rows)):
        return None
    numbers = [dim for dim in shape if isinstance(dim, int)]
    rows = math.prod(dim for dim in chain.rows if isinstance(dim, int))
    for first in reversed(range(len(numbers))):
        if math.prod(numbers[first:]) == chain.columns and math.prod(numbers[:first]) == rows:
            perm = tuple(range(len(numbers)))
            return replace(chain, reshape=op, rows=tuple(numbers[:first]), factors=tuple(numbers[first:]), perm=perm)
    return None


def _ended(chain: Chain, places: tuple[int, ...], around: Surroundings) -> Chain | None:
    """The chain with the parts that all its readers are; None where one is none, or where there is nothing to take apart."""
    parts: list[Part] = []
    for place in places:
        found = _parts(chain, around.ops[place], around)
        if found is None:
            return None
        parts += found
    if len(parts) < 2 or len({part.factor for part in parts}) > 1:
        return None
    ranges = sorted((part.start, part.start + part.length) for part in parts)
    if any(end > start for (_, end), (start, _) in itertools.pairwise(ranges)):
        return None
    return replace(chain, parts=tuple(parts), takers=places)


def _parts(chain: Chain, op: Op, around: Surroundings) -> list[Part] | None:
    if op.operands[0] != chain.name or op.operands.count(chain.name) > 1:
        return None
    match op.name:
        case "onnx.Split":
            found = _split(chain, op)
        case "onnx.Slice":
            found = _slice(chain, op, around)
        case "onnx.Gather":
            found = _gather(chain, op, around)
        case _:
            return None
    return found if found is not None and all(_fits(chain, part) for part in found) else None


def _fits(chain: Chain, part: Part) -> bool:
    """Whether the part has elements, and the shape that follows."""
    shape = list(chain.shape)
    axis = chain.perm.index(len(chain.rows) + part.factor)
    shape[axis : axis + 1] = [] if part.picked else [part.length]
    return (
        part.length > 0
        and part.start >= 0
        and part.start + part.length <= chain.factors[part.factor]
        and (_shape(part.value.type) == tuple(shape))
    )


def _factor(chain: Chain, axis: int) -> int | None:
    """Which of the factors stands at ``axis`` of the value."""
    if not -len(chain.perm) <= axis < len(chain.perm):
        return None
    found = chain.perm[axis] - len(chain.rows)
    return found if found >= 0 else None


def _split(chain: Chain, op: Op) -> list[Part] | None:
    """By the shapes of its results."""
    axis = int(op.get("axis", 0))
    factor, start, found = _factor(chain, axis), 0, []
    for value in op.results:
        shape = _shape(value.type)
        length = shape[axis] if shape is not None and len(shape) == len(chain.perm) else None
        if factor is None or not isinstance(length, int):
            return None
        if value.name:
            found.append(Part(value, factor, start, length))
        start += length
    return found


def _slice(chain: Chain, op: Op, around: Surroundings) -> list[Part] | None:
    """Along one axis, in steps of 1."""
    if len(op.operands) < 3:
        return None
    starts, ends = around.ints(op.operands[1]), around.ints(op.operands[2])
    axes = around.ints(op.operands[3]) if len(op.operands) > 3 and op.operands[3] != ABSENT else (0,)
    steps = around.ints(op.operands[4]) if len(op.operands) > 4 and op.operands[4] != ABSENT else (1,)
    if starts is None or ends is None or axes is None or steps != (1,) or not len(starts) == len(ends) == len(axes) == 1:
        return None
    factor = _factor(chain, axes[0])
    if factor is None:
        return None
    start, end, _ = slice(starts[0], ends[0]).indices(chain.factors[factor])
    return [Part(op.results[0], factor, start, end - start)]


def _gather(chain: Chain, op: Op, around: Surroundings) -> list[Part] | None:
    """By one number, whose dimension then is gone, or by a list of one."""
    if chain.reshape is None or len(op.operands) < 2:
        return None
    type_ = around.types.get(op.operands[1])
    picked, factor = around.ints(op.operands[1]), _factor(chain, int(op.get("axis", 0)))
    if factor is None or picked is None or len(picked) != 1 or not isinstance(type_, TensorType):
        return None
    start = picked[0] + chain.factors[factor] if picked[0] < 0 else picked[0]
    return [Part(op.results[0], factor, start, 1, picked=type_.shape == ())]


def _shape(type_: Type) -> tuple[Dim, ...] | None:
    """The shape; None where a dimension is not known."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    return None if shape is None or None in shape else shape
