"""Aliases: named once, read back as what they stand for, and never in the way of a fault's place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir import parse_module, print_module
from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import Cost
from ir.core.module import External, Func, Inline, Module, Random, Resource, Splat
from ir.core.ops import Location, Op, Region, Value
from ir.core.types import DType, TensorType
from ir.text.aliases import LEAST_SHARED
from ir.text.renaming import Renaming, renaming

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


def test_a_call_gives_the_operands_that_do_not_follow_from_the_first_one() -> None:
    weights = [f"@h.{layer}.{name}" for layer in (0, 1) for name in ("a", "b", "c")]
    text = f"""module @m {{
  func @main(%x : tensor<4xf32>, {", ".join(f"%{name[1:]} : tensor<4xf32>" for name in weights)}) -> () {{
    %h.0 = dnnc.call(%x, %h.0.a, %h.0.b, %h.0.c) {{callee = @f}} : tensor<4xf32> loc(?)
    %h.1 = dnnc.call(%h.0, ..) {{callee = @f, rename = ["h.0", "h.1"]}} : tensor<4xf32> loc(?)
  }}
}}
"""
    module = parse_module(text)
    assert module.entry.ops[1].operands == ("%h.0", "%h.1.a", "%h.1.b", "%h.1.c")
    again = print_module(module)
    assert "dnnc.call(%h.0, ..)" in again
    assert parse_module(again) == module


def test_a_long_run_of_numbers_is_a_range() -> None:
    op = Op("onnx.A", attributes=attributes({"a": (*range(-3, 40), 7, 8), "b": (0, 1, 2, 3)}))
    text = print_module(module := Module("@m", (Func("@main", (), (), (op,)),)))
    assert "{a = [-3..39, 7, 8], b = [0, 1, 2, 3]}" in text
    assert parse_module(text) == module


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%y = dnnc.call(%x, ..) {callee = @f} : tensor<f32>", "there is none before"),
        ("%y = onnx.Add(%x, ..) : tensor<f32>", "stands for operands of a call"),
        ("%y = onnx.A(%x) {a = [3..1]} : tensor<f32>", "a range that ascends"),
        ("%y = onnx.A(%x) {a = [0..99999999999]} : tensor<f32>", "at most 8,388,608 numbers"),
    ],
)
def test_a_shorthand_that_stands_for_nothing_is_told_in_its_place(line: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_module(f"module @m {{\n  func @main(%x : tensor<f32>) -> () {{\n    {line}\n  }}\n}}\n")
    (fault,) = caught.value.diagnostics
    assert words in fault.message
    assert fault.span is not None
    assert fault.span.line == 3


@given(st.lists(st.tuples(*[st.text("h.01/a", max_size=6)] * 2), max_size=8))
def test_a_renaming_gives_every_text_it_was_made_for(pairs: list[tuple[str, str]]) -> None:
    found = renaming(pairs)
    clash = len(dict(pairs)) < len(set(pairs))
    assert (found is None) == (clash or any(a != b and not (a and b) for a, b in pairs))
    if found is not None:
        again = Renaming(found.flat())
        assert all(again.renamed(before) == after for before, after in pairs)
        assert [again.name(f"%{before}") for before, _ in pairs] == [f"%{after}" for _, after in pairs]


def test_a_renaming_of_layers_is_a_beginning_for_all_their_names() -> None:
    names = ["h.1.attn.q", "h.1.ln_1", "h.1", "h.10.attn", "x"]
    found = renaming((name, name.replace("h.1.", "h.7.").removesuffix("h.1") or "h.7") for name in names)
    assert found is not None
    assert found.flat() == ("h.1", "h.7")


def test_layers_of_weights_are_said_to_be_like_the_first() -> None:
    resources = tuple(
        Resource(f"@h.{layer}.{name}", TENSOR, data)
        for layer in (0, 1, 10, 2)
        for name, data in (
            ("a", Random("normal", layer)),
            ("b", External("w.data", 64 * layer, 16)),
            ("c", Random("normal", 7)),
            ("d", Splat(0.0)),
        )
    )
    text = print_module(module := Module("@m", (*resources, Func("@main", (), (), ()))))
    assert text.count("resource") == 4
    assert 'like ["h.0", "h.10"] {seed = [10, 7], offset = [640]}' in text
    assert parse_module(text) == module


NUMBERS = st.integers(0, 2)


@given(
    st.lists(st.tuples(NUMBERS, st.sampled_from("abcd"), NUMBERS, NUMBERS), max_size=30, unique_by=lambda w: w[:2]), st.data()
)
def test_weights_in_any_order_read_back(weights: list[tuple[int, str, int, int]], data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        weights.sort()
    resources = tuple(
        Resource(f"@h.{layer}.{name}", TENSOR, Random("normal", seed) if kind else External("w", 64 * seed, 16))
        for layer, name, kind, seed in weights
    )
    module = Module("@m", (*resources, Func("@main", (), (), ())))
    assert parse_module(print_module(module)) == module


def test_long_data_stand_behind_the_module() -> None:
    data = Inline(bytes(range(256)) * 4)
    module = Module("@m", (Resource("@w", TensorType(DType.U8, (1024,)), data), Func("@main", (), (), ())))
    text = print_module(module)
    assert "= inline(#data0)\n" in text
    assert text.splitlines()[-1].startswith('#data0 = base64"')
    assert parse_module(text) == module


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('like ["h.1", "h.2"]', "no resource before begins with 'h.1'"),
        ('like ["h.0"]', "expected what names begin with"),
        ('like ["h.0", "h.1"] {seed = [1, 2]}', "too many numbers"),
        ('like ["h.0", "h.1"] {seed = []}', "too few numbers"),
        ('like ["h.0", "h.1"] {scale = [1]}', "expected seed or offset"),
        ('like ["h.0", "h.1"] {seed = [x]}', "a list of integers"),
        ("resource @v : tensor<4xf32> = inline(#data0)", "alias #data0 is not defined"),
    ],
)
def test_resources_like_none_are_told_in_their_place(line: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_module(f"module @m {{\n  resource @h.0.w : tensor<4xf32> = random(normal, seed = 1)\n  {line}\n}}\n")
    fault = caught.value.diagnostics[0]
    assert words in fault.message
    assert fault.span is not None
    assert fault.span.line == 3
