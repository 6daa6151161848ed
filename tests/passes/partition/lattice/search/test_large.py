"""Lattices too large to walk end in a good plan with a valid bound, within budgets that do not depend on the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import Limits, verify_files
from ir.core.diagnostics import DiagnosticSink
from passes.partition.lattice.objective import Budget, Solution
from passes.partition.lattice.search.throughput import solve
from passes.solvers.work import now, within
from passes.stages.problem import Kind, Problem, violations
from tests.passes.partition import lattices
from tests.passes.partition.instances import encoder_decoder, experts
from tests.passes.partition.lattices import Machines, write

SMALL = Budget(ideals=200_000, memory=64 << 20, pairs=2_000_000, seconds=1.0)


def check(problem: Problem, solution: Solution, gap: float) -> None:
    assert solution.stages is not None
    assert violations(problem, solution.stages) == []
    assert solution.bound > 0
    assert solution.value <= solution.bound * (1 + gap)
    assert solution.value >= float(problem.seconds.sum()) / problem.devices


@pytest.mark.parametrize(
    ("problem", "gap"),
    [
        pytest.param(encoder_decoder(24), 0.05, id="cross attention, 24+24 layers", marks=pytest.mark.slow),
        pytest.param(experts(64), 0.05, id="64 experts", marks=pytest.mark.slow),
        pytest.param(experts(64, layers=1), 0.1, id="64 experts, one layer", marks=pytest.mark.slow),
    ],
)
def test_good_plan_of_a_large_lattice(problem: Problem, gap: float) -> None:
    check(problem, solve(problem, SMALL), gap)


def test_one_stage_needs_no_search() -> None:
    """Each kind that has the memory is asked once, whatever the lattice; what does not beat the incumbent is none."""
    problem = replace(encoder_decoder(24), stages=1)
    kinds = tuple(Kind("acc", (f"d{number}",), memory) for number, memory in enumerate((1, None, None)))
    unlike = replace(
        problem,
        kinds=kinds,
        seconds=problem.seconds[:1] * np.array([[1.0], [3.0], [2.0]]),
        transfer=np.repeat(problem.transfer[:1], 3, axis=0),
    )
    solution = solve(unlike, SMALL)
    assert solution.stages == ((2, tuple(range(problem.size))),)
    assert solution.value == solution.bound == pytest.approx(2 * float(problem.seconds[0].sum()))
    assert solution.statistics.tested == 1
    beaten = solve(unlike, replace(SMALL, beaten=solution.value))
    assert (beaten.stages, beaten.bound) == (None, solution.value)
    assert solve(replace(unlike, kinds=(kinds[0],) * 3), SMALL).status == "infeasible"


def test_same_plan_every_time() -> None:
    problem = encoder_decoder(4)
    first, second = solve(problem, SMALL), solve(problem, SMALL)
    assert first.stages == second.stages
    assert first.bound == second.bound


@pytest.mark.slow
def test_memory_that_binds() -> None:
    """With limits a tenth above an equal share, the plan keeps to them."""
    problem = encoder_decoder(5)
    limit = int(problem.weight_bytes.sum() / problem.devices * 1.1) + 200
    tight = replace(problem, kinds=tuple(replace(kind, memory=limit) for kind in problem.kinds))
    check(tight, solve(tight, SMALL), 0.2)


def test_time_limit_is_kept() -> None:
    problem = encoder_decoder(12)
    solve(encoder_decoder(1), Budget(seconds=60.0))  # compiles
    before = now()
    with within(1.0) as limit:
        solution = solve(problem, Budget(ideals=10**9, memory=1 << 30, pairs=10**12, seconds=300.0))
    assert limit.cut
    assert now() - before < 150.0  # counted seconds, of the 300 that it may: `tests.bench.time_limits` measures the clock
    check(problem, solution, 0.1)


@pytest.mark.parametrize("cpus", [0, 1])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_identical_experts_are_proven(tmp_path: Path, training: bool, cpus: int) -> None:
    """From the file to the proof: branches counted once, or the node that gathers them."""
    path = tmp_path / "experts.json"
    write(lattices.experts(6).document(Machines(4, cpus), training), path)
    result = solve_file(SolveOptions(str(path), time_limit=6.0), sink=DiagnosticSink())
    assert result.gap < 0.02
    assert verify_files(path, _written(result, tmp_path), Limits()).violations == []


@pytest.mark.slow
def test_cross_attention_operator_by_operator(tmp_path: Path) -> None:
    path = tmp_path / "encoder-decoder.json"
    write(lattices.encoder_decoder(12).document(Machines(8, 1, 100e9)), path)
    result = solve_file(SolveOptions(str(path), time_limit=15.0), sink=DiagnosticSink())
    assert result.gap < 0.05


def _written(result: SolveResult, folder: Path) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps({"schema": "dnnc.solve/1", **result.to_json()}))
    return path
