"""Stages on meshes as real processes: a process per member; results, ways to fail, and nothing left behind."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.engines.onnxruntime import Pipeline, RunOptions, RuntimeFailure, run_build
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.onnxruntime.mesh_builds import expected, graph, pair
from tests.dnnc.engines.onnxruntime.processes import end_starter, nothing_left
from tests.dnnc.sealing import edit, refresh

ENDLESS = 1 << 40


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def inputs(count: int, rows: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(i).standard_normal((rows, 6)).astype(np.float32)} for i in range(count)]


@pytest.mark.parametrize(("members", "rows"), [(2, 4), (4, 4), (2, 2000)])
def test_members_together_compute_what_the_model_does(tmp_path: Path, members: int, rows: int) -> None:
    """Small and shared all-reduces; many microbatches in two runs of the same processes."""
    build = Build.open(pair(tmp_path, members, rows))
    given = inputs(9, rows)
    with Pipeline(build) as pipeline:
        assert len(pipeline.processes) == members
        runs = [pipeline.run(given), pipeline.run(given[:2])]
    for result in runs:
        for one, found in zip(given, result.outputs, strict=False):
            np.testing.assert_allclose(found["y"], expected(build, one)["y"], rtol=2e-5, atol=2e-5)
    events = [(e.device, e.microbatch, e.action, e.title) for e in runs[1].events if e.action != "send"]
    assert sorted(events) == sorted(
        (f"cpu{member}", m, action, title)
        for member in range(members)
        for m in range(2)
        for action, title in (("F", "segment 0"), ("collective", "all_reduce p"), ("F", "segment 1"))
    )
    assert len(runs[0].stage_seconds) == 1 == len(runs[0].collective_seconds)


def test_values_of_unknown_shape_cross_segments(tmp_path: Path) -> None:
    """The slow way: what a segment makes for the next has no shape before it is there."""
    folder = pair(tmp_path, 2)
    for number in range(2):
        path = folder / "stages" / f"stage0.member{number}.segment0.onnx"
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_model(str(path)).graph.initializer}
        first = (
            "g (float[4,6] x) => (float[4,5] p, int64[2,n] q) { q = NonZero(x) h = MatMul(x, A) r = Relu(h) p = MatMul(r, B) }"
        )
        onnx.save_model(graph(first, weights), str(path))
        second = (
            "g (float[4,5] s, int64[2,n] q) => (float[4,5] y) { z = Size(q) w = Sub(z, z) v = CastLike(w, s) n = Neg(s) "
            "y = Add(n, v) }"
        )
        onnx.save_model(graph(second), str(path.with_name(f"stage0.member{number}.segment1.onnx")))

    refresh(folder, *(f"stages/stage0.member{number}.segment{level}.onnx" for number in range(2) for level in range(2)))
    made = "    %p = dnnc.segment(%x) {level = 0} : tensor<4x5xf32>"
    both = made.replace("%p", "%p, %q") + ", tensor<2 x n x i64>"
    build = Build.open(edit(folder, (made, both), ("dnnc.segment(%s)", "dnnc.segment(%s, %q)")))
    given = inputs(5)
    for one, found in zip(given, run_build(build, given).outputs, strict=True):
        np.testing.assert_allclose(found["y"], expected(build, one)["y"], rtol=2e-5, atol=2e-5)


def test_more_shared_memory_than_there_is(tmp_path: Path) -> None:
    """A plan may ask for any: refused with the number, and nothing is left."""
    folder = edit(pair(tmp_path, 2), ("tensor<4x", f"tensor<{1 << 47}x"))
    with pytest.raises(InvalidInput) as caught, Pipeline(Build.open(folder)):
        pass
    assert "bytes of shared memory, which the system does not give" in str(caught.value)
    assert caught.value.diagnostics[0].where == str(folder)


@pytest.mark.slow
def test_every_run_gives_the_same_bits(tmp_path: Path) -> None:
    build = Build.open(pair(tmp_path, 4, 2000))
    found = [run_build(build, inputs(1, 2000)).outputs[0]["y"].tobytes() for _ in range(2)]
    assert found[0] == found[1]


def test_a_killed_member_is_named(tmp_path: Path) -> None:
    """The others, who wait for it in the collective, are not blamed."""
    build = Build.open(pair(tmp_path, 4, slow=2_000_000))
    with Pipeline(build) as pipeline:
        victim = pipeline.processes[2]
        threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
        with pytest.raises(RuntimeFailure) as caught:
            pipeline.run(inputs(1000))
    found = caught.value.diagnostics[0]
    assert found.where == "stage 0 member 2 on cpu2"
    assert "was killed by SIGKILL while" in found.message


def test_a_member_that_raises_is_named(tmp_path: Path) -> None:
    folder = pair(tmp_path, 2)
    bad = "g (float[4,5] s) => (float[4,5] y) { n = Constant <value_ints = [3]> () q = Reshape(s, n) y = Add(q, s) }"
    path = folder / "stages" / "stage0.member1.segment1.onnx"
    path.write_bytes(graph(bad).SerializeToString())
    refresh(folder, "stages/stage0.member1.segment1.onnx")
    with pytest.raises(RuntimeFailure) as caught:
        run_build(Build.open(folder), inputs(1))
    assert caught.value.diagnostics[0].where == "stage 0 member 1 on cpu1"


def test_a_member_that_hangs_is_named(tmp_path: Path) -> None:
    """Its peers wait in the collective for as long, and have no fault."""
    folder = pair(tmp_path, 2)
    loop = (
        f"g (float[4,6] x) => (float[4,5] p) {{ n = Constant <value_int = {ENDLESS}> () yes = Constant <value_int = 1> () "
        "go = Cast <to = 9> (yes) x2 = Loop (n, go, x) <body = b (int64 i, bool c, float[4,6] v) => (bool d, float[4,6] e) "
        "{ d = Identity(c) e = Sin(v) }> w = ConstantOfShape <value = float[1] {1}> (s) s = Constant <value_ints = [6, 5]> () "
        "p = MatMul(x2, w) }"
    ).replace("w = ConstantOfShape <value = float[1] {1}> (s) s = Constant <value_ints = [6, 5]> ()", "s = Constant "
    "<value_ints = [6, 5]> () w = ConstantOfShape <value = float[1] {1}> (s)")  # fmt: skip
    (folder / "stages" / "stage0.member1.segment0.onnx").write_bytes(graph(loop).SerializeToString())
    refresh(folder, "stages/stage0.member1.segment0.onnx")
    with pytest.raises(RuntimeFailure) as caught:
        run_build(Build.open(folder), inputs(1), RunOptions(timeout=1.0))
    assert caught.value.diagnostics[0].where == "stage 0 member 1 on cpu1"
    assert "still running microbatch 0 after 1 s" in caught.value.diagnostics[0].message


@pytest.mark.slow
def test_interrupted_and_killed_starters_leave_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the starter, and SIGKILL of it, in the middle of a run."""
    folder = pair(tmp_path, 4, slow=2_000_000)
    script = textwrap.dedent(
        f"""
        import numpy as np
        from dnnc.engines.onnxruntime import Pipeline
        from dnnc.build.build import Build
        with Pipeline(Build.open({str(folder)!r})) as pipeline:
            print(*pipeline.processes, flush=True)
            while True:
                pipeline.run([{{"x": np.ones((4, 6), np.float32)}}] * 3)
        """
    )
    for number in (signal.SIGINT, signal.SIGKILL):
        assert end_starter(["-c", script], number) == 4


