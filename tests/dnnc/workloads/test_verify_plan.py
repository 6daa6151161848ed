"""The verifier of splits: a right one passes, and each way to be wrong is named."""

from __future__ import annotations

import ast
import copy
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnc.workloads.verify_plan
from dnnc.workloads.placement_result import DeviceRow, placement_result, placement_text
from dnnc.workloads.solve import SolveOptions, solve_file
from dnnc.workloads.verify_plan import Limits, Report, verify, verify_files
from dnnc.workloads.verify_plan.numbers import Malformed
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from tests.dnnc.workloads.workload_files import (
    PROFILE,
    assignment_value,
    edge,
    node,
    placement,
    random_placement,
    text_of,
)

DATA = placement(
    [
        node(1, 1.0, size=100.0, colorClass=4),
        node(2, 1.0, size=100.0, colorClass=4),
        node(3, 2.0, size=100.0),
        node(4, 3.0, size=50.0, supportedOnFpga=False, cpuLatency=2.0),
    ],
    [edge(1, 2, 0.5), edge(2, 3, 0.25), edge(3, 4, 0.125)],
    maxFPGAs=2,
    maxCPUs=1,
    maxSizePerFPGA=250,
)
RIGHT: dict[str, Any] = {
    "maxLoad": 2.375,
    "fpgas": [{"load": 2.25, "nodes": [1, 2]}, {"load": 2.375, "nodes": [3]}],
    "cpus": [{"load": 2.0, "nodes": [4]}],
}


def check(result: Any, **options: Any) -> Report:
    limits = options.pop("limits", Limits())
    return verify(text_of(DATA), result, limits, **options)


def test_a_right_split() -> None:
    report = check(RIGHT)
    assert report.violations == []
    assert report.objective == 2.375
    assert report.loads == [("fpgas[0]", 2.25, 200.0), ("fpgas[1]", 2.375, 100.0), ("cpus[0]", 2.0, 50.0)]


Change = Callable[[dict[str, Any]], object]
WRONG: list[tuple[str, Change, str]] = [
    ("a node is missing", lambda r: r["cpus"][0]["nodes"].remove(4), "1 nodes are on no device: 4"),
    ("a node stands on two", lambda r: r["cpus"][0]["nodes"].append(3), "node 3 is on cpus[0] and on fpgas[1]"),
    ("a node stands twice on one", lambda r: r["fpgas"][1]["nodes"].append(3), "fpgas[1] lists node 3 twice"),
    (
        "a node is unknown",
        lambda r: r["fpgas"][0]["nodes"].append(9),
        "fpgas[0] holds node 9, which the workload does not have",
    ),
    ("a load is wrong", lambda r: r["fpgas"][0].update(load=2.0), "the load of fpgas[0] is 2.25, not 2 as claimed"),
    ("the largest is wrong", lambda r: r.update(maxLoad=2.25), "the objective is 2.375, not 2.25 as claimed"),
    (
        "a colour is on two devices",
        lambda r: r.update(fpgas=[{"nodes": [1]}, {"nodes": [2, 3]}], maxLoad=3.625),
        "nodes 1 and 2 have colour 4 and are on fpgas[0] and fpgas[1]",
    ),
    (
        "memory is short",
        lambda r: r.update(fpgas=[{"load": 4.125, "nodes": [1, 2, 3]}], maxLoad=4.125),
        "fpgas[0] needs 300 bytes, it has 250: 50 short",
    ),
    (
        "a device cannot run a node",
        lambda r: r.update(fpgas=[{"nodes": [1, 2]}, {"nodes": [3, 4]}], cpus=[], maxLoad=None),
        "fpgas[1] is of kind accelerator, which cannot run 4",
    ),
    (
        "too many accelerators",
        lambda r: r.update(fpgas=[{"nodes": [1]}, {"nodes": [2]}, {"nodes": [3]}], maxLoad=None),
        "3 devices of kind accelerator are used, there are 2",
    ),
    (
        "too many CPUs",
        lambda r: r.update(fpgas=[{"nodes": [1, 2]}], cpus=[{"nodes": [3]}, {"nodes": [4]}], maxLoad=None),
        "2 devices of kind cpu are used, there are 1",
    ),
    (
        "data flows back",
        lambda r: r.update(fpgas=[{"nodes": [1, 3]}], cpus=[{"nodes": [2, 4]}], maxLoad=None),
        "the split is not contiguous: fpgas[0] sends node 1 to cpus[0] (node 2), cpus[0] sends node 2 to fpgas[0] (node 3)",
    ),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in WRONG], ids=[name for name, _, _ in WRONG])
