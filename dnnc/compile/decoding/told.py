"""What the certificate of a decoder's plan tells a person who waits for tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dnnc.compile.decoding.choice import Choice
from dnnc.compile.decoding.prompt import Prompt
from dnnc.compile.flags import CompileOptions
from dnnc.compile.notes import noted
from ir.core.facets import Cost, StageSet
from ir.core.module import Mesh, Module, Plan, PlanStage, Schedule
from ir.core.topology import Topology
from ir.core.types import Shard, TensorType, Type, type_bytes, without_layout
from ir.text.units import bytes_text, count_text, percent_text, seconds_text
from passes.costs.op_time import bandwidth_of
from passes.framework.base import needed
from passes.graph.serving import IDS, batch_of, groups_of, most_groups
from passes.meshes.costs.cross_mesh import Party, part_bytes, parties
from passes.meshes.reshard_ops import keeps, laid, without_reshards
from passes.stages.load import load, step_period

PROMPT = 512
"""Tokens of the prompt whose time to the first token is told, at most half of the context."""
FULL = 0.9
"""Part of a device's memory from which on it is said to be full."""
WORTH = 0.01
"""Relative: what more groups have to gain to be worth a word."""
HEAVY = 0.3
"""Part of a step from which on reading weights is said to take long."""


def with_tokens(plan: Plan, module: Module, options: CompileOptions, prompt: Prompt | None, choice: Choice | None) -> Plan:
    """The plan of a step, whose certificate tells tokens a second of all sequences together, seconds from one token of a
    sequence to its next, and of an objective of tokens to its first; bytes of caches on each device; what would help.

    A step of a group of b sequences takes ``latency`` through all stages, and the slowest stage is busy for ``slowest`` of it.
    So G groups in turn make ``b min(1 / slowest, G / latency)`` tokens a second. Attention counts every position of a cache, so
    all of that is of full caches: shorter sequences take less."""
    schedule, topology = module.first(Schedule), needed(module, Topology)
    if schedule is None or IDS not in dict(module.entry.attributes) or not module.states or plan.value <= 0:
        return plan
    batch, groups = batch_of(module, plan.objective), groups_of(module)
    slowest = max(step_period(plan), plan.period if plan.minimises.streams and not plan.minimises.decodes else 0.0)
    latency = max(schedule.latency, slowest)
    every = plan.period if plan.minimises.decodes else max(slowest, latency / groups)
    told = [
        f"{count_text(batch / every)} tokens a second: {groups} group{'s' if groups > 1 else ''} of {batch} in turn, "
        f"{seconds_text(groups * every)} from a token to the next of its sequence"
        + (", while caches are full" if any(state.axis is not None for state in module.states.values()) else "")
    ]
    if plan.minimises.decodes:
        told.append(_first_token(plan, options, prompt, latency))
    told.append(f"caches: {_caches(plan, module, groups)}")
    turns = math.lcm(*(row.replicas for row in plan.stages))  # replicas share groups evenly
    enough = turns * math.ceil(latency / slowest * (1 - 1e-9) / turns)
    waits = groups < enough and every > slowest * (1 + WORTH) and not plan.minimises.alone
    if waits and (choice is None or choice.most_groups < enough) and _holds(plan, module, topology, groups, enough):
        told.append(f"stages wait for tokens: --groups {enough} would make {count_text(batch / slowest)} a second")
    if plan.minimises.decodes:
        told += _helps(plan, module, topology)
    return noted(plan, tokens="; ".join(told))


