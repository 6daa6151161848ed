"""Two levels of links: the programme along an order against every split of it, and plans on real links."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ir.core.facets import Time
from ir.core.module import Func, Module, Plan
from ir.core.ops import Op, Value
from ir.core.topology import Device, DeviceType, Host, Link, Switch, Topology
from ir.core.types import DType, TensorType
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.graph.graph import cuts_of
from passes.partition.bridge.on_links import hierarchy_of
from passes.partition.lattice.groups.solver import GroupStage, Hierarchy, best_along, group_value
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass, stage_ops
from passes.reference.pipedream import Machines, Profile, plan_faults, solve_pipedream
from passes.reference.reference_pass import ReferencePass
from passes.stages.from_ir import problem_of
from passes.stages.load import COMM
from passes.stages.placement_from_ir import placement_problem, stage_memory
from passes.stages.problem import Problem, stage_cost
from tests.passes.claims import Claim
from tests.passes.partition.instances import random_problem
from tests.passes.reference.pipedream.test_pipedream import random_profile


def one_kind(seed: int, comm: str, nodes: int) -> Problem:
    problem = random_problem(seed, nodes=nodes, comm=comm)
    return replace(
        problem,
        kinds=(replace(problem.kinds[0], devices=tuple(f"d{i}" for i in range(4))),),
        seconds=np.where(np.isfinite(problem.seconds[:1]), problem.seconds[:1], 1.0),
        transfer=problem.transfer[:1],
        stages=None,
    )


def splits(problem: Problem, order: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to cut the order into stages of which each fits a device and keeps what is demanded."""
    limit = problem.kinds[0].memory
    forced = [(int(problem.producer[h]), set(problem.consumers[h])) for h in problem.forced]
    for count in range(1, problem.devices + 1):
        for cuts in itertools.combinations(range(1, problem.size), count - 1) if problem.stages in (None, count) else ():
            parts = tuple(tuple(sorted(order[a:b])) for a, b in itertools.pairwise([0, *cuts, problem.size]))
            if any(maker in part and readers & set(part) for part in parts for maker, readers in forced):
                continue
            if limit is None or all(stage_cost(problem, part, 0).memory <= limit for part in parts):
                yield parts


def value_of(problem: Problem, hierarchy: Hierarchy, parts: Sequence[tuple[int, ...]]) -> float:
    return group_value(problem, hierarchy, [GroupStage(s, 1, nodes) for s, nodes in enumerate(parts)])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(COMM), st.sampled_from((1, 2, 2, 4)), st.sampled_from((None, None, 2, 3)))
def test_the_best_split_of_an_order_is_found(seed: int, comm: str, size: int, stages: int | None) -> None:
    """From the worst split, whatever memory and cuts ask; where tensors are sent to each reader, never a worse one."""
    problem = replace(one_kind(seed, comm, 8), stages=stages)
    rng = random.Random(seed)
    inner = np.array([rng.choice((0.0, 0.5, 1.0)) for _ in problem.consumers])
    outer = inner + np.array([rng.choice((0.0, 2.0, 8.0)) for _ in problem.consumers])
    latency = rng.choice((0.0, 0.25)), rng.choice((0.25, 1.0))
    found = list(splits(problem, range(problem.size)))
    for once in (True, False) if found else ():
        hierarchy = Hierarchy(size, latency, (inner, outer), once)
        values = [value_of(problem, hierarchy, parts) for parts in found]
        start = max(range(len(found)), key=lambda i: values[i])
        if math.isinf(values[start]):
            return
        plan, value = best_along(problem, hierarchy, tuple((0, nodes) for nodes in found[start]), 0.0)
        assert tuple(nodes for _, nodes in plan) in found
        assert value == pytest.approx(value_of(problem, hierarchy, [nodes for _, nodes in plan]))
        assert value == pytest.approx(min(values)) if once else min(values) * (1 - 1e-9) <= value <= values[start]


def hosts_of_two(rng: random.Random, hosts: int = 2) -> Topology:
    """Devices ``d0``, ``d1``... of one type, two on each host; hosts are joined by slower links."""
    names = [f"d{i}" for i in range(2 * hosts)]
    devices = tuple(Device(name, "t", f"h{i // 2}") for i, name in enumerate(names))
    links = [Link(f"in{i}", (name, f"h{i // 2}"), 2048.0, 0.0) for i, name in enumerate(names)]
    links += [Link(f"out{h}", (f"h{h}", "s"), rng.choice((256.0, 1024.0)), rng.choice((0.0, 0.5))) for h in range(hosts)]
    every = tuple(Host(f"h{h}") for h in range(hosts))
    return Topology("@top", (DeviceType("t"),), every, devices, (Switch("s"),), tuple(links))


