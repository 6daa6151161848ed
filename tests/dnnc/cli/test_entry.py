"""From any exception to an exit code and a message: nothing else ever reaches a person."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dnnc.cli import entry, main
from ir.core.diagnostics import CheckFailed, Diagnostic, Infeasible, InvalidInput, InvariantError, UsageError


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def dispatch(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(entry, "_dispatch", dispatch)
    return main(["compile", "x y.onnx"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput(Diagnostic("not ONNX", "m.onnx", hint="export it again")), 3),
        (UsageError(Diagnostic("--pin takes NODE=DEVICE")), 2),
        (Infeasible(Diagnostic("device cpu0 lacks 5 bytes")), 4),
        (CheckFailed(Diagnostic("stage 1 differs")), 5),
        (FileNotFoundError(2, "No such file or directory", "x.npz"), 3),
        (MemoryError(), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_fault_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error, monkeypatch) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip()
    assert "Traceback" not in err


def test_every_diagnostic_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(InvalidInput([Diagnostic("first", where="a.ir"), Diagnostic("second", where="b.ir", hint="do this")]), monkeypatch)
    assert capsys.readouterr().err == "a.ir: error: first\nb.ir: error: second\n  hint: do this\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("oh"), InvariantError([Diagnostic("dangling %x")], "cost"), RecursionError("deep")]
)
def test_a_bug_is_one_plain_message_and_a_report(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error, monkeypatch) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[E0107]: a fault inside dnnc, not in your input: ")
    assert "Traceback" not in err
    assert "it holds the command line" in err
    path = Path(err.partition("report: ")[2].partition(" (")[0])
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        report = path.read_text(encoding="utf-8")
    finally:
        path.unlink()
    assert report.startswith("dnnc compile 'x y.onnx'\n"), "the command can be pasted into a shell"
    assert type(error).__name__ in report
    assert "Traceback" in report
    assert "onnxruntime " in report


def test_a_report_that_cannot_be_written_is_no_second_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("dnnc.cli.entry.temporary_directory", lambda: tmp_path / "absent")
    assert raising(ZeroDivisionError("oh"), monkeypatch) == 1
    assert "no report could be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile"], "Missing argument 'MODEL'"),
        (["compile", "zoo:mlp"], "Missing option '-t' / '--topology'"),
        (["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--stages", "0"], "--stages"),
        (["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--stages", "two"], "--stages"),
        (["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--weights", "some"], "--weights"),
        (
            ["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--dim", "batch"],
            "--dim: error[E0111]: found 'batch', expected NAME=VALUE",
        ),
        (
            ["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--dim", "batch=-1"],
            "--dim: error[E0116]: found '-1' for batch",
        ),
        (
            ["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--dim", "b=1", "--dim", "b=2"],
            "'b' has two values: 1 and 2",
        ),
        (["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--pin", "cpu0"], "expected NODE=DEVICE"),
        (["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "x", "--print-after", "costs"], "did you mean 'cost'?"),
        (["run", "x", "--seed", "-1"], "--seed"),
        (["check", "x", "--seed", "-1"], "--seed"),
        (["run", "x", "-m", "99999999999"], "less than or equal to 1048576"),
        (["check", "x", "--samples", "99999999999"], "less than or equal to 1048576"),
        (["simulate", "x", "-m", "99999999999"], "less than or equal to 1048576"),
        (["nonsense"], "No such command 'nonsense'"),
        (["opt", "--nonsense"], "No such option"),
        (["opt", "--statistics"], "hint: plan.json says what the search proved"),
    ],
)
def test_wrong_usage_is_exit_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "dnnc 0.1.0\n"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    commands = ("compile", "run", "check", "simulate", "inspect", "import", "opt", "passes", "zoo", "topology")
    assert [word for word in commands if f"\n  {word} " not in out] == []
    assert "130 interrupted" in " ".join(out.split())


@pytest.mark.parametrize(
    "command",
    [[], ["compile"], ["run"], ["check"], ["simulate"], ["inspect"], ["import"], ["opt"], ["passes"], ["zoo", "list"]],
)
def test_every_command_has_help_within_the_terminal(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: dnnc")
    assert max(map(len, out.splitlines())) <= 100


def command(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dnnc", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_a_reader_that_stops_reading_is_no_fault() -> None:
    process = command("passes")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 0


@pytest.mark.parametrize(("argument", "expected"), [("", "True True"), ("['--version']", "False False")])
def test_only_the_process_of_the_command_settles_the_garbage_collector(argument: str, expected: str) -> None:
    """The command's process need not search its imports for garbage at its end; a caller's process stays as it was."""
    script = (
        "import gc, sys; from dnnc.cli import main; sys.argv = ['dnnc', '--version']; before = gc.get_threshold(); "
        f"main({argument}); print(gc.get_freeze_count() > 0, gc.get_threshold() != before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "dnnc: interrupted"),
        (signal.SIGTERM, 143, "dnnc: ended by SIGTERM"),
        pytest.param(signal.SIGHUP, 129, "dnnc: ended by SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_a_signal_has_its_exit_code_and_leaves_nothing(number: signal.Signals, code: int, words: str, tmp_path: Path) -> None:
    """Interrupted while it waits for input: the command says so and goes."""
    read, write = os.pipe()
    process = command("opt", "-", "--passes", "cost", "-o", str(tmp_path / "out.ir"), stdin=read)
    text = b"module @m {\n" + b"// more than a pipe holds: it is written once the command reads\n" * 4000
    while text:
        text = text[os.write(write, text) :]
    time.sleep(0.3)  # until it waits for more: a signal just before a read is seen only after the read
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    os.close(read)
    os.close(write)
    assert process.returncode == code
    assert err == f"{words}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_signal_that_was_ignored_stays_so(tmp_path: Path) -> None:
    """``nohup`` starts a command with SIGHUP ignored."""
    ignore = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", ignore, sys.executable, "-P", "-m", "dnnc", "opt", "-", "--passes", "cost"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.0)
    process.send_signal(signal.SIGHUP)
    process.communicate(b"module @m {\n}\n", timeout=20)
    assert process.returncode in (0, 3)


@pytest.mark.parametrize("name", ["ir", "passes", "grammars"])
def test_a_foreign_package_is_named(name: str, tmp_path: Path) -> None:
    """Another project's package of the same name, first on the path, is a clear message and no traceback."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not meant')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = command("--version", env=environment, cwd=tmp_path)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"found another package named '{name}'" in err
    assert str(tmp_path) in err
    assert "Traceback" not in err


def test_a_foreign_package_is_an_import_error_for_programs(tmp_path: Path) -> None:
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / "__init__.py").write_text("")
    code = "try:\n    import dnnc\nexcept ImportError as error:\n    print(error)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
    )
    assert "found another package named 'ir' first on the path" in done.stdout
