"""What a person asks of a compilation, as data, and the passes that it means.

``dnnc.compile.driver`` runs these. Options that contradict each other, or need a pass that is not there, are told before any
work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dnnc.compile.faults import (
    CommOfMeshPlan,
    NotOfProfile,
    NotWithMesh,
    NotWithPlan,
    NotWithTag,
    ObjectiveNotOnMesh,
    OnlyOfTag,
    OnlyOfTraining,
    OnlyOnMeshes,
    PassMissing,
    PlanOfInference,
    PlanReplacesNothing,
    PlanWithoutMesh,
    SearchCut,
    SyncWithoutMesh,
    TimeLimitNotFinite,
)
from dnnc.compile.flags import (
    FLAGS,
    MESH,
    OF_TAG,
    OF_TRAINING,
    ON_MESHES,
    PLAN,
    PROFILE,
    TAG,
    TAG_SEARCH,
    changes_of,
    excluded_by,
    given,
)
from dnnc.compile.kinds import (
    IN_STAGES,
    NO_MESH,
    PIPELINE,
    PROFILE_PIPELINE,
    PROGRAM_PASSES,
    SHARDED_PIPELINE,
    other_kinds,
)
from dnnc.compile.training import PIPELINE as TRAINING_PIPELINE
from dnnc.compile.training import SHARDED_PIPELINE as SHARDED_TRAINING
from dnnc.compile.training import TrainingOptions, with_training
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.facets import SYNCS
from ir.core.limits import LIMITS, Limits
from ir.core.module import Func, Module
from ir.core.objectives import ANY, THROUGHPUT, TRAINING, Planned, objective_of, offered
from ir.core.topology import Topology
from passes.framework.base import Pass


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What to compile, for what, how, and where to.

    ``dims`` binds symbolic dimensions; ``limits`` bound what the model may ask for. ``cuts``: tensors after which a new stage
    begins; ``pins``: device by op; ``stages``: how many, None for the best. ``plan``: a plan to replay instead of searching.
    ``objective``, ``split`` (empty: throughput, contiguous), ``replicas`` (most devices of a stage), ``pieces`` (most stages of
    a device, of latency), ``comm`` (empty: ``sum``) and ``time_limit`` (seconds of search) stand over those of ``pipeline``,
    which is pipeline text, empty for the default one.

    Replicas, and meshes where ``mesh`` is empty, are chosen together with the stages (``dnnc.compile.kinds``) unless these say
    how.

    ``mesh`` splits tensors: sizes of a mesh's axes (``2x4``), ``auto`` for the best, ``none`` to split none. With a shape
    ``stages`` may be 0 (how many is chosen together with the meshes), ``strategy`` names a plan instead of searching,
    ``uneven`` lets shards differ in length where a dimension does not divide, and ``shares`` says how unequal parts are
    (``3,1``; ``equal``); ``microbatches`` and ``training`` are of a training step. ``explain`` asks for
    ``CompileResult.explanation``; ``load_test``: every program is opened by onnxruntime before the build counts as done.
    ``inputs``: an ``.npz`` of arrays by input, whose shapes bind dimensions; sizes that depend on values are measured on its
    first microbatch. ``profile``: files of ``dnnc profile``, whose seconds stand over those that are modelled. ``search``:
    whose search (``SEARCHES``; empty: dnnc's own); of TAG's the file of its ``prior`` and its ``iterations`` (None: the
    defaults)."""

    model: str
    topology: str
    out: Path
    dims: Mapping[str, int | str] = field(default_factory=dict)
    limits: Limits = LIMITS
    cuts: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    stages: int | None = None
    plan: Path | None = None
    plan_only: bool = False
    weights: str = "shared"
    comm: str = ""
    pipeline: str = ""
    time_limit: float | None = None
    objective: str = ""
    split: str = ""
    replicas: int | None = None
    pieces: int | None = None
    mesh: str = ""
    strategy: str = ""
    uneven: bool = False
    shares: str = ""
    microbatches: int | None = None
    training: TrainingOptions = field(default_factory=TrainingOptions)
    explain: bool = False
    load_test: bool = True
    inputs: Path | None = None
    profile: tuple[Path, ...] = ()
    search: str = ""
    prior: Path | None = None
    iterations: int | None = None


