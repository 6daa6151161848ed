"""From the options of a compilation to the passes that carry them out, which ``dnnc.compile.driver`` runs.

Options that exclude each other (``dnnc.compile.flags``), or need a pass that the pipeline lacks, are refused before any work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from dnnc.compile.faults import (
    CommOfMeshPlan,
    NotATimeLimit,
    NotOfProfile,
    NotWithMesh,
    NotWithPlan,
    NotWithTag,
    OnlyOfTag,
    OnlyOfTraining,
    OnlyOnMeshes,
    PassMissing,
    PlanOfInference,
    PlanReplacesNothing,
    PlanWithoutMesh,
    SearchCut,
    StagesRecompute,
    SyncWithoutMesh,
)
from dnnc.compile.flags import (
    FLAGS,
    MESH,
    OF_TAG,
    OF_TRAINING,
    ON_SHAPES,
    PLAN,
    PROFILE,
    TAG,
    TAG_SEARCH,
    CompileOptions,
    changes_of,
    excluded_by,
    given,
)
from dnnc.compile.training import CHUNKED, with_training
from dnnc.compile.training import PIPELINE as TRAINING_PIPELINE
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput, UsageError
from ir.core.facets import SYNCS
from ir.core.module import Func, Module
from ir.core.objectives import ANY, CONTIGUOUS, TRAINING, objective_of
from ir.core.topology import Topology
from passes.framework.base import Pass
from passes.framework.registry import ANY_FORM, NO_MESH, PLANNERS

T = TypeVar("T")
PROGRAM_PASSES = ("lower", "localize")
"""The passes that make programs of a scheduled plan; a plan alone does without."""
PIPELINE = "default-inference"
"""The named pipeline that ``dnnc compile`` runs by default."""
PROFILE_PIPELINE = "profiled"
"""The named pipeline for a profiled workload, which has seconds in place of operators."""


def of_profile(options: CompileOptions, module: Module) -> CompileOptions:
    """The options for a profiled workload: they write a plan alone, of training if the workload has backward times and nothing
    else is asked for. Raises UsageError for options about tensors."""
    from dnnc.data.workloads.fitted import has_backward

    if clash := excluded_by(options, PROFILE):
        raise UsageError(NotOfProfile(clash), where=options.model)
    objective = options.objective
    if not (objective or options.plan or options.pipeline) and has_backward(module):
        objective = TRAINING.name
    return replace(options, plan_only=True, objective=objective, pipeline=options.pipeline or PROFILE_PIPELINE)


def asks_training(options: CompileOptions) -> bool:
    """Whether --objective names a training step."""
    return bool(options.objective) and objective_of(options.objective).trains


def of_zoo(options: CompileOptions, entry: Func) -> CompileOptions:
    """The options with the default loss of a zoo model with one output: its cross-entropy. Unchanged for other models, and for
    a plan alone, which needs no loss."""
    training = asks_training(options) and not (options.plan_only or options.pipeline or options.training.loss)
    if not training or not options.model.startswith("zoo:") or len(entry.results) != 1:
        return options
    loss = f"cross-entropy:{entry.results[0].name.removeprefix('%')}"
    return replace(options, training=replace(options.training, loss=loss))


def restrictions(options: CompileOptions, topology: Topology) -> list[str]:
    """The options that exclude plans which the search would consider without them."""
    if options.plan is not None or options.pipeline:
        return []
    given = {
        f"--stages {options.stages}": options.stages,
        f"--mesh {options.mesh}": options.mesh and not options.ranges,
        "a range of sizes, which meshes have not": options.ranges,
        f"--replicas {options.replicas}": (options.replicas or len(topology.devices)) < len(topology.devices),
        "--cut": options.cuts,
        "--pin": options.pins,
        f"--split {options.split}": options.split == ANY,
        f"--chunks {options.training.chunks}": (options.training.chunks or 1) > 1,
        f"--schedule {options.training.schedule}": not options.training.flush or options.training.schedule in CHUNKED,
    }
    return [flag for flag, wanted in given.items() if wanted]


def check_time_limit(seconds: float | None) -> None:
    """Raises UsageError for infinity, NaN, and less than 0."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise UsageError(NotATimeLimit(seconds), where="--time-limit")


def warn_of_cut(sink: DiagnosticSink, seconds: float | None) -> None:
    """Warns that the time limit ended a search before its counted work did, and before its plan was proven optimal."""
    sink.warn(SearchCut(), where=f"--time-limit {seconds:g}")


