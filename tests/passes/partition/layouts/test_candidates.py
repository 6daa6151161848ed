"""Which devices a plan on one mesh uses: sets are left out where that is quicker, samples are dealt best, bounds hold."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from dnnc.onnx import DIALECTS
from dnnc.study.subsets import restricted
from ir.core.diagnostics import Infeasible, InvalidInput
from ir.core.module import Mesh, Module, Plan
from ir.core.shares import nested_cut, none_empty
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from passes.costs.network import network
from passes.costs.parts import sets_of, whole_parts
from passes.framework.base import PassContext, needed
from passes.meshes.mesh import Member, mesh_of
from passes.partition.chain.submeshes import submeshes
from passes.partition.layouts import build
from passes.partition.layouts.mesh.candidates import candidates
from passes.partition.layouts.mesh.speeds import Cuts, Speeds, dealt
from passes.prepare.cost import CostPass
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.planning import through
from tests.passes.partition.on_meshes import on_meshes

STEP = """
module @m {{opset.onnx = 20}} {{
  resource @v : tensor<64x{width}xf32> = declared optimizer<name = adam, size = {size}>
  resource @w : tensor<{width}x64xf32> = declared optimizer<name = adam, size = {size}>
  func @main(%x : tensor<{batch}x64xf32>) -> (%y : tensor<{batch}x64xf32>) {{
    %h = onnx.MatMul(%x, @v) : tensor<{batch}x{width}xf32>
    %a = onnx.Relu(%h) : tensor<{batch}x{width}xf32>
    %y = onnx.MatMul(%a, @w) : tensor<{batch}x64xf32>
  }}
}}
"""


def step(batch: int, width: int = 64) -> Module:
    text = STEP.format(batch=batch, width=width, size=64 * width * 8)
    return through(ir.load_module(text, dialects=DIALECTS), CostPass())


def hosts(*groups: tuple[float, int], between: float = 3e9) -> Topology:
    """Hosts of so many devices of one rate each."""
    rates = sorted({rate for rate, _ in groups})
    types = [DeviceType(f"t{i}", "gpu", (("f32", rate),), rate, None, 0.0) for i, rate in enumerate(rates)]
    devices = [
        Device(f"h{i}-d{j}", f"t{rates.index(rate)}", f"h{i}") for i, (rate, count) in enumerate(groups) for j in range(count)
    ]
    links = [Link(f"in-{device.name}", (device.name, device.host), 1e10, 1e-9) for device in devices]
    links += [Link(f"out-h{i}", (f"h{i}", "switch"), between, 5e-9) for i in range(len(groups))]
    names = tuple(Host(f"h{i}") for i in range(len(groups)))
    return Topology("@top", tuple(types), names, tuple(devices), (ir.Switch("switch"),), tuple(links))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([1e9, 2e9, 3e9, 7e9]), min_size=2, max_size=4), st.integers(4, 12))
def test_samples_are_dealt_best(rates: list[float], batch: int) -> None:
    """No other way to deal them makes the largest time less."""
    topology = hosts(*((rate, 1) for rate in rates))
    speeds = Speeds(step(batch), topology, training=True)
    members = speeds.members(topology.devices)

    def longest(counts: Sequence[int]) -> float:
        return max(count * speeds.seconds[number] for count, number in zip(counts, members, strict=True))

    found = dealt(batch, [speeds.seconds[number] for number in members])
    assert sum(found) == batch
    assert longest(found) == pytest.approx(min(map(longest, compositions(batch, len(rates)))))


def test_samples_are_dealt_evenly_too() -> None:
    """Where the slow devices have as many samples either way, the quick ones need no more than they."""
    topology = hosts((2e9, 4), (3e9, 1))
    speeds = Speeds(step(9), topology, training=True)
    assert ((2, 2, 1, 1, 3),) in speeds.candidates((5,))
    assert ((2, 2, 2, 2, 1),) in speeds.candidates((5,))


@pytest.mark.parametrize("training", [False, True])
def test_samples_are_dealt_where_equal_shares_cannot_divide_them(training: bool) -> None:
    """On six devices equal parts of the width look quicker than 16 samples dealt out, but members exchange them in every layer.
    Four devices divide the samples equally: then those dealt out by speed must be quicker."""
    six = Speeds(step(16, 96), hosts((1.2e9, 2), (1e9, 4)), training=training)
    assert six.candidates((6,))[:3] == ((), ((3, 3, 3, 3, 2, 2),), ((6, 6, 5, 5, 5, 5),))
    members = six.members(six.devices)
    assert six.estimate(((3, 3, 3, 3, 2, 2),), members) > six.estimate(((1,) * 6,), members)
    four = Speeds(step(16, 96), hosts((1.5e9, 1), (1e9, 3)), training=training)
    assert dealt(16, [four.seconds[number] for number in four.members(four.devices)]) == (5, 4, 4, 3)
    assert ((5, 4, 4, 3),) not in four.candidates((4,))


def test_whole_parts() -> None:
    """Hosts that differ in names alone count by how many there are; a host of its own is there or not."""
    topology = hosts((1e9, 2), (2e9, 1), (1e9, 2))
    found = [tuple(name[:2] for name in part) for part in whole_parts(topology)]
    assert sorted(found) == sorted(
        [("h0", "h0"), ("h0", "h0", "h2", "h2"), ("h1",), ("h0", "h0", "h1"), ("h0", "h0", "h1", "h2", "h2")]
    )


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([1e9, 2e9, 5e9]), min_size=2, max_size=4), st.booleans())
def test_no_plan_is_below_the_least_of_its_devices(seed: int, rates: list[float], training: bool) -> None:
    """Each mesh's cheapest choices, node by node; of four devices also on two axes."""
    topology = hosts(*((rate, 1) for rate in rates))
    least_is_below_every_plan(random_module(seed, 5), topology, training)