def of_profile(options: CompileOptions, module: Module) -> CompileOptions:
    """The options of a compile of a profiled workload: of its plan alone, for training where it has backward times and nothing
    else is asked for. Raises UsageError for options of tensors."""
    from dnnc.data.workloads.fitted import has_backward

    if clash := excluded_by(options, PROFILE):
        raise UsageError(NotOfProfile(clash), where=options.model)
    objective = options.objective
    if not (objective or options.plan or options.pipeline) and has_backward(module):
        objective = TRAINING.name
    return replace(options, plan_only=True, objective=objective, pipeline=options.pipeline or PROFILE_PIPELINE)


def kinds_besides(options: CompileOptions, topology: Topology) -> tuple[tuple[Pass, ...], ...]:
    """The pipelines of plans on meshes, where the options leave them free."""
    from passes.framework.pipeline import parse_pipeline

    if not meshes_free(options):
        return ()
    training = options.objective == TRAINING.name
    left_out = PROGRAM_PASSES if options.plan_only else ()
    steps = parse_pipeline(SHARDED_TRAINING if training else SHARDED_PIPELINE, without=left_out)
    if training:
        steps = with_training(steps, options.training, plan_only=options.plan_only)
    microbatches = (options.microbatches or IN_STAGES) if training else 0
    limit = options.time_limit
    return other_kinds(topology, steps, stages=options.stages or 0, time_limit=limit, microbatches=microbatches)


def meshes_free(options: CompileOptions) -> bool:
    """Whether plans on meshes are searched beside others: no option says how to plan, or is of single devices."""
    asked = options.plan is not None or options.pipeline or options.mesh or options.search == TAG
    single = options.cuts or options.pins or options.pieces is not None or options.split == ANY
    single = single or options.training.stages_each > 1 or not options.training.flush
    alone = options.comm not in ("", "sum") or options.objective not in ("", THROUGHPUT.name, TRAINING.name)
    return not (asked or single or alone)


def asks_training(options: CompileOptions) -> bool:
    """Whether a training step is asked for by name."""
    return bool(options.objective) and objective_of(options.objective).trains


def of_zoo(options: CompileOptions, entry: Func) -> CompileOptions:
    """The options with the loss that training programs of a zoo model have by default: the cross-entropy of its output. The
    options as they are for other models, for one with several outputs, of which a person must choose, and for a plan alone,
    which needs no loss."""
    training = asks_training(options) and not (options.plan_only or options.pipeline or options.training.loss)
    if not training or not options.model.startswith("zoo:") or len(entry.results) != 1:
        return options
    loss = f"cross-entropy:{entry.results[0].name.removeprefix('%')}"
    return replace(options, training=replace(options.training, loss=loss))


def restrictions(options: CompileOptions, topology: Topology) -> list[str]:
    """The options that keep the search from plans that it would look at without them."""
    if options.plan is not None or options.pipeline:
        return []
    given = {
        f"--stages {options.stages}": options.stages,
        f"--mesh {options.mesh}": options.mesh,
        f"--replicas {options.replicas}": (options.replicas or len(topology.devices)) < len(topology.devices),
        "--cut": options.cuts,
        "--pin": options.pins,
        f"--split {options.split}": options.split == ANY,
        f"--chunks {options.training.stages_each}": options.training.stages_each > 1,
        f"--schedule {options.training.schedule}": not options.training.flush,
    }
    return [flag for flag, wanted in given.items() if wanted]


def check_time_limit(seconds: float | None) -> None:
    """Raises UsageError for infinity and NaN."""
    if seconds is not None and not math.isfinite(seconds):
        raise UsageError(TimeLimitNotFinite(seconds), where="--time-limit")


