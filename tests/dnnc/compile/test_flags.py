"""The table of options: its fields are those of ``CompileOptions``, and what excludes an option refuses it by name."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from dnnc.api.options import compile_options
from dnnc.cli.app import tree
from dnnc.cli.options.shared import parse_count
from dnnc.compile.decoding.steps import of_tokens
from dnnc.compile.flags import AUTO, BOUNDS, FLAGS, MESH, PLAN, TAG_SEARCH, CompileOptions, excluded_by, given
from dnnc.compile.options import build_pipeline
from dnnc.compile.training import TrainingOptions
from ir.core.diagnostics import UsageError
from passes.framework.registry import PASSES, describe

NONE = CompileOptions("zoo:mlp", "preset:cpu-2", Path("build"))
NO_OPTION = {
    *(
        "model",
        "topology",
        "out",
        "dims",
        "limits",
        "plan_only",
        "weights",
        "load_test",
        "report",
        "profile",
        "stated",
        "training",
    )
}
"""Fields that nothing excludes and no search is told."""


def with_given(field: str, value: Any) -> CompileOptions:
    outer, _, inner = field.rpartition(".")
    return replace(NONE, training=replace(NONE.training, **{inner: value})) if outer else replace(NONE, **{inner: value})


VALUES: dict[str, Any] = {
    "cuts": ("t",),
    "pins": {"op": "cpu0"},
    "plan": Path("plan.json"),
    "inputs": Path("x.npz"),
    "prior": Path("p.npz"),
    "search": "tag",
    "explain": True,
    "time_limit": 0.0,
    "stages": 0,
}


def value_of(field: str) -> Any:
    return VALUES.get(field, "2" if field in ("mesh", "shares", "strategy", "objective", "split", "comm", "pipeline") else 2)


def test_the_table_has_every_option_and_the_command_every_flag() -> None:
    known = {one.field for one in FLAGS}
    own = {one.name for one in fields(CompileOptions)} - NO_OPTION
    assert known == own | {f"training.{one.name}" for one in fields(TrainingOptions)}
    command: Any = get_command(tree(("compile",), listed=False)).commands["compile"]  # type: ignore[attr-defined]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {one.flag.partition(" ")[0] for one in FLAGS} <= flags
    assert all(name in PASSES for one in FLAGS for name in one.passes)
    for one in FLAGS:
        for name in one.passes:
            assert one.field.replace("_", "-") in {option.name for option in describe(name).options}, (one.flag, name)


def test_numbers_have_the_bounds_of_the_command() -> None:
    """``--batch`` and ``--groups`` are texts there, for they may be auto; ``dnnc.plan`` asks the table."""
    command: Any = get_command(tree(("compile",), listed=False)).commands["compile"]  # type: ignore[attr-defined]
    ranges = {one.name: (one.min, one.max) for one in command.params if getattr(one, "min", None) is not None}
    assert {name: bounds for name, bounds in ranges.items() if name in BOUNDS} == {
        name: bounds for name, bounds in BOUNDS.items() if name not in ("batch", "groups")
    }
    for name, (least, most) in BOUNDS.items():
        for number in (least - 1, most + 1, -1):
            with pytest.raises(UsageError, match=f"{name} is {number}; expected a whole number from {least} to {most}"):
                compile_options("zoo:mlp", None, {name: number})  # type: ignore[misc]
            if name in ("batch", "groups"):
                with pytest.raises(UsageError, match="E0154"):
                    parse_count(str(number), f"--{name}")


def test_auto_is_the_same_by_each_door() -> None:
    for name in ("batch", "groups"):
        asked = replace(NONE, **{name: "auto"})
        assert getattr(asked, name) == AUTO == parse_count("auto", f"--{name}")
        assert getattr(compile_options("zoo:mlp", None, {name: "auto"}), name) == AUTO  # type: ignore[misc]
        with pytest.raises(UsageError, match=f"--{name} auto"):
            of_tokens(asked)


@pytest.mark.parametrize("one", FLAGS, ids=lambda one: one.flag)
def test_an_option_is_given_where_it_is_not_its_default(one: Any) -> None:
    assert given(NONE) == ()
    asked = with_given(one.field, ("w*",) if one.field in ("training.trainable", "training.frozen") else value_of(one.field))
    assert given(asked) == (one.flag,)
    for excluder in one.excluded:
        assert excluded_by(asked, excluder) == (one.flag,)


@pytest.mark.parametrize(
    ("excluder", "base", "code"),
    [
        (PLAN, replace(NONE, plan=Path("plan.json")), "E1001"),
        (MESH, replace(NONE, mesh="2"), "E1002"),
        (TAG_SEARCH, replace(NONE, search="tag", objective="training"), "E1003"),
    ],
)
def test_what_cannot_go_together_is_refused_by_name(excluder: Any, base: CompileOptions, code: str) -> None:
    for one in FLAGS:
        if excluder in one.excluded:
            outer, _, inner = one.field.rpartition(".")
            more = {inner: value_of(inner)}
            options = replace(base, training=TrainingOptions(**more)) if outer else replace(base, **more)
            with pytest.raises(UsageError) as raised:
                build_pipeline(options)
            assert raised.value.diagnostics[0].code == code, one.flag
            assert one.flag in dict(raised.value.diagnostics[0].values)["flags"]
