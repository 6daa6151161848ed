"""What the prices of a witness prove: seconds that no plan of a form is below, whatever its cuts, devices and layouts.

With the prices l_t of a second of each type of device, op v is worth at least

    w(v) = min over the types t that can run it of l_t s_t(v)

where s_t(v) are the seconds of all its parts together: those of the op, fused as far as it may be; on ``meshes``, where two
devices or more may share it, also what no way to cut it is below, with the overhead twice, if that is less. Devices that are
busy for at most T seconds a sample do work worth at most T times their prices. So T >= W / L, with W the sum of w and L that of
the prices of all devices. Besides, on ``devices``, T is at least the seconds of any op on the device that is fastest at it, and
where a number of stages was asked for, only so many devices work.

*Hand-over.* Where several devices work, each stage spends the hand-over of its type: with it, T >= (W + min l h) / L. A plan of
one device has none: its T >= W / max l, and at least the seconds of all ops on the fastest device that can run them all.

*A step* of M microbatches on k devices in stages of r_i replicas takes k + b periods, with b the largest of
r_i (ceil(M / r_i) - 1). So b is at least that of the best r <= k (of r = 1 on ``devices``), and where it is no more than some
b, each stage has at least r(b) replicas. All replicas update their weights once a step: 1/M of r(b) times these seconds is
added to the worth of the op that is the first to read a weight. They add up their gradients too, beside a last backward pass of
B seconds: of S seconds of sums max(0, S - B) are left at least, so either none are counted, or S - B, which is a sum over ops.
A period takes W over the k highest prices; the least over k and b is a bound. On ``meshes`` a step takes M + S - 1 periods with
S >= 1, each weight is updated once, and sums may be hidden: M W / L. So it is in either form without a flush, where a step
takes M periods, and in other orders of work than 1F1B: how their rows fill a pipeline of unlike stages no formula tells.

*Tokens* of a decoder: a step of a group is a sample that makes as many as the group has sequences. What is proven is of plans
with this batch alone.

*One sample alone* takes at least the longest path through the ops, each on the device that is fastest at it, whatever the
prices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dnnc.check.witness.facts import Facts
from ir.core.facets import Cost, Time
from ir.core.module import Schedule
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import type_bytes
from ir.text.witness import DEVICES, MESH, MESHES, REPLICAS, Witness
from passes.costs.exchange import BUCKET
from passes.costs.learning import recomputes
from passes.costs.op_time import (
    bandwidth_of,
    body_seconds,
    epilogues,
    fused_seconds,
    in_training,
    launches,
    least_seconds,
    op_seconds,
)
from passes.graph.graph import reads
from passes.timeline.families import DEFAULT

ROUNDING = 1e-9
"""Relative: what a proven bound gives way for sums in another order."""


def proven(facts: Facts, record: Witness) -> float:
    """Seconds of the objective that no plan of the record's form is below, by its prices; 0 where they prove nothing."""
    if not facts.ops:
        return 0.0
    if facts.plan.minimises.alone and record.plans in (DEVICES, REPLICAS):
        return _longest_path(facts) * (1 - ROUNDING)
    by_type = {type_.name: dict(record.prices).get(type_.name, 0.0) for type_ in facts.types}
    every = sorted((by_type[device.type] for device in facts.topology.devices), reverse=True)
    if facts.plan.in_steps:
        return _of_step(facts, record, by_type, every) * (1 - ROUNDING)
    certificate = dict(facts.plan.certificate)
    if record.plans == DEVICES and certificate.get("stages") == str(len(facts.plan.stages)):
        every = every[: len(facts.plan.stages)]  # the bound is of plans in so many stages
    rows = mesh_seconds(facts) if record.plans in (MESH, MESHES) else stage_seconds(facts)
    worth = _worth(rows, by_type)
    found = 0.0
    if sum(every) and math.isfinite(worth):
        handover = min(by_type[type_.name] * type_.handover for type_ in facts.types)
        found = (worth + handover) / sum(every)
        if handover:
            found = min(found, max(worth / every[0], min(math.fsum(row) for row in rows.values())))
    if record.plans == DEVICES:
        found = max(found, max(min(row[v] for row in rows.values()) for v in range(len(facts.ops))))
    return found / facts.tokens * (1 - ROUNDING)


def _longest_path(facts: Facts) -> float:
    """Seconds of the ops on a path, no two of which can run at once."""
    least = [min(row) for row in zip(*stage_seconds(facts).values(), strict=True)]
    ready = [0.0] * len(least)
    found = 0.0
    makers: dict[int, list[int]] = {}
    for tensor in facts.tensors:
        for reader in tensor.readers:
            makers.setdefault(reader, []).append(tensor.maker)
    for v, seconds in enumerate(least):
        ready[v] = seconds + max((ready[u] for u in makers.get(v, ())), default=0.0)
        found = max(found, ready[v])
    return found


def _worth(rows: Mapping[str, Sequence[float]], prices: Mapping[str, float]) -> float:
    """W. A type that cannot run an op (inf) is no way to run it, whatever its price."""
    count = len(next(iter(rows.values())))
    return math.fsum(
        min((prices[name] * row[v] for name, row in rows.items() if math.isfinite(row[v])), default=math.inf)
        for v in range(count)
    )


