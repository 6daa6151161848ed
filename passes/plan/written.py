"""The decisions of ``partition`` as they stand in the module: meshes, strategies, layouts, stages, the plan.

- a ``mesh`` symbol for each stage of more than one device: ``@mesh``, or ``@mesh0``, ``@mesh1``, .. where there are stages;
- on each op ``stage<k>`` and, on a mesh, ``shard<"s; s">``: its strategy's name per axis;
- layouts on results and on resources that are not whole everywhere; a resource has the layout of the first stage that reads it;
- a ``comm.reshard`` wherever a layout changes (``passes.meshes.reshard_ops``);
- attributes of the entry function, which are called after the pass that wrote them once, so that earlier plans can be read:
- ``shard.memory``: bytes per device at most; 0: those of the topology, -1: no limit;
- ``shard.copies``: pairs, the id of an op that is a stage's own copy and of the op that it is a copy of (``copies``);
- a ``Plan``, whose value is what the stages' devices and the links between them need per sample, or per step in training:
  that of the bills, so that whoever decides alike writes alike. Its certificate says what the bound was proven for
  (``proof``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ir.core.attributes import attributes
from ir.core.facets import SEPARATOR, SYNCS, ShardRule, StageSet, sync_of, with_facet
from ir.core.module import Func, Mesh, Module, Plan, PlanStage, Program, Resource, Schedule, Stage
from ir.core.ops import Op, Value
from ir.core.outcomes import AGREE
from ir.core.topology import Topology
from ir.core.types import Replicate, Type
from ir.ops.opdefs import COLLECTIVES
from passes.costs.learning import trained
from passes.costs.memory.footprint import buffer_bytes
from passes.costs.memory.liveness import resource_bytes
from passes.costs.network import network
from passes.graph.graph import cuts_of, reads
from passes.graph.serving import groups_of, most_groups
from passes.graph.sizes import assessed
from passes.graph.symbols import insert_symbols
from passes.meshes.costs.cross_mesh import message_bytes, parties
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.layouts import Placements
from passes.meshes.mesh import mesh_over
from passes.meshes.reshard_ops import Decided, laid, with_reshards
from passes.meshes.staged import Staged
from passes.meshes.synced import part_of, synchronised
from passes.plan.copies import own_copies
from passes.plan.proof import proven_for
from passes.stages.load import handover, load
from passes.timeline.families import step
from passes.timeline.workload import Workload, largest_load, learned_channels, workload

SYNCHRONISED = "synchronised"
"""The entry of a certificate that says of how many weights members agree on gradients otherwise than by all-reduce."""


def written(
    module: Module,
    stages: Sequence[Staged],
    plan: Plan,
    proven: Callable[[Plan], Plan] = lambda plan: plan,
    *,
    memory: int = 0,
) -> Module:
    """``module`` with the decisions in it; ``plan``, whose value and stages are still to be filled, says what was proven, or
    ``proven`` gives it a bound once its value is known; ``memory``: the limit that it was made under, as ``device_memory`` of
    ``partition``."""
    bare = module = module.without(Plan, Schedule, Stage, Program)
    if plan.minimises.trains:
        stages = [synchronised(module, stage, plan.microbatches) for stage in stages]
    decided_on = [(stage.ops, stage.mesh, stage.devices) for stage in stages]
    func, stages, copies = own_copies(module.entry, stages, (symbol.name for symbol in module.symbols))
    module = module.replace(module.entry, func)
    names = _mesh_names(module, stages)
    holder = {position: number for number, stage in enumerate(stages) for position in stage.ops}
    on = _meshes(stages, names)
    resources = _resources(module, func, stages, on)

    def value_of(value: Value, number: int | None) -> Value:
        if number is None:
            return value
        return Value(value.name, laid(value.type, on[number], stages[number].bill.lies.get(value.name, ())))

    def op_of(position: int, op: Op) -> Op:
        number = holder[position]
        op = op.with_facets(StageSet((number,)))
        if names[number]:
            op = op.with_facets(ShardRule(SEPARATOR.join(stages[number].decisions.strategies[op.id])))
        return replace(op, results=tuple(value_of(value, number) for value in op.results))

    makers = {value.name: holder[i] for i, op in enumerate(func.ops) for value in op.results}
    outputs = {}
    for number, stage in enumerate(stages):
        for value, layout in stage.decisions.outputs.items() if names[number] else ():
            if makers[value] == number and layout != stage.bill.lies[value]:
                outputs[value] = layout
    others = {key: attribute.value for key, attribute in func.attributes if not key.startswith("shard.")}
    decided: Func = replace(
        func,
        ops=tuple(op_of(i, op) for i, op in enumerate(func.ops)),
        results=tuple(value_of(value, makers.get(value.name)) for value in func.results),
    )
    symbols = tuple(
        decided if symbol is func else _synced(symbol, stages, resources) if isinstance(symbol, Resource) else symbol
        for symbol in module.symbols
    )
    module = insert_symbols(Module(module.name, symbols, module.attributes), [mesh for mesh in on if mesh.axes])
    plan = proven(_filled(module, plan, stages, names))
    plan = assessed(replace(plan, port_value=plan.value), decided, plan.value, min(plan.bound, plan.value), AGREE)
    digest = proven_for(bare, decided_on, plan, memory=memory)
    told_of = {key: text for key, text in plan.certificate if key != SYNCHRONISED} | {"problem": digest}
    told_of |= {SYNCHRONISED: text} if (text := _synced_text(bare, stages)) else {}
    plan = replace(plan, certificate=tuple(sorted(told_of.items())))
    told = {
        **others,
        "shard.memory": memory,
        **({"shard.copies": tuple(name for pair in copies for name in pair)} if copies else {}),
    }
    module = insert_symbols(module.replace(decided, replace(decided, attributes=attributes(told))), (plan,))
    return with_reshards(module, _decided(module, stages, on, holder, outputs))


def _decided(
    module: Module,
    stages: Sequence[Staged],
    on: Sequence[Mesh],
    holder: Mapping[int, int],
    outputs: Mapping[str, Placements],
) -> Decided:
    """What the bills say of the layouts in which ops read and make values; ``outputs``: those of results that leave otherwise
    than they are made."""
    func = module.entry
    wants: list[tuple[Placements, ...] | None] = []
    lies: dict[str, Placements] = {}
    for position, op in enumerate(func.ops):
        number = holder[position]
        bill, whole = stages[number].bill, (Replicate(),) * len(on[number].axes)
        wanted = bill.wanted(op, whole) if on[number].axes else ()
        wants.append(wanted if any(want != whole for want in wanted) else None)
        lies.update((value.name, bill.lies.get(value.name, whole) if on[number].axes else whole) for value in op.results)
    leaving = {value.name: outputs.get(value.name, lies[value.name]) for value in func.results if value.name in lies}
    kept = tuple(stage.decisions.kept if mesh.axes else {} for mesh, stage in zip(on, stages, strict=True))
    members = tuple((holder[position],) for position in range(len(func.ops)))
    return Decided(func, members, tuple(on), tuple(wants), lies, leaving, kept)


def _mesh_names(module: Module, stages: Sequence[Staged]) -> list[str]:
    """The symbol of each stage's mesh, empty for a single device. Names that the module uses already are passed over."""
    taken = {symbol.name for symbol in module.symbols}
    names, number = [], 0
    for index, stage in enumerate(stages):
        wanted = f"@mesh{index}" if len(stages) > 1 else "@mesh"
        while wanted in taken:
            wanted, number = f"@mesh{len(stages) + number}", number + 1
        single = len(stage.mesh.devices) == 1
        names.append("" if single else wanted)
        taken.add(names[-1])
    return names


