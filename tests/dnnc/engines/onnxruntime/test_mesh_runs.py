"""Stages on meshes as real processes: a process per member; results, ways to fail, and nothing left behind."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.engines.onnxruntime import Pipeline, RunOptions, RuntimeFailure, run_build
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.onnxruntime.mesh_builds import expected, graph, pair
from tests.dnnc.engines.onnxruntime.processes import end_starter, nothing_left
from tests.dnnc.sealing import change, refresh

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

    def edit(manifest: dict[str, Any]) -> None:
        for one in stage(manifest)["members"]:
            one["segments"][0]["outputs"].append({"name": "q", "dtype": "int64", "shape": None})
            one["segments"][1]["inputs"].append("q")

    refresh(folder, *(f"stages/stage0.member{number}.segment{level}.onnx" for number in range(2) for level in range(2)))
    build = Build.open(change(folder, edit))
    given = inputs(5)
    for one, found in zip(given, run_build(build, given).outputs, strict=True):
        np.testing.assert_allclose(found["y"], expected(build, one)["y"], rtol=2e-5, atol=2e-5)


def test_more_shared_memory_than_there_is(tmp_path: Path) -> None:
    """A manifest may ask for any: refused with the number, and nothing is left."""
    rows = 1 << 56
    folder = pair(tmp_path, 2)

    def edit(manifest: dict[str, Any]) -> None:
        for port in (*stage(manifest)["inputs"], *stage(manifest)["outputs"], *manifest["inputs"], *manifest["outputs"]):
            port["shape"][0] = rows
        for one in stage(manifest)["members"]:
            for segment in one["segments"]:
                segment["outputs"][0]["shape"][0] = rows
            one["outputs"][0]["box"][0][1] = rows
        collective(manifest).update(operands=[[rows, 5]] * 2, results=[[rows, 5]] * 2)

    with pytest.raises(InvalidInput) as caught, Pipeline(Build.open(change(folder, edit))):
        pass
    assert "bytes of shared memory, which the system does not give" in str(caught.value)
    assert caught.value.diagnostics[0].where == str(folder)


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


def stage(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["stages"][0]


def member(manifest: dict[str, Any], number: int = 1) -> dict[str, Any]:
    return stage(manifest)["members"][number]


def collective(manifest: dict[str, Any]) -> dict[str, Any]:
    return stage(manifest)["collectives"][0]


def output(manifest: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return member(manifest, number)["outputs"][0]


HOSTILE: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("no member", lambda m: stage(m)["members"].clear(), "a stage on a mesh has no members"),
    ("a member too few", lambda m: stage(m)["members"].pop(), "does not have 1 members"),
    ("members not an array", lambda m: stage(m).update(members=7), "does not describe a build"),
    ("a mesh of nothing", lambda m: stage(m).update(axes=[]), "does not have 2 members"),
    ("an axis below 1", lambda m: stage(m).update(axes=[["a", -1], ["b", -2]]), "does not have 2 members"),
    ("another device", lambda m: member(m).update(device="gpu9"), "not those of its devices"),
    (
        "no segment file",
        lambda m: member(m)["segments"][0].update(model="stages/none.onnx"),
        "lists no file 'stages/none",
    ),
    ("a file outside", lambda m: member(m)["segments"][0].update(model="../../etc/passwd"), "lists no file"),
    ("an absolute file", lambda m: member(m)["segments"][0].update(model="/etc/passwd"), "lists no file"),
    ("segments out of order", lambda m: member(m)["segments"].reverse(), "segments have levels [1, 0]"),
    ("a missing segment", lambda m: member(m)["segments"].pop(0), "channel 0 takes 'p'"),
    ("a segment that reads nothing", lambda m: member(m)["segments"][1].update(inputs=["q"]), "reads 'q', which nothing"),
    ("an unknown input", lambda m: member(m).update(inputs=["z"]), "'z' is no input of the model"),
    ("a group that is none", lambda m: collective(m).update(groups=[[0, 0]]), "do not hold each of 2 members once"),
    ("a group beyond the mesh", lambda m: collective(m).update(groups=[[0, 1, 2]]), "do not hold each of 2 members once"),
    ("a group that is no list", lambda m: collective(m).update(groups=3), "does not describe a build"),
    ("shapes apart", lambda m: collective(m).update(operands=[[4, 5], [4, 6]]), "all_reduce of 4x5, 4x6"),
    (
        "another shape",
        lambda m: collective(m).update(operands=[[4, 6]] * 2, results=[[4, 6]] * 2),
        "takes 'p' as float32[4, 6]",
    ),
    ("another element type", lambda m: collective(m).update(element=11), "takes 'p' as float64[4, 5]"),
    ("a kind of its own", lambda m: collective(m).update(kind="broadcast"), "'broadcast' is unknown"),
    ("a channel twice", lambda m: stage(m)["collectives"].append(dict(collective(m))), "each channel once"),
    ("a huge dimension", lambda m: collective(m).update(results=[[1 << 70, 5]] * 2), "all_reduce of 4x5"),
    ("a box outside", lambda m: output(m).update(box=[[1, 4], [0, 5]]), "lies outside its shape [4, 5]"),
    ("a box below 0", lambda m: output(m).update(box=[[-1, 4], [0, 5]]), "lies outside its shape [4, 5]"),
    ("a box of another rank", lambda m: output(m).update(box=[[0, 4]]), "lies outside its shape [4, 5]"),
    ("a smaller box", lambda m: output(m).update(box=[[0, 3], [0, 5]]), "'y' is [4, 5], its box of 'y' [3, 5]"),
    ("a box that is none", lambda m: output(m).update(box=[[0]]), "does not describe a build"),
    ("nobody delivers", lambda m: output(m).update(delivers=False), "'y' of shape [4, 5] is not made of its parts []"),
    ("both deliver", lambda m: output(m, 1).update(delivers=True), "is not made of its parts"),
    ("an unknown value", lambda m: output(m).update(value="q"), "'q' leaves it as part of 'y', and nothing makes it"),
    ("an unknown output", lambda m: output(m).update(name="q"), "'q' does not cross the stage's border"),
    ("a reduction", lambda m: output(m).update(reduction="mean"), "reduction 'mean' of 'y' is unknown"),
    ("a missing key", lambda m: output(m).pop("term"), "'term' is missing"),
]


@pytest.mark.parametrize(("edit", "words"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_manifests(tmp_path: Path, edit: Callable[[dict[str, Any]], Any], words: str) -> None:
    """InvalidInput that says what is wrong and where, before anything runs."""
    folder = pair(tmp_path, 2)
    Build.open(folder)
    change(folder, edit)
    with pytest.raises(InvalidInput) as caught:
        Build.open(folder)
    assert words in str(caught.value)
    assert any("manifest.json" in (found.where or "") for found in caught.value.diagnostics)
