"""``dnnc inspect``: what is in a model, an IR text, or a build directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnc.cli import options as opt
from dnnc.cli.console import progress, put, put_json, show_warnings
from ir.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.limits import LIMITS, Limits

if TYPE_CHECKING:
    from dnnc.program.build import Build
    from ir.module import Module


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
        raise UsageError(f"{'--short' if short else '--programs'} prints IR text, --json does not: choose one of them")
    if (short or programs) and not subject.startswith("zoo:") and Path(subject).is_dir():
        subject = str(Path(subject) / "plan.ir")
    if not subject.startswith("zoo:") and Path(subject).is_dir():
        _inspect_build(Path(subject), json)
        return
    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            report("inspect", None)
            module, costed = _load(subject, opt.parse_dims(dim), sink, opt.parse_limits(limit))
    finally:
        show_warnings(sink.diagnostics, quiet)
    if programs:
        put(_programs_text(module, subject, short))
    elif short:
        from ir import print_module

        put(print_module(module, short=True))
    else:
        _print_module(module, costed, json)


def _load(subject: str, dims: dict[str, int | str], sink: DiagnosticSink, limits: Limits = LIMITS) -> tuple[Module, Module]:
    """The module as it was given, and with costs where its shapes are known: the same module where they are not."""
    from dnnc.driver import pass_context
    from dnnc.frontends import load_model
    from ir.facets import Cost
    from ir.module import Func
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import parse_pipeline
    from passes.model.folding import expand

    module = load_model(subject, dims, sink, allow_missing_weights=True, limits=limits).module
    if module.first(Func) is None:
        raise InvalidInput("the module has no function, so there is nothing to tell of it", where=subject)
    if any(op.facet(Cost) for op in module.entry.ops):
        return module, module
    try:
        return module, PassManager(parse_pipeline("canonicalize,cost")).run(expand(module), pass_context(DiagnosticSink()))
    except InvalidInput:  # a symbolic dimension: there is no cost to tell yet, and the summary says how to bind it
        return module, module


def _programs_text(module: Module, subject: str, short: bool) -> str:
    """The programs of a module with stages, as ``localize`` writes them."""
    from dnnc.frontends import DIALECTS
    from ir import Module, print_module
    from ir.module import Program
    from passes.framework.base import PassContext
    from passes.localize import LocalizePass
    from passes.model.folding import expand

    module = LocalizePass().run(expand(module), PassContext(dialects=DIALECTS))
    programs = tuple(module.of_type(Program))
    if not programs:
        hint = "compile it without --plan-only, or 'dnnc opt' it with the passes place, schedule, lower"
        raise InvalidInput("the module has no stages, so devices have no programs", where=subject, hint=hint)
    return print_module(Module(module.name, programs), short=short)


def _load_plan(folder: Path, sink: DiagnosticSink) -> Module:
    """The module of a plan without programs, verified."""
    from ir.module import Plan

    path = folder / "plan.ir"
    module, _ = _load(str(path), {}, sink)
    if module.first(Plan) is None:
        raise InvalidInput("the module has no plan", where=str(path), hint="make it again with 'dnnc compile --plan-only'")
    return module


def _print_module(module: Module, costed: Module | None, json: bool) -> None:
    from dnnc.report import mesh_axes, plan_headline, print_table, shares_lines, stages_table, summarize, summary_text
    from ir.module import Plan

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
    from dnnc.program.plan_json import plan_to_json
    from passes.model.folding import expand

    return plan_to_json(expand(module))


def _inspect_build(folder: Path, json: bool) -> None:
    from dnnc.program.build import TORCH, Build
    from dnnc.program.snapshot import read_manifest
    from dnnc.report import plan_headline, print_table, stages_table

    manifest = read_manifest(folder)
    if manifest.get("stages") == [] or manifest.get("engine") == TORCH:  # --plan-only, or training: the plan tells all
        _print_module(_load_plan(folder, DiagnosticSink()), None, json)
        return
    build = Build.open(folder)
    if json:
        put_json("inspect", {"kind": "build", "folder": str(folder), "manifest": dict(build.files.manifest)})
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
        ("weights", build.weights),
        ("files", f"{len(files)}, {bytes_text(size)}"),
        *(("provider", f"{name} on {', '.join(devices)}") for name, devices in by_provider.items()),
    ]
    return key_values(pairs)


def _channel_table(build: Build) -> Any:
    from dnnc.report import Table, bytes_text, columns

    rows = tuple(
        (str(c.id), str(c.source), str(c.target), "-" if c.nbytes is None else bytes_text(c.nbytes), f"{c.tensor} : {c.type}")
        for c in build.channels
    )
    return Table(columns("channel from to size <tensor"), rows)
