"""Unfuse: the same numbers, in whatever form parts are taken; models whose fused projections it finds; parts without a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.compile.load import load_model
from dnnc.onnx import DIALECTS
from dnnc.onnx.weights import read_resource
from ir import DType, Module, TensorType, parse_module, print_module, verify
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import External, Inline, Random, Resource, View
from passes.framework.base import PassContext
from passes.prepare.canonicalize.unfuse import UnfusePass
from passes.prepare.canonicalize.unfuse.parts import part_data
from tests.ir.layout_rules.test_models import canonical, imported
from tests.passes.running import run

SMALL = "layers=2,hidden=64,heads=4,vocab=100"


def unfused(module: Module) -> tuple[Module, int]:
    """The module after the pass, and how many products it took apart."""
    context = PassContext()
    result = UnfusePass().run(module, context)
    assert verify(result, dialects=DIALECTS) == []
    assert parse_module(print_module(result)) == result
    assert UnfusePass().run(result, PassContext()) == result
    products = context.statistics["unfuse"]["products"]
    assert isinstance(products, int)
    return result, products


def same_numbers(before: Module, after: Module, folder: Path | None = None, integers: int = 50) -> None:
    random = np.random.default_rng(0)
    inputs = {}
    for arg in before.entry.args:
        assert isinstance(arg.type, TensorType)
        shape = [dim for dim in arg.type.shape or () if isinstance(dim, int)]
        whole = arg.type.dtype is DType.I64
        inputs[arg.name[1:]] = random.integers(0, integers, shape) if whole else random.normal(size=shape).astype(np.float32)
    expected, found = run(before, inputs, folder), run(after, inputs, folder)
    assert list(expected) == list(found)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5 * np.ptp(value), rtol=0)


def text(shape: list[int]) -> str:
    return f"tensor<{''.join(f'{dim}x' for dim in shape)}f32>"


def program(form: str, where: int, sizes: list[int], rows: list[int], inner: int, bias: str, transposed: bool) -> str:
    """A fused projection to ``rows`` and columns that are divided by ``form``: cut along dimension ``where`` of three."""
    dims = [2, 3, 2]
    dims[where] = sum(sizes)
    columns = int(np.prod(dims))
    flat, divided = [int(np.prod(rows)), columns], [*rows, *dims]
    lines = []
    resources = [
        f"resource @w : {text([columns, inner] if transposed else [inner, columns])} = random(normal, seed = 3)",
        f"resource @b : {text([columns])} = random(normal, seed = 4)",
        f"resource @shape : tensor<{len(divided)}xi64> = inline({divided})",
        f"resource @sizes : tensor<{len(sizes)}xi64> = inline({sizes})",
    ]
    product = "onnx.Gemm" if transposed or bias == "gemm" else "onnx.MatMul"
    operands = "%x, @w" + (", @b" if bias == "gemm" else "")
    lines.append(
        f"%p = {product}({operands}) {{{'transB = 1' if transposed else 'k = 0'}}} : {text(flat)}".replace(" {k = 0}", "")
    )
    current = "%p"
    if bias == "add":
        lines.append(f"%s = onnx.Add(@b, %p) : {text(flat)}")
        current = "%s"
    lines.append(f"%r = onnx.Reshape({current}, @shape) : {text(divided)}")
    perm = [len(rows) + where, *(axis for axis in range(len(divided)) if axis != len(rows) + where)]
    moved = [divided[axis] for axis in perm]
    lines.append(f"%t = onnx.Transpose(%r) {{perm = {perm}}} : {text(moved)}")
    results = []
    if form == "split":
        types = [text([size, *moved[1:]]) for size in sizes]
        results = [f"%y{i} : {type_}" for i, type_ in enumerate(types)]
        lines.append(f"{', '.join(f'%y{i}' for i in range(len(sizes)))} = onnx.Split(%t, @sizes) : {', '.join(types)}")
    at = 0
    for i, size in enumerate(sizes if form != "split" else []):
        if form == "slice":
            resources.append(f"resource @from{i} : tensor<1xi64> = inline([{at}])")
            resources.append(f"resource @to{i} : tensor<1xi64> = inline([{at + size if i + 1 < len(sizes) else 2**63 - 1}])")
            type_ = text([size, *moved[1:]])
            lines.append(f"%y{i} = onnx.Slice(%t, @from{i}, @to{i}) : {type_}")
        else:
            resources.append(f"resource @at{i} : tensor<i64> = inline([{at - sum(sizes) if i % 2 else at}])")
            type_ = text(moved[1:])
            lines.append(f"%y{i} = onnx.Gather(%t, @at{i}) : {type_}")
        results.append(f"%y{i} : {type_}")
        at += size
    body = "\n".join(f"    {line}" for line in lines)
    head = "\n".join(f"  {line}" for line in resources)
    signature = f"func @main(%x : {text([flat[0], inner])}) -> ({', '.join(results)})"
    return f"module @m {{opset.onnx = 20}} {{\n{head}\n  {signature} {{\n{body}\n  }}\n}}\n"


@given(
    form=st.sampled_from(["split", "slice", "gather"]),
    where=st.integers(0, 2),
    sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    rows=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    inner=st.integers(1, 4),
    bias=st.sampled_from(["", "add", "gemm"]),
    transposed=st.booleans(),
)
@settings(deadline=None, max_examples=12)
def test_any_form_gives_the_same_numbers(
    form: str, where: int, sizes: list[int], rows: list[int], inner: int, bias: str, transposed: bool
) -> None:
    if form == "gather":
        sizes = [1] * len(sizes)
    before = parse_module(program(form, where, sizes, rows, inner, bias, transposed))
    assert verify(before, dialects=DIALECTS) == []
    after, products = unfused(before)
    assert products == 1
    kinds = [op.name for op in after.entry.ops]
    assert sum(kind in ("onnx.MatMul", "onnx.Gemm") for kind in kinds) == len(sizes)
    assert not {"onnx.Split", "onnx.Slice", "onnx.Gather"} & set(kinds)
    same_numbers(before, after)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(f"zoo:gpt2,{SMALL}", 2), ("zoo:vit-base,layers=2,hidden=64,heads=4,image=32,patch=16,classes=10", 0)],
)
def test_zoo(spec: str, expected: int) -> None:
    before = canonical(imported(spec))
    after, products = unfused(before)
    assert products == expected
    same_numbers(before, after)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("bert", 0), ("gpt2", 4), ("llama", 0), ("vit", 0), ("resnet", 0)])
def test_shared_models(name: str, expected: int, shared_dir: Path) -> None:
    spec = str(shared_dir / "models" / f"{name}.onnx")
    before = canonical(imported(spec))
    after, products = unfused(before)
    assert products == expected
    if expected:
        same_numbers(before, after, load_model(spec, {}, DiagnosticSink()).files)
        assert any(isinstance(resource.data, View) for resource in after.resources.values())


def test_chains_of_one_weight_share_its_parts() -> None:
    body = "\n".join(
        f"%p{i} = onnx.MatMul(%x, @w) : tensor<3x4xf32>\n"
        f"%a{i}, %b{i} = onnx.Split(%p{i}) {{axis = 1, num_outputs = 2}} : tensor<3x2xf32>, tensor<3x2xf32>"
        for i in range(2)
    )
    results = ", ".join(f"%{name}{i} : tensor<3x2xf32>" for i in range(2) for name in "ab")
    weight = "resource @w : tensor<5x4xf32> = declared"
    source = f"module @m {{\n {weight}\n func @main(%x : tensor<3x5xf32>) -> ({results}) {{\n{body}\n}} }}"
    after, products = unfused(parse_module(source))
    assert products == 2
    assert sorted(after.resources) == ["@w.0", "@w.2"]
    other = source.replace("%a1, %b1 = onnx.Split(%p1)", "%c1, %d1 = onnx.Split(%p1)")
    other = other.replace("%a1 :", "%c1 :").replace("%b1 :", "%d1 :")
    uneven = other.replace(": tensor<3x2xf32>, tensor<3x2xf32>\n}", ": tensor<3x1xf32>, tensor<3x3xf32>\n}")
    uneven = uneven.replace("%c1 : tensor<3x2xf32>, %d1 : tensor<3x2xf32>", "%c1 : tensor<3x1xf32>, %d1 : tensor<3x3xf32>")
    assert unfused(parse_module(uneven))[1] == 0


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
    inline=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_part_of_any_box(shape: list[int], data: st.DataObject, inline: bool) -> None:
    """A file, where it lies, or a generated tensor: the elements of the box."""
    start = [data.draw(st.integers(0, size - 1)) for size in shape]
    length = [data.draw(st.integers(1, size - first)) for size, first in zip(shape, start, strict=True)]
    whole = Resource("@w", TensorType(DType.F32, tuple(shape)), Random("normal", 3))
    numbers = read_resource(whole, Path())
    if inline:
        whole = Resource("@w", whole.type, Inline(numbers.tobytes()))
    part = part_data(whole, shape, start, length)
    assert part is not None
    found = read_resource(Resource("@p", TensorType(DType.F32, tuple(length)), part), Path())
    box = tuple(slice(first, first + count) for first, count in zip(start, length, strict=True))
    assert (found == numbers[box]).all()


def test_rows_of_a_file_are_a_place_in_it() -> None:
    whole = Resource("@w", TensorType(DType.F32, (6, 4)), External("w.data", 64, 96))
    assert part_data(whole, (6, 4), (2, 0), (2, 4)) == External("w.data", 96, 32)
    assert part_data(whole, (3, 2, 4), (1, 1, 0), (1, 1, 4)) == External("w.data", 64 + 4 * 12, 16)
    assert isinstance(part_data(whole, (3, 2, 4), (0, 1, 0), (3, 1, 4)), View)


PACKED_ATTENTION = """module @m {{opset.onnx = 21, opset.com.microsoft = 1}} {{
  {weights}
  resource @last : tensor<2xi32> = inline([3, 5])
  resource @total : tensor<i32> = inline([8])
  func @main(%x : tensor<2x1x32xf32>, %a : tensor<2x2x8x16xf32>, %b : tensor<2x2x8x16xf32>)
      -> (%y : tensor<2x1x64xf32>, %c : tensor<2x2x8x16xf32>, %d : tensor<2x2x8x16xf32>) {{
    {product} : tensor<2x1x128xf32>
    %y, %c, %d = onnx.com.microsoft.GroupQueryAttention(%q, _, _, %a, %b, @last, @total) {{num_heads = 4, kv_num_heads = 2}}
        : tensor<2x1x64xf32>, tensor<2x2x8x16xf32>, tensor<2x2x8x16xf32>
  }}
}}
"""
FULL = ("resource @w : tensor<32x128xf32> = random(normal, seed = 1)", "%q = onnx.MatMul(%x, @w)")
INT4 = (
    "resource @w : tensor<128x2x8xu8> = random(uniform, seed = 1, scale = 128, mean = 127.5)\n"
    "resource @s : tensor<128x2xf32> = random(uniform, seed = 2, scale = 0.02, mean = 0.1)\n"
    "resource @z : tensor<128x1xu8> = random(uniform, seed = 3, scale = 128, mean = 127.5)\n"
    "resource @c : tensor<128xf32> = random(normal, seed = 4)",
    "%q = onnx.com.microsoft.MatMulNBits(%x, @w, @s, @z, _, @c) {K = 32, N = 128, bits = 4, block_size = 16}",
)


@pytest.mark.parametrize("form", [FULL, INT4], ids=["f32", "int4"])
def test_an_attention_of_one_operand(form: tuple[str, str]) -> None:
    weights, product = form
    before = parse_module(PACKED_ATTENTION.format(weights=weights, product=product))
    assert verify(before, dialects=DIALECTS) == []
    after, products = unfused(before)
    assert products == 1
    assert len(after.entry.ops) == 4
    same_numbers(before, after)
