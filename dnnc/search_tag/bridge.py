"""Turns a strategy of TAG's search into a plan of dnnc's IR: stages on meshes of one axis, as a stated plan (``ReplayPass``).

Expressed exactly: whole weights on every device; ops that split the batch in equal parts over a mesh; ops that every device of
a mesh computes whole; and, as stages, op groups on disjoint sets of device groups that depend on each other in one direction.
The rest is projected to the nearest that the IR can express:

- if sets of device groups overlap, or depend on each other in both directions, all op groups go to one mesh over the set that
  has most of the seconds;
- ``ps`` becomes a sum by a collective, ``model`` a split of the batch, and gathered factors the sum of gradients;
- an op whose batch is not divisible by the devices is computed whole by every device.

``Expressed.text`` counts what was changed. Seconds, memory and bound of the plan are dnnc's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dnnc.search_tag.actions import Action, How
from dnnc.search_tag.simulator import Simulator
from ir.core.facets import WHOLE
from ir.core.objectives import TRAINING
from ir.core.shares import equal
from ir.core.types import Replicate, Type
from ir.layout_rules import rules
from passes.graph.graph import ordered_groups, reads
from passes.meshes.layouts import can_be_split
from passes.partition.replay.meshes import ReplayPass

Place = tuple[int, ...]
"""Numbers of device groups."""


@dataclass(frozen=True, slots=True)
class Expressed:
    """The pass that states the plan, and a text about what was projected."""

    replay: ReplayPass
    text: str


def expressed(simulator: Simulator, strategy: Sequence[Action]) -> tuple[Expressed, ...]:
    """The plans for a strategy, the nearest first: in stages if its sets of device groups permit it, and on one mesh."""
    seconds: Counter[Place] = Counter()
    for op, group in enumerate(simulator.workload.group_of):
        seconds[strategy[group].groups] += simulator.workload.mean[op]  # type: ignore[assignment]
    widest = max(seconds, key=lambda place: (seconds[place], place))
    orders = [order for order in (_in_stages(simulator, strategy, list(seconds)),) if len(order) > 1]
    return tuple(_stated(simulator, strategy, order) for order in (*orders, (widest,)))


def _in_stages(simulator: Simulator, strategy: Sequence[Action], places: Sequence[Place]) -> tuple[Place, ...]:
    """The sets of device groups in the order of stages; empty if they overlap or depend on each other in a cycle."""
    if sum(map(len, places)) > len({group for place in places for group in place}):
        return ()
    number = {place: index for index, place in enumerate(places)}
    at = [number[strategy[group].groups] for group in simulator.workload.group_of]
    edges = ((at[maker], at[op]) for op, makers in enumerate(simulator.workload.makers) for maker in makers)
    order = ordered_groups(len(places), edges)
    return tuple(places[index] for index in order) if len(order) == len(places) else ()


def _stated(simulator: Simulator, strategy: Sequence[Action], order: Sequence[Place]) -> Expressed:
    workload, machines = simulator.workload, simulator.machines
    stage_of = {place: index for index, place in enumerate(order)}
    changed: Counter[str] = Counter()
    for action in strategy:
        if action.groups not in stage_of:
            changed["moved to other devices"] += 1
        elif machines.count(action.groups) > 1 and action.how in (How.PS, How.MODEL):
            changed["from ps to all-reduce" if action.how is How.PS else "from model to a split batch"] += 1
    ops, strategies, whole = [], [], 0
    held: dict[tuple[int, str], None] = {}
    types: dict[str, Type] = {name: resource.type for name, resource in workload.module.resources.items()}
    types.update((value.name, value.type) for value in workload.module.entry.args)
    types.update((value.name, value.type) for op in workload.module.entry.ops for value in op.results)
    for number, (op, rule) in enumerate(rules(workload.module)):
        action = strategy[workload.group_of[number]]
        stage = stage_of.get(action.groups, 0)
        count, name = machines.count(order[stage]), WHOLE
        factor = workload.batch.factors.get(number)
        if rule is not None and factor is not None and action.how is not How.DUPLICATE:
            own = [*(types.get(one) for one in op.operands), *(value.type for value in op.results)]
            split = next((one for one in rule.strategies(count) if one.name == factor.name), None)
            if split is not None and can_be_split([split], [equal(count)], own):
                name = factor.name
        whole += factor is not None and action.how is not How.DUPLICATE and name == WHOLE and count > 1
        held.update(((stage, read), None) for read in reads(op) if count > 1 and read in workload.module.resources)
        ops.append(f"{stage}:{op.id}")
        strategies.append(name if count > 1 else "")
    sizes = [machines.count(place) for place in order]
    replay = ReplayPass(
        ops=tuple(ops),
        devices=tuple(f"{stage}:{name}" for stage, place in enumerate(order) for name in machines.devices(place)),
        objective=TRAINING.name,
        strategies=tuple(strategies),
        axes=tuple(f"{stage}:{size}:x" for stage, size in enumerate(sizes) if size > 1),
        weights=tuple(f"{stage}:{Replicate()}:{name[1:]}" for stage, name in held),
        microbatches=simulator.microbatches,
        source="TAG's strategy",
    )
    parts = [f"{count} of {len(strategy)} op groups {how}" for how, count in sorted(changed.items())]
    told = ", ".join([*parts, *([f"{whole} of {len(ops)} ops done whole"] if whole else [])])
    where = f"stages on {', '.join(map(str, sizes))} devices" if len(order) > 1 else f"one stage on {sizes[0]} devices"
    return Expressed(replay, f"{where}; projected: {told or 'nothing'}")
