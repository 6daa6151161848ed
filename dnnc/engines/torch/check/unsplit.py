"""The unsplit model of a training build: its forward ops, and its weights before the first step that is trained."""

from __future__ import annotations

from dataclasses import replace

import torch

from dnnc.build.training import Step, tensor_type
from dnnc.engines.torch.checkpoint import Checkpoint
from dnnc.engines.torch.exchange import torch_dtype
from ir.core.facets import FORWARD, phase_of
from ir.core.module import Func, Module, Splat
from ir.ops.grads import ASSIGN
from passes.meshes.reshard_ops import without_reshards


def initial_weights(step: Step, initial: Checkpoint) -> dict[str, torch.Tensor]:
    """Every resource that the build holds, or that has one value, by name in the IR."""
    weights = {f"@{name}": tensor for name, tensor in initial.tensors().items()}
    for name, resource in step.resources.items():
        if name not in weights and isinstance(resource.data, Splat):
            kind = tensor_type(resource.type)
            shape = [int(dim) for dim in kind.shape or ()]  # type: ignore[arg-type]
            weights[name] = torch.full(shape, float(resource.data.value), dtype=torch_dtype(kind.dtype))
    return weights


def forward_only(module: Module) -> Func:
    """The entry function before it was differentiated and split: its forward ops, which assign nothing."""
    entry = module.entry
    ops = tuple(op for op in entry.ops if phase_of(op.facets) == FORWARD and op.name != ASSIGN)
    return without_reshards(replace(entry, ops=ops)).func