PROGRAM = "of @stage0 on [cpu0, cpu1] (%x : tensor<4x6xf32>) -> (%y : tensor<4x5xf32>)"
MADE = "    %p = dnnc.segment(%x) {level = 0} : tensor<4x5xf32>\n"
SUM = '    %s = comm.all_reduce(%p) {axis = "tensor", channel = 0, mesh = @mesh, reduction = "sum"} : tensor<4x5xf32>\n'
TWICE = SUM.replace("%s", "%r") + SUM.replace("%p", "%r").replace("= 0", "= 1")
HOSTILE: list[tuple[str, tuple[str, str], str]] = [
    ("no program of a member", (PROGRAM, PROGRAM.replace("cpu0, cpu1", "cpu0")), "no program of @stage0 is for cpu1"),
    ("a mesh of nothing", ("[tensor = 2]", "[]"), "INV15"),
    ("a mesh too large", ("[tensor = 2]", "[tensor = 3]"), "INV15"),
    ("another device", (PROGRAM, PROGRAM.replace("cpu1", "gpu9")), "'gpu9' is not a device of @stage0"),
    ("no segment file", ("{level = 1}", "{level = 7}"), "lists no file 'stages/stage0.member0.segment7.onnx'"),
    ("segments out of order", ("{level = 0}", "{level = 2}"), "segments have levels [2, 1]"),
    ("a missing segment", (MADE, ""), "operand %p is used but never assigned"),
    ("a segment that reads nothing", ("dnnc.segment(%s)", "dnnc.segment(%q)"), "operand %q is used but never assigned"),
    ("a segment that is read too late", (SUM, TWICE), "segment 1 reads 's', which nothing before it makes"),
    (
        "an unknown input",
        (PROGRAM + " {\n" + MADE, (PROGRAM + " {\n" + MADE).replace("%x", "%z")),
        "'z' is no input of the model",
    ),
    ("an axis of no mesh", ('axis = "tensor"', 'axis = "x"'), "is along axis 'x' of @mesh, which is no axis of @mesh"),
    ("shapes apart", (SUM, SUM.replace("4x5", "4x6")), "all_reduce of 4x5, 4x5"),
    ("a huge dimension", (SUM, SUM.replace("4x5", f"{1 << 62}x5")), "INV07"),
    ("packed elements", (MADE, MADE.replace("f32", "i4")), "a collective cannot move elements of type int4"),
    ("another shape", (MADE, MADE.replace("4x5x", "n x 5 x ")), "channel 0"),
    ("a kind of its own", ("comm.all_reduce", "comm.broadcast"), "the dialect comm has no op comm.broadcast"),
    ("a channel twice", (SUM, SUM + SUM.replace("%s", "%t")), "each channel once"),
    ("another output", ("-> (%y : tensor<4x5xf32>) {\n" + MADE, "-> (%y : tensor<4x4xf32>) {\n" + MADE), "INV23"),
    ("an unknown value", ("-> (%y : tensor<4x5xf32>) {\n" + MADE, "-> (%q : tensor<4x5xf32>) {\n" + MADE), "INV05"),
    (
        "an unknown output",
        ("    %y = dnnc.segment", "    %q = dnnc.segment"),
        "result %y is used but never assigned",
    ),
    ("a reduction", ('reduction = "sum"', 'reduction = "mean"'), "mean"),
    ("no tensor", (MADE, MADE.replace("tensor<4x5xf32>", "seq<tensor<f32>>")), "takes seq<tensor<f32>>, which is no tensor"),
    ("an op that no model holds", (MADE, MADE + "    %z = onnx.Neg(%x) : tensor<4x6xf32>\n"), "has onnx.Neg"),
    ("rows of one step", ("    periodic = true\n", ""), "it has no schedule of a stream"),
    ("no schedule", ("    row cpu1 [F(0, 0)]\n", ""), "the row of 'cpu1' lacks F"),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_programs(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    """InvalidInput that says what is wrong and where, before anything runs."""
    folder = pair(tmp_path, 2)
    Build.open(folder)
    edit(folder, change)
    with pytest.raises(InvalidInput) as caught:
        Build.open(folder)
    assert words in str(caught.value)
    places = {Path(found.where.partition(": ")[0]).name for found in caught.value.diagnostics}
    assert places <= {"plan.ir", "manifest.json"}