def least_is_below_every_plan(module: Module, topology: Topology, training: bool) -> None:
    module = module.extend([topology])
    found = candidates(module, topology, network(topology), training=training, microbatches=1, every=True)
    for one in found.searched:
        mesh = mesh_of(topology, network(topology), one.sizes, shares=one.shares, devices=one.devices)
        problem = build(module, module.entry, mesh, None, training=training).problem
        kinds = [problem.node_kinds[kind] for kind in problem.kinds]
        cheapest = math.fsum(float(kind.seconds.min(initial=math.inf)) for kind in kinds) * (1 + 1e-9)
        assert one.least <= cheapest
        assert Speeds(module, topology, training=training).spread() <= cheapest


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_an_op_is_cut_in_no_other_way_than_its_bound_knows(data: st.DataObject) -> None:
    """Every axis cuts any factor, several of one size among them; each way leaves some type no less than one of the bound's."""
    axes = data.draw(st.lists(st.lists(st.sampled_from([1, 1, 2]), min_size=2, max_size=4).map(tuple), min_size=1, max_size=3))
    factors = data.draw(st.lists(st.sampled_from([2, 4, 7, 23, 23, 24]), min_size=1, max_size=3))
    types = hosts((1e9, 1), (2e9, 1)).types
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    members = [Member(place, types[data.draw(st.integers(0, 1))]) for place in places]
    ways = Cuts(tuple(axes), members).parts(frozenset(factors))
    for cut in itertools.product(range(-1, len(factors)), repeat=len(axes)):
        along = {factor: [axis for axis, one in enumerate(cut) if one == factor] for factor in {*cut} - {-1}}
        shares = {factor: [axes[axis] for axis in own] for factor, own in along.items()}
        if not all(none_empty(factors[f], own) for f, own in shares.items()):
            continue
        parts: dict[str, float] = {}
        for member in members:
            lengths = (
                nested_cut(factors[f], [(axes[axis], member.place[axis]) for axis in own])[1] / factors[f]
                for f, own in along.items()
            )
            parts[member.type.name] = max(math.prod(lengths), parts.get(member.type.name, 0.0))
        assert any(all(part <= parts[type_] * (1 + 1e-12) for type_, part in way.items()) for way in ways)


