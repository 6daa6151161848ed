"""Epilogues: fused where no layout is between; the search finds the cheapest plan by that price, and its claims are true."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from dnnc.onnx import DIALECTS
from ir.core.module import Module, Plan
from passes.costs.exchange import Speed
from passes.meshes.costs.price import price
from passes.meshes.mesh import Axis, DeviceMesh
from passes.partition.layouts import ShardInput, build, decisions_of, solve, truthful
from passes.partition.layouts.problem.fused import chains_of
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.prepare.cost import CostPass
from tests.passes.meshes.graphs import chained_module
from tests.passes.meshes.planning import prepared, through, topology
from tests.passes.meshes.test_models import FAMILIES
from tests.passes.partition.layouts.exact import every_plan, integer_programme
from tests.passes.partition.layouts.models import CHIP
from tests.passes.partition.on_meshes import on_meshes

FUSING = replace(CHIP, overhead=1e-8, efficiency=(("epilogue", 1.0),))
FUNC = """
module @m {{opset.onnx = 20}} {{
  resource @w : tensor<8x8xf32> = random(normal, seed = 1)
  resource @b : tensor<8xf32> = random(normal, seed = 2)
  func @main({args}) -> ({result} : tensor<8x8xf32>) {{
    {body}
  }}
}}
"""
MATRIX = "tensor<8x8xf32>"


def mesh(*sizes: int, bandwidth: float = 1e10, latency: float = 0.0) -> DeviceMesh:
    return DeviceMesh(tuple(Axis("xyz"[i], size, Speed(bandwidth, latency)) for i, size in enumerate(sizes)), (), (FUSING,))


def written(*body: str, args: str = "%x : tensor<8x8xf32>", result: str = "%y") -> Module:
    text = FUNC.format(args=args, result=result, body="\n    ".join(f"{line} : {MATRIX}" for line in body))
    return through(ir.load_module(text, dialects=DIALECTS), CostPass())


BIASED = ("%h = onnx.MatMul(%x, @w)", "%a = onnx.Add(%h, @b)", "%y = onnx.Relu(%a)")
TWO = ("%h = onnx.MatMul(%x, @w)", "%g = onnx.MatMul(%z, @w)", "%y = onnx.Add(%h, %g)")


def all_plans(given: ShardInput) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(len(given.problem.node(node).seconds)) for node in range(given.problem.size)))


@pytest.mark.parametrize("bandwidth", [1e9, 1e11])
@pytest.mark.parametrize(("body", "args"), [(BIASED, "%x : tensor<8x8xf32>"), (TWO, f"%x : {MATRIX}, %z : {MATRIX}")])
def test_the_cheapest_of_all_plans_by_the_bill(body: tuple[str, ...], args: str, bandwidth: float) -> None:
    """Brute force over decisions, each priced by the independent walk, which knows of no claims."""
    module, on = written(*body, args=args), mesh(2, bandwidth=bandwidth)
    found = build(module, module.entry, on, None)
    totals = dict[str, float]()
    for choices, seconds in zip(all_plans(found), every_plan(found.problem).seconds, strict=True):
        decisions = decisions_of(found, choices)
        told = repr(decisions)
        if told not in totals:
            totals[told] = price(module, module.entry, on, decisions).total
            told_truly = truthful(found, choices)
            assert decisions_of(found, told_truly) == decisions
            assert found.problem.cost(told_truly) == pytest.approx(totals[told], rel=1e-9)
        assert seconds >= totals[told] * (1 - 1e-9)
    assert solve(found.problem).value == pytest.approx(min(totals.values()), rel=1e-9)


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 10**6), st.integers(2, 9), st.sampled_from([(2,), (4,)]), st.sampled_from([1e9, 1e11]))
def test_the_search_is_the_programme(seed: int, ops: int, sizes: tuple[int, ...], bandwidth: float) -> None:
    module, on = chained_module(seed, ops), mesh(*sizes, bandwidth=bandwidth, latency=1e-9)
    found = build(module, module.entry, on, None)
    plan = solve(found.problem)
    assert plan.status == "optimal"
    value, _, _ = integer_programme(found.problem, scale=1000.0 / plan.value)
    assert plan.value == pytest.approx(value, rel=1e-6)
    assert found.problem.cost(truthful(found, plan.choices)) == pytest.approx(plan.value, rel=1e-9)
    assert price(module, module.entry, on, decisions_of(found, plan.choices)).total == pytest.approx(plan.value, rel=1e-9)


def test_a_collective_between_ends_the_chain() -> None:
    """Rows of the weight split: the sum of terms stands between the product and what follows, which then costs all of it."""
    module, on = written(*BIASED), mesh(2)
    found = build(module, module.entry, on, None)
    seconds = {}
    for product in ("k", "m"):
        names = {"%h": (product,), "%a": ("d0",) if product == "m" else ("replicate",)}
        names["%y"] = names["%a"]
        choices = [
            next(
                c
                for c, taken in enumerate(found.strategies[found.problem.kinds[node]])
                if tuple(s.name if s else "replicate" for s in taken) == names[op.id]
            )
            for node, op in enumerate(found.func.ops)
        ]
        choices += [0] * (found.problem.size - len(choices))
        seconds[product] = price(module, module.entry, on, decisions_of(found, choices)).work
    size = 4 * 64
    flops = 64 / CHIP.rates[0][1]
    assert seconds["m"]["%a"] == pytest.approx(flops / 2)  # the bias is a weight
    assert seconds["m"]["%y"] == pytest.approx(flops / 2)
    assert seconds["k"]["%a"] == pytest.approx(max(flops, (2 * size + 32) / 1e11) + 1e-8)
    assert seconds["k"]["%y"] == pytest.approx(max(flops, 2 * size / 1e11) + 1e-8)


def test_chains_and_claims() -> None:
    """Only what further epilogues follow claims anything; a sum of two chains may follow either."""
    biased = chains_of(written(*BIASED).entry, (FUSING,))
    assert biased.links == {"%h", "%a"}
    assert [(row.ports, row.penalty > 0) for row in biased.epilogues.values()] == [((0,), False), ((0,), True)]
    two = chains_of(written(*TWO, args=f"%x : {MATRIX}, %z : {MATRIX}").entry, (FUSING,))
    assert [(row.ports, row.penalty > 0) for row in two.epilogues.values()] == [((0, 1), False)]


def test_nothing_is_fused_in_training_nor_by_types_that_fuse_nothing() -> None:
    func = written(*BIASED).entry
    assert not chains_of(func, (FUSING,), training=True).epilogues
    assert not chains_of(func, (CHIP,)).epilogues


@pytest.mark.parametrize("spec", FAMILIES)
def test_one_device_is_one_price(spec: str) -> None:
    """By partition, by shard on a mesh of one, and as what plans on more are compared with."""
    module, _ = prepared(spec)
    module = module.extend([topology(1)])
    cut, split = (through(module, *passes).first(Plan) for passes in ((PartitionPass(), PlacePass()), (on_meshes(mesh="1"),)))
    assert cut is not None
    assert split is not None
    assert split.value == pytest.approx(cut.value, rel=1e-9)
    assert split.single == pytest.approx(cut.single, rel=1e-9)
    assert split.single == pytest.approx(split.value, rel=1e-9)
