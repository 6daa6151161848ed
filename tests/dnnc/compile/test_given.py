"""``compile --inputs``: dimensions from arrays, and sizes and seconds of what depends on values from one run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import Cost, Measured, Time
from ir.core.limits import LIMITS
from ir.core.ops import Op
from ir.core.topology import DeviceType
from passes.costs.op_time import op_seconds
from tests.dnnc.onnx.models import model

DETECTOR = """g (float[n, 16] x, int64 steps) => (float[?, 16] y) {
  h = MatMul(x, w)
  m = ReduceMean(h)
  above = Greater(h, m)
  found = NonZero(above)
  start = Constant <value_ints = [0]> ()
  end = Constant <value_ints = [1]> ()
  rows = Slice(found, start, end, start)
  flat = Reshape(rows, minus)
  picked = Gather(h, flat)
  yes = Constant <value = bool {1}> ()
  y = Loop (steps, yes, picked) <body = b (int64 i, bool c, float[k, 16] v) => (bool o, float[k, 16] s) {
    o = Identity(c) p = MatMul(v, w) s = Softmax(p)
  }>
}"""
BOXES = """g (float[1, n, 4] boxes, float[1, c, n] scores) => (float[k, 4] y) {
  most = Constant <value_ints = [20]> ()
  overlap = Constant <value_floats = [0.5]> ()
  kept = NonMaxSuppression(boxes, scores, most, overlap)
  two = Constant <value_ints = [2]> ()
  three = Constant <value_ints = [3]> ()
  one = Constant <value_ints = [1]> ()
  last = Slice(kept, two, three, one)
  flat = Reshape(last, minus)
  zero = Constant <value_ints = [0]> ()
  all = Squeeze(boxes, zero)
  y = Gather(all, flat)
}"""


def _save(text: str, folder: Path) -> str:
    proto = model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(16, dtype=np.float32), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "minus"))
    onnx.save(proto, folder / "m.onnx")
    return str(folder / "m.onnx")


def _npz(folder: Path, **arrays: object) -> Path:
    path = folder / "in.npz"
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return path


def _x(rows: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32)


def _ops(path: str, inputs: Path, out: Path) -> dict[str, Op]:
    result = compile_model(CompileOptions(path, "preset:cpu-2", out, inputs=inputs))
    return {op.id: op for op in result.module.entry.ops}


def test_a_plan_of_unknown_sizes_is_never_optimal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = _save(DETECTOR, tmp_path), tmp_path / "out"
    assert main(["compile", path, "-t", "preset:cpu-2", "--dim", "n=32", "-o", str(out)]) == 0
    told, warned = capsys.readouterr()
    assert "optimal" not in told
    assert re.search(r"\d of \d+ sizes are unknown, such as %found: this plan may be far off", told)
    assert "--inputs FILE.npz" in told
    assert warned.count("sizes are unknown, such as %found") == 1
    assert "--inputs FILE.npz), whose sizes are measured" in warned
    assert "--dim" not in warned, "no dimension of an input is left to bind"
    assert json.loads((out / "plan.json").read_text())["status"] == "within-gap"
    assert main(["compile", path, "-t", "preset:cpu-2", "--dim", "n=32", "-o", str(out), "--json", "-q"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["status"] == "within-gap"
    assert "%found" in data["certificate"]["sizes"]


def test_sizes_and_seconds_are_measured_on_the_inputs(tmp_path: Path) -> None:
    path, x = _save(DETECTOR, tmp_path), _x(32)
    sink = DiagnosticSink()
    options = CompileOptions(path, "preset:cpu-2", tmp_path / "out", inputs=_npz(tmp_path, x=x, steps=5))
    result = compile_model(options, sink=sink)
    assert result.plan.status == "optimal"
    assert "measure" in result.seconds
    assert not [d for d in sink.diagnostics if "unknown" in d.message]
    assert str(result.module.entry.args[0].type) == "tensor<32x16xf32>"
    ops = {op.id: op for op in result.module.entry.ops}
    count = int((x > x.mean()).sum())
    assert ops["%found"].facet(Measured) == Measured((f"2x{count}",))
    assert ops["%y"].facet(Measured) == Measured((f"{count}x16",))
    assert ops["%picked"].facet(Cost, Cost()).write == count * 16 * 4
    assert ops["%y"].facet(Cost, Cost()).flops >= 5 * 2 * count * 16 * 16
    inside = {op.id: op.facet(Measured, Measured(())).runs for _, region in ops["%y"].regions for op in region.ops}
    assert inside["%p"] == inside["%s"] == 5
    assert ops["%y"].facet(Time) is None, "a clock would tell other seconds each time"
    assert ops["%h"].facet(Measured) is None, "its type says all"
    # What was measured is of one input: the types are as they were, and another input runs.
    assert ops["%found"].results[0].type != ops["%found"].results[0].type.__class__(
        ops["%found"].results[0].type.dtype, (2, count)
    )
    other = np.abs(_x(32)) + np.eye(32, 16, dtype=np.float32)
    rows = run_build(tmp_path / "out", {"x": other, "steps": np.array(2)}).outputs[0]["y"].shape[0]
    assert rows == int((other > other.mean()).sum()) != count


def test_more_found_costs_more(tmp_path: Path) -> None:
    path = _save(BOXES, tmp_path)
    corners = np.arange(60, dtype=np.float32)[:, None] * 10
    boxes = np.concatenate([corners, corners, corners + 5, corners + 5], axis=1)[None]
    written = []
    for classes in (1, 4):
        scores = np.ones((1, classes, 60), np.float32)
        ops = _ops(path, _npz(tmp_path, boxes=boxes, scores=scores), tmp_path / "out")
        assert ops["%kept"].facet(Measured) == Measured((f"{20 * classes}x3",))
        written.append(ops["%y"].facet(Cost, Cost()).write)
    assert written == [20 * 16, 80 * 16]


def test_nothing_is_run_where_types_say_every_size(tmp_path: Path) -> None:
    path = _save("g (float[n, 16] x) => (float[n, 16] y) { y = MatMul(x, w) }", tmp_path)
    result = compile_model(CompileOptions(path, "preset:cpu-1", tmp_path / "out", inputs=_npz(tmp_path, x=_x(7))))
    assert "measure" not in result.seconds
    assert str(result.module.entry.results[0].type) == "tensor<7x16xf32>"


def test_a_stack_of_microbatches_binds_as_one(tmp_path: Path) -> None:
    path = _save("g (float[n, 16] x) => (float[n, 16] y) { y = MatMul(x, w) }", tmp_path)
    inputs = _npz(tmp_path, x=np.stack([_x(7)] * 3))
    result = compile_model(CompileOptions(path, "preset:cpu-1", tmp_path / "out", inputs=inputs))
    assert str(result.module.entry.args[0].type) == "tensor<7x16xf32>"


@pytest.mark.parametrize(
    ("dims", "arrays", "words"),
    [
        ({"n": 3}, {"x": (2, 4), "z": (2, 3)}, "dimension 0 of input 'x' is 2; 'n' is 3 by --dim n=3"),
        ({}, {"x": (2, 4), "z": (3, 3)}, "dimension 0 of input 'z' is 3; 'n' is 2 by dimension 0 of input 'x'"),
        ({}, {"x": (2, 4), "z": (2, 4)}, "dimension 1 of input 'z' is 4; the model expects 3"),
        ({}, {"x": (2,), "z": (2, 3)}, "input 'x' has 1 dimensions, the model expects 2"),
        ({"m": "n"}, {"x": (2, 4), "z": (2, 3)}, "dimension 1 of input 'x' is 4; 'm' is 2 by dimension 0 of input 'x'"),
        ({}, {"x": (2, 4)}, "input 'z' is missing"),
        ({}, {"x": (2, 4), "z": (2, 3), "other": (1,)}, "no input 'other'"),
    ],
)
def test_contradictions_are_told_at_their_place(
    tmp_path: Path, dims: dict[str, int | str], arrays: dict[str, tuple[int, ...]], words: str
) -> None:
    path = _save("g (float[n, m] x, float[n, 3] z) => (a, b) { a = Relu(x) b = Relu(z) }", tmp_path)
    inputs = _npz(tmp_path, **{name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    with pytest.raises(InvalidInput, match=words) as raised:
        compile_model(CompileOptions(path, "preset:cpu-1", tmp_path / "out", dims=dims, inputs=inputs))
    assert str(inputs) in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_inputs_that_the_model_does_not_run_on_are_told(tmp_path: Path) -> None:
    text = """g (float[n] x, int64[2] size) => (y) { r = Reshape(x, size) nz = NonZero(r) y = Cast <to = 1> (nz) }"""
    path = _save(text, tmp_path)
    inputs = _npz(tmp_path, x=np.ones(6, np.float32), size=np.array([4, 4]))
    with pytest.raises(InvalidInput, match="does not run on these inputs") as raised:
        compile_model(CompileOptions(path, "preset:cpu-1", tmp_path / "out", inputs=inputs))
    assert str(inputs) in str(raised.value)


TURNS = """g (float[8, 16] x, int64 steps, bool big) => (float[8, 16] y, float[8, 16] z, float[12, 8] t) {
  yes = Constant <value = bool {1}> ()
  y = Loop (steps, yes, x) <body = b (int64 i, bool c, float[8, 16] v) => (bool o, float[8, 16] s) {
    o = Identity(c) one = Constant <value = int64 {1}> () two = Constant <value = int64 {2}> ()
    odd = Mod(i, two) is_odd = Equal(odd, one)
    s = If (is_odd) <
      then_branch = then () => (float[8, 16] a) { m = MatMul(v, w) a = Relu(m) },
      else_branch = other () => (float[8, 16] a) { a = Neg(v) }>
  }>
  z = If (big) <
    then_branch = many () => (float[8, 16] a) { m1 = MatMul(x, w) m2 = MatMul(m1, w) a = MatMul(m2, w) },
    else_branch = few () => (float[8, 16] a) { a = Neg(x) }>
  zeros = Constant <value = float[8] {0, 0, 0, 0, 0, 0, 0, 0}> ()
  last, t = Scan <num_scan_inputs = 1, body = step (float[8] h, float[8] r) => (float[8] g, float[8] e) {
    g = Add(h, r) e = Tanh(g)
  }> (zeros, rows)
}"""


def test_loops_cost_what_ran_and_no_clock_decides(tmp_path: Path) -> None:
    """Plans of equal bytes; a loop costs its iterations, a branch what was taken of it."""
    proto = model(TURNS)
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(16, dtype=np.float32), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((12, 8), np.float32), "rows"))
    del proto.graph.input[3:]
    onnx.save(proto, tmp_path / "m.onnx")
    found: list[dict[str, Op]] = []
    for steps, big in ((7, False), (7, False), (70, True)):
        inputs = _npz(tmp_path, x=_x(8), steps=steps, big=big)
        found.append(_ops(str(tmp_path / "m.onnx"), inputs, tmp_path / f"out{len(found)}"))
    for name in ("plan.ir", "plan.json"):
        assert (tmp_path / "out0" / name).read_bytes() == (tmp_path / "out1" / name).read_bytes()
    product = 2 * 8 * 16 * 16
    few, _, many = ({name: op.facet(Cost, Cost()).flops for name, op in ops.items()} for ops in found)
    assert 3 * product <= few["%y"] < 4 * product, "of seven turns three are odd"
    assert 35 * product <= many["%y"] < 40 * product
    assert few["%z"] < product
    assert many["%z"] == 3 * product
    assert few["%last"] == many["%last"]
    core = preset_core()
    slow, quick = (op_seconds(ops["%y"], core) for ops in (found[2], found[0]))
    assert 9 < slow / quick < 11, "ten times the turns"
    assert op_seconds(found[0]["%last"], core) > 24 * core.overhead, "two ops, twelve rows"


def preset_core() -> DeviceType:
    """The device type of ``preset:cpu-1``."""
    (core,) = load_topology("preset:cpu-1", DiagnosticSink()).types
    return core


RESHAPED = """g (float[n] x, int64[2] size) => (float[?, ?] y, float[n] z) {
  y = Reshape(x, size)
  z = Relu(x)
}"""


def test_a_build_keeps_the_inputs_that_it_was_made_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random sizes are none that the model accepts: run and check take those of compile, until others or random ones are asked
    for."""
    path, out = _save(RESHAPED, tmp_path), str(tmp_path / "out")
    x = np.arange(6, dtype=np.float32)
    inputs = _npz(tmp_path, x=np.stack([x, -x]), size=np.array([2, 3]))
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", out, "--inputs", str(inputs), "-q"]) == 0
    inputs.unlink()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["given"] is True
    assert "inputs.npz" in manifest["files"]
    assert main(["run", out, "--outputs", str(tmp_path / "y.npz"), "-m", "2"]) == 0
    assert "given inputs" in capsys.readouterr().out
    with np.load(tmp_path / "y.npz") as found:
        assert found["y"].tolist() == [x.reshape(2, 3).tolist()] * 2
    assert main(["check", out]) == 0
    assert "given inputs" in capsys.readouterr().out
    assert main(["run", out, "--seed", "1", "-q"]) == 3
    assert "--inputs FILE.npz" in capsys.readouterr().err
    assert main(["check", out, "--samples", "2", "-q"]) == 3
    assert "--inputs FILE.npz" in capsys.readouterr().err
    (tmp_path / "out" / "inputs.npz").write_bytes(b"other")
    assert main(["run", out, "-q"]) == 3
    assert "inputs.npz" in capsys.readouterr().err


