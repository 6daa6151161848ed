"""The options of a training step, as data, and the passes of a pipeline that carry them out."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnc.compile.faults import (
    EngineMissing,
    LossMissing,
    OptionWithoutLoss,
    PassMissing,
    UnknownSchedule,
    WrongChunks,
    WrongUpdate,
)
from dnnc.compile.rates import rate_schedule
from ir.core.diagnostics import UsageError
from ir.core.facets import SYNCS, OptimizerState
from ir.core.module import Func, Module, Resource, Schedule
from ir.core.ops import Value
from ir.core.types import TensorType
from ir.ops.loss_scale import DYNAMIC, LossScale
from ir.ops.optimizers import DEFAULTS, NESTEROV, NUMBERS, STATE
from ir.ops.rates import TABLE
from ir.ops.recipe import Recipe
from passes.costs.learning import RECOMPUTES
from passes.framework.base import Pass
from passes.framework.registry import PLANNERS

PIPELINE = "default-training"
"""The named pipeline of a training step."""
STEP_PASSES = ("training", "differentiate")
"""The passes that turn a model into a training step. A plan alone needs neither; it counts the loss if one is given."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """``loss``: ``cross-entropy:OUTPUT``, ``mse:OUTPUT`` or ``output:NAME``. ``optimizer``, its ``learning_rate``, ``momentum``
    and ``weight_decay`` (None: torch's), ``beta1``, ``beta2``, ``epsilon`` of Adam, ``nesterov`` of momentum, ``beta2_decay``,
    ``threshold``, ``epsilon1`` and ``epsilon2`` of Adafactor. ``learning_rate_schedule``: how the rate changes from step to
    step. ``clip_norm``: the most that the norm of all gradients may be. ``ema``: the decay of the moving average of weights.
    ``loss_scale``: how the loss is scaled (``ir.ops.loss_scale``).
    ``group``: parameter groups with numbers of their own; ``no_decay``: biases and norms have no weight decay. ``schedule``:
    the order of work by its name, or ``auto``. ``chunks``: stages on each device (None: as many as the schedule needs).
    ``recompute``: what runs again in place of being saved. ``trainable`` and ``frozen``: globs of weights. ``batchnorm``: by
    the batch's statistics (``train``) or by the running ones (``frozen``). ``dropout``: ``on`` or ``off``. ``sync``: how
    members of a mesh add up gradients. ``dtype``: the element type of products, ``f32``, ``bf16``
    or ``f16``, for which the loss is scaled. Empty or None: the default."""

    loss: str = ""
    optimizer: str = ""
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    nesterov: bool = False
    beta2_decay: float | None = None
    threshold: float | None = None
    epsilon1: float | None = None
    epsilon2: float | None = None
    learning_rate_schedule: str = ""
    clip_norm: float | None = None
    ema: float | None = None
    loss_scale: str = ""
    group: tuple[str, ...] = ()
    no_decay: bool = False
    schedule: str = ""
    chunks: int | None = None
    recompute: str = ""
    trainable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    batchnorm: str = ""
    dropout: str = ""
    sync: str = ""
    dtype: str = ""

    @property
    def stages_each(self) -> int:
        """Stages on each device; 1 where the schedule does not ask for several."""
        return self.chunks or (FEWEST if self.schedule in CHUNKED else 1)

    @property
    def flush(self) -> bool:
        """Whether the pipeline is empty behind each step."""
        from passes.timeline.families import ASYNCHRONOUS

        return self.schedule not in ASYNCHRONOUS


_OF_PASS = {
    "training": (
        *("loss", "optimizer", "clip_norm", "learning_rate_schedule", "ema", "loss_scale", "group", "no_decay"),
        *("trainable", "frozen", "batchnorm", "dropout", "sync", "recompute"),
    ),
    "differentiate": (
        *("learning_rate", "momentum", "weight_decay"),
        *("beta1", "beta2", "epsilon", "nesterov", "beta2_decay", "threshold", "epsilon1", "epsilon2"),
    ),
    "schedule": ("family",),
    "partition": ("family",),
    "place": ("family",),
}
"""The options that each pass carries out."""
_RENAMED = {"group": "groups", "learning_rate_schedule": "rate"}
"""Options whose field of the pass has another name."""
_RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "clip_norm": ("more than 0", lambda x: x > 0),
    "ema": ("at least 0 and less than 1", lambda x: 0 <= x < 1),
    "beta1": ("at least 0 and less than 1", lambda x: 0 <= x < 1),
    "beta2": ("at least 0 and less than 1", lambda x: 0 <= x < 1),
    "epsilon": ("at least 0", lambda x: x >= 0),
    "epsilon1": ("at least 0", lambda x: x >= 0),
    "epsilon2": ("at least 0", lambda x: x >= 0),
    "beta2_decay": ("at most 0", lambda x: x <= 0),
    "threshold": ("at least 1", lambda x: x >= 1),
    "learning_rate": ("at least 0", lambda x: x >= 0),
    "momentum": ("at least 0", lambda x: x >= 0),
    "weight_decay": ("at least 0", lambda x: x >= 0),
}
"""What the numbers of an update may be."""
CHUNKED = {"interleaved": "loop", "zb-v": "v"}
"""Schedules with several stages on each device, and the order in which stages are dealt to devices."""
FEWEST = 2
"""Default of ``chunks`` for such schedules."""


def with_training(pipeline: tuple[Pass, ...], options: TrainingOptions, *, plan_only: bool) -> tuple[Pass, ...]:
    """The pipeline with these options in its passes. Without a loss, which a plan alone may lack, nothing is differentiated.
    Raises UsageError for an unknown schedule and for an option whose pass the pipeline lacks."""
    from passes.timeline.families import FAMILIES

    if options.schedule not in ("", *FAMILIES):
        raise UsageError(UnknownSchedule(options.schedule, tuple(FAMILIES)), where="--schedule")
    if options.schedule in CHUNKED and (
        options.stages_each == 1 or (options.schedule == "zb-v" and options.stages_each > FEWEST)
    ):
        expected = "2 stages" if options.schedule == "zb-v" else "several stages"
        raise UsageError(WrongChunks(options.schedule, expected), where=f"--chunks {options.chunks}")
    if plan_only:
        dropped = STEP_PASSES if not options.loss else STEP_PASSES[1:]
        if not options.loss:
            _require_no_step(options)
        pipeline = tuple(step for step in pipeline if step.name not in dropped)
    if options.dtype == "f16" and not options.loss_scale:
        options = replace(options, loss_scale=DYNAMIC)
    options = _checked(options, next((getattr(step, "optimizer", "") for step in pipeline if step.name == STEP_PASSES[0]), ""))
    changes: dict[str, dict[str, Any]] = {}
    for name, keys in _OF_PASS.items():
        given = {key: getattr(options, "schedule" if key == "family" else key) for key in keys}
        changes[name] = {key: value for key, value in given.items() if value not in ("", None, ()) and value is not False}
    if options.stages_each > 1:
        chunks = {"chunks": options.stages_each, "chunk_order": CHUNKED.get(options.schedule, "loop"), "replicas": 1}
        changes["partition"].update(chunks)
    there = {step.name for step in pipeline}
    if not there.isdisjoint(PLANNERS):
        there |= {*PLANNERS}  # they share options
    for name, given in changes.items():
        own = [key for key in given if key != "family" or name == "schedule"]
        if own and name not in there and not plan_only:
            flags = tuple(f"--{key.replace('_', '-')}" for key in own)
            raise UsageError(PassMissing(flags, name), where="--passes")
    if not options.flush:
        changes["partition"]["replicas"] = 1
    changes["reference"] = changes["partition"]
    changes["training"] = _of_training_pass(changes["training"])
    if options.dtype not in ("", "f32"):
        pipeline = _with_autocast(pipeline, options.dtype)
    return tuple(replace(step, **changes[step.name]) if changes.get(step.name) else step for step in pipeline)


def _require_no_step(options: TrainingOptions) -> None:
    """Raises UsageError for an option of the pass ``training``, which a plan without a loss lacks, unless it says what such a
    plan is anyway. Those of the pass ``differentiate`` are numbers that change no plan."""
    as_planned = {"sync": SYNCS[:2], "recompute": RECOMPUTES[:1]}
    for key in _OF_PASS["training"]:
        value = getattr(options, key)
        if value is not None and value is not False and value not in ("", (), *as_planned.get(key, ())):
            flag, text = f"--{key.replace('_', '-')}", value[0] if isinstance(value, tuple) else value
            raise UsageError(OptionWithoutLoss(flag if value is True else f"{flag} {text}"), where=flag)


def differentiates_behind(pipeline: Sequence[Pass], number: int) -> bool:
    """Whether the first ``number`` passes leave a step whose gradients the others will make."""
    names = [step.name for step in pipeline]
    return {STEP_PASSES[0], "canonicalize"} <= {*names[:number]} and STEP_PASSES[1] in names[number:]


def _with_autocast(pipeline: tuple[Pass, ...], dtype: str) -> tuple[Pass, ...]:
    """The pipeline with mixed precision, which a model gets once it is canonical; constants are then cast once and for all.
    Raises UsageError where it is not made canonical."""
    from passes.prepare.autocast import AutocastPass
    from passes.prepare.canonicalize import CanonicalizePass

    names = [step.name for step in pipeline]
    if "canonicalize" not in names:
        raise UsageError(PassMissing(("--dtype",), "canonicalize"), where="--passes")
    place = names.index("canonicalize") + 1
    return (*pipeline[:place], AutocastPass(dtype), CanonicalizePass(), *pipeline[place:])


def _checked(options: TrainingOptions, default: str) -> TrainingOptions:
    """The options, where SGD with momentum is the optimizer ``momentum``. ``default``: the optimizer if none is given. Raises
    UsageError for a number, a group or an optimizer that there is not, and for what the optimizer or the schedule lacks."""
    from passes.training.groups import Group

    for name, (allowed, fits) in _RANGES.items():
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and fits(value)):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(WrongUpdate(f"{flag} is a finite number of {allowed}, not {value:g}"), where=flag)
    if options.optimizer not in ("", *STATE):
        raise UsageError(WrongUpdate(f"the optimizer is {', '.join(STATE)}, not '{options.optimizer}'"), where="--optimizer")
    for text in options.group:
        try:
            Group.parse(text)
        except ValueError as error:
            raise UsageError(WrongUpdate(str(error)), where=f"--group {text}") from None
    if options.loss_scale:
        try:
            LossScale.parse(options.loss_scale)
        except ValueError as error:
            raise UsageError(WrongUpdate(str(error)), where=f"--loss-scale {options.loss_scale}") from None
    whole = [("--clip-norm", options.clip_norm is not None), ("--dtype f16", options.dtype == "f16")]
    for flag, given in [*whole, ("--loss-scale", bool(options.loss_scale))]:
        if given and not options.flush:
            reason = (
                f"{flag} needs the gradients of all stages of a step at once; with --schedule {options.schedule} each updates"
            )
            raise UsageError(WrongUpdate(f"{reason} when its own are there"), where=flag)
    if options.optimizer == "sgd" and options.momentum is not None:
        options = replace(options, optimizer="momentum" if options.momentum else "sgd", momentum=options.momentum or None)
    optimizer = options.optimizer or default
    having = {key: [name for name in DEFAULTS if key in DEFAULTS[name]] for key in NUMBERS} | {NESTEROV: ["momentum"]}
    for key, names in having.items():
        if optimizer and getattr(options, key, None) not in (None, False) and optimizer not in names:
            needed = " or ".join("sgd with momentum" if name == "momentum" else name for name in names)
            flag = f"--{key.replace('_', '-')}"
            raise UsageError(WrongUpdate(f"{optimizer} has no {flag}: that is of {needed}"), where=flag)
    return options


def _of_training_pass(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the pass ``training``. Raises UsageError for a schedule of the learning rate that is none."""
    fields = {_RENAMED.get(key, key): value for key, value in given.items()}
    if "rate" in fields:
        schedule = rate_schedule(fields.pop("rate"))
        fields |= {"rates": schedule.values} if schedule.kind == TABLE else {"rate": schedule.text}
    return fields


def update_text(module: Module) -> str:
    """What the update of a step does besides the optimizer, for a person; empty for nothing."""
    recipe, parts = Recipe.of(module.entry), list[str]()
    if recipe.clip_norm is not None:
        parts.append(f"norm of gradients clipped to {recipe.clip_norm:g}")
    if recipe.schedule.kind == TABLE:
        parts.append(f"learning rate by a table of {len(recipe.schedule.values)} steps")
    elif recipe.schedule.changes:
        parts.append(f"learning rate {recipe.schedule.text}")
    if recipe.ema is not None:
        parts.append(f"moving averages of decay {recipe.ema:g}")
    if recipe.loss_scale is not None:
        parts.append(f"scale of the loss {recipe.loss_scale.text}")
    facets = [facet for r in module.of_type(Resource) for facet in r.facets if isinstance(facet, OptimizerState)]
    if own := sum(bool(facet.numbers) for facet in facets):
        parts.append(f"{own} of {len(facets)} weights in groups with numbers of their own")
    return f"{' and '.join(sorted({facet.name for facet in facets}))}, {', '.join(parts)}" if parts else ""


def decays(module: Module, options: TrainingOptions) -> bool:
    """Whether any weight of a module that trains decays, or none trains."""
    facets = [facet for one in module.of_type(Resource) for facet in one.facets if isinstance(facet, OptimizerState)]
    given = {} if options.weight_decay is None else {"weight_decay": options.weight_decay}
    return not facets or any({**DEFAULTS[one.name], **given, **one.numbers}["weight_decay"] for one in facets)


def require_engine() -> None:
    """Raises UsageError where what programs for training run on is not installed."""
    if missing := tuple(name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None):
        raise UsageError(EngineMissing(missing), where="--objective training")


def require_loss(options: TrainingOptions, entry: Func) -> None:
    """Raises UsageError where no loss is given, with the outputs that there are and an example."""
    if options.loss:
        return
    outputs = tuple(value.name.removeprefix("%") for value in entry.results)
    raise UsageError(LossMissing(outputs, next(_examples(entry.results), "mse:OUTPUT")), where="--loss")


def saves_by_recomputing(schedule: Schedule) -> bool:
    """Whether a device has several microbatches between forward and backward pass of a stage. Of one alone, what runs again is
    held all the same when the backward pass begins."""
    for _, actions in schedule.rows:
        flying: Counter[int] = Counter()
        for action in actions:
            flying[action.stage] += {"F": 1, "I": -1, "B": -1}.get(action.kind, 0)
            if flying[action.stage] > 1:
                return True
    return schedule.periodic


def _examples(outputs: Iterable[Value]) -> Iterator[str]:
    for value in outputs:
        if isinstance(value.type, TensorType) and value.type.dtype.is_float:
            rank = None if value.type.shape is None else len(value.type.shape)
            kind = "output" if rank == 0 else "mse" if rank == 1 else "cross-entropy"
            yield f"{kind}:{value.name.removeprefix('%')}"
