"""PyTorch modules: as model files (``from_module``), and trained weights back into the module.

- ``exporting``, ``rewriting``: a module as a model in memory; ``places``: lines of its source, for messages;
- ``agreement``: module and model compared, values and gradients.

Invariants of a model: a parameter that requires a gradient is an initializer under its name in ``state_dict``, of tied ones
under one of their names; the running averages of batch normalisation are initializers too. Everything else that the
module holds, other buffers, tensors that are plain attributes and parameters that require no gradient, is an
``onnx.Constant``: training does not change it. No other value is called like a weight: where ``forward`` has an argument of
such a name, the input of the model is called otherwise (``x_1``). What PyTorch does in training and no operator says stands in
the metadata of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from dnnc.engines.torch.module.exporting import is_fixed
from ir.core.diagnostics import InvalidInput
from ir.ops.grads import STATE

_STATES = frozenset(state for states in STATE.values() for state in states)
_OTHER = "is it of another module?"


def into_torch(module: torch.nn.Module, checkpoint: str | Path) -> tuple[str, ...]:
    """Load the weights of a checkpoint that ``dnnc train`` wrote into ``module``, whose model ``from_torch`` exported.

    What training did not change keeps what it holds: buffers, frozen weights, those that the loss does not depend on. Returns
    the names of the parameters and running averages among them. Raises InvalidInput, and leaves the module as it was, for a
    weight that the module lacks, one of another shape, and a file that is no checkpoint, or is damaged."""
    from dnnc.engines.torch.checkpoint import Checkpoint  # it needs safetensors, which exporting a module does not

    where, opened = str(checkpoint), Checkpoint.open(Path(checkpoint))
    opened.verify()
    stored = opened.tensors()
    opened.confirm()
    wanted = module.state_dict(keep_vars=True)
    for source in sorted(stored):
        weight, _, state = source.rpartition(".")
        if source not in wanted and not (weight in wanted and state in _STATES):
            raise InvalidInput(f"it holds a weight '{source}', which the module lacks", where=where, hint=_OTHER)
    tied = _aliases(wanted)
    found: dict[str, torch.Tensor] = {}
    for name, value in wanted.items():
        source = next((alias for alias in tied[value.data_ptr(), value.shape] if alias in stored), "")
        if not source:
            continue
        if stored[source].shape != value.shape:
            sizes = f"{tuple(stored[source].shape)}, that of the module {tuple(value.shape)}"
            raise InvalidInput(f"its weight '{source}' has the shape {sizes}", where=where, hint=_OTHER)
        found[name] = stored[source]
    if not found:
        raise InvalidInput("it holds no weight of the module", where=where, hint=_OTHER)
    with torch.no_grad():
        for name, value in found.items():
            wanted[name].copy_(value)
    return tuple(name for name, value in wanted.items() if name not in found and not is_fixed(name, value))


def _aliases(values: Mapping[str, torch.Tensor]) -> dict[tuple[int, torch.Size], list[str]]:
    """The names of each tensor: tied weights have several."""
    found: dict[tuple[int, torch.Size], list[str]] = {}
    for name, value in values.items():
        found.setdefault((value.data_ptr(), value.shape), []).append(name)
    return found


__all__ = ["into_torch"]
