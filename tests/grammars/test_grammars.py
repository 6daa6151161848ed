"""The grammars: each loads as LALR(1), once, without ambiguity, and has a method of the reader for each rule."""

from __future__ import annotations

import re
import subprocess
import sys
import time

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


def test_the_three_grammars_load_fast() -> None:
    """The first parse of a process builds them; it happens at each start of the command."""
    import lark  # noqa: F401

    start = time.process_time()
    grammars.load("types", ("type", "types"))
    grammars.load("attributes", ("elements", "attributes"))
    grammars.load("module", ("module",))
    assert time.process_time() - start < 10


def test_an_unknown_grammar() -> None:
    with pytest.raises(FileNotFoundError):
        grammars.load("none")


def test_importing_the_package_imports_no_lark() -> None:
    code = "import grammars, sys; print('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
