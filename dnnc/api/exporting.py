"""``dnnc.export``: a model with the weights of a checkpoint, as an ONNX file for inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dnnc.api.options import PathLike, sizes_of
from dnnc.api.terms import python_terms, warn
from ir.core.diagnostics import DiagnosticSink
from ir.core.limits import LIMITS, Limits


def export(
    checkpoint: PathLike,
    model: PathLike,
    out: PathLike,
    *,
    ema: bool = False,
    dims: Mapping[str, int | str] | None = None,
) -> tuple[Path, ...]:
    """Write ``model`` with the weights of ``checkpoint`` as the ONNX file ``out``, for inference; returns the files that were
    written: ``out`` last, before it the file of its weights, if they are many.

    ``checkpoint``: a folder that ``Build.train`` wrote, such as ``trained/step1000``. ``model``: the path of
    the ONNX file that was compiled, or ``zoo:NAME``; weights that training did not change are those of it. ``ema``: take the
    moving averages of the weights. ``dims`` bind symbolic dimensions, as for ``dnnc.plan``.

    Raises InvalidInput for what is no checkpoint, or one of another model, and UsageError where PyTorch is missing."""
    sink = DiagnosticSink()
    sizes = sizes_of("dnnc.export", dims)
    with python_terms():
        written = write_with_weights(Path(checkpoint), str(model), Path(out), sink, ema=ema, dims=sizes)
    warn(sink.diagnostics)
    return written


def write_with_weights(
    checkpoint: Path,
    model: str,
    out: Path,
    sink: DiagnosticSink,
    *,
    ema: bool,
    dims: Mapping[str, int | str],
    limits: Limits = LIMITS,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> tuple[Path, ...]:
    """``export``, with warnings in ``sink``. One tensor is in memory at a time."""
    from dnnc.compile.load import load_model
    from dnnc.engines.torch.launch.training import require_torch

    require_torch("dnnc export")
    from dnnc.engines.torch.checkpoint import Checkpoint
    from dnnc.engines.torch.checkpoint.exporting import write_trained

    opened = Checkpoint.open(checkpoint)
    opened.verify()
    return write_trained(load_model(model, dims, sink, limits=limits), opened, out, ema=ema, progress=progress)
