"""Shares of unequal devices: what is tried, what is found, and that it fits each device."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from dnnc.compile.context import pass_context
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.core.module import Mesh, Module, Plan, Stage
from ir.core.shares import Shares
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import type_bytes
from passes.costs.network import network
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.meshes.notation import read_shares, shares_text
from passes.partition.layouts import build, decisions_of
from passes.partition.layouts.mesh.speeds import Speeds
from passes.prepare.cost import CostPass
from passes.programs.lower import LowerPass
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.members import local_programs
from tests.passes.meshes.planning import through
from tests.passes.partition.on_meshes import on_meshes

TWO_PRODUCTS = """
module @m {opset.onnx = 20} {
  resource @v : tensor<24x48xf32> = random(normal, seed = 1)
  resource @w : tensor<48x24xf32> = random(normal, seed = 2)
  func @main(%x : tensor<4x24xf32>) -> (%y : tensor<4x24xf32>) {
    %h = onnx.MatMul(%x, @v) : tensor<4x48xf32> loc("main", "up")
    %y = onnx.MatMul(%h, @w) : tensor<4x24xf32> loc("main", "down")
  }
}
"""


def unequal(rates: list[float], memory: list[int] | None = None) -> Topology:
    """A device of each rate, all on one bus."""
    kinds = sorted(set(zip(rates, memory or [0] * len(rates), strict=True)))
    types = [DeviceType(f"t{i}", "gpu", (("f32", rate),), rate, bytes_ or None, 0.0) for i, (rate, bytes_) in enumerate(kinds)]
    of = [f"t{kinds.index(pair)}" for pair in zip(rates, memory or [0] * len(rates), strict=True)]
    devices = [Device(f"d{i}", name, "h") for i, name in enumerate(of)]
    bus = Link("bus", tuple(device.name for device in devices), 1e9, 1e-7)
    return Topology("@top", tuple(types), (Host("h"),), tuple(devices), (), (bus,))


def products(topology: Topology) -> Module:
    return through(ir.load_module(TWO_PRODUCTS, dialects=DIALECTS), CostPass()).extend([topology])


@pytest.mark.parametrize(
    ("rates", "sizes", "first"),
    [
        ([3e9, 1e9], (2,), ((3, 1),)),
        ([1e9, 2e9], (2,), ((1, 2),)),
        ([2e9, 2e9, 1e9, 1e9], (4,), ((2, 2, 1, 1),)),
        ([2e9, 2e9, 1e9, 1e9], (2, 2), ((2, 1), (1, 1))),
        ([2e9, 1e9, 2e9, 1e9], (2, 2), ((1, 1), (2, 1))),
    ],
)
def test_what_is_tried(rates: list[float], sizes: tuple[int, ...], first: tuple[Shares, ...]) -> None:
    """Equal shares, then those in proportion to the speeds, along the axis along which devices differ."""
    topology = unequal(rates)
    tried = Speeds(products(topology), topology).candidates(sizes)
    assert tried[:2] == ((), first)
    assert len(tried) <= 4
    alike = Speeds(products(unequal([1e9] * 4)), unequal([1e9] * 4)).candidates((2, 2))
    assert alike == ((),)


@pytest.mark.parametrize(("fast", "shares"), [(2.5e9, "5,2"), (6e9, "6,1")])
def test_parts_need_not_be_in_proportion_to_shares(fast: float, shares: str) -> None:
    """Both products have a dimension of 48, of which such shares take whole elements. Only shares whose sum divides it were
    tried, and the plan was called the best."""
    topology = unequal([fast, 1e9])
    module, context = products(topology), pass_context(DiagnosticSink())
    found, stated = (on_meshes(mesh="2", shares=one).run(module, context).first(Plan) for one in ("", shares))
    assert found is not None
    assert stated is not None
    assert found.value <= stated.value * 1.005


@pytest.mark.parametrize(("text", "sizes"), [("3,1", (2,)), ("3,1x1,1", (2, 2)), ("6,2", (2,)), ("3,1", ())])
def test_shares_are_read(text: str, sizes: tuple[int, ...]) -> None:
    assert shares_text(read_shares(text, sizes)).replace(":", ",").replace(" ", "") == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "shares 3 are for a mesh of 1, and the mesh is 2"),
        ("3,1x1,1", "for a mesh of 2x2, and the mesh is 2"),
        ("3,0", "expected 'equal' or shares such as 3,1"),
        ("3,1001", "expected 'equal'"),
        ("3,", "expected 'equal'"),
        ("fast", "expected 'equal'"),
        ("²,1", "expected 'equal'"),
    ],
)
def test_shares_that_there_are_not(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        through(products(unequal([3e9, 1e9])), on_meshes(mesh="2", shares=text))


def test_shares_are_for_one_mesh() -> None:
    with pytest.raises(UsageError, match="shares is for one mesh, and stages is 2"):
        through(products(unequal([3e9, 1e9])), on_meshes(stages=2, shares="3,1"))


def every_cost(module: Module, along: tuple[Shares, ...]) -> float:
    """The least seconds over all decisions; some of them, and the best, priced by the walk."""
    topology = module.first(Topology)
    assert topology is not None
    mesh = mesh_of(topology, network(topology), (2,), shares=along)
    given_ = build(module, module.entry, mesh, None)
    problem = given_.problem
    counts = [range(len(problem.node(node).labels)) for node in range(problem.size)]
    every = {choices: problem.cost(choices) for choices in itertools.product(*counts)}
    best = min(every, key=lambda choices: every[choices])
    for choices in [best, *list(every)[:: max(1, len(every) // 50)]]:
        bill = price(module, module.entry, mesh, decisions_of(given_, choices))
        assert bill.total == pytest.approx(every[choices], rel=1e-9)
        assert bill.memory == pytest.approx(problem.memory(choices), rel=1e-9)
    return every[best]


@pytest.mark.slow
@pytest.mark.parametrize("rates", [[3e9, 1e9], [1e9, 2.5e9]])
def test_the_plan_is_the_least_of_all(rates: list[float]) -> None:
    """Every decision under each of the shares that were tried, and under others that were not where these are given."""
    module = products(unequal(rates))
    topology = module.first(Topology)
    assert topology is not None
    tried = Speeds(module, topology).candidates((2,))
    assert len(tried) > 1
    costs = {along: every_cost(module, along) for along in tried}
    plan = through(module, on_meshes(mesh="2")).first(Plan)
    assert plan is not None
    assert plan.value == pytest.approx(min(costs.values()))
    assert plan.bound <= plan.value
    assert plan.value < costs[()]
    assert dict(plan.certificate)["shares"] == (
        f"{shares_text(min(costs, key=lambda along: costs[along]))}, the best of {', '.join(map(shares_text, tried))}"
    )
    given_ = through(module, on_meshes(mesh="2", shares="2,1")).first(Plan)
    assert given_ is not None
    assert given_.value == pytest.approx(every_cost(module, ((2, 1),)))


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([1e9, 2e9, 5e9]), min_size=2, max_size=4), st.booleans())
def test_never_worse_than_equal(seed: int, rates: list[float], uneven: bool) -> None:
    module = random_module(seed, 6, uneven=uneven).extend([unequal(rates)])
    free, equal = (through(module, on_meshes(mesh=str(len(rates)), shares=shares)).first(Plan) for shares in ("", "equal"))
    assert free is not None
    assert equal is not None
    assert free.value <= equal.value * (1 + 1e-9)
    assert free.bound <= free.value


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10**6), st.sampled_from(["", "2,1,1", "1,3,2"]), st.booleans())
def test_training_is_counted_twice_alike(seed: int, shares: str, uneven: bool) -> None:
    """By the search and by the walk, which the pass compares; every share but of equal parts, on three types of device."""
    module = random_module(seed, 6, uneven=uneven).extend([unequal([2e9, 1e9, 5e9], [1 << 20, 1 << 22, 1 << 21])])
    plan = through(module, on_meshes(mesh="3", shares=shares, training=True)).first(Plan)
    assert plan is not None
    assert plan.bound <= plan.value


@pytest.mark.parametrize("strategy", ["data", "megatron"])
def test_plans_by_name_have_shares_too(strategy: str) -> None:
    """Data parallel is in equal parts, as people run it, unless shares are given."""
    module = products(unequal([3e9, 1e9]))
    found = through(module, on_meshes(mesh="2", strategy=strategy, shares="3,1" if strategy == "data" else ""))
    (mesh,) = found.of_type(Mesh)
    assert mesh.shares == ((3, 1),)
    (mesh,) = through(module, on_meshes(mesh="2", strategy=strategy)).of_type(Mesh)
    assert mesh.shares == (() if strategy == "data" else ((3, 1),))
    plan = found.first(Plan)
    equal = through(module, on_meshes(mesh="2", strategy=strategy, shares="equal")).first(Plan)
    assert plan is not None
    assert equal is not None
    assert plan.value < equal.value


def held_bytes(module: Module) -> list[int]:
    """Bytes of weights that each member of a lowered stage holds."""
    (stage,) = module.of_type(Stage)
    return [sum(type_bytes(part.type) or 0 for part in program.parts) for program in local_programs(module, stage)]


def test_unequal_parts_fit_unequal_devices() -> None:
    """9,216 bytes of weights, and workspace, on devices of 8,000 and 4,000: halves do not fit the second; 2/3 and 1/3 fit."""
    module = products(unequal([2e9, 1e9], [8000, 4000]))
    with pytest.raises(Infeasible):
        through(module, on_meshes(mesh="2", shares="equal"))
    found = through(module, on_meshes(mesh="2", shares="2,1"))
    (mesh,) = found.of_type(Mesh)
    assert mesh.shares == ((2, 1),)
    assert held_bytes(through(found, LowerPass())) == [6144, 3072]
    chosen = through(module, on_meshes(mesh="2"))
    assert all(np.less_equal(held_bytes(through(chosen, LowerPass())), [8000, 4000]))


def test_a_limit_holds_for_every_device() -> None:
    """The option is for each device alike, whatever the topology gives it."""
    module = products(unequal([2e9, 1e9], [1 << 20, 1 << 19]))
    free = through(module, on_meshes(mesh="2", shares="2,1"))
    assert max(held_bytes(through(free, LowerPass()))) == 6144
    found = through(module, on_meshes(mesh="2", memory=5500))
    assert max(held_bytes(through(found, LowerPass()))) <= 5500
    with pytest.raises(Infeasible):
        through(module, on_meshes(mesh="2", shares="2,1", memory=5500))


@settings(deadline=None, max_examples=4)
@given(
    st.lists(st.tuples(st.sampled_from([1e9, 2e9]), st.integers(2500, 9500)), min_size=2, max_size=3),
    st.sampled_from([0, 5000]),
    st.sampled_from([0, 1]),
)
def test_no_device_holds_more_than_it_has(devices: list[tuple[float, int]], memory: int, stages: int) -> None:
    """9,216 bytes of weights, by what the members' programs read; also in stages, on blocks of unequal devices."""
    rates, room = [rate for rate, _ in devices], [bytes_ for _, bytes_ in devices]
    try:
        found = through(products(unequal(rates, room)), on_meshes(stages=stages, memory=memory, time_limit=10.0))
    except Infeasible:
        return
    result = through(found, LowerPass())
    for stage in result.of_type(Stage):
        for program in local_programs(result, stage):
            held = sum(type_bytes(part.type) or 0 for part in program.parts)
            assert held <= (memory or room[int((program.device or stage.devices[0])[1:])])


