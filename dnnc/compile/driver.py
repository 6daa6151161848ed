"""From a model and a topology to a build directory: the one place that joins the importer, the passes and the engines.

``compile_model`` does the work of ``dnnc compile``: ``plan_model``, and ``PlannedModel.write``. Options and results are data.
Nothing here prints: warnings go to a sink, progress to a callback, and the seconds of each step to the result.

A build directory, and a plan alone (``plan_only``), is written whole or not at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.compile.context import Progress, pass_context, trains, with_topology
from dnnc.compile.faults import (
    NothingDecays,
    NothingSaved,
    NothingToExplain,
    NoWeights,
    NoWeightsOfZoo,
    PipelineWithoutPlan,
    ProfileOfInference,
    ProfileOfTraining,
    SharesNotAnnotated,
)
from dnnc.compile.flags import AUTO, TAG, CompileOptions
from dnnc.compile.notes import CORES, noted, origins, with_a_core_each, with_callers, with_cores, with_restrictions
from dnnc.compile.options import (
    PROGRAM_PASSES,
    as_memory_asks,
    asks_training,
    build_pipeline,
    of_profile,
    of_zoo,
    restrictions,
    warn_of_cut,
    with_programs,
)
from dnnc.compile.training import (
    decays,
    differentiates_behind,
    require_engine,
    require_loss,
    saves_by_recomputing,
    update_text,
)
from dnnc.compile.uncounted import with_uncounted
from dnnc.onnx.providers import ON_CPU, Provider
from ir.core.diagnostics import Diagnostic, DiagnosticSink, UsageError
from ir.core.module import Declared, Func, Mesh, Module, Plan, Resource, Schedule
from ir.core.objectives import THROUGHPUT, objective_of
from ir.core.topology import Topology
from passes.framework.base import Pass, PassContext
from passes.framework.registry import PLANNERS

if TYPE_CHECKING:
    from dnnc.compile.decoding.choice import Choice
    from dnnc.compile.decoding.genai import GenaiPipeline
    from dnnc.compile.decoding.prompt import Prompt
    from dnnc.compile.given import GivenInputs
    from dnnc.compile.samples import StepOfSamples
    from dnnc.onnx.model import ImportedModel
    from passes.costs.profiled import Profile
    from passes.framework.manager import PassManager
    from passes.partition.alternatives import Alternative
    from passes.plan.layers import Layer


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``--explain`` prints of a plan on meshes: its layers, one of them op by op (None if nothing repeats), and other
    plans by name."""

    layers: tuple[Layer, ...]
    block: Layer | None
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The module after the last pass, its plan, its machines, and the cost of the compilation. ``interrupted``: Ctrl-C ended
    the search, and the plan is the best one until then.

    ``seconds`` by step: ``load``, each pass by name, ``search`` (the part of ``partition`` that searches),
    ``write``, ``load-test`` (opening the programs), ``total``. ``statistics``: the counts of each pass."""

    module: Module
    plan: Plan
    topology: Topology
    out: Path
    pipeline: str
    seconds: dict[str, float]
    statistics: dict[str, dict[str, int | float | str]]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    explanation: Explanation | None = None
    interrupted: bool = False


class _Clock:
    """Seconds by step, in the order in which steps ended; steps of one name are summed."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, without: str = "") -> Iterator[None]:
        """Adds the seconds of the block to the step ``name``, without those of the step ``without`` inside it."""
        start, before = time.perf_counter(), self.seconds.get(without, 0.0)
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start - (self.seconds.get(without, 0.0) - before))

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def total(self) -> float:
        return time.perf_counter() - self.start


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model whose plan is made, and whose programs are not made yet.

    ``options``: with defaults that depend on the model, such as its loss; ``module``: the model after the passes that plan it;
    ``pipeline``: all passes, of which the first ``done`` have run; ``prompt``: the prompt program of a decoder. Warnings go to
    ``context.sink``."""

    options: CompileOptions
    topology: Topology
    module: Module
    pipeline: tuple[Pass, ...]
    done: int
    context: PassContext
    prompt: Prompt | None
    _loaded: _Loaded
    _manager: Callable[..., PassManager]
    _clock: _Clock

    @property
    def plan(self) -> Plan:
        plan = self.module.first(Plan)
        assert plan is not None
        return plan

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search; the plan is the best one until then."""
        return _is_interrupted(self.context)

    def write(self, out: Path) -> CompileResult:
        """Makes the programs and writes the build directory ``out``; with ``plan_only``, the plan alone. Raises DnncError,
        PassCrash and InvariantError; nothing is written then."""
        from passes.framework.pipeline import pipeline_text
        from passes.graph.folding import expand

        module = self.module
        if self.options.ranges and not self.options.plan_only:
            from dnnc.compile.ranges import with_open_sizes

            module = with_open_sizes(module, self.options, self.pipeline, self.context)
        prompt, genai = None, None
        if self.options.genai and not self.options.plan_only:
            from dnnc.compile.decoding.genai import genai_of

            genai = genai_of(module, self.options, self.context)
        if self.prompt is not None and not self.options.plan_only:
            from dnnc.compile.decoding import with_chunk

            prompt, module = self.prompt.module, with_chunk(module, self.prompt.chunk)
            if (of_step := prompt.first(Plan)) is not None and not of_step.on_meshes:
                prompt = prompt.replace(of_step, self.plan)
        module = expand(self._manager(self.pipeline, start_after=self.done).run(module, self.context))
        with self._clock.step("write", without="load-test"):
            manifest = _written(self._loaded, module, prompt, genai, out, self.pipeline, self.context, self._clock)
        explanation, plan = None, module.first(Plan)
        assert plan is not None
        if self.options.explain and not all(stage.mesh for stage in plan.stages):
            self.context.sink.warn(NothingToExplain(), where="--explain")
        elif self.options.explain:
            with self._clock.step("explain"):
                self.context.progress("explain", None)
                explanation = _explained(module)
        self._clock.add("total", self._clock.total())
        text, seconds = pipeline_text(self.pipeline), self._clock.seconds
        return CompileResult(
            module, plan, self.topology, out, text, seconds, self.context.statistics, manifest, explanation, self.interrupted
        )


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
    from dnnc.engines.onnxruntime.write import check_target

    assert options.out is not None
    check_target(options.out)
    return plan_model(options, sink=sink, progress=progress, manager=manager).write(options.out)


