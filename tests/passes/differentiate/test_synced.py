"""Gradients that members agree on otherwise than by all-reduce: what runs is what was decided, and what the bill says."""

from __future__ import annotations

from collections import Counter

import pytest

import ir
from dnnc.zoo import catalogue
from ir import Module
from ir.core.facets import WEIGHT_GRADIENT, phase_of, sync_of
from ir.core.module import Stage
from ir.ops.opdefs import COLLECTIVES
from passes.costs.learning import trained
from passes.meshes.costs.price import price
from passes.meshes.undecided import undecided
from passes.plan.parts import priced_under, stage_parts
from tests.passes.differentiate.oracle import differentiated
from tests.passes.differentiate.test_meshes import MACHINE, MODELS, members_update_as_unsplit


def decided(name: str, mesh: str, sync: str) -> tuple[Module, Module]:
    """A model whose samples are split, with the step of the whole model."""
    spec, loss = MODELS[name]
    return data_parallel(catalogue.build(f"{spec},dtype=f64"), loss, mesh, sync)


def data_parallel(model: Module, loss: str, mesh: str, sync: str) -> tuple[Module, Module]:
    """The model with its samples split, and the step of the whole model."""
    machine = MACHINE.replace("latency = 0.0", "latency = 0.001")  # so that weights are kept whole, and summed in buckets
    module = model.extend(list(ir.parse_module(machine).symbols))
    base = differentiated(module, f'training{{loss="{loss}",optimizer=sgd,sync={sync}}},canonicalize,cost')
    whole = differentiated(base, "differentiate{learning-rate=1.0}")
    return differentiated(base, f"partition{{objective=training,stages=1,mesh={mesh},strategy=data}}"), whole


def exchanged(module: Module) -> Counter[str]:
    """Collectives by which the gradients of weights come about, by kind; ``ps``: sums through a server."""
    (stage,) = module.of_type(Stage)
    found: Counter[str] = Counter()
    for op in stage.ops:
        kind = op.name.removeprefix("comm.")
        if kind in COLLECTIVES and (phase_of(op.facets) == WEIGHT_GRADIENT or ".grad.mean" in op.operands[0]):
            found["ps" if op.get("through") is not None else kind] += 1
    return found


def billed(plan: Module) -> Counter[str]:
    """These collectives, as ``price`` counts them."""
    (part,) = stage_parts(plan)
    bill = price(undecided(plan), part.func, part.mesh, part.decisions, training=True, **priced_under(plan))
    found = Counter(one.kind for one in bill.collectives if one.factor or one.summed)
    found["ps"] = sum(one.summed and part.decisions.synced.get(one.value) is not None for one in bill.collectives)
    found["all_reduce"] -= found["ps"]
    return +found


@pytest.mark.parametrize(
    ("name", "mesh", "sync"),
    [
        ("mlp", "2", "sfb"),
        ("mlp", "4", "ps"),
        ("unequal", '2,shares="3,2"', "sfb"),
        pytest.param("gpt2", "4", "auto", marks=pytest.mark.slow),
        ("bert", "2", "sfb"),
        ("vit", "2", "sfb"),
        pytest.param("vit", "2x2", "sfb", marks=pytest.mark.slow),
        pytest.param("mixtral", "2", "sfb", marks=pytest.mark.slow),
    ],
)
def test_members_update_as_the_unsplit_step_does(name: str, mesh: str, sync: str) -> None:
    plan, whole = decided(name, mesh, sync)
    split = differentiated(plan, "differentiate{learning-rate=1.0},lower,localize")
    members_update_as_unsplit(split, whole)
    assert exchanged(split) == billed(plan)
    methods = {sync_of(plan.resources[weight].facets).method for weight in trained(plan.resources)}
    assert methods <= ({"all_reduce", sync} if sync != "auto" else {"all_reduce", "sfb", "ps"})
    assert sync == "auto" or sync in methods


ACROSS_SAMPLES = """module @across {opset = 20} {
  resource @weight : tensor<8x4xf64> = random(normal, seed = 1)
  resource @axes : tensor<1xi64> = inline([0])
  func @main(%x : tensor<2x8xf64>) -> (%y : tensor<4xf64>) {
    %product = onnx.MatMul(%x, @weight) : tensor<2x4xf64> loc("across", "/product")
    %parts = onnx.Softmax(%product) {axis = 0} : tensor<2x4xf64> loc("across", "/parts")
    %y = onnx.ReduceMax(%parts, @axes) {keepdims = 0} : tensor<4xf64> loc("across", "/y")
  }
}
"""


def test_a_gradient_that_every_member_has_whole_is_not_gathered() -> None:
    """A softmax over the samples runs whole on each member: both factors of the weight's gradient are there."""
    plan, _ = data_parallel(ir.parse_module(ACROSS_SAMPLES), "mse:y", "2", "sfb")
    assert sync_of(plan.resources["@weight"].facets).method == "sfb"
    split = differentiated(plan, "differentiate{learning-rate=1.0},lower")
    assert exchanged(split) == billed(plan) == Counter()


def test_a_server_makes_the_sums_that_go_through_it() -> None:
    """Each weight's by its own server, the largest weights on members of their own."""
    split = differentiated(decided("mlp", "4", "ps")[0], "differentiate,lower")
    (stage,) = split.of_type(Stage)
    servers = [op.get("through") for op in stage.ops if op.get("through") is not None]
    assert len(servers) == 4
    assert len(set(servers)) > 1
    assert all(op.get("bucket") is None or op.get("through") is not None for op in stage.ops)