def test_each_way_to_be_wrong(change: Change, words: str) -> None:
    result = copy.deepcopy(RIGHT)
    change(result)
    assert words in check(result).violations


def test_a_split_that_need_not_be_contiguous() -> None:
    data = placement([node(i, 1.0) for i in range(3)], [edge(0, 1), edge(1, 2)])
    result = {"maxLoad": 2.0, "fpgas": [{"load": 2.0, "nodes": [0, 2]}, {"load": 1.0, "nodes": [1]}], "cpus": []}
    assert "not contiguous" in verify(text_of(data), result, Limits()).violations[0]
    assert verify(text_of(data), result, Limits(), split="any").violations == []


def test_of_backward_nodes_only_the_forward_part_is_contiguous() -> None:
    nodes = [node(0, 1.0), node(1, 1.0), node(2, 1.0, isBackwardNode=True), node(3, 1.0, isBackwardNode=True)]
    data = placement(nodes, [edge(0, 1), edge(1, 2), edge(2, 3)])
    result = {"maxLoad": 2.0, "fpgas": [{"load": 2.0, "nodes": [0, 3]}, {"load": 2.0, "nodes": [1, 2]}], "cpus": []}
    assert verify(text_of(data), result, Limits()).violations == []
    forward = {"maxLoad": 1.0, "fpgas": [{"load": 1.0, "nodes": [0]}, {"load": 1.0, "nodes": [1]}]}
    assert verify(text_of(data), forward, Limits(), forward=True).violations == []
    assert verify(text_of(data), forward, Limits()).violations == ["2 nodes are on no device: 2, 3"]


def test_a_backward_node_without_a_mate_is_ordered_by_the_edges_around_it() -> None:
    """Node 3 has no forward mate: 2 -> 3 stands reversed among the forward nodes, against 0 -> 1."""
    nodes = [node(0, 1.0), node(1, 1.0, colorClass=1), node(2, 1.0, isBackwardNode=True, colorClass=1)]
    data = placement([*nodes, node(3, 1.0, isBackwardNode=True)], [edge(0, 1), edge(1, 2), edge(2, 3)], maxFPGAs=3)
    right = {"fpgas": [{"nodes": [0]}, {"nodes": [3]}, {"nodes": [1, 2]}]}
    assert verify(text_of(data), right, Limits()).violations == []
    data["edges"].append(edge(3, 4))
    data["nodes"].append(node(4, 1.0, isBackwardNode=True, colorClass=7))
    data["nodes"].append(node(5, 1.0, colorClass=7))
    data["edges"].append(edge(1, 5))  # so: 4 and 5 before 3 before 1 and 2, and 1 before 5
    wrong = {"fpgas": [{"nodes": [0, 4, 5]}, {"nodes": [3]}, {"nodes": [1, 2]}]}
    assert "the split is not contiguous" in verify(text_of(data), wrong, Limits()).violations[0]


def test_gpipe_adds_the_largest_of_each_side() -> None:
    nodes = [node(0, 1.0), node(1, 3.0), node(2, 2.0, isBackwardNode=True), node(3, 1.0, isBackwardNode=True)]
    data = placement(nodes, [edge(0, 1, 0.25), edge(1, 3), edge(3, 2, 0.5)])
    devices = [
        {"kind": "accelerator", "name": "acc0", "load": 3.75, "nodes": [0, 2]},
        {"kind": "accelerator", "name": "acc1", "load": 4.75, "nodes": [1, 3]},
    ]
    claimed = {"kind": "training", "options": {"schedule": "1f1b"}, "objective": 4.75, "devices": devices}
    assert verify(text_of(data), claimed, Limits()).violations == []
    claimed["options"] = {"schedule": "gpipe"}
    # Forward 1.25 and 3.25, backward 2.5 and 1.5.
    assert verify(text_of(data), claimed, Limits()).violations == ["the objective is 5.75, not 4.75 as claimed"]


