"""Each compiled loop against a slow, obvious twin, and what it stores against the definition."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from passes.costs.memory.footprint import slots
from passes.stages.bounds import prices
from passes.stages.lattice import dp
from passes.stages.lattice.dp import solve_family
from passes.stages.lattice.ideals import BIG, lattice, members
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Kind, Problem
from tests.passes.partition.instances import brute_force, ideals, random_problem

TWO_OF_THREE = tuple(Kind(f"kind{k}", (f"d{k}0", f"d{k}1")) for k in range(3))
"""With one device in all, no ideal but the empty and the full one is a boundary, and the family leaves the others out."""


@pytest.mark.parametrize("seed", range(12))
def test_every_ideal_once_with_its_sums(seed: int) -> None:
    problem = replace(
        random_problem(seed, nodes=8, demands=False), kinds=TWO_OF_THREE[: len(random_problem(seed, nodes=8).kinds)]
    )
    tables = Tables(problem, prices(problem))
    family = lattice(tables, BIG)
    assert family is not None
    found = [frozenset(members(tables, row)) for row in family.bits]
    assert sorted(map(sorted, found)) == sorted(map(sorted, ideals(problem)))
    position = {ideal: i for i, ideal in enumerate(found)}
    assert all(position[a] < position[b] for a in found for b in found if a < b)
    for i, ideal in enumerate(found):
        inside = sorted(ideal)
        cut = [
            h
            for h, readers in enumerate(problem.consumers)
            if int(problem.producer[h]) in ideal and any(v not in ideal for v in readers)
        ]
        assert sorted(family.cut[family.cut_start[i] : family.cut_end[i]].tolist()) == cut
        assert family.weight[i] == pytest.approx(tables.weight[inside].sum())
        finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
        assert family.sums[i, 1 : tables.at_lacking] == pytest.approx(finite[:, inside].sum(axis=1))
        assert family.marks[i, tables.port] == pytest.approx(problem.transfer[:, cut].sum(axis=1))
        assert family.marks[i, tables.at_bytes] == slots(problem.comm) * problem.tensor_bytes[cut].sum()


@pytest.mark.parametrize("seed", range(12))
def test_windows_hold_exactly_what_they_say(seed: int) -> None:
    problem = random_problem(seed, nodes=8)
    tables = Tables(problem, prices(problem))
    trial = float(tables.weight.sum()) * 1.3 + 0.01
    family = lattice(tables, trial)
    assert family is not None
    low, high = tables.windows(trial)
    weights = [math.fsum(tables.weight[sorted(s)]) for s in ideals(problem)]
    inside = [w for w in weights if any(a <= w <= b for a, b in zip(low, high, strict=True))]
    assert family.size <= len(inside)  # fewer where transfers or a kind's own speed rule an ideal out
    assert all(any(weight == pytest.approx(other) for other in inside) for weight in family.weight)


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_programme_over_all_ideals_is_brute_force(comm: str) -> None:
    for seed in range(40):
        problem = random_problem(seed, nodes=6, comm=comm)
        tables = Tables(problem, prices(problem))
        family = lattice(tables, BIG)
        assert family is not None
        best = brute_force(problem)
        assert solve_family(tables, family, BIG).value == (pytest.approx(best) if math.isfinite(best) else math.inf)


def test_more_than_64_nodes_and_tensors() -> None:
    """Bitsets of several words: two chains of 40 nodes have 41 * 41 ideals."""
    problem = two_chains(40)
    tables = Tables(problem, prices(problem))
    family = lattice(tables, BIG)
    assert family is not None
    assert family.size == 41 * 41
    assert solve_family(tables, family, BIG).value == 40.0


def test_budgets_stop_the_walk() -> None:
    tables = Tables(two_chains(40), np.array([0.5]))
    assert lattice(tables, BIG, max_visits=1680) is None
    assert lattice(tables, BIG, max_words=1000) is None
    assert lattice(tables, BIG, max_visits=1681) is not None


def test_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp, "SLICE", 100)
    tables = Tables(two_chains(60), np.array([0.5]))
    family = lattice(tables, BIG)
    assert family is not None
    asked: list[tuple[int, float]] = []

    def keep_on(tested: int, part: float) -> bool:
        asked.append((tested, part))
        return len(asked) < 2

    found = solve_family(tables, family, BIG, keep_on)
    assert not found.complete
    assert found.stages is None
    assert len(asked) == 2
    assert asked[0] < asked[1]
    assert solve_family(tables, family, BIG).value == 60.0


def test_read_only_install_still_runs() -> None:
    """With no folder to keep compiled code in, numba itself would stop; here a private folder takes over."""
    script = (
        "import os, pathlib\n"
        "real = os.access\n"
        "os.access = lambda path, mode, **more: False if mode == os.W_OK else real(path, mode, **more)\n"
        "import passes.stages.lattice.kernels\n"
        "folder = os.environ['NUMBA_CACHE_DIR']\n"
        "print(folder, oct(os.stat(folder).st_mode & 0o777))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    folder, mode = done.stdout.split()
    assert "dnnc-numba-" in folder
    assert mode == "0o700"
    assert not os.path.exists(folder), "it goes with the process"


def two_chains(length: int) -> Problem:
    """Two independent chains of unit nodes on two equal devices, transfers free."""
    n = 2 * length
    edges = [(v, v + 1) for v in range(n - 1) if v != length - 1]
    return Problem(
        names=tuple(f"%{v}" for v in range(n)),
        kinds=(Kind("d", ("d0", "d1")),),
        seconds=np.ones((1, n)),
        producer=np.array([u for u, _ in edges], np.int64),
        consumers=tuple((v,) for _, v in edges),
        transfer=np.zeros((1, len(edges))),
        tensor_bytes=np.ones(len(edges), np.int64),
        tensor_names=tuple(f"%t{u}" for u, _ in edges),
        live=np.zeros(n, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
