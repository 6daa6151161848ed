"""The folded search equals the full integer programme on every family of the zoo, inference and training.

The quick tests take one layer on one axis. The slow ones sample the grid of one to four layers on 8, 2x4 and 8x8: four layers
on one axis, and rows of two axes that the programme solves, equal it; two layers of all families on two axes have a proven
gap of at most 0.1 %. Families take turns in inference and training. The whole grid: ``python -m tests.bench.shard_exact``.
"""

from __future__ import annotations

import itertools

import pytest

from passes.meshes.costs.price import price
from passes.partition.layouts import ShardInput, ShardPlan, decisions_of, solve
from tests.passes.partition.layouts.exact import integer_programme
from tests.passes.partition.layouts.families import FAMILIES, layers_of, spec_of
from tests.passes.partition.layouts.models import mesh, prepared, problem_of

SECONDS = 60.0
PROVEN = 1e-3
SOLVED = [
    ("mlp", 4, (2, 4)),
    ("mlp", 4, (8, 8)),
    ("vit", 1, (2, 4)),
    ("vit", 1, (8, 8)),
]
"""Rows on two axes that the programme solves within seconds."""
SIZES = ((2, 4), (8, 8))
PAIRS = [(family, SIZES[number // 2 % 2], bool(number % 2)) for number, family in enumerate(sorted(FAMILIES))]


def searched(family: str, layers: int, sizes: tuple[int, ...], training: bool) -> tuple[ShardInput, ShardPlan]:
    """The plan: its gap is proven, and ``price`` counts the same seconds for it."""
    spec = spec_of(family, layers)
    given = problem_of(spec, sizes, training=training)
    plan = solve(given.problem, seconds=SECONDS)
    assert plan.gap <= PROVEN
    module, _ = prepared(spec)
    bill = price(module, module.entry, mesh(*sizes), decisions_of(given, plan.choices), training=training)
    assert bill.total == pytest.approx(plan.value, rel=1e-9)
    return given, plan


def compare(family: str, layers: int, sizes: tuple[int, ...], training: bool) -> None:
    """Equal where the search says so, else as near as it says; the programme is solved."""
    given, plan = searched(family, layers, sizes, training)
    value, bound, _ = integer_programme(given.problem, seconds=SECONDS, scale=1000.0 / plan.value)
    assert value <= bound * (1 + 1e-6)
    assert plan.bound <= value * (1 + 1e-6)
    assert plan.value == pytest.approx(value, rel=1e-6 if plan.status == "optimal" else PROVEN)


LEFT = sorted({*FAMILIES} - {"mlp", "bert", "gpt2"})  # of those ``test_models.py`` has two layers


@pytest.mark.parametrize(
    ("family", "training"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case[0] in ("gpt3", "resnet") else ())
        for case in zip(LEFT, itertools.cycle([True, False]))
    ],
)
def test_one_layer_on_one_axis(family: str, training: bool) -> None:
    compare(family, 1, (8,), training)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "training"), [*zip(FAMILIES, itertools.cycle([False, True]))])
def test_four_layers_on_one_axis(family: str, training: bool) -> None:
    compare(family, layers_of(family, (4,))[0], (8,), training)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "training"), [*zip(SOLVED, itertools.cycle([False, True, True, False]))])
def test_two_axes(row: tuple[str, int, tuple[int, ...]], training: bool) -> None:
    family, layers, sizes = row
    compare(family, layers, sizes, training)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes", "training"), PAIRS)
def test_two_layers_on_two_axes_are_proven(family: str, sizes: tuple[int, ...], training: bool) -> None:
    searched(family, 2, sizes, training)