def _meshes(stages: Sequence[Staged], names: Sequence[str]) -> list[Mesh]:
    """The mesh of each stage; one without axes for a single device."""
    return [
        Mesh(name, tuple((axis.name, axis.size) for axis in stage.mesh.axes), stage.mesh.devices, stage.mesh.shares)
        if name
        else Mesh("", (), stage.mesh.devices[:1])
        for name, stage in zip(names, stages, strict=True)
    ]


def _resources(module: Module, func: Func, stages: Sequence[Staged], on: Sequence[Mesh]) -> dict[str, Type]:
    """The types of resources that lie on a mesh: that of the first stage that reads them."""
    types = module.resources
    found: dict[str, Type] = {}
    for number, stage in enumerate(stages):
        for name in dict.fromkeys(name for i in stage.ops for name in reads(func.ops[i]) if name in types):
            if name not in found:
                found[name] = laid(types[name].type, on[number], stage.decisions.kept.get(name, ()))
    return {name: type_ for name, type_ in found.items() if type_ is not types[name].type}


def _synced(resource: Resource, stages: Sequence[Staged], types: Mapping[str, Type]) -> Resource:
    """A resource with its layout, and with how its gradient is synchronised where that is not what was asked for."""
    type_ = types.get(resource.name, resource.type)
    if type_ is not resource.type:
        resource = replace(resource, type=type_)
    asked = sync_of(resource.facets)
    decided = next((sync for s in stages if (sync := s.decisions.synced.get(resource.name)) is not None), None)
    if asked == decided or asked.method in SYNCS[:2]:
        return resource
    others = tuple(facet for facet in resource.facets if facet != asked)
    return replace(resource, facets=others if decided is None else with_facet(others, decided))


