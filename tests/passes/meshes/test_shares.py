"""Meshes whose axes have shares: members compute what the entry does, and everything costs what the members' boxes say."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from dnnc.onnx import DIALECTS
from ir.core.facets import Cost
from ir.core.module import Mesh, Plan
from ir.core.shares import Shares
from ir.core.types import DType, Placement, Replicate, Shard, TensorType
from ir.ops.boxes import box, delivers
from passes.costs.network import network
from passes.meshes import count
from passes.meshes.costs.bill import Decisions
from passes.meshes.costs.price import price
from passes.meshes.mesh import DeviceMesh, Member, mesh_of, mesh_over
from passes.meshes.staged import Staged
from passes.partition.layouts import build
from passes.plan.written import written
from passes.prepare.cost import CostPass
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.planning import check_runs, lowered, random_plan, through, topology
from tests.passes.meshes.test_random import check_count

MESHES: list[tuple[Shares, ...]] = [
    ((2, 1),),
    ((1, 3),),
    ((3, 1),),
    ((2, 1, 1),),
    ((1, 2, 1),),
    ((2, 1), (1, 1)),
    ((1, 1), (1, 2)),
    ((2, 1), (1, 3)),
]


def sizes_of(axes: tuple[Shares, ...]) -> tuple[int, ...]:
    return tuple(map(len, axes))


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(MESHES), st.booleans())
def test_members_compute_what_the_entry_does(seed: int, ops: int, axes: tuple[Shares, ...], uneven: bool) -> None:
    """In exact proportions, and where these are not whole."""
    module = random_module(seed, ops, uneven=uneven)
    decided, (staged,) = random_plan(module, [sizes_of(axes)], np.random.default_rng(seed), [axes], {1})
    (mesh,) = decided.of_type(Mesh)
    assert mesh.cuts == axes
    check_count(check_runs(module, decided, Path(), seed), staged)


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 10**6), st.integers(3, 12), st.lists(st.sampled_from([(1, 1), (2, 1), (1, 2)]), min_size=2, max_size=3))
def test_stages(seed: int, ops: int, along: list[Shares]) -> None:
    """A value crosses as it lies between equal shares only."""
    module = random_module(seed, ops, uneven=True)
    shapes = [(2,)] * len(along)
    decided, _ = random_plan(module, shapes, np.random.default_rng(seed), [(shares,) for shares in along])
    check_runs(module, decided, Path(), seed)


PLACEMENTS: list[Placement] = [Shard(0), Shard(1), Replicate()]


@given(
    st.tuples(st.integers(0, 13), st.integers(0, 13)),
    st.sampled_from(list(product(PLACEMENTS, repeat=2))),
    st.sampled_from([((2, 1), (1, 3, 1)), ((1, 4), (1, 1, 1))]),
)
def test_what_members_deliver_is_the_tensor_once(
    shape: tuple[int, int], lies: tuple[Placement, ...], shares: tuple[Shares, ...]
) -> None:
    grid = Mesh("@mesh", (("x", 2), ("y", 3)), tuple(f"d{i}" for i in range(6)), shares)
    times = np.zeros(shape, int)
    for member in range(6):
        (a, m), (b, n) = box(TensorType(DType.F32, shape), lies, grid, member)
        if delivers(lies, grid, member):
            times[a : a + m, b : b + n] += 1
    assert (times == 1).all()


def everyone(mesh: DeviceMesh, slow: set[int]) -> DeviceMesh:
    """The mesh with each of its members to be looked at, none left out."""
    fast, behind = (next((t for t in mesh.types if t.name == name), mesh.types[0]) for name in ("chip", "slow"))
    members = tuple(
        Member(place, behind if number in slow else fast, 1.0 if number in slow else 2.0)
        for number, place in enumerate(product(*map(range, mesh.sizes)))
    )
    return replace(mesh, members=members)


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([*MESHES, ((1, 1, 1, 1),)]), st.data())
def test_members_left_out_are_never_the_slowest_or_fullest(
    seed: int, ops: int, axes: tuple[Shares, ...], data: st.DataObject
) -> None:
    module = random_module(seed, ops, uneven=True)
    devices = math.prod(sizes_of(axes))
    slow = data.draw(st.sets(st.integers(0, devices - 1), min_size=1, max_size=devices - 1))
    top = topology(devices, slow)
    mesh = mesh_of(top, network(top), sizes_of(axes), shares=axes)
    assert len(mesh.members) < devices or devices == 2 or len(set(axes[0])) > 1
    for training in (False, True):
        some, every = (build(module, module.entry, m, None, training=training) for m in (mesh, everyone(mesh, slow)))
        for one, other in zip(some.problem.node_kinds, every.problem.node_kinds, strict=True):
            np.testing.assert_array_equal(one.seconds, other.seconds)
            np.testing.assert_array_equal(one.memory, other.memory)


PRODUCT = """
module @m {opset.onnx = 20} {
  resource @w : tensor<64x128xf32> = random(normal, seed = 1)
  func @main(%x : tensor<8x64xf32>) -> (%y : tensor<8x128xf32>) {
    %y = onnx.MatMul(%x, @w) : tensor<8x128xf32> loc("main", "product")
  }
}
"""


def test_seconds_are_those_of_the_member_that_takes_longest() -> None:
    """Columns 3 to 1, on devices 3 to 1 as fast: both work as long, a quarter of what the slow one would alone. By hand: 2 m n
    k flops at 1e9 and 1e9/3 a second; bytes of the input, 3/4 or 1/4 of the weight and of the result."""
    module = through(ir.load_module(PRODUCT, dialects=DIALECTS), CostPass())
    (op,) = module.entry.ops
    cost = op.facet(Cost)
    assert cost is not None
    top = topology(2, {1})
    found = {}
    for shares in ((3, 1), (1, 1), (1, 3)):
        mesh = mesh_of(top, network(top), (2,), shares=(shares,))
        given_ = build(module, module.entry, mesh, None)
        kind = given_.problem.node_kinds[given_.problem.kinds[0]]
        seconds = dict(zip(kind.labels, kind.seconds.tolist(), strict=True))["n"]
        parts = [share / sum(shares) for share in shares]
        flops = [2 * 8 * 64 * 128 * part / rate for part, rate in zip(parts, (1e9, 1e9 / 3), strict=True)]
        bytes_ = [4 * (8 * 64 + (64 + 8) * 128 * part) / rate for part, rate in zip(parts, (1e9, 1e9 / 3), strict=True)]
        assert seconds == pytest.approx(max(map(max, zip(flops, bytes_, strict=True))), rel=1e-4)
        found[shares] = seconds
    assert found[3, 1] == min(found.values())


def test_each_device_by_its_own_memory() -> None:
    """Devices of 2 and 1 GiB: a weight cut 2 to 1 takes of each half of what it would of the smaller one."""
    module = through(ir.load_module(PRODUCT, dialects=DIALECTS), CostPass())
    top = topology(2, {1})
    mesh = mesh_of(top, network(top), (2,), shares=((2, 1),))
    assert mesh.memory == 1 << 30
    given_ = build(module, module.entry, mesh, None)
    kind = given_.problem.node_kinds[given_.problem.kinds[1]]
    held = dict(zip(kind.labels, kind.memory.tolist(), strict=True))
    assert held["R"] == 4 * 64 * 128
    assert held["S(0)"] == 4 * 128 * max(43 / 2, 21)
    alike = build(module, module.entry, mesh.limited(1 << 30), None)
    limited = alike.problem.node_kinds[alike.problem.kinds[1]]
    assert dict(zip(limited.labels, limited.memory.tolist(), strict=True))["S(0)"] == 4 * 128 * 43


GATHER = """
module @m {opset.onnx = 20} {
  func @main(%x : tensor<8x6xf32>) -> (%y : tensor<8x6xf32>, %z : tensor<8x6xf32>) {
    %y = onnx.Relu(%x) : tensor<8x6xf32> loc("main", "a")
    %z = onnx.Neg(%y) : tensor<8x6xf32> loc("main", "b")
  }
}
"""


@pytest.mark.parametrize(
    ("reader", "kind", "elements"),
    [("replicate", "all_gather", 6 * 6), ("d1", "all_to_all", 2 * 5)],
)
def test_collectives_wait_for_the_largest_part(reader: str, kind: str, elements: int) -> None:
    """Rows 6 and 2 of 8, columns 5 and 1 of 6, by shares 3 and 1; what a member keeps of an all-to-all is not sent."""
    module = through(ir.load_module(GATHER, dialects=DIALECTS), CostPass())
    top = topology(2)
    mesh = mesh_of(top, network(top), (2,), shares=((3, 1),))
    a, b = module.entry.ops
    placed = {"d1": Shard(1), "replicate": Replicate()}
    decisions = Decisions({a.id: ("d0",), b.id: (reader,)}, {}, {"%y": (Shard(0),), "%z": (placed[reader],)})
    bill = price(module, module.entry, mesh, decisions)
    (one,) = bill.collectives
    assert (one.kind, one.size) == (kind, 8 * 6 * 4)
    assert one.seconds == pytest.approx(elements * 4 / 1e10 + 2e-9)
    plan = Plan("@plan", "throughput", "sum", 1.0, 1.0, 0.0, "within-gap", math.inf, ())
    result = lowered(written(module.extend([top]), [Staged((0, 1), mesh, decisions, bill)], plan))
    (counted,) = count(result)
    assert (counted.sent, counted.seconds) == pytest.approx((elements * 4, one.seconds))
    (again,) = result.of_type(Mesh)
    assert mesh_over(top, network(top), again) == mesh
