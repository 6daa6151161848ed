"""Bytes that each device holds while a schedule runs.

A device holds, all the time, the weights of its stages, with gradients and optimizer state in training, and the buffers of
what arrives. A pass holds what is alive while it runs (``passes.costs.liveness``). Of a training step, a value of F or I that a
later phase of the same stage reads is *saved* for its microbatch: from the start of the pass that makes or receives it until
the end of the last that reads it. Where the backward ops are not written out, that is what the facts of the forward ops say
(``passes.costs.learning``), until the end of the backward pass. Where several microbatches add to one gradient, those of one
microbatch are alive at the end of its backward pass, beside the sums (``passes.costs.exchange.waiting_bytes``).

Of asynchronous rows a stage holds, beside the newest weights, every older version that a step under way works with
(``ir/ops/rows.py``, rule 7): a copy is made by the update that replaces it, and freed by the last step that works with it.

Bytes are those of the largest part where a stage is a mesh. A workload of opaque units states bytes of whole nodes: it holds
the same all the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from ir.core.diagnostics import InvalidInput
from ir.core.facets import FORWARD, INPUT_GRADIENT, SYNCS, WEIGHT_GRADIENT, in_phase, phase_of, sync_of
from ir.core.module import Action, Func, Mesh, Module, Plan, Resource, Schedule, Stage
from ir.core.ops import Op, Value
from ir.core.topology import Topology
from ir.core.types import BytesType, Partial, Placement, Replicate, TensorType, Type, type_bytes
from ir.ops.grads import ACCUMULATE
from ir.ops.opdefs import RESHARD
from ir.ops.rows import BACKWARD, COMPUTE, UPDATE
from passes.costs.exchange import waiting_bytes
from passes.costs.learning import Learning, learning, recomputes, saved_values, trained
from passes.costs.liveness import live_bytes, resource_bytes, states_bytes
from passes.graph.faults import NoPlacedPlan
from passes.graph.graph import cuts_of, reads, stage_members
from passes.meshes.costs.cross_mesh import Party, part_bytes, parties
from passes.timeline.simulate import Event
from passes.timeline.workload import Workload

PHASES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
"""Phases of a microbatch, in order."""
BEHIND = {COMPUTE: (FORWARD,), BACKWARD: (INPUT_GRADIENT, WEIGHT_GRADIENT), INPUT_GRADIENT: (INPUT_GRADIENT,)} | {
    WEIGHT_GRADIENT: (WEIGHT_GRADIENT,)
}
"""The phases that an action does."""
SUM = "comm.all_reduce"


@dataclass(frozen=True, slots=True)
class Held:
    """``constant``: bytes that a device holds all the time; ``steps``: from so many seconds on, so many bytes in all."""

    constant: int
    steps: tuple[tuple[float, int], ...] = ()

    @property
    def peak(self) -> int:
        return max((held for _, held in self.steps), default=self.constant)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a stage on each of its devices: ``constant``; ``saved[made, read]`` of a microbatch, by the phases that make and
    last read it; ``working[phase]``: what else is alive in a pass; ``backward``: the same of a pass that does both phases of
    the backward pass, op by op, with what one makes for the other; ``version``: the weights that an update replaces."""

    constant: int
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


def memory_over_time(module: Module, events: Iterable[Event]) -> dict[str, Held]:
    """What each device of a placed plan holds while ``events`` (``simulate``) take place. Raises InvalidInput for a module
    without a placed plan."""
    plan, of_stage = module.first(Plan), stage_memory(module)
    constant: dict[str, int] = defaultdict(int)
    for row in plan.stages if plan is not None else ():
        for device in row.devices:
            constant[device] += of_stage[row.index].constant
    level, steps = dict(constant), defaultdict[str, list[tuple[float, int]]](list)
    stashes = _stashes(module, of_stage)
    for event in events:
        phases, device = BEHIND.get(event.action.kind, ()), event.device
        stash = stashes.get(event.action.stage)
        old = stash.see(event.action) if stash is not None else 0
        if phases:
            stage = of_stage[event.action.stage]
            during = level[device] + stage.kept(phases) + stage.busy(phases)
            level[device] += stage.kept(phases) - stage.freed(phases)
            steps[device] += [(event.start, during), (event.end, level[device])]
        elif old:
            level[device] += old
            steps[device].append((event.start, level[device]))
    return {device: Held(bytes_, ((0.0, bytes_), *steps[device])) for device, bytes_ in constant.items()}


