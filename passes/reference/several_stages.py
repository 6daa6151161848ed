"""Plans of several stages on a device: their stages and devices, what crosses between devices, and what is proven of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ir.core.objectives import LATENCY
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from passes.partition.bridge.handover import one_stage
from passes.partition.bridge.memory import with_bound
from passes.partition.bridge.on_links import link_value, put_on_devices
from passes.partition.bridge.plan import Asked
from passes.partition.lattice.objective import Budget, Parts, Solution
from passes.reference.assignment.solver import AnySolution, solve_any
from passes.reference.pieces import pieces
from passes.solvers.anytime import Progress
from passes.solvers.work import now
from passes.stages.bounds import lower_bound, prices
from passes.stages.problem import Floats, Kind, Problem

S = TypeVar("S", bound=Solution)
MOST_HOSTS = 8
"""Hosts of different devices whose own plans are looked for."""
OVERCOUNTED = "plans that fit only because the pieces on a device run one after the other were not searched"
"""Of any split: its search holds workspace and buffers of all pieces on a device at once. So what it refutes is no bound."""


def in_pieces(problem: Problem, solution: S) -> S:
    """The solution, each of its stages cut into the pieces that a device runs one after another (``pieces``)."""
    return replace(solution, apart=pieces(problem, [nodes for _, nodes in solution.stages or ()]))


def own_devices(problem: Problem, solution: Solution) -> tuple[tuple[str, ...], ...]:
    """A device for each stage of the solution, the first of its kind that is free."""
    free = [list(kind.devices) for kind in problem.kinds]
    return tuple((free[kind].pop(0),) for kind, _ in solution.stages or ())


def boundaries_text(problem: Problem, parts: Parts) -> str:
    """How many tensors devices receive for a sample, each once per stage that reads it, and over how many pairs."""
    home = {v: (owner, index) for index, (owner, nodes) in enumerate(parts) for v in nodes}
    crossing = {
        (h, home[v])
        for h, (maker, readers) in enumerate(zip(problem.producer.tolist(), problem.consumers, strict=True))
        for v in readers
        if home[v][0] != home[maker][0]
    }
    pairs = {(home[int(problem.producer[h])][0], owner) for h, (owner, _) in crossing}
    return f"transfers per sample: {len(crossing)}, pairs of devices: {len(pairs)}"


def bounded(solution: Solution, asked: Asked, budget: Budget, ends: float, progress: Progress) -> Solution:
    """The solution with a bound of all plans, also of those that the search's count of memory refuses: every plan holds its
    weights, so what is proven where these alone count is proven of all."""
    problem = asked.problem
    bound, reason = lower_bound(asked.fine, prices(asked.fine))
    known = with_bound(solution, bound, f"{reason}; {OVERCOUNTED}")
    if solution.interrupted or known.status == "optimal":
        return known
    weights = replace(problem, live=np.zeros_like(problem.live), tensor_bytes=np.zeros_like(problem.tensor_bytes))
    left = replace(budget, seconds=max(0.0, ends - now()))
    least = solve_any(weights, left, progress, starts=[solution.stages or ()])
    if least.bound <= known.bound:
        return replace(known, interrupted=least.interrupted)
    reason = f"{least.reason}; of memory the weights alone counted"
    return replace(with_bound(solution, least.bound, reason), interrupted=least.interrupted)


def worth_its_boundaries(asked: Asked, solution: AnySolution, ends: float) -> Solution:
    """The solution, or the contiguous one that it began with where that is no worse on the real links: in pieces, a device
    receives what several of them read for each, and pays latencies that the search, which knows one set of nodes per
    device, does not see."""
    problem = asked.problem
    parts = solution.parts
    if solution.contiguous is None or solution.stages is None or len(parts) <= len(solution.contiguous):
        return solution
    plain = in_pieces(problem, replace(solution, stages=solution.contiguous))
    values = []
    for found in (solution, plain):
        here, names = found.parts, own_devices(problem, found)
        on = [names[owner] for owner, _ in here]
        values.append(link_value(asked, asked.members(here), on, ends=ends))
    if values[0] < values[1] or math.isinf(values[1]):
        return solution
    return with_bound(replace(plain, value=solution.contiguous_value), solution.bound, solution.reason)


def soonest_on_links(
    asked: Asked,
    solution: Solution,
    search: Callable[[Problem, float], Solution],
    value_of: Callable[[Problem, Solution], float],
    ends: float,
) -> Solution:
    """The plan that is done first with one sample alone on the real links, with the bound of ``solution``, whose transfers take
    as long as ports do: that plan, the model on one device, or the best plan of the devices of one host, or of all
    where every transfer takes the slowest way. ``search``: the best plan of a problem, in at most so many seconds; none begins
    after ``ends``. ``value_of``: the time by ports."""
    if not solution.stages or solution.interrupted:
        return solution
    least, of_ports = _alone(asked, solution, ends)
    if least <= of_ports * (1 + TIGHT):
        return solution
    kept = solution
    for found in _others(asked, solution, search, ends):
        here, _ = _alone(asked, found, ends)
        if here < least:
            kept, least = replace(found, value=value_of(asked.problem, found)), here
        if found.interrupted:
            kept = replace(kept, interrupted=True)
            break
    return with_bound(kept, solution.bound, solution.reason)


def _alone(asked: Asked, solution: Solution, ends: float) -> tuple[float, float]:
    """Seconds of one sample alone on the real links (inf where the plan does not fit), and with transfers as fast as ports."""
    names = solution.devices or own_devices(asked.problem, solution)
    parts = solution.parts
    put = put_on_devices(asked, asked.members(parts), [names[owner] for owner, _ in parts], ends=ends, objective=LATENCY)
    return (math.inf, 0.0) if put is None else (put[0].latency(put[1]), put[0].latency(put[1], ports=True))


def _others(asked: Asked, solution: Solution, search: Callable[[Problem, float], Solution], ends: float) -> Iterator[Solution]:
    """Plans that need less of the links than ``solution`` may, each with its devices."""
    problem = asked.problem
    single = one_stage(asked, solution)
    if single is not None:
        yield single
    slow = np.stack([_slowest(asked, kind.devices, own) for kind, own in zip(problem.kinds, problem.transfer, strict=True)])
    every = list(enumerate(problem.kinds))
    tried = [(every, slow), *((parts, problem.transfer) for parts in _on_hosts(asked.topology, problem))]
    for index, (parts, transfer) in enumerate(tried):
        left = ends - now()
        if left <= 0:
            return
        numbers = [number for number, _ in parts]
        kinds = tuple(kind for _, kind in parts)
        part = replace(problem, kinds=kinds, seconds=problem.seconds[numbers], transfer=transfer[numbers])
        found = search(part, left / (len(tried) - index))
        if found.stages is not None:
            stages = tuple((numbers[kind], nodes) for kind, nodes in found.stages)
            yield replace(
                solution, stages=stages, apart=found.apart, devices=own_devices(part, found), interrupted=found.interrupted
            )


def _on_hosts(topology: Topology, problem: Problem) -> list[list[tuple[int, Kind]]]:
    """Kinds, by number, with those of their devices that are on one host; of hosts with as many of each the first."""
    found: dict[object, list[tuple[int, Kind]]] = {}
    for host in topology.hosts:
        own = {device.name for device in topology.devices if device.host == host.name}
        kinds = [(number, _among(kind, own)) for number, kind in enumerate(problem.kinds)]
        kinds = [(number, kind) for number, kind in kinds if kind.devices and kind.most >= kind.replicas]
        if kinds and len(found) < MOST_HOSTS:
            found.setdefault(tuple((number, kind.count) for number, kind in kinds), kinds)
    return list(found.values())


def _among(kind: Kind, names: Container[str]) -> Kind:
    """The kind with those of its devices that are among ``names``."""
    devices, *better = (tuple(name for name in own if name in names) for own in (kind.devices, *kind.better))
    return replace(kind, devices=devices, better=tuple(own for own in better if own))


def _slowest(asked: Asked, names: tuple[str, ...], ports: Floats) -> Floats:
    """Of each tensor the seconds between one of these devices and the one that it takes longest to, no less than ``ports``."""
    paths = [asked.net.path(name, other.name) for name in names for other in asked.topology.devices if other.name != name]
    taken = [path.latency + asked.problem.tensor_bytes / path.bandwidth for path in paths]
    slowest: Floats = np.maximum.reduce([ports, *taken])
    return slowest
