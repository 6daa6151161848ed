"""Rows are executed: another order in the text is another order on the machine, and one that deadlocks starts no process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.engines.onnxruntime import Pipeline, RunOptions, RunResult, RuntimeFailure
from ir.core.diagnostics import InvalidInput
from ir.core.module import Action
from ir.ops.row_faults import faults
from ir.ops.rows import stream, unrolled, walk
from tests.dnnc import sealing as seal
from tests.dnnc.engines.onnxruntime.builds import make_build, scheduled
from tests.dnnc.engines.onnxruntime.test_pipeline import _nothing_left, floats  # noqa: F401  (a fixture)

MODEL = "zoo:mlp,layers=6,hidden=32,batch=4"
MACHINES = "preset:cpu-2,cores=2"

WEB = (
    "g (float[{n}] x) => (float[{n}] a, float[{n}] b, float[{n}] c) {{ a = Neg(x)  b = Add(x, x)  c = Sin(x) }}",
    "g (float[{n}] a, float[{n}] b) => (float[{n}] d, float[{n}] e) {{ d = Mul(a, b)  e = Sub(a, b) }}",
    "g (float[{n}] c, float[{n}] d) => (float[{n}] f) {{ f = Add(c, d) }}",
    "g (float[{n}] a, float[{n}] e, float[{n}] f) => (float[{n}] y) {{ g = Add(a, e)  y = Add(g, f) }}",
)
"""Four stages, of which several exchange more than one tensor, also over others."""


def web(x: np.ndarray) -> np.ndarray:
    return -x + (-x - 2 * x) + (np.sin(x) - x * 2 * x)


def done(result: RunResult, device: str) -> list[Action]:
    """What the device did, in order."""
    return [Action(e.action, e.stage, e.microbatch, e.channel) for e in result.events if e.device == device]


def on(build: Build, devices: tuple[tuple[str, ...], ...], turns: tuple[tuple[int, ...], ...] = ()) -> Build:
    """The build with its stages on other devices, in the default order. ``turns``: of each stage the number of the replica that
    has each turn, empty where each has one; empty where that holds of all."""
    stages = zip(build.stages, devices, turns or [()] * len(devices), strict=True)
    return scheduled(replace(build, stages=tuple(replace(stage, devices=names, turns=own) for stage, names, own in stages)))


def shuffled(build: Build, random: Random, tries: int) -> Build:
    """The build with rows of another order: actions change places, or work on other microbatches, as long as nothing deadlocks.
    Replicas keep equal rows."""
    for _ in range(tries):
        rows = {device: list(actions) for device, actions in build.schedule.rows}
        row = rows[random.choice(sorted(rows))]
        one, other = random.randrange(len(row)), random.randrange(len(row))
        if random.random() < 0.5:
            row[one], row[other] = row[other], row[one]
        else:
            row[one] = replace(row[one], microbatch=(row[one].microbatch or 0) + random.choice((-1, 1)))
        changed = replace(build.schedule, rows=tuple((device, tuple(actions)) for device, actions in rows.items()))
        if not faults(changed, build.flow):
            build = replace(build, schedule=changed)
    return build


@pytest.mark.parametrize(
    ("devices", "turns", "comm", "size"),
    [
        ((("p",), ("q",), ("p",), ("q",)), (), "sum", "n"),
        pytest.param((("p",), ("q",), ("q",), ("r",)), (), "duplex", "3", marks=pytest.mark.slow),
        pytest.param((("p",), ("q", "r"), ("s",), ("p",)), (), "overlap", "3", marks=pytest.mark.slow),
        ((("p",), ("q", "r"), ("s",), ("p",)), (), "overlap", "n"),
        ((("p",), ("q", "r"), ("p",), ("s", "t")), ((), (0, 1, 0), (), (1, 0, 0, 0)), "duplex", "3"),
        pytest.param(
            (("p", "u"), ("q", "r"), ("p", "u"), ("s", "t")),
            ((), (0, 1, 0, 0), (), (0, 0, 1)),
            "sum",
            "n",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two-devices", "lanes", "replicas", "replicas-of-sizeless-values", "turns", "turns-of-sizeless-values"],
)
def test_any_order_that_does_not_deadlock_gives_the_same_outputs(
    tmp_path: Path, devices: tuple[tuple[str, ...], ...], turns: tuple[tuple[int, ...], ...], comm: str, size: str
) -> None:
    build = on(make_build(tmp_path, *(text.format(n=size) for text in WEB)), devices, turns)
    build = replace(build, plan=replace(build.plan, comm=comm))
    other = shuffled(build, Random(str(devices)), 60)
    every = sum(map(len, unrolled(other.schedule, other.flow, 7).values()))
    assert sum(1 for _ in walk(other.schedule, other.flow, 7)) == every
    with Pipeline(other, RunOptions(timeout=30)) as pipeline:
        for count in (1, 6):
            inputs = [{"x": floats(3, seed=number)} for number in range(count)]
            result = pipeline.run(inputs)
            for given, made in zip(inputs, result.outputs, strict=True):
                np.testing.assert_allclose(made["y"], web(given["x"]), rtol=1e-5, atol=1e-6)
            _in_order(other, result, pipeline_base=0 if count == 1 else 1)


def _in_order(build: Build, result: RunResult, pipeline_base: int) -> None:
    """Each lane of each device did what its row says, in that order. ``pipeline_base``: microbatches of former runs."""
    count = len(result.outputs)
    for device, actions in build.schedule.rows:
        happened = done(result, device)
        for kinds in [("recv", "send", "F")] if build.plan.comm == "sum" else [("F",)]:
            wanted = [
                replace(action, microbatch=number - pipeline_base)
                for action, number in stream(actions, pipeline_base, pipeline_base + count)
                if action.kind in kinds and build.flow.works(device, action.stage, number)
            ]
            assert [action for action in happened if action.kind in kinds] == wanted


def test_large_values_of_unknown_size_stream_in_any_order(tmp_path: Path) -> None:
    """Larger than their area, to a process that is at something else: it takes them in while it waits."""
    build = on(make_build(tmp_path, *(text.format(n="n") for text in WEB)), (("p",), ("q",), ("p",), ("q",)))
    rows = dict(build.schedule.rows)
    sends = [action for action in rows["p"] if action.kind == "send"]
    others = [action for action in rows["p"] if action.kind != "send"]
    rows["p"] = (*others, *sends[::-1])  # the last stage's value waits until all others have gone
    first = [replace(action, microbatch=(action.microbatch or 0) + 1) for action in others if action.stage == 0]
    rows["p"] = (*first, *(a for a in others if a.stage == 2), *sends[::-1])
    build = replace(build, schedule=replace(build.schedule, rows=tuple(rows.items()), slots=3))
    assert faults(build.schedule, build.flow) == []
    inputs = [{"x": floats(1_500_000 + number, seed=number)} for number in range(4)]
    with Pipeline(build) as pipeline:
        result = pipeline.run(inputs)
    for given, made in zip(inputs, result.outputs, strict=True):
        np.testing.assert_allclose(made["y"], web(given["x"]), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stages, of which the first and the last are on one device."""
    folder = tmp_path_factory.mktemp("rows")
    assert main(["compile", MODEL, "-t", "preset:cpu-3", "--stages", "3", "--plan-only", "-o", str(folder / "plan"), "-q"]) == 0
    plan = json.loads((folder / "plan" / "plan.json").read_text())
    for stage, device in zip(plan["stages"], ("cpu0", "cpu1", "cpu0"), strict=True):
        stage["device"] = device
    (folder / "plan.json").write_text(json.dumps(plan))
    arguments = ["compile", MODEL, "-t", MACHINES, "--plan", str(folder / "plan.json"), "-o", str(folder / "build"), "-q"]
    assert main(arguments) == 0
    return folder / "build"


