"""``simulate`` follows whatever has a plan: a build, a plan alone, a split that ``solve`` found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dnnc.build.timeline import predicted
from dnnc.cli import main
from dnnc.workloads.scheduled import scheduled
from ir.core.diagnostics import DiagnosticSink
from tests.dnnc.workloads.test_profiled import PROFILE, training_file
from tests.dnnc.workloads.workload_files import chain, edge, node, placement, text_of

MLP = "zoo:mlp,hidden=32,batch=4"


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main(list(map(str, arguments))) == code, capsys.readouterr().err
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def simulated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, "simulate", *arguments, "--json"))
    del found["build"]
    return found


@pytest.mark.parametrize("options", [("--stages", "2"), ("--mesh", "2")])
def test_a_plan_alone_has_the_timeline_of_its_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    common = (MLP, "-t", "preset:cpu-2,cores=2", *options, "-q")
    run(capsys, "compile", *common, "-o", tmp_path / "build")
    run(capsys, "compile", *common, "-o", tmp_path / "plan", "--plan-only")
    assert simulated(capsys, tmp_path / "plan", "-m", "5") == simulated(capsys, tmp_path / "build", "-m", "5")


def test_the_timeline_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In lines of characters, and as an SVG, which is written whole or not at all."""
    plan = ("--plan-only", "--stages", "2", "-t", "preset:cpu-2,cores=2", "-q", "-o", tmp_path / "plan")
    run(capsys, "compile", MLP, *plan)
    out = run(capsys, "simulate", tmp_path / "plan", "-m", "4", "--svg", tmp_path / "plan.svg")
    assert [line[:7] for line in out.splitlines()[:2]] == ["cpu0  |", "cpu1  |"]
    assert "a long stream has one every " in out
    ElementTree.parse(tmp_path / "plan.svg")
    assert "no such" in run(capsys, "simulate", tmp_path / "plan", "--svg", tmp_path / "nowhere/plan.svg", code=3).lower()


def test_a_training_step_is_followed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its backward passes are compute, and it has the microbatches that it was planned with."""
    options = ("--mesh", "1", "--stages", "2", "--objective", "training", "--microbatches", "3", "--plan-only", "-q")
    run(capsys, "compile", MLP, "-t", "preset:cpu-2,cores=2", "-o", tmp_path / "plan", *options)
    found = simulated(capsys, tmp_path / "plan")
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (found["microbatches"], found["makespan"]) == (3, pytest.approx(plan["value"], rel=0.5))
    seconds = [3 * stage["seconds"]["compute"] - stage["seconds"]["sync"] for stage in plan["stages"]]  # which it tells apart
    assert [device["compute"] for device in found["devices"]] == pytest.approx(seconds, rel=1e-6)
    told = run(capsys, "simulate", tmp_path / "plan", "-m", "4", code=2)
    assert "error[E0125]: --microbatches is 4, and the training step has 3 microbatches" in told
    run(capsys, "simulate", tmp_path / "plan", "--csv", tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"


@pytest.mark.parametrize("options", [[], ["--split", "any"], ["--replicas", "2", "--bandwidth", "1MB/s"]])
def test_a_split_runs_at_the_pace_that_solve_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    (tmp_path / "w.json").write_text(json.dumps(chain([2.0, 1.0, 4.0, 3.0], maxFPGAs=3)))
    (tmp_path / "s.json").write_text(run(capsys, "solve", tmp_path / "w.json", *options, "--json"))
    solved = json.loads((tmp_path / "s.json").read_text())
    found = simulated(capsys, tmp_path / "s.json", "-m", "100")
    assert found["makespan"] / 100 * 1e3 == pytest.approx(solved["objective"], rel=0.2)
    busy = max(device["compute"] + device["transfers"] for device in found["devices"])
    assert busy / 100 * 1e3 == pytest.approx(solved["objective"], rel=0.02)  # replicas take 100 samples in turn


def test_forward_and_backward_nodes_of_one_stage_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second of two devices runs both passes at one go, 1 ms and 2 ms; the first has a stage of each."""
    nodes = [node(i, 1.0, isBackwardNode=False, colorClass=i) for i in range(2)]
    nodes += [node(3 - i, 2.0, isBackwardNode=True, colorClass=i) for i in range(2)]
    split = placement(nodes, [edge(i, i + 1, 0.1) for i in range(3)], maxFPGAs=2, maxCPUs=0)
    (tmp_path / "w.json").write_text(text_of(split))
    run(capsys, "solve", tmp_path / "w.json", "--objective", "training", "-o", tmp_path / "s.json", "-q")
    events = predicted(scheduled(tmp_path / "s.json", "", DiagnosticSink()), 2)
    for device in ("acc0", "acc1"):
        passes = [(one.name, one.kind, one.end - one.start) for one in events if one.track == device and one.kind in "FB"]
        assert {kind: round(sum(s for _, other, s in passes if other == kind), 6) for kind in "FB"} == {"F": 0.002, "B": 0.004}
        assert all(name.startswith(kind) for name, kind, _ in passes)
    last = [one for one in events if one.track == "acc1" and one.kind in "FB"]
    assert [one.kind for one in last] == ["F", "B", "F", "B"]
    assert last[0].end == last[1].start


