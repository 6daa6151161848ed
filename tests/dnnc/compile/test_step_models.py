"""Small decoders that compute masks, windows and biases from the lengths of tensors, as exporters of PyTorch write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.onnx.elements import Array
from ir.core.diagnostics import DiagnosticSink
from tests.dnnc.compile.test_decoding import opened

WORDS, WIDTH, CONTEXT, BATCH = 11, 4, 8, 2
MODEL = """
<ir_version: 10, opset_import: ["" : {opset}]>
decoder ({ids}[batch, step] input_ids, float[batch, 1, past, 4] past_key)
    => (float[{logits}] logits, float[batch, 1, total, 4] present_key)
<
    int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 four = {{4}},
    int64[1] first_axis = {{0}}, int64[1] head = {{1}}, int64[1] last = {{3}}, int64[1] end = {{9999}}
>
{{
    token = Gather (table, input_ids)
    query = Unsqueeze (token, head)
    present_key = Concat <axis = 2> (past_key, query)
    sizes = Shape (past_key)
    begin = Gather (sizes, two)
    grown = Shape (present_key)
    length = Gather (grown, two)
    keys = Range (zero, length, one)
    queries = Range (begin, length, one)
    rows = Unsqueeze (queries, head)
    causal = LessOrEqual (keys, rows)
    {window}
    back = Neg (length)
    start = Unsqueeze (back, first_axis)
    bias = Slice (biases, start, end, last)
    {attention}
    hidden = Squeeze (mixed, head)
    out = Transpose <perm = [1, 0]> (table)
    all = MatMul (hidden, out)
    {ending}
}}
"""
WINDOW = """first = Sub (rows, four)
    near = Greater (keys, first)
    mask = And (causal, near)"""
ROW = """minus = Neg (one)
    logits = Gather <axis = 1> (all, minus)"""
LAST = """minus = Neg (head)
    logits = Slice (all, minus, end, head)"""
ATTENTION = """turned = Transpose <perm = [0, 1, 3, 2]> (present_key)
    product = MatMul (query, turned)
    scored = Add (product, bias)
    masked = Where (mask, scored, lowest)
    weights = Softmax <axis = -1> (masked)
    mixed = MatMul (weights, present_key)"""
ONE_OPERATOR = """added = Where (mask, bias, lowest)
    mixed = Attention <scale = 1.0> (query, present_key, present_key, added)"""
PLAIN = {
    **{"ids": "int64", "logits": "batch, step, 11", "window": "mask = Identity (causal)", "ending": "logits = Identity (all)"},
    **{"opset": "18", "attention": ATTENTION},
}


def write(path: Path, **parts: str) -> None:
    """One head of attention, over its own keys, whose bias is looked up by the distance, in no simple order. The table of
    biases lies in the file as weights do."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL.format(**{**PLAIN, **parts}))
    weights = {"table": rng.standard_normal((WORDS, WIDTH)), "biases": 2 * rng.standard_normal((1, 1, 1, 300)), "lowest": -1e9}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(array, np.float32), name) for name, array in weights.items()
    )
    onnx.save(model, path)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"opset": "23", "attention": ONE_OPERATOR},
        {"ids": "int32", "window": WINDOW},
        {"logits": "batch, 11", "ending": ROW},
        {"logits": "batch, 1, 11", "ending": LAST},
    ],
    ids=["biases", "operator", "window", "row", "last"],
)
def test_steps_compute_the_file(parts: dict[str, str], tmp_path: Path) -> None:
    """Token by token, of two sequences at once: in chunks these biases would be by the distance to the last token of a chunk,
    and two of the files give its logits alone."""
    write(tmp_path / "m.onnx", **parts)
    options = CompileOptions(
        str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT, batch=BATCH
    )
    sink = DiagnosticSink()
    compile_model(options, sink=sink)
    assert [one.code for one in sink.diagnostics] == ["W1046"]
    told = sink.diagnostics[0].message
    assert "window" in parts or "logits" in parts or "its biases do not follow from the distance" in told
    assert not (tmp_path / "b" / "stages" / "stage0.prompt.onnx").exists()
    whole, step = opened(tmp_path / "m.onnx"), opened(tmp_path / "b" / "stages" / "stage0.onnx")
    ids = np.random.default_rng(1).integers(0, WORDS, (BATCH, CONTEXT))
    kept = np.full((BATCH, 1, CONTEXT, WIDTH), 7, np.float32)  # what lies there is never seen
    for position in range(CONTEXT):
        feeds = {"input_ids": ids[:, position : position + 1], "position": np.full(BATCH, position), "past_key": kept}
        logits, kept = map(np.asarray, step.run(["logits", "present_key"], feeds))
        np.testing.assert_allclose(logits[:, -1], expected(whole, ids[:, : position + 1]), rtol=1e-4, atol=1e-5)


def expected(whole: onnxruntime.InferenceSession, ids: Array) -> Array:
    """The logits behind these tokens, by the file without a past."""
    kind = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[whole.get_inputs()[0].type]
    feeds = {"input_ids": ids.astype(kind), "past_key": np.zeros((BATCH, 1, 0, WIDTH), np.float32)}
    logits = np.asarray(whole.run(["logits"], feeds)[0])
    return logits[:, -1] if logits.ndim == 3 else logits
