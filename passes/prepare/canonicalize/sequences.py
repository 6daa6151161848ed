"""Sequences of which only known parts are read: exporters write a split of which each part goes elsewhere as

    SplitToSequence(x, sizes) -> SequenceAt 0, SequenceAt 1

which is one Split, that has a gradient and layouts. Parts of size 1 that lose the dimension (no sizes, ``keepdims = 0``) get a
Squeeze each.

A sequence stays where sizes or an index are no constants, the dimension is no number, a part would not be one (a size below 1,
sizes of another sum, an index out of range), another op or another body reads it, before opset 13, where Split and Squeeze take
attributes, and where ``keepdims = 0`` stands beside a scalar size: ONNX ignores it there, ONNX Runtime does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.core.attributes import attributes
from ir.core.facets import Measured, Transfer
from ir.core.module import Func
from ir.core.names import ABSENT, unique
from ir.core.ops import Op, Value, all_values
from ir.core.types import DType, TensorType, Type
from ir.ops.opdefs import module_opsets
from passes.graph.graph import reads
from passes.prepare.canonicalize.constants import Constants, dense_ints, ints_dense
from passes.prepare.canonicalize.folding import static

_OPSET = 13
_OF_RESULTS = (Measured, Transfer)
"""Facets with an item for each result."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a SplitToSequence divides a tensor of type ``whole``: along which axis, in parts of which lengths; ``squeezed``: each
    part loses the axis."""

    whole: TensorType
    axis: int
    lengths: Sequence[int]
    squeezed: bool

    def part(self, index: int) -> TensorType:
        """The type of a part that keeps the axis."""
        shape = self.whole.shape or ()
        return replace(self.whole, shape=(*shape[: self.axis], self.lengths[index], *shape[self.axis + 1 :]))


def without_sequences(func: Func, constants: Constants) -> tuple[Op, ...]:
    """The ops of a function with a Split for each such sequence."""
    if module_opsets(constants.module).get("onnx", 0) < _OPSET:
        return func.ops
    types: dict[str, Type] = {arg.name: arg.type for arg in func.args}
    types.update((value.name, value.type) for value in all_values(func.ops))
    taken = set(types)
    types.update((name, resource.type) for name, resource in constants.resources.items())
    return _Splitter(constants, types, taken).body(func.ops, {value.name for value in func.results})


@dataclass(frozen=True, slots=True)
class _Splitter:
    """Rewrites the bodies of one function. ``types``: of its values and of resources; ``taken``: names of its values, and of
    those made here."""

    constants: Constants
    types: Mapping[str, Type]
    taken: set[str]

    def body(self, ops: tuple[Op, ...], yielded: Collection[str]) -> tuple[Op, ...]:
        """The ops of a body that yields ``yielded``, with a Split for each such sequence."""
        readers: dict[str, list[Op]] = {
            op.results[0].name: []
            for op in ops
            if op.name == "onnx.SplitToSequence" and op.operands and op.results and op.results[0].name not in yielded
        }
        for op in ops if readers else ():
            for name in reads(op):
                if name in readers:
                    readers[name].append(op)
        instead: dict[str, list[Op]] = {}
        for op in ops:
            takers = readers.get(op.results[0].name) if op.results else None
            cut = _cut(op, self.types.get(op.operands[0]), self.constants) if takers else None
            if takers and cut is not None:
                indices = [_index(taker, self.constants, len(cut.lengths)) for taker in takers]
                pairs = [(taker, index) for taker, index in zip(takers, indices, strict=True) if index is not None]
                if len(pairs) == len(takers):
                    instead |= self.parts(op, cut, pairs, yielded)
        rewritten: list[Op] = []
        for op in ops:
            rewritten += instead.get(op.results[0].name if op.results else ABSENT, (self.regions(op) if op.regions else op,))
        return tuple(rewritten)

    def regions(self, op: Op) -> Op:
        regions = tuple((key, replace(region, ops=self.body(region.ops, region.results))) for key, region in op.regions)
        return op if regions == op.regions else replace(op, regions=regions)

    def parts(self, op: Op, cut: _Cut, takers: Sequence[tuple[Op, int]], yielded: Collection[str]) -> dict[str, list[Op]]:
        """What stands in the place of ``op`` and of those that take a part, by the name of the result.

        A part has the name of the first value that equals it; a type that says every size, or that the body yields, stays."""
        name, values = op.results[0].name, dict[int, Value]()
        if not cut.squeezed:
            for taker, index in takers:
                value = taker.results[0]
                known = value.name in yielded or static(value.type)
                values.setdefault(index, value if known else replace(value, type=cut.part(index)))
        parts = tuple(
            values[i] if i in values else Value(unique(f"{name}.{i}", self.taken), cut.part(i)) for i in range(len(cut.lengths))
        )
        axis = attributes({"axis": cut.axis})
        facets = tuple(facet for facet in op.facets if not isinstance(facet, _OF_RESULTS))
        operands = op.operands[0], self.constant(f"{name}.sizes", cut.lengths)
        split = replace(op, name="onnx.Split", operands=operands, results=parts, attributes=axis, facets=facets)
        instead = {name: [split]}
        axes = (self.constant(f"{name}.axes", [cut.axis]),) if cut.squeezed else ()
        for taker, index in takers:
            part, result = parts[index].name, taker.results[0].name
            same = replace(taker, name="onnx.Squeeze" if cut.squeezed else "onnx.Identity", operands=(part, *axes))
            instead[result] = [] if part == result else [same]
        return instead

    def constant(self, name: str, numbers: Sequence[int]) -> str:
        dense = ints_dense(numbers)
        return self.constants.add(name, dense.type, dense)


def _cut(op: Op, given: Type | None, constants: Constants) -> _Cut | None:
    axis = op.get("axis", 0)
    if not isinstance(given, TensorType) or given.shape is None or not -len(given.shape) <= axis < len(given.shape):
        return None
    axis %= len(given.shape)
    length = given.shape[axis]
    if not isinstance(length, int):
        return None
    keeps = bool(op.get("keepdims", 1))
    if len(op.operands) < 2 or op.operands[1] == ABSENT:
        lengths, squeezed = _equal(length, 1, constants), not keeps
    else:
        lengths, squeezed = _lengths(op.operands[1], length, keeps, constants), False
    return None if lengths is None else _Cut(given, axis, lengths, squeezed)


def _lengths(name: str, length: int, keeps: bool, constants: Constants) -> Sequence[int] | None:
    """Parts of a dimension of this length by the constant ``name``: a scalar, or one size for each."""
    dense = constants.dense(name)
    sizes = None if dense is None else dense_ints(dense)
    if dense is None or not sizes or min(sizes) < 1:
        return None
    if dense.type.shape == ():
        return _equal(length, sizes[0], constants) if keeps else None
    return sizes if len(dense.type.shape or ()) == 1 and sum(sizes) == length else None


def _equal(length: int, size: int, constants: Constants) -> Sequence[int] | None:
    """Parts of this size, the last one of what is left; None where their number is beyond what is written out."""
    if -(-length // size) * DType.I64.bits // 8 > constants.limit:
        return None
    return [min(size, length - start) for start in range(0, length, size)]


def _index(op: Op, constants: Constants, count: int) -> int | None:
    """Which of ``count`` parts a SequenceAt takes, from the front."""
    if op.name != "onnx.SequenceAt" or len(op.operands) != 2 or len(op.results) != 1 or op.results[0].name == ABSENT:
        return None
    dense = constants.dense(op.operands[1])
    index = dense_ints(dense) if dense is not None and dense.type.shape == () else None
    return index[0] % count if index and -count <= index[0] < count else None
