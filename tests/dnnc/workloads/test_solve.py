"""From a workload file to a split: the value is that of brute force and of the reference, whatever the order and the names."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import Limits, verify
from ir.core.diagnostics import DiagnosticSink, UsageError
from tests.dnnc.workloads.workload_files import (
    PROFILE,
    brute_force,
    chain,
    edge,
    node,
    placement,
    random_placement,
    random_training,
    text_of,
)
from tests.slow_cases import slow_but

REFERENCE = {
    "op-bert_l-3_inference": 27.918568,
    "op-bert_l-6_inference": 29.579506,
    "op-resnet50_inference": 124.348850,
    "layer-bert24_inference": 17.789906,
    "layer-gnmt_inference": 32.910658,
    "layer-resnet50_inference": 33.774666,
}
"""Contiguous optima of the reference, k accelerators and one CPU; six digits after the point."""


def solve(folder: Path, data: dict[str, Any] | str, **options: Any) -> SolveResult:
    path = folder / "workload"
    path.write_text(data if isinstance(data, str) else text_of(data))
    return solve_file(SolveOptions(str(path), **options), sink=DiagnosticSink())


def ids(result: SolveResult) -> dict[str, list[int | str]]:
    return {device.name: list(device.nodes) for device in result.devices}


TRAINING = {"op-bert_l-3_training": 65.303149, "layer-bert24_training": 41.7458, "layer-resnet50_training": 78.6318}
"""Contiguous training optima (max FW + BW) of the reference, to the digits it prints."""


@pytest.mark.parametrize("name", slow_but(TRAINING, "layer-bert24_training", "layer-resnet50_training"))
def test_training_of_the_reference_table(shared_dir: Path, name: str) -> None:
    path = shared_dir / "workloads" / "device-placement" / "throughput" / f"{name}.json"
    result = solve_file(SolveOptions(str(path)), sink=DiagnosticSink())
    assert (result.kind, result.status) == ("training", "optimal")
    digits = len(str(TRAINING[name]).partition(".")[2])
    assert round(result.objective, digits) == TRAINING[name]
    assert verify(path.read_text(), result.to_json(), Limits()).violations == []
    split = solve_file(SolveOptions(str(path), schedule="gpipe"), sink=DiagnosticSink())
    assert result.objective <= split.objective * (1 + 1e-9)  # no plan has max FW + max BW below its max (FW + BW)
    assert verify(path.read_text(), split.to_json(), Limits()).violations == []


PIPEDREAM = {
    ("vgg16", 4): 170.2,
    ("vgg16", 8): 89.9,
    ("alexnet", 4): 22.186,
    ("alexnet", 8): 11.105,
    ("resnet50", 4): 111.5,
    ("resnet50", 8): 56.6,
}
"""Milliseconds per minibatch at 10 GB/s with replicas, to the digits that are known; or better."""


@pytest.mark.parametrize(("name", "machines"), sorted(PIPEDREAM))
@pytest.mark.parametrize("straight", [False, True])
def test_pipedream_profiles(shared_dir: Path, name: str, machines: int, straight: bool) -> None:
    path = shared_dir / "workloads" / "pipedream" / f"{name}.txt"
    result = solve_file(SolveOptions(str(path), accelerators=machines, straight=straight), sink=DiagnosticSink())
    assert (result.kind, result.status) == ("pipedream", "optimal")
    if not straight:
        known = PIPEDREAM[name, machines]
        assert result.objective <= known + 10 ** -len(str(known).partition(".")[2]) / 2
    assert verify(path.read_text(), result.to_json(), Limits(accelerators=machines)).violations == []


def test_pipedream_memory_by_schedule(tmp_path: Path) -> None:
    """Weights once per version, outputs once per minibatch in flight."""
    memory = {
        schedule: [d.memory for d in solve(tmp_path, PROFILE, accelerators=2, straight=True, schedule=schedule, **more).devices]
        for schedule, more in (("stash", {}), ("2bw", {}), ("flush", {"microbatches": 1}), ("gpipe", {"microbatches": 5}))
    }
    first, second = 6_000_000, 40  # node2 and node3; node5
    assert memory == {
        "stash": [2 * (1024 + first), 512 + second],
        "2bw": [2 * 1024 + 2 * first, 2 * 512 + second],
        "flush": [1024 + first, 512 + second],
        "gpipe": [1024 + 5 * first, 512 + 5 * second],
    }
    result = solve(tmp_path, PROFILE, accelerators=2, memory=1000)
    assert (result.status, result.devices) == ("infeasible", ())
    with pytest.raises(UsageError, match=r"E4904.*needs the number of microbatches"):
        solve(tmp_path, PROFILE, accelerators=2, schedule="gpipe")
    with pytest.raises(UsageError, match=r"E4901.*--straight: the chosen objective and split have no such option"):
        solve(tmp_path, PROFILE, accelerators=2, objective="throughput", straight=True)


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_the_reference_table(shared_dir: Path, name: str) -> None:
    path = shared_dir / "workloads" / "device-placement" / "throughput" / f"{name}.json"
    result = solve_file(SolveOptions(str(path)), sink=DiagnosticSink())
    assert result.status == "optimal"
    assert result.objective == result.bound
    assert round(result.objective, 6) == pytest.approx(REFERENCE[name], abs=1e-12)
    assert result.ideals > 0
    report = verify(path.read_text(), result.to_json(), Limits())
    assert report.violations == []
    assert report.objective == pytest.approx(result.objective, rel=1e-12)


def test_what_a_result_says(tmp_path: Path) -> None:
    result = solve(tmp_path, chain([1.0, 2.0, 1.0, 3.0], cost=0.25, maxFPGAs=3))
    assert (result.kind, result.split, result.comm, result.format, result.unit) == (
        "throughput",
        "contiguous",
        "sum",
        "device-placement",
        "ms",
    )
    # 3.25 = the last node and its input; nothing beats it: 3 is the largest node, and it must receive.
    assert (result.objective, result.bound, result.gap, result.status) == (3.25, 3.25, 0.0, "optimal")
    assert [device.nodes for device in result.devices if device.nodes][-1] == (3,)
    assert sum(device.memory for device in result.devices) == 400
    assert all(device.limit == 10**9 for device in result.devices)
    assert [device.name for device in result.devices] == ["acc0", "acc1", "acc2"]
    for device in result.devices:
        assert device.load == pytest.approx(device.compute + device.transfer, rel=1e-12)
    assert {"read", "build", "search", "total"} <= result.seconds.keys()
    assert result.seconds["total"] >= result.seconds["search"] > 0


def test_comm_says_how_transfers_count(tmp_path: Path) -> None:
    data = chain([2.0, 2.0, 2.0], cost=1.5, maxFPGAs=3)
    values = {comm: solve(tmp_path, data, comm=comm).objective for comm in ("sum", "overlap", "duplex")}
    assert values == {comm: brute_force(data, comm) for comm in values}
    assert values == {"sum": 5.0, "overlap": 3.0, "duplex": 2.0}


def test_machines_stand_over_the_file(tmp_path: Path) -> None:
    data = chain([1.0, 1.0, 1.0, 1.0], cost=0.0)
    assert solve(tmp_path, data).objective == 2.0
    assert solve(tmp_path, data, accelerators=4).objective == 1.0
    assert solve(tmp_path, data, accelerators=0, cpus=2).objective == 20.0
    assert solve(tmp_path, data, bandwidth=1e6).objective == 3.0  # 1000 bytes in 1 ms on both sides
    assert solve(tmp_path, data, accelerators=4, memory=250).objective == 1.0
    assert solve(tmp_path, data, memory=200).objective == 2.0


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    result = solve(tmp_path, chain([1.0, 1.0, 1.0]), memory=100)
    assert (result.status, result.objective, result.devices) == ("infeasible", math.inf, ())
    assert result.why is not None
    assert "100 bytes" in str(result.why)


def test_a_node_that_nothing_can_run(tmp_path: Path) -> None:
    data = placement([node(1, 1.0), node(2, 1.0, supportedOnFpga=False)], [edge(1, 2)])
    result = solve(tmp_path, data)
    assert result.status == "infeasible"
    assert "no device can run %n2" in str(result.why)
    assert solve(tmp_path, data, cpus=1).objective == 10.0


def test_colours_that_close_a_cycle_take_along_what_lies_between(tmp_path: Path) -> None:
    nodes = [node(i, 1.0, **({"colorClass": 5} if i in (0, 2) else {})) for i in range(4)]
    data = placement(nodes, [edge(0, 1), edge(1, 2), edge(2, 3)])
    result = solve(tmp_path, data)
    assert sorted(map(len, ids(result).values())) == [1, 3]
    assert result.objective == 3.0


def test_a_profile_needs_machines(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say how many accelerators") as raised:
        solve(tmp_path, PROFILE)
    assert "--accelerators N" in str(raised.value)
    result = solve(tmp_path, PROFILE, accelerators=2, objective="throughput")
    assert result.format == "pipedream"
    # node2 alone sends 4 MB at 10 GB/s: 2.4 ms; node3 and node5 take 4.4. Or node2 and node3: 3.2, node5: 3.2.
    assert result.objective == 3.2
    assert ids(result) == {"acc0": ["node2", "node3"], "acc1": ["node5"]}
    assert [device.memory for device in result.devices] == [1024, 512]


def test_backward_nodes_are_left_out_only_when_asked(tmp_path: Path) -> None:
    data = placement([node(1, 1.0), node(2, 2.0, isBackwardNode=True)], [edge(1, 2)])
    with pytest.raises(UsageError, match=r"E1309.*has backward nodes, and --objective throughput is of inference"):
        solve(tmp_path, data, objective="throughput")
    result = solve(tmp_path, data, forward=True)
    assert (result.kind, result.objective, result.nodes) == ("throughput", 1.0, 1)


def test_no_device_and_no_method(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"E1332.*no device to run on"):
        solve(tmp_path, chain([1.0]), accelerators=0)
    with pytest.raises(UsageError, match=r"E1311.*no method solves --objective speed"):
        solve(tmp_path, chain([1.0]), objective="speed")


def test_a_workload_without_nodes(tmp_path: Path) -> None:
    result = solve(tmp_path, placement([], []))
    assert (result.objective, result.status) == (0.0, "optimal")
    assert ids(result) == {"acc0": [], "acc1": []}


@settings(max_examples=30)
@given(seed=st.integers(0, 10**9), comm=st.sampled_from(["sum", "overlap", "duplex"]))
def test_equals_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int, comm: str) -> None:
    data = random_placement(seed, most=5)
    result = solve(tmp_path_factory.mktemp("brute"), data, comm=comm)
    best = brute_force(data, comm)
    if math.isinf(best):
        assert result.status == "infeasible"
        return
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-12)
    report = verify(json.dumps(data), result.to_json(), Limits())
    assert report.violations == []


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9))
def test_training_equals_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    data = random_training(seed)
    best = brute_force(data)
    result = solve(tmp_path_factory.mktemp("training"), data, objective="training", forward=False)
    if math.isinf(best):
        assert result.status == "infeasible"
        return
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert verify(json.dumps(data), result.to_json(), Limits()).violations == []


@settings(max_examples=15)
@given(seed=st.integers(0, 10**9))
def test_any_split_equals_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    data = random_placement(seed, most=5)
    best = brute_force(data, contiguous=False)
    result = solve(tmp_path_factory.mktemp("any"), data, split="any")
    if math.isinf(best):
        assert result.status in ("infeasible", "undecided")
        return
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best, rel=1e-7, abs=1e-9)
    assert result.bound <= best * (1 + 1e-9) + 1e-12
    assert verify(json.dumps(data), result.to_json(), Limits()).violations == []


@settings(max_examples=20)
@given(seed=st.integers(0, 10**9))
def test_any_split_of_training_equals_brute_force(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    data = random_training(seed)
    best = brute_force(data, contiguous=False)
    result = solve(tmp_path_factory.mktemp("any"), data, objective="training", split="any", forward=False)
    if math.isinf(best):
        assert result.status == "infeasible"
        return
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best, rel=1e-7, abs=1e-9)
    assert verify(json.dumps(data), result.to_json(), Limits()).violations == []
    apart = solve(tmp_path_factory.mktemp("any"), data, objective="training", split="any", forward=False, schedule="gpipe")
    assert apart.objective >= result.objective * (1 - 1e-7)
    assert verify(json.dumps(data), apart.to_json(), Limits()).violations == []


@settings(max_examples=25)
@given(seed=st.integers(0, 10**9))
def test_order_and_ids_do_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    data = random_placement(seed, most=9)
    rng = random.Random(seed)
    renamed = {n["id"]: f"x{rng.random()}" for n in data["nodes"]}
    nodes = [n | {"id": renamed[n["id"]], "name": "same"} for n in data["nodes"]]
    edges = [e | {"sourceId": renamed[e["sourceId"]], "destId": renamed[e["destId"]]} for e in data["edges"]]
    rng.shuffle(nodes)
    rng.shuffle(edges)
    folder = tmp_path_factory.mktemp("order")
    first, second = solve(folder, data), solve(folder, data | {"nodes": nodes, "edges": edges})
    assert (first.status, first.nodes) == (second.status, second.nodes)
    assert second.objective == pytest.approx(first.objective, rel=1e-12)


SHORT: dict[str, dict[str, Any]] = {
    "throughput": {},
    "any": {"split": "any"},
    "latency": {"objective": "latency"},
    "latency, pieces": {"objective": "latency", "pieces": 2},
    "groups": {"hierarchy": (2, 2), "inner_bandwidth": 2e6, "bandwidth": 1e6},
}


@pytest.mark.parametrize("name", SHORT)
def test_no_limit_is_too_short_for_a_plan_or_a_proof_that_there_is_none(tmp_path: Path, name: str) -> None:
    """A second search ends with one where the first had no time; seeds with memory that binds and few CPUs among them."""
    for seed in range(12):
        data = random_placement(seed)
        longer, short = (solve(tmp_path, data, **SHORT[name], time_limit=limit) for limit in (60.0, 0.0))
        assert longer.status == "optimal" or longer.status == short.status == "infeasible"
        if longer.status == "optimal":
            assert short.status in ("optimal", "within-gap")
            assert short.bound <= longer.objective <= short.objective
