"""What is alive in a piece: the kernel, its plain twin and the count that reports use."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import Infeasible
from ir.core.facets import Time
from ir.core.module import Declared, Func, Module, Plan, Resource
from ir.core.ops import Op, Value
from ir.core.topology import Topology
from ir.core.types import DType, TensorType
from passes.costs.memory.liveness import stage_live
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.partition.place import PlacePass
from passes.reference.latency import LatencyProblem, Piece, kernels, latency_problem
from passes.reference.latency.engine import graph_of
from passes.reference.latency.liveness import liveness
from passes.reference.latency.problem import piece_bytes, schedule
from passes.reference.latency.reduce import reduced
from passes.reference.reference_pass import ReferencePass
from passes.stages.from_ir import problem_of
from tests.passes.partition.lattice.groups.test_along_order import random_module
from tests.passes.staging import devices, staged_modules


@given(staged_modules(replicate=False), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_workspace_is_that_of_the_stage(module: Module, rng: random.Random) -> None:
    """Regions that capture, unused arguments, several results: of any set of ops."""
    func = module.entry
    own = liveness(func, [(o,) for o in range(len(func.ops))])
    members = sorted(rng.sample(range(len(func.ops)), rng.randint(1, len(func.ops))))
    assert own.workspace(members) == max(stage_live(func, members))


def problem_with(module: Module, limit: int, count: int, pieces: int) -> LatencyProblem:
    """The problem of a module, a node per op, on devices of ``limit`` bytes."""
    whole = module.extend([devices(count, memory=limit)])
    topology = whole.first(Topology)
    assert topology is not None
    problem = problem_of(whole, topology, network(topology))
    alive = liveness(module.entry, [(o,) for o in range(problem.size)])
    return latency_problem(problem, [False], (), pieces, alive).problem


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_kernel_counts_as_its_twin(seed: int, rng: random.Random) -> None:
    small = reduced(problem_with(random_module(seed), 1 << 20, 2, 2))
    graph = graph_of(small)
    members = sorted(rng.sample(range(len(small.groups)), rng.randint(1, len(small.groups))))
    bits = np.zeros(graph.before.shape[1], np.uint64)
    for g in members:
        bits[g >> 6] |= np.uint64(1 << (g & 63))
    nodes = [v for g in members for v in small.groups[g]]
    own = small.problem.programs
    assert own is not None
    assert kernels.workspace(graph, np.zeros_like(bits), bits) == own.liveness.workspace(nodes)
    assert not graph.left.any()


def least(problem: LatencyProblem, pieces: int) -> float:
    """The least latency over all assignments of ops to pieces that fit, in every order in which they can run."""
    slots = [(d, i) for d in range(problem.accelerators) for i in range(pieces)]
    limit = problem.kinds[0].memory
    assert limit is not None
    best = math.inf
    for places in itertools.product(range(len(slots)), repeat=problem.nodes):
        held = {s: tuple(v for v, other in enumerate(places) if other == s) for s in sorted(set(places))}
        used = [0] * problem.accelerators
        for s, nodes in held.items():
            used[slots[s][0]] += piece_bytes(problem, nodes)
        if max(used) > limit:
            continue
        for order in itertools.permutations(held):
            if any(slots[a][0] == slots[b][0] and a > b for a, b in itertools.combinations(order, 2)):
                continue
            try:
                best = min(best, schedule(problem, [Piece(0, slots[s][0], held[s]) for s in order]).latency)
            except ValueError:
                continue
    return best


def small_module(rng: random.Random) -> Module:
    """Up to five ops that read one or two values, and weights that several may share."""
    weights = [Resource(f"@w{i}", TensorType(DType.F32, (rng.choice((64, 256, 512)),)), Declared()) for i in range(3)]
    names, used, ops = ["%x"], set[str](), []
    for v in range(rng.randint(2, 5)):
        read = sorted({names[-1] if rng.random() < 0.7 else rng.choice(names), rng.choice(names)})
        own = [weight.name for weight in weights if rng.random() < 0.35]
        used.update(own)
        type_ = TensorType(DType.F32, (rng.choice((16, 64, 256)),))
        time = Time((("@t", float(rng.choice((1, 2, 4)))),))
        ops.append(Op("onnx.Custom", (*read, *own), (Value(f"%v{v}", type_),), facets=(time,)))
        names.append(f"%v{v}")
    main = Func("@main", (Value("%x", TensorType(DType.F32, (rng.choice((16, 64, 256)),))),), (ops[-1].results[0],), tuple(ops))
    return Module("@m", (*(weight for weight in weights if weight.name in used), main))


@given(st.integers(0, 10**6))
@settings(max_examples=8)
def test_a_model_is_refused_only_where_nothing_fits(seed: int) -> None:
    """Where one device does not hold all: what partition and place give is the optimum of all plans that fit, to the byte."""
    rng = random.Random(seed)
    module = small_module(rng)
    ops = len(module.entry.ops)
    count, pieces = rng.choice([(2, 1), (3, 1), (1, 2)] + ([(2, 2)] if ops < 5 else []))
    everything = piece_bytes(problem_with(module, 1, 1, 1), range(ops))
    limit = int(everything * rng.choice((0.5, 0.65, 0.8, 0.9, 1.0)))
    best = least(problem_with(module, limit, count, pieces), pieces)
    given_ = module.extend([devices(count, memory=limit)])
    if math.isinf(best):
        with pytest.raises(Infeasible):
            ReferencePass(objective="latency", pieces=pieces).run(given_, PassContext())
        return
    found = ReferencePass(objective="latency", pieces=pieces).run(given_, PassContext())
    plan = PlacePass().run(found, PassContext()).first(Plan)
    assert plan is not None
    assert plan.value == pytest.approx(best)
    assert plan.bound == pytest.approx(best)
    assert plan.bound <= best * (1 + 1e-12)
