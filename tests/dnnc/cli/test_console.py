"""Progress is for a terminal, after a second, and for nobody else."""

from __future__ import annotations

import io
import json
import math
import threading
import time
from pathlib import Path

import pytest

from dnnc.cli import console
from ir.core.diagnostics import InvalidInput


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, work: float, wanted: bool = True, until: str = "") -> str:
    """What appears on standard error while something takes ``work`` seconds, and then until ``until`` is there, a minute at
    most."""
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(console, "PROGRESS_AFTER", 0.2)
    with console.progress(wanted) as report:
        report("think", 0.5)
        time.sleep(work)
        end = time.monotonic() + 60
        while until not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        report("write", None)
        report("write", 0.25)
    return stream.getvalue()


def test_progress_on_a_terminal_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = shown(monkeypatch, Terminal(), 0.0, until="think")
    assert "think" in text
    assert "write" in text


@pytest.mark.parametrize(
    ("stream", "work", "wanted"), [(io.StringIO(), 0.4, True), (Terminal(), 0.0, True), (Terminal(), 0.4, False)]
)
def test_no_progress_elsewhere(stream: io.StringIO, work: float, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, stream, work, wanted) == ""


def test_progress_goes_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), console.progress() as report:
        report("think", 1 / 0)
    for _ in range(100):  # a cancelled timer's thread ends in its own time
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert threading.active_count() == before


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    console.put_json("x", {"a": math.inf, "b": (1.0, math.nan), "c": {"d": -math.inf}})
    assert json.loads(capsys.readouterr().out) == {"schema": "dnnc.x/1", "a": None, "b": [1.0, None], "c": {"d": None}}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    console.write_whole(tmp_path / "a.txt", "one")
    console.write_whole(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").read_text() == "two"
    with pytest.raises(InvalidInput, match="cannot be written"):
        console.write_whole(tmp_path / "absent" / "a.txt", "three")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
