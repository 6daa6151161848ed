"""The README's example is what the command prints: its own commands are run and their output compared, numbers aside."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dnnc.cli import main
from tests.measured_before import measured_before

README = Path(__file__).resolve().parent.parent / "README.md"
_NUMBER = re.compile(r"(< )?\d[\d.,]*(e[+-]\d+)?( ?(ns|us|ms|s|B|KiB|MiB|GiB|%|x))?\b%?")


def blocks() -> list[str]:
    """The code blocks of the README, without their fences."""
    return re.findall(r"^```\w*\n(.*?)^```$", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def shape(text: str) -> list[str]:
    """The lines with numbers, units and blanks levelled: what stays equal from machine to machine."""
    return [" ".join(_NUMBER.sub("#", line).split()) for line in text.splitlines() if line.strip()]


def test_the_example_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, expected = blocks()[:2]
    measured_before(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    steps = [shlex.split(step) for step in command.split("&&")]
    assert [step[0] for step in steps] == ["python3.11", ".venv/bin/pip", *[".venv/bin/dnnc"] * 3]
    for step in steps[2:]:
        assert main(step[1:]) == 0
    assert shape(capsys.readouterr().out) == shape(expected)


def test_the_test_command_stands_alone() -> None:
    """``.ci/run`` runs the block under this mark; it sets up all that it needs."""
    text = README.read_text(encoding="utf-8")
    marked = text.partition("<!-- test command -->")[2]
    command = blocks()[-1]
    assert command in marked
    assert [shlex.split(step)[0] for step in command.split("&&")] == ["python3.11", ".venv/bin/pip", ".venv/bin/python"]
