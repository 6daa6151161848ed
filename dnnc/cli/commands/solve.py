"""``dnnc solve``: the best split of a profiled workload, with its proof; ``dnnc verify-plan``: such a split, or
the plan of a directory, recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dnnc.cli.console import progress, put, put_json, show_warnings, talk, write_whole
from dnnc.cli.faults import (
    NoBandwidth,
    NoReplicasInFormat,
    NotAHierarchy,
    NotAQuantity,
    NotOfDirectory,
    SplitIsWrong,
    SplitMissing,
    TooManyAccelerators,
)
from dnnc.cli.options import shared as opt
from dnnc.cli.options import solve as arguments
from dnnc.workloads.faults import BytesWithoutTopology, MachinesWithTopology
from ir.core.diagnostics import CheckFailed, DiagnosticSink, ExitCode, InvalidInput, UsageError
from ir.core.faults import NoSuchFile
from ir.core.objectives import objective_of

if TYPE_CHECKING:
    from dnnc.workloads.methods import SolveOptions
    from dnnc.workloads.solve import SolveResult

_MOST_ACCELERATORS = 65536


def solve(
    file: arguments.FileArgument,
    objective: opt.SolveObjective = None,
    split: arguments.SplitOption = opt.Split.CONTIGUOUS,
    comm: arguments.CommOption = opt.Comm.SUM,
    format: arguments.FormatOption = None,
    topology: arguments.TopologyOption = None,
    by_bytes: arguments.BytesOption = False,
    accelerators: arguments.AcceleratorsOption = None,
    cpus: arguments.CpusOption = None,
    memory: arguments.MemoryOption = None,
    bandwidth: arguments.BandwidthOption = None,
    forward: arguments.ForwardOption = False,
    straight: arguments.Straight = False,
    schedule: arguments.Schedule = None,
    microbatches: arguments.Microbatches = None,
    replicas: arguments.Replicas = 1,
    hierarchy: arguments.Hierarchy = None,
    inner_bandwidth: arguments.InnerBandwidth = None,
    pieces: arguments.Pieces = 1,
    method: arguments.MethodOption = arguments.Method.EXACT,
    compare: arguments.Compare = False,
    expert: arguments.Expert = None,
    time_limit: arguments.TimeLimit = None,
    out: arguments.Out = None,
    json: opt.JsonOption = False,
    timing: opt.TimingOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Split the workload of FILE over accelerators and CPUs, or over the devices of TOPOLOGY, and prove how close to the best
    split it is. Times are in milliseconds."""
    given = locals()
    from dnnc.workloads.methods import SolveOptions

    options = opt.named(
        SolveOptions,
        given,
        file=str(file),
        memory=_bytes(memory),
        bandwidth=_rate(bandwidth),
        hierarchy=_groups(hierarchy),
        inner_bandwidth=_rate(inner_bandwidth, "--inner-bandwidth"),
        expert=str(expert or ""),
    )
    _solve(options, out, json=json, timing=timing, quiet=quiet)


