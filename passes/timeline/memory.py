"""Bytes that each device holds while a schedule runs.

What stages hold is ``passes.costs.memory``. Of asynchronous rows a stage holds, beside the newest weights, every older version
that a step under way works with (``ir/ops/rows.py``, rule 7): a copy is made by the update that replaces it, and freed by the
last step that works with it.

Bytes are those of the largest part where a stage is a mesh. A workload of opaque units states bytes of whole nodes: it holds
the same all the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ir.core.diagnostics import InvalidInput
from ir.core.module import Action, Mesh, Module, Plan, Schedule, Stage
from ir.core.topology import Topology
from ir.core.types import TensorType, Type, type_bytes
from ir.ops.rows import COMPUTE, UPDATE
from passes.costs.memory.liveness import states_bytes
from passes.costs.memory.stage import BEHIND, StageBytes, StageOps, parts_of, stage_bytes
from passes.graph.faults import NoPlacedPlan
from passes.graph.graph import cuts_of, stage_members
from passes.meshes.costs.cross_mesh import Party, part_bytes, parties
from passes.timeline.simulate import Event
from passes.timeline.workload import Workload


@dataclass(frozen=True, slots=True)
class Held:
    """``constant``: bytes that a device holds all the time; ``steps``: from so many seconds on, so many bytes in all."""

    constant: int
    steps: tuple[tuple[float, int], ...] = ()

    @property
    def peak(self) -> int:
        return max((held for _, held in self.steps), default=self.constant)


def memory_over_time(module: Module, events: Iterable[Event]) -> dict[str, Held]:
    """What each device of a placed plan holds while ``events`` (``simulate``) take place. Raises InvalidInput for a module
    without a placed plan."""
    steps = defaultdict[str, list[tuple[float, int]]](list)
    for device, seconds, held in _moments(module, events):
        steps[device].append((seconds, sum(held.values())))
    return {device: Held(found[0][1], tuple(found)) for device, found in steps.items()}


def stage_peaks(module: Module, events: Iterable[Event]) -> tuple[int, ...]:
    """What each stage of a placed plan holds on one of its devices at the moment when that device holds most, so that stages
    that share a device hold its peak together; of several devices the most. ``events`` as of ``memory_over_time``."""
    most: dict[str, dict[int, int]] = {}
    for device, _, held in _moments(module, events):
        most[device] = max(most.get(device, held), held, key=lambda one: sum(one.values()))
    stages = sorted({number for held in most.values() for number in held})
    return tuple(max(held[number] for held in most.values() if number in held) for number in stages)


def _moments(module: Module, events: Iterable[Event]) -> Iterator[tuple[str, float, dict[int, int]]]:
    """Each change of what a device holds: the device, from how many seconds on, and the bytes of each of its stages; first, of
    each device, what it holds all the time. Raises InvalidInput for a module without a placed plan."""
    plan, of_stage = module.first(Plan), stage_memory(module)
    level: dict[str, dict[int, int]] = defaultdict(dict)
    for row in plan.stages if plan is not None else ():
        for device in row.devices:
            level[device][row.index] = of_stage[row.index].constant
    for device, held in level.items():
        yield device, 0.0, held
    stashes = _stashes(module, of_stage)
    for event in events:
        phases, device, number = BEHIND.get(event.action.kind, ()), event.device, event.action.stage
        stage, held = of_stage[number], level[device]
        old = stashes[number].see(event.action) if number in stashes else 0
        if phases:
            yield device, event.start, {**held, number: held[number] + stage.kept(phases) + stage.busy(phases)}
            level[device] = {**held, number: held[number] + stage.kept(phases) - stage.freed(phases)}
            yield device, event.end, level[device]
        elif old:
            level[device] = {**held, number: held[number] + old}
            yield device, event.start, level[device]


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


def _stashes(module: Module, of_stage: Sequence[StageBytes]) -> dict[int, _Stash]:
    """Of each stage whose rows have no flush."""
    schedule, plan = module.first(Schedule), module.first(Plan)
    if schedule is None or plan is None or not (schedule.periodic and plan.in_steps):
        return {}
    return {number: _Stash(schedule.microbatches, stage.version) for number, stage in enumerate(of_stage)}


def stage_memory(module: Module) -> tuple[StageBytes, ...]:
    """What the stages of a placed plan hold. Raises InvalidInput for a module without one."""
    plan = module.first(Plan)
    if plan is None or not all(row.devices for row in plan.stages):
        raise InvalidInput(NoPlacedPlan(), where=module.name)
    if states_bytes(module.entry):
        return tuple(StageBytes(row.memory) for row in plan.stages)
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    meshes = {row.mesh: side for row, (side, *_) in zip(plan.stages, sides, strict=True) if row.mesh}
    stages = []
    for stage, row, (side, *_) in zip(_stages(module, len(plan.stages)), plan.stages, sides, strict=True):
        part, lies = partial(part_bytes, party=side), partial(_local_bytes, side=side, meshes=meshes)
        stages.append(replace(stage, replicas=row.replicas, members=len(side.devices), part=part, lies=lies))
    of_passes = stage_bytes(module, stages, plan.microbatches if plan.in_steps else 0)
    return tuple(replace(of, constant=row.weights + row.buffers) for row, of in zip(plan.stages, of_passes, strict=True))


def _stages(module: Module, count: int) -> list[StageOps]:
    """The stages as programs, or as parts of the entry function where no programs are written."""
    if programs := sorted(module.of_type(Stage), key=lambda stage: stage.index):
        return [StageOps(stage.args, stage.ops) for stage in programs]
    own: list[list[int]] = [[] for _ in range(count)]
    for position, on in enumerate(stage_members(module.entry)):
        for number in on:
            own[number].append(position)
    return parts_of(module.entry, own, cuts_of(module.entry))


def with_memory(module: Module, load: Workload) -> Workload:
    """The workload of a placed training plan with what its stages hold, and the memory of their devices."""
    plan, topology = module.first(Plan), module.first(Topology)
    assert plan is not None, "it has memory"
    assert topology is not None, "its stages are on devices"
    names = dict.fromkeys(name for row in plan.stages for name in row.devices)
    limits = ((name, topology.memory(topology.device(name))) for name in names)
    limited = tuple((name, limit) for name, limit in limits if limit is not None)
    return replace(load, holds=stage_memory(module), memory=limited)


def _local_bytes(type_: Type, side: Party, meshes: Mapping[str, Party]) -> int:
    """Bytes of a value on one of a stage's devices: of its largest part, or, if it comes from a mesh of another shape, of the
    whole."""
    layout = type_.layout if isinstance(type_, TensorType) else None
    if layout is not None and meshes.get(layout.mesh, side).matches(side) and len(layout.placements) == len(side.sizes):
        return part_bytes(type_, side)
    return type_bytes(type_) or 0
