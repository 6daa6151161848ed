"""Replicated stages as real processes: each microbatch on its turn's replica, results in order, also from run to run. Replicas
have one turn each, or, as devices of unlike speed, as many as the plan says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dnnc.build.build import ANNOTATED, Build
from dnnc.build.members import Local, MemberProgram, Part, Segment
from dnnc.cli import main
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, RunOptions, RuntimeFailure, run_build
from dnnc.engines.onnxruntime.starter.stream import Stream
from dnnc.engines.onnxruntime.transport.codec import from_user
from dnnc.engines.onnxruntime.transport.edges import FEEDER
from dnnc.engines.onnxruntime.transport.turns import Turns
from dnnc.engines.onnxruntime.transport.wiring import build_edges, links, stage_places
from tests.dnnc.engines.onnxruntime.building import session_of
from tests.dnnc.engines.onnxruntime.builds import make_build, scheduled
from tests.dnnc.engines.onnxruntime.test_pipeline import SPLIT, _nothing_left, floats  # noqa: F401  (a fixture)
from tests.dnnc.engines.onnxruntime.test_stream import LOOKUP, lookup, raw

ALONE = ("g (float[2,3] x) => (float[2,3] y) { h = Neg(x)  e = Exp(h)  s = Add(x,x)  y = Add(e, s) }",)
SIZELESS = (
    "g (float[n] x) => (float[n] h, float[n] skip) { h = Neg(x)  skip = Add(x,x) }",
    "g (float[n] h) => (float[n] h2) { h2 = Exp(h) }",
    "g (float[n] h2, float[n] skip) => (float[n] y) { y = Add(h2, skip) }",
)
WAIT = 30
"""Seconds after which what should come is taken for stuck."""

Replicas: TypeAlias = int | tuple[int, ...]
"""Of a stage, how many replicas take turns, or the number of the replica that has each turn."""


def replicated(build: Build, replicas: Sequence[Replicas]) -> Build:
    """The build with so many devices per stage."""
    stages = []
    for stage, of_stage in zip(build.stages, replicas, strict=True):
        turns = () if isinstance(of_stage, int) else of_stage
        devices = tuple(f"{stage.device}.{i}" for i in range(1 + max(turns) if turns else of_stage))  # type: ignore[arg-type]
        stages.append(replace(stage, devices=devices, turns=turns))
    return scheduled(replace(build, stages=tuple(stages)))


def taker(replicas: Replicas, microbatch: int) -> int:
    """The number of the replica that works on a microbatch."""
    return microbatch % replicas if isinstance(replicas, int) else replicas[microbatch % len(replicas)]


def on_mesh(build: Build, index: int, count: int) -> Build:
    """The build with a stage on a mesh of so many devices, each of which computes all; the first one sends and delivers."""
    stage = build.stages[index]

    def whole(name: str, shape: Sequence[int | str | None] | None, number: int, channel: int = -1) -> Part:
        box = tuple((0, dim) for dim in shape or () if isinstance(dim, int))
        return Part(name, name, box, delivers=not number, channel=channel)

    devices = tuple(f"{stage.device}.{number}" for number in range(count))
    members = tuple(
        MemberProgram(
            device,
            tuple(port.name for port in stage.inputs),
            (
                Segment(
                    0,
                    stage.model or "",
                    (*(port.name for port in stage.inputs), *(channel.tensor for channel in stage.receives)),
                    tuple(
                        Local(name, "float32", tuple(dim for dim in shape or () if isinstance(dim, int)))
                        for name, shape in {
                            **{port.name: port.shape for port in stage.outputs},
                            **{channel.tensor: channel.shape for channel in stage.sends},
                        }.items()
                    ),
                ),
            ),
            tuple(whole(channel.tensor, channel.shape, 0, channel.id) for channel in stage.receives),
            tuple(whole(channel.tensor, channel.shape, number, channel.id) for channel in stage.sends),
            tuple(whole(port.name, port.shape, number) for port in stage.outputs),
        )
        for number, device in enumerate(devices)
    )
    stages = list(build.stages)
    stages[index] = replace(stage, devices=devices, members=members, axes=(("x", count),), model=None, turns=())
    return scheduled(replace(build, stages=tuple(stages)))


@pytest.mark.parametrize(
    ("stages", "replicas"),
    [
        pytest.param(SPLIT, (1, 3, 2), marks=pytest.mark.slow),
        (SIZELESS, (2, 1, 3)),
        (ALONE, ((0, 1, 0, 0, 2),)),
        (SPLIT, (1, (0, 1, 0), (0, 0, 1, 0))),
        (SIZELESS, (2, (0, 0, 1), 1)),
        pytest.param(SPLIT, ((0, 1, 1), 2, (2, 0, 0, 1, 0)), marks=pytest.mark.slow),
        pytest.param(SIZELESS, ((0, 1, 0), (0, 0, 1, 0), (0,)), marks=pytest.mark.slow),
    ],
    ids=[
        "fixed, 1-3-2",
        "sizeless, 2-1-3",
        "one stage, 5 turns",
        "fixed, 3 and 4 turns",
        "sizeless, 2 replicas and 3 turns",
        "fixed, 3 turns, 2 replicas, 5 turns",
        "sizeless, 3, 4 and 1 turns",
    ],
)
def test_microbatches_take_turns(tmp_path: Path, stages: tuple[str, ...], replicas: tuple[Replicas, ...]) -> None:
    build = replicated(make_build(tmp_path, *stages), replicas)
    shape = (5,) if stages is SIZELESS else (2, 3)
    with Pipeline(build, RunOptions(timeout=WAIT)) as pipeline:
        assert len(pipeline.processes) == sum(one if isinstance(one, int) else 1 + max(one) for one in replicas)
        begun = 0
        for count in (7, 1, 4):
            inputs = [{"x": floats(*shape, seed=begun + i)} for i in range(count)]
            result = pipeline.run(inputs)
            for fed, found in zip(inputs, result.outputs, strict=True):
                np.testing.assert_allclose(found["y"], np.exp(-fed["x"]) + 2 * fed["x"], rtol=1e-6)
            assert {e.microbatch for e in result.events} == set(range(count))
            for e in result.events:
                assert e.device == f"cpu{e.stage}.{taker(replicas[e.stage], begun + e.microbatch)}"
            ran = sorted((e.stage, e.microbatch) for e in result.events if e.action == "F")
            assert ran == [(s, m) for s in range(len(replicas)) for m in range(count)]
            assert result.together == max(one if isinstance(one, int) else len(one) for one in replicas)
            assert len(result.cpu) == len(result.stage_seconds) == len(replicas)
            assert all(done > 0 for done in result.completed)
            begun += count


@pytest.mark.slow
def test_a_mesh_stands_between_stages_with_turns(tmp_path: Path) -> None:
    """Its members work on every microbatch, which replicas on both sides take in turn."""
    replicas: tuple[Replicas, ...] = ((0, 1, 0), 1, (0, 1, 1, 0, 0))
    build = on_mesh(replicated(make_build(tmp_path, *SPLIT), replicas), 1, 2)
    inputs = [{"x": floats(2, 3, seed=number)} for number in range(17)]
    with Pipeline(build, RunOptions(timeout=WAIT)) as pipeline:
        result = pipeline.run(inputs)
    for fed, found in zip(inputs, result.outputs, strict=True):
        np.testing.assert_allclose(found["y"], np.exp(-fed["x"]) + 2 * fed["x"], rtol=1e-6)
    ran = sorted((e.stage, e.microbatch, e.device) for e in result.events if e.action == "F" and e.stage != 1)
    assert ran == [(s, m, f"cpu{s}.{taker(replicas[s], m)}") for s in (0, 2) for m in range(17)]


@pytest.mark.slow
def test_a_large_message_of_unknown_size_finds_its_replica(tmp_path: Path) -> None:
    """Larger than a slot's area, so it streams through several slots of one edge while other edges wait."""
    for replicas in ((1, 2, 1), (1, (0, 1, 0), 1)):
        build = replicated(make_build(tmp_path, *SIZELESS), replicas)
        inputs = [{"x": floats(1_500_000 + i, seed=i)} for i in range(5)]
        with Pipeline(build, RunOptions(timeout=WAIT)) as pipeline:
            result = pipeline.run(inputs)
        for fed, found in zip(inputs, result.outputs, strict=True):
            np.testing.assert_allclose(found["y"], np.exp(-fed["x"]) + 2 * fed["x"], rtol=1e-6)