def test_of_many_devices_no_shape_is_lost_that_the_certificate_names() -> None:
    """Where all links are alike a mesh of 4x2 had been left out for 2x4, whose rows lie in two hosts."""
    topology = hosts(*[(1e9, 2)] * 36, between=1e12)
    topology = replace(topology, links=tuple(replace(link, latency=0.0) for link in topology.links))
    found = {block.mesh.sizes for block in submeshes(topology, network(topology), stages=2).blocks}
    assert {(2, 2), (4, 2), (36, 2)} <= found
    assert all(sizes[-1] <= 2 for sizes in found if len(sizes) > 1)
    assert on_meshes(stages=1).sets_of_devices(topology).startswith("of all devices, as one axis")


PROFILED = """
module @m {opset.onnx = 20} {
  resource @v : tensor<64x64xf32> = declared
  func @main(%x : tensor<8x64xf32>) -> (%y : tensor<8x64xf32>) {
    %y = onnx.MatMul(%x, @v) : tensor<8x64xf32> backward<@t0 = 0.0002, @t1 = 0.0001> time<@t0 = 0.002, @t1 = 0.001>
  }
}
"""
TWO_TYPES = """
module @m {opset.onnx = 20} {
  resource @v : tensor<64x64xf16> = declared
  resource @w : tensor<64x64xbf16> = declared
  func @main(%x : tensor<8x64xf16>, %z : tensor<8x64xbf16>) -> (%y : tensor<8x64xf16>, %u : tensor<8x64xbf16>) {
    %y = onnx.MatMul(%x, @v) : tensor<8x64xf16>
    %u = onnx.MatMul(%z, @w) : tensor<8x64xbf16>
  }
}
"""


def slow_with_bf16(topology: Topology) -> Topology:
    types = (replace(type_, rates=(("bf16", type_.rates[0][1] / 100), ("f16", type_.rates[0][1]))) for type_ in topology.types)
    return replace(topology, types=tuple(types))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("text", [PROFILED, TWO_TYPES])
def test_the_least_counts_each_op_as_plans_do(text: str, training: bool) -> None:
    """Measured seconds of a backward pass, and the rate of each element type: both had been taken from another op or pass."""
    module = through(ir.load_module(text, dialects=DIALECTS), CostPass())
    least_is_below_every_plan(module, slow_with_bf16(hosts((1e9, 1), (2e9, 1))), training)


def test_stages_count_the_rate_of_each_element_type() -> None:
    """Their bound had been that of two products in the type that comes first, here the slow one, above the plan of one mesh."""
    lines = TWO_TYPES.splitlines()
    lines[5], lines[6] = lines[6], lines[5]
    module = through(ir.load_module("\n".join(lines), dialects=DIALECTS), CostPass()).extend([slow_with_bf16(hosts((1e9, 2)))])
    plan, one = (through(module, on_meshes(stages=stages)).first(Plan) for stages in (0, 1))
    assert plan is not None
    assert one is not None
    assert plan.bound <= one.value
    assert plan.value == pytest.approx(one.value)


@pytest.mark.parametrize(("slow", "between", "used"), [(1e7, 3e9, 2), (8e8, 1e7, 2), (1e9, 1e10, 3)])
def test_a_host_stays_idle_where_that_is_quicker(slow: float, between: float, used: int) -> None:
    """One device has a hundredth of the speed, for less than one of 48 samples; or its link is slow; or neither."""
    topology = hosts((1e9, 2), (slow, 1), between=between)
    module = step(48, 256).extend([topology])
    plan = through(module, on_meshes(training=True, microbatches=4)).first(Plan)
    assert plan is not None
    (stage,) = plan.stages
    assert len(stage.devices) == used
    sets = [[device.name for device in topology.devices if device.host in some] for some in (("h0",), ("h0", "h1"))]
    values = []
    for names in sets:
        part = restricted(topology, names)
        alone = through(step(48, 256).extend([part]), on_meshes(training=True, microbatches=4)).first(Plan)
        assert alone is not None
        values.append(alone.value)
    assert plan.value == pytest.approx(min(values))
    assert plan.bound <= plan.value
    idle = dict(plan.certificate).get("idle", "")
    assert bool(idle) == (used == 2)
    if idle:  # milliseconds, as the report has them: more than the plan takes
        least = re.fullmatch(r"on one mesh of all devices no plan is below (\S+) ms a microbatch", idle)
        assert least is not None
        assert float(least[1]) / 1000 > plan.value / plan.microbatches


