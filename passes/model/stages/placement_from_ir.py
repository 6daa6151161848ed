"""A staged module as a ``PlacementProblem``: the memory of stages, the messages between them, the devices each may run on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.diagnostics import Diagnostic, Infeasible, InvalidInput
from ir.facets import Transfer
from ir.module import Func, Module, Plan
from ir.rows import edge_slots
from ir.topology import Topology
from passes.model.graph import Cut, cuts_of, listing, reads
from passes.model.liveness import SLOTS, resource_bytes, stage_workspace, stated_bytes
from passes.model.network import Network
from passes.model.op_time import func_seconds
from passes.model.stages.placement import Message, Placement, PlacementProblem


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a stage needs on its device. ``spare``: the part of ``buffers`` that only tensors passing over other stages
    have, which ``partition`` does not plan with; without it the stage runs, but more slowly."""

    weights: int
    workspace: int
    buffers: int
    spare: int

    @property
    def total(self) -> int:
        return self.weights + self.workspace + self.buffers

    @property
    def least(self) -> int:
        """Bytes without which the stage cannot run at all."""
        return self.total - self.spare


def placement_problem(
    module: Module,
    plan: Plan,
    topology: Topology,
    net: Network,
    own: Sequence[Sequence[int]],
    memory: Sequence[Memory],
) -> PlacementProblem:
    """The numbers of a partitioned module; ``own``: its ``stage_ops``, ``memory``: its ``stage_memory``. Raises InvalidInput
    for an unknown or doubled device, Infeasible for a stage that no device it may use can hold."""
    entry = module.entry
    fixed = fixed_devices(plan, topology, len(own))
    least = [sum(memory[o].least for o in range(len(own)) if o == s or fixed[o] == fixed[s] != ()) for s in range(len(own))]
    by_type = {}
    for type_ in topology.types:
        seconds = func_seconds(entry, type_)
        handover = type_.handover if len(own) > 1 else 0.0
        by_type[type_.name] = [handover + math.fsum(seconds[entry.ops[i].id] for i in ops) for ops in own]
    compute = []
    problems: list[Diagnostic] = []
    for stage, needed in enumerate(memory):
        row = []
        for i, device in enumerate(topology.devices):
            limit = topology.memory(device)
            allowed = i in fixed[stage] if fixed[stage] else plan.stages[stage].device_type in ("", device.type)
            fits = limit is None or least[stage] <= limit
            row.append(by_type[device.type][stage] if allowed and fits else math.inf)
        compute.append(tuple(row))
        wanted = fixed[stage] or [i for i, d in enumerate(topology.devices) if plan.stages[stage].device_type in ("", d.type)]
        good = [i for i in wanted if math.isfinite(row[i])]
        if not good or (fixed[stage] and len(good) < len(wanted)):
            seconds_of = {i: by_type[topology.devices[i].type][stage] for i in wanted}
            others = least[stage] - needed.least
            problems.append(_misfit(stage, needed, others, wanted, seconds_of, plan.stages[stage].device_type, topology))
    if problems:
        raise Infeasible(problems)
    replicas = tuple(len(given) or stage.replicas for given, stage in zip(fixed, plan.stages, strict=True))
    return PlacementProblem(topology, net, plan.comm, tuple(compute), messages_of(entry, cuts_of(entry)), fixed, replicas)


def messages_of(entry: Func, cuts: Sequence[Cut]) -> tuple[Message, ...]:
    """What each channel carries; a value of unknown size counts as empty."""
    stated = {value.name: (op.facet(Transfer), i) for op in entry.ops for i, value in enumerate(op.results)}
    messages = []
    for cut in cuts:
        facet, position = stated[cut.tensor.name]
        seconds_stated = facet.seconds[position] if facet is not None else None
        messages.append(Message(cut.name, cut.source, cut.target, cut.nbytes or 0, seconds_stated))
    return tuple(messages)


def stage_memory(module: Module, own: Sequence[Sequence[int]], cuts: Sequence[Cut], comm: str) -> tuple[Memory, ...]:
    """Memory of each stage, given the positions of its ops in the entry function. Buffers lie with the receiver, ``edge_slots``
    of them for each tensor."""
    entry, sizes = module.entry, resource_bytes(module)
    stated = stated_bytes(entry)
    if stated is not None:
        return tuple(Memory(sum(stated[i] for i in positions), 0, 0, 0) for positions in own)
    found = []
    for stage, positions in enumerate(own):
        names = {name for i in positions for name in reads(entry.ops[i]) if name in sizes}
        if stage == 0:
            names |= {value.name for value in entry.results if value.name in sizes}
        arriving = [cut for cut in cuts if cut.target == stage]
        buffers = sum(edge_slots(comm, cut.source, stage, SLOTS) * (cut.nbytes or 0) for cut in arriving)
        least = sum(edge_slots(comm, stage - 1, stage, SLOTS) * (cut.nbytes or 0) for cut in arriving)
        weights = sum(sizes[name] for name in names)
        found.append(Memory(weights, stage_workspace(entry, positions), buffers, buffers - least))
    return tuple(found)


def fixed_devices(plan: Plan, topology: Topology, count: int) -> Placement:
    """Devices that the plan gives its stages. Raises InvalidInput for an unknown one, and for one of several that stages
    share."""
    positions = {device.name: i for i, device in enumerate(topology.devices)}
    fixed: list[tuple[int, ...]] = [()] * count
    holder: dict[str, int] = {}
    for stage in plan.stages:
        for name in stage.devices:
            if name not in positions:
                hint = f"{topology.name} has {listing(positions)}"
                raise InvalidInput(f"no device is called '{name}'", where=f"stage {stage.index}", hint=hint)
            other = holder.setdefault(name, stage.index)
            if plan.stages[other].devices != stage.devices:
                message = f"device '{name}' already runs stage {other}"
                raise InvalidInput(message, where=f"stage {stage.index}", hint="stages share all their devices or none")
        fixed[stage.index] = tuple(positions[name] for name in stage.devices)
    return tuple(fixed)


def _misfit(
    stage: int, memory: Memory, others: int, wanted: Sequence[int], seconds: Mapping[int, float], type_: str, topology: Topology
) -> Diagnostic:
    """Why no device will do: each lacks memory, or cannot run an op."""
    where = f"stage {stage}"
    if not wanted:
        return Diagnostic(f"there is no device of type '{type_}'", where=where, hint="the plan is of another topology")
    able = [i for i in wanted if math.isfinite(seconds[i])]
    if not able:
        names = listing(topology.devices[i].name for i in wanted)
        return Diagnostic(
            f"it holds an op that {names} cannot run", where=where, hint="an op without a time for a type cannot run there"
        )
    device = max((topology.devices[i] for i in able), key=lambda d: topology.memory(d) or 0)
    limit = topology.memory(device) or 0
    shared = f", {others} of other stages there" if others else ""
    needed = memory.least + others
    return Diagnostic(
        f"it needs {needed} bytes on {device.name}, which has {limit}: {needed - limit} bytes too many "
        f"({memory.weights} of weights, {memory.workspace} of workspace, {memory.buffers - memory.spare} of buffers{shared})",
        where=where,
        hint="move ops to another stage, use more stages, or a device with more memory",
    )
