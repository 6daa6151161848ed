"""Builds that keep states: both programs of a decoder over its stages compute what the whole model computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from dnnc.check.proof import prove
from dnnc.compile.driver import CompileOptions, compile_model
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from tests.passes.prepare.states.test_decoding import BATCH, CONTEXT, MODELS, whole


def compiled(model: str, out: Path, **options: Any) -> tuple[dict[str, Any], DiagnosticSink]:
    sink = DiagnosticSink()
    compile_model(CompileOptions(model, "preset:cpu-2", out, report=False, **options), sink=sink)
    return json.loads((out / "plan.json").read_text()), sink


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("cache", ["concat", "inplace"])
def test_the_stages_of_both_programs_compute_the_whole_model(cache: str, tmp_path: Path) -> None:
    ids, expected = whole("llama-7b")
    spec = f"zoo:llama-7b,cache={cache},{MODELS['llama-7b']}"
    plan, _ = compiled(spec, tmp_path / "b", context=CONTEXT, batch=BATCH, groups=2, chunk=4, stages=2)
    decoding = plan["decoding"]
    assert {key: decoding[key] for key in ("batch", "context", "groups", "chunk", "vocabulary")} == {
        "batch": BATCH, "context": CONTEXT, "groups": 2, "chunk": 4, "vocabulary": 50
    }  # fmt: skip
    assert len(plan["cuts"]) == 1, "the hidden state alone crosses"
    assert {state["stage"] for state in decoding["states"]} == {0, 1}
    state_bytes = sum(4 * int(np.prod(state["shape"])) for state in decoding["states"])
    assert sum(stage["memory"]["weights"] for stage in plan["stages"]) > 2 * state_bytes
    kept = {state["name"]: np.zeros(state["shape"], np.float32) for state in decoding["states"]}
    becomes = {state["result"]: state["name"] for state in decoding["states"]}
    position = 0
    for length, suffix in [(4, ".prompt"), (1, ""), (4, ".prompt"), (1, ""), (1, "")]:
        values = {"input_ids": ids[:, position : position + length], "position": np.full(BATCH, position)}
        for stage in range(2):
            session = opened(tmp_path / "b" / "stages" / f"stage{stage}{suffix}.onnx")
            feeds = {given.name: {**kept, **values}[given.name] for given in session.get_inputs()}
            names = [output.name for output in session.get_outputs()]
            values |= dict(zip(names, session.run(names, feeds), strict=True))
        kept |= {name: values[result] for result, name in becomes.items()}
        np.testing.assert_allclose(values["logits"], expected[:, position : position + length], rtol=2e-4, atol=2e-5)
        position += length
    report = prove(tmp_path / "b")
    assert report.error() is None


def recurrent(path: Path, *, shape: tuple[int, ...] = (4, 8)) -> None:
    """``y, hN = f(x, h0)``."""
    x, h, y, n = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", (4, 8)), ("h0", shape), ("y", (4, 8)), ("hN", (4, 8)))
    )
    nodes = [helper.make_node("ReduceSum", ["h0"], ["s"]), helper.make_node("Add", ["x", "s"], ["hN"])]
    nodes += [helper.make_node("Relu", ["hN"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "m", [x, h], [y, n]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    onnx.save(model, str(path))


def test_a_recurrent_state_is_named(tmp_path: Path) -> None:
    recurrent(tmp_path / "m.onnx")
    plan, _ = compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",))
    decoding = plan["decoding"]
    assert decoding["states"] == [{"name": "h0", "result": "hN", "stage": 0, "dtype": "f32", "shape": [4, 8], "axis": None}]
    assert (decoding["ids"], decoding["chunk"]) == ("", 1)
    plan, _ = compiled(str(tmp_path / "m.onnx"), tmp_path / "c")
    assert "decoding" not in plan, "without the option it is an input and an output"


def test_wrong_pairs_and_options_are_refused(tmp_path: Path) -> None:
    recurrent(tmp_path / "m.onnx", shape=(2, 3))
    with pytest.raises(InvalidInput, match=r"h0 is tensor<2x3xf32> and hN is tensor<4x8xf32>"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",))
    with pytest.raises(InvalidInput, match="no input of the model is a cache"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=8)
    with pytest.raises(UsageError, match="--batch"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", batch=8)
    with pytest.raises(UsageError, match="--mesh"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",), mesh="2")
    assert not (tmp_path / "b").exists()