@pytest.mark.parametrize(("comm", "largest"), [("sum", 3.25), ("overlap", 2.0), ("duplex", 2.0)])
def test_comm(comm: str, largest: float) -> None:
    data = placement([node(0, 1.0), node(1, 2.0), node(2, 1.0)], [edge(0, 1, 0.5), edge(1, 2, 0.75)], maxFPGAs=3)
    result = {"maxLoad": largest, "fpgas": [{"nodes": [0]}, {"nodes": [1]}, {"nodes": [2]}]}
    assert verify(text_of(data), result, Limits(), comm=comm).violations == []


def test_limits_stand_over_the_file() -> None:
    assert "fpgas[0] needs 200 bytes, it has 50: 150 short" in check(RIGHT, limits=Limits(memory=50)).violations
    assert "2 devices of kind accelerator are used, there are 1" in check(RIGHT, limits=Limits(accelerators=1)).violations
    assert "1 devices of kind cpu are used, there are 0" in check(RIGHT, limits=Limits(cpus=0)).violations


def solved(tmp_path: Path, data: dict[str, Any] | str, **options: Any) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "workload"
    path.write_text(data if isinstance(data, str) else text_of(data))
    result = solve_file(SolveOptions(str(path), **options), sink=DiagnosticSink())
    return path, json.loads(json.dumps(result.to_json()))


STATED: list[tuple[str, Change, str]] = [
    ("bound", lambda r: r.update(bound=9.0, gap=None), "the bound 9 is above the objective 2.375"),
    ("gap", lambda r: r.update(gap=0.5), "the gap is 0, not 0.5 as claimed"),
    ("status", lambda r: r.update(bound=1.0, gap=1.375), "the status is optimal, but the bound is below the objective"),
    ("memory", lambda r: r["devices"][0].update(memory=7), "the memory of acc0 is 200 bytes, not 7 as claimed"),
    ("name", lambda r: r["devices"][1].update(name="acc0"), "device acc0 is listed twice"),
    ("kind", lambda r: r["devices"][2].update(kind="accelerator"), "cpu0 is of kind accelerator, which cannot run 4"),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in STATED], ids=[name for name, _, _ in STATED])
def test_what_a_solution_states_of_itself(tmp_path: Path, change: Change, words: str) -> None:
    _, result = solved(tmp_path, DATA)
    assert check(result).violations == []
    change(result)
    assert words in check(result).violations


def test_comm_is_that_of_the_result(tmp_path: Path) -> None:
    _, result = solved(tmp_path, DATA, comm="duplex")
    assert check(result).violations == []
    assert check(result, comm="sum").violations != []


def test_a_profile(tmp_path: Path) -> None:
    path, result = solved(tmp_path, PROFILE, accelerators=2, objective="throughput")
    limits = Limits(accelerators=2)
    assert verify(path.read_text(), result, limits).violations == []
    assert verify(path.read_text(), result, Limits(accelerators=2, bandwidth=1e9)).violations != []
    result["devices"][0]["nodes"].append("node4")  # a sink that PipeDream drops
    assert verify(path.read_text(), result, limits).violations == ["acc0 holds node 'node4', which the workload does not have"]
    with pytest.raises(UsageError, match="how many accelerators"):
        verify(path.read_text(), result, Limits())