def plan_model(
    options: CompileOptions,
    *,
    machines: Topology | None = None,
    nameless: bool = False,
    sink: DiagnosticSink | None = None,
    progress: Progress = lambda label, fraction: None,
    manager: Mapping[str, Any] | None = None,
) -> PlannedModel:
    """Plans the model for ``machines``, or for those that ``options.topology`` names; writes nothing. ``nameless``: the file of
    the model is no one's, and a build does not name it. Raises as ``compile_model``."""
    sink = sink if sink is not None else DiagnosticSink()
    if options.training.recompute == "auto":
        return as_memory_asks(
            options,
            sink,
            lambda one: plan_model(one, machines=machines, nameless=nameless, sink=sink, progress=progress, manager=manager),
        )
    clock = _Clock()  # before the imports: they are a part of what a person waits for
    from dnnc.compile.decoding import of_plan, of_tokens

    options = of_tokens(of_plan(options))
    limit = math.inf if options.time_limit is None else options.time_limit

    read: Func | None = None

    contexts = list[PassContext]()

    def planned(options: CompileOptions, choice: Choice | None = None, incumbent: Plan | None = None) -> PlannedModel:
        with clock.step("load"):
            progress("load the model", None)
            loaded = _loaded(options, machines, sink, progress, read)
            if nameless:
                loaded = replace(loaded, imported=replace(loaded.imported, source=""))
        context = pass_context(sink, progress, limit)
        context.incumbent = incumbent
        contexts.append(context)
        return _planned(loaded, context, clock, manager or {}, choice)

    def with_enough_cores(before: int) -> PlannedModel:
        """The plan, of no more workers than cores where those that share one make it slower than a single one."""
        nonlocal machines
        found = planned(options)
        if (fewer := with_a_core_each(options, found.plan)) is None:
            return found
        machines, told = None, dict(found.plan.certificate)[CORES].replace("share", "would share")
        del sink.diagnostics[before:]
        found = planned(fewer)
        return replace(found, module=found.module.replace(found.plan, noted(found.plan, **{CORES: told})))

    if options.samples is not None:
        from dnnc.compile.samples import StepOfSamples

        step = StepOfSamples(options)
        limit /= len(step.tried)
        return _of_samples(step, sink, lambda one, best: planned(one, incumbent=best), lambda: _is_interrupted(contexts[-1]))
    if AUTO not in (options.batch, options.groups):
        return with_enough_cores(len(sink.diagnostics))
    from dnnc.compile.decoding.choice import Choosing

    progress("choose batch and groups", None)
    machines = machines or _machines(options, sink, progress)
    choosing = Choosing(options, machines, partial(clock.step, "choose"))
    read = choosing.step.file
    return choosing.that_fits(sink, planned)