def _synced_text(module: Module, stages: Sequence[Staged]) -> str:
    """How many weights are synchronised in which way; empty where all are by all-reduce."""
    found = {name: sync for stage in stages for name, sync in stage.decisions.synced.items()}
    counts = Counter(sync.method for sync in found.values())
    if not counts["sfb"] and not counts["ps"]:
        return ""
    others = trained(module.resources).keys() - found.keys()
    scattered = sum(sync_of(module.resources[name].facets).method == "reduce_scatter" for name in others)
    counts.update(reduce_scatter=scattered, all_reduce=len(others) - scattered)
    told = {
        "sfb": "by gathered factors (sfb)",
        "ps": "through a server (ps)",
        "reduce_scatter": "summed and updated in parts (reduce_scatter)",
        "all_reduce": "summed by all members",
    }
    return f"gradients of weights: {', '.join(f'{counts[method]} {how}' for method, how in told.items() if counts[method])}"


def _filled(module: Module, plan: Plan, stages: Sequence[Staged], names: Sequence[str]) -> Plan:
    """The plan with its stages (seconds, and bytes on the fullest device of each; ``workspace``: activations, in training with
    those saved for the backward pass) and its value: the largest load of a stage or shared link; of a training step, in which
    every stage counts as long as the slowest, what filling, running and draining take, or what 1F1B takes on the real links
    where that is more (a long synchronisation behind the last backward pass, shared links). Each stage of several spends
    its hand-over, at inference one mesh too, as ``place`` has it."""
    topology = module.first(Topology)
    assert topology is not None
    types = {device.name: device.type for device in topology.devices}
    first = len(stages[0].devices)
    weights = {resource.name: resource.type for resource in module.of_type(Resource)}
    rows = []
    for number, stage in enumerate(stages):
        used = sorted({types[device] for device in stage.mesh.devices})
        handed = handover(map(topology.type, used), len(stages), first, training=plan.minimises.trains)
        bytes_ = footprint(module.entry, weights, stage)
        training = _of_training(module, stage, plan.microbatches) if plan.minimises.trains else {}
        rows.append(
            PlanStage(
                index=number,
                device_type=used[0] if len(used) == 1 else "",
                devices=stage.devices,
                ops=len(stage.ops),
                compute=stage.bill.compute + handed,
                collectives=max(0.0, stage.bill.communication - stage.bill.hidden),
                weights=bytes_.weights - (_idle_bytes(module, stage) if stage.others else 0),
                workspace=bytes_.workspace,
                mesh=names[number],
                replicas=stage.replicas,
                **training,
            )
        )
    plan = replace(plan, stages=tuple(rows))
    if len(stages) == 1:
        seconds = stages[0].bill.overlapped * plan.microbatches + (rows[0].compute - stages[0].bill.compute)
        return replace(plan, value=_in_turn(plan, module, seconds / stages[0].replicas))
    module = insert_symbols(module, (plan,))
    stream, cuts = workload(module), cuts_of(module.entry)
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    receive, send, buffers = [0.0] * len(stages), [0.0] * len(stages), [0] * len(stages)
    for wire in stream.wires:
        receive[wire.target] += wire.receive
        send[wire.source] += wire.send
    sizes = [message_bytes(cut.tensor.type, sides[cut.source][0], sides[cut.target][0]) for cut in cuts]
    for cut, size in zip(cuts, sizes, strict=True):
        buffers[cut.target] += buffer_bytes(plan.comm, cut.source, cut.target, size)
    for channel in learned_channels(module, plan):
        cut = cuts[channel]
        buffers[cut.source] += buffer_bytes(plan.comm, cut.target, cut.source, sizes[channel], returns=True)
    filled = tuple(
        replace(row, receive=receive[row.index], send=send[row.index], buffers=buffers[row.index], shared=shared)
        for row, shared in zip(plan.stages, _shared(module, stages, names, stream), strict=True)
    )
    stream = workload(module.replace(plan, replace(plan, stages=filled)))
    if plan.minimises.trains:
        slowest = max(row.working + row.receive + row.send for row in filled)
        filling = (plan.microbatches + len(stages) - 1) * slowest
        return replace(plan, stages=filled, value=max(filling, step(stream, plan.microbatches).period))
    plan = replace(plan, stages=filled)
    return replace(plan, value=_in_turn(plan, module, largest_load(stream)))