def stage_peaks(module: Module, events: Iterable[Event]) -> tuple[int, ...]:
    """What each stage of a placed plan holds on one of its devices at the moment when that device holds most, so that stages
    that share a device hold its peak together; of several devices the most. ``events`` as of ``memory_over_time``."""
    plan, of_stage = module.first(Plan), stage_memory(module)
    level: dict[str, dict[int, int]] = defaultdict(dict)
    for row in plan.stages if plan is not None else ():
        for device in row.devices:
            level[device][row.index] = of_stage[row.index].constant
    most = {device: dict(held) for device, held in level.items()}
    stashes = _stashes(module, of_stage)
    for event in events:
        phases, device, number = BEHIND.get(event.action.kind, ()), event.device, event.action.stage
        if number in stashes:
            level[device][number] += stashes[number].see(event.action)
        if phases:
            stage, held = of_stage[number], level[device]
            during = {**held, number: held[number] + stage.kept(phases) + stage.busy(phases)}
            most[device] = max(most[device], during, key=lambda one: sum(one.values()))
            held[number] += stage.kept(phases) - stage.freed(phases)
    return tuple(max(held[number] for held in most.values() if number in held) for number in range(len(of_stage)))


@dataclass(slots=True)
class _Stash:
    """The versions of weights of a stage, ``size`` bytes each, in rows without a flush whose steps have ``every``
    microbatches. ``uses``: the version of each step under way; ``newest``: how many updates were done."""

    every: int
    size: int
    uses: dict[int, int] = field(default_factory=dict)
    newest: int = 0

    def see(self, action: Action) -> int:
        """How many bytes more, or fewer, the old versions take once the action is done."""
        step = (action.microbatch or 0) // self.every
        before = self._old()
        if action.kind == COMPUTE:
            self.uses.setdefault(step, self.newest)
        elif action.kind == UPDATE:
            self.uses.pop(step, None)
            self.newest += 1
        return (self._old() - before) * self.size

    def _old(self) -> int:
        return len({*self.uses.values()} - {self.newest})


def _stashes(module: Module, of_stage: Sequence[StageMemory]) -> dict[int, _Stash]:
    """Of each stage whose rows have no flush."""
    schedule, plan = module.first(Schedule), module.first(Plan)
    if schedule is None or plan is None or not (schedule.periodic and plan.in_steps):
        return {}
    return {number: _Stash(schedule.microbatches, stage.version) for number, stage in enumerate(of_stage)}


def stage_memory(module: Module) -> tuple[StageMemory, ...]:
    """What the stages of a placed plan hold. Raises InvalidInput for a module without one."""
    plan = module.first(Plan)
    if plan is None or not all(row.devices for row in plan.stages):
        raise InvalidInput(NoPlacedPlan(), where=module.name)
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    meshes = {row.mesh: side for row, (side, *_) in zip(plan.stages, sides, strict=True) if row.mesh}
    bodies = _bodies(module, len(plan.stages))
    if states_bytes(module.entry):
        return tuple(StageMemory(row.memory) for row in plan.stages)
    written = any(phase_of(op.facets) != FORWARD for _, ops in bodies for op in ops)
    learned = learning(module) if plan.in_steps and not written else None
    trains, sizes = trained(module.resources) if plan.in_steps else {}, resource_bytes(module)
    found = []
    for row, (args, ops), (side, *_) in zip(plan.stages, bodies, sides, strict=True):
        values = {value.name: value.type for value in (*args, *(value for op in ops for value in op.results))}
        size = {name: _local_bytes(type_, side, meshes) for name, type_ in values.items()}
        saved, names = _saved(args, ops, size)
        working = {phase: _alive(ops, (phase,), size, names) for phase in PHASES}
        backward = _alive(ops, BEHIND[BACKWARD], size, names)
        waiting = 0
        if plan.microbatches > row.replicas:  # else the gradients of a microbatch are the sums, which weights count
            shared = row.replicas > 1
            waiting = _by_reads(ops, module.resources, trains, side, shared) if learned is not None else _by_sums(ops, size)
        if learned is None:
            working[WEIGHT_GRADIENT] += waiting
            backward += waiting
        else:  # gradients of what was alive are alive in its place
            kept = _saved_by_facts(ops, learned, values, size, len(side.devices) if row.mesh else 1)
            working = {phase: max(working[FORWARD], waiting * (phase == WEIGHT_GRADIENT)) for phase in PHASES}
            if recomputes(module):
                working = {phase: alive + kept * (phase != FORWARD) for phase, alive in working.items()}
                kept = sum(size[value.name] for op in ops if op.name == "comm.recv" for value in op.results)
            saved, backward = {(FORWARD, WEIGHT_GRADIENT): kept}, max(working[phase] for phase in BEHIND[BACKWARD])
        version = sum(sizes[name] for name in {name for op in ops for name in reads(op)} if name in trains)
        found.append(StageMemory(row.weights + row.buffers, saved, working, backward, version))
    return tuple(found)


