"""The one door for input files, and how foreign text is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ir.core.diagnostics import InvalidInput, visible
from ir.system.files import open_input, read_input, read_input_text


def fault(error: pytest.ExceptionInfo[InvalidInput]) -> tuple[str, str]:
    (diagnostic,) = error.value.diagnostics
    return diagnostic.where, diagnostic.message


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfh\xc3\xa9\n")
    assert read_input(path, "a text", 7) == path.read_bytes()
    assert read_input_text(path, "a text", 7) == "hé\n"


def test_one_byte_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1234567")
    with pytest.raises(InvalidInput) as error:
        read_input(path, "a text", 6)
    assert fault(error) == (str(path), "it has 7 bytes; a text of more than 6 is refused")


def test_bytes_that_are_no_text_are_located(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\xffc")
    with pytest.raises(InvalidInput) as error:
        read_input_text(path, "a text", 6)
    assert fault(error) == (str(path), "expected a text, found byte 0xff at offset 2, which is not UTF-8 text")


@pytest.mark.parametrize("kind", ["fifo", "device", "link to a device", "folder", "missing"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    with pytest.raises(InvalidInput) as error:
        open_input(path, "a model")
    said = {
        "fifo": "found a FIFO, expected a model",
        "device": "found a device, expected a model",
        "link to a device": "found a device, expected a model",
        "folder": "found a folder, expected a model",
        "missing": "no such file; expected a model",
    }
    assert fault(error) == (str(path), said[kind])


def test_names_do_not_command_a_terminal() -> None:
    assert visible("\x1b[31mred\u202e\x07\u2028\x9b é 漢 😀") == "\\x1b[31mred\\u202e\\x07\\u2028\\x9b é 漢 😀"
    assert visible("a\nb") == "a\\nb"
    assert visible("a\n\tb", lines=True) == "a\n\\tb"
    assert visible("\ud800") == "\\ud800"
