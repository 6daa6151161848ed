"""``dnnc check``: do the stages compute what the unsplit model computes?

The unsplit model runs once with every cut tensor as a further output. Then each stage runs twice, alone in this process: on the
reference's own values (*alone*: one wrong stage is told from the errors it inherits) and on what the stages before it made
(*chained*: what a run would give). Where both are the same values, once is enough. One session is open at a time, and values
are dropped after their last reader, so a check needs little more memory than the unsplit model.

What is random (and whatever depends on it) is named and left out.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.backend.build import Build, StageProgram, read_program
from dnnc.backend.members import matches
from dnnc.runtime.codec import Raw, from_user
from dnnc.runtime.compare import Difference, compare, compare_part, roundings_of
from dnnc.runtime.edges import ValueSpec
from dnnc.runtime.errors import REFUSED_HINT, RuntimeFailure, refusal
from dnnc.runtime.generate import all_ops, random_inputs
from dnnc.runtime.inputs import read_npz, split_microbatches
from dnnc.runtime.locate import first_wrong
from dnnc.runtime.lockstep import Border, MemberError, borders, fed, run_members
from dnnc.runtime.program import Program
from dnnc.runtime.wiring import output_specs
from ir.diagnostics import CheckFailed, Diagnostic, InvalidInput
from ir.module import Module, Resource, Splat
from ir.ops import Op, Region

RANDOM_OPS = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QAttention", "QGemm", "MatMulNBits", "DynamicQuantize")
"""Names, or beginnings of names, of ops that round to few bits."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """``inputs``: a file of arrays, random ones without; ``samples``: how many random microbatches; ``threads``: of
    onnxruntime; ``optimize``: its graph optimisations, as a run has them."""

    inputs: Path | None = None
    seed: int = 0
    samples: int = 1
    threads: int = 1
    optimize: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor that leaves a stage. ``kind``: ``cut`` or ``output``. ``alone`` and ``chained``: differences from the unsplit
    model (None: not compared); ``allowed`` and ``allowed_chained``: the largest that pass. ``verdict``: ``ok``,
    ``diverges``, ``random`` or ``unnamed`` (the unsplit model has no value of this name). ``members``: of a stage on a mesh,
    number and device of those whose part is wrong, where that can be told; ``origin``: the first
    value inside the stage that differs, where its members were looked at more closely."""

    tensor: str
    stage: int
    device: str
    kind: str
    type: str
    alone: float | None
    chained: float | None
    allowed: float
    allowed_chained: float
    verdict: str
    reason: str = ""
    origin: str = ""
    members: tuple[tuple[int, str], ...] = ()

    @property
    def place(self) -> str:
        """The stage, and the members at fault."""
        if not self.members:
            return f"stage {self.stage} on {self.device}"
        several = "members" if len(self.members) > 1 else "member"
        return f"stage {self.stage} {several} {', '.join(f'{number} on {device}' for number, device in self.members)}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All comparisons, in stage order. ``reference``: what was compared with; ``random``: random ops that were left out."""

    build: Path
    reference: str
    original: bool
    samples: int
    random_inputs: bool
    comparisons: tuple[Comparison, ...]
    random: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return all(c.verdict != "diverges" for c in self.comparisons)

    @property
    def first(self) -> Comparison | None:
        """The first tensor that diverges: of the first stage that is wrong on right inputs, else of the first wrong in the
        chain."""
        wrong = [c for c in self.comparisons if c.verdict == "diverges"]
        alone = [c for c in wrong if c.alone is not None and c.alone > c.allowed]
        return next(iter(alone or wrong), None)

    def error(self) -> CheckFailed | None:
        """What to raise when the check failed."""
        first = self.first
        if first is None:
            return None
        wrong_alone = first.alone is not None and first.alone > first.allowed
        value, allowed = (first.alone, first.allowed) if wrong_alone else (first.chained, first.allowed_chained)
        how = "on the inputs that the unsplit model gives it" if wrong_alone else "only in the chain: small differences add up"
        inside = f"; the first value that differs inside it is '{first.origin}'" if first.origin else ""
        found = first.reason or f"largest difference over the range {value:.3g}, allowed {allowed:.3g}"
        return CheckFailed(
            Diagnostic(
                f"stage {first.stage} is the first that diverges, at {first.kind} '{first.tensor}' ({first.type}): {found}; "
                f"{how}{inside}",
                where=first.place,
                hint="compile the model again; if that does not help, 'dnnc check --json' lists every tensor for a report",
            )
        )

    def to_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "schema": "dnnc.check/1",
            "build": str(self.build),
            "passed": self.passed,
            "reference": self.reference,
            "original": self.original,
            "inputs": "random" if self.random_inputs else "given",
            "samples": self.samples,
            "first_diverging_stage": None if first is None else first.stage,
            "comparisons": [
                {
                    "tensor": c.tensor,
                    "stage": c.stage,
                    "device": c.device,
                    "kind": c.kind,
                    "type": c.type,
                    "alone": _number(c.alone),
                    "chained": _number(c.chained),
                    "allowed": c.allowed,
                    "allowed_chained": c.allowed_chained,
                    "verdict": c.verdict,
                    "reason": c.reason,
                    **({"members": [{"member": n, "device": d} for n, d in c.members]} if c.members else {}),
                    **({"origin": c.origin} if c.origin else {}),
                }
                for c in self.comparisons
            ],
            "random_ops": list(self.random),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if value is not None and math.isinf(value) else value


