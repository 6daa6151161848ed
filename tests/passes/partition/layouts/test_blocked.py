"""Values in blocks of channels: which they are, and that the search and the independent price count their reorders alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ir
from dnnc.onnx import DIALECTS
from ir.core.module import Module
from ir.core.topology import DeviceType
from passes.costs.blocked import blocked_values, reorder_seconds
from passes.costs.exchange import Speed
from passes.meshes.costs.price import price
from passes.meshes.mesh import Axis, DeviceMesh
from passes.partition.layouts import build, decisions_of, solve, truthful
from passes.prepare.cost import CostPass
from tests.passes.meshes.planning import through
from tests.passes.partition.layouts.models import CHIP
from tests.passes.partition.layouts.test_fused import FUSING, all_plans

SLOW = replace(FUSING, name="slow", memory_bandwidth=FUSING.memory_bandwidth / 3)
IMAGE = "tensor<1x8x4x1xf32>"
TEXT = """
module @m {{opset.onnx = 20}} {{
  resource @k : tensor<8x8x1x1xf32> = random(normal, seed = 1)
  func @main(%x : {image}) -> (%y : {image}) {{
    {body}
  }}
}}
"""
CONVS = ("%h = onnx.Conv(%x, @k)", "%a = onnx.Relu(%h)", "%y = onnx.Conv(%a, @k)")
PLAIN = ("%h = onnx.Conv(%x, @k)", "%a = onnx.Softmax(%h)", "%y = onnx.Conv(%a, @k)")
RESIDUAL = ("%h = onnx.Conv(%x, @k)", "%g = onnx.Conv(%h, @k)", "%y = onnx.Add(%g, %h)")


def written(body: tuple[str, ...]) -> Module:
    text = TEXT.format(image=IMAGE, body="\n    ".join(f"{line} : {IMAGE}" for line in body))
    return through(ir.load_module(text, dialects=DIALECTS), CostPass())


@pytest.mark.parametrize(("body", "names"), [(CONVS, {"%h", "%a"}), (PLAIN, set()), (RESIDUAL, {"%h", "%g"})])
def test_what_convolutions_hand_on(body: tuple[str, ...], names: set[str]) -> None:
    """Not what another op makes or takes, nor the operands and results of the model."""
    assert blocked_values(written(body).entry) == names


def test_a_type_that_fuses_nothing_keeps_no_blocks() -> None:
    assert reorder_seconds(100, 50, CHIP) == 0
    assert reorder_seconds(100, 50, FUSING) == pytest.approx(300 / FUSING.memory_bandwidth)


@pytest.mark.parametrize(("body", "bandwidth", "types"), [(CONVS, 1e9, (FUSING,)), (RESIDUAL, 1e11, (FUSING, SLOW))])
def test_the_cheapest_of_all_plans_by_the_bill(body: tuple[str, ...], bandwidth: float, types: tuple[DeviceType, ...]) -> None:
    """Brute force over decisions: the problem of the search costs each as the independent walk does, on unequal members too."""
    module, mesh = written(body), DeviceMesh((Axis("x", 2, Speed(bandwidth, 0.0)),), (), types)
    found = build(module, module.entry, mesh, None)
    totals = dict[str, float]()
    for choices in all_plans(found):
        decisions = decisions_of(found, choices)
        if (told := repr(decisions)) not in totals:
            totals[told] = price(module, module.entry, mesh, decisions).total
            assert found.problem.cost(truthful(found, choices)) == pytest.approx(totals[told], rel=1e-9)
    assert solve(found.problem).value == pytest.approx(min(totals.values()), rel=1e-9)


def test_a_layout_that_changes_costs_two_reorders() -> None:
    """From channels to rows: a member writes its half of the value out of blocks, and the half that it gets into blocks."""
    module, mesh = written(CONVS), DeviceMesh((Axis("x", 2, Speed(1e10, 0.0)),), (), (FUSING,))
    found = build(module, module.entry, mesh, None)
    strategies = {"%h": ("out",), "%a": ("d1",), "%y": ("patch0",)}
    decisions = replace(decisions_of(found, [0] * found.problem.size), strategies=strategies)
    work = price(module, module.entry, mesh, decisions).work["%a"]
    half = 8 * 4 // 2
    fused = half / FUSING.rates[0][1]
    assert work == pytest.approx(fused + 2 * 4 * (half + half) / FUSING.memory_bandwidth)
