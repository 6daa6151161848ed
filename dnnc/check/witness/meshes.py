"""Stages on meshes, beside some with replicas, at inference: what members compute and exchange, what passes between stages, and
the value of the plan.

The layouts are those of ``plan.ir``. Of an op, the seconds of the slowest member are asked of ``member_work``, given the
layouts; the sums are made here. Collectives are counted from the ops of the lowered stages (``passes.meshes.costs.count``),
each message over its route. Between stages, ``cross_mesh.messages`` says who sends to whom; the seconds are counted here: bytes
over the bandwidth of the route, latency, and the links that all of them share.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property

from dnnc.check.faults import PlanRefuted
from dnnc.check.witness.bound import ROUNDING
from dnnc.check.witness.facts import Facts, stated_memory
from dnnc.check.witness.layouts import least_seconds
from dnnc.check.witness.value import Counted, peak
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import SYNCS
from ir.core.module import Mesh, Program, Stage
from ir.core.ops import Op
from ir.core.types import Replicate, TensorType, type_bytes
from ir.layout_rules import LayoutRule, Strategy, rules
from ir.ops.boxes import Placements, box
from ir.ops.rows import edge_slots
from passes.costs.blocked import blocked_values
from passes.costs.learning import avoids_sums
from passes.costs.memory.liveness import SLOTS
from passes.costs.op_time import is_head, may_fuse
from passes.framework.base import PassContext
from passes.graph.folding import folding
from passes.graph.graph import Cut, cuts_of, reads
from passes.meshes.costs.bill import UNSUMMED
from passes.meshes.costs.count import count
from passes.meshes.costs.cross_mesh import Message, Party, message_bytes, messages, parties
from passes.meshes.costs.member_work import MemberWork
from passes.meshes.mesh import AXIS_NAMES, DeviceMesh, mesh_over
from passes.meshes.undecided import undecided
from passes.partition.layouts.decide import choice_of
from passes.partition.layouts.problem.build import Builder, overlaps_on
from passes.plan.parts import StagePart, stage_parts
from passes.programs.lower import LowerPass
from passes.stages.load import hands_over


class OnMeshes:
    """The stages of a plan on meshes."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.plan = facts, facts.plan
        self.module = facts.whole.without(Stage, Program)
        self.parts: list[StagePart] = list(stage_parts(self.module))
        self.sides: list[tuple[Party, ...]] = parties(self.plan, {mesh.name: mesh for mesh in self.module.of_type(Mesh)})
        self.host_of = {device.name: device.host for device in facts.topology.devices}
        self.several = len({device for stage in self.plan.stages for device in stage.devices}) > 1

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        return cuts_of(self.module.entry)

    @cached_property
    def blocked(self) -> frozenset[str]:
        return blocked_values(self.facts.module.entry)

    @cached_property
    def exchanged(self) -> list[float]:
        """Of each stage the seconds of its collectives."""
        lowered = LowerPass().run(self.module, PassContext(sink=DiagnosticSink(), dialects=DIALECTS))
        found = [0.0] * len(self.plan.stages)
        for one in count(lowered):
            found[one.stage] += one.seconds
        return found

    def counted(self) -> list[Counted]:
        """Each stage."""
        received, sent = [0.0] * len(self.sides), [0.0] * len(self.sides)
        buffers = [0] * len(self.sides)
        for cut in self.cuts:
            size, pairs = self.meeting(cut)
            sent[cut.source] += max(self.sending(size, maker, passed) for maker, passed in pairs)
            received[cut.target] += max(self.receiving(size, passed) for _, passed in pairs)
            buffers[cut.target] += edge_slots(self.plan.comm, cut.source, cut.target, SLOTS) * size
        handover = [max(self.facts.type_of(device).handover for device in stage.devices) for stage in self.plan.stages]
        return [
            Counted(
                self.compute(part) + (handover[index] if self.several else 0.0),
                received[index],
                sent[index],
                self.exchanged[index],
                self.weights(part),
                None if self.plan.stages[index].mesh else self.workspace(index),
                buffers[index],
            )
            for index, part in enumerate(self.parts)
        ]

    def value(self, counted: Sequence[Counted]) -> float:
        """The largest load of a stage or link; of one sample alone seconds through all stages; of an objective of tokens
        seconds per token, at least those of a group through all stages divided by the groups in flight. What the collectives of
        a stage keep links busy that others cross too is as the plan says."""
        media: dict[str, float] = defaultdict(float)
        for cut in self.cuts:
            size, pairs = self.meeting(cut)
            for _, passed in pairs:
                for name, seconds in self.busy(size, passed).items():
                    media[name] += seconds / len(pairs)
        for stage in self.plan.stages:
            for name, seconds in stage.shared:
                media[name] += seconds
        loads = [one.compute + one.collectives + one.receive + one.send for one in counted]
        each = [load / len(replicas) for load, replicas in zip(loads, self.sides, strict=True)]
        period = max([*each, *media.values()])
        if self.plan.minimises.trips:
            groups = 1 if self.plan.minimises.alone else max(state.sets for state in self.module.states.values())
            return max(period, math.fsum(loads) / groups) / self.facts.tokens
        return period

    # -- inside a stage ------------------------------------------------------------------------------------------------

    def compute(self, part: StagePart) -> float:
        """Seconds of the ops of a stage, each as long as its slowest member takes, and of values that leave their blocks."""
        func, module, decided, mesh = part.func, self.module, part.decisions, part.mesh
        types = {name: resource.type for name, resource in module.resources.items()}
        types |= {value.name: value.type for value in func.args}
        work = MemberWork(mesh, training=False, again=False)
        whole: Placements = (Replicate(),) * len(mesh.axes)
        made: dict[str, Placements] = {**dict.fromkeys(types, whole), **decided.kept, **decided.entering}
        read = Counter([value.name for value in func.results] + list(decided.leaving))
        for op in func.ops:
            read.update([*op.operands, *_captured(op)])
        asked: dict[str, set[Placements]] = defaultdict(set)
        for name, lies in (*decided.leaving.items(), *decided.outputs.items()):
            asked[name].add(lies)
        chains, seconds = set[str](), []
        for op, rule in rules(module, func):
            types.update((value.name, value.type) for value in op.results)
            if rule is None:
                operands, results = [whole] * len(op.operands), [whole] * len(op.results)
                chosen: list[Strategy | None] = [None] * len(mesh.axes)
            else:
                operands, results, chosen = _layouts(op, rule, part)
            joined = -1
            if may_fuse(op):
                shape = _shape(op.results[0].type)
                for port, (name, lies) in enumerate(zip(op.operands, operands, strict=True)):
                    alone = name in chains and read[name] == 1 and made[name] == lies
                    joined = port if alone and _shape(types[name]) == shape else joined
            if (joined >= 0 or is_head(op)) and op.results and rule is not None:
                chains.add(op.results[0].name)
            of = [types[name] if name else None for name in op.operands] + [value.type for value in op.results]
            port = joined if rule is not None else -1
            seconds.append(work.seconds(op, op.id, of, chosen, [*operands, *results], port)[0])
            made.update((value.name, lies) for value, lies in zip(op.results, results, strict=True))
            for name, lies in (*zip(op.operands, operands, strict=True), *((name, whole) for name in _captured(op))):
                asked[name].add(lies)
        for name in sorted(self.blocked & made.keys()):
            for lies in sorted(asked[name] - {made[name]}, key=str):
                seconds.append(work.reorder_seconds(types[name], made[name], lies))
        return math.fsum(seconds)

    def weights(self, part: StagePart) -> int | None:
        """Bytes of weights on each member; None where members have unequal memory."""
        limits = {self.facts.topology.memory(self.facts.device(device)) for device in part.mesh.devices}
        if len(limits) > 1:
            return None
        found = 0.0
        named = {mesh.name: mesh for mesh in self.module.of_type(Mesh)}
        mesh = named.get(self.plan.stages[part.index].mesh, Mesh("", (), part.mesh.devices))
        for name in dict.fromkeys(name for op in part.func.ops for name in reads(op)):
            type_ = self.module.resources[name].type if name in self.module.resources else None
            if type_ is not None:
                sets = self.facts.served(part.index) if name in self.module.states else 1
                found += sets * _held(type_, part.decisions.kept.get(name, ()), mesh)
        return math.ceil(found)

    def workspace(self, index: int) -> int:
        """Bytes of activations alive at once in a stage on a single device."""
        inputs = {value.name: type_bytes(value.type) or 0 for value in self.facts.module.entry.args}
        return peak(inputs, [self.facts.ops[position] for position in self.facts.stages[index]])

    # -- between stages ------------------------------------------------------------------------------------------------

    def meeting(self, cut: Cut) -> tuple[int, list[tuple[Party, tuple[Message, ...]]]]:
        """Bytes of a message, and of each pair of replicas that work on a common microbatch the maker and the messages."""
        makers, readers = self.sides[cut.source], self.sides[cut.target]
        turns = {(turn % len(makers), turn % len(readers)) for turn in range(len(makers) * len(readers))}
        pairs = [(makers[one], messages(makers[one], readers[other], self.host_of)) for one, other in sorted(turns)]
        return message_bytes(cut.tensor.type, makers[0], readers[0]), pairs

    def sending(self, size: int, maker: Party, passed: Sequence[Message]) -> float:
        """Seconds of the slowest member that makes a value."""
        own = [message for message in passed if not message.on]
        slowest = max(self.of_device(size, device, own) for device in maker.devices)
        return max(slowest, self.together(size, passed)) if slowest else 0.0

    def receiving(self, size: int, passed: Sequence[Message]) -> float:
        """Seconds of the slowest member that reads it, with what it passes on."""
        onward, slowest = [message for message in passed if message.on], 0.0
        for message in passed:
            if not self.facts.free(message.target):
                path = self.facts.net.path(message.source, message.target)
                slowest = max(slowest, path.latency + size / path.bandwidth + self.of_device(size, message.target, onward))
        return max(slowest, self.together(size, passed)) if slowest else 0.0

    def of_device(self, size: int, device: str, own: Sequence[Message]) -> float:
        """Seconds in which a device sends those of the messages that are its own."""
        paths = [self.facts.net.path(device, message.target) for message in own if message.source == device]
        if not paths or self.facts.free(device):
            return 0.0
        return max(path.latency for path in paths) + math.fsum(size / path.bandwidth for path in paths)

    def together(self, size: int, passed: Sequence[Message]) -> float:
        """Seconds until the link that is busy longest has let all of them pass."""
        first = [self.facts.net.path(m.source, m.target).latency for m in passed if not m.on]
        return max((min(first, default=0.0) + seconds for seconds in self.busy(size, passed).values()), default=0.0)

    def busy(self, size: int, passed: Sequence[Message]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for message in passed:
            for name, bandwidth in self.facts.net.path(message.source, message.target).media:
                found[name] += size / bandwidth
        return found


def proven_on(facts: Facts, price: float) -> float:
    """Seconds of the objective that no plan on the one mesh of the plan, or on its one device, is below, by a price of memory
    in seconds per byte. Of a training step the best of what its problems prove, in which sums of gradients are hidden in
    different parts."""
    plan, (builder, mesh) = facts.plan, _problems(facts)
    overlaps: list[float | None] = [None]
    if plan.minimises.trains:
        overlaps = [UNSUMMED] if avoids_sums(builder.module) else [*overlaps_on(mesh.types)]
    found = 0.0
    for overlap in overlaps:
        seconds, _ = least_seconds(builder.build(mesh, overlap=overlap).problem, price, mesh.memory)
        found = max(found, seconds)
    if plan.minimises.trains:
        return found * plan.microbatches * (1 - ROUNDING)
    woken = hands_over(1, len(mesh.devices), training=False)
    handover = min(facts.type_of(device).handover for device in mesh.devices) if woken else 0.0
    return (found + handover) / facts.tokens * (1 - ROUNDING)


def _problems(facts: Facts) -> tuple[Builder, DeviceMesh]:
    """What gives the seconds and bytes of ops and conversions on the one mesh of the plan, and the mesh: that of one
    member where the plan is on one device."""
    plan, module = facts.plan, undecided(facts.module)
    alone = Mesh("@alone", ((AXIS_NAMES[0], 1),), plan.stages[0].devices)
    symbol = next((mesh for mesh in facts.module.of_type(Mesh) if mesh.name == plan.stages[0].mesh), alone)
    mesh = mesh_over(facts.topology, facts.net, symbol).limited(stated_memory(facts.module) or 0)
    builder = Builder(
        module,
        module.entry,
        folding(module.entry, module),
        training=plan.minimises.trains,
        microbatches=plan.microbatches if plan.minimises.trains else 1,
    )
    return builder, mesh


def microbatch_seconds(facts: Facts) -> float | None:
    """Seconds of a microbatch of a training step on one mesh, with its part of what is done once a step, where nothing is
    hidden: those of the ops in their strategies, and of each value for each layout that its readers need. None where gradients
    are not all summed by all-reduce, or a strategy is none of its op."""
    builder, mesh = _problems(facts)
    given, func = builder.build(mesh), builder.module.entry
    part = next(iter(stage_parts(facts.whole.without(Stage, Program))))
    decided, problem = part.decisions, given.problem
    if any(sync.method != SYNCS[0] for sync in decided.synced.values()) or avoids_sums(builder.module):
        return None
    choices: list[int | None] = [None] * problem.size
    for number, (op, rule) in enumerate(rules(builder.module, func)):
        choices[number] = 0 if rule is None else choice_of(given, number, rule, decided.strategies[op.id])
    for node, name in given.kept.items():
        made = problem.node(node).makes[0].tolist()
        lies = [given.layouts[name].placements[given.layout_number(name, source)] for source in made]
        choices[node] = lies.index(decided.kept[name]) if decided.kept[name] in lies else None
    for value in problem.values:
        for node, port in value.readers:
            if node in given.outputs:
                name, needs = given.outputs[node], problem.value_kinds[value.kind].needs
                read = problem.node(node).reads[port].tolist()
                lies = [given.layouts[name].placements[needs[need][0]] for need in read]
                choices[node] = lies.index(decided.outputs[name]) if decided.outputs[name] in lies else None
    taken = [choice for choice in choices if choice is not None]
    if len(taken) < len(choices):
        return None
    seconds = [float(problem.node(node).seconds[choice]) for node, choice in enumerate(taken)]
    for value in problem.values:
        kind, (maker, result) = problem.value_kinds[value.kind], value.maker
        source = problem.node(maker).makes[result][taken[maker]]
        needed = {key for node, port in value.readers for key in kind.needs[problem.node(node).reads[port][taken[node]]]}
        seconds += [float(kind.weights[source, key]) for key in needed]
    return math.fsum(seconds)


def _captured(op: Op) -> set[str]:
    """What regions of an op read that is none of its operands: whole."""
    return set(reads(op)) - set(op.operands)


def _layouts(op: Op, rule: LayoutRule, part: StagePart) -> tuple[list[Placements], list[Placements], list[Strategy | None]]:
    """Of an op, the layouts of what it reads and makes, and its strategy along each axis."""
    chosen = []
    for axis, name in zip(part.mesh.axes, part.decisions.strategies[op.id], strict=False):
        chosen += [strategy for strategy in rule.strategies(axis.size) if strategy.name == name]
    if len(chosen) != len(part.mesh.axes):
        raise InvalidInput(PlanRefuted(f"op {op.id} has no strategy for each axis of its mesh", "compile the model again"))
    operands = [tuple(strategy.operands[i] for strategy in chosen) for i in range(len(op.operands))]
    results = [tuple(strategy.results[i] for strategy in chosen) for i in range(len(op.results))]
    return operands, results, [*chosen]


def _held(type_: object, lies: Placements, mesh: Mesh) -> float:
    """Bytes of the largest part of a resource that a member keeps."""
    if not isinstance(type_, TensorType):
        return 0.0
    size = type_bytes(type_) or 0
    if not lies or not mesh.axes or not type_.elements:
        return float(size)
    boxes = (box(type_, lies, mesh, member) for member in range(len(mesh.devices)))
    return size * max(math.prod(length for _, length in one) for one in boxes) / type_.elements


def _shape(type_: object) -> object:
    return type_.shape if isinstance(type_, TensorType) else None
