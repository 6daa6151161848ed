"""Replicated stages from a workload's file to a verified result."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli import main
from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from dnnc.workloads.verify_plan import Limits, verify
from ir.core.diagnostics import DiagnosticSink, ExitCode, UsageError
from tests.dnnc.workloads.workload_files import (
    PROFILE,
    edge,
    node,
    placement,
    random_placement,
    random_training,
    text_of,
)


def solve(folder: Path, data: dict[str, Any] | str, **options: Any) -> SolveResult:
    path = folder / "workload"
    path.write_text(data if isinstance(data, str) else text_of(data))
    return solve_file(SolveOptions(str(path), **options), sink=DiagnosticSink())


def two_stages() -> dict[str, Any]:
    """Six milliseconds that cannot be parted, and two; four accelerators: three of them share the six."""
    nodes = [node("a", 6.0, size=10.0), node("b", 2.0, size=20.0)]
    return placement(nodes, [edge("a", "b", 0.3, size=3e6)], maxFPGAs=4, maxCPUs=0)


def test_a_stage_on_three_devices(tmp_path: Path) -> None:
    result = solve(tmp_path, two_stages(), replicas=4)
    told = json.loads(json.dumps(result.to_json()))
    # All four on one stage take 8 / 4 = 2 ms; three and one 2.1 and 2.3 ms.
    assert (result.objective, result.status, result.options) == (2.0, "optimal", {"replicas": 4})
    assert [device["stage"] for device in told["devices"]] == [0, 0, 0, 0]
    capped = solve(tmp_path, two_stages(), replicas=3)
    assert capped.objective == 2.3
    assert [(d.name, d.stage, d.load, d.compute, d.transfer) for d in capped.devices] == [
        ("acc0", 0, 2.1, 2.0, 0.1),
        ("acc1", 0, 2.1, 2.0, 0.1),
        ("acc2", 0, 2.1, 2.0, 0.1),
        ("acc3", 1, 2.3, 2.0, 0.3),
    ]
    assert verify(text_of(two_stages()), json.loads(json.dumps(capped.to_json())), Limits()).violations == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("sum", "overlap", "duplex")), st.integers(1, 3))
def test_results_verify_and_are_no_worse(tmp_path_factory: pytest.TempPathFactory, seed: int, comm: str, most: int) -> None:
    data = random_placement(seed)
    folder = tmp_path_factory.mktemp("replicas")
    single, shared = solve(folder, data, comm=comm), solve(folder, data, comm=comm, replicas=most)
    assert shared.objective <= single.objective * (1 + 1e-12)
    assert shared.status == single.status == "optimal" or shared.status == "infeasible" == single.status
    if shared.why is None:
        told = json.loads(json.dumps(shared.to_json()))
        assert verify(text_of(data), told, Limits()).violations == []


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("1f1b", "gpipe")), st.sampled_from((None, 2, 5)))
def test_training_verifies(tmp_path_factory: pytest.TempPathFactory, seed: int, schedule: str, flush: int | None) -> None:
    data = random_training(seed)
    for link in data["edges"]:
        link["size"] = 1000.0 * link["cost"]
    microbatches = 3 if schedule == "gpipe" and flush is None else flush
    folder = tmp_path_factory.mktemp("training")
    options: dict[str, Any] = {"bandwidth": 1e5, "replicas": 2, "schedule": schedule, "microbatches": microbatches}
    result = solve(folder, data, **options)
    if result.why is None:
        told = json.loads(json.dumps(result.to_json()))
        assert verify(text_of(data), told, Limits(bandwidth=1e5)).violations == []


Change = Callable[[dict[str, Any]], object]
WRONG: list[tuple[str, Change, str]] = [
    ("unlike", lambda r: r["devices"][1]["nodes"].append("b"), "acc1 and acc0 are replicas and hold different nodes"),
    ("too many", lambda r: r["options"].update(replicas=2), "stage 0 has 3 replicas, the result says at most 2"),
    ("not said", lambda r: r["options"].clear(), "node 'a' is on acc1 and on acc0"),
    ("load", lambda r: r["devices"][2].update(load=6.3), "the load of acc2 is 2.1, not 6.3 as claimed"),
    ("kinds", lambda r: r["devices"][2].update(kind="cpu"), "acc2 and acc0 are replicas and of different kinds"),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in WRONG], ids=[name for name, _, _ in WRONG])
def test_each_way_to_be_wrong(tmp_path: Path, change: Change, words: str) -> None:
    told = json.loads(json.dumps(solve(tmp_path, two_stages(), replicas=3).to_json()))
    wrong = copy.deepcopy(told)
    change(wrong)
    assert words in verify(text_of(two_stages()), wrong, Limits()).violations


def test_more_devices_than_there_are(tmp_path: Path) -> None:
    told = solve(tmp_path, two_stages(), replicas=3).to_json()
    assert (
        "4 devices of kind accelerator are used, there are 3"
        in verify(text_of(two_stages()), told, Limits(accelerators=3)).violations
    )


def test_what_replicas_need(tmp_path: Path) -> None:
    """Training needs the speed of the links; GPipe the microbatches of a flush; other objectives take no replicas."""
    training = random_training(3)
    with pytest.raises(UsageError, match="the bandwidth of the links is unknown"):
        solve(tmp_path, training, replicas=2)
    with pytest.raises(UsageError, match="needs the number of microbatches between two flushes"):
        solve(tmp_path, placement([node(0, 1.0, isBackwardNode=True)], []), replicas=2, schedule="gpipe", bandwidth=1e9)
    with pytest.raises(UsageError, match="--replicas: the chosen objective and split have no such option"):
        solve(tmp_path, PROFILE, replicas=2, accelerators=2)
    with pytest.raises(UsageError, match="--replicas: the chosen objective and split have no such option"):
        solve(tmp_path, two_stages(), replicas=2, split="any")
    with pytest.raises(UsageError, match="--microbatches: the chosen"):
        solve(tmp_path, training, microbatches=2)


def test_synchronisation_needs_the_verifiers_bandwidth(tmp_path: Path) -> None:
    nodes = [node(0, 4.0, size=1e4, colorClass=0), node(1, 4.0, size=0.0, colorClass=0, isBackwardNode=True)]
    data = placement(nodes, [edge(0, 1)])
    told = solve(tmp_path, data, replicas=2, bandwidth=1e8).to_json()
    # 8 ms on two devices, and 4 * 10 kB / (100 kB/ms * 2) once in two minibatches.
    assert told["objective"] == pytest.approx(4.1)
    assert [device["transfer"] for device in told["devices"]] == pytest.approx([0.1, 0.1])
    assert verify(text_of(data), told, Limits(bandwidth=1e8)).violations == []
    assert verify(text_of(data), told, Limits(bandwidth=2e8)).violations
    with pytest.raises(UsageError, match="the bandwidth of the links is unknown"):
        verify(text_of(data), told, Limits())


def test_fewer_microbatches_than_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas that no microbatch of a flush falls to: the solver makes none, the verifier takes none, load right or not."""
    nodes = [node(0, 4.0, size=1e4, colorClass=0), node(1, 4.0, size=0.0, colorClass=0, isBackwardNode=True)]
    data = placement(nodes, [edge(0, 1)])
    words = "stage 0 has 2 replicas; microbatches between two flushes: 1"
    for microbatches, replicas in ((2, 2), (1, 1)):
        told = solve(tmp_path, data, replicas=2, bandwidth=1e8, microbatches=microbatches).to_json()
        assert sum(1 for device in told["devices"] if device["nodes"]) == replicas
        assert verify(text_of(data), told, Limits(bandwidth=1e8)).violations == []
        if replicas == 2:
            load = 4.2  # 8 ms on two devices, and 4 * 10 kB / (100 kB/ms * 2) in each minibatch
            devices = [device | {"load": load} for device in told["devices"]]
            wrong = told | {"options": told["options"] | {"microbatches": 1}, "devices": devices, "objective": load}
            found = verify(text_of(data), wrong | {"bound": load, "gap": 0.0}, Limits(bandwidth=1e8))
            assert found.violations == [words]
            (tmp_path / "model.json").write_text(text_of(data))
            (tmp_path / "split.json").write_text(json.dumps(told))
            files = [str(tmp_path / name) for name in ("model.json", "split.json")]
            capsys.readouterr()
            code = main(["verify-plan", *files, "--bandwidth", "100MB/s", "--microbatches", "1"])
            assert code == ExitCode.CHECK_FAILED
            assert words in capsys.readouterr().err
