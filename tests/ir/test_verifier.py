"""The verifier: every invariant of its list has a golden case that breaks it; what text cannot express is broken here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ir.verifier
from ir import (
    Attribute,
    AttrKind,
    Cost,
    DType,
    Func,
    Group,
    InvalidInput,
    Module,
    Op,
    TensorType,
    Time,
    Value,
    attributes,
    load_module,
    parse,
    verify,
)

REPO = Path(__file__).resolve().parent.parent.parent
F32 = TensorType(DType.F32, (4,))


def test_every_invariant_has_a_golden_case() -> None:
    listed = re.findall(r"^- (INV\d\d) ", ir.verifier.__doc__ or "", re.MULTILINE)
    assert listed == [f"INV{number:02}" for number in range(1, len(listed) + 1)]
    expected = "\n".join(path.read_text() for path in sorted((REPO / "golden" / "ir" / "verify").glob("*.ir")))
    broken = set(re.findall(r"// error: (INV\d\d):", expected))
    assert sorted(broken) == listed


def in_main(*ops: Op) -> Module:
    return Module("@m", (Func("@main", (Value("%x", F32),), (), ops),))


def messages(module: Module) -> list[str]:
    return [diagnostic.message for diagnostic in verify(module)]


def test_sigils() -> None:
    module = Module("m", (Func("main", (Value("x", F32),), (), (Op("onnx.Relu", ("y",)),)),))
    assert [message[:5] for message in messages(module)] == ["INV01"] * 4


def test_order_of_attributes_and_facets() -> None:
    keys = (("b", Attribute(AttrKind.INT, 1)), ("a", Attribute(AttrKind.INT, 1)))
    op = Op("onnx.Relu", ("%x",), (Value("%y", F32),), keys, facets=(Group(1), Cost()))
    assert messages(in_main(op)) == [
        "INV08: of %y: attribute 'a' stands behind 'b'; attributes are sorted, each once",
        "INV09: of %y: facet 'cost' stands behind 'group'; facets are sorted, each once",
    ]
    op = Op("onnx.Relu", ("%x",), (Value("%y", F32),), facets=(Time((("b", 1.0), ("a", 1.0))),))
    assert messages(in_main(op)) == ["INV09: of %y: the device types of time are not sorted, each once"]


@pytest.mark.parametrize("kind", [AttrKind.INT, AttrKind.FLOAT, AttrKind.BYTES, AttrKind.TENSOR, AttrKind.TYPE])
def test_values_of_another_kind(kind: AttrKind) -> None:
    op = Op("onnx.Relu", ("%x",), (Value("%y", F32),), (("a", _unchecked(kind, "text")),))
    assert len(messages(in_main(op))) == 1
    assert messages(in_main(op))[0].startswith("INV08: of %y: attribute 'a' ")


def _unchecked(kind: AttrKind, value: object) -> Attribute:
    """An attribute that the constructor would not let through."""
    attribute = Attribute(AttrKind.STRING, value)
    object.__setattr__(attribute, "kind", kind)
    return attribute


def test_a_place_without_a_text_names_symbol_and_op() -> None:
    diagnostic = verify(in_main(Op("onnx.Relu", ("%gone",), (Value("%y", F32),))))[0]
    assert str(diagnostic) == "@main, %y = onnx.Relu: error[E2301]: INV04: operand %gone is used but never assigned"


def test_a_place_in_a_text_is_line_and_column() -> None:
    text = "module @m {\n  func @main() -> () {\n    %y = onnx.Add(%a, %b) : tensor<4xf32>\n  }\n}\n"
    result = parse(text, "m.ir")
    found = verify(result.module, result.source_map)
    assert [(d.where, d.span and (d.span.line, d.span.column)) for d in found] == [("m.ir", (3, 19)), ("m.ir", (3, 23))]
    with pytest.raises(InvalidInput, match=r"m\.ir:3:19: error\[E2301\]: INV04: operand %a is used but never assigned"):
        load_module(text, "m.ir")


def test_a_flood_of_faults_is_cut() -> None:
    ops = tuple(Op("onnx.Relu", ("%gone",), (Value(f"%y{i}", F32),)) for i in range(1000))
    found = verify(in_main(*ops))
    assert len(found) == ir.verifier.findings.LIMIT + 1
    assert found[-1].message == "900 more broken invariants"


def test_shared_bodies_counts_paths_not_sites() -> None:
    """@c is called once in the text but twice in the program, through @b."""

    def call(callee: str, result: str) -> Op:
        attrs = attributes(callee=Attribute(AttrKind.SYMBOL, callee))
        return Op("dnnc.call", ("%x",), (Value(result, F32),), attrs)

    def func(name: str, *ops: Op) -> Func:
        return Func(name, (Value("%x", F32),), (ops[-1].results[0],), ops)

    leaf = func("@c", Op("onnx.Relu", ("%x",), (Value("%y", F32),), facets=(Group(0),)))
    twice = Module("@m", (func("@main", call("@b", "%a"), call("@b", "%b")), func("@b", call("@c", "%y")), leaf))
    assert [message[:5] for message in messages(twice)] == ["INV10"]
    once = Module("@m", (func("@main", call("@b", "%a")), func("@b", call("@c", "%y")), leaf))
    assert messages(once) == []
