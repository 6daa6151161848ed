"""What a stage makes, saves and frees in the passes of a microbatch.

A pass holds what is alive while it runs (``liveness``): an argument of the model too, from its first reader to its last. Of a
training step a value of F or I that a later phase of the same stage reads is *saved* for its microbatch: from the start of the
pass that makes or receives it until the end of the last that reads it. A view is the memory of what it was made of
(``without_views``). Where the backward ops are not written out, that is what the facts of the forward ops say
(``passes.costs.learning``), until the end of the backward pass, and gradients of what is alive are alive in its place. Where
several microbatches add to one gradient, those of one microbatch are alive from where they are made until the end of its
backward pass, beside the sums (``waiting_bytes``). A gradient of a single microbatch is its sum, which weights count: until it
is made, others have its bytes.

Of asynchronous rows a stage holds, beside the newest weights, older versions that a step under way works with
(``ir/ops/rows.py``, rule 7).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest

from ir.core.facets import FORWARD, INPUT_GRADIENT, SYNCS, WEIGHT_GRADIENT, in_phase, phase_of, sync_of
from ir.core.module import Func, Module
from ir.core.ops import Op, Value
from ir.core.types import BytesType, Partial, Placement, Replicate, TensorType, Type, type_bytes
from ir.ops.grads import ACCUMULATE
from ir.ops.opdefs import RESHARD
from ir.ops.rows import BACKWARD, COMPUTE
from passes.costs.exchange import waiting_bytes
from passes.costs.learning import Learning, learning, recomputes, saved_values, trained
from passes.costs.memory.kernels import gradient_bytes, working_bytes
from passes.costs.memory.liveness import SLOTS, live_bytes, resource_bytes, stated_bytes, value_bytes
from passes.costs.views import bases
from passes.graph.graph import Cut, reads
from passes.graph.sizes import sized_results

PHASES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
"""Phases of a microbatch, in order."""
BEHIND = {COMPUTE: (FORWARD,), BACKWARD: (INPUT_GRADIENT, WEIGHT_GRADIENT), INPUT_GRADIENT: (INPUT_GRADIENT,)} | {
    WEIGHT_GRADIENT: (WEIGHT_GRADIENT,)
}
"""The phases that an action does."""
RECEIVED = "comm.recv"
SUM = "comm.all_reduce"


@dataclass(frozen=True, slots=True)
class StageBytes:
    """Bytes of a stage on each of its devices: ``constant``, all the time, where a plan says so; ``saved[made, read]`` of a
    microbatch, by the phases that make and last read it; ``working[phase]``: what else is alive in a pass; ``backward``: the
    same of a pass that does both phases of the backward pass, op by op, with what one makes for the other; ``version``: the
    weights that an update replaces."""

    constant: int = 0
    saved: Mapping[tuple[str, str], int] = field(default_factory=dict)
    working: Mapping[str, int] = field(default_factory=dict)
    backward: int = 0
    version: int = 0

    def kept(self, phases: Sequence[str]) -> int:
        """What passes of these phases make for later ones."""
        return sum(size for (made, read), size in self.saved.items() if made in phases and read not in phases)

    def freed(self, phases: Sequence[str]) -> int:
        """What passes of these phases are the last to read."""
        return sum(size for (made, read), size in self.saved.items() if read in phases and made not in phases)

    def busy(self, phases: Sequence[str]) -> int:
        """The most that is alive in passes of these phases, one after the other, beside what is saved for others."""
        whole = {*BEHIND[BACKWARD]} <= {*phases}
        inner = [pair for pair in self.saved if {*pair} <= {*phases} and not (whole and {*pair} <= {*BEHIND[BACKWARD]})]
        alone = [phase for phase in phases if not (whole and phase in BEHIND[BACKWARD])]
        most = max([*(self.working.get(phase, 0) for phase in alone), self.backward * whole], default=0)
        return sum(self.saved[pair] for pair in inner) + most

    @property
    def of_microbatch(self) -> int:
        """All that is saved of a microbatch between its forward and its backward pass."""
        return self.kept((FORWARD,))

    def workspace(self, in_flight: int, versions: int = 0) -> int:
        """The most with so many microbatches before the end of their backward pass, and old versions of the weights."""
        most = max([self.backward, *self.working.values()])
        return most + in_flight * self.of_microbatch + versions * self.version


@dataclass(frozen=True, slots=True)
class StageOps:
    """The ``args`` of the model and the ``ops`` of a stage, in order; what it receives is made by ops ``comm.recv``.
    ``replicas``: devices that take its microbatches in turn; ``members``: devices that share each microbatch. ``part``: bytes
    of a value of a type on one of them, at most, if it lies as the type says; ``lies``: the same of a value of another stage's
    mesh, too."""

    args: Sequence[Value]
    ops: Sequence[Op]
    replicas: int = 1
    members: int = 1
    part: Callable[[Type], int] = lambda type_: type_bytes(type_) or 0
    lies: Callable[[Type], int] = lambda type_: type_bytes(type_) or 0


def stage_bytes(module: Module, stages: Sequence[StageOps], microbatches: int) -> tuple[StageBytes, ...]:
    """Of each stage of the entry function; ``microbatches``: of a training step, 0 of inference."""
    written = any(phase_of(op.facets) != FORWARD for stage in stages for op in stage.ops)
    learned = learning(module) if microbatches and not written else None
    trains, sizes = trained(module.resources) if microbatches else {}, resource_bytes(module)
    found = []
    for stage in stages:
        values = [*stage.args, *(value for op in stage.ops for value in sized_results(op))]
        size = {value.name: stage.lies(value.type) for value in values}
        version = sum(sizes[name] for name in {name for op in stage.ops for name in reads(op)} if name in trains)
        adds = microbatches > stage.replicas  # else the gradients of a microbatch are the sums, which weights count
        if learned is not None:
            waiting = _by_reads(module, stage, trains) if adds else 0
            again = recomputes(module)
            found.append(replace(_by_facts(stage, learned, size, waiting, again=again), version=version))
        else:
            held = replace(stage, ops=without_views(stage.ops)) if microbatches else stage
            gradients = _gradients(held, size, adds=adds)
            found.append(replace(_by_ops(held, size, gradients), version=version))
    return tuple(found)


def most_bytes(module: Module, microbatches: int = 0, *, flush: bool = True) -> float:
    """Bytes on a device, more than which no stage of the entry function needs, whatever its ops and replicas.

    ``microbatches``: of a training step, 0 of inference; inf of steps without a ``flush``, which keep older weights."""
    entry, sizes = module.entry, resource_bytes(module)
    if not flush:
        return math.inf
    if (stated := stated_bytes(entry)) is not None:
        return sum(stated)
    made = sum(value_bytes(value) for op in entry.ops for value in sized_results(op))
    if not microbatches:
        return sum(sizes.values()) + max(live_bytes(entry), default=0) + 2 * SLOTS * made
    learned = learning(module)
    kept = {name: size for op in entry.ops for name, size in saved_values(op, learned).items()}
    held = sum(learned.held(name, size, gradients=2) for name, size in sizes.items())
    return held + microbatches * sum(kept.values()) + 4 * SLOTS * made


def parts_of(entry: Func, own: Sequence[Sequence[int]], cuts: Sequence[Cut]) -> list[StageOps]:
    """Stages, given the positions of their ops in the entry function, and what crosses between them; whole on each device."""
    received: list[list[Op]] = [[] for _ in own]
    for cut in cuts:
        told = type_bytes(cut.tensor.type) is not None
        value = cut.tensor if told else Value(cut.tensor.name, BytesType(cut.nbytes or 0))
        received[cut.target].append(Op(RECEIVED, (), (value,), facets=in_phase(cut.read)))
    return [StageOps(entry.args, (*first, *(entry.ops[i] for i in at))) for first, at in zip(received, own, strict=True)]


def without_views(ops: Sequence[Op]) -> list[Op]:
    """The ops without those that make views (``passes.costs.views``), which read the memory of these in their place."""
    base = bases(ops)
    left = (op for op in ops if not op.results or not all(value.name in base for value in op.results))
    return [replace(op, operands=tuple(base.get(name, name) for name in op.operands)) for op in left]


@dataclass(frozen=True, slots=True)
class _Gradients:
    """Bytes of gradients of weights by the names of values, as passes of one microbatch make them: ``alone``, of no other
    device, and ``together``, summed with other devices, wait for their sums (``waiting_bytes``); ``late`` are their sums."""

    alone: Mapping[str, int] = field(default_factory=dict)
    together: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)

    def beside(self, ops: Sequence[Op]) -> list[int]:
        """Bytes of what waits while each of the ops of a pass runs, less those of sums that are not made yet."""
        beside, alone, together = [], list[int](), list[int]()
        missing = sum(self.late.values())
        behind = -missing
        for op in ops:
            names = [value.name for value in op.results]
            alone += [self.alone[name] for name in names if name in self.alone]
            together += [self.together[name] for name in names if name in self.together]
            missing -= sum(self.late.get(name, 0) for name in names)
            if any(name in sizes for name in names for sizes in (self.alone, self.together, self.late)):
                behind = int(waiting_bytes(alone, together)) - missing
            beside.append(behind)
        return beside


def _by_ops(stage: StageOps, size: Mapping[str, int], gradients: _Gradients) -> StageBytes:
    """Of inference, or a step whose backward ops are written out."""
    saved, names = _saved(stage.args, stage.ops, size)
    working = {phase: _alive(stage, (phase,), size, names, gradients) for phase in PHASES}
    return StageBytes(0, saved, working, _alive(stage, BEHIND[BACKWARD], size, names, gradients))


def _by_facts(stage: StageOps, learned: Learning, size: Mapping[str, int], waiting: int, *, again: bool) -> StageBytes:
    """Of a step whose backward ops are not written out; ``again``: the forward pass runs again for them, so that a stage keeps
    what it received alone."""
    alive = _alive(stage, (FORWARD,), size, {}, _Gradients())
    behind = max((gradient_bytes(op, size) for op in stage.ops), default=0)
    working = {FORWARD: alive, INPUT_GRADIENT: max(alive, behind), WEIGHT_GRADIENT: max(alive, behind, waiting)}
    kept = _saved_by_facts(stage, learned, size)
    if again:
        working = {phase: most + kept * (phase != FORWARD) for phase, most in working.items()}
        kept = sum(size[value.name] for op in stage.ops if op.name == RECEIVED for value in op.results)
    return StageBytes(0, {(FORWARD, WEIGHT_GRADIENT): kept}, working, max(working[phase] for phase in BEHIND[BACKWARD]))


def _saved(
    args: Sequence[Value], ops: Sequence[Op], size: Mapping[str, int]
) -> tuple[dict[tuple[str, str], int], dict[str, tuple[str, str]]]:
    """What is saved of a microbatch, by the phases that make and last read it, and these phases of each value of it."""
    made = dict.fromkeys((value.name for value in args), FORWARD)
    last: dict[str, str] = {}
    for op in ops:
        phase = phase_of(op.facets)
        if phase not in PHASES:
            continue
        for name in reads(op):
            last[name] = max(last.get(name, phase), phase, key=PHASES.index)
        if not _lays_weight(op):
            made.update((value.name, phase) for value in op.results)
    saved: dict[tuple[str, str], int] = defaultdict(int)
    names = {name: (phase, last[name]) for name, phase in made.items() if last.get(name, phase) != phase}
    for name, phases in names.items():
        saved[phases] += size[name]
    return dict(saved), names


def _lays_weight(op: Op) -> bool:
    """Whether the result is a weight, or a part of one, in another layout: one for all microbatches."""
    return op.dialect == "comm" and bool(op.operands) and op.operands[0].startswith("@")


def _alive(
    stage: StageOps,
    phases: Sequence[str],
    size: Mapping[str, int],
    saved: Mapping[str, tuple[str, str]],
    gradients: _Gradients,
) -> int:
    """The most bytes alive at once in a pass of these phases, of values, of what kernels work in, and of gradients of weights,
    without those ``saved`` by other phases (or, of one phase, for others), and what lies in buffers. What was saved and is read
    for the last time is free for others behind its last reader, so the answer may be negative."""
    own = [op for op in stage.ops if phase_of(op.facets) in phases]
    if not own:
        return 0
    outside = {name for op in stage.ops if phase_of(op.facets) not in PHASES for name in reads(op)}
    outside.update(name for name, (made, _) in saved.items() if len(phases) == 1 or made not in phases)
    outside.update(value.name for op in own if op.name == RECEIVED for value in op.results if value.name not in saved)

    def local(value: Value) -> Value:
        return Value(value.name, BytesType(0 if value.name in outside else size[value.name]))

    ops = tuple(replace(op, results=tuple(map(local, op.results)), facets=()) for op in own)
    live = live_bytes(Func("@phase", tuple(map(local, stage.args)), (), ops))
    last = {name: position for position, op in enumerate(own) for name in reads(op)}
    free = [0] * (len(own) + 1)
    for name, (made, read) in saved.items():
        if made not in phases and read in phases and name in last:
            free[last[name] + 1] += size[name]
    each = zip(live, own, gradients.beside(own), accumulate(free), strict=False)
    return max(alive + working_bytes(op, size) + beside - freed for alive, op, beside, freed in each)


def _gradients(stage: StageOps, size: Mapping[str, int], *, adds: bool) -> _Gradients:
    """Of a step whose backward ops are written out, by the ops of the update; ``adds``: several microbatches add to one
    gradient. One that is a constant is made by no pass."""
    types = {value.name: value.type for op in stage.ops for value in op.results}
    means = {op.results[0].name: op.operands[0] for op in stage.ops if op.name == ACCUMULATE and op.operands[0] in size}
    after = {op.operands[0]: op for op in stage.ops if op.dialect == "comm" and op.operands and op.operands[0] in means}
    together = {means[mean]: size[means[mean]] for mean, op in after.items() if _keeps_sum(op, types[mean])}
    if not adds:
        return _Gradients({}, together, {name: size[name] for name in means.values()}) if stage.members == 1 else _Gradients()
    return _Gradients({name: size[name] for name in means.values() if name not in together}, together)


def _by_reads(module: Module, stage: StageOps, trains: Mapping[str, int]) -> int:
    """The same where no backward ops are written: a gradient lies as its weight is read, and is summed over the members that
    read and keep the weight whole, or over replicas of the stage. Of a weight that is read in several layouts it
    is one gradient all the same: the largest, and summed only where it is for every reader."""
    sizes, alone, resources = dict[str, int](), set[str](), module.resources
    for op in stage.ops:
        for name in reads(op):
            if name not in trains:
                continue
            kept = resources[name]
            type_ = op.results[0].type if op.name == RESHARD else kept.type
            parts = sync_of(kept.facets).method == SYNCS[1]
            if stage.replicas == 1 and (parts or stage.members == 1 or _placements(type_) or _placements(kept.type)):
                alone.add(name)
            sizes[name] = max(sizes.get(name, 0), stage.part(type_))
    return int(waiting_bytes([sizes[n] for n in sizes if n in alone], [sizes[n] for n in sizes if n not in alone]))


def _keeps_sum(op: Op, before: Type) -> bool:
    """Whether an op sums a value of the type ``before`` over devices that all keep the sum."""
    source, target = _placements(before), _placements(op.results[0].type) if op.results else ()
    kept = [after for term, after in zip_longest(source, target) if isinstance(term, Partial)]
    return op.name == SUM or (op.name == RESHARD and bool(kept) and all(after in (None, Replicate()) for after in kept))


def _placements(type_: Type) -> tuple[Placement, ...]:
    return type_.layout.placements if isinstance(type_, TensorType) and type_.layout is not None else ()


def _saved_by_facts(stage: StageOps, learned: Learning, size: Mapping[str, int]) -> int:
    """Bytes that a stage saves of a microbatch by the facts of its forward ops: of a value its part, of what is no value an
    even one."""
    wholes = {value.name: type_bytes(value.type) for op in stage.ops for value in op.results}
    wholes.update((value.name, type_bytes(value.type)) for value in stage.args)
    learned = replace(learned, base=bases(stage.ops))
    values = {name: whole for op in stage.ops for name, whole in saved_values(op, learned).items()}
    laid = {value.name for op in stage.ops if _lays_weight(op) for value in op.results}
    total = 0
    for name, whole in values.items():
        if name in laid:
            continue
        every = wholes.get(name)
        total += whole * size[name] // every if every else whole // stage.members
    return total