def _of_step(facts: Facts, record: Witness, prices: Mapping[str, float], every: Sequence[float]) -> float:
    """Seconds of a training step; ``every``: the prices of all devices, the highest first."""
    microbatches = facts.plan.microbatches
    if not sum(every):
        return 0.0
    if record.plans in (MESH, MESHES):
        return microbatches * _worth(mesh_seconds(facts), prices) / sum(every)
    schedule = facts.whole.first(Schedule)
    if not facts.plan.flush or _shares(facts) or (schedule is not None and schedule.kind != DEFAULT):
        return microbatches * _worth(stage_seconds(facts), prices) / sum(every)
    least = math.inf
    fewest: dict[int, int] = {}  # by periods behind, the fewest replicas that have no more
    for replicas in range(1, (len(every) if record.plans != DEVICES else 1) + 1):
        behind = replicas * (math.ceil(microbatches / replicas) - 1)
        if all(behind < other for other in fewest):
            fewest[behind] = replicas
    for behind, replicas in fewest.items():
        rows = [stage_seconds(facts, replicas, len(every) if hidden else 0) for hidden in (False, True)]
        worth = max(_worth(row, prices) for row in rows)
        for k in range(replicas, len(every) + 1):
            least = min(least, (k + behind) * worth / sum(every[:k]) if sum(every[:k]) else 0.0)
    return least


def _shares(facts: Facts) -> bool:
    """Whether stages of the plan share devices: their rows fill a pipeline in another way."""
    devices = [device for stage in facts.plan.stages for device in stage.devices]
    return len(set(devices)) < len(devices)


def stage_seconds(facts: Facts, replicas: int = 1, most: int = 0) -> dict[str, list[float]]:
    """By type, seconds of each op in a stage that holds all it may be fused into; of a training step on all of so many
    replicas, with what they spend once a step (``_updates``)."""
    outputs = [value.name for value in facts.module.entry.results]
    if not facts.plan.in_steps:
        return {type_.name: body_seconds(facts.ops, type_, outputs) for type_ in facts.types}
    updated = _updates(facts, replicas, most)
    return {
        type_.name: [both + again for both, again in zip(facts.steps(type_), updated[type_.name], strict=True)]
        for type_ in facts.types
    }


def mesh_seconds(facts: Facts) -> dict[str, list[float]]:
    """By type, seconds that all parts of each op take together at least, whole or however it is cut."""
    outputs = [value.name for value in facts.module.entry.results]
    followed = {} if facts.plan.in_steps else epilogues(facts.ops, outputs)
    sizes = {value.name: type_bytes(value.type) or 0 for op in facts.ops for value in op.results}
    updated = _updates(facts) if facts.plan.in_steps else {type_.name: [0.0] * len(facts.ops) for type_ in facts.types}
    found = stage_seconds(facts)
    for type_ in facts.types:
        row = found[type_.name]
        for v, op in enumerate(facts.ops):
            cut = _cut(op, type_, facts)
            if v in followed:
                cut = min(cut, fused_seconds(op, type_, sizes[op.operands[followed[v][0]]]))
            row[v] = min(row[v], cut + updated[type_.name][v])
    return found


def _cut(op: Op, type_: DeviceType, facts: Facts) -> float:
    """Seconds of all parts of an op, of which there are two or more."""
    cost, training = op.facet(Cost), facts.plan.in_steps
    if cost is None or math.isinf(op_seconds(op, type_)):
        return op_seconds(op, type_)
    type_ = in_training(type_) if training else type_
    overhead = 0.0 if op.facet(Time) is not None else type_.overhead
    gradients = (cost.input_grad + cost.weight_grad) if training else 0
    forward = 2 * overhead + least_seconds(op, type_, training=training)
    if not training:
        return forward
    forward = max(forward, 2 * launches(op, 0) * type_.launch)
    if not gradients:
        return forward
    backward = max(2 * overhead + least_seconds(op, type_, gradients), 2 * launches(op, gradients) * type_.launch)
    return forward * (1 + recomputes(facts.module)) + backward


def _updates(facts: Facts, replicas: int = 1, most: int = 0) -> dict[str, list[float]]:
    """By type, what one microbatch is charged of the updates of all of a stage's r >= ``replicas``, of the weights that each op
    is the first to read.

    Of its S seconds of sums of gradients a stage hides at most S, so this counts none; and at most B, those of a backward pass:
    with ``most`` replicas at most it counts S - B instead, of each op, at the r for which that is least. S is 2 (r - 1) / r
    of the bytes over a port, and for each bucket 2 (r - 1) latencies, of which r - 1 are counted ``replicas`` times, so that r
    times this is linear in r and is least at an end."""
    first: list[list[str]] = []
    done = set[str]()
    for op in facts.ops:
        first.append([name for name in reads(op) if name in facts.learned.state and name not in done])
        done.update(first[-1])
    found = {}
    for type_ in facts.types:
        ports = [facts.net.port(device.name) for device in facts.topology.devices if device.type == type_.name]
        latency, bandwidth = min(port.latency for port in ports), max(port.bandwidth for port in ports)
        memory, back = bandwidth_of(type_), facts.gradients(type_) if most else [0.0] * len(facts.ops)
        row = []
        for names, hidden in zip(first, back, strict=True):
            moved = summed = 0.0
            for name in names:
                size = facts.weights[name]
                moved += facts.learned.update[name] / memory if memory else 0.0
                if most and not type_.free_transfers:
                    summed += 2 * (size / bandwidth + replicas * size / max(size, BUCKET) * latency)  # for each of r - 1
            ends = (r * (moved - hidden) + (r - 1) * summed for r in {replicas, most or replicas})
            row.append(min(ends) / facts.plan.microbatches)
        found[type_.name] = row
    return found
