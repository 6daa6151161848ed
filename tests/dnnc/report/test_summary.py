"""Summaries count what is in a model: ops in regions once, costs once per run, dimensions that can be bound."""

from __future__ import annotations

from dataclasses import replace

from dnnc.report import summarize, summary_text
from dnnc.report.summary import Repeated
from ir import parse_module
from passes.graph.folding import fold

TEXT = """
module @m {opset.onnx = 20, producer = "hand"} {
  resource @w : tensor<8x8xf16> = splat(0.0)
  func @main(%x : tensor<n x "2*seq" x 8 x f16>, %c : tensor<bool>) -> (%y : tensor<n x "2*seq" x 8 x f16>) {
    %h = onnx.MatMul(%x, @w) : tensor<n x "2*seq" x 8 x f16> cost<flops = 100, kind = matmul>
    %y = onnx.If(%c) : tensor<n x "2*seq" x 8 x f16> cost<flops = 7, kind = default>
      region else_branch() {
        %b = onnx.Odd(%h) : tensor<n x "2*seq" x 8 x f16> cost<kind = default>
        yield %b
      }
      region then_branch() {
        %a = onnx.Relu(%h) : tensor<n x "2*seq" x 8 x f16> cost<flops = 7, kind = elementwise>
        yield %a
      }
  }
}
"""


def test_summary_counts() -> None:
    summary = summarize(parse_module(TEXT))
    assert summary.ops == (("onnx.If", 1), ("onnx.MatMul", 1), ("onnx.Odd", 1), ("onnx.Relu", 1))
    assert (summary.parameters, summary.weight_bytes) == (64, 128)
    assert summary.flops == 107, "the op with regions carries their sum; they are not counted twice"
    assert (summary.formula_ops, summary.default_ops) == (2, (("onnx.If", 1), ("onnx.Odd", 1)))
    assert summary.dims == ("n", "seq")
    assert summary.producer == "hand"
    assert summary.to_json()["opsets"] == {"onnx": 20}


def test_costs_may_come_from_a_later_form_of_the_program() -> None:
    """Ops are those of the model as it was given, costs those of the canonical one."""
    plain = parse_module(TEXT.replace("cost<flops = 100, kind = matmul>", "").replace(" cost<kind = default>", ""))
    summary = summarize(plain, parse_module(TEXT))
    assert summary.flops == 107
    assert summarize(parse_module("module @m {\n  func @main() -> () {\n  }\n}\n")).flops is None


def test_summary_text_says_what_is_not_covered_by_a_formula() -> None:
    text = summary_text(summarize(parse_module(TEXT)))
    assert "2 ops by formula; by bytes only: 1 onnx.If, 1 onnx.Odd" in text
    assert "n, seq (bind with --dim NAME=NUMBER)" in text
    assert "64 elements, 128 B" in text


def test_a_folded_module_is_counted_expanded() -> None:
    """Its functions are told beside: ops with those of functions inside, copies, what was decided in them."""
    layers = "".join(
        f'    %h{i} = onnx.MatMul(%x{i}, @w) : tensor<8x8xf16, @mesh[S(1)]> shard<"n">\n'
        f'    %a{i} = onnx.Relu(%h{i}) : tensor<8x8xf16> shard<"">\n'
        f"    %x{i + 1} = onnx.Add(%a{i}, %x{i}) : tensor<8x8xf16> stage<0>\n"
        for i in range(3)
    )
    module = parse_module(
        "module @m {\n  resource @w : tensor<8x8xf16> = declared\n"
        "  func @main(%x0 : tensor<8x8xf16>) -> (%x3 : tensor<8x8xf16>) {\n"
        f"{layers}"
        "  }\n  mesh @mesh [x = 2] on [a, b]\n}\n"
    )
    folded = fold(module)
    assert len(folded.entry.ops) == 3
    plain, summary = summarize(module), summarize(folded)
    assert replace(summary, repeats=()) == plain
    assert summary.repeats == (Repeated("@block_0.v1", 3, 3, ("layout", "shard", "stage")),)
    assert "@block_0.v1    3       3  layout, shard, stage" in summary_text(summary)
    assert summary.to_json()["repeats"][0]["copies"] == 3