def test_pipedream(tmp_path: Path) -> None:
    """Two machines: both hold all. (17 ms + 4 (2-1) 1536 bytes / (10 GB/s 2)) / 2."""
    path, result = solved(tmp_path, PROFILE, accelerators=2)
    assert [device["nodes"] for device in result["devices"]] == [["node2", "node3", "node5"]] * 2
    report = verify(path.read_text(), result, Limits(accelerators=2))
    assert report.violations == []
    assert report.objective == pytest.approx((17 + 4 * 1536 / 2e7) / 2)
    assert verify(path.read_text(), result, Limits(accelerators=2, memory=10**9)).violations == []
    assert len(verify(path.read_text(), result, Limits(accelerators=2, memory=100)).violations) == 2


REPLICATED: list[tuple[str, Change, str]] = [
    ("missing", lambda r: [d["nodes"].remove("node5") for d in r["devices"]], "1 nodes are on no device: 'node5'"),
    ("unlike", lambda r: r["devices"][1]["nodes"].remove("node5"), "acc1 and acc0 are replicas and hold different nodes"),
    (
        "unknown",
        lambda r: [d["nodes"].append("node1") for d in r["devices"]],
        "acc0 holds node 'node1', which the workload does not have",
    ),
    ("twice", lambda r: r["devices"][1].update(stage=1), "node 'node2' is listed twice, on acc0 and on acc1"),
    ("load", lambda r: r["devices"][1].update(load=1.0), "the load of acc1 is 8.5001536, not 1 as claimed"),
    ("objective", lambda r: r.update(objective=1.0, bound=1.0), "the objective is 8.5001536, not 1 as claimed"),
    ("memory", lambda r: r["devices"][0].update(memory=10), "the memory of acc0 is 6001576 bytes, not 10 as claimed"),
    ("straight", lambda r: r["options"].update(straight=True), "a stage has replicas, and the result says straight"),
    (
        "backward",
        lambda r: (r["devices"][0].update(nodes=["node3", "node5"]), r["devices"][1].update(nodes=["node2"], stage=1)),
        "the split is not contiguous: acc1 sends node 'node2' back to acc0 (node 'node3')",
    ),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in REPLICATED], ids=[name for name, _, _ in REPLICATED])
def test_each_way_to_be_wrong_with_replicas(tmp_path: Path, change: Change, words: str) -> None:
    path, result = solved(tmp_path, PROFILE, accelerators=2)
    change(result)
    assert words in verify(path.read_text(), result, Limits(accelerators=2)).violations


@pytest.mark.parametrize("options", [{"schedule": "none"}, {"microbatches": "x"}, {"microbatches": -1}])
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    path, result = solved(tmp_path, PROFILE, accelerators=2)
    result["options"] |= options
    with pytest.raises(Malformed, match="options"):
        verify(path.read_text(), result, Limits(accelerators=2))


def test_a_time_that_is_null_is_of_a_device_that_cannot_run_the_node(tmp_path: Path) -> None:
    data = placement([node(0, 1.0) | {"fpgaLatency": None}, node(1, 1.0)], [], maxCPUs=1)
    path, result = solved(tmp_path, text_of(data))
    assert [d["nodes"] for d in result["devices"] if d["kind"] == "cpu"] == [[0]]
    assert verify(path.read_text(), result, Limits()).violations == []


def test_more_replicas_than_machines(tmp_path: Path) -> None:
    path, result = solved(tmp_path, PROFILE, accelerators=3)
    assert "3 devices are used, there are 2" in verify(path.read_text(), result, Limits(accelerators=2)).violations


