"""Latency from a file to a verified plan: the solver, what it prints, and the verifier that runs the plan again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dnnc.cli.app import tree
from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import Limits, verify
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from tests.dnnc.workloads.workload_files import edge, node, placement, random_placement, text_of


def solve(folder: Path, data: dict[str, Any], **options: Any) -> SolveResult:
    path = folder / "workload.json"
    path.write_text(text_of(data))
    return solve_file(SolveOptions(str(path), objective="latency", **options), sink=DiagnosticSink())


DATA = placement(
    [
        node(1, 1.0, cpu=9.0, size=100.0),
        node(2, 1.0, cpu=9.0, size=100.0),
        node(3, 2.0, cpu=9.0, size=100.0),
        node(4, 3.0, size=50.0, supportedOnFpga=False, cpuLatency=2.0),
    ],
    [edge(1, 2, 0.5), edge(2, 3, 0.25), edge(3, 4, 0.125)],
    maxFPGAs=2,
    maxCPUs=1,
    maxSizePerFPGA=250,
)
"""Nodes 1 and 2, sent 0.25; then 3, received 0.25, sent 0.125; then 4 on a CPU: 2.25 + 2.375 + 2."""


def test_pieces_are_told_with_their_times(tmp_path: Path) -> None:
    result = solve(tmp_path, DATA)
    assert (result.status, result.objective, result.bound) == ("optimal", 6.625, 6.625)
    rows = json.loads(json.dumps(result.to_json()))["devices"]
    assert rows[0]["pieces"] == [{"nodes": [1, 2], "start": 0.0, "finish": 2.25}]
    assert rows[1]["pieces"] == [{"nodes": [3], "start": 2.25, "finish": 4.625}]
    assert (rows[2]["kind"], rows[2]["name"], rows[2]["nodes"]) == ("cpu", "cpus", [4])
    assert len(rows) == 3


def verified(data: dict[str, Any], claimed: object, **options: Any) -> list[str]:
    return verify(text_of(data), claimed, Limits(), **options).violations


@given(st.integers(0, 10**6), st.integers(1, 2))
@settings(max_examples=25)
def test_every_answer_is_verified(tmp_path_factory: pytest.TempPathFactory, seed: int, pieces: int) -> None:
    data = random_placement(seed)
    result = solve(tmp_path_factory.mktemp("latency"), data, pieces=pieces)
    if result.why is None:
        claimed = json.loads(json.dumps(result.to_json()))
        assert verified(data, claimed) == []
        assert verify(text_of(data), claimed, Limits()).objective == pytest.approx(result.objective, rel=1e-9)


RIGHT = {
    "kind": "latency",
    "objective": 6.625,
    "bound": 6.625,
    "gap": 0.0,
    "status": "optimal",
    "options": {"pieces": 1},
    "devices": [
        {"kind": "accelerator", "name": "acc0", "nodes": [1, 2], "pieces": [{"nodes": [1, 2], "start": 0.0, "finish": 2.25}]},
        {"kind": "accelerator", "name": "acc1", "nodes": [3], "pieces": [{"nodes": [3], "start": 2.25, "finish": 4.625}]},
        {"kind": "cpu", "name": "cpus", "nodes": [4]},
    ],
}


def _move(result: dict[str, Any]) -> None:
    for row, nodes in zip(result["devices"], ([1, 3], [2], [4]), strict=True):
        row["nodes"] = nodes
        if "pieces" in row:
            row["pieces"] = [{"nodes": nodes}]


def _together(result: dict[str, Any]) -> None:
    result["devices"][0] |= {"nodes": [1, 2, 3], "pieces": [{"nodes": [1, 2]}, {"nodes": [3]}]}
    del result["devices"][1]


WRONG: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda r: r.update(objective=6.5, bound=6.5), "the latency is 6.625, not 6.5 as claimed"),
    (lambda r: r.update(bound=7.0), "the bound 7 is above the objective"),
    (lambda r: r["devices"][1]["pieces"][0].update(start=2.0), "a piece of acc1 starts at 2.25, not 2 as claimed"),
    (lambda r: r["devices"][1]["pieces"][0].update(finish=5.0), "a piece of acc1 ends at 4.625, not 5 as claimed"),
    (lambda r: r["devices"][2].update(nodes=[]), "1 nodes are on no device: 4"),
    (lambda r: r["devices"][2].update(nodes=[4, 3]), "node 3 is listed twice, on acc1 and on a CPU"),
    (lambda r: r["devices"][2].update(nodes=[4, 7]), "a CPU holds node 7, which the workload does not have"),
    (lambda r: r["devices"][1].update(name="acc0"), "device acc0 is listed twice"),
    (_move, "some piece waits for itself"),
    (_together, "acc0 runs 2 pieces, the result says at most 1"),
    (_together, "acc0 needs 300 bytes, it has 250: 50 short"),
    (lambda r: r["devices"].append(dict(r["devices"][2], kind="accelerator", name="acc2", pieces=[{"nodes": [4]}])), "3 acc"),
    (lambda r: r["devices"].append(dict(r["devices"][2], kind="accelerator", name="a", pieces=[{"nodes": [4]}])), "cannot run"),
]


def test_a_right_plan() -> None:
    assert verified(DATA, RIGHT) == []


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_every_fault_is_named(change: Callable[[dict[str, Any]], object], words: str) -> None:
    claimed = copy.deepcopy(RIGHT)
    change(claimed)
    assert any(words in line for line in verified(DATA, claimed)), verified(DATA, claimed)


def test_colours_share_an_accelerator() -> None:
    data = copy.deepcopy(DATA)
    for row in data["nodes"][1:3]:
        row["colorClass"] = 5
    assert any("nodes 2 and 3 have colour 5" in line for line in verified(data, RIGHT))


def test_the_reference_format_there_and_back(tmp_path: Path) -> None:
    """What -o writes has q rows per accelerator and is verified as it stands."""
    path, out = tmp_path / "workload.json", tmp_path / "plan.json"
    path.write_text(text_of(DATA))
    arguments = ["solve", str(path), "--objective", "latency", "--pieces", "2", "-q", "-o", str(out)]
    run = CliRunner().invoke(tree(), arguments)
    assert run.exit_code == 0, run.output
    written = json.loads(out.read_text())
    assert written["totalLatency"] == 6.625
    assert [row["nodes"] for row in written["fpgas"]] == [[1, 2], [], [3], []]
    assert verified(DATA, written) == []
    written["totalLatency"] = 6.0
    assert verified(DATA, written) == ["the latency is 6.625, not 6 as claimed"]


def test_options_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--comm belongs to --objective throughput"):
        solve(tmp_path, DATA, comm="overlap")
    with pytest.raises(UsageError, match="--straight"):
        solve(tmp_path, DATA, straight=True)
    with pytest.raises(UsageError, match="no method solves --objective latency with --split any"):
        solve(tmp_path, DATA, split="any")


def test_backward_nodes_need_forward(tmp_path: Path) -> None:
    data = copy.deepcopy(DATA)
    data["nodes"].append(node(5, 1.0, isBackwardNode=True))
    with pytest.raises(UsageError, match="--forward"):
        solve(tmp_path, data)
    result = solve(tmp_path, data, forward=True)
    assert result.objective == 6.625
    claimed = json.loads(json.dumps(result.to_json()))
    assert verified(data, claimed, forward=True) == []
    assert verified(data, claimed) == [], "the result says that they were left out"
    del claimed["forward"]
    with pytest.raises(Exception, match="backward nodes"):
        verified(data, claimed)


def test_no_plan_fits(tmp_path: Path) -> None:
    result = solve(tmp_path, DATA, cpus=0)
    assert (result.status, result.devices) == ("infeasible", ())
    assert result.why is not None


@pytest.mark.parametrize("text", ["[]", '{"kind": "latency", "devices": [{"kind": "cpu"}]}', '{"totalLatency": 1, "fpgas": 3}'])
def test_hostile_results_are_refused(tmp_path: Path, text: str) -> None:
    from dnnc.workloads.verify_plan import verify_files

    path, result = tmp_path / "workload.json", tmp_path / "result.json"
    path.write_text(text_of(DATA))
    result.write_text(text)
    with pytest.raises(InvalidInput):
        verify_files(path, result, Limits())


PUBLIC = {
    ("layer-bert24_inference", 1): 100.2185,
    ("layer-bert24_inference", 2): 100.2185,
    ("op-bert_l-3_inference", 1): 408.4744082,
}
"""Optima; the best known before: 100.2185 (within 1 %) and 408.4773 (within 9.6 %)."""


@pytest.mark.parametrize(
    ("name", "pieces"), [pytest.param(*case, marks=[pytest.mark.slow] * case[0].startswith("op-")) for case in PUBLIC]
)
def test_public_workloads_are_solved_and_proven(shared_dir: Path, name: str, pieces: int) -> None:
    path = shared_dir / "workloads" / "device-placement" / "latency" / f"{name}.json"
    result = solve_file(SolveOptions(str(path), objective="latency", pieces=pieces), sink=DiagnosticSink())
    assert result.status == "optimal"
    assert result.objective == pytest.approx(PUBLIC[name, pieces], rel=1e-9)
    claimed = json.loads(json.dumps(result.to_json()))
    assert verify(path.read_text(), claimed, Limits()).violations == []