def test_a_replica_that_fails_is_named(tmp_path: Path) -> None:
    """Microbatch 1 is the second replica's, and its index is out of range."""
    stages = (
        "g (int64[1] i) => (int64[1] j) { j = Neg(i) }",
        "g (int64[1] j) => (float[1] y) { t = Constant <value_floats = [1.0, 2.0]> ()  y = Gather(t, j) }",
    )
    build = replicated(make_build(tmp_path, *stages), (1, 2))
    with Pipeline(build) as pipeline, pytest.raises(RuntimeFailure, match="failed at microbatch 1") as raised:
        pipeline.run([{"i": np.array([i], np.int64)} for i in (0, 7, 1)])
    assert raised.value.diagnostics[0].where == "stage 1 on cpu1.1"


def test_a_stream_asks_the_replica_whose_turn_it_is(tmp_path: Path) -> None:
    """Every other microbatch fails, and its error names the replica; there are more than are in flight at a time."""
    turns = (0, 1, 0, 0, 2)
    with Stream(replicated(make_build(tmp_path, LOOKUP), [turns])) as stream:
        assert stream.in_flight == 4 * 5, "as five of the slowest, which has one turn of five"
        futures = [stream.submit(raw(lookup(77 if number % 2 else number % 4))) for number in range(33)]
        for number, future in enumerate(futures):
            assert future is not None
            if number % 2:
                with pytest.raises(RuntimeFailure, match="out of data bounds") as raised:
                    future.result(WAIT)
                assert raised.value.diagnostics[0].where == f"stage 0 on cpu0.{turns[number % 5]}"
            else:
                np.testing.assert_array_equal(future.result(WAIT)["y"], [number % 4 + 1])