def with_space(module: Module, load: Workload) -> Workload:
    """The workload of a placed training plan with what its stages save of a microbatch, and the space of devices for that:
    what their memory has beside all else that they hold."""
    plan, topology, of_stage = module.first(Plan), module.first(Topology), stage_memory(module)
    assert plan is not None, "it has memory"
    assert topology is not None, "its stages are on devices"
    space = []
    for device in dict.fromkeys(name for row in plan.stages for name in row.devices):
        stages = [of_stage[row.index] for row in plan.stages if device in row.devices]
        limit = topology.memory(topology.device(device))
        if limit is not None:
            held = sum(stage.constant for stage in stages) + max(stage.busy(PHASES) for stage in stages)
            space.append((device, limit - held))
    return replace(load, saved=tuple(stage.of_microbatch for stage in of_stage), space=tuple(space))


def _bodies(module: Module, count: int) -> list[tuple[tuple[Value, ...], tuple[Op, ...]]]:
    """Inputs of the model and ops of each stage: of its program, or its part of the entry function and what it receives."""
    programs = sorted(module.of_type(Stage), key=lambda stage: stage.index)
    if programs:
        return [(stage.args, stage.ops) for stage in programs]
    own: list[list[Op]] = [[] for _ in range(count)]
    for cut in cuts_of(module.entry):
        own[cut.target].append(Op("comm.recv", (), (cut.tensor,), facets=in_phase(cut.read)))
    for op, on in zip(module.entry.ops, stage_members(module.entry), strict=True):
        for stage in on:
            own[stage].append(op)
    return [(module.entry.args, tuple(ops)) for ops in own]


def _local_bytes(type_: Type, side: Party, meshes: Mapping[str, Party]) -> int:
    """Bytes of a value on one of a stage's devices: of its largest part, or, if it comes from a mesh of another shape, of the
    whole."""
    layout = type_.layout if isinstance(type_, TensorType) else None
    if layout is not None and meshes.get(layout.mesh, side).matches(side) and len(layout.placements) == len(side.sizes):
        return part_bytes(type_, side)
    return type_bytes(type_) or 0


def _saved(
    args: Sequence[Value], ops: Sequence[Op], size: Mapping[str, int]
) -> tuple[dict[tuple[str, str], int], dict[str, str]]:
    """What is saved of a microbatch, by the phases that make and last read it, and the phase that makes each value of it."""
    made = dict.fromkeys((value.name for value in args), FORWARD)
    last: dict[str, str] = {}
    for op in ops:
        phase = phase_of(op.facets)
        if phase not in PHASES:
            continue
        for name in reads(op):
            last[name] = max(last.get(name, phase), phase, key=PHASES.index)
        if not (op.dialect == "comm" and op.operands and op.operands[0].startswith("@")):  # a part of a weight
            made.update((value.name, phase) for value in op.results)
    saved: dict[tuple[str, str], int] = defaultdict(int)
    names = [name for name, phase in made.items() if last.get(name, phase) != phase]
    for name in names:
        saved[made[name], last[name]] += size[name]
    return dict(saved), {name: made[name] for name in names}


