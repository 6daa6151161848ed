"""What is computed from positions alone stands in each stage that reads it."""

from __future__ import annotations

from ir import load_module
from ir.core.facets import StageSet
from passes.graph.graph import cuts_of
from passes.graph.positional import positional, spread

TEXT = """module @m {
  resource @one : tensor<i64> = inline([1])
  state @h : tensor<4xi64> = "h.next"
  func @main(
      %position : tensor<4xi64>, %x : tensor<4xi64>) -> (
      %y : tensor<4xi64>, %h.next : tensor<4xi64>) {decoding.position = "position"} {
    %a = onnx.Add(%position, @one) : tensor<4xi64> stage<2>
    %b = onnx.Neg(%a) : tensor<4xi64> stage<2>
    %c = onnx.Neg(%a) : tensor<4xi64> stage<2>
    %h.next = onnx.Add(%position, @h) : tensor<4xi64> stage<0>
    %u = onnx.Add(%x, %b) : tensor<4xi64> stage<0>
    %v = onnx.Neg(%u) : tensor<4xi64> stage<1>
    %y = onnx.Add(%v, %c) : tensor<4xi64> stage<2>
  }
}"""


def test_positional_ops_are_computed_where_they_are_read() -> None:
    module = load_module(TEXT)
    assert positional(module) == {0, 1, 2}
    after = spread(module)
    assert [op.facet(StageSet, StageSet(())).stages for op in after.entry.ops] == [(0, 2), (0,), (2,), (0,), (0,), (1,), (2,)]
    assert [cut.name for cut in cuts_of(after.entry)] == ["%u", "%v"]


def test_a_function_without_positions_has_none() -> None:
    module = load_module(TEXT.replace(' {decoding.position = "position"}', ""))
    assert positional(module) == frozenset()
    assert spread(module) is module
