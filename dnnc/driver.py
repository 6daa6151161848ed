"""From a model and a topology to a build directory: the one place that joins frontends, passes and backend.

``compile_model`` is what ``dnnc compile`` does; the other commands use its parts. Options are data, results are data, and
nothing here prints: warnings collect in a sink, progress goes to a callback, seconds are measured per step.

A build directory is written whole or not at all; a plan alone (``plan_only``) is written the same way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ir
from dnnc.frontends import DIALECTS
from dnnc.kinds import (
    NO_MESH,
    PIPELINE,
    PROFILE_PIPELINE,
    PROGRAM_PASSES,
    SHARDED_PIPELINE,
    KindSearch,
    mesh_sizes,
    other_kinds,
    with_one_mesh,
    with_restrictions,
)
from dnnc.providers import ON_CPU, Provider
from ir.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.limits import LIMITS, Limits
from ir.module import Declared, Mesh, Module, Plan, Resource, Schedule, Stage
from ir.objectives import ANY, THROUGHPUT, TRAINING, Planned, names, objective_of, offered
from ir.topology import Topology
from passes.framework.base import Pass, PassContext

if TYPE_CHECKING:
    from passes.shard import Alternative, Layer

__all__ = [
    "CompileOptions",
    "CompileResult",
    "Explanation",
    "Progress",
    "build_pipeline",
    "compile_model",
    "is_profiled",
    "pass_context",
    "with_topology",
]

NO_TRAINING = "--objective training plans the backward pass too, and programs for training are not generated yet"

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What to compile, for what, how, and where to.

    ``dims`` binds symbolic dimensions; ``limits`` bound what the model may ask for. ``cuts``: tensors after which a new stage
    begins; ``pins``: device by op; ``stages``: how many, None for the best. ``plan``: a plan to replay instead of searching.
    ``objective``, ``split`` (empty: throughput, contiguous), ``replicas`` (most devices of a stage), ``pieces`` (most stages of
    a device, of latency), ``comm`` (empty: ``sum``) and ``time_limit`` (seconds of search) stand over those of ``pipeline``,
    which is pipeline text, empty for the default one.

    Replicas, and meshes where ``mesh`` is empty, are chosen together with the stages (``dnnc.kinds``) unless these say how.

    ``mesh`` splits tensors: sizes of a mesh's axes (``2x4``), ``auto`` for the best, ``none`` to split none. With a shape
    ``stages`` may be 0 (how many is chosen together with the meshes), ``strategy`` names a plan instead of searching,
    ``uneven`` lets shards differ in length where a dimension does not divide, and ``shares`` says how unequal parts are
    (``3,1``; ``equal``);
    ``microbatches`` of a training step in stages. ``explain`` asks for ``CompileResult.explanation``;
    ``load_test``: every program is opened by onnxruntime before the build counts as done. ``inputs``: an ``.npz`` of
    arrays by input, whose shapes bind dimensions; sizes that depend on values are measured on its first microbatch."""

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
    explain: bool = False
    load_test: bool = True
    inputs: Path | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A sharded plan told: its layers, one of them in full (None where nothing repeats), and plans by name."""

    layers: tuple[Layer, ...]
    block: Layer | None
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The module after the last pass, its plan, the machines it is for, and what it took.

    ``seconds``: ``load``, each pass by name, ``search`` behind ``partition`` (what of it looked for the plan), ``write``,
    ``load-test`` (opening the programs), ``total``. ``statistics``: what each pass counted."""

    module: Module
    plan: Plan
    topology: Topology
    out: Path
    pipeline: str
    seconds: dict[str, float]
    statistics: dict[str, dict[str, int | float | str]]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    explanation: Explanation | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the search was, from the keyboard: this is the plan that it had."""
        return any(counted.get("interrupted") for counted in self.statistics.values())


class _Clock:
    """Seconds by step, in the order in which the steps ended; steps of one name add up."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, without: str = "") -> Iterator[None]:
        """Counts what passes inside as ``name``, but for the seconds of the step ``without`` in it."""
        start, before = time.perf_counter(), self.seconds.get(without, 0.0)
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start - (self.seconds.get(without, 0.0) - before))

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def total(self) -> float:
        return time.perf_counter() - self.start


