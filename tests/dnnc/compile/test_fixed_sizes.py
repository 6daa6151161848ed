"""Decoders whose files, or ``--dim``, fix sizes: what is asked for is planned or refused, never another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from dnnc.compile.decoding.loading import load_step
from dnnc.compile.driver import CompileOptions, compile_model, plan_model
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.module import Module, Plan

MODEL = """<ir_version: 9, opset_import: ["": 18]>
m (int64[batch, seq] input_ids, int64[batch, seq] position_ids, float[batch, 1, past, 2] "past_key_values.0.key")
  => (float[batch, 1, seq, total] logits, float[batch, 1, total, 2] "present.0.key")
{
  numbers = Cast <to = 1> (input_ids)
  IDS
  places = Cast <to = 1> (position_ids)
  axes = Constant <value_ints = [1, 3]> ()
  rows = Unsqueeze (ids, axes)
  turned = Unsqueeze (places, axes)
  new = Concat <axis = 3> (rows, turned)
  "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", new)
  columns = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
  scores = MatMul (new, columns)
  SCALED
  logits = Softmax <axis = -1> (scaled)
}"""
OF_BATCH = """sizes = Shape <start = 0, end = 1> (input_ids)
  two = Constant <value_ints = [2]> ()
  is_two = Equal (sizes, two)
  first = Constant <value_ints = [0]> ()
  condition = Squeeze (is_two, first)
  ids = If (condition) <
    then_branch = one () => (float[batch, seq] positive) { positive = Relu (numbers) },
    else_branch = other () => (float[batch, seq] opposite) { opposite = Neg (numbers) }
  >"""
"""Another op for two sequences than for three."""


def written(path: Path, scaled: str = "scaled = Identity (scores)", ids: str = "ids = Identity (numbers)", **sizes: int) -> str:
    text = MODEL.replace("SCALED", scaled).replace("IDS", ids)
    for name, size in sizes.items():
        text = text.replace(f"[{name}, ", f"[{size}, ").replace(f", {name}", f", {size}")
    onnx.save(onnx.parser.parse_model(text), str(path))
    return str(path)


def planned(model: str, **more: Any) -> tuple[Plan, DiagnosticSink]:
    sink = DiagnosticSink()
    options = CompileOptions(model, "preset:cpu-2", report=False, plan_only=True, **more)
    return plan_model(options, sink=sink).plan, sink


def test_sizes_that_the_file_or_dim_fixes_are_not_planned_as_others(tmp_path: Path) -> None:
    fixed = written(tmp_path / "m.onnx", batch=1, seq=1, past=7, total=8)
    for more, words in (
        ({"context": 8, "batch": 2}, "the file fixes the batch to 1, and 2 is asked for"),
        ({"context": 6}, "the file fixes the positions of its caches to 8, and 6 is asked for"),
    ):
        with pytest.raises(InvalidInput, match=words):
            planned(fixed, **more)
    open_sizes = written(tmp_path / "n.onnx")
    for more, words in (
        ({"batch": 2, "dims": {"batch": 4}}, "--dim batch fixes the batch to 4, and 2"),
        ({"dims": {"past": 4}}, "--dim past fixes the positions of its caches to 5, and 8"),
        ({"dims": {"seq": 2}}, "--dim seq fixes the tokens of a step to 2, and 1"),
    ):
        with pytest.raises(UsageError, match=words):
            planned(open_sizes, context=8, **more)
    assert "groups of 4" in dict(planned(open_sizes, context=8, groups=2, dims={"batch": 4})[0].certificate)["tokens"]


def test_one_row_of_positions_is_of_one_sequence(tmp_path: Path) -> None:
    text = MODEL.replace("SCALED", "scaled = Identity (scores)").replace("IDS", "ids = Identity (numbers)")
    text = text.replace("[batch, seq] position_ids", "[1, seq] position_ids")
    text = text.replace("turned = Unsqueeze (places, axes)", "wide = Unsqueeze (places, axes) turned = Max (wide, rows)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    planned(str(tmp_path / "m.onnx"), context=8)
    with pytest.raises(InvalidInput, match=r"position_ids \(positions\) is tensor<1x1xi64>: it has one row for all of 2"):
        planned(str(tmp_path / "m.onnx"), context=8, batch=2)


def test_a_mask_that_is_said_to_have_the_ids_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    model = onnx.load(path)
    mask = onnx.helper.make_tensor_value_info("attention_mask", onnx.TensorProto.INT64, ("batch", "past + seq"))
    model.graph.input.append(mask)
    onnx.save(model, path)
    with pytest.raises(InvalidInput, match="attention_mask cannot have the token ids: it has 8 numbers for each") as refused:
        planned(path, context=8, roles=("attention_mask=ids",))
    assert refused.value.diagnostics[0].where == "--role attention_mask=ids"


def test_a_batch_that_the_file_fixes_is_the_only_one_that_is_tried(tmp_path: Path) -> None:
    fixed = written(tmp_path / "m.onnx", batch=2, seq=1, past=7, total=8)
    plan, _ = planned(fixed, context=8, objective="tokens")
    assert dict(plan.certificate)["chosen"].startswith("among 1 to 256 groups and a batch of 2;")
    assert plan.value <= plan.bound * 1.01
    assert "1 group of 2" in dict(planned(fixed, context=8, objective="token-latency")[0].certificate)["tokens"]


def test_a_length_of_the_past_that_the_file_fixes_is_told(tmp_path: Path) -> None:
    """Scores are scaled by it, which no second length shows; and no prompt program takes more tokens than the file."""
    scaled = 'length = Shape <start = 2, end = 3> ("past_key_values.0.key")\n number = Cast <to = 1> (length)\n'
    fixed = written(tmp_path / "m.onnx", f"{scaled} scaled = Div (scores, number)", batch=1, seq=1, past=7, total=8)
    sink = DiagnosticSink()
    compile_model(CompileOptions(fixed, "preset:cpu-2", tmp_path / "b", context=8, report=False, load_test=False), sink=sink)
    past, prompt = sink.diagnostics
    assert (past.code, past.where) == ("W1054", "past_key_values.0.key")
    assert "the file fixes the tokens of a step to 1" in prompt.message
    assert not (tmp_path / "b" / "stages" / "stage0.prompt.onnx").exists()


@pytest.mark.slow
def test_the_certificate_counts_the_batches_that_were_read(tmp_path: Path) -> None:
    """Where the step of one batch is not that of another, every second batch is planned."""
    plan, _ = planned(written(tmp_path / "m.onnx", ids=OF_BATCH), context=8, objective="tokens", groups=1)
    assert dict(plan.certificate)["chosen"].startswith("among 1 groups and 14 batches from 1 to")


def test_a_file_without_sizes_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same for every batch, step and context; the others are read with sizes of their own."""
    reads = list[dict[str, object]]()

    def counted(options: CompileOptions, sink: DiagnosticSink) -> Module:
        reads.append(dict(options.dims))
        return load_step(options, sink)

    monkeypatch.setattr("dnnc.compile.decoding.steps.load_step", counted)
    model = written(tmp_path / "m.onnx")
    every: tuple[dict[str, Any], ...] = ({"objective": "tokens"}, {"batch": 2, "chunk": 4})
    for asked in every:
        reads.clear()
        planned(model, context=8, **asked)
        assert reads.count({}) == 1
        assert len(set(map(str, reads))) == len(reads)
