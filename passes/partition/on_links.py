"""Plans for the links that there are, where the port model cannot tell a near device from a far one.

The port model prices every transfer at the best that a device can do. On hosts of several devices each, joined by slower
links, its best plan may put a large tensor on a border between hosts. So along the order of the best plan on ports, plans
of every number of stages are made for both speeds (``hierarchy``) and evaluated with them; how many stages the best one sends
each tensor to serves the next round. The best of all rounds and the plan on ports are then evaluated as ``place`` does, stages
in the order of the devices, and the better is kept. The bound stays as it is: no link is faster than a port.

Only for devices of one kind in hosts of equal size; elsewhere the plan on ports stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ir.diagnostics import Infeasible
from ir.facets import StageSet
from ir.module import Module, Plan, PlanStage
from ir.topology import Topology
from passes.analyses.network import Network
from passes.lower import cuts_of
from passes.partition.dp import Stages
from passes.partition.hierarchy import Hierarchy, best_along
from passes.partition.problem import Problem, plan_costs
from passes.partition.throughput import TIGHT, Solution


def hierarchy_of(problem: Problem, topology: Topology, net: Network) -> Hierarchy | None:
    """Hosts as groups; None where devices differ, hosts are unlike in size, or one speed fits all."""
    if len(problem.kinds) != 1 or not len(problem.consumers):
        return None
    hosts: dict[str, list[str]] = {}
    for device in topology.devices:
        hosts.setdefault(device.host, []).append(device.name)
    first, *others = hosts.values()
    # Stages take devices in the topology's order, so a host's must stand together there.
    in_order = [name for names in hosts.values() for name in names] == [device.name for device in topology.devices]
    if not others or len(first) < 2 or not in_order or any(len(names) != len(first) for names in others):
        return None
    if topology.type(topology.devices[0].type).free_transfers:
        return None
    near, far = net.path(first[0], first[1]), net.path(first[0], others[0][0])
    if far.latency <= near.latency * (1 + TIGHT) and far.bandwidth >= near.bandwidth * (1 - TIGHT):
        return None
    sizes = problem.tensor_bytes.astype(np.float64)
    return Hierarchy(len(first), (near.latency, far.latency), (sizes / near.bandwidth, sizes / far.bandwidth))


def best_on_links(
    module: Module,
    topology: Topology,
    net: Network,
    problem: Problem,
    solution: Solution,
    members: Callable[[Stages], Sequence[Sequence[int]]],
    seconds: float,
) -> Solution:
    """``solution``, or the plan made for two levels of links that is better on the real ones; ``members``: positions of the ops
    of each stage. No round of the search begins after ``seconds``."""
    hierarchy = hierarchy_of(problem, topology, net)
    if hierarchy is None or solution.stages is None:
        return solution
    best, _ = best_along(problem, hierarchy, solution.stages, solution.bound * (1 + TIGHT), seconds)
    if best is solution.stages:
        return solution
    here, there = (link_value(module, topology, net, problem.comm, members(s)) for s in (solution.stages, best))
    if here <= there:
        return solution
    value = max(cost.load for cost in plan_costs(problem, best))
    status = "optimal" if value <= solution.bound * (1 + TIGHT) else "feasible"
    return replace(solution, stages=best, value=value, status=status)


def link_value(
    module: Module,
    topology: Topology,
    net: Network,
    comm: str,
    members: Sequence[Sequence[int]],
    devices: Sequence[Sequence[str]] = (),
) -> float:
    """The value of a plan as ``place`` has it, inf where it does not fit: stages on ``devices``, or one on each in order."""
    from passes.place import placement_problem, stage_memory
    from passes.placement import search

    func = module.entry
    stage_of = {op: stage for stage, ops in enumerate(members) for op in ops}
    staged = replace(func, ops=tuple(op.with_facets(StageSet((stage_of[i],))) for i, op in enumerate(func.ops)))
    module = module.replace(func, staged)
    if devices:
        types = {device.name: device.type for device in topology.devices}
        stages = tuple(PlanStage(i, types[names[0]], tuple(names), replicas=len(names)) for i, names in enumerate(devices))
    else:
        stages = tuple(PlanStage(index, topology.devices[index].type) for index in range(len(members)))
    plan = Plan("@plan", "throughput", comm, math.inf, math.inf, 0.0, "feasible", math.inf, stages)
    try:
        memory = stage_memory(module, members, cuts_of(staged), comm)
        problem = placement_problem(module, plan, topology, net, members, memory)
    except Infeasible:
        return math.inf
    chosen, _ = search(problem, 0)
    return math.inf if chosen is None else problem.value(chosen)


__all__ = ["best_on_links", "hierarchy_of", "link_value"]