def _alive(ops: Sequence[Op], phases: Sequence[str], size: Mapping[str, int], saved: Mapping[str, str]) -> int:
    """The most bytes of values alive at once in a pass of these phases, without those ``saved`` by other phases (or, of one
    phase, for others), what lies in buffers, and the gradients that the update reads (``_by_sums``)."""
    own = [op for op in ops if phase_of(op.facets) in phases]
    if not own:
        return 0
    outside = {name for op in ops if phase_of(op.facets) not in PHASES for name in reads(op)}
    outside.update(name for name, made in saved.items() if len(phases) == 1 or made not in phases)
    outside.update(value.name for op in own if op.name == "comm.recv" for value in op.results if value.name not in saved)
    local = [
        replace(op, results=tuple(Value(v.name, BytesType(0 if v.name in outside else size[v.name])) for v in op.results))
        for op in own
    ]
    return max(live_bytes(Func("@phase", (), (), tuple(local))), default=0)


def _by_sums(ops: Sequence[Op], size: Mapping[str, int]) -> int:
    """Bytes of gradients of one microbatch that wait to be added to those of others, by the ops of the update."""
    types = {value.name: value.type for op in ops for value in op.results}
    means = {op.results[0].name: op.operands[0] for op in ops if op.name == ACCUMULATE}
    after = {op.operands[0]: op for op in ops if op.dialect == "comm" and op.operands and op.operands[0] in means}
    together = {means[mean] for mean, op in after.items() if _keeps_sum(op, types[mean])}
    waits = dict.fromkeys(means.values())
    return int(waiting_bytes([size[n] for n in waits if n not in together], [size[n] for n in waits if n in together]))


def _by_reads(ops: Sequence[Op], resources: Mapping[str, Resource], trains: Container[str], side: Party, shared: bool) -> int:
    """The same where no backward ops are written: a gradient lies as its weight is read, and is summed over the members that
    read and keep the weight whole, or over replicas of the stage (``shared``). Of a weight that is read in several layouts it
    is one gradient all the same: the largest, and summed only where it is for every reader."""
    sizes, alone = dict[str, int](), set[str]()
    for op in ops:
        for name in reads(op):
            if name not in trains:
                continue
            kept = resources[name]
            type_ = op.results[0].type if op.name == RESHARD else kept.type
            parts = sync_of(kept.facets).method == SYNCS[1]
            if not shared and (parts or len(side.devices) == 1 or _placements(type_) or _placements(kept.type)):
                alone.add(name)
            sizes[name] = max(sizes.get(name, 0), part_bytes(type_, side))
    return int(waiting_bytes([sizes[n] for n in sizes if n in alone], [sizes[n] for n in sizes if n not in alone]))


def _keeps_sum(op: Op, before: Type) -> bool:
    """Whether an op sums a value of the type ``before`` over devices that all keep the sum."""
    source, target = _placements(before), _placements(op.results[0].type) if op.results else ()
    kept = [after for term, after in zip_longest(source, target) if isinstance(term, Partial)]
    return op.name == SUM or (op.name == RESHARD and bool(kept) and all(after in (None, Replicate()) for after in kept))


def _placements(type_: Type) -> tuple[Placement, ...]:
    return type_.layout.placements if isinstance(type_, TensorType) and type_.layout is not None else ()


def _saved_by_facts(
    ops: Sequence[Op], learned: Learning, types: Mapping[str, Type], size: Mapping[str, int], members: int
) -> int:
    """Bytes that a stage saves of a microbatch by the facts of its forward ops: of a value its part, of what is no value an
    even one."""
    values = {name: whole for op in ops for name, whole in saved_values(op, learned).items()}
    total = 0
    for name, whole in values.items():
        every = type_bytes(types[name]) if name in types else None
        total += whole * size[name] // every if every else whole // members
    return total


__all__ = ["Held", "StageMemory", "memory_over_time", "stage_memory", "stage_peaks", "with_space"]