def test_devices_alike_have_no_shares() -> None:
    found = through(products(unequal([1e9, 1e9])), on_meshes(mesh="2"))
    (mesh,) = found.of_type(Mesh)
    assert mesh.shares == ()
    plan = found.first(Plan)
    assert plan is not None
    assert "shares" not in dict(plan.certificate)
    assert replace(mesh, shares=((1, 1),)).cuts == mesh.cuts


def test_the_bound_counts_shares_that_a_plan_by_name_does_not_fit() -> None:
    """Two samples are split equally or not at all, but 3:1 of other dimensions is quicker."""
    text = TWO_PRODUCTS.replace("tensor<4x", "tensor<2x")
    module = through(ir.load_module(text, dialects=DIALECTS), CostPass()).extend([unequal([3e9, 1e9])])
    best, data = (through(module, on_meshes(mesh="2", strategy=name)).first(Plan) for name in ("", "data"))
    assert best is not None
    assert data is not None
    assert best.value < data.value
    assert data.bound <= best.value * (1 + 1e-9)
    assert data.status == "within-gap"


@pytest.mark.parametrize(("meshes", "status"), [(1, "within-gap"), (2, "within-gap"), (9, "optimal")])
def test_meshes_that_an_interrupt_left_are_not_bounded(meshes: int, status: str) -> None:
    """The plan so far is kept, also where the next mesh was only begun, and is not called the best of all."""
    begun = []

    def interrupt(told: str, fraction: float | None) -> None:
        if told.startswith("mesh "):
            begun.append(told)
            if len(begun) > meshes:
                raise KeyboardInterrupt

    module = products(unequal([3e9, 1e9]))
    context = replace(pass_context(DiagnosticSink()), progress=interrupt)
    plan = on_meshes(mesh="2").run(module, context).first(Plan)
    assert plan is not None
    assert plan.status == status
    assert (plan.bound == 0.0) == (status == "within-gap")
    told = dict(plan.certificate).get("search", "")
    assert told == (
        f"interrupted: the best plan so far, {4 - meshes} of 4 meshes not searched and not bounded" if meshes < 4 else ""
    )
