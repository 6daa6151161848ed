"""The backward side of the rules, by directional derivatives: what the shards' own derivatives yield, joined as the rule says,
is the gradient of the whole op.

For a cotangent c the gradient g of an operand x satisfies <g, v> = d/dt <c, op(x + t v)> for every direction v. The same holds
on each member with the part of c that ``backward_rule`` gives it. So <g, v> is known of the whole and of each member without
any automatic differentiation, from values alone (central differences in 64 bits; in 32 bits for ops of degree 1 in each
operand, where any step is exact).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ir.core.types import Partial, Replicate, Shard
from ir.layout_rules import Backward, Cut, LayoutRule, backward_rule, localise
from tests.ir.layout_rules.harness import Array, Case, Runs, cuts_of, part, placed, type_of, whole

STEP = 1e-5


def f64(*shape: int, low: float = -1, high: float = 1) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).uniform(low, high, shape)


def f32(*shape: int) -> Array:
    return f64(*shape).astype(np.float32)


LINEAR: list[Case] = [
    Case("onnx.Conv", [f32(4, 4, 6, 6), f32(8, 4, 3, 3), f32(8)], {"pads": [1, 1, 1, 1]}),
    Case("onnx.Conv", [f32(4, 8, 6), f32(4, 2, 3), f32(4)], {"group": 4}),
    Case("onnx.ConvTranspose", [f32(4, 4, 3, 3), f32(4, 8, 3, 3), f32(8)]),
    Case("onnx.AveragePool", [f32(4, 4, 4, 4)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("onnx.GlobalAveragePool", [f32(4, 4, 4, 2)]),
    Case("onnx.Einsum", [f32(4, 8), f32(8, 4)], {"equation": "ij,jk->ik"}),
    Case("onnx.Einsum", [f32(2, 4, 4, 3), f32(2, 4, 5, 3)], {"equation": "bhqd,bhkd->bhqk"}),
    Case("onnx.Where", [f32(4, 8) > 0, f32(8), f32(4, 1)]),
    Case("onnx.Resize", [f32(4, 4, 4), None, None, np.array([4, 4, 8])], {"mode": "linear"}),
]
"""Of degree 1 in each operand; in 32 bits, where onnxruntime has no others."""

SMOOTH: list[Case] = [
    Case("onnx.MatMul", [f64(4, 8), f64(8, 4)]),
    Case("onnx.MatMul", [f64(4, 1, 4, 4), f64(8, 4, 2)]),
    Case("onnx.MatMul", [f64(8), f64(4, 8, 4)]),
    Case("onnx.Gemm", [f64(8, 4), f64(4, 8), f64(4)], {"transA": 1, "transB": 1, "alpha": 0.5}),
    Case("onnx.Add", [f64(4, 8), f64(8)]),
    Case("onnx.Sub", [f64(4, 1), f64(4, 8)]),
    Case("onnx.Mul", [f64(4, 8), f64(4, 1)]),
    Case("onnx.Div", [f64(4, 8), f64(8, low=0.5, high=2)]),
    Case("onnx.Tanh", [f64(4, 8)]),
    Case("onnx.Sigmoid", [f64(4, 8)]),
    Case("onnx.Pow", [f64(4, 8, low=0.5, high=2), f64(8)]),
    Case("onnx.Softmax", [f64(4, 8)], {"axis": -1}),
    Case("onnx.LogSoftmax", [f64(4, 8)], {"axis": 0}),
    Case("onnx.LayerNormalization", [f64(4, 4, 8), f64(8), f64(8)], {"axis": -1}),
    Case("onnx.BatchNormalization", [f64(4, 8, 4), *(f64(8, low=0.5, high=2) for _ in range(4))]),
    Case(
        "onnx.BatchNormalization", [f64(4, 8, 4), *(f64(8, low=0.5, high=2) for _ in range(4))], {"training_mode": 1}, results=3
    ),
    Case("onnx.ReduceSum", [f64(4, 8), np.array([1])], constants=(1,)),
    Case("onnx.ReduceMean", [f64(4, 8), np.array([0])], {"keepdims": 0}, constants=(1,), opset=18),
    Case("onnx.ReduceMax", [f64(4, 8), np.array([1])], constants=(1,), opset=18),
    Case("onnx.ReduceSumSquare", [f64(4, 8), np.array([0])], constants=(1,), opset=18),
    Case("onnx.CumSum", [f64(4, 8), np.array(1)], constants=(1,)),
    Case("onnx.DFT", [f64(4, 8, 1), np.array(8), np.array(1)], {"onesided": 1}, constants=(1, 2)),
    Case("onnx.Reshape", [f64(4, 8), np.array([4, 4, 2])]),
    Case("onnx.Transpose", [f64(4, 8, 2)], {"perm": [1, 2, 0]}),
    Case("onnx.Concat", [f64(4, 8), f64(4, 4)], {"axis": 1}),
    Case("onnx.Split", [f64(4, 8), np.array([2, 6])], {"axis": 1}, results=2),
    Case("onnx.Slice", [f64(4, 8), np.array([1]), np.array([5]), np.array([1])]),
    Case("onnx.Expand", [f64(4, 1), np.array([8, 4, 4])]),
    Case("onnx.Gather", [f64(8, 4), np.array([[1, -1, 0, 7], [3, 3, 2, -8]])]),
    Case("onnx.GatherElements", [f64(8, 4), np.array([[1, -1, 0, 7], [3, 3, 2, -8]])]),
    Case("onnx.GatherND", [f64(4, 8, 4), np.array([[[1]], [[-1]], [[0]], [[7]]])], {"batch_dims": 1}),
    Case(
        "onnx.ScatterElements", [f64(8, 4), np.array([[1, -1, 0, 7], [3, 3, 2, -8]]), f64(2, 4)], {"reduction": "add"}, opset=18
    ),
    Case("onnx.ScatterND", [f64(8, 4), np.array([[1], [-1], [1], [3]]), f64(4, 4)], {"reduction": "add"}, opset=18),
    Case("onnx.TopK", [f64(4, 8), np.array([3])], results=2),
    Case("onnx.Relu", [f64(4, 8)]),
    Case("onnx.Max", [f64(4, 8), f64(8)]),
    Case("onnx.Flatten", [f64(4, 2, 4)], {"axis": 1}),
    Case("onnx.MaxPool", [f64(4, 4, 4, 4)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("onnx.Gelu", [f64(4, 8)], {"approximate": "tanh"}, opset=20),
    Case("onnx.Neg", [f64(4, 8)]),
    Case("onnx.Reciprocal", [f64(4, 8, low=0.5, high=2)]),
    Case("onnx.Sqrt", [f64(4, 8, low=0.5, high=2)]),
    Case("onnx.Unsqueeze", [f64(4, 8), np.array([1])], constants=(1,)),
]
"""Differentiable where they are looked at; in 64 bits."""


@pytest.mark.parametrize("case", LINEAR + SMOOTH, ids=lambda case: case.name)
def test_gradients_of_shards_are_those_of_the_whole(case: Case) -> None:
    assert compare(case) > 0


@dataclass
class Slope:
    """A function of one operand in one direction, run on both sides of where it is looked at."""

    ahead: Callable[[], list[Array]]
    behind: Callable[[], list[Array]]
    step: float

    def along(self, cotangents: Sequence[Array | None]) -> float:
        """d/dt <cotangents, results>."""
        pairs = zip(cotangents, self.ahead(), self.behind(), strict=True)
        return float(sum(np.sum(c * (a - b)) for c, a, b in pairs if c is not None) / (2 * self.step))


@dataclass
class Tried:
    """A strategy over some members: each member's results, and its slope by operand."""

    backward: Backward
    cuts: list[Cut]
    values: list[Callable[[], list[Array]]]
    slopes: dict[int, list[Slope]]