def test_inputs_that_are_too_large_to_keep_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dnnc.compile.given.LIMITS", replace(LIMITS, kept_inputs=100))
    path, out = _save(RESHAPED, tmp_path), str(tmp_path / "out")
    inputs = _npz(tmp_path, x=np.zeros(6, np.float32), size=np.array([2, 3]))
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", out, "--inputs", str(inputs), "-q"]) == 0
    for command in ("run", "check"):
        assert main([command, out, "-q"]) == 3
        told = capsys.readouterr().err
        assert "compiled with --inputs, and these were too large to be kept in it" in told
        assert "--inputs FILE.npz" in told
        assert main([command, out, "-q", "--inputs", str(inputs)]) == 0


VARYING = """g (float[64] x, int64 k) => (float[?] y, int64[?] i) {
  places = NonZero(x)
  rows = Transpose(places)
  picked = GatherND(x, rows)
  e = Exp(picked)
  one = Constant <value_ints = [1]> ()
  most = Reshape(k, one)
  y, i = TopK(e, most)
}"""


@pytest.mark.parametrize("cut", ["places", *(pytest.param(cut, marks=pytest.mark.slow) for cut in ("picked", "e"))])
def test_plans_cut_where_sizes_were_measured(tmp_path: Path, cut: str) -> None:
    """Stages hand over values of any size afterwards, also none and more than was measured."""
    path, out = str(tmp_path / "m.onnx"), tmp_path / "out"
    onnx.save(model(VARYING), path)
    x = np.zeros(64, np.float32)
    x[::3] = 1
    compile_model(CompileOptions(path, "preset:cpu-2", out, inputs=_npz(tmp_path, x=x, k=4), cuts=(cut,)))
    assert [channel.tensor for channel in Build.open(out).channels] == [cut]
    batches, dice = [], np.random.default_rng(2)
    for count in (0, 1, 22, 64, 5):
        given = np.zeros(64, np.float32)
        given[dice.permutation(64)[:count]] = dice.normal(size=count)
        batches.append({"x": given, "k": np.array(min(count, 4))})
    for batch, outputs in zip(batches, run_build(out, batches).outputs, strict=True):
        taken = np.exp(batch["x"][batch["x"] != 0])
        np.testing.assert_allclose(outputs["y"], np.sort(taken)[::-1][: int(batch["k"])], rtol=1e-6)


def test_real_inputs_are_not_asked_for_where_they_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """g (float[8] x, int64 k) => (float[8] y, int64[1, ?] z) {
      pair = SequenceConstruct(x, x)
      y = SequenceAt(pair, k)
      z = NonZero(x)
    }"""
    path, out = str(tmp_path / "m.onnx"), str(tmp_path / "out")
    onnx.save(model(text), path)
    given = str(_npz(tmp_path, k=0, x=np.ones(8, np.float32)))
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", out, "--inputs", given]) == 0
    told = capsys.readouterr()
    assert "such as %pair, which a run of the model did not show: this plan may be far off" in told.out
    assert "--inputs" not in told.out + told.err
