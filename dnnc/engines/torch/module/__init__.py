"""PyTorch modules: ``from_torch`` writes a module as a model file, ``into_torch`` loads trained weights into the module.

- ``from_module``: ``from_torch``, and which part of a module an error is about;
- ``optimizers``: an optimizer of PyTorch as options of a plan;
- ``exporting``, ``rewriting``, ``simpler``: a module becomes a model in memory;
- ``agreement``, ``closeness``: compare module and model, results and gradients;
- ``randomness``: finds draws that PyTorch does not see;
- ``places``: the module, operator and line of the source that a message names.

Invariants of a model:

- A parameter that requires a gradient is an initializer. Its name is that in ``state_dict``; tied parameters have one of their
  names. The running averages of batch normalisation are initializers too. No other tensor is one.
- Whatever else the module holds is an ``onnx.Constant``, which training does not change: other buffers, tensors in plain
  attributes, parameters that require no gradient.
- No other value has the name of an initializer. Where ``forward`` has an argument of such a name ``x``, the input
  of the model is ``x_1``.
- What PyTorch does in training and no operator of ONNX says is in the metadata ``dnnc.training`` of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from dnnc.engines.torch.module.exporting import RUNNING, is_fixed
from dnnc.engines.torch.module.faults import NoAverages, NoWeight, WeightShape, WeightUnknown
from ir.core.diagnostics import InvalidInput
from ir.ops.optimizers import COUNTED, EMA_STATE, is_state

_EMA = f".{EMA_STATE}"
_OTHER = "is it of another module?"


def into_torch(module: torch.nn.Module, checkpoint: str | Path, *, ema: bool = False) -> tuple[str, ...]:
    """Load the weights of a checkpoint of ``dnnc train`` into ``module``, of which ``from_torch`` made the model; with ``ema``
    their moving averages.

    What training did not change is left alone: buffers, frozen weights, weights that the loss does not depend on. Of these,
    returns the names of those that PyTorch would have changed: the parameters that require a gradient; all buffers that are
    called ``running_mean`` or ``running_var``, whether a batch normalisation reads them or not; and ``num_batches_tracked`` of
    the batch normalisations whose averages moved, where a checkpoint of an earlier version does not count microbatches (from 0,
    where training began). Running averages are those of PyTorch, which averages the unbiased variance.

    Raises InvalidInput, and changes nothing, where the module lacks a weight of the checkpoint, where shapes differ, where the
    checkpoint has no averages that are asked for, and where the file is no checkpoint or is damaged."""
    from dnnc.engines.torch.checkpoint import Checkpoint  # it needs safetensors, which exporting a module does not

    where, opened = str(checkpoint), Checkpoint.open(Path(checkpoint))
    opened.verify()
    stored = {name: name for name in opened.names}
    if ema:
        averages = {name.removesuffix(_EMA): name for name in opened.names if name.endswith(_EMA)}
        if not averages:
            raise InvalidInput(NoAverages(), where=where)
        stored |= averages
    wanted = module.state_dict(keep_vars=True)
    for source in sorted(stored):
        if source not in wanted and not is_state(source, wanted):
            raise InvalidInput(WeightUnknown(source, _OTHER), where=where)
    tied = _aliases(wanted)
    found: dict[str, str] = {}
    for name, value in wanted.items():
        source = next((alias for alias in tied[value.data_ptr(), value.shape] if alias in stored), "")
        if not source:
            continue
        if opened.shape(stored[source]) != tuple(value.shape):
            shapes = str(opened.shape(stored[source])), str(tuple(value.shape))
            raise InvalidInput(WeightShape(source, *shapes, _OTHER), where=where)
        found[name] = stored[source]
    if not found:
        raise InvalidInput(NoWeight(_OTHER), where=where)
    with torch.no_grad():
        for name, source in found.items():
            wanted[name].copy_(opened.tensor(source))
    opened.confirm()
    counters = {f"{name.removesuffix(RUNNING[0])}{COUNTED}" for name in found if name.rpartition(".")[2] == RUNNING[0]}
    return tuple(
        name for name, value in wanted.items() if name not in found and (name in counters or not is_fixed(name, value))
    )


def _aliases(values: Mapping[str, torch.Tensor]) -> dict[tuple[int, torch.Size], list[str]]:
    """The names of each tensor, which its address and shape identify. Tied weights have several names."""
    found: dict[tuple[int, torch.Size], list[str]] = {}
    for name, value in values.items():
        found.setdefault((value.data_ptr(), value.shape), []).append(name)
    return found


__all__ = ["into_torch"]
