"""The help: commands and options in panels, and a start that imports nothing that the help does not need."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dnnc.cli import main
from dnnc.cli.app import tree
from dnnc.cli.panels import PANELS


def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, *command: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([*command, "--help"]) == 0
    return capsys.readouterr().out


def titles(text: str) -> list[str]:
    return [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]


def test_commands_stand_in_panels(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = help_of(capsys, monkeypatch, 80)
    assert titles(text) == ["Options", "Use it", "Look at it", "Machines", "Research", "The compiler itself"]
    assert text.index("Use it") < text.index("  compile ") < text.index("  train ") < text.index("Look at it")
    assert all(f"\n  {info.name} " in text for info in (*tree(()).registered_commands,))


@pytest.mark.parametrize("command", PANELS)
def test_each_option_stands_in_one_panel(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(capsys, monkeypatch, 80, command)
    assert titles(text) == ["Arguments", *(title for title, _ in PANELS[command])], "no panel of what is left"
    listed = [flag for title, flags in PANELS[command] if title != "Output" for flag in flags]
    assert len(listed) == len(set(listed))
    assert all(f"{flag} " in text or f"{flag}\n" in text for flag in listed), "a panel names an option that is gone"


def test_the_dozen_options_that_people_need_come_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(capsys, monkeypatch, 120, "compile")
    first = text[text.index("Most used:") : text.index("How the model is split:")]
    flags = [line.split()[-2 if line.split()[0].endswith(",") else 0] for line in first.splitlines() if line.startswith("  -")]
    assert len(flags) == 12
    assert flags[0] == "--topology" or "--topology" in first.splitlines()[1]


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("compile",), ("train",), ("topology",), ("topology", "measure")):
        text = help_of(capsys, monkeypatch, columns, *command)
        assert max(map(len, text.splitlines())) <= columns, command


def test_the_help_imports_no_command_and_neither_rich_nor_the_ir() -> None:
    """``python -m tests.bench.start_up`` measures what that saves."""
    script = "import sys; from dnnc.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    heavy = (
        "rich",
        "numpy",
        "onnx",
        "passes",
        "ir.core.module",
        "ir.core.ops",
        "logging",
        "dnnc.compile",
        "dnnc.cli.options.shared",
    )
    assert not [name for name in loaded if name in heavy or name == "dnnc.cli.commands.compile"]


def test_a_command_behind_two_dashes_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--", "passes", "--json"]) == 0
    assert '"pipelines"' in capsys.readouterr().out
    assert main(["--", "compil"]) == 2
    assert "Did you mean 'compile'?" in capsys.readouterr().err


def test_verbose_logs_the_steps_and_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "zoo:mlp", "--passes", "canonicalize", "-v"]) == 0
    text = capsys.readouterr()
    assert "dnnc.steps: import\n" in text.err
    assert " dnnc.compile.load: zoo:mlp: " in text.err
    assert " dnnc.passes: canonicalize: " in text.err
    assert text.out.startswith("// made by canonicalize\nmodule @mlp")
    assert not logging.getLogger("dnnc").handlers, "a later command of the process logs nothing"
    assert main(["import", "zoo:mlp"]) == 0
    assert capsys.readouterr().err == ""


def test_verbose_logs_machines_searches_and_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    build = str(tmp_path / "build")
    assert main(["compile", "zoo:mlp", "-t", "preset:cpu-2", "--stages", "2", "-o", build, "-v"]) == 0
    text = capsys.readouterr().err
    assert " dnnc.machines.local: preset:cpu-2: 2 devices of 1 types on 1 hosts, " in text
    assert " dnnc.passes.partition: stages that may have replicas: a plan of " in text
    assert main(["run", build, "-v"]) == 0
    assert capsys.readouterr().err.count(" dnnc.engines.onnxruntime.starter.host: cpu") == 2
