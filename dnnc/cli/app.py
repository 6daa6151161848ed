"""The tree of commands: every command and group of ``dnnc``, in the order of the help.

A process runs one command. So the modules of commands are named here, and ``tree`` imports those that it is asked for: to read
the options of all others would take longer than most commands do. The help needs names and summaries alone.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from itertools import dropwhile
from typing import Annotated

import typer

from dnnc import __version__
from dnnc.cli.logs import with_verbose
from dnnc.cli.panels import COMPILER, LOOK, MACHINES, RESEARCH, USE, PanelCommand, PanelGroup

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


_COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("compile", "compile.compile_", USE, "Plan a model for machines and write its programs."),
    ("run", "execute.run", USE, "Run a build, one process per device."),
    ("check", "execute.check", USE, "Compare a build with the unsplit model."),
    ("generate", "generate.generate", USE, "Go on with a text, token by token, by a language model."),
    ("train", "train.train", USE, "Train a build, one process per device."),
    ("export", "export.export", USE, "Write a model with the weights of a checkpoint, as ONNX."),
    ("inspect", "inspect.inspect_", LOOK, "Show what a model, an IR text or a build holds."),
    ("report", "report.report", LOOK, "Show a build as a web page."),
    ("simulate", "simulate.simulate", LOOK, "Predict the timeline of a build."),
    ("zoo", "zoo", LOOK, "List and write the models that come with dnnc."),
    ("topology", "topology", MACHINES, "Show, check, detect, measure and merge descriptions of machines."),
    ("cluster", "cluster", MACHINES, "Look at the machines that several hosts of a plan run on."),
    ("whatif", "whatif.whatif", MACHINES, "Predict what fewer or more devices would gain."),
    ("profile", "profile.profile", MACHINES, "Measure a model's operators on this machine."),
    ("calibrate", "calibrate.calibrate", MACHINES, "Fit a device type's numbers to measured runs."),
    ("solve", "solve.solve", RESEARCH, "Split a profiled workload, and prove how good the split is."),
    ("verify-plan", "solve.verify_plan", RESEARCH, "Recompute such a split, or the plan of a build, on its own."),
    ("tag", "tag", RESEARCH, "Train the prior of TAG's search (--search tag)."),
    ("import", "ir_tools.import_", COMPILER, "Print a model as IR text."),
    ("opt", "ir_tools.opt_", COMPILER, "Run passes on IR text."),
    ("passes", "ir_tools.passes_", COMPILER, "List the passes and the named pipelines."),
)
"""Name, module and function (of a group of commands the module, whose ``app`` it is), panel, summary."""

_NAMES = frozenset(name for name, *_ in _COMMANDS)


def tree(imported: Collection[str] = _NAMES, *, listed: bool = True) -> typer.Typer:
    """The commands of the names ``imported``, whole. ``listed``: the others too, by name and summary alone."""
    app = typer.Typer(
        name="dnnc",
        cls=PanelGroup,
        help=_HELP,
        epilog="Exit codes: 0 ok, 1 internal, 2 usage, 3 invalid input or refused by the machine, "
        "4 no plan (infeasible or undecided), 5 numerical check failed, 130 interrupted, "
        "129 and 143 ended by SIGHUP and SIGTERM.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(_root)
    for name, place, panel, summary in _COMMANDS:
        module, _, function = place.partition(".")
        if name not in imported:
            if listed:
                app.command(name, short_help=summary, rich_help_panel=panel)(_listed)
        elif function:
            command = with_verbose(getattr(import_module(f"dnnc.cli.commands.{module}"), function))
            app.command(name, cls=PanelCommand, short_help=summary, rich_help_panel=panel)(command)
        else:
            app.add_typer(
                import_module(f"dnnc.cli.commands.{module}").app, name=name, short_help=summary, rich_help_panel=panel
            )
    return app


def _listed() -> None:
    """Stands for a command that is only listed."""


def needed(arguments: list[str]) -> typer.Typer:
    """The tree for these arguments: the command that comes first, alone; for the help, a wrong name, or options before it, all
    others by name too."""
    named = next(dropwhile(lambda argument: argument.startswith("-"), arguments), "")
    return tree((named,), listed=named not in _NAMES or named != arguments[0])