def test_a_replica_with_many_turns_is_handed_as_many_rounds_as_the_others(tmp_path: Path) -> None:
    """While the quick one stands still, the slots of all its turns are filled: 0, 2, 3, 4, 6 and 7. Microbatch 5 of the other
    one is behind some of these, and 9 behind the next, which waits as ``Flow.window`` says."""
    texts = ("g (float[2] x) => (float[2] h) { h = Neg(x) }", "g (float[2] h) => (float[2] y) { y = Neg(h) }")
    build = replicated(make_build(tmp_path, *texts), (1, (0, 1, 0, 0)))
    assert build.flow.window(0) == 8
    with Stream(build) as stream:
        quick = stream.processes[1]
        os.kill(quick, signal.SIGSTOP)
        try:
            futures = [stream.submit({"x": from_user(np.full(2, number, np.float32))}) for number in range(12)]
            ready = [future for future in futures if future is not None]
            for number in (1, 5):
                np.testing.assert_array_equal(ready[number].result(WAIT)["y"], [number] * 2)
            assert not any(future.done() for number, future in enumerate(ready) if number not in (1, 5))
        finally:
            os.kill(quick, signal.SIGCONT)
        assert [future.result(WAIT)["y"][0] for future in ready] == list(range(12))


UNLIKE = """
version = 1
types.quick = {kind = "cpu", rates = {f32 = "9 GFLOP/s"}, memory_bandwidth = "40 GB/s", memory = "1 GiB"}
types.slow = {kind = "cpu", rates = {f32 = "3 GFLOP/s"}, memory_bandwidth = "20 GB/s", memory = "1 GiB"}
hosts = [{name = "here"}]
devices = [{name = "q{0..2}", type = "quick", host = "here"}, {name = "s{0..1}", type = "slow", host = "here"}]
links = [{ends = ["here", "q{0..2}", "s{0..1}"], bandwidth = "9 GB/s"}]
"""
MODEL = ["compile", "zoo:mlp,layers=4,hidden=32,batch=4", "-q", "-t"]


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of two stages whose replicas are of unlike types and have unlike turns."""
    folder = tmp_path_factory.mktemp("unlike")
    (folder / "machines.toml").write_text(UNLIKE)
    arguments = [*MODEL, str(folder / "machines.toml")]
    asked = ["--stages", "2", "--mesh", "none", "--replicas", "1", "--plan-only"]
    assert main([*arguments, *asked, "-o", str(folder / "plan")]) == 0
    plan = json.loads((folder / "plan" / "plan.json").read_text())
    given = (["q0", "s0", "q1"], [0, 1, 0, 0, 2]), (["q2", "s1"], [0, 1, 0])
    for stage, (devices, turns) in zip(plan["stages"], given, strict=True):
        stage |= {"device": devices, "serves": turns}
    (folder / "plan.json").write_text(json.dumps(plan))
    assert main([*arguments, "--plan", str(folder / "plan.json"), "-o", str(folder / "build")]) == 0
    return folder / "build"


@pytest.mark.slow
def test_a_compiled_build_of_unlike_replicas_computes_what_its_model_does(
    unlike: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = Build.open(unlike)
    assert [(stage.devices, stage.turns) for stage in build.stages] == [
        (("q0", "s0", "q1"), (0, 1, 0, 0, 2)),
        (("q2", "s1"), (0, 1, 0)),
    ]
    inputs = [random_inputs(build, seed=seed) for seed in range(17)]
    whole = session_of(str(unlike / ANNOTATED))
    expected = [whole.run(["y"], dict(fed))[0] for fed in inputs]
    result = run_build(build, inputs, RunOptions(timeout=WAIT))
    for found, wanted in zip(result.outputs, expected, strict=True):
        np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-6)
    ran = sorted((e.stage, e.microbatch, e.device) for e in result.events if e.action == "F")
    assert ran == [(s, m, stage.devices[taker(stage.turns, m)]) for s, stage in enumerate(build.stages) for m in range(17)]
    with Stream(build) as stream:
        futures = [stream.submit(raw(fed)) for fed in inputs]
        for future, wanted in zip(futures, expected, strict=True):
            assert future is not None
            np.testing.assert_allclose(future.result(WAIT)["y"], wanted, rtol=1e-5, atol=1e-6)
    np.savez(tmp_path / "inputs.npz", **{name: np.stack([fed[name] for fed in inputs]) for name in inputs[0]})
    files = ["--inputs", str(tmp_path / "inputs.npz"), "--outputs", str(tmp_path / "outputs.npz")]
    assert main(["run", str(unlike), *files, "-m", "17"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npz")["y"], np.stack(expected), rtol=1e-5, atol=1e-6)
    assert main(["check", str(unlike)]) == 0
    assert "passed" in capsys.readouterr().out


# Who works on what


@given(st.sets(st.integers(0, 6), min_size=1), st.integers(0, 40), st.integers(0, 40))
def test_turns_are_what_leaves_their_remainders(numbers: set[int], first: int, until: int) -> None:
    turns = Turns(tuple(sorted(numbers)), 7)
    slow = [number for number in range(first, until) if number % 7 in numbers]
    assert list(turns.within(first, until)) == slow == [number for number in range(first, until) if number in turns]


@st.composite
def replicas_of_a_stage(draw: st.DrawFn) -> Replicas:
    """Replicas with one turn each, or up to three that have each one turn at least, in any order."""
    count = draw(st.integers(1, 3))
    if draw(st.booleans()):
        return count
    more = draw(st.lists(st.integers(0, count - 1), max_size=3))
    return tuple(draw(st.permutations([*range(count), *more])))


@given(st.tuples(*[replicas_of_a_stage()] * 3), st.sampled_from([None, 0, 1, 2]), st.sampled_from(["sum", "duplex"]))
@settings(deadline=None)
def test_each_microbatch_crosses_each_edge_once(replicas: tuple[Replicas, ...], mesh: int | None, comm: str) -> None:
    """It goes to each place that works on it, from one that does; the slots of all links are filled again as rows say. Edges
    pass by a stage, and one stage may be a mesh."""
    build = replicated(make_build(Path(), *SPLIT), replicas)
    build = replace(build if mesh is None else on_mesh(build, mesh, 2), plan=replace(build.plan, comm=comm))
    places, wires, flow = stage_places(build), links(build), build.flow
    windows = {(channel.source, channel.target): flow.window(number) for number, channel in flow.channels.items()}
    event(f"mesh {mesh}, turns {sum(not isinstance(one, int) for one in replicas)}")

    def working(stage: int, microbatch: int) -> list[int]:
        """Numbers of the places that work on a microbatch of a stage."""
        return (
            [FEEDER]
            if stage == FEEDER
            else [
                number
                for number, place in enumerate(places)
                if place.stage == stage and (mesh == stage or place.position == taker(replicas[stage], microbatch))
            ]
        )

    rounds = [1 if mesh == s else one if isinstance(one, int) else len(one) for s, one in enumerate(replicas)]
    for number, place in enumerate(places):
        assert [m for m in range(60) if m in place.turns] == [m for m in range(60) if number in working(place.stage, m)]
    for edge in build_edges(build):
        own = [wire for wire in wires if (wire.sent.producer, wire.sent.consumer) == (edge.producer, edge.consumer)]
        together = lcm(*(rounds[end] for end in (edge.producer, edge.consumer) if end != FEEDER))
        for microbatch in range(2 * together):
            across = [wire for wire in own if microbatch in wire.turns and wire.sent.values]
            assert sorted(wire.target for wire in across) == working(edge.consumer, microbatch)
            assert {wire.source for wire in across} <= set(working(edge.producer, microbatch))
        for wire in own:
            slots = wire.sent.slots
            if FEEDER in (edge.producer, edge.consumer):
                assert slots == wire.received.slots == edge.slots
                continue
            assert slots == wire.received.slots == edge.slots * sum(m in wire.turns for m in range(together))
            window = windows[edge.producer, edge.consumer]
            numbers = list(wire.turns.within(0, 2 * window))
            assert all(later == sooner + window for sooner, later in zip(numbers, numbers[slots:], strict=False))