def _is_interrupted(context: PassContext) -> bool:
    return any(counted.get("interrupted") for counted in context.statistics.values())


def _of_samples(
    step: StepOfSamples,
    sink: DiagnosticSink,
    planned: Callable[[CompileOptions, Plan | None], PlannedModel],
    interrupted: Callable[[], bool],
) -> PlannedModel:
    """The model in as many microbatches as are best. Of the others' warnings none is told."""
    before, warned = len(sink.diagnostics), dict[int, list[Diagnostic]]()

    def heard(one: CompileOptions, incumbent: Plan | None) -> PlannedModel:
        try:
            return planned(one, incumbent)
        finally:
            warned[one.microbatches or 0] = sink.diagnostics[before:]
            del sink.diagnostics[before:]

    found, plan = step.best(heard, lambda model: model.plan, interrupted)
    sink.diagnostics.extend(warned[plan.microbatches])
    return replace(found, module=found.module.replace(found.plan, plan))


def _machines(options: CompileOptions, sink: DiagnosticSink, progress: Progress) -> Topology:
    from dnnc.machines import machines_of

    trains = asks_training(options) or bool(options.pipeline)
    return machines_of(options.topology, sink, progress, training=trains)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model and its machines. ``options``: with defaults that depend on the model, such as its loss; ``pipeline``: the passes
    that plan it and write its programs; ``given``: the arrays of ``--inputs``; ``weights``: which weights are written;
    ``note``: what the seconds of a profiled workload stand for; ``read``: a decoder without sizes (``unsized``)."""

    options: CompileOptions
    topology: Topology
    imported: ImportedModel
    module: Module
    pipeline: tuple[Pass, ...]
    given: GivenInputs | None
    weights: str
    note: str
    read: Func | None


def _loaded(
    options: CompileOptions, machines: Topology | None, sink: DiagnosticSink, progress: Progress, read: Func | None
) -> _Loaded:
    """Reads the model, and the topology where ``machines`` is None. ``read``: what ``unsized`` returned, where it is known.
    Raises DnncError for options or models that cannot be compiled."""
    from dnnc.compile.decoding import of_states, sized, unsized, with_past_checked, with_states
    from dnnc.compile.decoding.genai import of_genai
    from dnnc.compile.decoding.loading import as_step
    from dnnc.compile.given import GivenInputs
    from dnnc.compile.load import is_profiled, load_model, may_be_profile
    from dnnc.compile.ranges import of_ranges, require_least
    from dnnc.onnx.model import require_bound
    from passes.graph.folding import expand

    # Faults of options come before a long read.
    options = of_genai(of_states(of_ranges(options)))
    pipeline = () if may_be_profile(options.model) else with_states(with_programs(build_pipeline(options)), options)
    topology = machines if machines is not None else _machines(options, sink, progress)
    given = GivenInputs.read(options.inputs) if options.inputs is not None else None
    # A plan needs the sizes of the weights, not their bytes.
    bytes_needed = not options.plan_only and options.weights != "none"
    read = read or unsized(options)
    at = sized(options, read=read)
    imported = load_model(
        at.model,
        at.largest,
        sink,
        allow_missing_weights=not bytes_needed and given is None,
        arrays=given.shapes if given is not None else None,
        limits=options.limits,
        caches=options.context is not None,
    )
    if options.context is not None:
        imported = as_step(imported, options.context)
    else:
        require_least(options)
    stepping = with_past_checked(imported.module, options, pass_context(sink, progress), read)
    module, note = with_topology(expand(stepping), topology, pipeline), ""
    topology = module.first(Topology) or topology
    if profiled := is_profiled(options.model, module):
        options = of_profile(options, module)
    elif (with_loss := of_zoo(options, module.entry)) is not options:
        options, pipeline = with_loss, ()
    pipeline = pipeline or with_states(with_programs(build_pipeline(options, profiled=profiled)), options)
    if profiled:
        from dnnc.data.workloads.fitted import fitted

        learns = any(objective_of(getattr(step, "objective", THROUGHPUT.name)).trains for step in pipeline)
        module, note = fitted(module, topology, training=learns, sink=sink, where=options.model)
    if any(step.name == "differentiate" for step in pipeline):
        require_loss(options.training, module.entry)
        require_engine()
    weights = _available_weights(module, options, sink)
    require_bound(module, options.model)
    if not options.plan_only:
        progress("digest the model", None)
        imported.files.digests()  # before its weights are read
    return _Loaded(options, topology, imported, module, pipeline, given, weights, note, read)


def _planned(
    loaded: _Loaded, context: PassContext, clock: _Clock, manager: Mapping[str, Any], choice: Choice | None = None
) -> PlannedModel:
    """The model after the passes that plan it. The certificate of its plan says how it was found. ``choice``: how a decoder's
    batch and groups were."""
    from dnnc.compile.witness import proven, with_witness
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import pipeline_text
    from passes.framework.refused import within_memory
    from passes.graph.folding import expand

    options, topology, sink = loaded.options, loaded.topology, context.sink

    def passed(name: str, seconds: float) -> None:
        clock.add(name, seconds)
        if name in PLANNERS:
            counted = context.statistics.get(name, {})
            clock.add("search", float(counted.get("seconds", 0.0)) - float(counted.get("build", 0.0)))

    if loaded.given is not None:
        context.measure = loaded.given.measuring(loaded.imported, partial(clock.step, "measure"))
    if options.profile:
        context.profile = _profile(options.profile, training=trains(loaded.pipeline))
    pipeline, searched = loaded.pipeline, ""
    if options.search == TAG:
        pipeline, searched = _by_tag(pipeline, loaded.module, context, options, clock)

    def passes(steps: Sequence[Pass], **more: Any) -> PassManager:
        return PassManager(steps, on_pass=passed, **manager, **{"expanded": True, **more})

    done = next((number for number, step in enumerate(pipeline) if step.name in PROGRAM_PASSES), len(pipeline))
    at = next((number for number, step in enumerate(pipeline[:done]) if step.name in PLANNERS), done)
    module = passes(pipeline, stop_after=at, expanded=False).run(loaded.module, context)
    if differentiates_behind(pipeline, at):
        from passes.differentiate import require_gradients

        require_gradients(expand(module), context.bodies)
    if at < done:
        search = passes(pipeline, start_after=at, stop_after=at + 1).run
        module = within_memory(module, context, search, passes(pipeline, start_after=at + 1, stop_after=done).run)
    module = expand(module)
    clock.add("search", 0.0)  # a replayed plan needs none
    plan = module.first(Plan)
    if plan is None:
        raise UsageError(PipelineWithoutPlan(pipeline_text(pipeline)))
    if any(counted.get("cut") for counted in context.statistics.values()) and plan.status != "optimal":
        warn_of_cut(sink, options.time_limit)
    schedule = module.first(Schedule)
    if options.training.recompute == "stage" and schedule is not None and not saves_by_recomputing(schedule):
        sink.warn(NothingSaved(), where="--recompute stage")
    if options.training.no_decay and not decays(module, options.training):
        sink.warn(NothingDecays(), where="--no-decay")
    update = update_text(module)
    meshes = sets_of_devices(pipeline, topology)
    told = noted(plan, profile=loaded.note, seconds=origins(context), meshes=meshes, plan=searched, update=update)
    certified = with_callers(with_restrictions(told, restrictions(options, topology), topology), topology)
    certified = with_uncounted(with_cores(certified, options.topology), module, topology)
    prompt = None
    if options.context is not None:
        from dnnc.compile.decoding import prompt_of
        from dnnc.compile.decoding.choice import with_choice
        from dnnc.compile.decoding.told import with_tokens

        prompt = prompt_of(module, options, pipeline, context, loaded.read)
        certified = with_choice(with_tokens(certified, module, options, prompt, choice), choice)
    certified = with_witness(certified, module, topology, *proven(plan, pipeline, context))
    module = module.replace(plan, certified)
    return PlannedModel(options, topology, module, pipeline, done, context, prompt, loaded, passes, clock)


def sets_of_devices(pipeline: Sequence[Pass], topology: Topology) -> str:
    """As of the pass ``partition`` of the pipeline; empty without it."""
    return next((str(step.sets_of_devices(topology)) for step in pipeline if hasattr(step, "sets_of_devices")), "")


def _written(
    loaded: _Loaded,
    module: Module,
    prompt: Module | None,
    genai: GenaiPipeline | None,
    out: Path,
    pipeline: tuple[Pass, ...],
    context: PassContext,
    clock: _Clock,
) -> Mapping[str, Any]:
    """Writes the plan, or the build. ``prompt``: the stages of the prompt program. Returns the manifest."""
    from dnnc.engines.onnxruntime.write import write_build, write_plan
    from passes.framework.pipeline import made_by

    options, imported = loaded.options, loaded.imported
    if options.plan_only:
        return write_plan(module, out, made_by(pipeline), report=options.report)
    plan = module.first(Plan)
    if plan is not None and plan.minimises.trains:
        from dnnc.engines.torch.write.build import write_training_build

        return write_training_build(
            module,
            imported.files,
            imported.source,
            out,
            progress=context.progress,
            made_by=made_by(pipeline),
            report=options.report,
        )

    def tested(models: Iterable[Path]) -> None:
        from dnnc.engines.onnxruntime.write.load_test import load_test

        with clock.step("load-test"):
            load_test(models, partial(_node_of, module), partial(_provider_of, module))

    manifest = write_build(
        module,
        imported.files,
        imported.source,
        out,
        weights=loaded.weights,
        progress=context.progress,
        test=tested if options.load_test else None,
        made_by=made_by(pipeline),
        inputs=loaded.given.kept(imported) if loaded.given is not None else None,
        report=options.report,
        prompt=prompt,
        opened=genai.module if genai is not None else None,
        beside=genai.files if genai is not None else {},
    )
    if any(mesh.shares for mesh in module.of_type(Mesh)):
        context.sink.warn(SharesNotAnnotated(), where="annotated.onnx")
    return manifest


def _by_tag(
    pipeline: tuple[Pass, ...], module: Module, context: PassContext, options: CompileOptions, clock: _Clock
) -> tuple[tuple[Pass, ...], str]:
    """The pipeline that replays the plan of TAG's search, and a text of how it was found."""
    from dnnc.search_tag import TagOptions, tag_plan

    with clock.step("search"):
        asked = TagOptions(options.prior, options.iterations, options.microbatches or 1)
        planned = tag_plan(pipeline, module, context, asked)
    return planned.pipeline, planned.text