def build_pipeline(options: CompileOptions, *, profiled: bool = False) -> tuple[Pass, ...]:
    """The passes that carry out the options, for a model or a ``profiled`` workload. Raises UsageError for options that exclude
    each other or need a pass that the pipeline lacks."""
    from passes.framework.pipeline import parse_pipeline

    check_time_limit(options.time_limit)
    _check_search(options)
    if options.plan is not None:
        return _replay(options)
    trains = asks_training(options) and not profiled
    if options.mesh == NO_MESH and options.training.sync not in ("", SYNCS[0]):
        raise UsageError(SyncWithoutMesh(options.training.sync))
    left_out = PROGRAM_PASSES if options.plan_only and not options.pipeline else ()
    pipeline = parse_pipeline(options.pipeline or (TRAINING_PIPELINE if trains else PIPELINE), without=left_out)
    if trains:
        pipeline = with_training(pipeline, options.training, plan_only=options.plan_only)
    elif flags := given(options, OF_TRAINING):
        raise UsageError(OnlyOfTraining(flags))
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    if _asks_mesh(options) and not options.pipeline:
        pipeline = pipeline if trains else for_meshes(pipeline)
    elif _of_literature(options, profiled=profiled):
        pipeline = tuple(_by_reference(step) if step.name == "partition" else step for step in pipeline)
    pipeline = tuple(_searching(step, options, trains=trains) if step.name in PLANNERS else step for step in pipeline)
    if not any(step.name in PLANNERS for step in pipeline):
        changed = changes_of(options, "partition") | changes_of(options, "reference")
        if flags := given(options, [flag for flag in FLAGS if flag.field in changed]):
            raise UsageError(PassMissing(flags, "partition"), where="--passes")
    if options.time_limit is not None:
        limit = {"time_limit": options.time_limit}
        pipeline = tuple(replace(step, **limit) if step.name == "place" else step for step in pipeline)
    if options.comm:  # every pass that adds up compute and transfers must do it the same way
        pipeline = tuple(_with_comm(step, options.comm) for step in pipeline)
    for step in pipeline:
        step.check_options()
    return pipeline


def _asks_mesh(options: CompileOptions) -> bool:
    """Whether the options ask for plans on meshes alone."""
    return options.mesh not in ("", NO_MESH) or options.search == TAG


