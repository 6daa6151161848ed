"""Stages as real processes: results, order, back-pressure, values of every kind, and ways to fail. Nothing is left behind."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dnnc.build.build import Build
from dnnc.engines.onnxruntime import Pipeline, RunOptions, RuntimeFailure, run_build
from dnnc.engines.onnxruntime.transport.wiring import build_edges
from ir.core.diagnostics import ExitCode, InvalidInput, UsageError
from tests.dnnc.engines.onnxruntime.builds import make_build
from tests.dnnc.engines.onnxruntime.processes import end_starter, nothing_left

SPLIT = (
    "g (float[2,3] x) => (float[2,3] h, float[2,3] skip) { h = Neg(x)  skip = Add(x,x) }",
    "g (float[2,3] h) => (float[2,3] h2) { h2 = Exp(h) }",
    "g (float[2,3] h2, float[2,3] skip) => (float[2,3] y) { y = Add(h2, skip) }",
)
SLOW = """g (float[4] {name}) => (float[4] {out}) <int64 n = {{{count}}}> {{
    yes = Constant <value_int = 1> ()
    go = Cast <to = 9> (yes)
    {out} = Loop (n, go, {name}) <body = b (int64 i, bool c, float[4] a) => (bool d, float[4] e) {{
        d = Identity(c)  e = Sin(a) }}>
}}"""
ENDLESS = 1 << 40


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_skip_connections_and_many_microbatches(tmp_path: Path) -> None:
    build = make_build(tmp_path, *SPLIT)
    inputs = [{"x": floats(2, 3, seed=i)} for i in range(40)]
    result = run_build(build, inputs)
    for given, found in zip(inputs, result.outputs, strict=True):
        np.testing.assert_allclose(found["y"], np.exp(-given["x"]) + 2 * given["x"], rtol=1e-6)
    assert list(result.completed) == sorted(result.completed)
    computed = [(e.stage, e.microbatch) for e in result.events if e.action == "F"]
    assert sorted(computed) == [(s, m) for s in range(3) for m in range(40)]


@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_chains_of_stages(tmp_path: Path, count: int) -> None:
    texts = [f"g (float[5] v{i}) => (float[5] v{i + 1}) {{ v{i + 1} = Sin(v{i}) }}" for i in range(count)]
    expected = x = floats(7, 5)
    result = run_build(make_build(tmp_path, *texts), {"v0": x})  # one axis more: a stack of 7 microbatches
    for _ in range(count):
        expected = np.sin(expected)
    np.testing.assert_allclose(np.stack([o[f"v{count}"] for o in result.outputs]), expected, rtol=1e-6)


def test_a_pipeline_runs_again_in_the_same_processes(tmp_path: Path) -> None:
    with Pipeline(make_build(tmp_path, *SPLIT)) as pipeline:
        pids = pipeline.processes
        first = pipeline.run([{"x": floats(2, 3)}] * 3)
        second = pipeline.run([{"x": floats(2, 3, seed=1)}] * 5)
        assert pipeline.processes == pids
    assert {e.microbatch for e in first.events} == {0, 1, 2}
    assert {e.microbatch for e in second.events} == {0, 1, 2, 3, 4}
    assert second.throughput > 0
    assert second.latency > 0
    assert len(second.stage_seconds) == len(second.cpu) == 3


def test_edges_that_skip_stages_get_more_slots(tmp_path: Path) -> None:
    slots = {(e.producer, e.consumer): e.slots for e in build_edges(make_build(tmp_path, *SPLIT))}
    assert slots == {(-1, 0): 2, (0, 1): 2, (0, 2): 3, (1, 2): 2, (2, -1): 2}


def test_a_stage_without_inputs_or_outputs_takes_part(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (float[2] x) => (float[2] y) { y = Neg(x) }",
        "g () => (float[2] c) { c = Constant <value_floats = [1.0, 2.0]> () }",
        "g (float[2] c, float[2] x) => (float[2] z) { z = Add(c, x) }",
    )
    result = run_build(build, {"x": floats(3, 2)})
    for m in range(3):
        np.testing.assert_allclose(result.outputs[m]["z"], floats(3, 2)[m] + [1, 2], rtol=1e-6)
        np.testing.assert_array_equal(result.outputs[m]["y"], -floats(3, 2)[m])


def test_an_input_handed_through_is_an_output(tmp_path: Path) -> None:
    build = make_build(tmp_path, "g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }", outputs=("x", "y"))
    result = run_build(build, {"x": floats(2)})
    np.testing.assert_array_equal(result.outputs[0]["x"], floats(2))
    np.testing.assert_array_equal(result.outputs[0]["y"], -floats(2))


def test_back_pressure_holds_a_fast_stage(tmp_path: Path) -> None:
    """The first stage may be at most the slots of the edge ahead of the slow one."""
    build = make_build(tmp_path, "g (float[4] x) => (float[4] h) { h = Neg(x) }", SLOW.format(name="h", out="y", count=20000))
    result = run_build(build, [{"x": floats(4)}] * 8, RunOptions())
    start = {(e.stage, e.microbatch): e.start for e in result.events if e.action == "F"}
    end = {(e.stage, e.microbatch): e.end for e in result.events if e.action == "F"}
    for m in range(2, 8):
        assert start[0, m] >= end[1, m - 2]


def test_shapes_that_differ_per_microbatch(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (float[n, 3] x) => (float[n, 3] h, int64[1] s) { h = Neg(x)  f = Shape <end = 1> (x)  s = Identity(f) }",
        "g (float[n, 3] h, int64[1] s) => (float[m] y) { flat = Constant <value_ints = [-1]> ()  f = Reshape(h, flat)"
        " k = Cast <to = 1> (s) y = Mul(f, k) }",
    )
    inputs = [{"x": floats(n, 3, seed=n)} for n in (1, 4, 0, 9)]
    for given, found in zip(inputs, run_build(build, inputs).outputs, strict=True):
        np.testing.assert_array_equal(found["y"], (-given["x"]).reshape(-1) * len(given["x"]))


def test_values_larger_than_a_slot_are_streamed(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (float[n] x) => (float[n] h, float[n] skip) { h = Neg(x)  skip = Add(x, x) }",
        "g (float[n] h) => (float[n] h2) { h2 = Abs(h) }",
        "g (float[n] h2, float[n] skip) => (float[n] y) { y = Add(h2, skip) }",
    )
    inputs = [{"x": floats(n, seed=n)} for n in (3_000_000, 10, 2_500_000)]
    for given, found in zip(inputs, run_build(build, inputs).outputs, strict=True):
        np.testing.assert_allclose(found["y"], np.abs(given["x"]) + 2 * given["x"], rtol=1e-6)


def test_strings_and_sequences_cross(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (string[2] a, string[2] b, float[2] x) => (string[2] ab, seq(float[2]) s)"
        " { ab = StringConcat(a, b)  nx = Neg(x)  s = SequenceConstruct(x, nx) }",
        "g (string[2] ab, seq(float[2]) s) => (string[2] twice, float[4] y)"
        " { twice = StringConcat(ab, ab)  y = ConcatFromSequence <axis = 0> (s) }",
    )
    given = {"a": np.array(["ä", ""]), "b": np.array(["b", "longer text"]), "x": floats(2)}
    found = run_build(build, given).outputs[0]
    assert found["twice"].tolist() == ["äbäb", "longer textlonger text"]
    np.testing.assert_array_equal(found["y"], np.concatenate([floats(2), -floats(2)]))


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_half_precision_crosses_with_its_bits(tmp_path: Path, name: str, dtype: type) -> None:
    build = make_build(
        tmp_path,
        f"g ({name}[2,3] x) => ({name}[3,2] h) {{ h = Transpose(x) }}",
        f"g ({name}[3,2] h) => ({name}[6] y) {{ s = Constant <value_ints = [6]> ()  y = Reshape(h, s) }}",
    )
    x = floats(2, 3).astype(dtype)
    found = run_build(build, {"x": x}).outputs[0]["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, x.T.reshape(-1))


def test_a_tensor_for_two_stages_and_the_user(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (float[2] x) => (float[2] h) { h = Neg(x) }",
        "g (float[2] h) => (float[2] a) { a = Abs(h) }",
        "g (float[2] h, float[2] a) => (float[2] y) { y = Add(h, a) }",
        outputs=("h", "y"),
    )
    found = run_build(build, {"x": floats(2)}).outputs[0]
    np.testing.assert_array_equal(found["h"], -floats(2))
    np.testing.assert_array_equal(found["y"], np.abs(floats(2)) - floats(2))


# Failures


def slow_build(folder: Path) -> Build:
    return make_build(folder, "g (float[4] x) => (float[4] h) { h = Neg(x) }", SLOW.format(name="h", out="y", count=ENDLESS))


def test_a_stage_that_raises(tmp_path: Path) -> None:
    build = make_build(
        tmp_path,
        "g (int64[1] i) => (int64[1] j) { j = Abs(i) }",
        "g (int64[1] j) => (float[1] y) <float[3] t = {1.0, 2.0, 3.0}> { y = Gather(t, j) }",
    )
    inputs = [{"i": np.array([i])} for i in (0, 2, 99, 1)]
    with pytest.raises(
        RuntimeFailure, match=r"stage 1 on cpu1: error\[E0627\]: failed at microbatch 2: .*out of data bounds"
    ) as info:
        run_build(build, inputs)
    assert info.value.exit_code is ExitCode.INVALID_INPUT, "onnxruntime refused what it was given"


def test_a_stage_that_is_killed(tmp_path: Path) -> None:
    with Pipeline(slow_build(tmp_path)) as pipeline:
        victim = pipeline.processes[1]
        threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
        with pytest.raises(
            RuntimeFailure, match=r"stage 1 on cpu1: error\[E0628\]: was killed by SIGKILL while running microbatch 0"
        ):
            pipeline.run([{"x": floats(4)}] * 3)


def test_a_stage_that_is_killed_while_it_waits(tmp_path: Path) -> None:
    with Pipeline(make_build(tmp_path, *SPLIT)) as pipeline:
        pipeline.run([{"x": floats(2, 3)}])
        os.kill(pipeline.processes[1], signal.SIGKILL)
        with pytest.raises(RuntimeFailure, match=r"stage 1 on cpu1: error\[E0628\]: was killed by SIGKILL"):
            pipeline.run([{"x": floats(2, 3)}] * 3)


def test_a_stage_that_hangs(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match=r"stage 1 on cpu1: error\[E0629\]: still running microbatch 0 after 0.5 s"):
        run_build(slow_build(tmp_path), {"x": floats(4)}, RunOptions(timeout=0.5))


def test_a_stage_that_is_stopped_from_outside(tmp_path: Path) -> None:
    with Pipeline(make_build(tmp_path, *SPLIT), RunOptions(timeout=0.3)) as pipeline:
        pipeline.run([{"x": floats(2, 3)}])
        os.kill(pipeline.processes[1], signal.SIGSTOP)
        with pytest.raises(
            RuntimeFailure, match=r"no stage has gone on for 0.6 s.*stage 1 on cpu1 is waiting for microbatch 0"
        ):
            pipeline.run([{"x": floats(2, 3)}])


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    build = make_build(tmp_path, *SPLIT)
    contents = {**build.files.contents, "stages/stage2.onnx": b"not a model"}
    build = replace(build, files=replace(build.files, contents=contents))
    with pytest.raises(RuntimeFailure, match=r"stage 2 on cpu2: error\[E0626\]: could not load its model: "):
        run_build(build, {"x": floats(2, 3)})


def test_a_build_without_weights(tmp_path: Path) -> None:
    build = make_build(tmp_path, *SPLIT)
    without = replace(build, weights="none")
    with pytest.raises(InvalidInput, match="without weights"):
        run_build(without, {"x": floats(2, 3)})


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    build = make_build(tmp_path, *SPLIT)
    with pytest.raises(UsageError):
        Pipeline(build, RunOptions(threads=-1))
    with Pipeline(build) as pipeline, pytest.raises(UsageError):
        pipeline.run([])


ALONE = """
import sys
from pathlib import Path
import numpy as np
from dnnc.engines.onnxruntime import Pipeline
from tests.dnnc.engines.onnxruntime.test_pipeline import slow_build
with Pipeline(slow_build(Path(sys.argv[1]))) as pipeline:
    print(*pipeline.processes, flush=True)
    pipeline.run([{"x": np.zeros(4, np.float32)}] * 3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_starter_ends(tmp_path: Path, how: signal.Signals) -> None:
    """Whatever ends the process that started the run, the stages end too, even in the middle of a microbatch."""
    assert end_starter(["-c", textwrap.dedent(ALONE), str(tmp_path)], how) == 2
