"""The plan of a few hosts, on all hosts in turn.

The hosts are divided into c equal parts. Each runs the same pipeline, part i for every microbatch m with m modulo c = i, so the
period is a c-th of that of one part. Nothing is sent from part to part, and the search is over the devices of one part alone.
A stage on r devices of a part is a stage on c r devices in the plan, replica i of it in part i modulo c.

There are as many parts as can each hold the model: parts of one host, else of two, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ir.core.outcomes import TIGHT
from passes.partition.bridge.explain import Overfull
from passes.partition.bridge.handover import counting, slowest
from passes.partition.bridge.memory import with_bound, within_memory
from passes.partition.bridge.on_links import host_size, link_value
from passes.partition.bridge.plan import Asked
from passes.partition.lattice.objective import Solution
from passes.partition.lattice.search.replicas import replicate
from passes.solvers.work import sufficient_gap
from passes.stages.bounds import best_bound, prices
from passes.stages.problem import Problem, pools


def on_copies(asked: Asked, held: Problem, search: Callable[[Problem], Solution]) -> Solution | None:
    """The best plan of the fewest hosts that hold the model, on all in turn; it names its devices. None where devices or hosts
    differ, or a stage may not have as many replicas. ``held``: ``asked.problem`` with the workspaces of ``safe``."""
    problem, devices = asked.problem, asked.topology.devices
    size = host_size(asked.topology)
    if not size or len(set(pools(problem.kinds))) > 1:
        return None
    hosts, most = len(devices) // size, max(kind.replicas for kind in problem.kinds)
    for copies in (count for count in range(hosts, 1, -1) if hosts % count == 0 and count <= most):
        count = len(devices) // copies
        part, safe = (_on(one, count, most // copies) for one in (problem, held))
        solution = search(part)
        if solution.stages is None:
            continue
        try:
            solution = within_memory(replace(asked, problem=part), safe, solution, search)
        except Overfull:
            continue
        return _copied(asked, solution, copies, count)
    return None


def is_enough(asked: Asked, copied: Solution) -> bool:
    """Whether no other search follows: the solution of ``on_copies``, on its links, is at the bound, or near it where a search
    over all devices is large."""
    gap = max(TIGHT, sufficient_gap(asked.problem.size, asked.problem.devices))
    value = link_value(asked, asked.members(copied.parts), copied.devices)
    return value <= copied.bound * (1 + gap)


def _on(problem: Problem, count: int, most: int) -> Problem:
    """The problem of the first ``count`` devices, stages on up to ``most`` of them."""
    kind = problem.kinds[0]
    alone = replace(kind, devices=kind.devices[:count])
    one = replace(problem, kinds=(alone,), seconds=problem.seconds[:1], transfer=problem.transfer[:1])
    return replicate(one, min(most, count)) if min(most, count) > 1 else one


def _copied(asked: Asked, solution: Solution, copies: int, count: int) -> Solution:
    """The solution of ``count`` devices on ``copies`` times as many."""
    assert solution.stages is not None
    names, first = [device.name for device in asked.topology.devices], 0
    stages, devices = [], []
    for kind, nodes in solution.stages:
        replicas = kind + 1
        stages.append((replicas * copies - 1, nodes))
        devices.append(tuple(names[part * count + first + r] for r in range(replicas) for part in range(copies)))
        first += replicas
    found = replace(solution, stages=tuple(stages), devices=tuple(devices))
    found = replace(found, value=slowest(counting(asked.problem, asked.topology), found))
    return with_bound(found, *best_bound(asked.problem, prices(asked.problem)))
