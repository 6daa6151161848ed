"""``dnnc topology detect`` and ``merge`` as a person runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.cli import main


def test_a_detected_machine_is_compiled_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, both = tmp_path / "here.toml", tmp_path / "both.toml"
    assert main(["topology", "detect", "-o", str(file), "--devices", "1"]) == 0
    assert f"wrote {file}" in capsys.readouterr().err
    assert main(["topology", "merge", str(file), str(file), "-o", str(both), "--link", "here-here2=10Gbit/s,50us"]) == 0
    assert ", cpu0 is now here2.cpu0, memory is now here2.memory, for another file" in capsys.readouterr().err
    command = ["compile", "zoo:mlp", "-t", str(both), "-o", str(tmp_path / "build"), "--plan-only", "--mesh", "none"]
    assert main(command) == 0


def test_no_file_is_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "detect", "-o", str(tmp_path / "none" / "a.toml")]) == 3
    assert main(["topology", "detect", "-o", str(tmp_path / "a.json")]) == 2
    assert main(["topology", "merge", "preset:a100", "preset:t4", "-o", str(tmp_path / "a.toml")]) == 3
    assert "hint: join the hosts: --link a100--t4=" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
