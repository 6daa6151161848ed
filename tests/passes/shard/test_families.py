"""The folded search equals the full integer programme on every family of the zoo, inference and training.

The quick tests take one layer on one axis; the slow ones one to four layers on 8, 2x4 and 8x8, where a certified gap of 0.1 %
stands for equality if the programme is not solved in time (``python -m tests.bench.shard_exact`` prints which).
"""

from __future__ import annotations

import pytest

from passes.shard import decisions_of, price, solve
from tests.passes.shard.exact import integer_programme
from tests.passes.shard.families import FAMILIES, MESHES, layers_of, spec_of
from tests.passes.shard.models import mesh, prepared, problem_of

SECONDS = 40.0


def compare(family: str, layers: int, sizes: tuple[int, ...], training: bool) -> None:
    spec = spec_of(family, layers)
    given = problem_of(spec, sizes, training=training)
    plan = solve(given.problem, seconds=SECONDS)
    assert plan.gap <= 1e-3
    value, bound, _ = integer_programme(given.problem, seconds=SECONDS, scale=1000.0 / plan.value)
    assert plan.bound <= value * (1 + 1e-6)
    assert bound <= plan.value * (1 + 1e-6)
    if value <= bound * (1 + 1e-6):
        assert plan.value == pytest.approx(value, rel=1e-6 if plan.status == "optimal" else 1e-3)
    module, _ = prepared(spec)
    bill = price(module, module.entry, mesh(*sizes), decisions_of(given, plan.choices), training=training)
    assert bill.total == pytest.approx(plan.value, rel=1e-9)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_layer_on_one_axis(family: str, training: bool) -> None:
    compare(family, 1, (8,), training)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("sizes", MESHES)
@pytest.mark.parametrize(("family", "layers"), [(family, n) for family in FAMILIES for n in layers_of(family, (1, 2, 3, 4))])
def test_one_to_four_layers(family: str, layers: int, sizes: tuple[int, ...], training: bool) -> None:
    compare(family, layers, sizes, training)