def edited(compiled: Path, folder: Path, *changes: tuple[str, str]) -> list[str]:
    """The command that makes a build of plan.ir with other text; each old text stands there once."""
    text = (compiled / "plan.ir").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "edited.ir").write_text(text)
    return ["compile", MODEL, "-t", MACHINES, "--plan", str(folder / "edited.ir"), "-o", str(folder / "build"), "-q"]


ROW0 = "row cpu0 [F(0, 2), send(0, 2, 0), recv(2, 0, 1), F(2, 0)]"
ROW1 = "row cpu1 [recv(1, 1, 0), F(1, 1), send(1, 1, 1)]"


def test_an_edited_order_is_what_the_machine_does(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages of one device change places, and the other device sends behind its next compute."""
    new = (
        (ROW0, "row cpu0 [recv(2, 0, 1), F(2, 0), F(0, 3), send(0, 2, 0)]"),
        (ROW1, "row cpu1 [recv(1, 1, 0), F(1, 1), send(1, 0, 1)]"),
        ("    periodic = true", "    periodic = true\n    slots = 4"),
    )
    assert main(edited(compiled, tmp_path, *new)) == 0
    build = tmp_path / "build"
    assert all(text in (build / "plan.ir").read_text() for text in (new[0][1], new[1][1], "slots = 4"))
    assert main(["run", str(build), "-m", "4", "--trace", "-q"]) == 0
    trace = json.loads((build / "trace.json").read_text())["traceEvents"]
    measured = next(e["pid"] for e in trace if e["name"] == "process_name" and e["args"]["name"] == "measured")
    bars = sorted((e for e in trace if e["ph"] == "X" and e["pid"] == measured), key=lambda e: e["ts"])
    tracks = list(dict.fromkeys(bar["tid"] for bar in bars))
    rows = [[bar["name"].rsplit(" ", bar["name"].count(" ") - 1)[0] for bar in bars if bar["tid"] == tid] for tid in tracks]
    assert rows[0] == [
        *("F 0.0", "F 0.1", "send 0.0", "F 0.2", "send 0.1"),
        *("recv 2.0", "F 2.0", "F 0.3", "send 0.2", "recv 2.1", "F 2.1", "send 0.3", "recv 2.2", "F 2.2", "recv 2.3", "F 2.3"),
    ]
    assert rows[1] == [
        *("recv 1.0", "F 1.0", "recv 1.1", "F 1.1", "send 1.0", "recv 1.2", "F 1.2", "send 1.1"),
        *("recv 1.3", "F 1.3", "send 1.2", "send 1.3"),
    ]
    assert main(["check", str(build)]) == 0
    assert "passed" in capsys.readouterr().out
    assert main(["simulate", str(build), "--json"]) == 0


def test_rows_of_a_plan_that_nobody_edited_are_kept(compiled: Path, tmp_path: Path) -> None:
    assert main(edited(compiled, tmp_path)) == 0
    one, other = Build.open(compiled), Build.open(tmp_path / "build")
    assert one.schedule == other.schedule
    texts = [(folder / "plan.ir").read_text() for folder in (compiled, tmp_path / "build")]
    one_text, other_text = (text[text.index("  schedule ") :].partition("  plan ")[0] for text in texts)
    assert one_text == other_text


def test_a_deadlock_is_refused_before_anything_starts(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = (ROW0, "row cpu0 [recv(2, 0, 1), F(2, 0), F(0, 0), send(0, 0, 0)]")
    assert main(edited(compiled, tmp_path, row)) == 3
    said = capsys.readouterr().err
    assert "edited.ir" in said
    circle = "the rows wait for each other in a circle: on cpu0, send(0, 0, 0) stands behind recv(2, 0, 1), which waits for"
    assert f"INV22: in @schedule: {circle} send(1, 1, 1); " in said
    assert "on cpu1, send(1, 1, 1) stands behind recv(1, 1, 0), which waits for send(0, 0, 0)" in said
    assert not (tmp_path / "build").exists()


def test_rows_of_other_stages_are_told_how_to_be_made_anew(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The programs of the stages are out of the text, so the rows are held against those that the plan leads to."""
    text = (compiled / "plan.ir").read_text()
    start, end = text.index("  stage @stage0"), text.index("  schedule ")
    command = edited(compiled, tmp_path, (text[start:end], ""), (ROW1, "row cpu1 [recv(1, 1, 0), F(1, 1)]"))
    assert main(command) == 3
    said = capsys.readouterr().err
    assert "the schedule does not fit the plan's stages: the row of 'cpu1' lacks send of stage 1 for channel 1" in said
    assert "delete the schedule from the text" in said


def test_a_build_whose_rows_cannot_be_followed_is_not_opened(tmp_path: Path, compiled: Path) -> None:
    command = edited(compiled, tmp_path)
    assert main(command) == 0
    folder = tmp_path / "build"
    row = ROW1
    for changed, message in (
        ("row cpu1 [F(1, 1), recv(1, 1, 0), send(1, 1, 1)]", "wait for each other in a circle: on cpu1, recv"),
        ("row cpu1 [recv(1, 1, 0), F(1, 1)]", "the row of 'cpu1' lacks send of stage 1 for channel 1"),
        ("", "'cpu1'"),
        ("row cpu1 [F(1, one)]", "found 'F"),
    ):
        seal.edit(folder, (row, changed or "// none"))
        row = changed or "// none"
        with pytest.raises(InvalidInput, match=message):
            Build.open(folder)


def test_slots_of_the_schedule_are_those_of_the_machine(tmp_path: Path) -> None:
    """A maker that runs three microbatches ahead needs as many slots as it has."""
    chain = ("g (float[2] x) => (float[2] h) { h = Neg(x) }", "g (float[2] h) => (float[2] y) { y = Neg(h) }")
    build = make_build(tmp_path, *chain)
    ahead = (Action("F", 0, 3), Action("send", 0, 1, 0)), (Action("recv", 1, 0, 0), Action("F", 1, 0))
    schedule = replace(build.schedule, rows=(("cpu0", ahead[0]), ("cpu1", ahead[1])), slots=2)
    assert faults(schedule, replace(build.flow, slots=2))
    build = replace(build, schedule=replace(schedule, slots=3))
    with Pipeline(build) as pipeline:
        result = pipeline.run([{"x": floats(2, seed=number)} for number in range(5)])
    assert done(result, "cpu0") == unrolled(build.schedule, build.flow, 5)["cpu0"]
    np.testing.assert_array_equal(result.outputs[4]["y"], floats(2, seed=4))


def many(count: int) -> tuple[str, str]:
    """Two stages, between which so many tensors cross."""
    names = [f"c{number}" for number in range(count)]
    typed, made = ", ".join(f"float[2] {name}" for name in names), " ".join(f"{name} = Neg(x)" for name in names)
    return f"g (float[2] x) => ({typed}) {{ {made} }}", f"g ({typed}) => (float[2] y) {{ y = Sum({', '.join(names)}) }}"


def test_a_stage_far_ahead_of_another_on_its_device_fills_no_pipe(tmp_path: Path) -> None:
    """Nobody else reads what it sends: 1,500 microbatches of three tensors, each sent alone."""
    build = on(make_build(tmp_path, *many(3)), (("p",), ("p",)))
    sent = [action for c in range(3) for action in (Action("send", 0, 1500, c), Action("recv", 1, 0, c))]
    row = (Action("F", 0, 1500), *sent, Action("F", 1, 0))
    build = replace(build, schedule=replace(build.schedule, rows=(("p", row),), slots=1501))
    assert faults(build.schedule, build.flow) == []
    with Pipeline(build, RunOptions(timeout=10)) as pipeline:
        result = pipeline.run([{"x": floats(2, seed=number % 7)} for number in range(1510)])
    np.testing.assert_allclose(result.outputs[1509]["y"], -3 * floats(2, seed=1509 % 7), rtol=1e-6)


def test_more_slots_than_the_system_can_give_are_refused(tmp_path: Path) -> None:
    build = make_build(tmp_path, *many(200))
    build = replace(build, schedule=replace(build.schedule, slots=1 << 20))
    with pytest.raises(InvalidInput, match="which the system does not give"), Pipeline(build):
        pass


def test_a_device_with_several_stages_names_the_one_that_fails(tmp_path: Path) -> None:
    texts = (
        "g (int64[1] i) => (int64[1] j) { j = Abs(i) }",
        "g (int64[1] j) => (int64[1] k) { k = Abs(j) }",
        "g (int64[1] k) => (float[1] y) <float[3] t = {1.0, 2.0, 3.0}> { y = Gather(t, k) }",
    )
    build = on(make_build(tmp_path, *texts), (("p",), ("q",), ("p",)))
    with Pipeline(build) as pipeline:
        assert len(pipeline.processes) == 2
        with pytest.raises(RuntimeFailure, match=r"stage 2 on p: error\[E0627\]: failed at microbatch 1"):
            pipeline.run([{"i": np.array([number])} for number in (0, 99, 1)])
