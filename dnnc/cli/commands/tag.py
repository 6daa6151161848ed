"""``dnnc tag``: the prior of TAG's search method (``dnnc compile --search tag``)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.console import progress, put, put_json, show_warnings
from dnnc.cli.faults import PyTorchMissing
from dnnc.cli.logs import with_verbose
from dnnc.cli.options import shared as opt
from dnnc.cli.panels import PanelGroup
from ir.core.diagnostics import DiagnosticSink, UsageError

if TYPE_CHECKING:
    from dnnc.search_tag.training import Step

app = typer.Typer(
    cls=PanelGroup, help="The prior of TAG's search, for --search tag.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _tag() -> None:
    """The prior of TAG's search, for --search tag."""


@app.command()
@with_verbose
def train(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.npz", help="File to write, for --search-prior.")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL", help="Model to search on (default: the six of TAG). Repeatable."),
    ] = None,
    topologies: Annotated[int, typer.Option(min=1, max=1 << 20, metavar="N", help="Machines to draw at random.")] = 32,
    seed: Annotated[int, typer.Option(min=0, max=1 << 31, help="Of the machines, the first weights and the order.")] = 0,
    steps: Annotated[int, typer.Option(min=1, max=1 << 20, metavar="N", help="Searches to learn from.")] = 100,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Train a prior on models and machines drawn at random, by searches that are guided by it. Needs PyTorch."""
    from dnnc.compile.context import pass_context
    from dnnc.compile.load import load_model
    from dnnc.data.inputs import check_writable, write_npz
    from dnnc.search_tag.cases import MODELS, Cases
    from dnnc.search_tag.network import prior_arrays

    if find_spec("torch") is None:
        raise UsageError(PyTorchMissing(), where="dnnc tag train")
    from dnnc.search_tag.training import train as trained

    check_writable(out)

    sink, told = DiagnosticSink(), list["Step"]()
    try:
        with progress(not quiet) as report:

            def after(number: int, step: Step) -> None:
                told.append(step)
                report(f"{step.case}: x {step.speedup:.2f}, loss {step.loss:.3f}", (number + 1) / steps)

            weights = trained(Cases(model or MODELS, topologies, seed, pass_context(sink), load_model), steps, seed, after)
    finally:
        show_warnings(sink.diagnostics, quiet)
    write_npz(out, prior_arrays(weights))
    if json:
        rows = [{"case": step.case, "speedup": step.speedup, "loss": step.loss} for step in told]
        put_json("tag-train", {"out": str(out), "steps": rows})
    elif not quiet:
        put(f"wrote {out} after {steps} searches; the loss went from {told[0].loss:.3f} to {told[-1].loss:.3f}")
