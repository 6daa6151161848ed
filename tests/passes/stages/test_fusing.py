"""What is fused in the model and not in a stage: the problem, the evaluated plan and the programs tell the same seconds."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir import load_module
from ir.core.facets import Cost
from ir.core.module import Func, Module, Plan
from ir.core.ops import Op, Value
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType
from passes.costs.network import network
from passes.costs.op_time import body_seconds, chain_heads
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.stages.from_ir import problem_of
from passes.stages.fusing import streamed_problem_of, with_borders, without_borders
from passes.stages.problem import stage_cost
from passes.stages.reduce import quotient
from tests.counted_twice import check_counts

CORE = DeviceType("core", "cpu", (("f32", 1e9),), 1e9, overhead=1e-6, efficiency=(("epilogue", 1.0),))
SLOW = DeviceType("slow", "cpu", (("f32", 5e8),), 5e8, overhead=5e-6, efficiency=(("epilogue", 0.5),))
LINKS = tuple(Link(f"l{i}", (f"d{i}", "h"), 1e9, 1e-6) for i in range(3))
MACHINES = Topology(
    "@m",
    (CORE, SLOW),
    (Host("h"),),
    (Device("d0", "core", "h"), Device("d1", "core", "h"), Device("d2", "slow", "h")),
    (),
    LINKS,
)


def made(name: str, result: str, *operands: str, flops: int) -> Op:
    cost = Cost(flops=flops, read=64 * len(operands), write=64, kind="matmul" if name == "MatMul" else "elementwise")
    return Op(f"onnx.{name}", operands, (Value(result, TensorType(DType.F32, (16,))),)).with_facets(cost)


@st.composite
def bodies(draw: st.DrawFn, *, sums: bool = True, flops: int = 0) -> Module:
    """A chain with side branches: products, what follows them element by element, and ops that nothing is fused into."""
    ops: list[Op] = []
    for i in range(draw(st.integers(2, 9))):
        name = draw(st.sampled_from(["MatMul", "Relu", "Relu", "Softmax"] + ["Add"] * sums))
        values = ["%x", *(op.results[0].name for op in ops)]
        read = [values[-1], *([draw(st.sampled_from(values))] if name == "Add" else [])]
        ops.append(made(name, f"%v{i}", *read, flops=flops or draw(st.integers(0, 10_000))))
    x = Value("%x", TensorType(DType.F32, (16,)))
    return Module("@m", (Func("@main", (x,), (ops[-1].results[0],), tuple(ops)),))


def stage_seconds(module: Module, nodes: list[int], type_: DeviceType) -> float:
    ops = [module.entry.ops[v] for v in nodes]
    others = [op for v, op in enumerate(module.entry.ops) if v not in nodes]
    leaving = {name for op in others for name in op.operands} | {value.name for value in module.entry.results}
    return math.fsum(body_seconds(ops, type_, leaving))


@given(bodies(), st.data())
def test_a_problem_never_charges_more_than_the_stage_takes(module: Module, data: st.DataObject) -> None:
    problem = streamed_problem_of(module, MACHINES, network(MACHINES))
    problem.check()
    ends = data.draw(st.lists(st.integers(0, problem.size), min_size=2, max_size=2).map(sorted))
    for k, kind in enumerate(problem.kinds):
        cost = stage_cost(problem, range(*ends), k)
        taken = stage_seconds(module, list(range(*ends)), MACHINES.type(kind.type))
        assert cost.compute <= taken * (1 + 1e-9) + 1e-18


@given(bodies(sums=False, flops=100_000), st.data())
def test_a_chain_that_a_border_parts_costs_what_its_stages_take(module: Module, data: st.DataObject) -> None:
    plain = problem_of(module, MACHINES, network(MACHINES))
    problem = with_borders(plain, module, MACHINES)
    assert without_borders(problem).seconds == pytest.approx(plain.seconds)
    assert not without_borders(problem).borders
    cuts = [0, *data.draw(st.lists(st.integers(0, problem.size), max_size=3).map(sorted)), problem.size]
    for a, b in itertools.pairwise(cuts):
        for k, kind in enumerate(problem.kinds):
            cost, bare = stage_cost(problem, range(a, b), k), stage_cost(plain, range(a, b), k)
            taken = stage_seconds(module, list(range(a, b)), MACHINES.type(kind.type))
            assert cost.compute == pytest.approx(taken)
            assert cost.load == pytest.approx(taken + bare.receive + bare.send)
            assert (cost.receive, cost.send, cost.buffers) == (bare.receive, bare.send, bare.buffers)
    groups = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(cuts) if a < b)
    joined = quotient(problem, groups)
    for node, members in enumerate(groups):
        assert stage_cost(joined, [node], 0).compute == pytest.approx(stage_cost(problem, members, 0).compute)


def test_the_heads_of_a_sum_of_two_chains_are_both() -> None:
    ops = (
        made("MatMul", "%a", "%x", flops=1),
        made("Relu", "%b", "%a", flops=1),
        made("MatMul", "%c", "%x", flops=1),
        made("Add", "%d", "%b", "%c", flops=1),
        made("Relu", "%e", "%d", flops=1),
    )
    assert chain_heads(ops) == {1: (0,), 3: (0, 2), 4: (0, 2)}


MODEL = """
module @mlp {opset.onnx = 20} {
  resource @w1 : tensor<64x64xf32> = splat(0.5)
  resource @w2 : tensor<64x64xf32> = splat(0.5)
  func @main(%x : tensor<8x64xf32>) -> (%y : tensor<8x64xf32>) {
    %a = onnx.MatMul(%x, @w1) : tensor<8x64xf32>
    %b = onnx.Relu(%a) : tensor<8x64xf32>
    %c = onnx.Sigmoid(%b) : tensor<8x64xf32>
    %d = onnx.MatMul(%c, @w2) : tensor<8x64xf32>
    %y = onnx.Relu(%d) : tensor<8x64xf32>
  }
}
"""


@pytest.mark.parametrize("comm", ["sum", "overlap"])
@pytest.mark.parametrize("cuts", ["%a", "%b", "%d", "%a,%d", "%b,%c"])
def test_a_plan_that_cuts_a_chain_costs_what_its_programs_do(cuts: str, comm: str) -> None:
    """The border after ``%a`` parts the product from two epilogues, which run by themselves there."""
    module = load_module(MODEL, where="mlp.ir").extend([MACHINES])
    text = f"cost,partition{{comm={comm}, cuts=[{cuts}]}},place,schedule,lower,localize"
    done = PassManager(parse_pipeline(text)).run(module, PassContext())
    plan = done.first(Plan)
    assert plan is not None
    assert check_counts(done) == len(plan.stages) > 1
    assert comm != "sum" or plan.status == "optimal"