def _profile(paths: Sequence[Path], *, training: bool) -> Profile:
    """The entries of all profiles. Raises InvalidInput, and UsageError if none of them is of what is planned."""
    from dnnc.machines.profile import read_profile

    first, *others = paths
    file = read_profile(first)
    for path in others:
        file = file.joined(read_profile(path), str(path))
    profile = file.profile(training=training)
    if not profile.fits:
        fault = ProfileOfInference(str(first)) if training else ProfileOfTraining(str(first))
        raise UsageError(fault, where=str(first))
    return profile


def _node_of(module: Module, operator: str) -> str:
    """The first node of an ONNX operator; empty if it occurs only inside a branch."""
    return next((op.location.node or op.id for op in module.entry.ops if op.name == f"onnx.{operator}"), "")


def _provider_of(module: Module, stage: int, member: int) -> Provider:
    """The execution provider of a member of a stage, member 0 where the stage is one model."""
    topology, plan = module.first(Topology), module.first(Plan)
    assert topology is not None
    assert plan is not None
    return Provider.of(topology, plan.stages[stage].devices[member]) or ON_CPU


def _explained(module: Module) -> Explanation:
    from passes.partition.alternatives import alternatives
    from passes.plan.layers import layers, typical_block

    all_layers = layers(module)
    return Explanation(all_layers, typical_block(all_layers), alternatives(module))


def _available_weights(module: Module, options: CompileOptions, sink: DiagnosticSink) -> str:
    """Which weights are written: none, with a warning, if the model only declares them."""
    if options.plan_only or not any(isinstance(resource.data, Declared) for resource in module.of_type(Resource)):
        return options.weights
    if options.weights != "none":
        sink.warn(NoWeightsOfZoo() if options.model.startswith("zoo:") else NoWeights(), where=options.model)
    return "none"