def for_meshes(pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The named pipeline of inference for plans on meshes alone: fused projections are taken apart first. (A training step has
    its weights as they are.)"""
    from passes.framework.pipeline import parse_pipeline

    unfuse = parse_pipeline("unfuse")
    apart = [(*unfuse, step) if step.name == "cost" else (step,) for step in pipeline]
    return tuple(step for steps in apart for step in steps)


def _searching(step: Any, options: CompileOptions, *, trains: bool) -> Pass:
    """The pass that searches a plan, with the options. Raises UsageError for those that exclude each other."""
    changes = changes_of(options, step.name)
    if options.pins:
        changes["pins"] = tuple(f"{node}={device}" for node, device in options.pins.items())
    if step.name == "partition":
        mesh = "auto" if options.search == TAG else options.mesh or step.mesh
        if mesh not in (NO_MESH, ANY_FORM):
            return _on_meshes(step, options, {**changes, "mesh": mesh}, trains=trains)
        if options.comm:
            changes["comm"] = options.comm
        changed = replace(step, **changes)
        searched = mesh == ANY_FORM and not changed.without_mesh
    else:
        mesh = options.mesh or step.mesh
        changed = replace(step, **changes, mesh=mesh)
        searched = mesh == ANY_FORM and objective_of(changed.objective).alone
    if flags := given(options, ON_SHAPES):
        raise UsageError(OnlyOnMeshes(flags))
    if options.explain and not searched:
        raise UsageError(OnlyOnMeshes(("--explain",)))
    if options.microbatches is not None and not trains:
        raise UsageError(OnlyOfTraining(("--microbatches",)))
    return cast("Pass", changed)


def _on_meshes(step: Any, options: CompileOptions, changes: dict[str, Any], *, trains: bool) -> Pass:
    """The pass ``partition``, of plans on meshes alone, with ``changes``: by default one mesh, and no replicas. Raises
    UsageError for options that exclude each other."""
    if clash := excluded_by(options, MESH):
        raise UsageError(NotWithMesh(clash))
    if options.microbatches is not None and not (trains or objective_of(step.objective).trains):
        raise UsageError(OnlyOfTraining(("--microbatches",)))
    if _asks_mesh(options):
        stages = step.stages or 1 if options.stages is None else options.stages
        changes = {"replicas": 1 if not options.pipeline else step.replicas, **changes, "stages": stages}
    return cast("Pass", replace(step, **changes))


def _of_literature(options: CompileOptions, *, profiled: bool) -> bool:
    """Whether the options ask for a problem of the literature, which is searched by the pass ``reference``."""
    other = options.pieces is not None or options.split not in ("", CONTIGUOUS)
    if not options.objective:
        return other
    objective = objective_of(options.objective)
    return other or (objective.alone and not objective.decodes) or (profiled and objective.trains)


def _by_reference(step: Pass) -> Pass:
    """The pass ``reference`` with the options of a pass ``partition``."""
    from passes.framework.registry import PASSES

    reference = PASSES["reference"]
    return reference(**{option.name: getattr(step, option.name) for option in fields(reference) if hasattr(step, option.name)})


def _check_search(options: CompileOptions) -> None:
    """Raises UsageError for options that TAG's search excludes, and for its own options without it."""
    if options.search != TAG:
        if flags := given(options, OF_TAG):
            raise UsageError(OnlyOfTag(flags))
        return
    if not asks_training(options):
        raise UsageError(OnlyOfTraining(("--search tag",)))
    if clash := excluded_by(options, TAG_SEARCH):
        raise UsageError(NotWithTag(clash))


def with_programs(pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The pipeline, with ``localize`` added where it lowers stages: a pipeline of --passes makes programs too."""
    names = [step.name for step in pipeline]
    if "lower" not in names or "localize" in names:
        return pipeline
    from passes.programs.localize import LocalizePass

    return (*pipeline, LocalizePass())


def _plan_alone(pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    return tuple(step for step in pipeline if step.name not in PROGRAM_PASSES)


def _with_comm(step: Pass, comm: str) -> Pass:
    has_it = any(option.name == "comm" for option in fields(step))
    changes: dict[str, Any] = {"comm": comm}
    return replace(step, **changes) if has_it else step


def _replay(options: CompileOptions) -> tuple[Pass, ...]:
    """The pipeline in which the plan of --plan replaces the search. Raises UsageError, InvalidInput."""
    from dnnc.build.plan_reader import read_plan, recomputation_of, replay_from_json, schedule_of
    from passes.framework.pipeline import parse_pipeline

    assert options.plan is not None
    if clash := excluded_by(options, PLAN):
        raise UsageError(NotWithPlan(clash))
    own = parse_pipeline(options.pipeline)
    if own and not any(step.name in PLANNERS for step in own):
        raise UsageError(PlanReplacesNothing("partition"), where="--passes")
    data, schedule = options.stated or read_plan(options.plan)
    stated = replace(replay_from_json(data, str(options.plan)), made_for=_made_for(options.plan))
    meshes = stated.name == "replay"
    if options.explain and not meshes:
        raise UsageError(PlanWithoutMesh(), where=str(options.plan))
    if meshes and options.comm:
        raise UsageError(CommOfMeshPlan(options.comm), where=str(options.plan))
    if not stated.training and (flags := given(options, OF_TRAINING)):
        raise UsageError(PlanOfInference(flags), where=str(options.plan))
    pipeline = own or parse_pipeline(TRAINING_PIPELINE if stated.training else PIPELINE)
    if meshes and not own and not stated.training:
        pipeline = for_meshes(pipeline)
    if stated.training:
        training = options.training
        if not training.schedule:  # rows that are stated are of that order, or edited
            kind = _kind_of(schedule, str(options.plan)) if schedule else schedule_of(data, str(options.plan))
            training = replace(training, schedule=kind)
        if not training.recompute:
            training = replace(training, recompute=recomputation_of(data, str(options.plan)))
        pipeline = with_training(pipeline, training, plan_only=options.plan_only)
        family: dict[str, Any] = {"family": training.schedule} if meshes else {}
        stated = replace(stated, **family)
    pipeline = tuple(stated if step.name in PLANNERS else step for step in pipeline)
    rows: dict[str, Any] = {"stated": schedule, "source": str(options.plan)} if schedule else {}
    pipeline = tuple(replace(step, **rows) if step.name == "schedule" else step for step in pipeline)
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    return tuple(_with_comm(step, options.comm) for step in pipeline) if options.comm else pipeline


def _kind_of(schedule: str, where: str) -> str:
    """The order of a training step whose rows are stated."""
    from ir import parse_module
    from ir.core.module import Schedule
    from passes.timeline.families import FAMILIES

    found = parse_module(f"module @stated {{\n{schedule}\n}}", where).first(Schedule)
    return found.kind if found is not None and found.kind in FAMILIES else ""


def as_memory_asks(options: CompileOptions, sink: DiagnosticSink, planned: Callable[[CompileOptions], T]) -> T:
    """The plan without recomputation; if none fits, the plan with it."""

    def with_(recompute: str) -> CompileOptions:
        return replace(options, training=replace(options.training, recompute=recompute))

    try:
        return planned(with_("none"))
    except Infeasible as error:
        result = planned(with_("stage"))
        sink.warn(StagesRecompute(error.diagnostics[0].message), where="--recompute auto")
        return result


def _made_for(plan: Path) -> str:
    """The model that a plan was made for, from the manifest beside it; empty if there is none or it does not say."""
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