@settings(max_examples=75)
@given(seed=st.integers(0, 10**9), comm=st.sampled_from(["sum", "overlap", "duplex"]))
def test_any_assignment_is_judged_as_the_definition_does(seed: int, comm: str) -> None:
    data = random_placement(seed)
    rng = random.Random(seed)
    accelerators, cpus = data["maxFPGAs"], data["maxCPUs"]
    home = {n["id"]: rng.randrange(accelerators + cpus) for n in data["nodes"]}
    held = [{"nodes": [id_ for id_, at in home.items() if at == device]} for device in range(accelerators + cpus)]
    expected = assignment_value(data, home, comm)
    claimed = {"maxLoad": None, "fpgas": held[:accelerators], "cpus": held[accelerators:]}
    report = verify(text_of(data), claimed, Limits(), comm=comm)
    assert (report.violations == []) == math.isfinite(expected)
    if math.isfinite(expected):
        assert report.objective == pytest.approx(expected, rel=1e-12)
        lie = claimed | {"maxLoad": expected * 1.001 + 0.001}
        assert len(verify(text_of(data), lie, Limits(), comm=comm).violations) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "a result must be a JSON object"),
        ("{}", "expected 'devices'"),
        ('{"fpgas": 3}', "'fpgas' must be a list of objects"),
        ('{"fpgas": [{}]}', "a list 'nodes'"),
        ('{"fpgas": [{"nodes": [[1]]}]}', "named by its id"),
        ('{"devices": [], "status": "infeasible"}', "the result holds no split"),
        ('{"devices": [], "status": "unknown"}', "the result holds no split: its status is undecided"),
        ('{"devices": [], "status": "good"}', "'status' is 'good', expected one of optimal, within-gap, infeasible, undecided"),
        ('{"devices": [], "objective": NaN}', "NaN is no number"),
        ('{"devices": [], "bound": "3"}', "'bound' is '3', expected a number"),
        ('{"fpgas": [], "maxLoad": 1' + "0" * 400 + "}", "a number of too many digits"),
        ('{"devices": [], "comm": "none"}', "expected sum, overlap or duplex"),
    ],
)
def test_a_result_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "workload").write_text(text_of(DATA))
    (tmp_path / "result").write_text(text)
    with pytest.raises(InvalidInput, match="result") as raised:
        verify_files(tmp_path / "workload", tmp_path / "result", Limits())
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"nodes": 3}',
        '{"nodes": [{"id": 1}], "edges": []}',
        "hello",
        '{"maxFPGAs": "2", "nodes": [], "edges": []}',
        '{"maxFPGAs": 2, "maxCPUs": 1.5, "nodes": [], "edges": []}',
        '{"maxFPGAs": 2, "nodes": [{"id": 1, "fpgaLatency": 1' + "0" * 400 + '}], "edges": []}',
        '{"maxFPGAs": 2, "nodes": [{"id": 1, "fpgaLatency": 1, "colorClass": [1]}], "edges": []}',
        "n -- R -- forward_compute_time=1e999999999, backward_compute_time=1, activation_size=1, parameter_size=1",
    ],
)
def test_a_workload_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "workload").write_text(text)
    (tmp_path / "result").write_text(json.dumps(RIGHT))
    with pytest.raises(InvalidInput, match="workload"):
        verify_files(tmp_path / "workload", tmp_path / "result", Limits())


def test_it_shares_nothing_with_the_solver() -> None:
    """Only errors and their kinds, the opening of files, the names of objectives, and the language with its data come from
    elsewhere: none of them holds a judgement."""
    imported: set[str | None] = set()
    for path in Path(dnnc.workloads.verify_plan.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    foreign = {name for name in imported if name and name.split(".")[0] in ("ir", "passes", "dnnc", "grammars")}
    allowed = {"ir.core.diagnostics", "ir.system.files", "ir.text.json_text", "ir.core.limits", "ir.core.objectives"}
    allowed |= {"dnnc.workloads.faults", "ir", "ir.core.facets", "ir.core.ops", "ir.core.topology", "ir.core.types"}
    allowed |= {"ir.core.outcomes"}  # of which it reads the words
    assert {name for name in foreign if not name.startswith("dnnc.workloads.verify_plan.")} <= allowed


def test_the_result_format_of_the_reference() -> None:
    result = placement_result(2.5, [DeviceRow(False, 2.5, (1, 2)), DeviceRow(False, 0.0, ()), DeviceRow(True, 1.0, (3,))], {})
    assert result == {
        "maxLoad": 2.5,
        "fpgas": [{"load": 2.5, "nodes": [1, 2]}],
        "cpus": [{"load": 1.0, "nodes": [3]}],
    }
    assert json.loads(placement_text(result)) == result
