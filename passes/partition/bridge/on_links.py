"""Plans for the links that there are, where the port model cannot tell a near device from a far one.

The port model prices every transfer at the best that a device can do. On hosts of several devices each, joined by slower links,
its best plan may put a large tensor on a border between hosts. So along the order of the best plan on ports, plans of every
number of stages are made for both speeds (``groups.best_along``) and evaluated with them; how many stages the best one sends
each tensor to serves the next round. The best of all rounds and the plan on ports are then put where ``place`` puts them, and
the better is kept. The bound stays as it is: no link is faster than a port.

With replicas a stage's devices stay on one host: two more candidates are the best plan along the order with one device for each
stage, and the plan for groups of devices (``groups.solver``), which names its devices. A plan of few hosts that all take the
microbatches in turn (``copies``) is a candidate too.

That is for devices of one kind in hosts of equal size. On any devices (``best_on_one_host``) the best plan so far is then
compared with the best plans of the devices of one host each, and where it has replicas with the best plan without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import replace

import numpy as np

from ir.core.diagnostics import Infeasible
from ir.core.module import Plan, PlanStage
from ir.core.objectives import THROUGHPUT, Objective
from ir.core.outcomes import TIGHT, outcome
from ir.core.topology import Topology
from passes.costs.network import Network
from passes.graph.graph import cuts_of
from passes.partition.bridge.plan import Asked, with_stages
from passes.partition.lattice.groups.solver import Hierarchy, best_along, best_packed, solve_groups
from passes.partition.lattice.objective import Solution, uncut
from passes.solvers.anytime import Limits
from passes.solvers.work import now
from passes.stages.fusing import without_borders
from passes.stages.lattice.dp import Stages
from passes.stages.placement import Placement, PlacementProblem
from passes.stages.placement_from_ir import placement_problem, stage_memory
from passes.stages.placement_search import PlacementSearch
from passes.stages.problem import Kind, Problem, plan_costs, pools, taken_from

MOST_HOSTS = 8
"""Hosts of different devices whose own plans are looked for."""
GROUP_SECONDS = 3.0
"""Longest search for groups of devices with replicas, and for the places of one plan."""


def hierarchy_of(problem: Problem, topology: Topology, net: Network) -> Hierarchy | None:
    """Hosts as groups; None where devices differ, hosts are unlike in size, or one speed fits all."""
    size = host_size(topology)
    if len(problem.kinds) != 1 or not len(problem.consumers) or size < 2:
        return None
    if topology.type(topology.devices[0].type).free_transfers:
        return None
    first, second, other = (topology.devices[position].name for position in (0, 1, size))
    near, far = net.path(first, second), net.path(first, other)
    if far.latency <= near.latency * (1 + TIGHT) and far.bandwidth >= near.bandwidth * (1 - TIGHT):
        return None
    sizes = problem.tensor_bytes.astype(np.float64)
    return Hierarchy(size, (near.latency, far.latency), (sizes / near.bandwidth, sizes / far.bandwidth))


def host_size(topology: Topology) -> int:
    """How many devices each of several hosts has; 0 where that differs, or hosts do not stand together in the topology's order,
    in which stages take devices."""
    hosts: dict[str, list[str]] = {}
    for device in topology.devices:
        hosts.setdefault(device.host, []).append(device.name)
    sizes = {len(names) for names in hosts.values()}
    in_order = [name for names in hosts.values() for name in names] == [device.name for device in topology.devices]
    return sizes.pop() if len(hosts) > 1 and len(sizes) == 1 and in_order else 0


def best_on_links(asked: Asked, solution: Solution, seconds: float, copied: Solution | None = None) -> Solution:
    """``solution``, or the plan made for two levels of links that is better on the real ones, ``copied`` one of them. No round
    of the search begins after ``seconds``."""
    problem, topology = asked.problem, asked.topology
    single = _unreplicated(problem)
    hierarchy = None if single is None else hierarchy_of(single, topology, asked.net)
    if single is None or hierarchy is None or solution.stages is None:
        return solution
    started = now()
    alone = tuple((0, nodes) for _, nodes in solution.stages)
    best, _ = best_along(single, hierarchy, alone, solution.bound * (1 + TIGHT), seconds)
    candidates: list[Solution] = []
    if copied is not None:
        candidates.append(replace(solution, stages=copied.stages, devices=copied.devices))
    if best is not alone:
        candidates.append(replace(solution, stages=best))
    most = max(kind.replicas for kind in problem.kinds)
    left = min(seconds - (now() - started), GROUP_SECONDS)
    if most > 1 and left > 0:
        grouped = _in_groups(single, hierarchy, best, most, solution, topology, left)
        candidates += [grouped] if grouped is not None else []
    if not candidates:
        return solution
    kept, least = solution, _value(asked, solution, started + seconds)
    for found in candidates:
        here = _value(asked, found, started + seconds)
        if here < least:
            kept, least = found, here
    interrupted = any(found.interrupted for found in candidates)
    if kept is solution:
        return replace(solution, interrupted=solution.interrupted or interrupted)
    return replace(_on_ports(asked, kept, solution.bound), interrupted=interrupted)


def best_on_one_host(
    asked: Asked, solution: Solution, search: Callable[[Problem, float], Solution], seconds: float
) -> Solution:
    """``solution``, or the plan that is better on the real links: of the devices of one host, or without replicas. ``search``:
    the best plan of a problem, none that is not better than a value. No search begins after ``seconds``."""
    problem = asked.problem
    if solution.stages is None or solution.apart:
        return solution
    ends = now() + seconds
    here = _value(asked, solution, ends)
    if here <= max(cost.load for cost in plan_costs(problem, solution.stages)) * (1 + TIGHT):
        return solution  # its links are as fast as its ports
    replicated = any(problem.kinds[kind].replicas > 1 for kind, _ in solution.stages)
    for parts, named in devices_of_hosts(asked.topology, problem, alone=replicated):
        if now() > ends:
            break
        numbers = [number for number, _ in parts]
        some = tuple(kind for _, kind in parts)
        found = search(replace(problem, kinds=some, seconds=problem.seconds[numbers], transfer=problem.transfer[numbers]), here)
        if found.interrupted:
            return replace(solution, interrupted=True)
        if found.stages is None or found.apart:
            continue
        stages = tuple((numbers[kind], nodes) for kind, nodes in found.stages)
        other = replace(solution, stages=stages, devices=_in_turn(some, found.stages) if named else ())
        value = _value(asked, other, ends)
        if value < here:
            here, solution = value, _on_ports(asked, other, solution.bound)
    return solution


def _on_ports(asked: Asked, solution: Solution, bound: float) -> Solution:
    """The solution with its value by the port model."""
    value = max(cost.load for cost in plan_costs(asked.problem, solution.stages or ()))
    return replace(solution, value=value, status=outcome(value, bound))


def _value(asked: Asked, solution: Solution, ends: float) -> float:
    """``link_value`` of a solution whose stages are those of the plan."""
    stages = solution.stages or ()
    kinds = [asked.problem.kinds[kind] for kind, _ in stages]
    return link_value(asked, asked.members(uncut(stages)), solution.devices, kinds, ends)


def devices_of_hosts(topology: Topology, problem: Problem, *, alone: bool) -> list[tuple[list[tuple[int, Kind]], bool]]:
    """Kinds with some of their devices, those of one host (True), and with ``alone`` all devices without replicas (False)."""
    found: dict[object, tuple[list[tuple[int, Kind]], bool]] = {}
    for host in topology.hosts:
        own = {device.name for device in topology.devices if device.host == host.name}
        kinds = [(number, _among(kind, own)) for number, kind in enumerate(problem.kinds)]
        kinds = [(number, kind) for number, kind in kinds if kind.devices and kind.most >= kind.replicas]
        if kinds and len(found) < MOST_HOSTS:
            found.setdefault(tuple((number, kind.count) for number, kind in kinds), (kinds, True))
    every = [(number, kind) for number, kind in enumerate(problem.kinds) if kind.replicas == 1]
    return [*found.values(), *([(every, False)] if alone else [])]


def _among(kind: Kind, names: Container[str]) -> Kind:
    """The kind with those of its devices that are among ``names``."""
    devices, *better = (tuple(name for name in own if name in names) for own in (kind.devices, *kind.better))
    return replace(kind, devices=devices, better=tuple(own for own in better if own))


def _in_turn(kinds: Sequence[Kind], stages: Stages) -> tuple[tuple[str, ...], ...]:
    """The devices of each stage, the next ones of those that its kind takes."""
    left, sources = {kind.devices: list(kind.devices) for kind in kinds}, taken_from(kinds)
    found = []
    for kind, _ in stages:
        mine = [name for pool in sources[kind] for name in left[kinds[pool].devices]][: kinds[kind].replicas]
        found.append(tuple(mine))
        for pool in sources[kind]:
            left[kinds[pool].devices] = [name for name in left[kinds[pool].devices] if name not in mine]
    return tuple(found)


def _unreplicated(problem: Problem) -> Problem | None:
    """The problem with one device for each stage; None where devices differ."""
    if len(set(pools(problem.kinds))) != 1:
        return None
    problem = without_borders(problem)  # what is no data takes no link
    if len(problem.kinds) == 1:
        return problem
    return replace(problem, kinds=problem.kinds[:1], seconds=problem.seconds[:1], transfer=problem.transfer[:1])


def _in_groups(
    problem: Problem,
    hierarchy: Hierarchy,
    stages: Stages,
    most: int,
    solution: Solution,
    topology: Topology,
    seconds: float,
) -> Solution | None:
    """The plan for hosts as groups, stages on up to ``most`` devices of one; None where the number of stages is prescribed, or
    the plan at hand has no such form."""
    if problem.stages is not None:
        return None
    once = replace(hierarchy, once=True)
    groups = len(topology.devices) // hierarchy.size
    known = best_packed(problem, once, groups, [[(1, nodes) for _, nodes in stages]], solution.bound, solution.reason)
    if known is None:
        return None
    found = solve_groups(problem, once, groups, known, replicas=most, seconds=seconds)
    names = [device.name for device in topology.devices]
    return replace(
        solution,
        stages=tuple((stage.replicas - 1, stage.nodes) for stage in found.stages),
        devices=tuple(tuple(names[stage.first : stage.first + stage.replicas]) for stage in found.stages),
        interrupted=found.interrupted,
    )


def link_value(
    asked: Asked,
    members: Sequence[Sequence[int]],
    devices: Sequence[Sequence[str]],
    kinds: Sequence[Kind] = (),
    ends: float = math.inf,
) -> float:
    """The value of a plan as ``place`` has it, inf where it does not fit; the rest as for ``put_on_devices``."""
    put = put_on_devices(asked, members, devices, kinds, ends)
    return math.inf if put is None else put[0].value(put[1])


def put_on_devices(
    asked: Asked,
    members: Sequence[Sequence[int]],
    devices: Sequence[Sequence[str]],
    kinds: Sequence[Kind] = (),
    ends: float = math.inf,
    objective: Objective = THROUGHPUT,
) -> tuple[PlacementProblem, Placement] | None:
    """The plan as ``place`` has it: stages of these ops on ``devices``, or, where these are none, on devices of ``kinds`` where
    ``place`` puts them; None where it does not fit. ``ends``: of ``now``, after which no better places are looked for."""
    topology, comm, module = asked.topology, asked.problem.comm, with_stages(asked.module, members)
    if devices:
        type_of = {device.name: device.type for device in topology.devices}
        stages = tuple(PlanStage(i, type_of[names[0]], tuple(names), replicas=len(names)) for i, names in enumerate(devices))
    else:
        stages = tuple(PlanStage(i, kind.type, replicas=kind.replicas) for i, kind in enumerate(kinds))
    plan = Plan("@plan", objective.name, comm, math.inf, math.inf, 0.0, "within-gap", math.inf, stages)
    try:
        memory = stage_memory(module, members, cuts_of(module.entry), comm)
        problem = placement_problem(module, plan, topology, asked.net, members, memory)
    except Infeasible:
        return None
    search = PlacementSearch(problem, Limits(seconds=min(ends - now(), GROUP_SECONDS)))
    chosen = search.run()
    if search.interrupted:
        raise KeyboardInterrupt
    return None if chosen is None else (problem, chosen)
