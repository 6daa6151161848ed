"""``compile`` of a profiled workload: planned, scheduled and simulated like a model, and no programs."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.cli import main
from ir import parse_module
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import Time
from ir.core.module import Plan, Schedule
from tests.dnnc.workloads.workload_files import chain, edge, node, placement

GPUS = """
version = 1
types.fast = { kind = "gpu", memory = "1 GiB", rates = { f32 = "1 TFLOP/s" }, memory_bandwidth = "1 TB/s" }
types.slow = { kind = "gpu", memory = "1 GiB", rates = { f32 = "1 TFLOP/s" }, memory_bandwidth = "1 TB/s" }
devices = [{ name = "a", type = "fast" }, { name = "b", type = "slow" }]
links = [{ ends = ["a", "b"], bandwidth = "1 MB/s" }]
"""
PROFILE = """node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, parameter_size=0.0
node2 -- Conv -- forward_compute_time=3.0, backward_compute_time=6.0, activation_size=1000.0, parameter_size=8.0
node3 -- Conv -- forward_compute_time=4.0, backward_compute_time=5.0, activation_size=1000.0, parameter_size=8.0
\tnode1 -- node2
\tnode2 -- node3
"""


def compiled(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["compile", *map(str, arguments), "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    path = tmp_path / "machines.toml"
    path.write_text(GPUS)
    return path


def test_a_profile_is_planned_and_scheduled_like_a_model(
    tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its seconds are those of both types; 9 ms on either device and 1 ms each way of the tensor and of its gradient."""
    (tmp_path / "w.txt").write_text(PROFILE)
    assert main(["compile", str(tmp_path / "w.txt"), "-t", str(machines), "-o", str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "training: 11.0 ms per training step, 3 stages on 2 devices" in out
    assert "of a profile: fast, slow at the seconds of accelerator" in out
    assert "no programs: a profile has seconds in place of operators" in out
    files = {path.name for path in (tmp_path / "b").iterdir()}
    assert files == {"plan.json", "plan.ir", "trace.json", "report.html", "manifest.json"}
    module = parse_module((tmp_path / "b" / "plan.ir").read_text())
    plan, schedule = module.first(Plan), module.first(Schedule)
    assert plan is not None
    assert schedule is not None
    assert plan.stages[0].devices == plan.stages[2].devices != plan.stages[1].devices
    assert schedule.period == pytest.approx(11e-3)
    events = json.loads((tmp_path / "b" / "trace.json").read_text())["traceEvents"]
    passes = {event["name"] for event in events if event.get("cat") in ("F", "B") and event["args"]["microbatch"] == 0}
    assert passes == {"F 0.0", "F 1.0", "B 1.0", "B 2.0"}  # the stage between runs both passes


def test_programs_of_a_profile_are_refused_with_the_reason(
    tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.txt").write_text(PROFILE)
    compiled(capsys, tmp_path / "w.txt", "-t", machines, "-o", tmp_path / "b")
    for command in ("run", "check"):
        assert main([command, str(tmp_path / "b")]) == 3
        assert "a profiled workload, which has seconds in place of operators" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--mesh", "2"], ["--microbatches", "4"], ["--explain"]])
def test_options_of_tensors_are_refused(
    tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    (tmp_path / "w.txt").write_text(PROFILE)
    assert main(["compile", str(tmp_path / "w.txt"), "-t", str(machines), "-o", str(tmp_path / "b"), *options]) == 2
    assert f"a profiled workload has no tensors, so {options[0]}" in capsys.readouterr().err


def test_inference_is_planned_where_it_is_asked_for(tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.txt").write_text(PROFILE)
    data = compiled(capsys, tmp_path / "w.txt", "-t", machines, "-o", tmp_path / "b", "--objective", "throughput")
    assert (data["kind"], data["objective"]) == ("throughput", pytest.approx(5e-3))
    (tmp_path / "w.json").write_text(json.dumps(chain([3.0, 4.0], cost=1.0)))
    data = compiled(capsys, tmp_path / "w.json", "-t", machines, "-o", tmp_path / "b")
    assert (data["kind"], data["objective"]) == ("throughput", pytest.approx(5e-3))


def test_a_profile_as_text_keeps_its_own_device_types(
    tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``slow`` is told apart by the profile; ``--objective`` is not needed where there is no backward pass."""
    (tmp_path / "w.json").write_text(json.dumps(chain([3.0, 4.0], cost=1.0)))
    assert main(["import", str(tmp_path / "w.json"), "-o", str(tmp_path / "w.ir")]) == 0
    text = (tmp_path / "w.ir").read_text().replace("@accelerator", "@fast").replace("@cpu", "@slow")
    (tmp_path / "w.ir").write_text(text)
    capsys.readouterr()
    data = compiled(capsys, tmp_path / "w.ir", "-t", machines, "-o", tmp_path / "b")
    assert data["objective"] == pytest.approx(7e-3)  # the second device takes ten times as long
    assert data["certificate"]["profile"] == "device types at their own seconds"


def test_seconds_that_no_device_has_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(placement([node(0, 1.0, supportedOnFpga=False, cpuLatency=2.0)], [])))
    assert main(["compile", str(tmp_path / "w.json"), "-t", "preset:h100x8", "-o", str(tmp_path / "b")]) == 3
    err = capsys.readouterr().err
    assert "the profile has seconds of cpu, and the devices are of h100" in err
    assert str(tmp_path / "w.json") in err


def test_training_without_backward_times_is_refused(tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(chain([3.0, 4.0])))
    target = ["-t", str(machines), "-o", str(tmp_path / "b"), "--objective", "training"]
    assert main(["compile", str(tmp_path / "w.json"), *target]) == 3
    assert "training needs backward times, and the profile states none" in capsys.readouterr().err


def test_a_profile_without_nodes_is_no_plan_of_no_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(placement([], [])))
    assert main(["compile", str(tmp_path / "w.json"), "-t", "preset:h100x8", "-o", str(tmp_path / "b")]) == 3
    assert "the profile has no nodes, so there is nothing to plan" in capsys.readouterr().err


def training_file(seed: int) -> dict[str, Any]:
    """Forward nodes and a backward node of each, of its colour, with edges both ways."""
    rng = random.Random(seed)
    count = rng.randint(1, 4)
    forward = [node(i, float(rng.randint(0, 4)), colorClass=i, size=1.0) for i in range(count)]
    backward = [
        node(10 + i, float(rng.randint(0, 4)), colorClass=i, size=1.0, isBackwardNode=True) for i in reversed(range(count))
    ]
    edges = []
    for i in range(count):
        cost, back = rng.choice((0.0, 0.5, 1.0)), rng.choice((0.0, 0.5, 1.0))
        readers = [j for j in range(i + 1, count) if rng.random() < 0.6]
        edges += [edge(i, j, cost) for j in readers] + [edge(i, 10 + i, cost)]
        makers = [j for j in range(i) if rng.random() < 0.6]
        edges += [edge(10 + i, 10 + j, back) for j in makers]
    return placement([*forward, *backward], edges, maxFPGAs=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_both_doors_find_plans_of_one_value(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    """``solve`` on the machines of the file, ``compile`` on a topology of as many devices: the same passes, the same value."""
    (tmp_path / "w.json").write_text(json.dumps(training_file(seed)))
    (tmp_path / "two.toml").write_text(GPUS.replace('type = "slow"', 'type = "fast"'))
    assert main(["solve", str(tmp_path / "w.json"), "--json"]) == 0
    solved = json.loads(capsys.readouterr().out)
    data = compiled(capsys, tmp_path / "w.json", "-t", tmp_path / "two.toml", "-o", tmp_path / "b")
    assert (data["kind"], solved["kind"]) == ("training", "training")
    assert data["bound"] * 1e3 == pytest.approx(solved["bound"], abs=1e-9)
    assert data["objective"] >= data["bound"]
    assert main(["solve", str(tmp_path / "w.json"), "--json", "--split", "any"]) == 0
    solved = json.loads(capsys.readouterr().out)
    data = compiled(capsys, tmp_path / "w.json", "-t", tmp_path / "two.toml", "-o", tmp_path / "b", "--split", "any")
    assert (data["kind"], data["bound"] * 1e3) == ("training", pytest.approx(solved["bound"], abs=1e-9))


def profile_text(forward: list[float], backward: list[float], sizes: list[float], edges: list[tuple[int, int]]) -> str:
    rows = [
        f"node{i} -- Layer -- forward_compute_time={f}, backward_compute_time={b}, activation_size={s}, parameter_size=0.0"
        for i, (f, b, s) in enumerate(zip(forward, backward, sizes, strict=True))
    ]
    return "\n".join([*rows, *(f"\tnode{u} -- node{v}" for u, v in edges)]) + "\n"


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32))
def test_the_best_training_plan_of_a_profile_is_found(seed: int) -> None:
    """Against every split of its nodes over two devices: forward and backward seconds of a device, what it sends and receives
    once per device, and the gradient of each input of a node, once per reader."""
    from dnnc.compile.driver import CompileOptions, compile_model

    rng = random.Random(seed)
    count = rng.randint(1, 5)
    forward, backward = ([float(rng.randint(0, 5)) for _ in range(count)] for _ in "fb")
    sizes = [float(rng.choice((0, 1, 500, 1000))) for _ in range(count)]
    edges = [(u, v) for u, v in itertools.combinations(range(count), 2) if rng.random() < 0.5]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "w.txt").write_text(profile_text(forward, backward, sizes, edges))
        (folder / "m.toml").write_text(GPUS.replace('type = "slow"', 'type = "fast"'))
        result = compile_model(CompileOptions(str(folder / "w.txt"), str(folder / "m.toml"), folder / "b"))
    best = math.inf
    for on in itertools.product((0, 1), repeat=count):
        if any(on[u] > on[v] for u, v in edges):
            continue
        loads = [sum(forward[v] + backward[v] for v in range(count) if on[v] == d) for d in (0, 1)]
        for u in range(count):
            readers = [v for w, v in edges if w == u]
            if any(on[v] != on[u] for v in readers):
                loads = [load + sizes[u] * 1e-3 for load in loads]
            for v in readers:
                if on[v] != on[u]:
                    loads = [load + sizes[u] * 1e-3 for load in loads]
        best = min(best, max(loads))
    assert result.plan.bound * 1e3 == pytest.approx(best, abs=1e-9)
    assert result.plan.value * 1e3 == pytest.approx(best, abs=1e-9)


def test_an_edited_plan_of_a_profile_is_replayed(tmp_path: Path, machines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.txt").write_text(PROFILE)
    first = compiled(capsys, tmp_path / "w.txt", "-t", machines, "-o", tmp_path / "b")
    plan = tmp_path / "b" / "plan.json"
    again = compiled(capsys, tmp_path / "w.txt", "-t", machines, "-o", tmp_path / "c", "--plan", plan)
    assert (again["kind"], again["objective"]) == ("training", first["objective"])


def test_types_are_given_once(shared_dir: Path) -> None:
    from dnnc.compile.load import load_model
    from dnnc.data.workloads.fitted import fitted
    from dnnc.machines.topology import load_topology

    sink = DiagnosticSink()
    module = load_model(str(shared_dir / "workloads/pipedream/vgg16.txt"), {}, sink).module
    found, told = fitted(module, load_topology("preset:cpu-2", sink), training=True, sink=sink, where="vgg16.txt")
    assert told == "core at the seconds of accelerator"
    assert {name for op in found.entry.ops if (time := op.facet(Time)) for name, _ in time.seconds} == {"@core"}
    with pytest.raises(InvalidInput, match="the profile has seconds of core, and the devices are of h100"):
        fitted(
            found.replace(found.entry, found.entry), load_topology("preset:h100x8", sink), training=False, sink=sink, where=""
        )
