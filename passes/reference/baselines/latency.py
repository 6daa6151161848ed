"""Baselines under latency: what splits made for other ends are worth for one sample alone.

A stage on accelerators becomes pieces of one accelerator, a stage on CPUs its single nodes. Where data leaves a stage and comes
back, the stage is broken up: a node's piece is one later than that of any node of the stage from which a path through other
devices leads to it (Tarnawski et al., ``latency-greedy``). All pieces and CPU nodes are then put in an order in which data
flows forward; ``passes.reference.latency`` says what that is worth and which limits it breaks.

``fill_memory`` is the published greedy: units in topological order onto one accelerator after another, as much as each holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ir.core.outcomes import SLACK
from passes.graph.graph import ordered_groups
from passes.reference.baselines.case import Case, NoPlan, Plan
from passes.reference.latency import BuiltLatency, LatencyProblem, Piece, faults, schedule
from passes.reference.latency.bounds import critical_path
from passes.stages.lattice.dp import Stages
from passes.stages.reduce import Groups


def latency_case(case: Case, built: BuiltLatency) -> Case:
    """``case``: of throughput, for the same nodes and devices."""
    problem = built.problem
    bound = critical_path(problem) * (1 - SLACK), "the critical path, each node on its fastest device, transfers free"

    def judged(stages: Stages) -> Plan:
        pieces = in_pieces(problem, [(built.kinds.index(kind), nodes) for kind, nodes in stages if kind != built.cpu])
        broken = faults(problem, pieces)
        if any("cannot run" in fault for fault in broken):
            raise NoPlan("it puts a node where it cannot run")
        if any("colour" in fault for fault in broken):
            raise NoPlan("it tears nodes of one colour apart")
        found = schedule(problem, pieces)
        fits = not any("bytes" in fault for fault in broken)
        return Plan((), found.latency, True, fits, tuple(broken), min(bound[0], found.latency), bound[1], found)

    return replace(case, bound=bound, loose_bound=bound, judged=judged, filled=lambda: fill_memory(case.chained.members, built))


def in_pieces(problem: LatencyProblem, stages: Sequence[tuple[int, Sequence[int]]]) -> list[Piece]:
    """Pieces of stages of (kind, nodes), each on an accelerator of its own, in an order in which data flows forward; nodes in
    no stage are on CPUs. Raises NoPlan where there is no such order."""
    before = problem.makers
    pieces: list[Piece] = []
    used: dict[int, int] = {}
    for kind, nodes in stages:
        parts: dict[int, list[int]] = {}
        for v, number in zip(sorted(nodes), _numbers(before, set(nodes)), strict=True):
            parts.setdefault(number, []).append(v)
        device = used.setdefault(kind, 0)
        used[kind] += 1
        pieces += [Piece(kind, device, tuple(parts[number])) for number in sorted(parts)]
    home = {v: p for p, piece in enumerate(pieces) for v in piece.nodes}
    alone = [v for v in range(problem.nodes) if v not in home]
    groups = sorted([(piece.nodes, p) for p, piece in enumerate(pieces)] + [((v,), -1) for v in alone])
    label = {v: g for g, (nodes, _) in enumerate(groups) for v in nodes}
    edges = ((label[maker], label[reader]) for reader, makers in enumerate(before) for maker in makers)
    order = ordered_groups(len(groups), edges)
    if len(order) < len(groups):
        raise NoPlan("two accelerators would wait for each other")
    return [pieces[groups[g][1]] for g in order if groups[g][1] >= 0]


def _numbers(before: Sequence[Sequence[int]], inside: set[int]) -> list[int]:
    """The number of the piece of each node of ``inside``, ascending: how often a path to it leaves the set and comes back."""
    depth = [0] * len(before)
    for v, makers in enumerate(before):
        if v in inside:
            depth[v] = max([1, *(depth[u] + (u not in inside) for u in makers)])
        else:
            depth[v] = max((depth[u] for u in makers), default=0)
    return [depth[v] for v in sorted(inside)]


def fill_memory(units: Groups, built: BuiltLatency) -> Stages:
    """Units in topological order: an accelerator takes them until the next does not fit or cannot run there, then the next one
    does. What no accelerator left takes is on CPUs. Raises NoPlan where there are none."""
    problem = built.problem
    free = [kind for kind, devices in enumerate(problem.kinds) for _ in devices.devices]
    stages: list[tuple[int, list[int]]] = []
    rest: list[int] = []
    room = -1.0
    for nodes in units:
        size = int(problem.size[list(nodes)].sum())
        runs = [bool(row.all()) for row in np.isfinite(problem.seconds[:, list(nodes)])]
        if room < size or not runs[stages[-1][0]]:
            limits = {kind: problem.kinds[kind].memory for kind in free}
            able = [kind for kind, limit in limits.items() if runs[kind] and (limit is None or size <= limit)]
            if not able:
                rest += nodes
                room = -1.0
                continue
            free.remove(able[0])
            stages.append((able[0], []))
            limit = limits[able[0]]
            room = math.inf if limit is None else limit
        stages[-1][1].extend(nodes)
        room -= size
    if rest and built.cpu is None:
        raise NoPlan("in topological order, a node finds no device left that can take it")
    labelled = [(built.kinds[kind], tuple(sorted(nodes))) for kind, nodes in stages]
    return tuple(labelled) if built.cpu is None else (*labelled, (built.cpu, tuple(sorted(rest))))
