"""``dnnc solve``: the best split of a profiled workload, with its proof; ``dnnc verify-plan``: such a split recomputed."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli import options as opt
from dnnc.cli.console import progress, put, put_json, show_warnings, talk, write_whole
from ir.diagnostics import CheckFailed, Diagnostic, DiagnosticSink, ExitCode, UsageError
from ir.objectives import objective_of

if TYPE_CHECKING:
    from dnnc.solve import SolveResult


class Format(StrEnum):
    """What the file is."""

    DEVICE_PLACEMENT = "device-placement"
    PIPEDREAM = "pipedream"


class Method(StrEnum):
    """How to split: exactly, or as others would."""

    EXACT = "exact"
    ONE_DEVICE = "one-device"
    GREEDY = "greedy"
    TOPOLOGICAL = "topological"
    PIPEDREAM_STYLE = "pipedream-style"
    LOCAL_SEARCH = "local-search"
    METIS = "metis"
    EXPERT = "expert"


class TrainingSchedule(StrEnum):
    """The order of forward and backward passes: what training minimises, what a machine holds under PipeDream's objective."""

    ONE_F_ONE_B = "1f1b"
    STASH = "stash"
    TWO_BUFFERS = "2bw"
    FLUSH = "flush"
    GPIPE = "gpipe"


class Split(StrEnum):
    """Which splits are allowed."""

    CONTIGUOUS = "contiguous"
    ANY = "any"


FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Device-placement JSON, a PipeDream profile (graph.txt), or either as IR text (.ir).",
        show_default=False,
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topology",
        metavar="TOPOLOGY",
        help="The devices of a TOML or JSON file, or of preset:NAME, instead of FILE's machines: of any number of types.",
        autocompletion=opt.complete_topology,
        show_default=False,
    ),
]
BytesOption = Annotated[
    bool,
    typer.Option("--bytes", help="-t: transfers are FILE's bytes over the links of TOPOLOGY, whatever seconds it states."),
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="What FILE is (default: told by its text).", show_default=False)
]
AcceleratorsOption = Annotated[
    int | None, typer.Option("--accelerators", "-k", min=0, max=65536, metavar="K", help="Accelerators, instead of the file's.")
]
CpusOption = Annotated[int | None, typer.Option("--cpus", min=0, max=65536, metavar="L", help="CPUs, instead of the file's.")]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory of each accelerator: 16GiB, or a number of bytes.")
]
BandwidthOption = Annotated[
    str | None,
    typer.Option("--bandwidth", metavar="RATE", help="Link of each accelerator: 10GB/s; transfers are then bytes over it."),
]
CommOption = Annotated[opt.Comm, typer.Option(help="How compute and transfers of a device add up.")]
ForwardOption = Annotated[bool, typer.Option("--forward", help="Leave backward nodes out: inference.")]