def compile_model(
    options: CompileOptions,
    *,
    sink: DiagnosticSink | None = None,
    progress: Progress = lambda label, fraction: None,
    manager: Mapping[str, Any] | None = None,
) -> CompileResult:
    """Plans the model and writes the build directory ``options.out``.

    ``manager`` holds further keywords of ``PassManager``. Raises DnncError for every fault of the input (InvalidInput,
    UsageError, Infeasible), PassCrash or InvariantError for a bug in a pass; nothing is written then."""
    clock = _Clock()  # before the imports: they are a part of what a person waits for
    from dnnc.backend import check_target, write_build, write_plan
    from dnnc.frontends import free_symbols, load_model, load_topology, may_be_profile, require_static
    from dnnc.given import GivenInputs
    from passes.framework.pipeline import made_by, pipeline_text
    from passes.model.folding import expand

    sink = sink if sink is not None else DiagnosticSink()
    pipeline = (
        () if may_be_profile(options.model) else _with_programs(build_pipeline(options))
    )  # faults of options before a long read
    check_target(options.out)
    with clock.step("load"):
        progress("load the model", None)
        topology = load_topology(options.topology, sink)
        # A plan needs the sizes of the weights, not their bytes.
        bytes_needed = not options.plan_only and options.weights != "none"
        given = GivenInputs.read(options.inputs) if options.inputs is not None else None
        imported = load_model(
            options.model,
            options.dims,
            sink,
            allow_missing_weights=not bytes_needed and given is None,
            arrays=given.shapes if given is not None else None,
            limits=options.limits,
        )
        module = with_topology(expand(imported.module), topology)
        note = ""
        if profiled := is_profiled(options.model, module):
            options = _of_profile(options, module)
        pipeline = _with_programs(pipeline or build_pipeline(options, profiled=profiled))
        if profiled:
            training = any(objective_of(getattr(step, "objective", THROUGHPUT.name)).trains for step in pipeline)
            from dnnc.frontends.workloads.fitted import fitted

            module, note = fitted(module, topology, training=training, sink=sink, where=options.model)
        weights = _available_weights(module, options, sink)
        if free_symbols(module.entry):  # names all of them, and the options that bind them
            require_static(module, options.model)
    context = pass_context(sink, progress)
    if given is not None:
        context.measure = given.measuring(imported, partial(clock.step, "measure"))

    def passed(name: str, seconds: float) -> None:
        clock.add(name, seconds)
        if name in ("partition", "shard"):
            counted = context.statistics.get(name, {})
            clock.add("search", float(counted.get("seconds", 0.0)) - float(counted.get("build", 0.0)))

    pipelines = (*with_one_mesh(pipeline, topology), *_others(options, topology))
    module, pipeline = KindSearch(context, manager or {}, passed).run(pipelines, module)
    module = expand(module)
    clock.add("search", 0.0)  # a replayed plan needs none
    plan = module.first(Plan)
    if plan is None:
        raise UsageError(
            f"the pipeline makes no plan: {pipeline_text(pipeline)}", hint="it needs 'partition' (or 'assign') and 'place'"
        )
    plan_told = with_restrictions(
        _noted(plan, profile=note, meshes=mesh_sizes(pipelines, topology)), _restricting(options, topology), topology
    )
    module = module.replace(plan, plan := with_cores(plan_told, options.topology))

    def tested(models: Iterable[Path]) -> None:
        from dnnc.runtime.load_test import load_test

        with clock.step("load-test"):
            load_test(models, partial(_node_of, module), partial(_provider_of, module))

    with clock.step("write", without="load-test"):
        if options.plan_only:
            manifest = write_plan(module, options.out, made_by(pipeline))
        else:
            manifest = write_build(
                module,
                imported.folder,
                imported.source,
                options.out,
                weights=weights,
                progress=progress,
                test=tested if options.load_test else None,
                made_by=made_by(pipeline),
            )
            if any(mesh.shares for mesh in module.of_type(Mesh)):
                message = "ONNX cannot say unequal parts: values cut so have no sharding spec, but metadata 'dnnc.shares'"
                sink.warn(message, where="annotated.onnx")
    told = None
    if options.explain:
        with clock.step("explain"):
            progress("explain", None)
            told = _explained(module)
    clock.add("total", clock.total())
    return CompileResult(
        module, plan, topology, options.out, pipeline_text(pipeline), clock.seconds, context.statistics, manifest, told
    )


def is_profiled(model: str, module: Module) -> bool:
    """Whether the module of ``model`` is a profiled workload."""
    from dnnc.frontends import may_be_profile

    if not may_be_profile(model):
        return False
    from dnnc.frontends.workloads.fitted import is_profile

    return is_profile(module)