def warn_of_cut(sink: DiagnosticSink, seconds: float | None) -> None:
    """Says that a time limit ended a search before its counted work did, and before its plan was proven to be optimal."""
    sink.warn(SearchCut(), where=f"--time-limit {seconds:g}")


def build_pipeline(options: CompileOptions, *, profiled: bool = False) -> tuple[Pass, ...]:
    """The passes that the options ask for, of a model or of a ``profiled`` workload. Raises UsageError for options that
    contradict each other or need a pass that is not there."""
    from passes.framework.pipeline import parse_pipeline

    check_time_limit(options.time_limit)
    _check_search(options)
    if options.plan is not None:
        return _replay(options)
    trains = asks_training(options) and not profiled
    meshes = meshes_free(options)
    if options.mesh == NO_MESH:
        if options.training.sync not in ("", SYNCS[0]):
            raise UsageError(SyncWithoutMesh(options.training.sync))
        options = replace(options, mesh="")
    plain, sharded = (TRAINING_PIPELINE, SHARDED_TRAINING) if trains else (PIPELINE, SHARDED_PIPELINE)
    left_out = PROGRAM_PASSES if options.plan_only and not options.pipeline else ()
    on_meshes = options.mesh or options.search == TAG
    pipeline = parse_pipeline(options.pipeline or (sharded if on_meshes else plain), without=left_out)
    if trains:
        pipeline = with_training(pipeline, options.training, plan_only=options.plan_only)
    elif flags := given(options, OF_TRAINING):
        raise UsageError(OnlyOfTraining(flags))
    if given(options, ON_MESHES) or any(step.name == "shard" for step in pipeline):
        return _sharded(options, pipeline)
    if options.microbatches is not None and not trains:
        raise UsageError(OnlyOfTraining(("--microbatches",)))
    if options.explain and not meshes:
        raise UsageError(OnlyOnMeshes(("--explain",)))
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    changes = changes_of(options, "partition")
    if options.pins:
        changes["pins"] = tuple(f"{node}={device}" for node, device in options.pins.items())
    if changes and not any(step.name == "partition" for step in pipeline):
        flags = given(options, [flag for flag in FLAGS if flag.field in changes])
        raise UsageError(PassMissing(flags, "partition"), where="--passes")
    pipeline = tuple(replace(step, **changes) if step.name == "partition" else step for step in pipeline)
    if options.time_limit is not None:
        limit = {"time_limit": options.time_limit}
        pipeline = tuple(replace(step, **limit) if step.name == "place" else step for step in pipeline)
    if options.comm:  # every pass that adds up compute and transfers must do it the same way
        pipeline = tuple(_with_comm(step, options.comm) for step in pipeline)
    return pipeline


def _check_search(options: CompileOptions) -> None:
    """Raises UsageError for options that TAG's search does not have, and for its own without it."""
    if options.search != TAG:
        if flags := given(options, OF_TAG):
            raise UsageError(OnlyOfTag(flags))
        return
    if not asks_training(options):
        raise UsageError(OnlyOfTraining(("--search tag",)))
    if clash := excluded_by(options, TAG_SEARCH):
        raise UsageError(NotWithTag(clash))


