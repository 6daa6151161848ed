"""``dnnc import``, ``opt`` and ``passes``: IR text in and out, and the passes that work on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli.console import progress, put, put_json, show_warnings, talk, write_whole
from dnnc.cli.options import shared as opt
from dnnc.cli.tracing import Tracing, timing_text
from ir.core.diagnostics import DiagnosticSink
from ir.core.limits import MOST
from ir.core.module import Module

OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write there instead of to standard output.")
]


def import_(
    model: opt.ModelArgument,
    out: OutOption = None,
    dim: opt.DimOption = None,
    limit: opt.LimitOption = None,
    passes: Annotated[str, typer.Option("--passes", metavar="PIPELINE", help="Run these passes on it.")] = "",
    quiet: opt.QuietOption = False,
) -> None:
    """Print MODEL as IR text."""
    from dnnc.compile.load import load_model
    from ir import print_module
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import made_by, parse_pipeline

    pipeline = parse_pipeline(passes)
    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            report("import", None)
            limits = opt.parse_limits(limit)
            module = load_model(model, opt.parse_dims(dim), sink, allow_missing_weights=True, limits=limits).module
            if pipeline:
                from dnnc.compile.context import pass_context

                context = pass_context(sink, report)
                context.prove = _prove
                module = PassManager(pipeline, **Tracing().manager_options()).run(module, context)
    finally:
        show_warnings(sink.diagnostics, quiet)
    _write(made_by(pipeline) + print_module(module), out)


def opt_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="IR text ('-' reads standard input).")],
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            metavar="PIPELINE",
            help="Passes to run (default: those of the file's RUN line, as in a reproducer, else none).",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "-t", "--topology", metavar="TOPOLOGY", help="Add these machines first.", autocompletion=opt.complete_topology
        ),
    ] = None,
    out: OutOption = None,
    short: opt.ShortOption = False,
    stop_after: Annotated[int | None, typer.Option(min=0, max=MOST, metavar="N", help="Run the first N passes only.")] = None,
    print_before: opt.PrintBeforeOption = None,
    print_after: opt.PrintAfterOption = None,
    print_on_change: opt.PrintChangeOption = False,
    print_folder: opt.PrintFolderOption = None,
    timing: opt.TimingOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Run passes on IR text and print the result; replays a reproducer as it is. Without passes: read, verify, print."""
    from dnnc.compile.context import pass_context
    from dnnc.onnx import DIALECTS
    from ir import load_module, print_module
    from passes.framework.manager import PassManager, pipeline_of
    from passes.framework.pipeline import made_by, parse_pipeline

    tracing = Tracing.of(print_before, print_after, print_on_change, print_folder)
    text, where = _read(file)
    pipeline = parse_pipeline(passes if passes is not None else pipeline_of(text, where) or "")
    sink = DiagnosticSink()
    module = load_module(text, where, dialects=DIALECTS)
    try:
        if topology is not None:
            from dnnc.compile.context import with_topology
            from dnnc.machines import machines_of

            module = with_topology(module, machines_of(topology, sink), pipeline)
        with progress(not quiet and not tracing.to_stderr) as report:
            context = pass_context(sink, report)
            context.prove = _prove
            manager = PassManager(pipeline, stop_after=stop_after, **tracing.manager_options())
            module = manager.run(module, context)
    finally:
        show_warnings(sink.diagnostics, quiet)
    if timing:
        talk(timing_text({report.name: report.seconds for report in manager.reports}))
    _write(made_by(pipeline[:stop_after]) + print_module(module, short=short), out)


def passes_(json: opt.JsonOption = False) -> None:
    """List the passes with their options, and the named pipelines."""
    from passes.framework.registry import PASSES, PIPELINES, describe

    infos = [describe(name) for name in PASSES]
    if json:
        listed = [
            {
                "name": info.name,
                "help": info.help,
                "needs": list(info.needs),
                "establishes": list(info.establishes),
                "destroys": list(info.destroys),
                "options": [{"name": o.name, "type": o.type, "default": o.default} for o in info.options],
            }
            for info in infos
        ]
        put_json("passes", {"passes": listed, "pipelines": dict(PIPELINES)})
        return
    for info in infos:
        put(f"{info.name}\n  {info.help}")
        for verb, words in (("needs", info.needs), ("establishes", info.establishes), ("destroys", info.destroys)):
            if words:
                put(f"    {verb}: {', '.join(words)}")
        for option in info.options:
            put(f"    {option.name} = {option.default}  ({option.type})")
    put("\npipelines")
    for name, text in PIPELINES.items():
        put(f"  {name} = {text}")


def _prove(module: Module) -> Mapping[str, int]:
    """What the pass ``validate`` asks; the proof is imported at the first call."""
    from dnnc.check.proof import prover

    return prover(module)


def _read(file: Path) -> tuple[str, str]:
    """The text and what to call it. Raises InvalidInput when it cannot be read as text."""
    import sys

    from ir import read_text
    from ir.text.parser import decode_text

    if str(file) != "-":
        return read_text(file), str(file)
    return decode_text(sys.stdin.buffer, "<stdin>"), "<stdin>"


def _write(text: str, out: Path | None) -> None:
    """``text`` to a file, whole or not at all, or to standard output."""
    if out is None:
        put(text)
    else:
        write_whole(out, text)
