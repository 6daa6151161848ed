"""``dnnc check``: do the stages compute what the unsplit model computes?

The unsplit model runs once, with every cut tensor as an additional output. With a cluster, the build then runs there, and its
outputs are compared. Else each stage runs twice in this process, in the order of the schedule: *alone*, on the values of the
unsplit model, so that its own errors show; and *chained*, on the results of the stages before it, as in a run. If both inputs
are equal, it runs once. One session is open at a time, and a value is dropped after its last reader, so a check needs little
more memory than the unsplit model.

A passed check proves that, on these inputs, each compared tensor equals that of the unsplit model within its tolerance. It
proves nothing about other inputs, about tensors that were left out (the report names them), or, without a cluster, about how
processes exchange values. If the original model is gone, the reference is the build's own copy, and the check misses faults
that both share.

States of a recurrent model are random values that each stage gets in a step, and what they become is compared as outputs are.

A difference that the precision of the type does not explain is compared with the effect of rounding on this model
(``noise.py``). To measure that takes several runs of the model; plain 32-bit models do not need it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.build.build import Build, StageProgram, ValueInfo
from dnnc.build.decoding import State
from dnnc.build.members import MemberProgram, Part, matches
from dnnc.check.compare import EXACT, Difference, Precision, compare, compare_part, roundings_of
from dnnc.check.dataflow import precisions, random_values
from dnnc.check.faults import BuildWithoutWeights, PromptsAreDrawn, StageDoesNotRun
from dnnc.check.locate import first_wrong
from dnnc.check.lockstep import Border, MemberError, borders, fed, run_members
from dnnc.check.noise import QUIET, Meter, Noise
from dnnc.check.unsplit import Unsplit, one_line, read_by
from dnnc.check.verdict import CheckReport, Comparison, judge
from dnnc.data.generate import random_microbatch
from dnnc.data.inputs import drawn, read_inputs, split_microbatches
from dnnc.engines.hosts.options import ClusterOptions
from dnnc.engines.onnxruntime.errors import failure_for, machine_hint
from dnnc.engines.onnxruntime.run import running
from dnnc.engines.onnxruntime.session.needs import executor_of, require_providers
from dnnc.engines.onnxruntime.session.session import require_used
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.engines.onnxruntime.transport.wiring import output_specs
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.core.module import Module
from ir.core.types import DType, TensorType
from ir.ops.rows import COMPUTE, walk
from ir.system.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """``inputs``: arrays by input name, or a file of them. Without them, the check takes the arrays that the build was compiled
    with, or ``samples`` random ones if there is a ``seed``, if ``samples`` > 1, or if the build has no arrays. ``threads``: of
    onnxruntime; ``optimize``: whether onnxruntime optimises graphs, as in a run. ``tolerance``: the largest difference that
    passes, in place of the one derived from types and rounding: a share of the tensor's range, or of its elements if these are
    compared for equality. ``cluster``: compare the outputs of a run there, in place of what each stage computes here."""

    inputs: Path | Mapping[str, Any] | None = None
    seed: int | None = None
    samples: int = 1
    threads: int = 1
    optimize: bool = True
    tolerance: float | None = None
    cluster: ClusterOptions | None = None


def check_build(
    build: Build | Path | str,
    options: CheckOptions | None = None,
    *,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
    warn: Callable[[Diagnostic], None] = lambda diagnostic: None,
) -> CheckReport:
    """Compares the stages of a build with the unsplit model. ``warn`` gets what is known of the cluster before the run. Raises
    InvalidInput for inputs that the model does not take and for what is wrong with the cluster, UsageError for inputs or
    samples of a build that answers prompts, RuntimeFailure when a stage cannot run. ``CheckReport.error()`` is the error of a
    failed check."""
    start = time.perf_counter()
    build = build if isinstance(build, Build) else Build.open(build, progress)
    options = options or CheckOptions()
    if build.weights == "none":
        raise InvalidInput(BuildWithoutWeights(), where=str(build.folder))
    if options.cluster is None:
        require_providers(build)
    if build.decoding is not None and build.decoding.generates:
        from dnnc.check.tokens import check_tokens

        for flag, given in (("--inputs", options.inputs is not None), ("--samples", options.samples > 1)):
            if given:
                raise UsageError(PromptsAreDrawn(), where=flag)
        settings = RunOptions(threads=options.threads, optimize=options.optimize)
        return check_tokens(build, settings, options.tolerance, options.seed or 0, progress, options.cluster, warn)
    module = build.program()
    random_inputs = False
    if options.inputs is None:
        several = options.samples > 1 and options.seed is None
        drawn_samples, random_inputs = drawn(build, options.samples, 0 if several else options.seed, module)
        samples = tuple(drawn_samples)
    elif isinstance(options.inputs, Path):
        samples = tuple(read_inputs(options.inputs, build.inputs, constants=build.constants).items)
    else:
        samples = tuple(split_microbatches(build.inputs, options.inputs, where="inputs", constants=build.constants).items)
    if options.cluster is None:
        build, samples = _with_states(build), tuple(_with_random_states(build, samples, options.seed or 0))
    feeds = [{name: from_user(value) for name, value in sample.items()} for sample in samples]
    progress("run the unsplit model", None)
    with scratch_folder() as scratch:
        unsplit = Unsplit(build, feeds, options.threads, options.optimize, precisions(module), scratch)
        expected = unsplit.values()
        tainted, random = random_values(module)
        state = _State(build, module, options, feeds, expected, unsplit, tainted)
        if options.cluster is not None:
            progress("run on the cluster", None)
            settings = RunOptions(threads=options.threads, optimize=options.optimize)
            with running(build, settings, options.cluster, warn) as pipeline:
                state.check_outputs(pipeline.run(samples, events=False).outputs)
        order = [action.stage for action in walk(build.schedule, build.flow, 1) if action.kind == COMPUTE]
        for number, index in enumerate(order if options.cluster is None else ()):
            progress(f"check stage {index}", number / len(order))
            state.check_stage(index)
    build.files.confirm()
    return CheckReport(
        build.folder,
        " and ".join(unsplit.titles),
        bool(unsplit.from_original),
        len(samples),
        random_inputs,
        tuple(sorted(state.comparisons, key=lambda comparison: comparison.stage)),
        random,
        tuple(unsplit.notes),
        time.perf_counter() - start,
    )


def _with_states(build: Build) -> Build:
    """The build whose states are inputs and outputs of their stages and of the model again, as in its ONNX files; unchanged
    without states."""
    states = build.decoding.states if build.decoding is not None else ()
    stages = tuple(
        replace(
            stage,
            members=tuple(_member_with_states(member, states, stage.index) for member in stage.members),
            inputs=(*stage.inputs, *_ports(state for state in states if state.stage == stage.index)),
            outputs=(*stage.outputs, *_ports((state for state in states if state.stage == stage.index), after=True)),
        )
        for stage in build.stages
    )
    inputs, outputs = (*build.inputs, *_ports(states)), (*build.outputs, *_ports(states, after=True))
    return replace(build, inputs=inputs, outputs=outputs, stages=stages)


def _member_with_states(member: MemberProgram, states: Iterable[State], stage: int) -> MemberProgram:
    """The member, at which its part of each state of its stage arrives, and leaves as what the state becomes."""
    boxes = {part.name: part.box for part in member.states}
    arriving = (Part(state.name, state.name, boxes.get(state.result, ())) for state in states if state.stage == stage)
    return replace(member, receives=(*member.receives, *arriving), outputs=(*member.outputs, *member.states))


def _with_random_states(build: Build, samples: Sequence[Mapping[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The samples, each with random states beside its inputs."""
    states = build.decoding.states if build.decoding is not None else ()
    return [{**sample, **random_microbatch(_ports(states), {}, seed + number)} for number, sample in enumerate(samples)]


