"""``dnnc export``: a model with the weights of a checkpoint, as an ONNX file for inference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli.console import progress, show_warnings, talk
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import DiagnosticSink


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder stepN that 'dnnc train' wrote.")],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="The model that was compiled.", autocompletion=opt.complete_model)
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.onnx", help="File to write; its weights go beside it.")],
    ema: Annotated[bool, typer.Option("--ema", help="Take the moving averages of the weights.")] = False,
    dim: opt.DimOption = None,
    limit: opt.LimitOption = None,
    quiet: opt.QuietOption = False,
) -> None:
    """Write MODEL as an ONNX file with the weights of CHECKPOINT, for inference.

    Weights that training did not change are those of MODEL. One tensor is in memory at a time.
    """
    from dnnc.api.exporting import write_with_weights

    sink = DiagnosticSink()
    with progress(not quiet) as report:
        report("export", None)
        bound, limits = opt.parse_dims(dim), opt.parse_limits(limit)
        written = write_with_weights(checkpoint, model, out, sink, ema=ema, dims=bound, limits=limits, progress=report)
    show_warnings(sink.diagnostics, quiet)
    talk(f"wrote {' and '.join(map(str, written))}", quiet)