def test_both_forms_of_a_split_have_one_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(training_file(4)))
    run(capsys, "solve", tmp_path / "w.json", "-o", tmp_path / "o.json", "-q")
    (tmp_path / "s.json").write_text(run(capsys, "solve", tmp_path / "w.json", "--json"))
    solved = json.loads((tmp_path / "s.json").read_text())
    found = simulated(capsys, tmp_path / "s.json", "-m", "50")
    assert found == simulated(capsys, tmp_path / "o.json", "-m", "50")
    assert max(d["compute"] + d["transfers"] for d in found["devices"]) / 50 * 1e3 == pytest.approx(solved["objective"])


@pytest.mark.slow
def test_pipedreams_split_is_followed_with_its_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each node's forward and backward pass, and transfers beside them: the objective but for the averaging of weights."""
    (tmp_path / "w.txt").write_text(PROFILE)
    for options in (["-k", "3"], ["-k", "2", "--straight"]):
        (tmp_path / "s.json").write_text(run(capsys, "solve", tmp_path / "w.txt", *options, "--json"))
        objective = json.loads((tmp_path / "s.json").read_text())["objective"]
        found = simulated(capsys, tmp_path / "s.json", "-m", "60")
        assert max(device["compute"] for device in found["devices"]) / 60 * 1e3 == pytest.approx(objective, rel=1e-3)


def test_the_workload_is_found_beside_the_split_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(chain([2.0, 1.0])))
    (tmp_path / "s.json").write_text(run(capsys, "solve", tmp_path / "w.json", "--json"))
    first = simulated(capsys, tmp_path / "s.json")
    data = json.loads((tmp_path / "s.json").read_text())
    (tmp_path / "s.json").write_text(json.dumps({**data, "workload": "w.json"}))
    assert simulated(capsys, tmp_path / "s.json") == first
    (tmp_path / "w.json").rename(tmp_path / "x.json")
    assert "w.json" in run(capsys, "simulate", tmp_path / "s.json", code=3)
    assert simulated(capsys, tmp_path / "s.json", "--workload", tmp_path / "x.json") == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": None}, "E1372]: the split must have the strings 'kind'"),
        ({"machines": 3}, "E1373]: 'machines' and 'options' must be objects"),
        ({"machines": {"accelerators": 2, "towers": 3}}, "E1375]: 'machines' has towers 3"),
        ({"machines": {"accelerators": "2"}}, "'machines' has accelerators 2"),
        ({"machines": {"accelerators": 0}}, "'machines' has no device"),
        ({"machines": {"accelerators": 2, "bandwidth": 0}}, "links without a bandwidth"),
        ({"devices": [{"kind": "accelerator", "name": "x", "nodes": [0, 1], "stage": 0}]}, "'x'"),
        (
            {"devices": [{"kind": "accelerator", "name": "acc0", "nodes": [0, 1, 1], "stage": 0}]},
            "E1380]: node 1 is in the split twice",
        ),
        ({"workload": 7}, "E1372]: the split must have the strings 'kind'"),
        ({"options": {"hierarchy": "2x2"}}, "E1374]: accelerators in groups have two bandwidths"),
        ({"devices": []}, "E1382]: node 0 is on no device"),
        ({"devices": 3}, "'devices' must be a list of objects"),
        ({"kind": "speed"}, "found 'speed', expected throughput"),
    ],
)
def test_a_split_that_cannot_be_followed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], words: str
) -> None:
    (tmp_path / "w.json").write_text(json.dumps(chain([2.0, 1.0])))
    devices = [{"kind": "accelerator", "name": f"acc{i}", "nodes": [i], "stage": i} for i in (0, 1)]
    machines = {"accelerators": 2, "cpus": 0, "memory": None, "bandwidth": None}
    data = {"kind": "throughput", "workload": "w.json", "machines": machines, "options": {}, "devices": devices}
    (tmp_path / "s.json").write_text(json.dumps(data))
    run(capsys, "simulate", tmp_path / "s.json")
    (tmp_path / "s.json").write_text(json.dumps(data | change))
    assert main(["simulate", str(tmp_path / "s.json")]) in (2, 3)
    err = capsys.readouterr().err
    assert words in err
    assert str(tmp_path / "s.json") in err


def test_stages_of_a_result_list_their_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(chain([2.0, 1.0, 4.0])))
    solved = json.loads(run(capsys, "solve", tmp_path / "w.json", "--json"))
    assert solved["schema"] == "dnnc.solve/1"
    assert [stage["ops"] for stage in solved["stages"]] == [[0, 1], [2]]
    target = ("-t", "preset:cpu-2,cores=2", "-o", tmp_path / "b", "--replicas", "1")
    compiled = json.loads(run(capsys, "compile", tmp_path / "w.json", *target, "--json"))
    assert compiled["schema"] == "dnnc.compile/2"
    assert [stage["ops"] for stage in compiled["stages"]] == [["n0", "n1"], ["n2"]]
