"""The tree of commands: every command and group of ``dnnc``, in the order of the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from dnnc import __version__
from dnnc.cli import (
    calibrate_command,
    compile_command,
    execute,
    inspection,
    ir_tools,
    profile_command,
    solve_command,
    tag,
    topology,
    train,
    whatif_command,
    zoo,
)

_HELP = """
Compiles a neural network (ONNX) and a description of machines (a topology) into one program per device, with a proof of how
good the plan is.

\b
  dnnc compile zoo:mlp -t preset:cpu-2 -o build/mlp            plan it, write programs
  dnnc compile zoo:mlp -t preset:cpu-2 --mesh 2 -o build/mlp   the same, its tensors split
  dnnc run build/mlp                                           run them, one process per device
  dnnc check build/mlp                                         compare with the model
"""

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


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dnnc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("compile", compile_command.compile_, "Plan a model and write its stage programs."),
    ("run", execute.run, "Run a build, one process per device."),
    ("check", execute.check, "Compare a build with the unsplit model."),
    ("train", train.train, "Train a build, one process per device."),
    ("simulate", execute.simulate, "Predict the timeline of a build."),
    ("whatif", whatif_command.whatif, "Say what some machines give, and more of them."),
    ("profile", profile_command.profile, "Measure a model's operators on this machine."),
    ("calibrate", calibrate_command.calibrate, "Fit a device type's numbers to measured runs."),
    ("solve", solve_command.solve, "Split a profiled workload, with its proof."),
    ("verify-plan", solve_command.verify_plan, "Recompute such a split from the workload alone."),
    ("inspect", inspection.inspect_, "Show what a model or a build holds."),
    ("import", ir_tools.import_, "Print a model as IR text."),
    ("opt", ir_tools.opt_, "Run passes on IR text."),
    ("passes", ir_tools.passes_, "List passes and pipelines."),
)
for _name, _function, _summary in _COMMANDS:
    app.command(_name, short_help=_summary)(_function)

app.add_typer(zoo.app, name="zoo")
app.add_typer(topology.app, name="topology")
app.add_typer(tag.app, name="tag")