@pytest.mark.parametrize("groups", [((1e9, 1), (1e9, 3)), ((2e9, 1), (1e9, 3))])
def test_every_shape_is_searched(groups: tuple[tuple[float, int], ...]) -> None:
    """Rows of 2x2 share a host, and nothing else divides two samples and layers of twice an odd number."""
    text = STEP.replace("64", "62").format(batch=2, width=122, size=62 * 122 * 8)
    module = through(ir.load_module(text, dialects=DIALECTS), CostPass()).extend([hosts(*groups, between=1e12)])
    plan, square = (through(module, on_meshes(training=True, mesh=mesh)).first(Plan) for mesh in ("", "2x2"))
    assert plan is not None
    assert square is not None
    assert plan.value <= square.value * (1 + 1e-9)
    assert plan.bound <= square.value


TIMED = """
module @m {opset.onnx = 20} {
  resource @v : tensor<64x64xf32> = declared
  func @main(%x : tensor<8x64xf32>) -> (%y : tensor<8x64xf32>) {
    %y = onnx.MatMul(%x, @v) : tensor<8x64xf32> time<@t0 = 0.001>
  }
}
"""


@pytest.mark.parametrize("training", [False, True])
def test_devices_that_cannot_run_an_op_stay_idle(training: bool) -> None:
    """Where all meshes have such a device, that is said."""
    module = through(ir.load_module(TIMED, dialects=DIALECTS), CostPass())
    with pytest.raises(Infeasible, match="some cannot run %y"):
        through(module.extend([hosts((1e9, 1), (2e9, 1))]), on_meshes(training=training))
    plan = through(module.extend([hosts((1e9, 2), (2e9, 1))]), on_meshes(training=training)).first(Plan)
    assert plan is not None
    assert plan.stages[0].devices == ("h0-d0", "h0-d1")
    assert dict(plan.certificate)["idle"] == "on a mesh every device runs every op, and some of these cannot"


def test_hosts_without_a_link_between_have_no_mesh() -> None:
    topology = hosts((1e9, 1), (2e9, 1))
    apart = replace(topology, links=tuple(link for link in topology.links if link.name != "out-h1"))
    with pytest.raises(InvalidInput, match="no links lead from h0-d0 to h1-d0"):
        through(step(8).extend([apart]), on_meshes())


def test_devices_of_one_host_and_type_all_take_part() -> None:
    module = step(6, 256).extend([hosts((1e9, 3))])
    (mesh,) = through(module, on_meshes(training=True)).of_type(Mesh)
    assert len(mesh.devices) == 3


def test_a_set_of_devices_that_is_not_searched_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its compute, evenly divided: the plan's bound is no larger."""
    topology = hosts((1e9, 2), (2e9, 1), (4e9, 1))
    module = step(6, 256).extend([topology])
    every = candidates(module, topology, network(topology), training=True, microbatches=1)
    assert every.bound == math.inf
    monkeypatch.setattr("passes.partition.layouts.mesh.candidates.MOST_PARTS", 1)
    some = candidates(module, topology, network(topology), training=True, microbatches=1)
    left = {one.devices: one.least for one in every.searched if one.devices not in {other.devices for other in some.searched}}
    assert left
    assert some.bound == pytest.approx(min(left.values()))
    plan = through(module, on_meshes(training=True)).first(Plan)
    assert plan is not None
    assert plan.bound <= some.bound


def test_equal_devices_share_samples_that_they_do_not_divide() -> None:
    """Seven samples on three devices."""
    module = step(7, 256).extend([hosts((1e9, 3), between=1e10)])
    result = through(module, on_meshes(training=True))
    plan, one = result.first(Plan), through(module, on_meshes(training=True, mesh="1")).first(Plan)
    assert plan is not None
    assert one is not None
    assert one.value / 3 < plan.value < one.value / 2
    assert plan.value < through(module, on_meshes(training=True, mesh="2")).first(Plan).value