def _sharded(options: CompileOptions, pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The pipeline of a compile that splits tensors. Raises UsageError for options that contradict each other."""
    if not any(step.name == "shard" for step in pipeline):
        flags = given(options, ON_MESHES)
        if options.pipeline or options.mesh:
            raise UsageError(PassMissing(flags, "shard"), where="--passes")
        raise UsageError(OnlyOnMeshes(flags))
    if clash := excluded_by(options, MESH):
        raise UsageError(NotWithMesh(clash))
    known = offered(Planned.MESHES)
    if options.objective and objective_of(options.objective) not in known:
        names = tuple(objective.name for objective in known)
        raise UsageError(ObjectiveNotOnMesh(options.objective, names), where="--objective")
    training = options.objective == TRAINING.name or any(getattr(step, "training", False) for step in pipeline)
    if options.microbatches is not None and not training:
        raise UsageError(OnlyOfTraining(("--microbatches",)))
    changes = changes_of(options, "shard")
    if options.mesh == "auto":
        changes["mesh"] = ""
    if training:
        changes["training"] = True
    if options.time_limit is not None:
        changes["time_limit"] = max(options.time_limit, 1e-3)  # 0: the first plan
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    return tuple(replace(step, **changes) if step.name == "shard" else step for step in pipeline)


def with_programs(pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """A pipeline of a person's own that lowers stages makes their programs too: they follow from the stages."""
    names = [step.name for step in pipeline]
    if "lower" not in names or "localize" in names:
        return pipeline
    from passes.localize import LocalizePass

    return (*pipeline, LocalizePass())


def _plan_alone(pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    return tuple(step for step in pipeline if step.name not in PROGRAM_PASSES)


def _with_comm(step: Pass, comm: str) -> Pass:
    has_it = any(option.name == "comm" for option in fields(step))
    changes: dict[str, Any] = {"comm": comm}
    return replace(step, **changes) if has_it else step


def _replay(options: CompileOptions) -> tuple[Pass, ...]:
    """The pipeline with what the plan states in the place of the search. Raises UsageError, InvalidInput."""
    from dnnc.build.plan_reader import read_plan
    from passes.framework.pipeline import parse_pipeline

    assert options.plan is not None
    if clash := excluded_by(options, PLAN):
        raise UsageError(NotWithPlan(clash))
    own = parse_pipeline(options.pipeline)
    if own and not any(step.name in ("partition", "shard") for step in own):
        raise UsageError(PlanReplacesNothing("partition"), where="--passes")
    stated, schedule = read_plan(options.plan)
    stated = replace(stated, made_for=_made_for(options.plan))
    meshes = stated.name == "replay"
    if options.explain and not meshes:
        raise UsageError(PlanWithoutMesh(), where=str(options.plan))
    if meshes and options.comm:
        raise UsageError(CommOfMeshPlan(options.comm), where=str(options.plan))
    if not stated.training and (flags := given(options, OF_TRAINING)):
        raise UsageError(PlanOfInference(flags), where=str(options.plan))
    plain, sharded = (TRAINING_PIPELINE, SHARDED_TRAINING) if stated.training else (PIPELINE, SHARDED_PIPELINE)
    pipeline = own or parse_pipeline(sharded if meshes else plain)
    if stated.training:
        pipeline = with_training(pipeline, options.training, plan_only=options.plan_only)
    replaced = "shard" if meshes else "partition"
    if not any(step.name == replaced for step in pipeline):
        raise UsageError(PlanReplacesNothing(replaced), where="--passes")
    # Groups serve the search alone; the plan is per op.
    pipeline = tuple(stated if step.name == replaced else step for step in pipeline if step.name != "contract")
    rows: dict[str, Any] = {"stated": schedule, "source": str(options.plan)} if schedule else {}
    pipeline = tuple(replace(step, **rows) if step.name == "schedule" else step for step in pipeline)
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    return tuple(_with_comm(step, options.comm) for step in pipeline) if options.comm else pipeline


def _made_for(plan: Path) -> str:
    """The model that a build was made of, by the manifest beside its plan; empty where there is none that says so."""
    from dnnc.build.snapshot import read_manifest

    try:
        manifest = read_manifest(plan.parent)
    except InvalidInput:
        return ""
    source, name = manifest.get("source"), manifest.get("model")
    spec = source.get("spec") if isinstance(source, dict) else None
    if not isinstance(spec, str) or not spec:  # of a plan alone
        return f"the model '{name}'" if isinstance(name, str) and name else ""
    return spec if spec.startswith("zoo:") else os.path.normpath(plan.parent / spec)


__all__ = [
    "CompileOptions",
    "asks_training",
    "build_pipeline",
    "check_time_limit",
    "kinds_besides",
    "of_profile",
    "of_zoo",
    "restrictions",
    "warn_of_cut",
    "with_programs",
]
