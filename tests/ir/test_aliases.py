"""Aliases: named once, read back as what they stand for, and never in the way of a fault's place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ir import parse_module, print_module
from ir.aliases import LEAST_SHARED
from ir.facets import Cost
from ir.module import Func, Module
from ir.ops import Location, Op, Region, Value
from ir.types import DType, TensorType

TENSOR = TensorType(DType.F32, (4,))
COSTS = st.sampled_from([Cost(flops=10**9, read=10**9, write=10**k, weight=10**9, kind="matmul") for k in range(3)])
NAMES = st.lists(st.sampled_from(["h", "0", "1", "attn", "MatMul", "_output_0", 'a"b']), min_size=1, max_size=4)


@st.composite
def called_ops(draw: st.DrawFn, inner: bool = True) -> tuple[Op, ...]:
    """Ops called as exporters call them, of few costs and few locations."""
    ops = []
    for number in range(draw(st.integers(0, 6))):
        name = draw(st.sampled_from([".", "/", ""])).join([*draw(NAMES), str(number)]) + draw(
            st.sampled_from(["", "_output_0"])
        )
        node = draw(st.sampled_from([name, "/" + name.replace(".", "/"), name.rpartition("_output_")[0], "", "node"]))
        scope = draw(st.sampled_from([name.rpartition(".")[0], "", "scope"]))
        location = Location("main" if node or scope else draw(st.sampled_from(["", "main"])), node, scope)
        results = (Value(f"%{name}", TENSOR),) if draw(st.booleans()) else ()
        regions = (("body", Region((), draw(called_ops(inner=False)), ())),) if inner and draw(st.booleans()) else ()
        ops.append(Op("onnx.Relu", (), results, (), regions, (draw(COSTS),), location))
    return tuple(ops)


@given(called_ops())
def test_a_text_with_aliases_reads_back_and_prints_the_same(ops: tuple[Op, ...]) -> None:
    module = Module("@m", (Func("@main", (), (), ops),))
    text = print_module(module)
    assert parse_module(text) == module == parse_module(print_module(module, aliases=False))
    assert print_module(parse_module(text)) == text


def test_what_stands_often_is_named_once() -> None:
    cost = Cost(flops=10**9, read=10**9, write=10**9, weight=10**9, kind="matmul")
    names = [f"h.{number}.attn" for number in range(LEAST_SHARED)]
    ops = tuple(
        Op("onnx.Relu", (), (Value(f"%{name}", TENSOR),), (), (), (cost,), Location("main", f"/h/{n}/attn", f"h.{n}"))
        for n, name in enumerate(names)
    )
    text = print_module(Module("@m", (Func("@main", (), (), ops),)))
    assert (text.count("cost<"), text.count("loc(")) == (1, 1)
    assert text.endswith('#loc0 = loc("main", slashed, parent)\n')


def test_the_short_form_leaves_out_what_only_a_compiler_reads() -> None:
    text = """module @m {
  resource @w : tensor<200xf32> = inline(hex"%s")
  func @main(%%x : tensor<200xf32>) -> (%%y : tensor<200xf32>) {
    %%y = onnx.Add(%%x, @w) : tensor<200xf32> cost<flops = 200, kind = elementwise> stage<1> loc("main", "/add")
  }
}
""" % ("00" * 800)
    short = print_module(parse_module(text), short=True)
    assert (
        short
        == """module @m {
  resource @w : tensor<200xf32> = inline(..)
  func @main(%x : tensor<200xf32>) -> (%y : tensor<200xf32>) {
    %y = onnx.Add(%x, @w) : tensor<200xf32> stage<1>
  }
}
"""
    )
