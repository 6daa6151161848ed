"""The grammars: each loads as LALR(1), once, without ambiguity, and has a method of the reader for each rule."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import lark
import pytest

import grammars
from ir.text.literals import AttributeReader, TypeReader
from ir.text.reader import Reader

READERS = {"module": Reader, "types": TypeReader, "attributes": AttributeReader}


@pytest.mark.parametrize(("name", "start"), [("module", "module"), ("types", "types"), ("attributes", "attributes")])
def test_every_rule_has_its_method(name: str, start: str) -> None:
    text = (grammars.FOLDER / f"{name}.lark").read_text()
    rules = set(re.findall(r"^([a-z_]+):", text, re.MULTILINE)) | set(re.findall(r"-> ([a-z_]+)$", text, re.MULTILINE))
    rules -= {"elements"}  # both its alternatives have names of their own
    missing = sorted(rule for rule in rules if not hasattr(READERS[name], rule))
    assert not missing
    assert grammars.load(name, start) is grammars.load(name, start)


def test_tables_are_of_the_grammars(update_golden: bool) -> None:
    """Else each process makes them anew."""
    if update_golden:
        grammars.TABLES.write_text(grammars.tables_text())
        grammars._tables.cache_clear()
    found = json.loads(grammars.TABLES.read_text())
    assert found["grammars"] == grammars.digest(), "the grammars have changed: pytest tests/grammars --update-golden"
    if found["lark"] == lark.__version__:
        assert grammars._tables().keys() == {grammars._key(*each) for each in grammars.TABLED}


@pytest.mark.parametrize("tables", ["none", "{", '{"lark": "0", "grammars": "", "tables": {}}'])
def test_without_tables_parsers_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: str) -> None:
    text = 'partition{stages = "2", mesh = "none"},place'
    expected = grammars.load("pipeline", "pipeline").parse(text)
    monkeypatch.setattr(grammars, "TABLES", tmp_path / "tables.json")
    if tables != "none":
        grammars.TABLES.write_text(tables)
    monkeypatch.setattr(grammars, "_tables", grammars._tables.__wrapped__)
    assert grammars._tables() == {}
    assert grammars.load.__wrapped__("pipeline", "pipeline").parse(text) == expected


def test_an_unknown_grammar() -> None:
    with pytest.raises(FileNotFoundError):
        grammars.load("none")


def test_importing_the_package_imports_no_lark() -> None:
    code = "import grammars, sys; print('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
