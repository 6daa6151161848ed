"""INV16 to INV19: stages, their channels, schedules and plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir.core.facets import FORWARD, PHASES, UPDATE, StageSet, phase_of
from ir.core.module import Func, Plan, PlanStage, Resource, Schedule, Stage
from ir.core.objectives import OBJECTIVES
from ir.core.ops import Op
from ir.core.outcomes import OUTCOMES, TIGHT
from ir.core.ranges import MOST_MEMORY, MOST_MICROBATCHES, MOST_SECONDS, is_seconds
from ir.core.types import TensorType, Type
from ir.verifier.findings import Findings

COMM_MODELS = ("sum", "overlap", "duplex")


def check_decisions(findings: Findings) -> None:
    """Everything that was decided about the program."""
    _check_stages(findings)
    _check_channels(findings)
    for schedule in findings.module.of_type(Schedule):
        for fault in _schedule_faults(schedule, findings):
            findings.add("INV18", f"in {schedule.name}: {fault}", schedule)
    for plan in findings.module.of_type(Plan):
        for fault in _plan_faults(plan):
            findings.add("INV19", f"in {plan.name}: {fault}", plan)
        for position, stage in enumerate(plan.stages):
            for fault in _plan_stage_faults(plan, stage, position, findings):
                findings.add("INV19", f"in {plan.name}: {fault}", plan, part=stage)
    if findings.plan is not None:
        for func in findings.module.of_type(Func):
            _check_members(findings, func, len(findings.plan.stages))


def _known_devices(findings: Findings) -> set[str] | None:
    return {device.name for device in findings.topology.devices} if findings.topology else None


def _check_stages(findings: Findings) -> None:
    known = _known_devices(findings)
    planned = {stage.index: stage.devices for stage in findings.plan.stages} if findings.plan else {}
    for position, stage in enumerate(findings.stages):
        faults = []
        if stage.index != position:
            faults.append(f"it has number {stage.index} where {position} is next")
        if len(set(stage.devices)) != len(stage.devices):
            faults.append("a device stands twice")
        faults += [f"'{d}' is not a device of the topology" for d in stage.devices if known is not None and d not in known]
        if planned and stage.index not in planned:
            faults.append(f"{findings.plan.name if findings.plan else ''} has no stage {stage.index}")
        elif planned and stage.devices != planned[stage.index]:
            wanted = ", ".join(planned[stage.index]) or "no device"
            faults.append(f"it is on {', '.join(stage.devices) or 'no device'} but the plan says {wanted}")
        if stage.mesh:
            mesh = findings.meshes.get(stage.mesh)
            if mesh is None:
                findings.add("INV06", f"{stage.name} is on {stage.mesh}, which is not a mesh of the module", stage)
            elif mesh.devices != stage.devices:
                faults.append(f"its devices are not those of its mesh {stage.mesh}")
        for fault in faults:
            findings.add("INV16", f"in {stage.name}: {fault}", stage)


def _check_channels(findings: Findings) -> None:
    ends: dict[tuple[str, int], tuple[Stage, Op, Type | None]] = {}
    by_index = {stage.index: stage for stage in findings.stages}
    for stage in findings.stages:
        types = {value.name: value.type for value in stage.args}
        for op in findings.body(stage):
            kind = op.name.removeprefix("comm.")
            if op.name in ("comm.send", "comm.recv") and _is_end(op):
                key = (kind, op.get("channel"))
                if key in ends:
                    findings.add("INV17", f"channel {key[1]} has a second {kind}", stage, op, about="channel")
                else:
                    ends[key] = (stage, op, _moved_type(op, types, findings))
            for value in op.results:
                types[value.name] = value.type
    for (kind, channel), (stage, op, type_) in ends.items():
        other_kind = "recv" if kind == "send" else "send"
        other = ends.get((other_kind, channel))
        peer = by_index.get(op.get("peer"))
        if peer is None or peer is stage:
            findings.add(
                "INV17", f"the peer of channel {channel} is {op.get('peer')}, which is no other stage", stage, op, about="peer"
            )
        elif other is None:
            findings.add(
                "INV17", f"channel {channel} has a {kind} here and no {other_kind} in {peer.name}", stage, op, about="channel"
            )
        elif other[0] is not peer:
            message = f"channel {channel} names stage {peer.index} as its peer, but its {other_kind} is in {other[0].name}"
            findings.add("INV17", message, stage, op, about="peer")
        elif kind == "send" and type_ is not None and not _same_parts(type_, other[2], findings):
            findings.add("INV17", f"channel {channel} sends {type_} but receives {other[2]}", stage, op, about="channel")
        elif kind == "send" and (fault := _phase_fault(stage, op, peer, other[1])):
            findings.add("INV17", f"channel {channel} {fault}", stage, op, about="channel")


def _phase_fault(stage: Stage, send: Op, peer: Stage, receive: Op) -> str:
    """Why no device can send in the one phase what another receives in the other; empty where they can."""
    sent, read = phase_of(send.facets), phase_of(receive.facets)
    if (sent == UPDATE) != (read == UPDATE) or PHASES.index(read) < PHASES.index(sent):
        return f"sends in phase {sent} what {peer.name} receives in phase {read}"
    if sent != UPDATE and (sent == FORWARD) != (stage.index < peer.index):
        return f"of phase {sent} leads from stage {stage.index} to stage {peer.index}, against the order of that phase"
    return ""


def _same_parts(sent: Type, received: Type | None, findings: Findings) -> bool:
    """Whether what members send is what the members of the other stage's mesh receive: layouts may differ in the mesh alone,
    if its axes have the same sizes and shares."""
    if sent == received:
        return True
    if not isinstance(sent, TensorType) or not isinstance(received, TensorType) or not (sent.layout and received.layout):
        return False
    meshes = [findings.meshes.get(layout.mesh) for layout in (sent.layout, received.layout)]
    cuts = [([size for _, size in mesh.axes], mesh.shares) for mesh in meshes if mesh is not None]
    return (
        len(cuts) == 2
        and cuts[0] == cuts[1]
        and sent.layout.placements == received.layout.placements
        and replace(received, layout=sent.layout) == sent
    )


def _is_end(op: Op) -> bool:
    return isinstance(op.get("channel"), int) and isinstance(op.get("peer"), int)


def _moved_type(op: Op, types: dict[str, Type], findings: Findings) -> Type | None:
    if isinstance(of := op.get("of"), Type):
        return of  # in a program, of which this is a part
    if op.operands:
        symbol = findings.symbols.get(op.operands[0])
        return symbol.type if isinstance(symbol, Resource) else types.get(op.operands[0])
    return op.results[0].type if op.results else None


def _schedule_faults(schedule: Schedule, findings: Findings) -> Iterable[str]:
    known = _known_devices(findings)
    devices = [device for device, _ in schedule.rows]
    if len(set(devices)) != len(devices):
        yield "a device has two rows"
    for device in devices:
        if known is not None and device not in known:
            yield f"'{device}' is not a device of the topology"
    counts = (schedule.microbatches, schedule.slots)
    if not all(1 <= count <= MOST_MICROBATCHES for count in counts):
        yield f"microbatches and slots are from 1 to {MOST_MICROBATCHES}"
    if not all(is_seconds(value, infinite=True) for value in (schedule.period, schedule.latency)):
        yield f"period and latency are from 0 to {MOST_SECONDS:g} seconds, or inf"
    stages = {stage.index for stage in findings.stages}
    if findings.plan is not None:
        stages |= {stage.index for stage in findings.plan.stages}
    for device, actions in schedule.rows:
        for action in actions:
            if stages and action.stage not in stages:
                yield f"the row of '{device}' has an action of stage {action.stage}, which does not exist"
            number = action.microbatch
            if number is not None and not schedule.periodic and not 0 <= number < schedule.microbatches:
                yield f"the row of '{device}' has microbatch {number} of {schedule.microbatches}"
            elif number is not None and abs(number) > MOST_MICROBATCHES:
                yield f"the row of '{device}' has microbatch {number}, not from {-MOST_MICROBATCHES} to {MOST_MICROBATCHES}"


_TRAIN = tuple(objective.name for objective in OBJECTIVES if objective.trains)


def _plan_faults(plan: Plan) -> Iterable[str]:
    if plan.objective not in (objective.name for objective in OBJECTIVES):
        yield f"unknown objective '{plan.objective}'; expected one of {', '.join(o.name for o in OBJECTIVES)}"
    if plan.status not in OUTCOMES:
        yield f"unknown status '{plan.status}'; expected one of {', '.join(OUTCOMES)}"
    if plan.comm not in COMM_MODELS:
        yield f"unknown communication model '{plan.comm}'; expected one of {', '.join(COMM_MODELS)}"
    for what, value in (("value", plan.value), ("port_value", plan.port_value), ("bound", plan.bound), ("single", plan.single)):
        if not is_seconds(value, infinite=True):
            yield f"{what} is {value}, not from 0 to {MOST_SECONDS:g} seconds, or inf"
    if plan.bound > plan.value * (1 + TIGHT):
        yield f"the bound {plan.bound} is greater than the value {plan.value}"
    if not 1 <= plan.microbatches <= MOST_MICROBATCHES and (plan.microbatches or plan.objective not in _TRAIN):
        yield f"a training step has {plan.microbatches} microbatches, not from 1 to {MOST_MICROBATCHES}"
    for stage in plan.stages:
        if stage.backward + stage.sync * stage.replicas / max(1, plan.microbatches) > stage.working * (1 + TIGHT):
            yield f"stage {stage.index} has more seconds of its backward pass and of synchronisation than in all"
    keys = [key for key, _ in plan.certificate]
    if keys != sorted(set(keys)):
        yield "the entries of the certificate are not sorted, each once"


def _plan_stage_faults(plan: Plan, stage: PlanStage, position: int, findings: Findings) -> Iterable[str]:
    if stage.index != position:
        yield f"a stage has number {stage.index} where {position} is next"
    seconds = [stage.compute, stage.collectives, stage.receive, stage.send, stage.backward, stage.sync, stage.hidden]
    seconds += [busy for _, busy in stage.shared]
    numbers = (stage.ops, stage.weights, stage.workspace, stage.buffers)
    if not all(0 <= number < MOST_MEMORY for number in numbers):
        yield f"stage {stage.index} has a number that is not from 0 to {MOST_MEMORY - 1}"
    if not all(is_seconds(number, infinite=True) for number in seconds):
        yield f"stage {stage.index} has seconds that are not from 0 to {MOST_SECONDS:g}, or inf"
    if stage.replicas < 1 or (stage.replicas > 1 and stage.devices and len(stage.devices) != stage.replicas):
        yield f"stage {stage.index} has {stage.replicas} replicas and {len(stage.devices)} devices"
    if len(set(stage.devices)) != len(stage.devices):
        yield f"stage {stage.index} has a device twice"
    if stage.serves:
        yield from _serving_faults(plan, stage, findings)
    if stage.mesh:
        mesh = findings.meshes.get(stage.mesh)
        if mesh is None:
            yield f"stage {stage.index} is on {stage.mesh}, which is not a mesh of the module"
        elif mesh.devices != stage.devices:
            yield f"the devices of stage {stage.index} are not those of its mesh {stage.mesh}"
        if stage.replicas != 1:
            yield f"stage {stage.index} is on a mesh, whose devices work together, and has {stage.replicas} replicas"
    elif stage.collectives > 0:
        yield f"stage {stage.index} has seconds of collectives but no mesh"
    topology = findings.topology
    if topology is None:
        return
    types = {type_.name for type_ in topology.types}
    if stage.device_type and stage.device_type not in types:
        yield f"stage {stage.index} is for device type '{stage.device_type}', which is not defined"
    of_device = {device.name: device.type for device in topology.devices}
    for device in stage.devices:
        if device not in of_device:
            yield f"stage {stage.index} is on '{device}', which is not a device of the topology"
        elif stage.device_type and of_device[device] != stage.device_type:
            yield f"stage {stage.index} is for '{stage.device_type}', but '{device}' is of type '{of_device[device]}'"


def _serving_faults(plan: Plan, stage: PlanStage, findings: Findings) -> Iterable[str]:
    """Groups or turns of a stage that are not those of its replicas."""
    sets = max((state.sets for state in findings.module.states.values()), default=0)
    each = set(stage.serves) == set(range(stage.replicas))
    if sets and (len(stage.serves) != sets or not each):
        yield (
            f"stage {stage.index} serves groups by replicas {list(stage.serves)}, expected one for each of {sets} sets of "
            f"states, and each of its {stage.replicas} replicas"
        )
    if not sets and not each:
        yield f"stage {stage.index} gives turns to replicas {list(stage.serves)}, expected each of its {stage.replicas}"
    if not sets and plan.objective in _TRAIN:
        yield f"stage {stage.index} gives turns to its replicas, which have one each in training"
    on = [device for each in plan.stages for device in each.devices]
    if not sets and len(set(on)) < len(on):
        yield f"stage {stage.index} says which of its replicas has which turn, but stages share devices"


def _check_members(findings: Findings, func: Func, stages: int) -> None:
    for op in func.ops:
        facet = op.facet(StageSet)
        if facet is not None and facet.stages and facet.stages[-1] >= stages:
            message = f"{op.id} is in stage {facet.stages[-1]}, but the plan has {stages}"
            findings.add("INV19", message, func, op, about="stage<")
