"""``--hierarchy``: groups of accelerators from a workload's file to a verified result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli import main
from dnnc.workloads.placement_result import DeviceRow, placement_result
from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import Limits, verify
from ir.core.diagnostics import DiagnosticSink, UsageError
from tests.dnnc.workloads.workload_files import PROFILE, chain, random_placement, renamed, text_of

GB = 1e9


def solve(folder: Path, data: dict[str, Any] | str, **options: Any) -> SolveResult:
    path = folder / "workload"
    path.write_text(data if isinstance(data, str) else text_of(data))
    return solve_file(SolveOptions(str(path), **options), sink=DiagnosticSink())


def told(result: SolveResult) -> dict[str, Any]:
    data = json.loads(json.dumps(result.to_json()))
    assert isinstance(data, dict)
    return data


def test_a_border_between_groups_is_dearer(tmp_path: Path) -> None:
    """Four nodes of 4 ms on 2 groups of 2; a message of 1000 bytes takes 1 ms inside a group and 4 ms outside."""
    data = chain([4.0] * 4, maxFPGAs=4)
    result = solve(tmp_path, data, hierarchy=(2, 2), inner_bandwidth=1e6, bandwidth=2.5e5)
    assert [device.load for device in result.devices] == [5.0, 9.0, 9.0, 5.0]
    assert (result.objective, result.bound, result.status) == (9.0, 9.0, "optimal")
    assert result.options == {"hierarchy": "2x2", "inner_bandwidth": 1e6}
    limits = Limits(bandwidth=2.5e5, accelerators=4, cpus=0)
    assert verify(text_of(data), told(result), limits).violations == []
    wrong = told(result) | {"options": {"hierarchy": "1x4", "inner_bandwidth": 1e6}}
    assert "the load of acc1 is 6, not 9 as claimed" in verify(text_of(data), wrong, limits).violations


@pytest.mark.parametrize("at", range(1, 25, 2))
def test_an_interrupt_keeps_a_plan_and_a_bound(tmp_path: Path, at: int) -> None:
    """At any moment once there is a plan; whatever of the searches with and without replicas is over by then."""
    data = chain([4.0, 1.0, 3.0, 2.0, 5.0, 2.0], maxFPGAs=4)
    options: dict[str, Any] = {"hierarchy": (2, 2), "inner_bandwidth": 1e6, "bandwidth": 2.5e5, "replicas": 2}
    best = solve(tmp_path, data, **options)
    told_of, searches = 0, 0

    def progress(label: str, fraction: float | None) -> None:
        nonlocal told_of, searches
        told_of += 1
        searches += label == "partition: linear"
        if told_of == at:
            raise KeyboardInterrupt

    given = SolveOptions(str(tmp_path / "workload"), **options)
    try:
        result = solve_file(given, sink=DiagnosticSink(), progress=progress)
    except KeyboardInterrupt:
        assert searches <= 1, "the first search had found a plan"
        return
    assert result.interrupted == (told_of == at)
    assert 0.0 < result.bound <= best.objective <= result.objective
    assert (result.status == "optimal") == (result.bound == result.objective)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(((1, 3), (2, 2), (3, 1), (2, 3))),
    st.sampled_from(("sum", "overlap", "duplex")),
    st.integers(1, 3),
)
def test_throughput_in_groups_verifies(
    tmp_path_factory: pytest.TempPathFactory, seed: int, groups: tuple[int, int], comm: str, replicas: int
) -> None:
    """Optimal, above the flat answer, what the verifier finds, and the same whatever the order and the names in the file."""
    data = random_placement(seed)
    folder = tmp_path_factory.mktemp("groups")
    count = groups[0] * groups[1]
    options: dict[str, Any] = {"hierarchy": groups, "inner_bandwidth": 8e3, "bandwidth": 2e3, "comm": comm}
    result = solve(folder, data, **options, replicas=replicas)
    flat = solve(folder, data, accelerators=count, cpus=0, bandwidth=8e3, comm=comm, replicas=min(replicas, groups[1]))
    assert (result.why is None) == (flat.why is None)
    again = solve(folder, renamed(data, seed), **options, replicas=replicas)
    assert (again.objective, again.bound) == pytest.approx((result.objective, result.bound))
    if result.why is None:
        assert flat.objective * (1 - 1e-9) <= result.objective == result.bound
        limits = Limits(bandwidth=2e3, accelerators=count, cpus=0)
        assert verify(text_of(data), told(result), limits).violations == []
        if replicas == 1:
            rows = [DeviceRow(device.cpu, device.load, device.nodes, number=device.stage) for device in result.devices]
            written = placement_result(result.objective, rows, result.statement())
            assert verify(text_of(data), written, limits).violations == []


def test_devices_left_out_and_replicas_keep_their_group(tmp_path: Path) -> None:
    """Two nodes of 4 ms and two of 1 ms, dear messages between groups: the large ones share a group, each alone."""
    data = chain([4.0, 4.0, 1.0, 1.0], cost=0.0, maxFPGAs=6)
    result = solve(tmp_path, data, hierarchy=(2, 3), inner_bandwidth=1e9, bandwidth=1e3, replicas=3)
    limits = Limits(bandwidth=1e3, accelerators=6, cpus=0)
    assert result.status == "optimal"
    assert verify(text_of(data), told(result), limits).violations == []
    wrong = told(result)
    for device in wrong["devices"]:
        device["stage"] = 2 if device["nodes"] else None
    assert any("in more than one group" in fault for fault in verify(text_of(data), wrong, limits).violations)


@pytest.mark.parametrize("straight", [False, True])
def test_pipedream_in_groups_verifies(tmp_path: Path, straight: bool) -> None:
    result = solve(tmp_path, PROFILE, hierarchy=(2, 2), inner_bandwidth=4e5, bandwidth=1e5, straight=straight)
    fast, slow = (solve(tmp_path, PROFILE, accelerators=4, bandwidth=b, straight=straight) for b in (4e5, 1e5))
    assert result.status == "optimal"
    assert fast.objective <= result.objective <= slow.objective
    limits = Limits(bandwidth=1e5, accelerators=4)
    assert verify(PROFILE, told(result), limits).violations == []
    if result.objective > fast.objective:
        assert verify(PROFILE, told(result) | {"options": {"straight": straight}}, limits).violations


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hierarchy": (2, 2)}, r"E1325.*needs two bandwidths"),
        ({"hierarchy": (2, 2), "inner_bandwidth": GB}, r"E1325.*needs two bandwidths"),
        ({"inner_bandwidth": GB}, r"E1321.*--inner-bandwidth needs --hierarchy"),
        ({"hierarchy": (2, 2), "inner_bandwidth": GB, "bandwidth": 2 * GB}, r"E1326.*below the 2e.09 bytes/s between groups"),
        ({"hierarchy": (2, 2), "inner_bandwidth": GB, "bandwidth": GB, "accelerators": 3}, r"E1322.*has 4 accelerators"),
        ({"hierarchy": (2, 2), "inner_bandwidth": GB, "bandwidth": GB, "cpus": 1}, r"E1323.*groups of accelerators only"),
        ({"hierarchy": (2, 2), "inner_bandwidth": GB, "bandwidth": GB, "split": "any"}, r"E4901.*--hierarchy: "),
        (
            {"hierarchy": (2, 2), "inner_bandwidth": GB, "bandwidth": GB, "method": "greedy"},
            r"E1324.*baselines cannot plan for groups",
        ),
    ],
)
def test_what_groups_need(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        solve(tmp_path, chain([1.0, 2.0]), **options)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workload.json"
    path.write_text(text_of(chain([4.0] * 4)))
    speeds = ["--inner-bandwidth", "1MB/s", "--bandwidth", "250kB/s"]
    assert main(["solve", str(path), "--hierarchy", "2x2", *speeds]) == 0
    assert "throughput (contiguous, sum, 2x2): 9 ms on 4 devices" in capsys.readouterr().out
    for wrong in ("2x", "2", "0x4", "2x2x2", "ax2"):
        assert main(["solve", str(path), "--hierarchy", wrong, *speeds]) == 2
        assert "expected GROUPSxSIZE" in capsys.readouterr().err
    assert main(["solve", str(path), "--hierarchy", "300x300", *speeds]) == 2
    assert "expected at most 65536" in capsys.readouterr().err
    # More accelerators than nodes are no more work.
    assert main(["solve", str(path), "--hierarchy", "40x100", *speeds]) == 0
