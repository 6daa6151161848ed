"""Every option of every command that takes a number refuses what is none, and what no machine counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from dnnc.cli import main
from dnnc.cli.app import tree


def kind_of(parameter: Any) -> str:
    """What a parameter takes, as any version of typer has it."""
    descriptor = getattr(parameter, "type_descriptor", None)
    name = parameter.type.name.partition(" ")[0] if descriptor is None else getattr(descriptor.annotation, "__name__", "")
    return {"integer": "int"}.get(name, name)


def numbers(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Command, option and kind (float, int) of every number; with arguments that are there only to be there."""
    for name, below in getattr(command, "commands", {}).items():
        yield from numbers(below, (*path, name))
    needed = tuple(
        word
        for parameter in command.params
        if parameter.required
        for word in ([parameter.opts[0], "x"] if parameter.opts[0].startswith("-") else ["x"])
    )
    for parameter in command.params:
        kind = kind_of(parameter)
        if kind in ("float", "int") and parameter.opts[0].startswith("--"):
            yield (*path, *needed), parameter.opts[0], kind


EVERY = list(numbers(get_command(tree())))


def refused(arguments: tuple[str, ...], option: str, value: str, capsys: pytest.CaptureFixture[str]) -> bool:
    code = main([*arguments, f"{option}={value}"])
    told = capsys.readouterr().err
    return code == 2 and option in told and "Traceback" not in told and "No such option" not in told


def test_there_are_numbers() -> None:
    assert len(EVERY) > 30
    assert {kind for _, _, kind in EVERY} == {"float", "int"}


@pytest.mark.parametrize(
    ("arguments", "option", "kind"), EVERY, ids=lambda value: str(value) if isinstance(value, str) else value[0]
)
def test_what_is_no_number_is_refused(
    arguments: tuple[str, ...], option: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["nan", "-inf", "1e400", "-1"] if kind == "float" else ["1" + "0" * 5000, "nan", "1.5", "-1"]
    assert [value for value in wrong if not refused(arguments, option, value, capsys)] == []


@pytest.mark.parametrize("seconds", ["1e15", "1e300"])
def test_seconds_that_no_clock_counts(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    timed = [(arguments, option) for arguments, option, _ in EVERY if option in ("--timeout", "--time-limit")]
    assert len(timed) > 4
    assert [option for arguments, option in timed if not refused(arguments, option, seconds, capsys)] == []