def _first_token(plan: Plan, options: CompileOptions, prompt: Prompt | None, latency: float) -> str:
    """Seconds from a prompt to the first token of its answer, where no other sequence is in its way: of its chunks, one after
    the other through the stages; of its tokens where there is no prompt program."""
    context = options.context or 2
    length = min(options.prompt_tokens or min(PROMPT, context // 2), context - 1)
    if prompt is None:
        return f"{seconds_text(length * latency)} to the first token of a prompt of {length}, token by token"
    chunk = math.fsum(load(plan.comm, stage.working, stage.receive, stage.send) for stage in prompt.stages)
    seconds = math.ceil(length / prompt.chunk) * chunk
    return f"{seconds_text(seconds)} to the first token of a prompt of {length}, in chunks of {prompt.chunk}"


def _caches(plan: Plan, module: Module, groups: int) -> str:
    """Bytes of caches on each device, in words; on the members of a mesh that have unlike parts those of the largest."""
    held, unlike = _cache_bytes(plan, module), _with_unlike_parts(plan, module)
    return ", ".join(
        f"{'at most ' * (row.index in unlike)}{bytes_text(held.get(row.index, 0) * served)} on "
        f"{'each of ' * (len(names) > 1)}{','.join(names)}"
        for row in plan.stages
        for served, names in _holders(row, groups).items()
    )


def _cache_bytes(plan: Plan, module: Module) -> dict[int, int]:
    """Bytes of the caches of one group on a device of each stage, the one that holds most."""
    held: dict[int, int] = {}
    for stage, type_, side in _cached(plan, module):
        held[stage] = held.get(stage, 0) + part_bytes(type_, side)
    return held


def _with_unlike_parts(plan: Plan, module: Module) -> set[int]:
    """The stages on meshes of which a member holds more of a cache than another."""
    found = set[int]()
    for stage, type_, side in _cached(plan, module):
        if isinstance(type_, TensorType) and type_.layout is not None and side.sizes:
            placed = zip(type_.layout.placements, side.sizes, strict=True)
            parts = math.prod(size for placement, size in placed if isinstance(placement, Shard))
            if part_bytes(type_, side) * parts != type_bytes(type_):
                found.add(stage)
    return found


def _cached(plan: Plan, module: Module) -> Iterator[tuple[int, Type, Party]]:
    """Each state with its stage, and one replica of that."""
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    resources = module.resources
    stages = {name: op.facet(StageSet) for op in module.entry.ops for name in op.operands if name.startswith("@")}
    for name in module.states:
        if (facet := stages.get(name)) is not None:
            yield facet.stages[0], resources[name].type, sides[facet.stages[0]][0]


def _holds(plan: Plan, module: Module, topology: Topology, groups: int, more: int) -> bool:
    """Whether each device has memory for the caches of its part of ``more`` groups, not of ``groups``."""
    caches, needs = _cache_bytes(plan, module), dict[str, int]()
    for row in plan.stages:
        most = most_groups(groups, row.replicas, row.serves)  # of which ``row.memory`` holds the caches
        for replica, name in enumerate(row.devices):
            then = math.ceil(row.serves.count(replica) * more / groups) if row.serves else most_groups(more, row.replicas)
            needs[name] = needs.get(name, 0) + row.memory + (then - most) * caches.get(row.index, 0)
    limits = {name: topology.memory(topology.device(name)) for name in needs}
    return all(limit is None or needs[name] <= limit for name, limit in limits.items())


def _holders(stage: PlanStage, groups: int) -> dict[int, list[str]]:
    """The devices of a stage by the groups that each of them serves."""
    found: dict[int, list[str]] = {}
    for replica, name in enumerate(stage.devices):
        served = stage.serves.count(replica) if stage.serves else most_groups(groups, stage.replicas)
        found.setdefault(served, []).append(name)
    return found


def _helps(plan: Plan, module: Module, topology: Topology) -> list[str]:
    """What keeps the plan from more tokens a second, or from the next token of its one group: full devices, weights that each
    step reads."""
    alone = plan.minimises.alone
    told, full = [], list[str]()
    for stage in plan.stages:
        limits = [topology.memory(topology.device(name)) for name in stage.devices]
        if not stage.serves and any(limit is not None and stage.memory > FULL * limit for limit in limits):
            full += stage.devices
    if full and (not alone or len(plan.stages) > 1):
        names = ", ".join(full) if len(full) <= 3 else f"{full[0]}, {full[1]} and {len(full) - 2} more"
        most = "more memory there, weights of fewer bits or a shorter context would let it take work of other devices"
        told.append(
            f"memory is full on {names}: "
            + (most if alone else "a shorter context or more memory would leave room for more sequences")
        )
    counted = plan.stages
    if not alone:
        counted = (max(counted, key=lambda stage: load(plan.comm, stage.working, stage.receive, stage.send) * stage.share),)
    seconds = math.fsum(stage.compute for stage in counted)
    part = math.fsum(_weight_seconds(plan, stage, module, topology) for stage in counted) / seconds if seconds else 0.0
    if part > HEAVY:
        less = "weights of fewer bits or devices with faster memory would shorten it" if alone else "larger groups share them"
        told.append(f"reading weights takes {percent_text(part)} of a step: {less}")
    return told


def _weight_seconds(plan: Plan, stage: PlanStage, module: Module, topology: Topology) -> float:
    """Seconds in which the first device of a stage reads its weights, or its part of them, once; 0 where its bandwidth is not
    known."""
    speed = bandwidth_of(topology.type(topology.device(stage.devices[0]).type)) if stage.devices else 0.0
    entry, meshes = without_reshards(module.entry), {mesh.name: mesh for mesh in module.of_type(Mesh)}
    own = [op for op in entry.func.ops if stage.index in op.facet(StageSet, StageSet(())).stages]
    states = module.states
    read = sum(cost.weight for op in own if (cost := op.facet(Cost)) is not None and not states.keys() & set(op.operands))
    types = {name: resource.type for name, resource in module.resources.items()}
    mesh, side = meshes.get(stage.mesh, Mesh("", (), ())), parties(plan, meshes)[stage.index][0]
    kept = keeps(entry, types, stage.index, mesh)  # a tied weight lies in another way in another stage
    weights = [name for op in own for name in op.operands if name in types and name not in states]
    whole = sum(type_bytes(types[name]) or 0 for name in weights)
    part = sum(part_bytes(laid(without_layout(types[name]), mesh, kept[name]), side) for name in weights)
    return read / speed * part / whole if speed and whole else 0.0
