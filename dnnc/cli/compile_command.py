"""``dnnc compile``: the main job, from a model and a topology to a directory of programs."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnc.cli import options as opt
from dnnc.cli.console import progress, put, put_json, show_warnings, talk
from dnnc.cli.tracing import Tracing, statistics_text, timing_text
from ir.diagnostics import DiagnosticSink

if TYPE_CHECKING:
    from dnnc.driver import CompileOptions, CompileResult


class Objective(StrEnum):
    """What is minimised; of training, a model without a backward pass says what it lacks."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    TRAINING = "training"
    PIPEDREAM = "pipedream"


def compile_(
    model: opt.ModelArgument,
    topology: opt.TopologyOption,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Directory to write; replaced when it is a build.")],
    dim: opt.DimOption = None,
    cut: Annotated[
        list[str] | None, typer.Option("--cut", metavar="TENSOR", help="Begin a new stage after this tensor. Repeatable.")
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", metavar="NODE=DEVICE", help="Run a node on a device. Repeatable.")
    ] = None,
    stages: Annotated[
        int | None, typer.Option("--stages", min=1, metavar="N", help="Exactly N stages (default: as many as help).")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Replay this (edited) plan.json instead of searching.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Write plan.json and plan.ir only: no stages, no weights.")
    ] = False,
    weights: Annotated[
        opt.Weights, typer.Option(help="One shared weight file, one file per stage, or none at all.")
    ] = opt.Weights.SHARED,
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="throughput: the largest load of a device (default); latency: the time of one sample alone.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        opt.Split | None,
        typer.Option(
            help="contiguous: data flows forward only between devices (default); any: back and forth, in several stages per "
            "device.",
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="R",
            help="A stage may run on up to R devices, which take microbatches in turn (default: 1).",
        ),
    ] = None,
    pieces: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="Q", help="latency: a device runs up to Q stages, one after another.")
    ] = None,
    comm: Annotated[
        opt.Comm | None, typer.Option(help="How compute and transfers of a device add up (default: sum).", show_default=False)
    ] = None,
    passes: Annotated[
        str, typer.Option("--passes", metavar="PIPELINE", help="Run these passes ('dnnc passes') instead of the default ones.")
    ] = "",
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.0, help="Longest search for a better plan; the gap stays stated.")
    ] = None,
    print_before: opt.PrintBeforeOption = None,
    print_after: opt.PrintAfterOption = None,
    print_on_change: opt.PrintChangeOption = False,
    print_folder: opt.PrintFolderOption = None,
    verify_each: opt.VerifyOption = True,
    json: opt.JsonOption = False,
    timing: opt.TimingOption = False,
    statistics: opt.StatisticsOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Compile MODEL for the machines of TOPOLOGY into DIR: a plan with its proof, and one program per stage."""
    from dnnc.driver import CompileOptions, compile_model

    tracing = Tracing.of(print_before, print_after, print_on_change, print_folder, verify_each)
    options = CompileOptions(
        model=model,
        topology=topology,
        out=out,
        dims=opt.parse_dims(dim),
        cuts=tuple(cut or ()),
        pins=opt.parse_pairs(pin, "--pin", "NODE=DEVICE"),
        stages=stages,
        plan=plan,
        plan_only=plan_only,
        weights=weights.value,
        comm=comm.value if comm else "",
        pipeline=passes,
        time_limit=time_limit,
        objective=objective.value if objective else "",
        split=split.value if split else "",
        replicas=replicas,
        pieces=pieces,
    )
    sink = DiagnosticSink()
    try:
        with progress(not quiet and not tracing.to_stderr) as report:
            result = compile_model(options, sink=sink, progress=report, manager=tracing.manager_options())
    finally:
        show_warnings(sink.diagnostics, quiet)
    if timing:
        talk(timing_text(result.seconds))
    if statistics:
        talk(statistics_text(result.statistics))
    if json:
        put_json("compile", result_json(result, options.model, options.topology))
    elif not quiet:
        _print_result(result, options)


def result_json(result: CompileResult, model: str, topology: str) -> dict[str, Any]:
    """``--json``: the objective is in seconds per sample, memory in bytes; null stands for infinite."""
    from dnnc.report import idle_devices, stage_seconds

    plan = result.plan
    return {
        "model": model,
        "topology": topology,
        "out": str(result.out),
        "pipeline": result.pipeline,
        "kind": plan.objective,
        "comm": plan.comm,
        "objective": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": plan.status,
        "single": plan.single,
        "stages": [
            {
                "index": stage.index,
                "devices": list(stage.devices),
                "device_type": stage.device_type,
                "ops": stage.ops,
                "seconds": stage_seconds(stage, plan.comm),
                "compute": stage.compute,
                "receive": stage.receive,
                "send": stage.send,
                "memory": stage.memory,
                "weights": stage.weights,
                "workspace": stage.workspace,
                "buffers": stage.buffers,
            }
            for stage in plan.stages
        ],
        "idle": list(idle_devices(plan, result.topology)),
        "certificate": dict(plan.certificate),
        "seconds": result.seconds,
    }


def _print_result(result: CompileResult, options: CompileOptions) -> None:
    """The table of stages, how good the plan is, what it leaves unused, and what to do next."""
    from dnnc.report import idle_text, plan_headline, plan_table, print_table

    print_table(plan_table(result.plan))
    put("")
    put(plan_headline(result.plan))
    if options.plan is not None:
        asked = "the replayed plan leaves them out"
    else:
        asked = f"--stages {options.stages} was asked for" if options.stages is not None else ""
    if idle := idle_text(result.plan, result.topology, asked):
        put(idle)
    folder = shlex.quote(str(result.out))
    if options.plan_only:
        put(f"wrote the plan to {folder}; edit {folder}/plan.json and replay it with --plan, or compile without --plan-only")
    elif options.weights == "none":
        put(f"wrote {folder} without weights: it can be inspected, not run; compile with --weights shared to run it")
    elif result.manifest["weights"] == "none":
        put(f"wrote {folder} without weights, which the model only declares: it can be inspected, neither run nor checked")
    else:
        put(f"wrote {folder}; next: dnnc run {folder}, dnnc check {folder}")