def _ports(states: Iterable[State], *, after: bool = False) -> tuple[ValueInfo, ...]:
    """States as inputs, or ``after`` the step as outputs."""
    named = ((state.result if after else state.name, TensorType(DType(state.dtype), state.shape)) for state in states)
    return tuple(ValueInfo.of(name, type_) for name, type_ in named if name)


@dataclass(slots=True)
class _State:
    """State of a check while it goes through the stages: for each sample, expected values and those of the chain of stages."""

    build: Build
    module: Module
    options: CheckOptions
    feeds: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    unsplit: Unsplit
    tainted: frozenset[str]
    chain: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    parts: list[dict[int, list[Any]]] = field(default_factory=list)  # by channel: parts that members of a mesh sent
    at_fault: dict[str, set[int]] = field(default_factory=dict)  # by tensor: members of this stage whose part is wrong
    meter: Meter | None = None  # noise of the current stage, if it was measured
    device: str = ""  # that whose program runs

    def __post_init__(self) -> None:
        self.chain = [dict(sample) for sample in self.feeds]
        self.parts = [{} for _ in self.feeds]

    @property
    def comparisons_pass(self) -> bool:
        """Whether no tensor has diverged so far. Only the first one that diverges is examined more closely."""
        return all(comparison.verdict != "diverges" for comparison in self.comparisons)

    def check_outputs(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Compares the outputs of a run, by sample."""
        for stage in self.build.stages:
            for port in stage.outputs:
                name, differences = port.name, dict[str, list[Difference]]()
                for expected, outputs in zip(self.expected, results, strict=True):
                    value = {name: from_user(outputs[name])}
                    _collect(differences, expected, value, self.unsplit.precisions, self._rounded(stage))
                place = (name, stage.index, stage.device, "output", port.type)
                if name in self.tainted or name not in differences:
                    verdict = "random" if name in self.tainted else "unnamed"
                    self.comparisons.append(Comparison(*place, None, None, 0.0, 0.0, verdict))
                    continue
                worst, noise = max(differences[name], key=lambda d: (not d.ok, d.value)), QUIET
                if worst.ok and not any(d.elements for d in differences[name]):
                    self.comparisons.append(Comparison(*place, None, None, 0.0, 0.0, "empty"))
                    continue
                if self.options.tolerance is None and not worst.ok:
                    noise = _explain(worst, name, self.unsplit.whole_meter(name), QUIET)
                judged = judge(worst, noise, self.options.tolerance)
                original, of_chain = name in self.unsplit.from_original, (judged.verdict, judged.reason, (QUIET, noise))
                self.comparisons.append(Comparison(*place, None, judged.value, 0.0, judged.allowed, *of_chain, original))

    def check_stage(self, index: int) -> None:
        stage = self.build.stages[index]
        self.device = stage.device
        specs = tuple(ValueSpec(spec.name, spec.element) for spec in output_specs(self.build, index))
        alone: dict[str, list[Difference]] = {}
        chained: dict[str, list[Difference]] = {}
        try:
            if stage.members:
                self._run_members(stage, alone, chained)
            else:
                self._run_model(stage, specs, alone, chained)
        except Exception as error:  # of onnxruntime; the message names the stage as a run does
            member = f" member {error.member} on {stage.devices[error.member]}" if isinstance(error, MemberError) else ""
            said = one_line(error) or type(error).__name__  # a MemoryError has no text
            raise failure_for(f"{type(error).__name__}: {error}")(
                StageDoesNotRun(said, machine_hint(said)), where=f"stage {index}{member or f' on {self.device}'}"
            ) from error
        outputs = {port.name: port.type for port in stage.outputs}
        types = {**{channel.tensor: channel.type for channel in stage.sends}, **outputs}
        for spec in specs:
            self.comparisons.append(self._comparison(index, spec.name, types[spec.name], spec.name in outputs, alone, chained))
        self.at_fault, self.meter = {}, None
        self._drop(index)

    def _run_model(
        self,
        stage: StageProgram,
        specs: tuple[ValueSpec, ...],
        alone: dict[str, list[Difference]],
        chained: dict[str, list[Difference]],
    ) -> None:
        """Runs a stage that is one model, and collects the differences of its outputs. Where replicas have several execution
        providers it runs alone with each of them, and in the chain with that of the first."""
        model, weights = self.build.model(stage.model or "")
        provided = {self.build.provider(device).name: device for device in reversed(stage.devices)}
        programs = []
        for self.device in (*(other for other in provided.values() if other != stage.device), stage.device):
            executor = executor_of(self.build, self.device, self.options.threads, self.options.optimize)
            programs.append(executor.load(model, specs, weights))
            require_used(programs[-1:], self.build.provider(self.device).name)
        *others, program = programs
        for sample, expected, chain in zip(self.feeds, self.expected, self.chain, strict=True):
            right = {name: expected.get(name, sample.get(name, chain.get(name))) for name in program.input_names}
            real = {name: chain[name] for name in program.input_names}
            for other in others:
                _collect(alone, expected, other.run(right), self.unsplit.precisions, 0)
            results = program.run(right)
            _collect(alone, expected, results, self.unsplit.precisions, 0)
            if not all(_same(right[name], real[name]) for name in right):
                results = program.run(real)
            _collect(chained, expected, results, self.unsplit.precisions, self._rounded(stage))
            chain.update(results)

    def _run_members(
        self, stage: StageProgram, alone: dict[str, list[Difference]], chained: dict[str, list[Difference]]
    ) -> None:
        """Runs a stage on a mesh, and collects the differences of what its members compute."""
        leaving = borders(stage)
        cases: list[list[dict[str, Any]]] = []
        which: list[tuple[int, int]] = []  # of each sample the cases that it runs alone and in the chain
        for sample, expected, chain, parts in zip(self.feeds, self.expected, self.chain, self.parts, strict=True):
            right = [fed(member, {**chain, **sample, **expected}) for member in stage.members]
            real = [
                fed(member, chain, {channel: of_member[number] for channel, of_member in parts.items()})
                for number, member in enumerate(stage.members)
            ]
            cases.append(right)
            equal = all(_same(a[name], b[name]) for a, b in zip(right, real, strict=True) for name in a)
            which.append((len(cases) - 1, len(cases) - 1 if equal else len(cases)))
            if not equal:
                cases.append(real)
        results = run_members(self.build, stage, cases, threads=self.options.threads, optimize=self.options.optimize)
        for (first, second), expected, chain, parts in zip(which, self.expected, self.chain, self.parts, strict=True):
            for border in leaving:
                own = roundings_of(stage.collectives)
                for into, values, rounded in ((alone, results[first], own), (chained, results[second], self._rounded(stage))):
                    whole = border.whole(values)
                    _collect(into, expected, {border.name: whole}, self.unsplit.precisions, rounded)
                    if border.name in expected:
                        self._find_members(border, values, expected[border.name], into[border.name], rounded)
                    chain[border.name] = whole
                if border.channel >= 0 and _as_it_lies(self.build, stage, border.channel):
                    parts[border.channel] = [m[p.value] for m, p in zip(results[second], border.parts, strict=True)]

    def _find_members(
        self, border: Border, values: Sequence[dict[str, Any]], expected: Any, differences: list[Difference], rounded: int
    ) -> None:
        """Records the members whose part of a tensor differs from the unsplit model. The assembled tensor may be right
        nevertheless, since it does not use every part; such a difference is added to ``differences``."""
        right = differences[-1].ok
        for number, part, value in border.of_members(values):
            if not isinstance(expected, Raw) or not isinstance(value, Raw):
                continue
            difference = compare_part(expected, part.box, value, self.unsplit.precisions.get(border.name, EXACT), rounded)
            if not difference.ok:
                self.at_fault.setdefault(border.name, set()).add(number)
                if right:
                    differences.append(difference)

    def _rounded(self, stage: StageProgram) -> int:
        """How often a value of the chain was rounded to 16 bits up to the end of this stage, at most: in every collective so
        far, and once at every border between stages."""
        before = self.build.stages[: stage.index]
        return stage.index + sum(roundings_of(one.collectives) for one in (*before, stage))

    def _comparison(
        self,
        index: int,
        name: str,
        type_: str,
        output: bool,
        alone: Mapping[str, list[Difference]],
        chained: Mapping[str, list[Difference]],
    ) -> Comparison:
        stage = self.build.stages[index]
        place = (name, index, stage.device, "output" if output else "cut", type_)
        if name in self.tainted or name not in alone:
            return Comparison(*place, None, None, 0.0, 0.0, "random" if name in self.tainted else "unnamed")
        worst = [max(differences[name], key=lambda d: (not d.ok, d.value)) for differences in (alone, chained)]
        if not any(d.elements for d in alone[name]) and all(d.ok for d in worst):
            return Comparison(*place, None, None, 0.0, 0.0, "empty")
        noise = self._noise(stage, name, worst)
        judged = [judge(d, floor, self.options.tolerance) for d, floor in zip(worst, noise, strict=True)]
        verdict = next((v for v in ("diverges", "unstable") if any(j.verdict == v for j in judged)), "ok")
        if verdict == "unstable" and judged[0].verdict == "ok":
            verdict = "ok"  # right on right inputs; only the differences that it inherits exceed the cap
        reason = next((j.reason for j in judged if j.verdict == verdict and j.reason), "")
        members, origin = self.at_fault.get(name, set()) if verdict == "diverges" else set(), ""
        if stage.members and verdict == judged[0].verdict == "diverges" and self.comparisons_pass:
            origin, members = self._look_inside(stage, judged[0].allowed, members)
        alone_judged, chained_judged = judged
        return Comparison(
            *place,
            alone_judged.value,
            chained_judged.value,
            alone_judged.allowed,
            chained_judged.allowed,
            verdict,
            reason,
            noise,
            name in self.unsplit.from_original,
            origin,
            tuple((number, stage.devices[number]) for number in sorted(members)),
        )

    def _noise(self, stage: StageProgram, name: str, worst: Sequence[Difference]) -> tuple[Noise, Noise]:
        """Noise floors of a tensor, alone and chained. Measured only if its type does not explain the difference."""
        alone, chained = worst
        if self.options.tolerance is not None or (alone.ok and chained.ok):
            return QUIET, QUIET
        own = QUIET
        if not alone.ok:
            if self.meter is None:
                self.meter = self.unsplit.part_meter(stage, self._right_inputs(stage), self.expected)
            own = _explain(alone, name, self.meter or self.unsplit.whole_meter(name), QUIET)
        if judge(chained, own).verdict == "ok":
            return own, own
        return own, _explain(chained, name, self.unsplit.whole_meter(name), own)

    def _right_inputs(self, stage: StageProgram) -> list[dict[str, Any]]:
        """For each sample, the inputs of a stage with the values of the unsplit model."""
        return [
            {name: expected.get(name, sample.get(name, chain.get(name))) for name in read_by(stage)}
            for sample, expected, chain in zip(self.feeds, self.expected, self.chain, strict=True)
        ]

    def _look_inside(self, stage: StageProgram, allowed: float, members: set[int]) -> tuple[str, set[int]]:
        """The first value inside a stage on a mesh that differs, and the members whose part of it is wrong."""
        wrong = first_wrong(
            self.build,
            self.module,
            stage,
            self.feeds[0],
            self.expected[0],
            self.unsplit.precisions,
            allowed,
            self.options.threads,
        )
        if wrong is None:
            return "", members
        return wrong.value, members if len(members) == 1 else set(wrong.members)

    def _drop(self, index: int) -> None:
        """Drops the values that no later stage reads."""
        later = {channel.tensor for stage in self.build.stages[index + 1 :] for channel in stage.receives}
        later |= {port.name for port in self.build.inputs}
        unchecked = {spec.name for i in range(index + 1, len(self.build.stages)) for spec in output_specs(self.build, i)}
        for chain, expected in zip(self.chain, self.expected, strict=True):
            for name in chain.keys() - later:
                del chain[name]
            for name in expected.keys() - later - unchecked:
                del expected[name]


def _explain(difference: Difference, name: str, meter: Meter | None, noise: Noise) -> Noise:
    """Noise floor of a value, at least ``noise``. Measures until the floor explains the difference or no variant is left."""
    while judge(difference, noise).verdict != "ok" and meter is not None:
        noise |= meter.floors.get(name, QUIET)
        if judge(difference, noise).verdict == "ok" or not meter.more():
            break
    return noise


def _collect(
    into: dict[str, list[Difference]],
    expected: Mapping[str, Any],
    results: Mapping[str, Any],
    precisions: Mapping[str, Precision],
    roundings: int,
) -> None:
    for name, value in results.items():
        if name in expected:
            into.setdefault(name, []).append(compare(expected[name], value, precisions.get(name, EXACT), roundings))


def _as_it_lies(build: Build, maker: StageProgram, channel: int) -> bool:
    """Whether the members of the sending stage send their parts unchanged: both stages have the same mesh axes."""
    reader = next(build.stages[c.target] for c in maker.sends if c.id == channel)
    return bool(reader.members) and matches(maker.axes, reader.axes)


def _same(left: Any, right: Any) -> bool:
    """Whether two values have the same bits; False if that is unknown."""
    if left is right:
        return True
    if isinstance(left, Raw) and isinstance(right, Raw):
        if left.element != right.element or left.shape != right.shape:
            return False
        return (
            left.data.tobytes() == right.data.tobytes() if left.data.size < 64 else bool(np.array_equal(left.data, right.data))
        )
    return False
