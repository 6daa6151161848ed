"""The panels of the help: the titles under which commands and options stand, in the order of the help.

Options keep typer's ``rich_help_panel``, which this table fills; the panels are drawn as plain sections, because the module of
typer that draws boxes takes three times as long to import as typer itself.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

USE, LOOK, MACHINES, RESEARCH, COMPILER = "Use it", "Look at it", "Machines", "Research", "The compiler itself"
"""Panels of commands."""

_OUTPUT = ("Output", ("--json", "--quiet", "--verbose", "--timing", "--help"))

_MACHINES = ("--accelerators", "--cpus", "--memory", "--bandwidth", "--hierarchy", "--inner-bandwidth", "--bytes")

PANELS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "compile": (
        (
            "Most used",
            (
                "--topology",
                "--out",
                "--dim",
                "--inputs",
                "--objective",
                "--loss",
                "--stages",
                "--mesh",
                "--microbatches",
                "--plan-only",
                "--plan",
                "--explain",
            ),
        ),
        (
            "How the model is split",
            ("--replicas", "--cut", "--pin", "--strategy", "--shares", "--split", "--pieces", "--comm"),
        ),
        (
            "What stays from step to step",
            ("--context", "--batch", "--groups", "--chunk", "--genai", "--prompt-tokens", "--state", "--role"),
        ),
        (
            "Training step (--objective training)",
            (
                "--samples",
                "--optimizer",
                "--learning-rate",
                "--momentum",
                "--weight-decay",
                "--learning-rate-schedule",
                "--clip-norm",
                "--group",
                "--no-decay",
                "--ema",
                "--nesterov",
                "--beta1",
                "--beta2",
                "--epsilon",
                "--beta2-decay",
                "--threshold",
                "--epsilon1",
                "--epsilon2",
                "--schedule",
                "--chunks",
                "--recompute",
                "--sync",
                "--trainable",
                "--frozen",
                "--batchnorm",
                "--dropout",
                "--dtype",
                "--loss-scale",
            ),
        ),
        ("The search", ("--time-limit", "--profile", "--search", "--search-prior", "--iterations")),
        ("What is read and written", ("--weights", "--load-test", "--prove", "--report", "--limit")),
        (
            "The passes",
            (
                "--passes",
                "--print-before",
                "--print-after",
                "--print-on-change",
                "--print-folder",
            ),
        ),
        _OUTPUT,
    ),
    "train": (
        (
            "Most used",
            ("--steps", "--data", "--last-batch", "--checkpoint", "--every", "--resume", "--seed", "--check", "--out"),
        ),
        ("Watch it", ("--eval-data", "--eval-every", "--patience", "--log", "--tensorboard")),
        ("Several hosts of a cluster", ("--cluster", "--host", "--ports")),
        ("Several hosts, started one by one", ("--nodes", "--node", "--meet", "--secret")),
        ("Processes and devices", ("--threads", "--timeout", "--retries", "--emulate", "--slow", "--runs")),
        _OUTPUT,
    ),
    "solve": (
        ("Most used", ("--objective", "--split", "--topology", "--out", "--compare", "--method", "--time-limit")),
        ("Machines", _MACHINES),
        ("The plan", ("--replicas", "--schedule", "--microbatches", "--straight", "--pieces", "--comm", "--forward")),
        ("What is read", ("--format", "--expert")),
        _OUTPUT,
    ),
    "verify-plan": (
        ("Machines", ("--topology", *_MACHINES)),
        (
            "What the split is of (default: as RESULT says)",
            ("--objective", "--split", "--schedule", "--microbatches", "--straight", "--pieces", "--comm", "--forward"),
        ),
        ("What is read", ("--format",)),
        ("Of a directory", ("--search",)),
        _OUTPUT,
    ),
    "whatif": (
        ("Most used", ("--topology", "--add", "--rows", "--dim", "--objective")),
        ("The plans", ("--stages", "--mesh", "--replicas", "--microbatches", "--time-limit")),
        ("What stays from step to step", ("--context", "--batch", "--groups")),
        ("What is read", ("--limit",)),
        _OUTPUT,
    ),
    "profile": (
        ("Most used", ("--topology", "--out", "--compare", "--merge", "--dim", "--time-limit")),
        (
            "Training step (--objective training)",
            ("--objective", "--loss", "--trainable", "--frozen", "--batchnorm", "--dropout"),
        ),
        ("What is read and measured", ("--limit", "--seed", "--emulate")),
        _OUTPUT,
    ),
    "calibrate": (("Machines", ("--topology", "--out")), _OUTPUT),
}
"""Panels of the options of a command, each in the order of the help; an option that is in none stands in a last one."""


class PanelCommand(TyperCommand):
    """A command whose options stand in their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters: list[Any] = list(self.get_params(ctx))
        options = {_flag(one): one for one in parameters if _is_option(one)}
        _write_panel(formatter, "Arguments", [one.get_help_record(ctx) for one in parameters if not _is_option(one)])
        for title, flags in PANELS.get(ctx.command_path.partition(" ")[2], ()):
            stated = [options.pop(flag) for flag in flags if flag in options]
            for option in stated:
                option.rich_help_panel = title
            _write_panel(formatter, title, [option.get_help_record(ctx) for option in stated])
        _write_panel(formatter, "Options", [option.get_help_record(ctx) for option in options.values()])


class PanelGroup(TyperGroup):
    """A group of commands that stand in their panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[Any]] = {}
        width = 0
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            width = max(width, len(name))
            panels.setdefault(command.rich_help_panel or "Commands", []).append(command)
        for title, commands in panels.items():
            rows = [(command.name.ljust(width), command.get_short_help_str(limit=200)) for command in commands]
            _write_panel(formatter, title, rows)


def _is_option(parameter: Any) -> bool:
    return str(parameter.param_type_name) == "option"


def _flag(option: Any) -> str:
    """The first long spelling."""
    return next((str(flag) for flag in option.opts if flag.startswith("--")), str(option.opts[0]))


def _write_panel(formatter: Any, title: str, rows: list[Any]) -> None:
    """A section of names and texts; nothing where there are none, and no row for what is hidden."""
    if shown := [row for row in rows if row is not None]:
        with formatter.section(title):
            formatter.write_dl(shown)
