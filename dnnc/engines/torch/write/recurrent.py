"""One kernel for all gradients of an LSTM, where a function of a program has all of them.

The IR has the gradient of an LSTM as a kernel that goes back through time, ``grad.LSTM``, and products of what it gives, one
for each operand. PyTorch's own kernels compute all at once, in half the time. So where these products stand in one function,
and nothing else reads what the kernel gives, they become one op that exists only here, ``GRADIENTS``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dnnc.engines.torch.statements.recurrent import GRADIENTS
from ir.core.ops import Op, Value
from ir.layout_rules import Surroundings

_PLACES = {"tbg,gi->tbi": 0, "tbg,tbi->gi": 1, "tbg,tbh->gh": 2}
"""Products with the gradients of the gates -> the place of their result: of X, W and R."""
_SUM = 3


@dataclass(frozen=True, slots=True)
class _Function:
    """The ops of a function. ``outside``: names that others read."""

    ops: Sequence[Op]
    outside: Collection[str]
    surroundings: Surroundings

    def readers(self, name: str) -> list[Op]:
        return [op for op in self.ops if name in op.operands]

    def source(self, name: str) -> str:
        """What a value is a reshaped form of."""
        maker = next((op for op in self.ops if any(value.name == name for value in op.results)), None)
        return maker.operands[0] if maker is not None and maker.name == "onnx.Reshape" else name

    def parts(self, kernel: Op) -> dict[int, tuple[Value, list[Op]]] | None:
        """The gradients that are made of a kernel's, by their place, each with the ops that make it; None where something else
        is."""
        gates, before = kernel.results[0].name, kernel.results[2].name if len(kernel.results) > 2 else ""
        if kernel.get("direction", "forward") == "bidirectional" or {gates, before} & {*self.outside} - {""}:
            return None
        operands = {0: kernel.operands[4], 1: kernel.operands[3], 2: before}
        found: dict[int, tuple[Value, list[Op]]] = {}
        for op in self.readers(gates):
            place, result, ops = self.part(op)
            beside = self.source(ops[-1].operands[1]) if place in operands else ""
            if place in found or place < 0 or beside != operands.get(place, ""):
                return None
            found[place] = result, ops
        reshaped = [op for op in self.readers(before) if before]
        products = {id(op) for _, ops in found.values() for op in ops}
        for op in reshaped:
            if op.name != "onnx.Reshape" or not self.alone(op) or id(self.readers(op.results[0].name)[0]) not in products:
                return None
        if 2 in found:
            found[2][1].extend(reshaped)
        return found

    def part(self, op: Op) -> tuple[int, Value, list[Op]]:
        """The place of a gradient, its value and the ops that make it, of which the first, ``op``, reads the gradients of
        gates; a place of -1 for what is none."""
        if op.name == "onnx.ReduceSum" and self.axes(op) == [0, 2] and not op.get("keepdims", 1):
            return _SUM, op.results[0], [op]
        if op.name == "onnx.Reshape" and self.alone(op):
            (product,) = self.readers(op.results[0].name)
            place = _PLACES.get(str(product.get("equation")), -1) if product.name == "onnx.Einsum" else -1
            if place >= 0 and product.operands[0] == op.results[0].name:
                return place, product.results[0], [op, product]
        return -1, op.results[0], [op]

    def alone(self, op: Op) -> bool:
        """Whether one op of this function reads the result of ``op``, and nothing else does."""
        return len(self.readers(op.results[0].name)) == 1 and op.results[0].name not in self.outside

    def axes(self, op: Op) -> list[int]:
        numbers = self.surroundings.numbers.get(op.operands[1]) if len(op.operands) > 1 else None
        return sorted(map(int, numbers)) if numbers is not None else []


def with_whole_gradients(ops: Sequence[Op], outside: Collection[str], surroundings: Surroundings) -> list[Op]:
    """The ops of a function with one op for all gradients of each LSTM of one direction. ``outside``: the names that are read
    elsewhere, sent or returned."""
    function = _Function(ops, outside, surroundings)
    whole: dict[int, Op] = {}
    gone: set[int] = set()
    for op in ops:
        parts = function.parts(op) if op.name == "grad.LSTM" else None
        if parts:
            whole[id(op)] = _joined(op, {place: value for place, (value, _) in parts.items()})
            gone |= {id(one) for _, made in parts.values() for one in made}
    return [whole.get(id(op), op) for op in ops if id(op) not in gone]


def _joined(kernel: Op, parts: dict[int, Value]) -> Op:
    nothing = replace(kernel.results[0], name="")
    states = [*kernel.results[3:5], *([nothing] * (5 - max(3, len(kernel.results))))]
    results = (*(parts.get(place, nothing) for place in range(4)), *states)
    return replace(kernel, name=GRADIENTS, operands=kernel.operands[:9], results=results)