def check_build(
    build: Build | Path | str,
    options: CheckOptions | None = None,
    *,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> CheckReport:
    """Compares the stages of a build with the unsplit model. Raises InvalidInput for inputs that the model does not take,
    RuntimeFailure when the model or a stage cannot run; ``CheckReport.error()`` is what a failed check is worth."""
    start = time.perf_counter()
    build = build if isinstance(build, Build) else Build.open(build)
    options = options or CheckOptions()
    if build.weights == "none":
        raise InvalidInput(
            "this build was written without weights, so it cannot be checked",
            where=str(build.folder),
            hint="compile it again with weights",
        )
    module = read_program(build.folder)
    if options.inputs is None:
        samples = tuple(random_inputs(build, seed=options.seed + i, module=module) for i in range(options.samples))
    else:
        samples = split_microbatches(build.inputs, read_npz(options.inputs), where=str(options.inputs)).items
    feeds = [{name: from_user(value) for name, value in sample.items()} for sample in samples]
    progress("run the unsplit model", None)
    expected, titles, original, notes = _reference_values(build, feeds, options)
    tainted, random = random_values(module)
    state = _State(build, module, options, feeds, expected, tainted, quantised_values(module))
    for index in range(len(build.stages)):
        progress(f"check stage {index}", index / len(build.stages))
        state.check_stage(index)
    return CheckReport(
        build.folder,
        titles,
        original,
        len(samples),
        options.inputs is None,
        tuple(state.comparisons),
        random,
        tuple(notes),
        time.perf_counter() - start,
    )


_INPUTS = "where random inputs are not what the model accepts, give some: --inputs FILE.npz"


def _reference_values(
    build: Build, feeds: list[dict[str, Any]], options: CheckOptions
) -> tuple[list[dict[str, Any]], str, bool, list[str]]:
    """Per sample the values of all cut tensors and outputs in the unsplit model; what that is; notes for the person."""
    from dnnc.backend.reference import references

    specs = {spec.name: spec for index in range(len(build.stages)) for spec in output_specs(build, index)}
    values: list[dict[str, Any]] = [{} for _ in feeds]
    titles: list[str] = []
    notes: list[str] = []
    original = False
    with tempfile.TemporaryDirectory(prefix="dnnc-check-") as scratch:
        for reference in references(build, specs, Path(scratch)):
            wanted = tuple(spec for name, spec in specs.items() if name in reference.present and name not in values[0])
            if not wanted:
                break
            plain = tuple(ValueSpec(spec.name, spec.element) for spec in wanted)
            try:
                program = Program(
                    reference.model, plain, threads=options.threads, optimize=options.optimize, folder=reference.folder
                )
                for sample, found in zip(feeds, values, strict=True):
                    found.update(program.run(_pick(program, sample, reference.title)))
            except InvalidInput:
                raise
            except Exception as error:  # whatever onnxruntime raises; the next reference may do
                notes.append(f"{reference.title} does not run: {_one_line(error)}")
                continue
            titles.append(reference.title)
            original |= reference.original
            if len(values[0]) == len(specs):
                break
    if not titles:
        if reason := refusal(" ".join(notes)):
            message = f"the model cannot be run, so there is nothing to compare: {reason}"
            raise InvalidInput(message, where=str(build.folder), hint=REFUSED_HINT)
        raise RuntimeFailure(
            "the unsplit model does not run, so there is nothing to compare with:\n  " + "\n  ".join(notes), hint=_INPUTS
        )
    if not original:
        notes.append("the original model is gone, has changed or does not open: compared with annotated.onnx instead")
    elif len(titles) > 1:
        notes.append("values that the original does not name were compared with annotated.onnx")
    return values, " and ".join(titles), original, notes


def _pick(program: Program, feeds: Mapping[str, Any], title: str) -> dict[str, Any]:
    missing = [name for name in program.input_names if name not in feeds]
    if missing:
        raise InvalidInput(f"{title} has an input '{missing[0]}' that the build does not know", hint="compile the model again")
    return {name: feeds[name] for name in program.input_names}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


@dataclass(slots=True)
class _State:
    """What a check knows while it walks over the stages: values per sample, expected and as the chain of stages makes them."""

    build: Build
    module: Module
    options: CheckOptions
    feeds: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    tainted: frozenset[str]
    quantised: frozenset[str]
    chain: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    parts: list[dict[int, list[Any]]] = field(default_factory=list)  # by channel, as the members of a mesh made them
    at_fault: dict[str, set[int]] = field(default_factory=dict)  # members whose part is wrong, by tensor, in this stage

    def __post_init__(self) -> None:
        self.chain = [dict(sample) for sample in self.feeds]
        self.parts = [{} for _ in self.feeds]

    @property
    def comparisons_pass(self) -> bool:
        """Whether nothing has diverged so far: what diverges first is worth a closer look."""
        return all(comparison.verdict != "diverges" for comparison in self.comparisons)

    def check_stage(self, index: int) -> None:
        stage = self.build.stages[index]
        specs = tuple(ValueSpec(spec.name, spec.element) for spec in output_specs(self.build, index))
        alone: dict[str, list[Difference]] = {}
        chained: dict[str, list[Difference]] = {}
        try:
            if stage.members:
                self._run_members(stage, alone, chained)
            else:
                self._run_model(stage, specs, alone, chained)
        except MemberError as error:
            where = f"stage {index} member {error.member} on {stage.devices[error.member]}"
            raise RuntimeFailure(f"it does not run: {_one_line(error)}", where=where, hint="compile the model again") from error
        except Exception as error:  # onnxruntime's; a stage that cannot run is named like one that dies in a run
            raise RuntimeFailure(
                f"it does not run: {_one_line(error)}", where=f"stage {index} on {stage.device}", hint="compile the model again"
            ) from error
        outputs = {port.name: port.type for port in stage.outputs}
        types = {**{channel.tensor: channel.type for channel in stage.sends}, **outputs}
        for spec in specs:
            self.comparisons.append(self._comparison(index, spec.name, types[spec.name], spec.name in outputs, alone, chained))
        self.at_fault = {}
        self._drop(index)

    def _run_model(
        self,
        stage: StageProgram,
        specs: tuple[ValueSpec, ...],
        alone: dict[str, list[Difference]],
        chained: dict[str, list[Difference]],
    ) -> None:
        """Runs a stage that is one model, and collects how far its outputs are off."""
        program = Program(str(stage.model), specs, threads=self.options.threads, optimize=self.options.optimize)
        for sample, expected, made in zip(self.feeds, self.expected, self.chain, strict=True):
            right = {name: expected.get(name, sample.get(name, made.get(name))) for name in program.input_names}
            real = {name: made[name] for name in program.input_names}
            results = program.run(right)
            _collect(alone, expected, results, self.quantised, 0)
            if not all(_same(right[name], real[name]) for name in right):
                results = program.run(real)
            _collect(chained, expected, results, self.quantised, self._rounded(stage))
            made.update(results)

    def _run_members(
        self, stage: StageProgram, alone: dict[str, list[Difference]], chained: dict[str, list[Difference]]
    ) -> None:
        """Runs a stage on a mesh, and collects how far what its members make is off."""
        leaving = borders(stage)
        cases: list[list[dict[str, Any]]] = []
        which: list[tuple[int, int]] = []  # of each sample the cases that it runs alone and in the chain
        for sample, expected, made, parts in zip(self.feeds, self.expected, self.chain, self.parts, strict=True):
            right = [fed(member, {**made, **sample, **expected}) for member in stage.members]
            real = [
                fed(member, made, {channel: of_member[number] for channel, of_member in parts.items()})
                for number, member in enumerate(stage.members)
            ]
            cases.append(right)
            equal = all(_same(a[name], b[name]) for a, b in zip(right, real, strict=True) for name in a)
            which.append((len(cases) - 1, len(cases) - 1 if equal else len(cases)))
            if not equal:
                cases.append(real)
        results = run_members(stage, cases, threads=self.options.threads, optimize=self.options.optimize)
        for (first, second), expected, made, parts in zip(which, self.expected, self.chain, self.parts, strict=True):
            for border in leaving:
                own = roundings_of(stage.collectives)
                for into, values, rounded in ((alone, results[first], own), (chained, results[second], self._rounded(stage))):
                    whole = border.whole(values)
                    _collect(into, expected, {border.name: whole}, self.quantised, rounded)
                    if border.name in expected:
                        self._find_members(border, values, expected[border.name], into[border.name], rounded)
                    made[border.name] = whole
                if border.channel >= 0 and _as_it_lies(self.build, stage, border.channel):
                    parts[border.channel] = [m[p.value] for m, p in zip(results[second], border.parts, strict=True)]

    def _find_members(
        self, border: Border, values: Sequence[dict[str, Any]], expected: Any, found: list[Difference], rounded: int
    ) -> None:
        """Notes members whose part of what leaves the stage is not that of the unsplit model. Where the tensor put together is
        right all the same, for not every part counts, that is a difference too."""
        right = found[-1].ok
        for number, part, value in border.of_members(values):
            if not isinstance(expected, Raw) or not isinstance(value, Raw):
                continue
            difference = compare_part(expected, part.box, value, quantised=border.name in self.quantised, roundings=rounded)
            if not difference.ok:
                self.at_fault.setdefault(border.name, set()).add(number)
                if right:
                    found.append(difference)

    def _rounded(self, stage: StageProgram) -> int:
        """How often what the chain of stages makes in this one was rounded to 16 bits, at most: by every collective so far, and
        at every border."""
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
        place = (name, index, self.build.stages[index].device, "output" if output else "cut", type_)
        if name in self.tainted:
            return Comparison(*place, None, None, 0.0, 0.0, "random")
        if name not in alone:
            return Comparison(*place, None, None, 0.0, 0.0, "unnamed")
        worst = [max(found[name], key=lambda d: (not d.ok, d.value)) for found in (alone, chained)]
        reason = next((d.reason for d in worst if not d.ok), "")
        verdict = "ok" if all(d.ok for d in worst) else "diverges"
        alone_worst, chained_worst = worst
        differences = (alone_worst.value, chained_worst.value, alone_worst.allowed, chained_worst.allowed)
        members = self.at_fault.get(name, set())
        stage, origin = self.build.stages[index], ""
        if stage.members and alone_worst.value > alone_worst.allowed and self.comparisons_pass:
            found = first_wrong(self.build, self.module, stage, self.feeds[0], self.expected[0], self.options.threads)
            if found is not None:
                origin, members = found.value, members if len(members) == 1 else set(found.members)
        named = tuple((number, stage.devices[number]) for number in sorted(members))
        return Comparison(*place, *differences, verdict, reason, origin, named)

    def _drop(self, index: int) -> None:
        """Forgets values that no later stage reads."""
        later = {channel.tensor for stage in self.build.stages[index + 1 :] for channel in stage.receives}
        later |= {port.name for port in self.build.inputs}
        unchecked = {spec.name for i in range(index + 1, len(self.build.stages)) for spec in output_specs(self.build, i)}
        for made, expected in zip(self.chain, self.expected, strict=True):
            for name in made.keys() - later:
                del made[name]
            for name in expected.keys() - later - unchecked:
                del expected[name]


def _collect(
    into: dict[str, list[Difference]],
    expected: Mapping[str, Any],
    results: Mapping[str, Any],
    quantised: frozenset[str],
    roundings: int,
) -> None:
    for name, value in results.items():
        if name in expected:
            into.setdefault(name, []).append(compare(expected[name], value, quantised=name in quantised, roundings=roundings))


def _as_it_lies(build: Build, maker: StageProgram, channel: int) -> bool:
    """Whether the members of the maker send their parts as they are."""
    reader = next(build.stages[c.target] for c in maker.sends if c.id == channel)
    return bool(reader.members) and matches(maker.axes, reader.axes)


def _same(left: Any, right: Any) -> bool:
    """Whether two values are certainly the same bits."""
    if left is right:
        return True
    if isinstance(left, Raw) and isinstance(right, Raw):
        if left.element != right.element or left.shape != right.shape:
            return False
        return (
            left.data.tobytes() == right.data.tobytes() if left.data.size < 64 else bool(np.array_equal(left.data, right.data))
        )
    return False


# Facts from the plan's IR


def random_values(module: Module) -> tuple[frozenset[str], tuple[str, ...]]:
    """ONNX names of values of the entry function that depend on a random op, and those ops, as text."""
    false = {r.name for r in module.of_type(Resource) if (isinstance(r.data, Splat) and not r.data.value) or _is_zero(r)}
    found = [op for op in all_ops(module.entry.ops) if _is_random(op, false)]
    tainted = _downstream(module.entry.ops, lambda op: _is_random(op, false))
    return tainted, tuple(f"{op.name.removeprefix('onnx.')} {op.location.node or op.id[1:]}" for op in found)


def quantised_values(module: Module) -> frozenset[str]:
    """ONNX names of values of the entry function that a quantising op made, or that are computed from such."""
    return _downstream(module.entry.ops, _quantises)


def _quantises(op: Op) -> bool:
    return op.name.removeprefix("onnx.").removeprefix("com.microsoft.").startswith(QUANTISING)


def _is_random(op: Op, false: set[str]) -> bool:
    name = op.name.removeprefix("onnx.")
    training = name == "Dropout" and len(op.operands) > 2 and op.operands[2] not in ("", *false)
    return name in RANDOM_OPS or training


def _is_zero(resource: Resource) -> bool:
    data = getattr(resource.data, "data", None)
    return isinstance(data, bytes) and len(data) == 1 and data == b"\0"


def _downstream(ops: Iterable[Op], starts: Callable[[Op], bool]) -> frozenset[str]:
    """Names of results of ``ops`` that an op for which ``starts`` holds reaches; an op with regions counts as a whole."""
    reached: set[str] = set()
    for op in ops:
        if any(starts(inner) for inner in all_ops((op,))) or any(name in reached for name in _reads(op)):
            reached |= {value.name for value in op.results}
    return frozenset(name[1:] for name in reached)


def _reads(op: Op) -> Iterable[str]:
    yield from op.operands
    for _, region in op.regions:
        yield from _region_reads(region)


def _region_reads(region: Region) -> Iterable[str]:
    for op in region.ops:
        yield from _reads(op)
    yield from region.results
