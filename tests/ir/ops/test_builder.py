"""The builder: names stay unique, and what it builds verifies."""

from __future__ import annotations

import pytest

from ir import (
    Attribute,
    AttrKind,
    BodyBuilder,
    Builder,
    Cost,
    DType,
    Group,
    Location,
    Op,
    Splat,
    TensorType,
    Value,
    print_module,
    verify,
)

F32 = TensorType(DType.F32, (4,))


def test_a_module_with_a_region() -> None:
    module = Builder("m", producer="test")
    weight = module.resource("w", F32, Splat(1.0))
    with module.func("main", note="entry") as func:
        func.location = Location("main")
        x = func.arg("x", F32)
        h = func.op("onnx.Add", (x, weight), F32, name="h", attrs={"axis": 1}, facets=(Group(1), Cost(4)))
        body = func.region()
        inner = body.op("onnx.Relu", (h,), F32, name="h")
        y = func.op("onnx.If", (x,), F32, name="y", regions=(("then_branch", body.build((inner,))),))
        func.op("onnx.Relu", (y,), F32, name="y")
        func.result(y)
        func.result(weight, F32)
    built = module.build()
    assert verify(built) == []
    assert print_module(built) == (
        'module @m {producer = "test"} {\n'
        "  resource @w : tensor<4xf32> = splat(1.0)\n"
        '  func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>, @w : tensor<4xf32>) {note = "entry"} {\n'
        '    %h = onnx.Add(%x, @w) {axis = 1} : tensor<4xf32> cost<flops = 4, kind = default> group<1> loc("main")\n'
        '    %y = onnx.If(%x) : tensor<4xf32> loc("main")\n'
        "      region then_branch() {\n"
        "        %h_1 = onnx.Relu(%h) : tensor<4xf32> loc(?)\n"
        "        yield %h_1\n"
        "      }\n"
        '    %y_1 = onnx.Relu(%y) : tensor<4xf32> loc("main")\n'
        "  }\n"
        "}\n"
    )


def test_symbols_are_unique() -> None:
    module = Builder()
    assert [module.resource("w", F32, Splat(0.0)) for _ in range(3)] == ["@w", "@w_1", "@w_2"]
    with module.func("w") as func:
        pass
    assert func.name == "@w_3"
    with pytest.raises(ValueError, match="@w is there already"):
        module.add(module.symbols[0])


def test_clone_renames_regions_too() -> None:
    source = BodyBuilder()
    x = source.arg("x", F32)
    body = source.region()
    inner = body.op("onnx.Relu", (x,), F32, name="t")
    source.op("onnx.If", (x,), F32, name="y", regions=(("body", body.build((inner,))),))
    target = BodyBuilder({"%y", "%t"})
    mapping = {"%x": "%z"}
    copy = target.clone(source.ops[0], mapping, Group(3))
    assert copy.operands == ("%z",)
    assert copy.results == (Value("%y_1", F32),)
    assert copy.regions[0][1].ops[0] == Op("onnx.Relu", ("%z",), (Value("%t_1", F32),))
    assert copy.regions[0][1].results == ("%t_1",)
    assert copy.facets == (Group(3),)
    assert mapping == {"%x": "%z", "%y": "%y_1", "%t": "%t_1"}


def test_attributes_with_a_kind_of_their_own() -> None:
    body = BodyBuilder()
    body.op("dnnc.call", (), F32, attrs={"callee": Attribute(AttrKind.SYMBOL, "@f"), "axes": Attribute(AttrKind.INTS, ())})
    assert body.ops[0].attributes == (("axes", Attribute(AttrKind.INTS, ())), ("callee", Attribute(AttrKind.SYMBOL, "@f")))
