"""Plans for the links that there are, where the port model cannot tell a near device from a far one.

The port model prices every transfer at the best that a device can do. On hosts of several devices each, joined by slower links,
its best plan may put a large tensor on a border between hosts. So along the order of the best plan on ports, plans of every
number of stages are made for both speeds (``groups.best_along``) and evaluated with them; how many stages the best one sends
each tensor to serves the next round. The best of all rounds and the plan on ports are then put where ``place`` puts them, and
the better is kept. The bound stays as it is: no link is faster than a port.

With replicas a stage's devices stay on one host: the best plan along the order with one device for each stage is one more
candidate. A plan of few hosts that all take the microbatches in turn (``copies``) is a candidate too.

That is for devices of one kind in hosts of equal size. On any devices, where the real links cost a plan more than ports do,
``partition`` compares it with plans for machines that depend less on slow links (``narrower``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ir.core.diagnostics import Infeasible
from ir.core.module import Plan, PlanStage
from ir.core.objectives import THROUGHPUT, Objective
from ir.core.outcomes import TIGHT, outcome
from ir.core.topology import Link, Switch, Topology
from passes.costs.network import Network, Path, Unreachable, device_classes, network
from passes.graph.graph import DisjointSets, cuts_of
from passes.partition.bridge.plan import Asked, with_stages
from passes.partition.lattice.groups.solver import Hierarchy, best_along
from passes.partition.lattice.objective import Solution, uncut
from passes.solvers.anytime import Limits
from passes.solvers.work import now
from passes.stages.fusing import without_borders
from passes.stages.placement import Placement, PlacementProblem
from passes.stages.placement_from_ir import placement_problem, stage_memory
from passes.stages.placement_search import PlacementSearch
from passes.stages.problem import Kind, Problem, plan_costs, pools

MOST_SETS = 12
"""Sets of devices and speeds of links for which plans are looked for."""
MOST_CLASSES = 64
"""Classes of devices among which sets are looked for."""
PLACE_SECONDS = 3.0
"""Longest search for the places of one plan."""


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
    single = _unreplicated(asked.problem)
    hierarchy = None if single is None else hierarchy_of(single, asked.topology, asked.net)
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
    if not candidates:
        return solution
    kept, least = solution, _value(asked, solution, started + seconds)
    for found in candidates:
        here = _value(asked, found, started + seconds)
        if here < least:
            kept, least = found, here
    return solution if kept is solution else _on_ports(asked, kept, solution.bound)


def narrower(topology: Topology, net: Network) -> Iterator[Topology]:
    """Machines with devices of ``topology``, whose plans depend less on its slow links; at most ``MOST_SETS``, largest first.
    Of each set of devices that faster links join than lead to the others (``clusters``): two machines, one where every link
    is as slow as the slowest between them, and one with the real links. Of machines that differ in names alone, the first."""
    held = {
        device.name: (device.type, -1 if (limit := topology.memory(device)) is None else limit) for device in topology.devices
    }

    def looks(names: Sequence[str], net: Network) -> object:
        ports = {name: net.port(name) for name in names}
        return tuple(sorted((*held[name], ports[name].latency, ports[name].bandwidth) for name in names))

    seen = {looks(list(held), net)}
    for names, routes in clusters(topology, net):
        latency, bandwidth = max(route.latency for route in routes), min(route.bandwidth for route in routes)
        start, switch = max(route.start for route in routes), max(route.switch for route in routes)
        small = min((route.small for route in routes if route.small), default=0.0)
        link = Link("slowest", names, bandwidth, latency, start=start, small=small, switch=switch)
        within = among(topology, names)
        for machines in (replace(within, switches=(), links=(link,), routes=()), within):
            key = looks(names, network(machines))
            if key not in seen and len(seen) <= MOST_SETS:
                seen.add(key)
                yield machines


def among(topology: Topology, names: Container[str]) -> Topology:
    """The topology of some devices; the others forward."""
    others = tuple(Switch(device.name) for device in topology.devices if device.name not in names)
    if not others:
        return topology
    devices = tuple(device for device in topology.devices if device.name in names)
    routes = tuple(route for route in topology.routes if route.source in names and route.target in names)
    return replace(topology, devices=devices, switches=(*topology.switches, *others), routes=routes)


def clusters(topology: Topology, net: Network) -> list[tuple[tuple[str, ...], list[Path]]]:
    """Sets of two devices or more that routes of at least some bandwidth join, for each bandwidth of a route, largest sets
    first; with each the routes between its devices, one for all that are alike. Only the first ``MOST_CLASSES`` classes of
    devices are looked at."""
    classes = device_classes(topology)[:MOST_CLASSES]
    routes = {}  # devices that can be exchanged have the same routes to all others
    for (i, own), (j, other) in itertools.combinations_with_replacement(enumerate(classes), 2):
        if i != j or len(own) > 1:
            ends = (own[0], other[0] if i != j else own[1])
            with suppress(Unreachable):
                routes[i, j] = [net.path(*ends), net.path(*reversed(ends))]
    joined, found = DisjointSets(len(classes)), dict[tuple[int, ...], None]()
    by_width = sorted((-min(route.bandwidth for route in both), pair) for pair, both in routes.items())
    for _, level in itertools.groupby(by_width, key=lambda one: one[0]):
        for _, (i, j) in level:
            joined.join(i, j)
            found |= {(i,): None} if i == j else {}
        found |= dict.fromkeys(joined.listed())
    order = {device.name: place for place, device in enumerate(topology.devices)}
    sets = []
    for members in found:
        names = sorted(itertools.chain(*(classes[i] for i in members)), key=order.__getitem__)
        inside = [route for (i, j), both in routes.items() if i in members and j in members for route in both]
        if len(names) > 1:
            sets.append((tuple(names), inside))
    return sorted(sets, key=lambda one: (-len(one[0]), order[one[0][0]]))


def shifted(own: Sequence[Sequence[int]], classes: Sequence[Sequence[int]]) -> Iterator[list[tuple[int, ...]]]:
    """The stages of these ops, in pipeline order, with one border moved by 1, 2, 4, .. of the places where it splits no class.
    Positional ops are in the first of their stages alone: ``with_stages`` copies them again."""
    number, first = {op: n for n, ops in enumerate(classes) for op in ops}, dict[int, int]()
    for stage, ops in enumerate(own):
        for op in ops:
            first.setdefault(op, stage)
    once = [tuple(op for op in ops if first[op] == stage) for stage, ops in enumerate(own)]
    for stage, (before, behind) in enumerate(itertools.pairwise(once)):
        both, step = (*before, *behind), 1
        last = {number[op]: place for place, op in enumerate(both)}
        furthest = itertools.accumulate((last[number[op]] for op in both), max)
        borders = [border for border, end in enumerate(furthest, 1) if end < border < len(both)]
        here = bisect_left(borders, len(before))
        while step <= len(borders):
            for place in (here - step, here + step):
                if 0 <= place < len(borders):
                    yield [*once[:stage], both[: borders[place]], both[borders[place] :], *once[stage + 2 :]]
            step *= 2


def _on_ports(asked: Asked, solution: Solution, bound: float) -> Solution:
    """The solution with its value by the port model."""
    value = max(cost.load for cost in plan_costs(asked.problem, solution.stages or ()))
    return replace(solution, value=value, status=outcome(value, bound))


def _value(asked: Asked, solution: Solution, ends: float) -> float:
    """``link_value`` of a solution whose stages are those of the plan."""
    stages = solution.stages or ()
    kinds = [asked.problem.kinds[kind] for kind, _ in stages]
    return link_value(asked, asked.members(uncut(stages)), solution.devices, kinds, ends)


def _unreplicated(problem: Problem) -> Problem | None:
    """The problem with one device for each stage; None where devices differ."""
    if len(set(pools(problem.kinds))) != 1:
        return None
    problem = without_borders(problem)  # what is no data takes no link
    if len(problem.kinds) == 1:
        return problem
    return replace(problem, kinds=problem.kinds[:1], seconds=problem.seconds[:1], transfer=problem.transfer[:1])


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
    search = PlacementSearch(problem, Limits(seconds=min(ends - now(), PLACE_SECONDS)))
    chosen = search.run()
    if search.interrupted:
        raise KeyboardInterrupt
    return None if chosen is None else (problem, chosen)