def random_module(seed: int) -> Module:
    """Ops of random seconds and sizes, each reading one or two earlier ones."""
    rng = random.Random(seed)
    results: list[str] = ["%x"]
    ops = []
    for v in range(rng.randint(3, 9)):
        reads = sorted({results[-1], rng.choice(results)})
        type_ = TensorType(DType.F32, (rng.choice((16, 64, 256)),))
        time = Time((("@t", float(rng.choice((1, 2, 4)))),))
        ops.append(Op("onnx.Custom", tuple(reads), (Value(f"%v{v}", type_),), facets=(time,)))
        results.append(f"%v{v}")
    return Module("@m", (Func("@main", (Value("%x", ops[0].results[0].type),), (ops[-1].results[0],), tuple(ops)),))


@settings(max_examples=5, deadline=None)
@example(5, "overlap", 1)  # stages in the order of the devices, which is not where they are placed, take 4.5 s and 6 s
@example(543, "sum", 2)
@example(131071, "sum", 1)  # its plan says on which devices stages are
@given(st.integers(0, 10**6), st.sampled_from(COMM), st.integers(1, 2))
def test_plans_for_hosts_are_valued_as_place_does_and_never_worse(seed: int, comm: str, replicas: int) -> None:
    module = random_module(seed).extend([hosts_of_two(random.Random(seed))])
    context = PassContext()
    plain, better = (PartitionPass(comm=comm, hosts=hosts, replicas=replicas).run(module, context) for hosts in (False, True))
    topology = module.first(Topology)
    assert topology is not None
    net = network(topology)
    problem = problem_of(module, topology, net, comm=comm)
    hierarchy = hierarchy_of(problem, topology, net)
    for found in (plain, better):
        plan = found.first(Plan)
        assert plan is not None
        assert plan.bound <= plan.value * (1 + 1e-9)
        if replicas > 1:
            continue
        own, free = stage_ops(found, plan), tuple(replace(stage, devices=()) for stage in plan.stages)
        plan = replace(plan, stages=free)  # a plan on the real links says where they are
        placing = placement_problem(found, plan, topology, net, own, stage_memory(found, own, cuts_of(found.entry), comm))
        here = placing.value(tuple((s,) for s in range(len(own))))
        if hierarchy is not None:
            assert value_of(problem, hierarchy, own) == pytest.approx(max(placing.loads(tuple((s,) for s in range(len(own))))))
        assert plan.bound <= here * (1 + 1e-9)
    placed = [PlacePass().run(found, context).first(Plan) for found in (plain, better)]
    assert placed[1].value <= placed[0].value * (1 + 1e-9)  # type: ignore[union-attr]


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 10**6))
def test_pieces_are_made_only_where_they_pay_on_real_links(seed: int) -> None:
    """Any split is never worse than contiguous once every piece receives for itself, at the speed of its route."""
    module = random_module(seed).extend([hosts_of_two(random.Random(seed))])
    context = PassContext()
    plans = [
        PlacePass(time_limit=0.0)
        .run(ReferencePass(split=split, time_limit=2.0, hosts=False).run(module, context), context)
        .first(Plan)
        for split in ("any", "contiguous")
    ]
    assert plans[0].value <= plans[1].value * (1 + 1e-9)  # type: ignore[union-attr]


