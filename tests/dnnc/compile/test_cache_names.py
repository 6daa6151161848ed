"""Caches that a ``genai_config.json`` beside the model names; what is wrong in such a file is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dnnc.compile.decoding.cache_names import CONFIG
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.load import load_model
from dnnc.report import summarize, summary_text
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from passes.prepare.states import Pair, caches
from tests.dnnc.compile.test_decoding import opened

VOCABULARY, WIDTH, CONTEXT = 7, 4, 8
NAMES = {
    "inputs": {"past_key_names": "k%d_in", "past_value_names": "memory.%d.v"},
    "outputs": {"present_key_names": "grown_k%d", "present_value_names": "v%d"},
}


def decoder(path: Path) -> None:
    """One layer of attention of one head, without a mask but the causal one; its caches are ``k0_in`` and ``memory.0.v``."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    places = rng.standard_normal((CONTEXT, WIDTH)).astype(np.float32)
    initializers = [onnx.numpy_helper.from_array(places, "places")]
    initializers += [onnx.numpy_helper.from_array(np.float32(1e3), "most")]
    initializers += [onnx.numpy_helper.from_array(table, "table"), onnx.numpy_helper.from_array(np.array([1]), "axis")]
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["token"]),
        node("Gather", ["places", "position_ids"], ["place"]),
        node("Add", ["token", "place"], ["x"]),
        node("Unsqueeze", ["x", "axis"], ["heads"]),
        node("Concat", ["k0_in", "heads"], ["grown_k0"], axis=2),
        node("Concat", ["memory.0.v", "heads"], ["v0"], axis=2),
        node("Attention", ["heads", "grown_k0", "v0", "mask"], ["seen"], scale=1.0),
        node("Squeeze", ["seen", "axis"], ["hidden"]),
        node("Transpose", ["table"], ["back"], perm=[1, 0]),
        node("MatMul", ["hidden", "back"], ["scores"]),
        node("Clip", ["scores", "", "most"], ["logits"]),  # an operand that is absent
    ]
    nodes.insert(6, node("Cast", ["attention_mask"], ["kept"], to=TensorProto.BOOL))
    nodes.insert(7, node("Unsqueeze", ["kept", "axes"], ["mask"]))
    initializers.append(onnx.numpy_helper.from_array(np.array([1, 2]), "axes"))
    given = helper.make_tensor_value_info
    before, after = ([1, 1, size, WIDTH] for size in ("past", "total"))
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            given("input_ids", TensorProto.INT64, [1, "step"]),
            given("attention_mask", TensorProto.INT64, [1, "total"]),
            given("position_ids", TensorProto.INT64, [1, "step"]),
            given("k0_in", TensorProto.FLOAT, before),
            given("memory.0.v", TensorProto.FLOAT, before),
        ],
        [
            given("logits", TensorProto.FLOAT, [1, "step", VOCABULARY]),
            given("grown_k0", TensorProto.FLOAT, after),
            given("v0", TensorProto.FLOAT, after),
        ],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), str(path))


def config(folder: Path, decoder: Any) -> None:
    (folder / CONFIG).write_text(json.dumps({"model": {"type": "llama", "decoder": decoder}}))


def loaded(path: Path) -> Any:
    return load_model(str(path), {}, DiagnosticSink()).module


def test_the_config_names_caches(tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    assert caches(loaded(tmp_path / "m.onnx").entry) == ()
    config(tmp_path, NAMES)
    module = loaded(tmp_path / "m.onnx")
    assert caches(module.entry) == (Pair("k0_in", "grown_k0", 2), Pair("memory.0.v", "v0", 2))
    assert "k0_in becomes grown_k0 (a cache: --context keeps it)" in summary_text(summarize(module))


def test_caches_with_other_names_stay(tmp_path: Path) -> None:
    """Steps of the build compute what the whole model computes of all tokens before."""
    decoder(tmp_path / "m.onnx")
    options = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-2", tmp_path / "b", report=False, context=CONTEXT, stages=1)
    with pytest.raises(InvalidInput, match="dimension 'past'"):
        compile_model(options, sink=DiagnosticSink())
    config(tmp_path, NAMES)
    compile_model(options, sink=DiagnosticSink())
    states = json.loads((tmp_path / "b" / "plan.json").read_text())["decoding"]["states"]
    assert [(state["name"], state["result"], state["shape"]) for state in states] == [
        ("k0_in", "grown_k0", [1, 1, CONTEXT, WIDTH]),
        ("memory.0.v", "v0", [1, 1, CONTEXT, WIDTH]),
    ]
    whole, step = opened(tmp_path / "m.onnx"), opened(tmp_path / "b" / "stages" / "stage0.onnx")
    kept = {state["name"]: np.full(state["shape"], 9, np.float32) for state in states}  # what lies there is never seen
    ids = np.array([[3, 1, 6, 2, 5]])
    for position in range(5):
        names = [output.name for output in step.get_outputs()]
        feeds = {"input_ids": ids[:, position : position + 1], "position": np.array([position]), **kept}
        made = dict(zip(names, step.run(names, feeds), strict=True))
        kept = {state["name"]: made[state["result"]] for state in states}
        empty = np.zeros((1, 1, 0, WIDTH), np.float32)
        past = {"k0_in": empty, "memory.0.v": empty}
        for at in range(position + 1):
            mask = np.ones((1, at + 1), np.int64)
            token = {"input_ids": ids[:, at : at + 1], "attention_mask": mask, "position_ids": np.array([[at]])}
            logits, key, value = whole.run(None, {**token, **past})
            past = {"k0_in": key, "memory.0.v": value}
        np.testing.assert_allclose(made["logits"], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("decoder_section", "words"),
    [
        ([], "model.decoder is a list; an object was expected"),
        ({"inputs": 3}, "model.decoder.inputs is a number; an object was expected"),
        ({"outputs": None}, "model.decoder.outputs is null; an object was expected"),
        ({"inputs": {"past_key_names": 3}}, "model.decoder.inputs.past_key_names is a number; a name with one %d was expected"),
        ({"inputs": {"past_key_names": "k"}}, "model.decoder.inputs.past_key_names is 'k'; a name with one %d"),
        ({"inputs": {"past_key_names": "%d%d"}}, "model.decoder.inputs.past_key_names is '%d%d'; a name with one %d"),
        ({"outputs": {"present_value_names": "%s"}}, "model.decoder.outputs.present_value_names is '%s'; a name with one %d"),
    ],
)
def test_a_malformed_config_is_told(decoder_section: Any, words: str, tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    config(tmp_path, decoder_section)
    with pytest.raises(InvalidInput) as error:
        loaded(tmp_path / "m.onnx")
    (fault,) = error.value.diagnostics
    assert words in fault.message
    assert fault.where == str(tmp_path / CONFIG)


def test_a_config_that_is_no_json_is_told_with_its_line(tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    (tmp_path / CONFIG).write_text('{"model": {\n  "decoder": }}\n')
    with pytest.raises(InvalidInput) as error:
        loaded(tmp_path / "m.onnx")
    (fault,) = error.value.diagnostics
    assert fault.span is not None
    assert (fault.where, fault.span.line) == (str(tmp_path / CONFIG), 2)


@pytest.mark.parametrize("document", [{}, {"model": {}}, {"model": {"decoder": {"inputs": {"input_ids": "ids"}}}}])
def test_a_config_without_names_is_none(document: Any, tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    (tmp_path / CONFIG).write_text(json.dumps(document))
    assert caches(loaded(tmp_path / "m.onnx").entry) == ()
