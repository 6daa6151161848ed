"""What ``dnnc.plan`` may be asked for, beside the model and its machines: the options of ``dnnc compile`` as keywords."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from dnnc.api.faults import NotAnOption
from dnnc.compile.flags import CompileOptions
from dnnc.compile.training import TrainingOptions
from ir.core.diagnostics import UsageError

PathLike: TypeAlias = str | os.PathLike[str]

AUTO = "auto"
NONE = "none"


class PlanOptions(TypedDict, total=False):
    """The options of ``dnnc compile`` (``dnnc compile --help`` has more on each). An option that is left out, or None, is
    decided by the search, or has its default.

    - What counts: ``objective``: ``"throughput"``, ``"latency"`` or ``"training"``; ``time_limit`` of the search in seconds.
    - Stages: ``stages``: their number, or ``"auto"``; ``replicas``: the most devices of a stage; ``cuts``: tensors behind each
      of which a stage begins; ``pins``: ops and their devices; ``split``: ``"contiguous"`` or ``"any"``; ``pieces``: the most
      stages of a device (latency); ``comm``: how compute and transfers add up, ``"sum"``, ``"overlap"`` or ``"duplex"``.
    - Meshes: ``mesh``: the sizes of the axes (``"2x4"``), ``"auto"`` or ``"none"``; ``strategy``: a plan by its name;
      ``uneven``: shards of different lengths; ``shares``: unequal parts, such as ``"3,1"``.
    - Training: ``microbatches`` of a step; ``loss``: ``"cross-entropy:OUTPUT"``, ``"mse:OUTPUT"`` or ``"output:NAME"``;
      ``optimizer``, ``learning_rate``, ``momentum``, ``weight_decay`` as in ``torch.optim``; ``schedule``, ``chunks``,
      ``recompute``, ``sync``, ``batchnorm``, ``dropout``; ``trainable`` and ``frozen``: globs of weights.
    - Reading: ``inputs``: an ``.npz`` of arrays that bind dimensions; ``profile``: files of ``dnnc profile``.
    - Replaying: ``plan``: a ``plan.json`` in place of the search; ``passes``: the passes, as text.
    - Writing: ``weights``: ``"shared"``, ``"per-stage"`` or ``"none"``; ``plan_only``: a plan without programs; ``load_test``:
      onnxruntime opens each program before the build is done; ``report``: the build holds the page."""

    objective: str | None
    time_limit: float | None
    stages: int | str | None
    replicas: int | None
    cuts: Sequence[str]
    pins: Mapping[str, str]
    split: str | None
    pieces: int | None
    comm: str | None
    mesh: str | None
    strategy: str | None
    uneven: bool
    shares: str | None
    microbatches: int | None
    loss: str | None
    optimizer: str | None
    learning_rate: float | None
    momentum: float | None
    weight_decay: float | None
    schedule: str | None
    chunks: int | None
    recompute: str | None
    sync: str | None
    batchnorm: str | None
    dropout: str | None
    trainable: Sequence[str]
    frozen: Sequence[str]
    inputs: PathLike | None
    profile: PathLike | Sequence[PathLike]
    plan: PathLike | None
    passes: str | None
    weights: str
    plan_only: bool
    load_test: bool
    report: bool


_RENAMED = {"passes": "pipeline"}
"""Keywords whose field of ``CompileOptions`` has another name."""
_OF_TRAINING = frozenset(one.name for one in fields(TrainingOptions))


def compile_options(model: str, dims: Mapping[str, int | str] | None, options: PlanOptions) -> CompileOptions:
    """Those options as data. Raises UsageError for one that there is not, and for one of the wrong type."""
    plain: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for name, value in options.items():
        if name not in PlanOptions.__annotations__:
            raise UsageError(NotAnOption(name, tuple(sorted(PlanOptions.__annotations__))), where="dnnc.plan")
        if value is not None:
            (training if name in _OF_TRAINING else plain)[_RENAMED.get(name, name)] = _as_field(name, value)
    if plain.get("stages") == AUTO:  # 0 is the best number of stages on meshes; without them None is
        plain["stages"] = 0 if plain.get("mesh") not in (None, "", NONE) else None
    return CompileOptions(model, dims=dict(dims or {}), training=TrainingOptions(**training), **plain)


def _as_field(name: str, value: Any) -> Any:
    """The value as its field of ``CompileOptions`` holds it."""
    if name in ("inputs", "plan"):
        return Path(value)
    if name == "profile":
        return (Path(value),) if isinstance(value, str | os.PathLike) else tuple(map(Path, value))
    if name in ("cuts", "trainable", "frozen"):
        return (value,) if isinstance(value, str) else tuple(value)
    if name == "pins":
        return dict(value)
    return str(value) if name == "mesh" else value


__all__ = ["PathLike", "PlanOptions", "compile_options"]