def test_a_large_tensor_stays_on_a_host() -> None:
    """Eight ops of 4 s on 2 hosts of 2 devices. Even parts have large tensors on all borders, one between hosts, at 16 s
    a side; parts of two and three ops put a small one there."""
    large, small = TensorType(DType.F32, (4096,)), TensorType(DType.F32, (16,))
    sizes = (small, large) * 4
    ops = tuple(
        Op("onnx.Custom", (f"%v{i - 1}" if i else "%x",), (Value(f"%v{i}", type_),), facets=(Time((("@t", 4.0),)),))
        for i, type_ in enumerate(sizes)
    )
    names = [f"d{i}" for i in range(4)]
    links = [Link(f"in{i}", (name, f"h{i // 2}"), 2.0**20, 0.0) for i, name in enumerate(names)]
    links += [Link(f"out{h}", (f"h{h}", "s"), 1024.0, 0.0) for h in (0, 1)]
    devices = tuple(Device(name, "t", f"h{i // 2}") for i, name in enumerate(names))
    topology = Topology("@top", (DeviceType("t"),), (Host("h0"), Host("h1")), devices, (Switch("s"),), tuple(links))
    func = Func("@main", (Value("%x", small),), (Value("%v7", large),), ops)
    values = []
    for hosts in (False, True):
        module = PartitionPass(hosts=hosts).run(Module("@m", (func, topology)), PassContext())
        plan = PlacePass().run(module, PassContext()).first(Plan)
        assert plan is not None
        values.append(plan.value)
    assert values[0] >= 24 > 12.5 > values[1]


def best_in_groups(profile: Profile, machines: Machines) -> float:
    """PipeDream's objective over every chain of downsets and every number of machines. Machine 0 is the last of the pipeline;
    a link is slow unless all machines of a stage, and the one beyond its border, are in one group."""
    edges = [(v, w) for v, readers in enumerate(profile.readers) for w in readers]
    subsets = itertools.chain.from_iterable(itertools.combinations(range(profile.size), k) for k in range(profile.size + 1))
    downsets = [s for s in map(frozenset, subsets) if all(v in s for v, w in edges if w in s)]

    def cut(ideal: frozenset[int]) -> int:
        return sum(int(profile.output[v]) for v in ideal if any(v == u and w not in ideal for u, w in edges))

    def speed(used: range) -> float:
        return machines.bandwidth if len({m // machines.group for m in used}) == 1 else machines.between

    def stage(start: frozenset[int], end: frozenset[int], taken: int, r: int) -> float:
        nodes = end - start
        weights = sum(int(profile.weights[v]) for v in nodes)
        busy = sum(float(profile.seconds[v]) for v in nodes) / r
        busy += 4 * (r - 1) * weights / (speed(range(taken, taken + r)) * r) / r
        if start:
            busy = max(busy, 2 * cut(start) / (speed(range(taken, taken + r + 1)) * r))
            if taken:
                busy = max(busy, 2 * cut(end) / (speed(range(taken - 1, taken + r)) * r))
        return busy

    @cache
    def least(end: frozenset[int], taken: int) -> float:
        if not end:
            return 0.0
        most = 1 if machines.straight else machines.count - taken
        return min(
            (
                max(stage(start, end, taken, r), least(start, taken + r))
                for start in downsets
                if start < end
                for r in range(1, min(most, machines.count - taken) + 1)
            ),
            default=math.inf,
        )

    return least(frozenset(range(profile.size)), 0)


def claimed(seed: int) -> Claim:
    """Of a random profile on groups of machines, beside brute force. Never better than if all links were as those inside a
    group, nor worse than if all were as those between groups."""
    rng = random.Random(seed)
    profile = random_profile(rng, 5)
    group, bandwidth = rng.randint(1, 3), rng.choice((1.0, 4.0))
    machines = Machines(
        group * rng.randint(1, 5 // group),
        bandwidth,
        rng.random() < 0.3,
        group=group,
        between=bandwidth / rng.choice((1, 2, 8)),
    )
    solution = solve_pipedream(profile, machines)
    plan = [(r, nodes) for r, (_, nodes) in zip(solution.replicas, solution.stages or (), strict=True)]
    faults = plan_faults(profile, machines, plan)
    fast, slow = (
        solve_pipedream(profile, Machines(machines.count, b, machines.straight)) for b in (bandwidth, machines.between)
    )
    if not fast.value * (1 - 1e-12) <= solution.value <= slow.value * (1 + 1e-12):
        faults.append(f"it takes {solution.value}, not between {fast.value} and {slow.value}")
    return Claim(best_in_groups(profile, machines), solution.status, solution.value, solution.bound, faults)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_pipedream_in_groups_equals_brute_force(seed: int) -> None:
    claimed(seed).check()


def test_groups_are_whole_and_slower_outside() -> None:
    for wrong in ({"group": 3}, {"group": 2, "between": 11.0}, {"group": 2, "between": 0.0}):
        with pytest.raises(ValueError, match="groups"):
            Machines(4, 10.0, **wrong)  # type: ignore[arg-type]
