"""``dnnc profile``: seconds of a model's operators, measured on this machine for ``dnnc compile --profile``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.console import progress, show_warnings, talk, write_whole
from dnnc.cli.options import shared as opt
from dnnc.cli.options import training as train
from dnnc.cli.options.compile import options_of
from ir.core.diagnostics import DiagnosticSink

if TYPE_CHECKING:
    from dnnc.machines.profile import Measured

_SHOWN = 3
"""Refused operators that are listed."""

Merge = Annotated[
    list[Path] | None,
    typer.Option("--merge", metavar="FILE.json", help="Take over the entries of another profile of this machine. Repeatable."),
]
TimeLimit = Annotated[
    float,
    opt.time_limit("Begin no measurement after this time; the largest operators come first."),
]


def profile(
    model: opt.ModelArgument,
    topology: opt.TopologyOption,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="FILE.json", help="File to write; what it holds already is not measured again."),
    ],
    merge: Merge = None,
    objective: opt.CompileObjective = None,
    loss: train.Loss = "",
    trainable: train.Trainable = None,
    frozen: train.Frozen = None,
    batchnorm: train.BatchNorm = None,
    dropout: train.Dropout = None,
    dim: opt.DimOption = None,
    limit: opt.LimitOption = None,
    time_limit: TimeLimit = 120.0,
    seed: Annotated[int, typer.Option("--seed", min=0, max=(1 << 32) - 1, metavar="N", help="Seed of the random inputs.")] = 0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print predicted and measured seconds by operator: which prediction is wrong.")
    ] = False,
    emulate: opt.EmulateOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Measure the seconds of the operators of MODEL on this machine's cores, for each CPU type of TOPOLOGY, and write them to a
    file for 'dnnc compile --profile'.

    Operators are measured with what onnxruntime fuses into them. With --objective training, the forward and the backward pass
    of each are measured, by the PyTorch kernels that 'dnnc train' runs. Operators that are alike in attributes, shapes and
    element type are measured once. All devices work at once, each on its cores; run nothing else meanwhile."""
    given = locals()
    from dnnc.build.elsewhere import require_one_host
    from dnnc.compile.options import asks_training
    from dnnc.machines.profile import ProfileFile, machine_here, measure_profile, read_profile
    from dnnc.study.profiling import costed

    options = options_of(given, dims=opt.parse_dims(dim), limits=opt.parse_limits(limit), time_limit=None)
    training = asks_training(options)
    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            modules, files, machines = costed(options, sink, report)
            require_one_host(machines, f"-t {topology}", emulate=emulate)
            known = ProfileFile(machine_here(training=training))
            for path in (*((out,) if out.exists() else ()), *(merge or ())):
                known = known.joined(read_profile(path), str(path))
            seconds = time_limit if math.isfinite(time_limit) else math.inf
            measured = measure_profile(
                modules, files, machines, known, training=training, seconds=seconds, seed=seed, progress=report
            )
    finally:
        show_warnings(sink.diagnostics, quiet)
    files.confirm()
    write_whole(out, measured.file.text())
    _tell(measured, out, quiet, training=training)
    if compare:
        _compare(measured)


def _compare(measured: Measured) -> None:
    """A row for each operator and device type, those of most seconds first."""
    from dnnc.report import Table, columns, print_table, ratio_text, seconds_text

    several = len({row.device_type for row in measured.compared}) > 1
    rows = [
        (
            *([row.device_type] if several else []),
            row.operator,
            str(row.copies),
            seconds_text(row.modelled),
            seconds_text(row.measured),
            ratio_text(row.modelled / row.measured) if row.measured else "-",
        )
        for row in measured.compared
    ]
    print_table(Table(columns(f"{'<type ' if several else ''}<operator copies predicted measured ratio"), tuple(rows)))


def _tell(measured: Measured, out: Path, quiet: bool, *, training: bool) -> None:
    from ir.text.units import seconds_text

    kinds, engine = ("passes of operators", "torch") if training else ("operators", "onnxruntime")
    talk(
        f"measured {measured.new} kinds of {kinds}, {measured.known} were known: {out} holds {len(measured.file.entries)}",
        quiet,
    )
    if measured.left[0]:
        talk(
            f"left out for want of time: {measured.left[0]}, {seconds_text(measured.left[1])} by the model; --time-limit", quiet
        )
    if measured.large:
        talk(f"left out for their size: {measured.large}", quiet)
    for name, why in measured.refused[:_SHOWN]:
        talk(f"{engine} does not run {name} alone: {why}", quiet)
    if len(measured.refused) > _SHOWN:
        talk(f"nor {len(measured.refused) - _SHOWN} others", quiet)
