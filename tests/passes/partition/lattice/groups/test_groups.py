"""Stages on groups of devices: the exact search against every chain of downsets on every choice of devices."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.groups.solver import GroupPlan, GroupStage, Hierarchy, group_plan, group_value, solve_groups
from passes.stages.load import COMM
from passes.stages.problem import Kind, Problem, stage_cost
from passes.stages.reduce import permuted
from tests.passes.claims import Claim
from tests.passes.partition.instances import ideals, random_problem

NOTHING = group_plan((), math.inf, 0.0, "")


def grouped_problem(seed: int, comm: str) -> tuple[Problem, Hierarchy, int, int]:
    """A problem of one kind, groups and what is most: groups, replicas."""
    rng = random.Random(seed)
    problem = random_problem(seed, nodes=6, comm=comm)
    groups, size = rng.choice(((1, 3), (2, 1), (2, 2), (3, 1), (2, 3), (3, 2)))
    kind = Kind("acc", tuple(f"d{i}" for i in range(groups * size)), problem.kinds[0].memory)
    alone = [pair for pair in zip(problem.weight_bytes, problem.weight_readers, strict=True) if len(pair[1]) == 1]
    inner = np.array([rng.choice((0.0, 0.5, 1.0)) for _ in problem.consumers])
    problem = replace(
        problem,
        kinds=(kind,),
        seconds=np.where(np.isfinite(problem.seconds[:1]), problem.seconds[:1], 1.0),
        transfer=inner[None, :],
        live=np.zeros(problem.size, np.int64),
        forced=(),
        stages=None,
        weight_bytes=np.array([size for size, _ in alone], np.int64),
        weight_readers=tuple(readers for _, readers in alone),
    )
    outer = inner * rng.choice((1.0, 2.0, 5.0))
    return problem, Hierarchy(size, (0.0, 0.0), (inner, outer), once=True), groups, rng.choice((1, 1, 2, 3))


def brute_force(problem: Problem, hierarchy: Hierarchy, groups: int, replicas: int) -> float:
    """Every chain of downsets, every number of replicas, every way to begin a new group."""
    downsets, whole = ideals(problem), frozenset(range(problem.size))
    limit = problem.kinds[0].memory
    least = math.inf

    @cache
    def fits(nodes: frozenset[int]) -> bool:
        return limit is None or stage_cost(problem, nodes, 0).memory <= limit

    def extend(done: frozenset[int], stages: tuple[GroupStage, ...], free: int) -> None:
        nonlocal least
        if done == whole:
            least = min(least, group_value(problem, hierarchy, stages))
            return
        for wider in downsets:
            if not done < wider or not fits(wider - done):
                continue
            for first in {free, -(-free // hierarchy.size) * hierarchy.size}:
                room = hierarchy.size - first % hierarchy.size
                if first >= groups * hierarchy.size:
                    continue
                for r in range(1, min(replicas, room) + 1):
                    stage = GroupStage(first, r, tuple(sorted(wider - done)))
                    extend(wider, (*stages, stage), first + r)

    extend(frozenset(), (), 0)
    return least


def solved(problem: Problem, hierarchy: Hierarchy, groups: int, replicas: int, high: float = 1e3) -> GroupPlan:
    return solve_groups(problem, hierarchy, groups, replace(NOTHING, value=high), replicas=replicas, seconds=60.0)


def claimed(seed: int, comm: str) -> list[Claim]:
    """Of a random problem: value, proof and stages; and the same again with the nodes in another order."""
    problem, hierarchy, groups, replicas = grouped_problem(seed, comm)
    if problem.size > 5 and groups * replicas > 4:
        replicas = 1
    wanted = brute_force(problem, hierarchy, groups, replicas)
    found = []
    for one in (problem, permuted(problem, random_order(problem, seed))):
        plan, faults = solved(one, hierarchy, groups, replicas), list[str]()
        if plan.stages:
            if sorted(v for stage in plan.stages for v in stage.nodes) != list(range(problem.size)):
                faults.append("its stages are not all nodes, each once")
            if group_value(one, hierarchy, plan.stages) != plan.value:
                faults.append(f"its stages do not take {plan.value}")
            if any(before.first + before.replicas > after.first for before, after in itertools.pairwise(plan.stages)):
                faults.append("two stages share a device")
            ends = [
                (stage.first // hierarchy.size, (stage.first + stage.replicas - 1) // hierarchy.size) for stage in plan.stages
            ]
            if not all(first == last < groups for first, last in ends):
                faults.append("a stage is in two groups, or in none")
        tight = plan.bound == pytest.approx(plan.value)
        status = "optimal" if plan.stages and tight else "within-gap" if plan.stages else "infeasible"
        found.append(Claim(wanted, status, plan.value if plan.stages else math.inf, plan.bound, faults))
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(COMM))
def test_groups_equal_brute_force(seed: int, comm: str) -> None:
    for claim in claimed(seed, comm):
        claim.check()


def random_order(problem: Problem, seed: int) -> list[int]:
    """A topological order drawn at random."""
    rng, order = random.Random(seed), []
    before = {v: set[int]() for v in range(problem.size)}
    for u, readers in zip(problem.producer.tolist(), problem.consumers, strict=True):
        for v in readers:
            before[v].add(u)
    while len(order) < problem.size:
        order.append(rng.choice([v for v in before if v not in order and before[v] <= set(order)]))
    return order
