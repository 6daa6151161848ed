"""What a ``genai_config.json`` beside the model says of it; what is wrong in such a file is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dnnc.build.build import Build
from dnnc.compile.decoding.configs import CONFIG
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.load import load_model
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.report import summarize, summary_text
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from passes.prepare.states import Pair, caches
from tests.dnnc.compile.test_decoding import opened

VOCABULARY, WIDTH, CONTEXT = 7, 4, 8
INPUTS = {"input_ids": "tokens", "attention_mask": "there", "position_ids": "at"}
NAMES = {
    "inputs": {"past_key_names": "k%d_in", "past_value_names": "memory.%d.v", **INPUTS},
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
        node("Gather", ["table", "tokens"], ["token"]),
        node("Gather", ["places", "at"], ["place"]),
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
    nodes.insert(6, node("Cast", ["there"], ["kept"], to=TensorProto.BOOL))
    nodes.insert(7, node("Unsqueeze", ["kept", "axes"], ["mask"]))
    initializers.append(onnx.numpy_helper.from_array(np.array([1, 2]), "axes"))
    given = helper.make_tensor_value_info
    before, after = ([1, 1, size, WIDTH] for size in ("past", "total"))
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            given("tokens", TensorProto.INT64, [1, "step"]),
            given("there", TensorProto.INT64, [1, "total"]),
            given("at", TensorProto.INT64, [1, "step"]),
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


def config(folder: Path, decoder: Any, **of_model: Any) -> None:
    (folder / CONFIG).write_text(json.dumps({"model": {"type": "llama", "decoder": decoder, **of_model}}))


def loaded(path: Path) -> Any:
    return load_model(str(path), {}, DiagnosticSink()).module


def test_the_config_names_caches(tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    assert caches(loaded(tmp_path / "m.onnx").entry) == ()
    config(tmp_path, NAMES)
    module = loaded(tmp_path / "m.onnx")
    assert caches(module.entry) == (Pair("k0_in", "grown_k0", 2), Pair("memory.0.v", "v0", 2))
    assert "k0_in becomes grown_k0 (a cache: --context keeps it)" in summary_text(summarize(module))


def test_caches_and_inputs_with_other_names(tmp_path: Path) -> None:
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
        feeds = {"tokens": ids[:, position : position + 1], "position": np.array([position]), **kept}
        made = dict(zip(names, step.run(names, feeds), strict=True))
        kept = {state["name"]: made[state["result"]] for state in states}
        empty = np.zeros((1, 1, 0, WIDTH), np.float32)
        past = {"k0_in": empty, "memory.0.v": empty}
        for at in range(position + 1):
            mask = np.ones((1, at + 1), np.int64)
            token = {"tokens": ids[:, at : at + 1], "there": mask, "at": np.array([[at]])}
            logits, key, value = whole.run(None, {**token, **past})
            past = {"k0_in": key, "memory.0.v": value}
        np.testing.assert_allclose(made["logits"], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("decoder_section", "words"),
    [
        ([], "model.decoder is a list; an object was expected"),
        ({"inputs": 3}, "model.decoder.inputs is 3; an object was expected"),
        ({"outputs": None}, "model.decoder.outputs is null; an object was expected"),
        ({"inputs": {"past_key_names": 3}}, "model.decoder.inputs.past_key_names is 3; a name with one %d was expected"),
        ({"inputs": {"past_key_names": "k"}}, "model.decoder.inputs.past_key_names is 'k'; a name with one %d"),
        ({"inputs": {"past_key_names": "%d%d"}}, "model.decoder.inputs.past_key_names is '%d%d'; a name with one %d"),
        ({"inputs": {"input_ids": 1}}, "model.decoder.inputs.input_ids is 1; a name was expected"),
        ({"outputs": {"present_value_names": "%s"}}, "model.decoder.outputs.present_value_names is '%s'; a name with one %d"),
    ],
)
def test_a_malformed_config_is_told(decoder_section: Any, words: str, tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    config(tmp_path, decoder_section)
    with pytest.raises(InvalidInput) as error:
        loaded(tmp_path / "m.onnx")
    (fault,) = error.value.diagnostics
    assert words in fault.message, fault.message
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


@pytest.mark.parametrize(
    ("of_model", "words"),
    [
        ({"eos_token_id": [2, "</s>"]}, "model.eos_token_id is a list; a token id, or a list of them, was expected"),
        ({"eos_token_id": -1}, "model.eos_token_id is -1; a token id, or a list of them, was expected"),
        ({"context_length": "128"}, "model.context_length is '128'; a number of positions was expected"),
    ],
)
def test_malformed_numbers_of_a_config_are_told(of_model: Any, words: str, tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    config(tmp_path, NAMES, **of_model)
    with pytest.raises(InvalidInput, match=words.replace(".", r"\.")):
        loaded(tmp_path / "m.onnx")


def test_a_config_of_another_file_says_nothing(tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    config(tmp_path, {**NAMES, "filename": "other.onnx"}, eos_token_id=2)
    assert not loaded(tmp_path / "m.onnx").entry.attributes


@pytest.mark.parametrize("generation", [False, True])
def test_the_context_and_the_ends_of_texts(generation: bool, tmp_path: Path) -> None:
    decoder(tmp_path / "m.onnx")
    config(tmp_path, NAMES, context_length=CONTEXT - 1, **({} if generation else {"eos_token_id": [2, 5]}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    sink = DiagnosticSink()
    compile_model(
        CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT), sink=sink
    )
    assert [str(one.message) for one in sink.diagnostics if one.code == "W1062"] == [
        "the model was made for 7 positions, and its caches have 8: answers may be poor behind them"
    ]
    decoding = Build.open(tmp_path / "b").decoding
    assert decoding is not None
    assert Request.of(decoding, [1], None, 0, 0, 1, 0, None).stop == ({3} if generation else {2, 5})
    assert Request.of(decoding, [1], None, 0, 0, 1, 0, ()).stop == set()
