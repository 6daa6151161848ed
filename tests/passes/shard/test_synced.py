"""``sync`` in plans on one mesh: fewer bytes where factors are small, no plan is slower, bounds hold for every method."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ir.facets import Sync, with_facet
from ir.module import Module, Plan, Resource
from passes.model.learning import trained
from tests.bench.synchronisation import MODEL, TOPOLOGY, row
from tests.passes.model.spmd.graphs import random_module
from tests.passes.model.spmd.planning import searched


def test_fully_connected_layers_exchange_factors() -> None:
    """VGG-19 on TAG's testbed: B (d_in + d_out) instead of 2 d_in d_out elements, of fc6 a 73rd."""
    summed, chosen = row(MODEL, TOPOLOGY, "all_reduce"), row(MODEL, TOPOLOGY, "auto")
    weights = [f"classifier.{layer}.weight" for layer in (0, 3, 6)]
    factors = [name for name in chosen.passed if name not in summed.passed]
    assert chosen.bytes(*weights) == 0.0
    assert chosen.bytes(*factors) <= 0.15 * summed.bytes(*weights)
    fc6 = [name for name in factors if name == "classifier.0.grad" or name.startswith("flatten")]
    assert len(fc6) == 2
    assert summed.bytes(weights[0]) / chosen.bytes(*fc6) == pytest.approx(2 * 25088 * 4096 / (96 * (25088 + 4096)), rel=0.05)
    assert chosen.seconds < 0.5 * summed.seconds
    assert chosen.methods == {"all_reduce": 32, "sfb": 6}


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


@pytest.mark.parametrize("seed", range(3))
def test_what_is_chosen_is_no_slower_and_no_method_is_below_the_bound(seed: int) -> None:
    module = random_module(seed, 6)
    weights = list(trained(module.resources))[:3]
    summed, _ = value(module, strategy="data")
    chosen, bound = value(asked(module, dict.fromkeys(weights, "auto")), strategy="data")
    assert chosen <= summed * (1 + 1e-9)
    for methods in itertools.product(("all_reduce", "sfb", "ps"), repeat=len(weights)):
        found, _ = value(asked(module, dict(zip(weights, methods, strict=True))), strategy="data")
        assert bound <= found * (1 + 1e-9), methods
