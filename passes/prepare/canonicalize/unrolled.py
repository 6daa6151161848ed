"""Control flow of a training step as plain ops, which have gradients, costs and stages of their own.

``unrolled`` writes a Loop or Scan whose number of trips is known as that many copies of its body, and an If as both branches
and a choice between what they give. Only in modules that train, and only where a trained weight reaches the op: in inference a
loop is shorter text, and a branch that is not taken costs nothing.

A choice passes the gradient 0 to the branch that is not taken. That is its gradient wherever the branch is finite; where it
divides by 0 or takes the logarithm of 0, the gradient is NaN, as that of ``torch.where`` is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.core.attributes import attributes
from ir.core.names import unique
from ir.core.ops import Op, Region, Value, all_ops, all_values
from ir.core.types import Dim, DType, TensorType, Type
from ir.ops.operators import RANDOM, has
from passes.graph.graph import renamed
from passes.prepare.canonicalize.constants import Constants, ints_dense

MOST_OPS = 1 << 14
"""Ops that the copies of one body may have together; what would have more stays a loop."""
_AXES_OPERAND = 13
"""The opset from which the axes of Unsqueeze are an operand."""
_NO_BATCH = 9
"""The opset from which Scan has no batch of its own."""


@dataclass(slots=True)
class Unroller:
    """``types``: of the values before the op; ``taken``: names of values; ``opset``: of ONNX."""

    constants: Constants
    types: dict[str, Type]
    taken: set[str]
    opset: int
    ops: list[Op] = field(default_factory=list)

    def unrolled(self, op: Op) -> list[Op] | None:
        """The ops that compute the results of ``op``; None where it cannot be written so."""
        self.ops = []
        regions = dict(op.regions)
        match op.name:
            case "onnx.If":
                done = self.choice(op, regions["then_branch"], regions["else_branch"])
            case "onnx.Loop":
                done = self.loop(op, regions["body"])
            case "onnx.Scan" if self.opset >= _NO_BATCH:
                done = self.scan(op, regions["body"])
            case _:
                done = False
        return self.ops if done else None

    # -- the three -----------------------------------------------------------------------------------------------------

    def choice(self, op: Op, then: Region, other: Region) -> bool:
        condition = self.types.get(op.operands[0])
        same = all(isinstance(value.type, TensorType) and value.type.elements is not None for value in op.results)
        draws = any(has(inner, RANDOM) for inner in all_ops((*then.ops, *other.ops)))
        if not isinstance(condition, TensorType) or condition.shape != () or not same or draws:
            return False
        made = [self.copy(op, region, {}) for region in (then, other)]
        for value, *both in zip(op.results, *made, strict=True):
            self.add(op, "onnx.Where", (op.operands[0], *both), value)
        return True

    def loop(self, op: Op, body: Region) -> bool:
        trips = self.constants.splat(op.operands[0]) if op.operands[0] else None
        goes_on = _through_identities(body, body.results[0])
        if goes_on != body.args[1].name and not self.constants.splat(goes_on):
            return False
        if op.operands[1] and not self.constants.splat(op.operands[1]):
            return False
        if trips is None or not self.fits(int(trips), body):
            return False
        carried = list(op.operands[2:])
        outputs: list[list[str]] = [[] for _ in body.results[1 + len(carried) :]]
        if outputs and not trips:
            return False
        true = self.constant(op, TensorType(DType.BOOL, ()), 1)
        for trip in range(int(trips)):
            number = self.constant(op, TensorType(DType.I64, ()), trip)
            names = dict(zip((arg.name for arg in body.args), (number, true, *carried), strict=True))
            _, *made = self.copy(op, body, names)
            carried = made[: len(carried)]
            for output, name in zip(outputs, made[len(carried) :], strict=True):
                output.append(name)
        return self.give(op, carried, outputs, [0] * len(outputs))

    def scan(self, op: Op, body: Region) -> bool:
        inputs = int(op.get("num_scan_inputs"))
        states, scanned = list(op.operands[: len(op.operands) - inputs]), op.operands[len(op.operands) - inputs :]
        count = len(op.results) - len(states)
        axes, backward = (tuple(op.get(f"scan_input_{key}") or (0,) * inputs) for key in ("axes", "directions"))
        axes_out, backward_out = (tuple(op.get(f"scan_output_{key}") or (0,) * count) for key in ("axes", "directions"))
        types = [self.types.get(name) for name in scanned]
        lengths = {
            type_.shape[axis] if isinstance(type_, TensorType) and type_.shape else None
            for type_, axis in zip(types, axes, strict=True)
        }
        trips = next(iter(lengths), None)
        if len(lengths) != 1 or not isinstance(trips, int) or not trips or not self.fits(trips, body):
            return False
        outputs: list[list[str]] = [[] for _ in range(count)]
        for trip in range(trips):
            parts = [
                self.part(op, name, type_, axis, trips - 1 - trip if turned else trip)
                for name, type_, axis, turned in zip(scanned, types, axes, backward, strict=True)
            ]
            names = dict(zip((arg.name for arg in body.args), (*states, *parts), strict=True))
            made = self.copy(op, body, names)
            states = made[: len(states)]
            for output, name, turned in zip(outputs, made[len(states) :], backward_out, strict=True):
                output.insert(0 if turned else len(output), name)
        return self.give(op, states, outputs, axes_out)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def fits(self, trips: int, body: Region) -> bool:
        return trips * sum(1 for _ in all_ops(body.ops)) <= MOST_OPS and trips >= 0

    def copy(self, op: Op, body: Region, names: Mapping[str, str]) -> list[str]:
        """Adds the ops of ``body``, whose arguments have these names now; the names of what it yields."""
        own = {value.name: unique(value.name, self.taken) for value in all_values(body.ops) if value.name}
        self.ops += [replace(inner, location=op.location) for inner in renamed(body.ops, {**names, **own})]
        return [own.get(name, names.get(name, name)) for name in body.results]

    def give(self, op: Op, last: Sequence[str], outputs: Sequence[Sequence[str]], axes: Sequence[int]) -> bool:
        """The results of ``op``: the last states, and what every trip gave, stacked along a new dimension."""
        for value, name in zip(op.results, last, strict=False):
            if value.name:
                self.add(op, "onnx.Identity", (name,), value)
        for value, names, axis in zip(op.results[len(last) :], outputs, axes, strict=True):
            type_ = value.type
            if not value.name:
                continue
            if not isinstance(type_, TensorType) or type_.shape is None:
                return False
            place = axis % len(type_.shape)
            rows = [self.row(op, name, type_, place) for name in names]
            shape = (*type_.shape[:place], len(names), *type_.shape[place + 1 :])
            self.add(op, "onnx.Concat", rows, Value(value.name, TensorType(type_.dtype, shape)), axis=place)
        return True

    def row(self, op: Op, name: str, type_: TensorType, axis: int) -> str:
        shape: tuple[Dim, ...] = (*(type_.shape or ())[:axis], 1, *(type_.shape or ())[axis + 1 :])
        value = Value(unique(f"{name}.row", self.taken) if name[:1] == "%" else unique("%row", self.taken))
        value = replace(value, type=TensorType(type_.dtype, shape))
        if self.opset < _AXES_OPERAND:
            return self.add(op, "onnx.Unsqueeze", (name,), value, axes=[axis])
        return self.add(op, "onnx.Unsqueeze", (name, self.constants.add("@axes", _VECTOR, ints_dense([axis]))), value)

    def part(self, op: Op, name: str, type_: Type | None, axis: int, number: int) -> str:
        """The slice ``number`` of a scanned tensor, without the dimension that is scanned."""
        assert isinstance(type_, TensorType)
        assert type_.shape is not None
        place = axis % len(type_.shape)
        made = TensorType(type_.dtype, (*type_.shape[:place], *type_.shape[place + 1 :]))
        index = self.constant(op, TensorType(DType.I64, ()), number)
        return self.add(op, "onnx.Gather", (name, index), Value(unique(f"{op.id}.part", self.taken), made), axis=place)

    def constant(self, op: Op, type_: TensorType, value: int) -> str:
        return self.constants.add(f"{op.id}.{value}", type_, value)

    def add(self, op: Op, name: str, operands: Iterable[str], value: Value, **fields: object) -> str:
        self.ops.append(Op(name, tuple(operands), (value,), attributes(fields), location=op.location))
        return value.name


def _through_identities(body: Region, name: str) -> str:
    """What a value of the body is a copy of."""
    copies = {op.results[0].name: op.operands[0] for op in body.ops if op.name == "onnx.Identity"}
    while name in copies:
        name = copies[name]
    return name


_VECTOR = TensorType(DType.I64, (1,))
