"""A model with the weights of a checkpoint, as an ONNX file. One tensor is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from dnnc.engines.onnxruntime.write import write_model
from dnnc.engines.torch.checkpoint.stored import Checkpoint
from dnnc.engines.torch.checkpoint.tensors import Part, Position, TensorFile, write_tensors
from dnnc.engines.torch.faults import WeightNotInModel
from dnnc.engines.torch.module.faults import NoAverages
from dnnc.onnx.model import ImportedModel
from ir.core.diagnostics import InvalidInput
from ir.core.module import External, Resource
from ir.core.types import TensorType, without_layout
from ir.ops.optimizers import EMA_STATE, is_state
from ir.system.digests import OpenFile
from ir.system.scratch import scratch_folder

_TRAINED = "/weights of the checkpoint"
"""The name of the checkpoint's tensors among the weight files of the model. No file of a model has it: those are named
relative to the model's folder, and this name is absolute."""


def write_trained(
    model: ImportedModel,
    checkpoint: Checkpoint,
    out: Path,
    *,
    ema: bool = False,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> tuple[Path, ...]:
    """Write the model with the weights of a checkpoint, or with ``ema`` their moving averages, as the ONNX file ``out``, and
    return the files that were written. Raises InvalidInput where the checkpoint is of another model, and as ``write_model``."""
    resources = model.module.resources
    tensors = {name: _source(checkpoint, name, ema=ema) for name in checkpoint.names if f"@{name}" in resources}
    for name in checkpoint.names:
        if name not in tensors and not is_state(name, tensors):
            raise InvalidInput(WeightNotInModel(name), where=checkpoint.where)
    if ema and not any(name != source for name, source in tensors.items()):
        raise InvalidInput(NoAverages(), where=checkpoint.where)
    parts = {name: _part(resources[f"@{name}"]) for name in tensors}

    def read(name: str) -> torch.Tensor:
        return checkpoint.parts({tensors[name]: parts[name]})[tensors[name]]

    with scratch_folder() as folder:
        path = folder / "trained.safetensors"
        write_tensors(path, parts, read, Position())
        checkpoint.confirm()
        trained = TensorFile.of(OpenFile(path.open("rb")), str(path))
        model.files.add(_TRAINED, trained.file)
        places = {f"@{name}": External(_TRAINED, entry.offset, entry.part.nbytes) for name, entry in trained.entries.items()}
        module = model.module
        for name, place in places.items():
            module = module.replace(resources[name], replace(resources[name], data=place, digest=""))
        return write_model(module, model.files, out, progress=progress)


def _source(checkpoint: Checkpoint, name: str, *, ema: bool) -> str:
    average = f"{name}.{EMA_STATE}"
    return average if ema and average in checkpoint.names else name


def _part(resource: Resource) -> Part:
    """All of a weight of the model."""
    type_ = without_layout(resource.type)
    assert isinstance(type_, TensorType)
    return Part.whole(type_.dtype, (int(dim) for dim in type_.shape or ()))  # type: ignore[arg-type]
