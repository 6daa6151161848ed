"""The language reference: every example in it parses, verifies and prints back the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ir
from ir import load_module, parse_module, print_module
from ir.core.facets import FACETS
from ir.core.types import DType
from ir.ops.opdefs import OPDEFS

README = (Path(ir.__file__).parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```ir\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: re.findall(r"module @(\w+)", text)[0])
def test_example(text: str) -> None:
    module = load_module(text, "README.md")
    printed = print_module(module)
    assert parse_module(printed) == module


def test_it_speaks_of_everything() -> None:
    assert len(EXAMPLES) >= 9
    assert len(re.findall(r"^```", README, re.MULTILINE)) == 2 * (len(EXAMPLES) + 4)
    words = set(re.findall(r"[\w.]+", README))
    assert {dtype.value for dtype in DType} <= words
    assert set(FACETS) <= words
    assert set(OPDEFS) <= words