def _of_profile(options: CompileOptions, module: Module) -> CompileOptions:
    """The options of a compile of a profiled workload: of its plan alone, for training where it has backward times and nothing
    else is asked for. Raises UsageError for options of tensors."""
    from dnnc.frontends.workloads.fitted import has_backward

    given = {
        "--mesh": options.mesh,
        "--strategy": options.strategy,
        "--uneven": options.uneven,
        "--shares": options.shares,
        "--microbatches": options.microbatches,
        "--explain": options.explain,
        "--inputs": options.inputs,
    }
    if clash := [flag for flag, value in given.items() if value]:
        raise UsageError(f"{', '.join(clash)}: a profile has no tensors", where=options.model, hint="leave it out")
    objective = options.objective
    if not (objective or options.plan or options.pipeline) and has_backward(module):
        objective = TRAINING.name
    return replace(options, plan_only=True, objective=objective, pipeline=options.pipeline or PROFILE_PIPELINE)


def _noted(plan: Plan, **notes: str) -> Plan:
    """The plan, whose certificate says what is not empty of ``notes``."""
    told = {key: text for key, text in notes.items() if text}
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), **told}.items())))


def _others(options: CompileOptions, topology: Topology) -> tuple[tuple[Pass, ...], ...]:
    """The pipelines of plans on meshes, where the options leave them free."""
    asked = options.plan is not None or options.pipeline or options.mesh
    single = options.cuts or options.pins or options.pieces is not None or options.split == ANY
    if asked or single or options.comm not in ("", "sum") or options.objective not in ("", THROUGHPUT.name):
        return ()
    return other_kinds(topology, stages=options.stages or 0, time_limit=options.time_limit, plan_only=options.plan_only)


def _restricting(options: CompileOptions, topology: Topology) -> list[str]:
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
    }
    return [flag for flag, wanted in given.items() if wanted]


def with_cores(plan: Plan, spec: str) -> Plan:
    """The plan, which says so where its devices are workers of a preset that share cores. One of them alone would have a core
    of its own: that is what ``single`` is then."""
    from dnnc.costs import find_preset

    used = len({device for stage in plan.stages for device in stage.devices})
    preset = find_preset(spec.removeprefix("preset:")) if spec.startswith("preset:") else None
    if preset is None or not preset.cores or used <= preset.cores:
        return plan
    text = f"{used} workers share {preset.cores} core{'s' if preset.cores != 1 else ''}"
    certificate = {**dict(plan.certificate), "cores": text}
    return replace(plan, single=plan.single * preset.cores / used, certificate=tuple(sorted(certificate.items())))


def _node_of(module: Module, operator: str) -> str:
    """The first node of an ONNX operator; empty where it stands in a branch alone."""
    return next((op.location.node or op.id for op in module.entry.ops if op.name == f"onnx.{operator}"), "")


def _provider_of(module: Module, stage: int, member: int) -> Provider:
    """The execution provider of a member of a stage, member 0 where the stage is one model."""
    topology, plan = module.first(Topology), module.first(Plan)
    assert topology is not None
    assert plan is not None
    return Provider.of(topology, plan.stages[stage].devices[member]) or ON_CPU


def _explained(module: Module) -> Explanation:
    from passes.shard import alternatives, layers, typical_block

    told = layers(module)
    return Explanation(told, typical_block(told), alternatives(module))


def _available_weights(module: Module, options: CompileOptions, sink: DiagnosticSink) -> str:
    """Which weights are written: none, with a warning, where the model only declares them."""
    if options.plan_only or not any(isinstance(resource.data, Declared) for resource in module.of_type(Resource)):
        return options.weights
    if options.weights != "none":
        zoo = options.model.startswith("zoo:")
        sink.warn(
            "the weights are only declared: programs are written without them, so they can be inspected but neither run nor "
            "checked",
            where=options.model,
            hint="add ,weights=random to make them, or use --plan-only" if zoo else "--plan-only writes the plan alone",
        )
    return "none"


def check_time_limit(seconds: float | None) -> None:
    """Raises UsageError for infinity and NaN."""
    if seconds is not None and not math.isfinite(seconds):
        raise UsageError(f"--time-limit {seconds}: expected a number of seconds", hint="leave it out for the default")