def solve(
    file: FileArgument,
    objective: opt.SolveObjective = None,
    split: Annotated[
        Split, typer.Option(help="contiguous: data flows forward only between devices; any: back and forth.")
    ] = Split.CONTIGUOUS,
    comm: CommOption = opt.Comm.SUM,
    format: FormatOption = None,
    topology: TopologyOption = None,
    by_bytes: BytesOption = False,
    accelerators: AcceleratorsOption = None,
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    bandwidth: BandwidthOption = None,
    forward: ForwardOption = False,
    straight: Annotated[bool, typer.Option("--straight", help="pipedream: one accelerator per stage, no replicas.")] = False,
    schedule: Annotated[
        TrainingSchedule | None,
        typer.Option(
            help="training: 1f1b (max FW + BW, default) or gpipe (max FW + max BW); pipedream: what memory holds "
            "(default: stash).",
            show_default=False,
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="M",
            help="pipedream (flush, gpipe), training with replicas: microbatches between two flushes.",
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            metavar="R",
            help="throughput, training: a stage may run on up to R devices, which take samples in turn.",
        ),
    ] = 1,
    hierarchy: Annotated[
        str | None,
        typer.Option(
            metavar="GxS",
            help="throughput, pipedream: G groups of S accelerators, joined at --bandwidth, with --inner-bandwidth inside.",
        ),
    ] = None,
    inner_bandwidth: Annotated[
        str | None, typer.Option("--inner-bandwidth", metavar="RATE", help="Links inside a group of --hierarchy: 100GB/s.")
    ] = None,
    pieces: Annotated[
        int, typer.Option(min=1, max=64, metavar="Q", help="latency: an accelerator runs up to Q pieces, one after another.")
    ] = 1,
    method: Annotated[Method, typer.Option(help="exact, or a baseline to compare it with.")] = Method.EXACT,
    compare: Annotated[bool, typer.Option("--compare", help="Every method beside the exact one.")] = False,
    expert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A split made by hand, for --method expert and --compare: the reference's result format, "
            "a result of --json, or a profile with stage_id.",
        ),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.0, help="Longest search for a better plan; the gap stays stated.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Also write the reference's result format (maxLoad, fpgas, cpus), and in 'dnnc' what it is of.",
        ),
    ] = None,
    json: opt.JsonOption = False,
    timing: opt.TimingOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Split the workload of FILE over accelerators and CPUs, or over the devices of TOPOLOGY, optimally, and say how that is
    proven. Times are in milliseconds."""
    from dnnc.cli.tracing import timing_text
    from dnnc.report.solve import compare_note, compare_table, solve_headline, solve_table
    from dnnc.report.tables import print_table
    from dnnc.solve import SolveOptions, solve_file

    options = SolveOptions(
        file=str(file),
        format=format.value if format else "",
        objective=objective or "",
        split=split.value,
        comm=comm.value,
        accelerators=accelerators,
        cpus=cpus,
        memory=_bytes(memory),
        bandwidth=_rate(bandwidth),
        forward=forward,
        time_limit=time_limit,
        straight=straight,
        schedule=schedule.value if schedule else "",
        microbatches=microbatches,
        replicas=replicas,
        hierarchy=_groups(hierarchy),
        inner_bandwidth=_rate(inner_bandwidth, "--inner-bandwidth"),
        pieces=pieces,
        topology=topology or "",
        by_bytes=by_bytes,
        method=method.value,
        compare=compare,
        expert=str(expert or ""),
    )
    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            result = solve_file(options, sink=sink, progress=report)
    finally:
        show_warnings(sink.diagnostics, quiet)
    if timing:
        talk(timing_text(result.seconds))
    if json:
        put_json("solve", result.to_json())
    if result.compare and not json and not quiet:
        print_table(compare_table(result))
        put(compare_note(result))
    if result.why is not None:
        raise result.why
    if out is not None:
        write_whole(out, _placed(result, pieces, numbered=hierarchy is not None))
    if not json and not quiet:
        print_table(solve_table(result))
        put("")
        put(solve_headline(result))
        if out is not None:
            put(f"wrote {out}")
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def verify_plan(
    file: FileArgument,
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="What 'dnnc solve' printed with --json, or wrote with -o.")],
    objective: opt.SolveObjective = None,
    comm: Annotated[
        opt.Comm | None,
        typer.Option(help="How compute and transfers add up (default: as RESULT says, else sum).", show_default=False),
    ] = None,
    split: Annotated[
        Split | None, typer.Option(help="What to check (default: as RESULT says, else contiguous).", show_default=False)
    ] = None,
    schedule: Annotated[
        TrainingSchedule | None,
        typer.Option(help="training, pipedream: the schedule (default: as RESULT says).", show_default=False),
    ] = None,
    straight: Annotated[bool, typer.Option("--straight", help="pipedream: no stage may have replicas.")] = False,
    microbatches: Annotated[
        int | None, typer.Option(min=1, metavar="M", help="pipedream, training: microbatches between two flushes.")
    ] = None,
    pieces: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="Q", help="latency: rows of 'fpgas' that each accelerator has.")
    ] = None,
    hierarchy: Annotated[
        str | None, typer.Option(metavar="GxS", help="G groups of S accelerators, in the order of RESULT.")
    ] = None,
    inner_bandwidth: Annotated[
        str | None, typer.Option("--inner-bandwidth", metavar="RATE", help="Links inside a group of --hierarchy: 100GB/s.")
    ] = None,
    format: FormatOption = None,
    topology: TopologyOption = None,
    by_bytes: BytesOption = False,
    accelerators: AcceleratorsOption = None,
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    bandwidth: BandwidthOption = None,
    forward: ForwardOption = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Recompute a split of FILE from the file alone: loads, memory, colocation, contiguity, coverage. Every violation is named;
    the exit code is 5 when there is one. Options stand over what RESULT says; machines are as FILE and options say, those of
    TOPOLOGY as 'dnnc topology show' prints them."""
    from dnnc.machine import machines_of
    from dnnc.verify_plan import Limits, verify_files

    groups = _groups(hierarchy)
    if groups is not None and accelerators is None:
        accelerators = groups[0] * groups[1]
    defined = {
        "schedule": schedule.value if schedule else None,
        "straight": straight or None,
        "microbatches": microbatches,
        "pieces": pieces,
        "hierarchy": f"{groups[0]}x{groups[1]}" if groups else None,
        "inner_bandwidth": _rate(inner_bandwidth, "--inner-bandwidth"),
    }
    limits = Limits(accelerators, cpus, _bytes(memory), _rate(bandwidth))
    own = {"--accelerators": accelerators, "--cpus": cpus, "--memory": memory, "--bandwidth": bandwidth, "--hierarchy": groups}
    if topology is not None and (given := [flag for flag, value in own.items() if value is not None]):
        raise UsageError(f"{', '.join(given)}: of the machines of FILE, not of a topology", where=topology)
    if by_bytes and topology is None and file.suffix != ".ir":
        raise UsageError("--bytes is of the links of a topology", hint="add -t TOPOLOGY")
    sink = DiagnosticSink()
    devices = None if topology is None else machines_of(topology, sink)
    show_warnings(sink.diagnostics, quiet)
    report = verify_files(
        file,
        result,
        limits,
        topology=devices,
        by_bytes=by_bytes,
        format=format.value if format else "",
        objective=objective or "",
        comm=comm.value if comm else "",
        split=split.value if split else "",
        options={name: value for name, value in defined.items() if value is not None},
        forward=forward,
    )
    if json:
        put_json("verify-plan", report.to_json())
    if report.violations:
        found = [Diagnostic(text, where=str(result)) for text in report.violations]
        raise CheckFailed([*found[:-1], replace(found[-1], hint=report.hint)])
    if not json and not quiet:
        put(report.text())