@pytest.mark.parametrize("shape", ["", "5"])
def test_data_parallelism_deals_samples_evenly(shape: str) -> None:
    """Nine samples on five devices, whatever their speeds; all that the search finds is at least as quick."""
    module = step(9, 256).extend([hosts((2e9, 4), (3e9, 1), between=1e10)])
    result = through(module, on_meshes(mesh=shape, training=True, strategy="data"))
    (mesh,) = result.of_type(Mesh)
    assert mesh.shares == ((2, 2, 2, 2, 1),)
    named, free = result.first(Plan), through(module, on_meshes(mesh=shape, training=True)).first(Plan)
    assert named is not None
    assert free is not None
    assert named.bound <= free.value <= named.value


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([1e9, 2e9]), st.integers(1, 3)), min_size=1, max_size=4), st.integers(1, 6))
def test_sets_of_devices_are_told_apart_by_more_than_names(groups: list[tuple[float, int]], count: int) -> None:
    """Hosts with links of one speed: a set is told by how many devices of which type each of its hosts has."""
    topology = hosts(*groups)
    host = {device.name: device.host for device in topology.devices}
    type_of = {device.name: (topology.type(device.type).rates, groups[int(device.host[1:])]) for device in topology.devices}

    def looks(names: Sequence[str]) -> object:
        by_host = itertools.groupby(sorted(names, key=lambda name: host[name]), key=lambda name: host[name])
        return sorted(tuple(str(type_of[name]) for name in own) for _, own in by_host)

    every = {str(looks(names)) for names in itertools.combinations([device.name for device in topology.devices], count)}
    found = [str(looks(names)) for names in sets_of(topology, count)]
    assert len(found) == len(set(found))
    assert set(found) == every


def test_of_many_sets_those_of_whole_hosts_are_looked_at() -> None:
    topology = hosts(*[(1e9, 8)] * 8)
    found = list(sets_of(topology, 20))
    assert [len({name.split("-")[0] for name in names}) for names in found] == [3], "two whole hosts, and half of one"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", ["2", "2x2"])
def test_a_mesh_of_some_devices_has_the_best(training: bool, shape: str) -> None:
    """Wherever the quick ones, and those of one host, are declared."""
    quick, slow = (8e9, 4), (1e9, 2)
    plans = []
    for groups in sorted({*itertools.permutations([quick, slow, slow])}):
        topology = hosts(*groups)
        found = on_meshes(shape, training=training).run(step(96, width=4096).extend([topology]), PassContext())
        plan = needed(found, Plan)
        assert re.search("; searched: [0-9]+ other sets of devices", dict(plan.certificate)["mesh"])
        plans.append((plan.value, plan.bound, [topology.device(name).type for name in plan.stages[0].devices]))
        assert len({topology.device(name).host for name in plan.stages[0].devices}) == 1
    assert all(plan == plans[0] for plan in plans)
    assert set(plans[0][2]) == {"t1"}


def test_a_mesh_whose_devices_take_long_to_wake_is_not_taken_for_the_quicker_one() -> None:
    """A search of one mesh compared all but their hand-over, and called the slower one optimal."""
    given = hosts((2e9, 2), (1.9e9, 2))
    types = [replace(type_, handover=0.0 if type_.rates[0][1] < 2e9 else 1.0) for type_ in given.types]
    module = step(16).extend([replace(given, types=tuple(types))])
    found = on_meshes(mesh="2").run(module, PassContext())
    plan = found.first(Plan)
    assert plan is not None
    assert [stage.devices for stage in plan.stages] == [("h1-d0", "h1-d1")]
    assert plan.bound <= plan.value < 1.0
    awake = on_meshes(mesh="2").run(step(16).extend([given]), PassContext()).first(Plan)
    assert awake is not None
    assert [stage.devices for stage in awake.stages] == [("h0-d0", "h0-d1")]
