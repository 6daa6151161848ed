"""Tables of units: never above the search of a run, and equal to it where units meet in their links only; ways through them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from passes.partition.chain.borders import Border, Cutter
from passes.partition.chain.chains import Chain, parts_of
from passes.partition.chain.units import Units, units_of
from passes.partition.layouts import build, solve
from passes.partition.layouts.elimination.folded import least_memory
from passes.partition.layouts.solver.search import NoPlanError
from tests.passes.partition.layouts.models import mesh, prepared

PLAIN = "zoo:gpt2,layers=2,hidden=64,heads=8,vocab=128,seq=16,batch=4"
SHARING = "zoo:t5-base,layers=1,hidden=64,heads=4,vocab=128,seq=16"


def chain_of(spec: str, sizes: tuple[int, ...], training: bool, bandwidth: float = 1e10) -> tuple[Chain, Cutter, Units]:
    module, found = prepared(spec)
    whole = build(module, module.entry, mesh(*sizes, bandwidth=bandwidth), found, training=training)
    units = units_of(module.entry, found, whole)
    cutter = Cutter(whole, units.constants.ops)
    return Chain(cutter, parts_of(cutter, units)), cutter, units


@pytest.mark.parametrize(
    ("spec", "sizes", "training"),
    [(PLAIN, (4,), False), (PLAIN, (4,), True), (PLAIN, (2, 2), False), (SHARING, (4,), False), (SHARING, (4,), True)],
)
def test_bounds_of_all_runs_at_once(spec: str, sizes: tuple[int, ...], training: bool) -> None:
    """With any price of memory; a way costs its bound."""
    chain, cutter, units = chain_of(spec, sizes, training)
    free = [np.zeros(chain.states(cut)) for cut in range(units.count + 1)]
    rows = {price: chain.rows(price, free[:-1]) for price in (0.0, 1e-9)}
    runs = list(itertools.combinations(range(units.count + 1), 2))
    met = []
    for first, behind in runs[:: max(1, len(runs) // 5)]:
        stage = cutter.cut(units.run(first, behind), Border())
        problem = stage.given.problem
        best = solve(problem, gap=0.0)
        for price, table in rows.items():
            least = float(table[behind][first].min())
            assert least <= (best.value + price * best.memory) * (1 + 1e-9)
            way = chain.way(price, first, behind, free[first], free[behind])
            assert way is not None
            assert way.seconds + price * way.memory == pytest.approx(least, rel=1e-9)
        met.append(float(rows[0.0][behind][first].min()) >= best.bound * (1 - 1e-9))
        if spec == PLAIN and 2 < first < behind < units.count:
            assert rows[0.0][behind][first].min() >= 0.99 * best.bound  # a mask is shared by layers
    assert any(met)


def test_a_price_keeps_memory() -> None:
    """Between what the quickest plan of two layers needs, over slow links all of the weights, and the least of all."""
    chain, cutter, units = chain_of(PLAIN, (4,), False, bandwidth=1e8)
    first, behind = 3, 7
    ends = np.zeros(chain.states(first)), np.zeros(chain.states(behind))
    problem = cutter.cut(units.run(first, behind), Border()).given.problem
    loose = chain.way(0.0, first, behind, *ends)
    assert loose is not None
    limit = (loose.memory + problem.memory(least_memory(problem))) / 2
    price, best = chain.best_price(first, behind, *ends, limit), solve(problem, memory=limit, gap=0.0)
    assert price > 0
    found = chain.way(price, first, behind, *ends)
    assert found is not None
    assert loose.seconds < found.seconds + price * (found.memory - limit) <= best.value * (1 + 1e-9)
    with pytest.raises(NoPlanError):
        solve(problem, memory=1.0)
    assert chain.best_price(first, behind, *ends, -1.0) == 0