def _solve(options: SolveOptions, out: Path | None, *, json: bool, timing: bool, quiet: bool) -> None:
    """Solves, and shows and writes what is asked for. Raises why there is no split; exits by ``INTERRUPTED`` where an interrupt
    ended the search."""
    from dnnc.cli.tracing import timing_text
    from dnnc.report.tables import print_table
    from dnnc.workloads.report import compare_note, compare_table, solve_headline, solve_table
    from dnnc.workloads.solve import solve_file

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
        write_whole(out, _placed(result, options.pieces, numbered=options.hierarchy is not None))
    if not json and not quiet:
        print_table(solve_table(result))
        put("")
        put(solve_headline(result))
        if out is not None:
            put(f"wrote {out}")
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def verify_plan(
    file: arguments.PlanOrFile,
    result: arguments.Result = None,
    search: arguments.PlainSearch = False,
    objective: opt.SolveObjective = None,
    comm: arguments.StatedComm = None,
    split: arguments.StatedSplit = None,
    schedule: arguments.StatedSchedule = None,
    straight: arguments.StatedStraight = False,
    microbatches: arguments.StatedMicrobatches = None,
    pieces: arguments.StatedPieces = None,
    hierarchy: arguments.StatedHierarchy = None,
    inner_bandwidth: arguments.InnerBandwidth = None,
    format: arguments.FormatOption = None,
    topology: arguments.TopologyOption = None,
    by_bytes: arguments.BytesOption = False,
    accelerators: arguments.AcceleratorsOption = None,
    cpus: arguments.CpusOption = None,
    memory: arguments.MemoryOption = None,
    bandwidth: arguments.BandwidthOption = None,
    forward: arguments.ForwardOption = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Recompute the split of RESULT from FILE alone: loads, memory, colocation, contiguity, coverage; or the plan of DIR, with
    its value, its bound and its gap. Every violation is named; the exit code is 5 when there is one.

    An option overrides what RESULT says. The machines are those of FILE and the options, or of TOPOLOGY; of DIR its own."""
    parameters = {name: value for name, value in locals().items() if value is not None and value is not False}
    if file.is_dir():
        named = {"result": "RESULT", "by_bytes": "--bytes"}
        of_splits = [name for name in parameters if name not in ("file", "search", "json", "quiet")]
        if flags := tuple(named.get(name, f"--{name.replace('_', '-')}") for name in of_splits):
            raise UsageError(NotOfDirectory(flags), where=str(file))
        _verify_directory(file, search=search, json=json, quiet=quiet)
        return
    if not file.exists():
        raise InvalidInput(NoSuchFile("a workload file, or a directory that 'dnnc compile' wrote"), where=str(file))
    if result is None or search:
        raise UsageError(SplitMissing("a directory" if search else "a RESULT beside it"), where=str(file))
    from dnnc.machines import machines_of
    from dnnc.workloads.verify_plan import Limits, verify_files

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
        raise UsageError(MachinesWithTopology(tuple(given)), where=topology)
    if by_bytes and topology is None and file.suffix != ".ir":
        raise UsageError(BytesWithoutTopology())
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
        advice = [*([""] * (len(report.violations) - 1)), report.hint]  # it is of all of them, and told once
        raise CheckFailed(
            SplitIsWrong(text, hint).at(str(result)) for text, hint in zip(report.violations, advice, strict=True)
        )
    if not json and not quiet:
        put(report.text())


def _verify_directory(directory: Path, *, search: bool, json: bool, quiet: bool) -> None:
    """Raises CheckFailed with every violation of the plan of a directory."""
    from dnnc.check.faults import PlanRefuted
    from dnnc.check.witness import verify_build

    found = verify_build(directory, search=search)
    if json:
        put_json("verify-plan", found.to_json())
    if found.violations:
        advice = [
            *([""] * (len(found.violations) - 1)),
            "plan.json or plan.ir was edited, or it is a fault: compile the model again",
        ]
        raise CheckFailed(
            PlanRefuted(text, hint).at(str(directory)) for text, hint in zip(found.violations, advice, strict=True)
        )
    if not json and not quiet:
        put(found.text())


def _placed(result: SolveResult, pieces: int, *, numbered: bool) -> str:
    """The result in the reference's format; ``numbered``: devices stand in groups. Raises UsageError."""
    from dnnc.workloads.placement_result import DeviceRow, latency_result, placement_result, placement_text

    stages = [device.stage for device in result.devices if device.stage is not None]
    if len(set(stages)) < len(stages):
        raise UsageError(NoReplicasInFormat(), where="-o")
    named = "topology" in result.machines
    rows = [
        DeviceRow(
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
    from dnnc.machines.topology.quantities import parse_memory

    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        return parse_memory(text)
    except ValueError as error:
        raise UsageError(NotAQuantity(str(error)), where="--memory") from None


def _groups(text: str | None) -> tuple[int, int] | None:
    """``--hierarchy``: groups and accelerators in each. Raises UsageError."""
    if text is None:
        return None
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) <= _MOST_ACCELERATORS for part in parts):
        raise UsageError(NotAHierarchy(text), where="--hierarchy")
    groups, size = int(parts[0]), int(parts[1])
    if groups * size > _MOST_ACCELERATORS:
        raise UsageError(TooManyAccelerators(groups * size, _MOST_ACCELERATORS), where="--hierarchy")
    return groups, size


def _rate(text: str | None, flag: str = "--bandwidth") -> float | None:
    """``--bandwidth``: a rate with its unit, or plain bytes per second. Raises UsageError."""
    from dnnc.machines.topology.quantities import Quantity, parse_quantity

    if text is None:
        return None
    try:
        rate = float(text) if text.isdecimal() else parse_quantity(text, Quantity.BANDWIDTH)
    except ValueError as error:
        raise UsageError(NotAQuantity(str(error)), where=flag) from None
    if not 0 < rate < float("inf"):
        raise UsageError(NoBandwidth(text), where=flag)
    return rate
