"""What a text that is no TOML is told: the hint to quote a value only where a value lacks quotes."""

from __future__ import annotations

import pytest

from dnnc.machines.topology.document import parse_document
from ir.core.diagnostics import Diagnostic, InvalidInput


def fault(text: str) -> Diagnostic:
    with pytest.raises(InvalidInput) as caught:
        parse_document(text, "t.toml", "toml")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message.startswith("not valid TOML: ")
    return diagnostic


@pytest.mark.parametrize(
    "text",
    [
        "memory = 80 GiB",
        "memory = 80GiB # all of it",
        "type = core",
        "rates = { f32 = 1 TFLOP/s }",
        "ends = [d1, d2]",
        "ends = [\n  d1,\n]",
    ],
)
def test_a_value_without_quotes_is_told_of_them(text: str) -> None:
    assert "text in quotes" in fault(text).hint


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("devices = []\n[[devices]]\n", 2),
        ("[a]\n[a]\n", 2),
        ("a = 1\na = 2\n", 2),
        ("version = 1\ntype", 2),
        ("a =", 1),
        ("a = [1,", 1),
        ("[types.a b]", 1),
        ("[[devices]", 1),
        ('a = "x', 1),
        ('a = "x" b = 1', 1),
    ],
)
def test_other_faults_are_told_without(text: str, line: int) -> None:
    found = fault(text)
    assert found.hint == ""
    assert found.span is not None
    assert found.span.line == line