def _in_turn(plan: Plan, module: Module, period: float) -> float:
    """The value of a plan with stages: the ``period`` of a stream; where the time through all stages counts, a period that is
    no less than what one of the groups in flight, of a sample alone the only one, takes through all of them, divided by their
    number; of an objective of tokens per token."""
    if not plan.minimises.trips:
        return period
    trip = math.fsum(load(plan.comm, stage.working, stage.receive, stage.send) for stage in plan.stages)
    return max(period, trip if plan.minimises.alone else trip / groups_of(module)) / plan.tokens


def _idle_bytes(module: Module, stage: Staged) -> int:
    """Bytes of states of the groups that a replica of a stage does not serve, which the bill of the stage counts."""
    groups, read = groups_of(module), {name for i in stage.ops for name in reads(module.entry.ops[i])}
    every, held = resource_bytes(module), resource_bytes(module, most_groups(groups, stage.replicas))
    return sum(every[name] - held[name] for name in read.intersection(module.states))


def _shared(
    module: Module, stages: Sequence[Staged], names: Sequence[str], load: Workload
) -> list[tuple[tuple[str, float], ...]]:
    """Of each stage the links that its collectives keep busy, and for how long per microbatch: those that collectives of
    another stage cross too, or what passes between others."""
    topology = module.first(Topology)
    assert topology is not None
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    net = network(topology)
    busy: list[dict[str, float]] = []
    for stage, name in zip(stages, names, strict=True):
        mesh = mesh_over(topology, net, meshes[name]) if name else stage.mesh
        axes = {axis.name: axis for axis in mesh.axes}
        own: dict[str, float] = {}
        for one in stage.bill.collectives:
            for link, seconds in axes[one.axis].busy(COLLECTIVES[one.kind], one.size).items():
                own[link] = own.get(link, 0.0) + seconds / one.runs
        busy.append(own)
    others = [
        {link for other in busy if other is not own for link in other}
        | {link for wire in load.wires if number not in (wire.source, wire.target) for row in wire.media for link, _ in row}
        for number, own in enumerate(busy)
    ]
    return [
        tuple(sorted((link, seconds) for link, seconds in own.items() if link in shared and seconds > 0))
        for own, shared in zip(busy, others, strict=True)
    ]


def _of_training(module: Module, stage: Staged, microbatches: int) -> dict[str, Any]:
    """What a stage's row says of its backward pass: all that the forward pass alone would not cost, but the synchronisation of
    its weights' gradients and their update, of which the bill has a part of each of ``microbatches``, as it has of what is
    hidden of that."""
    hidden = stage.bill.hidden
    alone = part_of(module.entry, stage)
    forward = price(module, alone, stage.mesh, stage.decisions).compute
    synced = math.fsum(one.seconds for one in stage.bill.collectives if one.summed)
    returned = math.fsum(one.seconds for one in stage.bill.collectives if one.backward and not one.summed)
    return {
        "backward": max(0.0, stage.bill.compute - stage.bill.update - forward) + returned,
        "sync": (max(0.0, synced - hidden) + stage.bill.update) * microbatches,
        "hidden": hidden * microbatches,
        "learning": tuple(sorted(stage.decisions.learning)),
    }
