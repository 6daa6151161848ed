"""Colocation: what must share a stage does, and classes form no cycle, nor does what reductions join."""

from __future__ import annotations

import random

import pytest

from ir.core.module import Func, Module, Resource, Splat
from ir.core.ops import Op, Value
from ir.core.types import DType, SeqType, TensorType
from passes.costs.network import network
from passes.graph.graph import reads
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of
from passes.stages.reduce import ordered, quotient, reduce
from tests.passes.staging import VECTOR, devices, op, value

TIME = {"t": 1.0}


def module_of(*ops: Op, results: str = "", resources: tuple[Resource, ...] = ()) -> Module:
    last = results or ops[-1].results[0].name
    return Module("@m", (*resources, Func("@main", (value("%x"),), (value(last),), ops)))


def test_quantisation_joins_its_op() -> None:
    module = module_of(
        op("onnx.QuantizeLinear", ["%x", "@s"], ["%q"], seconds=TIME),
        op("onnx.DequantizeLinear", ["%q", "@s"], ["%d"], seconds=TIME),
        op("onnx.DequantizeLinear", ["@w", "@s"], ["%dw"], seconds=TIME),
        op("onnx.MatMul", ["%d", "%dw"], ["%m"], seconds=TIME),
        op("onnx.QuantizeLinear", ["%m", "@s"], ["%mq"], seconds=TIME),
        op("onnx.DequantizeLinear", ["%mq", "@s"], ["%md"], seconds=TIME),
        op("onnx.Relu", ["%md"], ["%y"], seconds=TIME),
    )
    assert colocation(module) == ((0, 1, 2, 3, 4), (5, 6))


def test_values_that_cannot_travel_stay() -> None:
    unsized = TensorType(DType.I64, ("n",))
    module = module_of(
        Op("onnx.NonZero", ("%x",), (Value("%n", unsized),)),
        Op("onnx.SequenceConstruct", ("%x",), (Value("%s", SeqType(VECTOR)),)),
        Op("onnx.Gather", ("%x", "%n"), (value("%g"),)),
        Op("onnx.SequenceAt", ("%s", "@i"), (value("%e"),)),
        Op("onnx.Add", ("%g", "%e"), (value("%y"),)),
    )
    assert colocation(module) == ((0, 2), (1, 3), (4,))


def test_ops_that_share_a_weight_may_part() -> None:
    weight = Resource("@w", TensorType(DType.F32, (2048,)), Splat(0))
    shared = [op("onnx.Add", ["%x", "@w"], ["%v0"], seconds=TIME), op("onnx.Add", ["%v0", "@w"], ["%v1"], seconds=TIME)]
    assert colocation(module_of(*shared, resources=(weight,))) == ((0,), (1,))


def test_a_class_takes_in_what_leaves_and_returns() -> None:
    unsized = TensorType(DType.I64, ("n",))
    module = module_of(
        Op("onnx.Split", ("%x",), (value("%a"), Value("%n", unsized))),
        Op("onnx.Relu", ("%a",), (value("%b"),)),
        Op("onnx.Concat", ("%b", "%n"), (value("%y"),)),
    )
    assert colocation(module) == ((0, 1, 2),)


@pytest.mark.parametrize("seed", range(16))
def test_no_cycle(seed: int) -> None:
    """Random graphs with values that cannot travel: numbers of groups never fall along an edge."""
    rng = random.Random(seed)
    ops = []
    for i in range(12):
        operands = [f"%v{j}" for j in range(i) if rng.random() < 0.25] or ["%x"]
        type_ = TensorType(DType.I64, ("n",)) if rng.random() < 0.15 else VECTOR
        made = op("onnx.Sum", operands, [], seconds={"t": rng.choice((0.0, 0.1, 3.0))})
        ops.append(Op(made.name, made.operands, (Value(f"%v{i}", type_),), facets=made.facets))
    module = module_of(*ops)
    fine = problem_of(module, devices(2), network(devices(2)), comm=rng.choice(("sum", "overlap", "duplex")))
    classes = ordered(fine, colocation(module))
    merged = ordered(fine, [[op for node in nodes for op in classes[node]] for nodes in reduce(quotient(fine, classes))])
    numbers = {op: number for number, members in enumerate(merged) for op in members}
    at = {v.name: numbers[i] for i, op_ in enumerate(module.entry.ops) for v in op_.results}
    assert all(at.get(name, -1) <= numbers[i] for i, op_ in enumerate(module.entry.ops) for name in reads(op_))