def _placed(result: SolveResult, pieces: int, *, numbered: bool) -> str:
    """The result in the reference's format; ``numbered``: devices stand in groups. Raises UsageError."""
    from dnnc.backend.placement_result import Row, latency_result, placement_result, placement_text

    stages = [device.stage for device in result.devices if device.stage is not None]
    if len(set(stages)) < len(stages):
        raise UsageError("the reference's format has no replicas", where="-o", hint="use --json, or one device per stage")
    named = "topology" in result.machines
    rows = [
        Row(
            device.cpu,
            device.load,
            device.nodes,
            device.name if named else "",
            device.stage if numbered else None,
            [piece.nodes for piece in device.pieces],
        )
        for device in result.devices
    ]
    if objective_of(result.kind).alone:
        return placement_text(latency_result(result.objective, pieces, rows, result.statement()))
    return placement_text(placement_result(result.objective, rows, result.statement()))


def _bytes(text: str | None) -> int | None:
    """``--memory``: a size with its unit, or plain bytes. Raises UsageError."""
    from dnnc.frontends.quantities import parse_memory

    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        return parse_memory(text)
    except ValueError as error:
        raise UsageError(str(error), where="--memory") from None


def _groups(text: str | None) -> tuple[int, int] | None:
    """``--hierarchy``: groups and accelerators in each. Raises UsageError."""
    if text is None:
        return None
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 65536 for part in parts):
        raise UsageError(f"found '{text}', expected GROUPSxSIZE, such as 4x8", where="--hierarchy")
    groups, size = int(parts[0]), int(parts[1])
    if groups * size > 65536:
        raise UsageError(f"found {groups * size} accelerators, expected at most 65536", where="--hierarchy")
    return groups, size


def _rate(text: str | None, flag: str = "--bandwidth") -> float | None:
    """``--bandwidth``: a rate with its unit, or plain bytes per second. Raises UsageError."""
    from dnnc.frontends.quantities import Quantity, parse_quantity

    if text is None:
        return None
    try:
        rate = float(text) if text.isdecimal() else parse_quantity(text, Quantity.BANDWIDTH)
    except ValueError as error:
        raise UsageError(str(error), where=flag) from None
    if not 0 < rate < float("inf"):
        raise UsageError(f"found '{text}', expected a bandwidth above 0", where=flag)
    return rate
