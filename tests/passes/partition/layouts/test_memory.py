"""Bytes of plans: the search against brute force under limits, and what is counted against the programs that members run."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnnc.onnx import DIALECTS
from ir.core.attributes import attributes
from ir.core.diagnostics import Infeasible
from ir.core.facets import Cost
from ir.core.module import Declared, Func, Module, Plan, PlanStage, Resource, Stage
from ir.core.ops import Op, Value
from ir.core.topology import Topology
from ir.core.types import DType, Replicate, Shard, TensorType, type_bytes, without_layout
from passes.costs.memory.liveness import live_bytes
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.graph.graph import reads
from passes.meshes import LocalProgram
from passes.meshes.costs.bill import Decisions
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.meshes.staged import Staged
from passes.partition.alternatives import alternatives
from passes.partition.layouts import NoPlanError, ShardInput, build, decisions_of, solve
from passes.plan.written import written
from passes.prepare.cost import CostPass
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.members import local_programs
from tests.passes.meshes.planning import lowered, random_plan, searched, through, topology
from tests.passes.partition.layouts.exact import brute_force, integer_programme
from tests.passes.partition.layouts.test_stages import costed, text_of
from tests.passes.partition.on_meshes import on_meshes

ROWS = TensorType(DType.F32, (8, 16))
SHAPES: list[tuple[int, ...]] = [(2,), (4,), (2, 2)]
FEW = 20_000
"""Assignments up to which a problem is enumerated; of more, the integer programme is solved."""


def training_input(module: Module, sizes: tuple[int, ...], in_flight: int = 1) -> ShardInput:
    top = topology(math.prod(sizes))
    mesh = mesh_of(top, network(top), sizes)
    return build(module, module.entry, mesh, None, training=True).keeping(in_flight)


# -- what is saved for the backward pass -------------------------------------------------------------------------------


def flowing(module: Module, given_: ShardInput) -> set[str]:
    """Results of ops that a gradient flows through, as lowering may call them."""
    names = [op.results[0].name for op in module.entry.ops if any(name in given_.trained for name in op.operands)]
    return {*names, *(f"{name}.0" for name in names)}


def saved_here(module: Module, program: LocalProgram, flows: set[str]) -> int:
    """What the cost formulas say of the ops that one member runs, by their local types. Weights that were gathered (``%w0.1``)
    are weights to them; what scales a mean (``%y/shard.2``) needs no more than the constant."""
    data = {resource.name: (resource.type, resource.data) for resource in module.of_type(Resource)}
    held = {part.name: (part.type, data[part.name]) for part in program.parts}
    resources = [
        Resource(name, type_, known if whole == type_ else Declared()) for name, (type_, (whole, known)) in held.items()
    ]
    made = [value for op in program.ops for value in op.results if value.name.startswith("%w")]
    resources += [Resource(f"@{value.name}", value.type, Declared()) for value in made]
    renamed = {value.name: f"@{value.name}" for value in made}
    ops = [replace(op, operands=tuple(renamed.get(name, name) for name in op.operands)) for op in program.ops]
    func = Func("@main", program.args, (), tuple(ops))
    local = through(Module("@local", (*resources, func), module.attributes), CostPass()).entry
    ours = [op for op in local.ops if op.results and op.results[0].name in flows]
    return sum(op.facet(Cost, Cost()).saved for op in ours if not any("/shard" in name for name in op.operands))


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(SHAPES), st.booleans(), st.integers(1, 3))
def test_saved_bytes_are_those_of_the_ops_that_members_run(
    seed: int, count: int, sizes: tuple[int, ...], uneven: bool, in_flight: int
) -> None:
    """By the formulas on local types; only the indices of a lookup are counted whole."""
    module = random_module(seed, count, uneven)
    given_ = training_input(module, sizes, in_flight)
    problem, random = given_.problem, np.random.default_rng(seed)
    choices = [int(random.integers(len(problem.node(node).labels))) for node in range(problem.size)]
    decisions = decisions_of(given_, choices)
    bill = price(module, module.entry, given_.mesh, decisions, training=True, in_flight=in_flight)
    assert bill.memory == pytest.approx(problem.memory(choices))
    stage = Staged(tuple(range(len(module.entry.ops))), given_.mesh, decisions, bill)
    plan = Plan("@plan", "training", "sum", 1.0, 1.0, 0.0, "within-gap", math.inf, ())
    result = lowered(written(module.extend([topology(math.prod(sizes))]), [stage], plan))
    flows = flowing(module, given_)
    most = in_flight * max(
        saved_here(result, program, flows) for program in local_programs(result, next(result.of_type(Stage)))
    )
    indices = sum(type_bytes(module.entry.args[1].type) or 0 for op in module.entry.ops if op.name == "onnx.Gather")
    assert most <= bill.saved + 1e-6
    assert bill.saved <= most + in_flight * indices + 1e-6


# -- under a limit -----------------------------------------------------------------------------------------------------


def least_within(given_: ShardInput, limit: float) -> float:
    """The least seconds of any plan that needs no more memory; inf where there is none."""
    problem = given_.problem
    if math.prod(len(problem.node(node).seconds) for node in range(problem.size)) <= FEW:
        return brute_force(problem, limit)
    return integer_programme(problem, limit, scale=1e3 / solve(problem).value)[0]


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.sampled_from([2, 4, 8, 64]), min_size=3, max_size=4),
    st.integers(1, 3),
    st.floats(0.0, 1.0),
    st.sampled_from([1e7, 1e9]),
)
def test_the_search_finds_the_best_plan_in_training(widths: list[int], in_flight: int, part: float, near: float) -> None:
    """Weights, their gradients and state, and what is saved: brute force over all plans under limits between the least and the
    most. What fits may cost more than without a limit; what is saved decides, since weights take part in the limit too."""
    module = costed(text_of(widths, False, [2], [1, 1], near, near))
    top = module.first(Topology)
    assert top is not None
    mesh = mesh_of(top, network(top), (2,))
    given_ = build(module, module.entry, mesh, None, training=True).keeping(in_flight)
    problem = given_.problem
    least = sum(float(problem.node(node).memory.min()) for node in range(problem.size))
    most = sum(float(problem.node(node).memory.max()) for node in range(problem.size))
    limit = least + part * (most - least)
    plan = solve(problem, memory=limit, gap=0.0)
    assert problem.memory(plan.choices) <= limit
    best = least_within(given_, limit)
    assert plan.value == pytest.approx(best, rel=1e-6)
    assert plan.bound <= best * (1 + 1e-9)
    with pytest.raises(NoPlanError):
        solve(problem, memory=least * 0.999)


def test_saved_bytes_of_a_pair_of_products() -> None:
    """By hand: x [4, 2] and h [4, 64] in f32, two microbatches. By columns and rows x is kept whole, h in halves; by samples
    both are; and where h is gathered for a whole second product, it stays whole."""
    module = costed(text_of([2, 64, 8], False, [2], [1, 1], 1e9, 1e9))
    top = module.first(Topology)
    assert top is not None
    mesh = mesh_of(top, network(top), (2,))
    whole, row, column = (Replicate(),), (Shard(0),), (Shard(1),)
    for strategies, kept, saved in (
        (("n", "k"), (column, row), 4 * 2 * 4 + 4 * 64 * 4 // 2),
        (("m", "m"), (whole, whole), (4 * 2 * 4 + 4 * 64 * 4) // 2),
        (("n", "replicate"), (column, whole), 4 * 2 * 4 + 4 * 64 * 4),
    ):
        first, second = (op.id for op in module.entry.ops)
        decisions = Decisions(
            {first: (strategies[0],), second: (strategies[1],)}, {"@w0": kept[0], "@w1": kept[1]}, {"%h1": whole}
        )
        bill = price(module, module.entry, mesh, decisions, training=True, in_flight=2)
        assert bill.saved == 2 * saved
        assert price(module, module.entry, mesh, decisions).saved == 0


# -- what is alive -----------------------------------------------------------------------------------------------------


def bytes_alive(program: LocalProgram) -> int:
    """Of the activations of a member's program, by the types of what it really makes. Constants of the program aside, and what
    stands for one op on its part (``%y/shard.1``) is one op."""
    inner: dict[str, tuple[str, ...]] = {}
    ops = []
    for op in program.ops:
        operands = tuple(itertools.chain(*(inner.get(name, (name,)) for name in op.operands)))
        if "/shard" in op.results[0].name or op.name == "onnx.Constant":
            inner[op.results[0].name] = operands
        else:
            ops.append(replace(op, operands=operands))
    return max(live_bytes(Func("@local", program.args, (), tuple(ops))), default=0)


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([(1,), *SHAPES]), st.booleans())
def test_workspace_is_what_lives_in_the_programs_of_members(
    seed: int, count: int, sizes: tuple[int, ...], uneven: bool
) -> None:
    module = random_module(seed, count, uneven)
    decided, (stage,) = random_plan(module, [sizes], np.random.default_rng(seed))
    resources = {resource.name: resource.type for resource in module.of_type(Resource)}
    result = lowered(decided)
    alive = [bytes_alive(one) for one in local_programs(result, next(result.of_type(Stage)))]
    assert footprint(module.entry, resources, stage).workspace == max(alive)


@pytest.mark.parametrize(("training", "bytes_"), [(False, 64 + 8), (True, 4 * 64 // 2 + 8)])
def test_small_constants_stand_on_every_device(training: bool, bytes_: int) -> None:
    """An integer that no member splits, and a bias of 16 floats, which is split in training alone, with gradient and state."""
    module = Module("@m", (
        Resource("@b", TensorType(DType.F32, (16,)), Declared()),
        Resource("@s", TensorType(DType.I64, (1,)), Declared()),
        Func("@main", (Value("%x", ROWS),), (Value("%y", ROWS),), (
            Op("onnx.Add", ("%x", "@b"), (Value("%a", ROWS),)),
            Op("onnx.Unsqueeze", ("%a", "@s"), (Value("%u", TensorType(DType.F32, (8, 1, 16))),)),
            Op("onnx.Squeeze", ("%u", "@s"), (Value("%y", ROWS),)),
        )),
        topology(2),
    ), attributes({"opset.onnx": 20}))  # fmt: skip
    plan = plan_of(on_meshes(mesh="2", training=training).run(through(module, CostPass()), PassContext(dialects=DIALECTS)))
    assert [stage.weights for stage in plan.stages] == [bytes_]


# -- plans that fit ----------------------------------------------------------------------------------------------------


def fullest_member(module: Module) -> int:
    """Bytes of a lowered plan by what its members run: parts of weights, activations, two buffers for each message."""
    found = 0
    types = [resource.type for resource in module.of_type(Resource)]
    weights = {without_layout(type_) for type_ in types if isinstance(type_, TensorType)}
    for stage in module.of_type(Stage):
        for program in local_programs(module, stage):
            used = {name for op in program.ops for name in reads(op)}
            parts = [part for part in program.parts if part.name in used and part.whole in weights]
            held = sum(type_bytes(part.type) or 0 for part in parts)
            buffers = 2 * sum(type_bytes(part.type) or 0 for part in program.receives)
            found = max(found, held + bytes_alive(program) + buffers)
    return found


@settings(deadline=None, max_examples=2)
@given(
    st.integers(0, 10**6),
    st.integers(3, 10),
    st.sampled_from([(2,), (4,), (2, 2)]),
    st.sampled_from([1, 2]),
    st.floats(0.0, 1.0),
)
@example(seed=5372, count=3, sizes=(2,), stages=1, part=0.25)  # a value that may be of a chain of epilogues is in the way
def test_no_plan_needs_more_than_there_is(seed: int, count: int, sizes: tuple[int, ...], stages: int, part: float) -> None:
    """Between what no plan can do with and what the quickest needs: a plan fits by what its members run, or there is none."""
    module = random_module(seed, count)
    text = "x".join(map(str, sizes))
    free = searched(module, text, stages * math.prod(sizes), stages=stages, memory=-1)
    most = max(row.memory for row in plan_of(free).stages)
    assert fullest_member(lowered(free)) <= most
    limit = max(1, round(most * part))
    try:
        tight = searched(module, text, stages * math.prod(sizes), stages=stages, memory=limit)
    except Infeasible:
        assert part < 1
        return
    assert max(row.memory for row in plan_of(tight).stages) <= limit
    assert fullest_member(lowered(tight)) <= limit
    assert plan_of(tight).bound <= plan_of(tight).value * (1 + 1e-9)


def plan_of(module: Module) -> Plan:
    found = module.first(Plan)
    assert found is not None
    return found


WIDE = """
module @m {{opset.onnx = 20}} {{
  resource @a : tensor<16x16xf32> = declared
  resource @b : tensor<16x16xf32> = declared
  func @main(%x : tensor<64x16xf32>) -> (%y : tensor<64x16xf32>) {{
    %h = onnx.MatMul(%x, @a) : tensor<64x16xf32>
    %y = onnx.MatMul(%h, @b) : tensor<64x16xf32>
  }}
  topology @t {{
    type t {{rates = {{f32 = 1e9}}, memory_bandwidth = 1e9, memory = {memory}}}
    host h
    device d0 {{type = t, host = h}}
    device d1 {{type = t, host = h}}
    link l0 {{ends = [d0, h], bandwidth = {bandwidth}, latency = 1e-7}}
    link l1 {{ends = [d1, h], bandwidth = {bandwidth}, latency = 1e-7}}
  }}
}}
"""


def test_activations_must_fit_too() -> None:
    """x is 4096 bytes and whole on every device, a part of it, and of h and y, has 2048, each matrix 1024. By samples a device
    needs both matrices and 6144; with half of both, 7168 in all are enough. Below that weights alone would still fit: it is
    refused, and says what is missing."""

    def compiled(memory: int, **options: Any) -> PlanStage:
        sharded = through(costed(WIDE.format(memory=memory, bandwidth=1e9)), on_meshes(**options))
        assert plan_of(sharded).bound == pytest.approx(3.4816e-5)
        return max(plan_of(sharded).stages, key=lambda row: row.memory)

    assert [(row.weights, row.workspace) for row in (compiled(8192, mesh="2"), compiled(7168, mesh="2"))] == [
        (2048, 6144),
        (1024, 6144),
    ]
    for memory, options, message in (
        (7167, {"mesh": "2"}, r"the nearest that was found needs 7168 bytes on d0 \(1024 of weights, 6144 of w.*, 1 more than"),
        (1000, {"mesh": "2"}, "the weights alone are 2048 bytes, all 2 devices have 2000: 48 bytes short"),
        (9216, {"mesh": "2", "strategy": "replicate"}, r"the plan 'replicate' needs 10240 bytes on d0"),
        (
            9216,
            {"mesh": "1", "stages": 2},
            r"stage 1 needs at least 13312 bytes on d1 \(1024 of weights, 4096 of w.*, 8192 of buffers\)",
        ),
    ):
        with pytest.raises(Infeasible, match=message) as raised:
            compiled(memory, **options)
        assert raised.value.exit_code == 4
    alone = "\n".join(line for line in WIDE.splitlines() if "d1" not in line)
    with pytest.raises(Infeasible, match="the weights alone are 2048 bytes, the one device has 1000: 1048 bytes short"):
        through(costed(alone.format(memory=1000, bandwidth=1e9)), on_meshes())
    few = costed(WIDE.format(memory=1500, bandwidth=1e9).replace("64x16", "4x16"))
    with pytest.raises(Infeasible, match="weights of the plan 'replicate' need 2048 bytes per device on mesh 2"):
        through(few, on_meshes(mesh="2", strategy="replicate"))


@pytest.mark.parametrize("stages", [0, 1])
def test_a_limit_for_all_devices_is_one_of_large_ones_too(stages: int) -> None:
    """Of 33 columns the device with twice the memory has 17. What is allowed per device it may not exceed either."""
    module = costed(text_of([33, 33, 33], False, [2], [1, 1], 1e9, 1e9)).without(Topology).extend([topology(2, slow=[1])])
    options: dict[str, Any] = {"mesh": "2", "stages": stages, "shares": "equal"}
    decided = through(module, on_meshes(memory=5288, **options))
    assert plan_of(decided).stages[0].memory == fullest_member(lowered(decided)) == 5288
    with pytest.raises(Infeasible):
        through(module, on_meshes(memory=5287, **options))


def test_a_limit_that_was_given_is_the_one_that_others_fit_in() -> None:
    """By samples a device needs 8192 bytes, one device alone 10240."""
    module = costed(WIDE.format(memory=9000, bandwidth=1e9))
    for memory, fits, single in ((0, True, False), (8000, False, False), (10240, True, True), (-1, True, True)):
        decided = through(module, on_meshes(mesh="2", memory=memory))
        data = next(other for other in alternatives(decided) if other.name == "data")
        assert (data.fits, math.isfinite(plan_of(decided).single)) == (fits, single)