class Comparison:
    """One case: the directions and cotangents, and every program that is run."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.expected = whole(case)
        rule = case.rule(self.expected)
        assert rule is not None
        self.rule: LayoutRule = rule
        self.random = np.random.default_rng(7)
        self.runs = Runs(case.opset)
        self.types = [type_of(result) for result in self.expected]
        results = zip(self.expected, rule.differentiable[1], strict=True)
        self.cotangents = [self.random.uniform(-1, 1, result.shape) if has else None for result, has in results]
        operands = zip(case.operands, rule.differentiable[0], strict=True)
        self.directions = {
            i: self.random.uniform(-1, 1, array.shape).astype(array.dtype)
            for i, (array, has) in enumerate(operands)
            if has and array is not None
        }

    def slope(self, operands: Sequence[Array | None], index: int, direction: Array, cuts: Sequence[Cut]) -> Slope:
        """The slope of the op, or with ``cuts`` of a shard of it, in operand ``index``."""
        step = STEP if direction.dtype == np.float64 else 1.0

        def run(sign: float) -> Callable[[], list[Array]]:
            moved = list(operands)
            moved[index] = operands[index] + direction.dtype.type(sign * step) * direction
            return self.program(moved, cuts)

        return Slope(run(1), run(-1), step)

    def program(self, operands: Sequence[Array | None], cuts: Sequence[Cut]) -> Callable[[], list[Array]]:
        op = self.case.op(self.types)
        ops = localise(op, self.case.types(), cuts, self.case.numbers())
        return self.runs.add(ops, operands, [value.name for value in op.results])

    def tried(self, backward: Backward, count: int) -> Tried:
        strategy = backward.strategy
        cuts = cuts_of(strategy.factor, count, None) if strategy.factor else []
        held = [
            [None] * count if array is None else placed(array, placement, cuts, count, self.random)
            for array, placement in zip(self.case.operands, strategy.operands, strict=True)
        ]
        members = [[parts[member] for parts in held] for member in range(count)]
        slopes = {
            i: [
                self.slope(members[m], i, part(v, place.dim, cuts[m]) if isinstance(place, Shard) else v, cuts[m : m + 1])
                for m in range(count)
            ]
            for i, v in self.directions.items()
            for place in [strategy.operands[i]]
        }
        values = [self.program(members[m], cuts[m : m + 1]) for m in range(count)]
        return Tried(backward, cuts, values, slopes)

    def cotangents_of(self, tried: Tried, member: int) -> list[Array | None]:
        """What a member gets of the cotangents."""
        return [
            None if cotangent is None else self.cotangent(tried, member, i, cotangent)
            for i, cotangent in enumerate(self.cotangents)
        ]

    def cotangent(self, tried: Tried, member: int, result: int, cotangent: Array) -> Array:
        match tried.backward.cotangents[result], tried.backward.strategy.results[result]:
            case Shard(dim), _:
                return part(cotangent, dim, tried.cuts[member])
            case Partial("sum"), Partial("max"):  # to the member that held the maximum
                values = [value()[result] for value in tried.values]
                return np.where(np.argmax(values, axis=0) == member, cotangent, 0)
            case Replicate(), _:
                return cotangent
        raise AssertionError(f"a cotangent placed {tried.backward.cotangents[result]}")


def compare(case: Case) -> int:
    """Compares every gradient of every strategy; gives how many."""
    comparison = Comparison(case)
    slopes = {i: comparison.slope(case.operands, i, v, ()) for i, v in comparison.directions.items()}
    tried = [
        comparison.tried(backward, count)
        for count in (2, 4)
        for backward in backward_rule(comparison.rule, count)
        if backward.strategy.name != "replicate"
    ]
    comparison.runs.run()
    compared = 0
    for one in tried:
        for i, members in one.slopes.items():
            found = [slope.along(comparison.cotangents_of(one, member)) for member, slope in enumerate(members)]
            wanted = slopes[i].along(comparison.cotangents)
            placement = one.backward.gradients[i]
            what = f"{case.name}, {one.backward.strategy.name} over {len(members)}, operand {i}"
            for total in found if isinstance(placement, Replicate) else [sum(found)]:
                assert total == pytest.approx(wanted, rel=1e-4, abs=1e-4), f"{what}: {placement} of {found}, not {wanted}"
            compared += 1
    return compared
