"""``dnnc solve --method`` and ``--compare``: every baseline's plan stands before the verifier, none is better than possible."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli.options import solve as solve_options
from dnnc.report.tables import table_text
from dnnc.workloads.methods import NAMES
from dnnc.workloads.report import compare_note, compare_table
from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import Limits, verify
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from passes.reference.baselines import BASELINES
from tests.dnnc.cli.test_solve import dnnc
from tests.dnnc.workloads.workload_files import (
    PROFILE,
    brute_force,
    chain,
    edge,
    node,
    placement,
    random_placement,
    random_training,
    renamed,
    text_of,
)

PLAIN = NAMES[1:-1]
"""Baselines that need no file."""
INSTALLED = tuple(name for name in PLAIN if name != "metis" or find_spec("pymetis"))
"""Those that run here: METIS has no wheel for every platform."""


def solve(folder: Path, data: dict[str, Any] | str, **options: Any) -> SolveResult:
    path = folder / "workload"
    path.write_text(data if isinstance(data, str) else text_of(data))
    return solve_file(SolveOptions(str(path), **options), sink=DiagnosticSink())


def check(folder: Path, result: SolveResult, **limits: Any) -> list[str]:
    """What the verifier has against a result, as written and read again."""
    claimed = json.loads(json.dumps(result.to_json()))
    return verify((folder / "workload").read_text(), claimed, Limits(**limits)).violations


def test_the_names_are_told_alike_everywhere() -> None:
    assert ("exact", *BASELINES, "expert") == NAMES
    assert tuple(solve_options.Method) == NAMES


@given(seed=st.integers(0, 10**6), comm=st.sampled_from(("sum", "overlap", "duplex")))
@settings(max_examples=10)
def test_every_plan_verifies_and_none_beats_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int, comm: str) -> None:
    folder, data = tmp_path_factory.mktemp("workload"), random_placement(seed, most=4)
    best = {split: brute_force(data, comm, contiguous=split == "contiguous") for split in ("contiguous", "any")}
    for name in PLAIN:
        result = solve(folder, data, comm=comm, method=name, time_limit=0.01)
        assert (result.method, math.isinf(result.objective)) == (name, result.why is not None)
        if result.why is not None:
            assert (result.status, result.bound, result.devices) == ("undecided", 0.0, ())
            continue
        assert result.split in best
        least = best[result.split]
        assert result.objective >= least * (1 - 1e-9)
        assert result.bound <= least * (1 + 1e-9)
        assert check(folder, result) == []


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), training=st.booleans())
@settings(max_examples=20)
def test_the_order_and_the_names_of_a_file_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, seed: int, training: bool
) -> None:
    folder = tmp_path_factory.mktemp("workload")
    data = random_training(seed) if training else random_placement(seed)
    other = renamed(data, seed)
    for name in INSTALLED:
        one, two = (solve(folder, given, method=name) for given in (data, other))
        assert (one.why is None) == (two.why is None), name
        assert (one.objective, one.bound, one.split) == (pytest.approx(two.objective), pytest.approx(two.bound), two.split), (
            name
        )


@given(seed=st.integers(0, 10**6), schedule=st.sampled_from(("1f1b", "gpipe")))
@settings(max_examples=8)
def test_training_plans_verify(tmp_path_factory: pytest.TempPathFactory, seed: int, schedule: str) -> None:
    folder, data = tmp_path_factory.mktemp("workload"), random_training(seed)
    exact = solve(folder, data, schedule=schedule)
    for name in PLAIN:
        result = solve(folder, data, schedule=schedule, method=name, time_limit=0.01)
        if result.why is None:
            assert check(folder, result) == []
            assert result.split == "any" or result.objective >= exact.objective * (1 - 1e-9)


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ("local-search", "metis")])
@pytest.mark.parametrize("straight", [False, True])
def test_pipedream_plans_verify(tmp_path: Path, name: str, straight: bool) -> None:
    exact = solve(tmp_path, PROFILE, accelerators=3, straight=straight)
    result = solve(tmp_path, PROFILE, accelerators=3, straight=straight, method=name)
    assert result.objective >= exact.objective * (1 - 1e-12)
    assert check(tmp_path, result, accelerators=3) == []


@given(seed=st.integers(0, 10**6), pieces=st.integers(1, 3))
@settings(max_examples=8)
def test_latency_plans_verify(tmp_path_factory: pytest.TempPathFactory, seed: int, pieces: int) -> None:
    folder, data = tmp_path_factory.mktemp("workload"), random_placement(seed, most=5)
    exact = solve(folder, data, objective="latency", pieces=pieces)
    for name in PLAIN:
        result = solve(folder, data, objective="latency", pieces=pieces, method=name, time_limit=0.01)
        if result.why is None:
            assert result.objective >= exact.objective * (1 - 1e-9)
            assert result.bound <= exact.objective * (1 + 1e-9)
            assert check(folder, result) == []


def test_a_comparison_has_a_row_for_each_method_and_ratios_to_the_exact_one(tmp_path: Path) -> None:
    result = solve(tmp_path, chain([1.0, 2.0, 1.0, 3.0], cost=0.25, maxFPGAs=3), compare=True)
    rows = {row.method: row for row in result.compare}
    assert next(iter(rows)) == "exact"
    assert set(PLAIN) < set(rows)
    assert (rows["exact"].objective, rows["exact"].ratio, rows["exact"].status) == (3.25, 1.0, "optimal")
    assert (rows["one-device"].objective, rows["one-device"].split, rows["one-device"].fits) == (7.0, "contiguous", True)
    assert rows["one-device"].ratio == pytest.approx(7 / 3.25)
    assert result.to_json()["compare"][0]["method"] == "exact"
    text = table_text(compare_table(result))
    assert text.splitlines()[0].split()[:4] == ["method", "objective", "(ms)", "ratio"]
    assert len(text.splitlines()) == 1 + len(rows)
    assert check(tmp_path, result) == []


def test_a_comparison_tells_what_does_not_fit(tmp_path: Path) -> None:
    result = solve(tmp_path, chain([1.0, 1.0, 1.0, 1.0], maxSizePerFPGA=250), compare=True)
    row = next(row for row in result.compare if row.method == "one-device")
    assert (row.fits, row.status, row.why) == (False, "undecided", "stage 0 needs 400 bytes, its accelerator has 250")
    alone = solve(tmp_path, chain([1.0, 1.0, 1.0, 1.0], maxSizePerFPGA=250), method="one-device")
    assert alone.status == "undecided"
    assert "needs 400 bytes" in str(alone.why)


def test_a_comparison_stands_where_no_plan_fits(tmp_path: Path) -> None:
    result = solve(tmp_path, chain([1.0, 1.0], maxSizePerFPGA=10), compare=True)
    assert result.status == "infeasible"
    assert [row.status for row in result.compare if row.method in ("exact", "topological")] == ["infeasible", "undecided"]
    assert all(math.isinf(row.objective) or row.fits is False for row in result.compare)


def test_better_without_contiguity_is_said(tmp_path: Path) -> None:
    """A node that costs the most between two that cost little: only without contiguity do the two share a device."""
    data = placement([node(0, 2.0), node(1, 4.0), node(2, 2.0)], [edge(0, 1, 0.0), edge(1, 2, 0.0)])
    result = solve(tmp_path, data, compare=True)
    rows = {row.method: row for row in result.compare}
    assert (rows["exact"].objective, rows["local-search"].objective, rows["local-search"].split) == (6.0, 4.0, "any")
    assert "local-search" in compare_note(result)
    assert compare_note(replace(result, compare=())) == ""


@pytest.mark.parametrize(
    "machines", [{"accelerators": 0, "cpus": 1}, {"accelerators": 1, "cpus": 0}, {"accelerators": 9, "cpus": 9}]
)
@pytest.mark.parametrize("times", [[0.0], [2.0], [0.0, 0.0]])
def test_few_nodes_and_many_or_few_machines(tmp_path: Path, machines: dict[str, int], times: list[float]) -> None:
    result = solve(tmp_path, chain(times, cost=0.0), compare=True, **machines)
    assert {row.ratio for row in result.compare if row.fits} == {1.0}
    for name in INSTALLED:
        assert check(tmp_path, solve(tmp_path, chain(times, cost=0.0), method=name, **machines), **machines) == []


def test_no_edges(tmp_path: Path) -> None:
    data = placement([node(i, 1.0) for i in range(6)], [], maxFPGAs=3)
    rows = {row.method: row.objective for row in solve(tmp_path, data, compare=True).compare}
    assert {rows[name] for name in ("exact", *INSTALLED) if name != "one-device"} == {2.0}


# --- the expert ----------------------------------------------------------------------------------------------------------

FOUR = chain([1.0, 2.0, 1.0, 3.0], cost=0.25, maxFPGAs=3)


def expert(folder: Path, split: object, data: dict[str, Any] | str = FOUR, **options: Any) -> SolveResult:
    path = folder / "expert"
    path.write_text(split if isinstance(split, str) else json.dumps(split))
    return solve(folder, data, **{"method": "expert", "expert": str(path), **options})


def test_an_expert_in_the_reference_format(tmp_path: Path) -> None:
    split = {"maxLoad": -1, "fpgas": [{"load": -1, "nodes": [0, 1]}, {"nodes": [3, 2]}], "cpus": [{"load": 0, "nodes": []}]}
    result = expert(tmp_path, split)
    assert (result.objective, result.split, result.status) == (4.25, "contiguous", "within-gap")
    assert [device.nodes for device in result.devices] == [(0, 1), (2, 3), ()]
    assert check(tmp_path, result) == []
    result = expert(tmp_path, {"fpgas": [{"nodes": [0, 3]}, {"nodes": [1, 2]}]})
    assert (result.objective, result.split) == (4.5, "any")
    assert check(tmp_path, result) == []
    rows = expert(tmp_path, split, method="exact", compare=True).compare
    assert (rows[-1].method, rows[-1].objective) == ("expert", 4.25)


def test_an_expert_from_a_former_result(tmp_path: Path) -> None:
    exact = solve(tmp_path, FOUR)
    again = expert(tmp_path, exact.to_json())
    assert (again.objective, again.devices) == (exact.objective, exact.devices)
    replicated = solve(tmp_path, PROFILE, accelerators=3)
    again = expert(tmp_path, replicated.to_json(), PROFILE, accelerators=3)
    assert (again.objective, again.devices) == (replicated.objective, replicated.devices)


def test_an_expert_from_the_stages_of_a_profile(tmp_path: Path) -> None:
    staged = "\n".join(
        line + (" -- stage_id=0" if line[:5] in ("node1", "node2", "node3", "node4") else "") for line in PROFILE.splitlines()
    )
    result = expert(tmp_path, staged, PROFILE, accelerators=2)
    assert [device.nodes for device in result.devices] == [("node2", "node3"), ("node5",)]
    assert check(tmp_path, result, accelerators=2) == []


def test_backward_nodes_follow_the_colours_of_an_expert(tmp_path: Path) -> None:
    data = random_training(3)
    forward = [n["id"] for n in data["nodes"] if not n["isBackwardNode"]]
    result = expert(tmp_path, {"fpgas": [{"nodes": forward}]}, data | {"maxSizePerFPGA": 1e9})
    assert {id_ for device in result.devices for id_ in device.nodes} == {n["id"] for n in data["nodes"]}
    assert check(tmp_path, result) == []


@pytest.mark.parametrize(
    ("split", "error", "words"),
    [
        ("no JSON {", InvalidInput, r"E4938.*no node states its stage"),
        ("{", InvalidInput, "not valid JSON"),
        ({"nodes": []}, InvalidInput, "none of 'devices', 'fpgas' and 'cpus'"),
        ({"fpgas": 3}, InvalidInput, r"E4937.*'fpgas' is int, expected a list"),
        ({"fpgas": [[1]]}, InvalidInput, r"fpgas\[0\] has no list 'nodes'"),
        ({"fpgas": [{"nodes": [None]}]}, InvalidInput, "has no list 'nodes' of ids"),
        ({"devices": [{"kind": "tpu", "nodes": [1]}]}, InvalidInput, "of kind 'tpu'"),
        ({"fpgas": [{"nodes": [0, 77]}]}, InvalidInput, r"E4932.*holds node 77, which the workload does not have"),
        ({"fpgas": [{"nodes": [0, 1]}, {"nodes": [1, 2, 3]}]}, InvalidInput, "holds node 1, which another device holds"),
        ({"fpgas": []}, InvalidInput, "no device holds a node"),
        ({"fpgas": [{"nodes": [0, 1, 2, 3]}] * 2}, UsageError, "replicas"),
        ({"cpus": [{"nodes": [0, 1, 2, 3]}]}, UsageError, r"E4931.*of kind cpu, and there is none"),
    ],
)
def test_a_wrong_expert_is_named(tmp_path: Path, split: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        expert(tmp_path, split)


def test_an_expert_that_breaks_a_limit_is_infeasible(tmp_path: Path) -> None:
    result = expert(tmp_path, {"fpgas": [{"nodes": [i]} for i in range(4)]})
    assert "uses 4 devices of kind accelerator, there are 3" in str(result.why)
    result = expert(tmp_path, {"fpgas": [{"nodes": [0, 1]}]})
    assert "2 nodes are on no device: 2, 3" in str(result.why)


# --- options and the command line ----------------------------------------------------------------------------------------


def test_methods_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"E4909.*makes no pipeline"):
        solve(tmp_path, PROFILE, accelerators=2, method="metis")
    with pytest.raises(UsageError, match=r"E4910.*needs a file with the split"):
        solve(tmp_path, FOUR, method="expert")
    with pytest.raises(UsageError, match=r"E1315.*--expert is read only"):
        solve(tmp_path, FOUR, expert="split.json")
    with pytest.raises(UsageError, match=r"E1316.*--compare runs every method"):
        solve(tmp_path, FOUR, method="greedy", compare=True)
    with pytest.raises(UsageError, match="--replicas"):
        solve(tmp_path, FOUR, method="greedy", replicas=2)
    with pytest.raises(UsageError, match=r"E4908.*--method is 'best'"):
        solve(tmp_path, FOUR, method="best")


def test_a_limit_that_baselines_use_up_leaves_the_exact_method_half(tmp_path: Path) -> None:
    data = placement([node(i, 1.0 + i % 7) for i in range(60)], [edge(i, i + 1, 0.5) for i in range(59)], maxFPGAs=8)
    result = solve(tmp_path, data, compare=True, time_limit=0.02)
    assert [row.method for row in result.compare] == ["exact", *PLAIN]
    assert result.bound <= result.objective
    assert result.why is not None or check(tmp_path, result) == []


def test_the_command_prints_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workload.json"
    path.write_text(text_of(FOUR))
    code, out, _ = dnnc(capsys, "solve", path, "--compare")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:8]] == ["exact", *PLAIN]
    code, out, _ = dnnc(capsys, "solve", path, "--method", "one-device", "--json")
    assert (code, json.loads(out)["method"]) == (0, "one-device")
    solved = tmp_path / "solved.json"
    solved.write_text(out)
    assert dnnc(capsys, "verify-plan", path, solved)[0] == 0
    code, out, err = dnnc(capsys, "solve", path, "--method", "one-device", "--memory", "100")
    assert (code, out) == (4, "")
    assert "one-device has no plan that fits" in err