def build_pipeline(options: CompileOptions, *, profiled: bool = False) -> tuple[Pass, ...]:
    """The passes that the options ask for, of a model or of a ``profiled`` workload. Raises UsageError for options that
    contradict each other or need a pass that is not there."""
    from passes.framework.pipeline import parse_pipeline

    check_time_limit(options.time_limit)
    if options.plan is not None:
        return _replay(options)
    trains = bool(options.objective) and objective_of(options.objective).trains and not profiled
    if trains and options.mesh == NO_MESH:
        raise UsageError("--mesh none leaves meshes out, and a training step of a model is planned on them", where="--mesh")
    if trains and not (options.mesh or options.pipeline):
        options = replace(options, mesh="auto", stages=options.stages or 0)
    if options.mesh == NO_MESH:
        options = replace(options, mesh="")
    pipeline = parse_pipeline(options.pipeline or (SHARDED_PIPELINE if options.mesh else PIPELINE))
    if options.mesh or options.strategy or options.uneven or options.shares or any(step.name == "shard" for step in pipeline):
        return _sharded(options, pipeline)
    if options.microbatches is not None:
        raise UsageError("--microbatches is of a training step", hint="add --objective training, or leave it out")
    if options.explain:
        raise UsageError("--explain tells of plans that split tensors", hint="add --mesh auto, or a shape such as --mesh 8")
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    changes: dict[str, Any] = {}
    if options.cuts:
        changes["cuts"] = options.cuts
    if options.pins:
        changes["pins"] = tuple(f"{node}={device}" for node, device in options.pins.items())
    if options.stages is not None:
        changes["stages"] = options.stages
    for name in ("time_limit", "replicas", "pieces"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    for name in ("objective", "split"):
        if getattr(options, name):
            changes[name] = getattr(options, name)
    if trains:
        raise UsageError(
            f"--objective {options.objective} of a model needs the pass 'shard', which the pipeline does not have",
            where="--passes",
            hint="leave --passes out, or give a profiled workload",
        )
    if changes and not any(step.name == "partition" for step in pipeline):
        given = ", ".join(_FLAGS[name] for name in changes)
        raise UsageError(
            f"{given}: the pipeline has no pass 'partition' that could follow it",
            where="--passes",
            hint=f"add partition to the pipeline, or leave --passes or {given} out",
        )
    pipeline = tuple(replace(step, **changes) if step.name == "partition" else step for step in pipeline)
    if options.time_limit is not None:
        limit = {"time_limit": options.time_limit}
        pipeline = tuple(replace(step, **limit) if step.name == "place" else step for step in pipeline)
    if options.comm:  # every pass that adds up compute and transfers must do it the same way
        pipeline = tuple(_with_comm(step, options.comm) for step in pipeline)
    return pipeline


def _sharded(options: CompileOptions, pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The pipeline of a compile that splits tensors. Raises UsageError for options that contradict each other."""
    if not any(step.name == "shard" for step in pipeline):
        flags = {"--mesh": options.mesh, "--strategy": options.strategy, "--shares": options.shares, "--uneven": options.uneven}
        flag = next(flag for flag, value in flags.items() if value)
        if options.pipeline or options.mesh:
            raise UsageError(
                f"{flag} needs the pass 'shard', which the pipeline does not have",
                where="--passes",
                hint=f"add shard to the pipeline, or leave --passes or {flag} out",
            )
        raise UsageError(f"{flag} says how tensors are split over a mesh", hint="add --mesh auto, or a shape such as --mesh 8")
    given = {
        "--cut": options.cuts,
        "--pin": options.pins,
        "--split": options.split,
        "--replicas": options.replicas is not None,
        "--pieces": options.pieces is not None,
        "--comm": options.comm,
    }
    clash = [flag for flag, value in given.items() if value]
    if clash:
        raise UsageError(
            f"--mesh splits every op over devices that work together, so {', '.join(clash)} cannot go with it",
            hint="leave --mesh out to place whole ops on devices",
        )
    known = offered(Planned.MESHES)
    if options.objective and objective_of(options.objective) not in known:
        raise UsageError(
            f"--mesh minimises {names(known)}, not {options.objective}",
            where="--objective",
            hint="leave --objective out for throughput, or --mesh for latency",
        )
    training = options.objective == TRAINING.name or any(getattr(step, "training", False) for step in pipeline)
    if training and not options.plan_only:
        raise UsageError(NO_TRAINING, hint="add --plan-only for the plan, or leave --objective out for inference")
    if options.microbatches is not None and not training:
        raise UsageError("--microbatches is of a training step", hint="add --objective training, or leave it out")
    changes: dict[str, Any] = {}
    if options.mesh:
        changes["mesh"] = "" if options.mesh == "auto" else options.mesh
    if options.stages is not None:
        changes["stages"] = options.stages
    if training:
        changes["training"] = True
    if options.time_limit is not None:
        changes["time_limit"] = max(options.time_limit, 1e-3)  # 0: the first plan
    for name in ("strategy", "uneven", "shares", "microbatches"):
        if getattr(options, name):
            changes[name] = getattr(options, name)
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    return tuple(replace(step, **changes) if step.name == "shard" else step for step in pipeline)


def _with_programs(pipeline: tuple[Pass, ...]) -> tuple[Pass, ...]:
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


_FLAGS = {
    "cuts": "--cut",
    "pins": "--pin",
    "stages": "--stages",
    "time_limit": "--time-limit",
    "replicas": "--replicas",
    "pieces": "--pieces",
    "objective": "--objective",
    "split": "--split",
}


def _replay(options: CompileOptions) -> tuple[Pass, ...]:
    """The pipeline with what the plan states in the place of the search. Raises UsageError, InvalidInput."""
    from dnnc.program.plan_json import read_plan
    from passes.framework.pipeline import parse_pipeline

    assert options.plan is not None
    given = {
        "--cut": options.cuts,
        "--pin": options.pins,
        "--stages": options.stages is not None,
        "--time-limit": options.time_limit,
        "--replicas": options.replicas,
        "--pieces": options.pieces,
        "--objective": options.objective,
        "--split": options.split,
        "--mesh": options.mesh,
        "--strategy": options.strategy,
        "--uneven": options.uneven,
        "--shares": options.shares,
        "--microbatches": options.microbatches,
    }
    clash = [name for name, value in given.items() if value]
    if clash:
        raise UsageError(
            f"--plan states every op's stage, so {', '.join(clash)} cannot go with it", hint="edit the plan instead"
        )
    own = parse_pipeline(options.pipeline)
    lacks = "--plan takes the place of the pass '{}', which the pipeline lacks"
    if own and not any(step.name in ("partition", "shard") for step in own):
        raise UsageError(lacks.format("partition"), where="--passes", hint="or of 'shard', where the plan splits tensors")
    stated, schedule = read_plan(options.plan)
    meshes = stated.name == "replay"
    if options.explain and not meshes:
        raise UsageError("--explain tells of plans that split tensors", where=str(options.plan))
    if meshes and options.comm:
        raise UsageError(f"--comm {options.comm} cannot go with a plan that splits tensors", where=str(options.plan))
    if stated.training and not options.plan_only:
        raise UsageError(NO_TRAINING, where=str(options.plan), hint="add --plan-only for the plan")
    pipeline = own or parse_pipeline(SHARDED_PIPELINE if meshes else PIPELINE)
    replaced = "shard" if meshes else "partition"
    if not any(step.name == replaced for step in pipeline):
        raise UsageError(lacks.format(replaced), where="--passes")
    # Groups serve the search alone; the plan is per op.
    pipeline = tuple(stated if step.name == replaced else step for step in pipeline if step.name != "contract")
    rows: dict[str, Any] = {"stated": schedule, "source": str(options.plan)} if schedule else {}
    pipeline = tuple(replace(step, **rows) if step.name == "schedule" else step for step in pipeline)
    if options.plan_only:
        pipeline = _plan_alone(pipeline)
    return tuple(_with_comm(step, options.comm) for step in pipeline) if options.comm else pipeline


def with_topology(module: Module, topology: Topology) -> Module:
    """The module with this topology instead of its own. Raises InvalidInput where something in it was decided for other
    machines: a mesh, a plan or a schedule that these do not fit."""
    changed = module.without(Topology).extend([topology])
    decided = any(isinstance(symbol, Mesh | Stage | Schedule | Plan) for symbol in module.symbols)
    if decided and (faults := ir.verify(changed, dialects=DIALECTS)):
        hint = "take the meshes, stages, schedule and plan out of the module, or leave its own machines"
        raise InvalidInput(
            replace(faults[0], message=f"made for other machines than {topology.name}: {faults[0].message}", hint=hint)
        )
    return changed


def pass_context(sink: DiagnosticSink, progress: Progress = lambda label, fraction: None) -> PassContext:
    """What passes may use: ONNX's operators, and their evaluation on constants, loaded when the first one is."""
    from dnnc.frontends.evaluate import OnnxEvaluator

    return PassContext(sink=sink, evaluate=OnnxEvaluator(), progress=progress, dialects=DIALECTS)
