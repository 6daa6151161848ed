"""``sync`` in plans on one mesh: fewer bytes where factors are small, no plan is slower, bounds hold for every method."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from ir.core.facets import Sync, with_facet
from ir.core.module import Module, Plan, Resource
from passes.costs.learning import trained
from passes.meshes.costs.price import price
from passes.meshes.staged import Staged
from passes.meshes.synced import synchronised
from passes.meshes.undecided import undecided
from passes.plan.parts import stage_parts
from tests.bench.synchronisation import MODEL, TOPOLOGY, passed, plan_of
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.planning import searched


def staged(model: str, topology: str) -> tuple[Module, Staged]:
    """A model whose samples are split in equal parts, with sums of gradients by all-reduce."""
    planned = plan_of(model, topology, "all_reduce")
    module, (part,) = undecided(planned), tuple(stage_parts(planned))
    bill = price(module, part.func, part.mesh, part.decisions, training=True)
    return module, Staged(tuple(range(len(part.func.ops))), part.mesh, part.decisions, bill)


def test_fully_connected_layers_exchange_factors() -> None:
    """VGG-19 on TAG's testbed: B (d_in + d_out) instead of 2 d_in d_out elements, of fc6 a 73rd."""
    module, stage = staged(MODEL, TOPOLOGY)
    layers = [f"@classifier.{layer}.{kind}" for layer in (0, 3, 6) for kind in ("weight", "bias")]
    gathered = synchronised(asked(module, dict.fromkeys(layers, "sfb")), stage, 1)
    before, after = passed(stage.bill, stage.mesh), passed(gathered.bill, stage.mesh)
    factors = after.keys() - before.keys()
    assert before.keys() - after.keys() == {name[1:] for name in layers}
    assert sum(after[name] for name in factors) <= 0.15 * sum(before[name[1:]] for name in layers)
    fc6 = after["classifier.0.grad"] + next(after[name] for name in factors if name.startswith("flatten"))
    assert before["classifier.0.weight"] / fc6 == pytest.approx(2 * 25088 * 4096 / (96 * (25088 + 4096)))
    chosen = synchronised(asked(module, dict.fromkeys(trained(module.resources), "auto")), stage, 1)
    assert chosen.bill.overlapped <= gathered.bill.overlapped < 0.5 * stage.bill.overlapped


@pytest.mark.parametrize(
    ("model", "topology"),
    [
        ("mlp,layers=4,hidden=4096,batch=512", "preset:2xa100x4"),
        pytest.param("mlp,layers=4,hidden=1024,batch=128", TOPOLOGY, marks=pytest.mark.slow),
        pytest.param("mlp,layers=4,hidden=256,batch=256", "preset:cpu-4", marks=pytest.mark.slow),
    ],
)
def test_the_choice_is_as_quick_as_the_best_of_all(model: str, topology: str) -> None:
    """Of all sets of matrices whose factors are gathered, with or without the biases beside them, by the bill."""
    module, stage = staged(model, topology)

    def seconds(methods: dict[str, str]) -> float:
        return synchronised(asked(module, methods), stage, 1).bill.overlapped

    weights = list(trained(module.resources))
    matrices = [name for name in weights if name.endswith("weight")]
    best = seconds({})
    for some in itertools.chain.from_iterable(itertools.combinations(matrices, size) for size in range(len(matrices) + 1)):
        biases = [name.replace("weight", "bias") for name in some]
        best = min(best, seconds(dict.fromkeys(some, "sfb")), seconds(dict.fromkeys([*some, *biases], "sfb")))
    assert best < stage.bill.overlapped or topology == "preset:cpu-4"
    assert seconds(dict.fromkeys(weights, "auto")) <= best * (1 + 1e-9)


def asked(module: Module, methods: dict[str, str]) -> Module:
    """The module with these methods on its weights."""
    symbols = [
        replace(symbol, facets=with_facet(symbol.facets, Sync(methods[symbol.name])))
        if isinstance(symbol, Resource) and symbol.name in methods
        else symbol
        for symbol in module.symbols
    ]
    return replace(module, symbols=tuple(symbols))


def value(module: Module, **options: object) -> tuple[float, float]:
    plan = searched(module, "2", training=True, microbatches=2, gap=0.0, **options).first(Plan)
    assert plan is not None
    return plan.value, plan.bound


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_what_is_chosen_is_no_slower_and_no_method_is_below_the_bound(seed: int) -> None:
    module = random_module(seed, 6)
    weights = list(trained(module.resources))[:3]
    summed, _ = value(module, strategy="data")
    chosen, bound = value(asked(module, dict.fromkeys(weights, "auto")), strategy="data")
    assert chosen <= summed * (1 + 1e-9)
    for methods in itertools.product(("all_reduce", "sfb", "ps"), repeat=len(weights)):
        found, _ = value(asked(module, dict(zip(weights, methods, strict=True))), strategy="data")
        assert bound <= found * (1 + 1e-9), methods


FAR = """
version = 1
switches = ["net"]
[types]
worker = "preset:cpu-1"
[[devices]]
name = "w{0..6}"
type = "worker"
[[devices]]
name = "hub"
type = "worker"
[[links]]
each = "w*"
to = "net"
bandwidth = "1 GB/s"
latency = "5 ms"
[[links]]
ends = ["hub", "net"]
bandwidth = "20 GB/s"
latency = "5 ms"
"""
"""Seven far devices, and one with a port for all of them."""


def test_sums_go_through_a_device_with_a_port_to_spare(tmp_path: Path) -> None:
    """A ring of eight waits 14 times for the latency, a server twice."""
    (tmp_path / "far.toml").write_text(FAR)
    module, stage = staged("mlp,layers=2,hidden=256,batch=4096", str(tmp_path / "far.toml"))
    chosen = synchronised(asked(module, dict.fromkeys(trained(module.resources), "auto")), stage, 1)
    assert chosen.bill.overlapped < stage.bill.overlapped
    assert {sync.method for sync in chosen.decisions.synced.values()} == {"ps"}
    assert {stage.mesh.devices[sync.server] for sync in chosen.decisions.synced.values()} == {"hub"}
