"""Decoders without positions, whose scores have a bias by the distance from key to query: its numbers were computed from the
length of the past, and in place follow from the position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.build.build import Build
from dnnc.check.tokens import check_tokens
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from ir.core.diagnostics import InvalidInput
from tests.dnnc.compile.test_decoding import compiled

MODEL = """<ir_version: 9, opset_import: ["": 18]>
m (int64[batch, seq] input_ids, float[batch, 2, past, 4] "past_key_values.0.key")
  => (float[batch, seq, 16] logits, float[batch, 2, total, 4] "present.0.key")
{
  x = Gather (words, input_ids)
  heads = Constant <value_ints = [0, 0, 2, 4]> ()
  flat = Constant <value_ints = [0, 0, 8]> ()
  split = Reshape (x, heads)
  new = Transpose <perm = [0, 2, 1, 3]> (split)
  "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", new)
  columns = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
  scores = MatMul (new, columns)

  shape = Shape ("present.0.key")
  past_shape = Shape ("past_key_values.0.key")
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  two = Constant <value_int = 2> ()
  seven = Constant <value_int = 7> ()
  total = Gather (shape, two)
  past = Gather (past_shape, two)
  keys = Range (zero, total, one)
  queries = Range (past, total, one)
  last = Constant <value_ints = [1]> ()
  column = Unsqueeze (queries, last)
  back = Sub (column, keys)
  INDEX
  near = Min (index, seven)
  clipped = Max (near, zero)
  biases = Gather (table, clipped)
  bias = Transpose <perm = [2, 0, 1]> (biases)
  low = Constant <value_float = -10000.0> ()
  hidden = Less (back, zero)
  both = Where (hidden, low, bias)
  biased = Add (scores, both)

  weights = Softmax <axis = -1> (biased)
  mixed = MatMul (weights, "present.0.key")
  turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
  joined = Reshape (turned, flat)
  logits = MatMul (joined, head)
}"""
"""One layer whose keys are its values. ``INDEX``: the row of the table for each query and key."""


def written(path: Path, index: str) -> str:
    model = onnx.parser.parse_model(MODEL.replace("INDEX", index))
    random = np.random.default_rng(0)
    for name, rows, columns in (("words", 16, 8), ("table", 8, 2), ("head", 8, 16)):
        array = random.standard_normal((rows, columns)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_a_bias_by_distance_follows_the_position(batch: int, tmp_path: Path) -> None:
    model = written(tmp_path / "m.onnx", "index = Identity (back)")
    plan, sink = compiled(model, tmp_path / "b", context=20, batch=batch, chunk=4, stages=1)
    assert not sink.diagnostics
    assert plan["decoding"]["chunk"] == 4
    report = check_tokens(Build.open(tmp_path / "b"), RunOptions())
    assert report.passed
    assert report.original


@pytest.mark.slow
def test_a_bias_by_distance_from_the_end_is_right_in_steps_alone(tmp_path: Path) -> None:
    """Of one token the end is its own place; of several it is not that of each."""
    index = "from_end = Sub (total, keys) zeros = Sub (back, back) before = Sub (from_end, one) index = Add (before, zeros)"
    model = written(tmp_path / "m.onnx", index)
    plan, sink = compiled(model, tmp_path / "b", context=20, chunk=4, stages=1)
    assert [diagnostic.code for diagnostic in sink.diagnostics] == ["W1046"]
    assert plan["decoding"]["chunk"] == 1
    assert check_tokens(Build.open(tmp_path / "b"), RunOptions()).passed


def test_a_bias_by_the_length_of_the_past_is_refused(tmp_path: Path) -> None:
    model = written(tmp_path / "m.onnx", "longer = Add (back, past) index = Mod (longer, seven)")
    with pytest.raises(
        InvalidInput, match="differs between keys that a query sees, so it may depend on the length of the past"
    ):
        compiled(model, tmp_path / "b", context=20, stages=1)
