"""``dnnc inspect``: what is in a model, an IR text, or a build directory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnc.cli.console import progress, put, put_json, show_warnings
from dnnc.cli.faults import NoFunction, NoPrograms, TextOrJson
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.limits import LIMITS, Limits

if TYPE_CHECKING:
    from dnnc.build.build import Build
    from dnnc.build.decoding import Decoding
    from ir.core.module import Module


def inspect_(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="DIR|MODEL|IR",
            help="A build directory, an ONNX file or zoo:NAME, or IR text (.ir).",
            autocompletion=opt.complete_model,
        ),
    ],
    dim: opt.DimOption = None,
    limit: opt.LimitOption = None,
    short: opt.ShortOption = False,
    programs: Annotated[
        bool, typer.Option("--programs", help="Print what each device of a plan runs, as IR text on the parts that it holds.")
    ] = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Print what a model, IR text or build holds: inputs, weights, ops and their cost, or the plan."""
    if (short or programs) and json:
        raise UsageError(TextOrJson("--short" if short else "--programs"))
    if not subject.startswith("zoo:") and Path(subject).is_dir():
        _inspect_build(Path(subject), short=short, programs=programs, json=json, quiet=quiet)
        return
    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            report("inspect", None)
            module = _load(subject, opt.parse_dims(dim), sink, opt.parse_limits(limit))
            costed = module if short or programs else _costed(module)
    finally:
        show_warnings(sink.diagnostics, quiet)
    if short or programs:
        put(_text(module, subject, short=short, programs=programs))
    else:
        _print_module(module, costed, json)


def _load(subject: str, dims: dict[str, int | str], sink: DiagnosticSink, limits: Limits = LIMITS) -> Module:
    from dnnc.compile.load import load_model
    from ir.core.module import Func

    module = load_model(subject, dims, sink, allow_missing_weights=True, limits=limits).module
    if module.first(Func) is None:
        raise InvalidInput(NoFunction(), where=subject)
    return module


def _costed(module: Module) -> Module:
    """The module with costs where its shapes are known, else the same."""
    from dnnc.compile.context import pass_context
    from ir.core.facets import Cost
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import parse_pipeline
    from passes.graph.folding import expand

    if any(op.facet(Cost) for op in module.entry.ops):
        return module
    try:
        return PassManager(parse_pipeline("canonicalize,cost")).run(expand(module), pass_context(DiagnosticSink()))
    except InvalidInput:  # a symbolic dimension: there is no cost to tell yet, and the summary says how to bind it
        return module


def _text(module: Module, where: str, *, short: bool, programs: bool) -> str:
    """The module as IR text, or its programs alone."""
    from ir import print_module

    return _programs_text(module, where, short) if programs else print_module(module, short=short)


def _programs_text(module: Module, subject: str, short: bool) -> str:
    """The programs of a module with stages, as ``localize`` writes them."""
    from dnnc.onnx import DIALECTS
    from ir import Module, print_module
    from ir.core.module import Program
    from passes.framework.base import PassContext
    from passes.graph.folding import expand
    from passes.programs.localize import LocalizePass

    module = LocalizePass().run(expand(module), PassContext(dialects=DIALECTS))
    programs = tuple(module.of_type(Program))
    if not programs:
        raise InvalidInput(NoPrograms(), where=subject)
    return print_module(Module(module.name, programs), short=short)


def _print_module(module: Module, costed: Module | None, json: bool) -> None:
    from dnnc.report import mesh_axes, plan_headline, print_table, shares_lines, stages_table, summarize, summary_text
    from ir.core.module import Plan

    summary = summarize(module, costed)
    plan = module.first(Plan)
    if json:
        put_json("inspect", {"kind": "model", "model": summary.to_json(), "plan": _plan_json(module) if plan else None})
        return
    put(summary_text(summary))
    if plan is not None:
        put("")
        print_table(stages_table(plan, mesh_axes(module)))
        put(shares_lines(module) + "\n" + plan_headline(plan))


def _plan_json(module: Module) -> dict[str, Any]:
    from dnnc.build.plan_json import plan_to_json
    from passes.graph.folding import expand

    return plan_to_json(expand(module))


def _inspect_build(folder: Path, *, short: bool, programs: bool, json: bool, quiet: bool) -> None:
    """Tells of a build by its files, which are verified."""
    from dnnc.build.build import PROGRAM, Build
    from dnnc.build.snapshot import ONNXRUNTIME, Snapshot
    from dnnc.report import plan_headline, print_table, stages_table
    from dnnc.workloads.scheduled import written_plan

    with progress(not quiet) as report:
        files = Snapshot.open(folder, report)
    if short or programs:
        put(_text(written_plan(files), files.where(PROGRAM), short=short, programs=programs))
        return
    # Of a plan alone, and of a build for training, the plan tells all.
    if files.engine != ONNXRUNTIME:
        _print_module(written_plan(files), None, json)
        return
    build = Build.of(files)
    if json:
        fields = {
            "kind": "build",
            "folder": str(folder),
            "manifest": dict(build.files.manifest),
            "inputs": [asdict(port) for port in build.inputs],
            "outputs": [asdict(port) for port in build.outputs],
            "stages": [asdict(stage) for stage in build.stages],
            "schedule": asdict(build.schedule),
            **({"decoding": build.decoding.to_json()} if build.decoding is not None else {}),
        }
        put_json("inspect", fields, version=2)
        return
    put(_build_text(build))
    axes = {stage.index: [size for _, size in stage.axes] for stage in build.stages if stage.axes}
    print_table(stages_table(build.plan, axes))
    put("\n" + plan_headline(build.plan))
    if build.channels:
        put("")
        print_table(_channel_table(build))


def _build_text(build: Build) -> str:
    from dnnc.report import bytes_text, key_values

    files = build.files.manifest["files"]
    size = sum(entry["bytes"] for entry in files.values())
    by_provider: dict[str, list[str]] = {}
    for device, provider in build.providers.items():
        by_provider.setdefault(provider.name, []).append(device)
    pairs = [
        ("build", str(build.folder)),
        ("source", build.source.spec or "(not known)"),
        *(("input", f"{port.name} : {port.type}") for port in build.inputs),
        *(("output", f"{port.name} : {port.type}") for port in build.outputs),
        *([("states", _states_text(build.decoding))] if build.decoding is not None else []),
        ("weights", build.weights),
        ("files", f"{len(files)}, {bytes_text(size)}"),
        *(("provider", f"{name} on {', '.join(devices)}") for name, devices in by_provider.items()),
    ]
    return key_values(pairs)


def _states_text(decoding: Decoding) -> str:
    """The states of a build, such as ``4, 128 KiB for each of 2 groups of 2 sequences, context 64, prompts by 63 tokens``."""
    from dnnc.report import bytes_text

    groups = f"{decoding.groups} group{'s' if decoding.groups > 1 else ''}"
    told = [f"{len(decoding.states)}, {bytes_text(decoding.group_bytes)} for each of {groups}"]
    if decoding.generates:
        told[0] += f" of {decoding.batch} sequence{'s' if decoding.batch > 1 else ''}"
        told += [f"context {decoding.context}", f"prompts by {decoding.chunk} token{'s' if decoding.chunk > 1 else ''}"]
    return ", ".join(told)


def _channel_table(build: Build) -> Any:
    from dnnc.report import Table, bytes_text, columns

    rows = tuple(
        (str(c.id), str(c.source), str(c.target), "-" if c.nbytes is None else bytes_text(c.nbytes), f"{c.tensor} : {c.type}")
        for c in build.channels
    )
    return Table(columns("channel from to size <tensor"), rows)
