"""The tree of commands: every command and group of ``dnnc``, in the order of the help.

A process runs one command. So the modules of commands are named here and imported when ``tree`` is asked for them: reading the
options of all others would take longer than most commands do.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Annotated

import typer

from dnnc import __version__

_HELP = """
Compiles a neural network (ONNX) and a description of machines (a topology) into one program per device, with a proof of how
good the plan is.

\b
  dnnc compile zoo:mlp -t preset:cpu-2 -o build/mlp            plan it, write programs
  dnnc compile zoo:mlp -t preset:cpu-2 --mesh 2 -o build/mlp   the same, its tensors split
  dnnc run build/mlp                                           run them, one process per device
  dnnc check build/mlp                                         compare with the model
"""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dnnc {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


_COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("compile", "compile_command.compile_", "Plan a model and write its stage programs."),
    ("run", "execute.run", "Run a build, one process per device."),
    ("check", "execute.check", "Compare a build with the unsplit model."),
    ("train", "train.train", "Train a build, one process per device."),
    ("simulate", "execute.simulate", "Predict the timeline of a build."),
    ("whatif", "whatif_command.whatif", "Say what some machines give, and more of them."),
    ("profile", "profile_command.profile", "Measure a model's operators on this machine."),
    ("calibrate", "calibrate_command.calibrate", "Fit a device type's numbers to measured runs."),
    ("solve", "solve_command.solve", "Split a profiled workload, with its proof."),
    ("verify-plan", "solve_command.verify_plan", "Recompute such a split from the workload alone."),
    ("inspect", "inspection.inspect_", "Show what a model or a build holds."),
    ("import", "ir_tools.import_", "Print a model as IR text."),
    ("opt", "ir_tools.opt_", "Run passes on IR text."),
    ("passes", "ir_tools.passes_", "List passes and pipelines."),
)
"""Commands: name, module and function, summary."""

_GROUPS = ("zoo", "topology", "tag")
"""Groups of commands, each the ``app`` of the module of its name."""

_NAMES = frozenset((*(name for name, _, _ in _COMMANDS), *_GROUPS))


def tree(only: Collection[str] = _NAMES) -> typer.Typer:
    """The commands, or those of some names."""
    app = typer.Typer(
        name="dnnc",
        help=_HELP,
        epilog="Exit codes: 0 ok, 1 internal, 2 usage, 3 invalid input or refused by the machine, 4 infeasible, "
        "5 numerical check failed, 130 interrupted, 129 and 143 ended by SIGHUP and SIGTERM.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name, place, summary in _COMMANDS:
        if name in only:
            module, _, function = place.partition(".")
            app.command(name, short_help=summary)(getattr(import_module(f"dnnc.cli.{module}"), function))
    for name in _GROUPS:
        if name in only:
            app.add_typer(import_module(f"dnnc.cli.{name}").app, name=name)
    return app


def needed(arguments: list[str]) -> Collection[str]:
    """The names that ``tree`` needs for these arguments: the command that comes first, none for the version alone, else all
    (help, and what to suggest for a name that is wrong)."""
    if arguments == ["--version"]:
        return ()
    return arguments[:1] if arguments and arguments[0] in _NAMES else _NAMES
