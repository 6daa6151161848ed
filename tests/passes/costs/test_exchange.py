"""Collectives on the links that their messages cross: never quicker than the bytes over a cut allow, and monotone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.check.witness.value import Summed
from dnnc.check.witness.value import exposed as verified
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Mesh
from ir.core.topology import Device, DeviceType, Host, Link, Switch, Topology
from ir.ops.opdefs import COLLECTIVES, RESHARD_STEPS
from passes.costs import exchange
from passes.costs.exchange import BUCKET, LAST, GradientSum, Speed, buckets, exchanges, exposed, hidden, hidden_beside, rings
from passes.costs.network import Network, network
from passes.meshes.costs.count import _Traffic
from passes.meshes.mesh import Axis, mesh_of, shapes

CHIP = DeviceType("chip")


def two_groups(bandwidth: float = 1e9, *, shared: bool = True) -> Topology:
    """Two groups of four devices, each on a quick switch, joined by one link."""
    devices = tuple(Device(f"d{i}", "chip", "h") for i in range(8))
    ports = tuple(Link(f"p{i}", (f"d{i}", f"s{i // 4}"), 100e9) for i in range(8))
    trunk = Link("trunk", ("s0", "s1"), bandwidth, shared=shared)
    return Topology("@two", (CHIP,), (Host("h"),), devices, (Switch("s0"), Switch("s1")), (*ports, trunk))


@pytest.mark.parametrize("shared", [True, False])
def test_groups_that_meet_on_one_link_share_it(shared: bool) -> None:
    """201 MB whose quarters are summed over a link of 1 GB/s by four pairs: the link alone needs 201 ms."""
    topology = two_groups(shared=shared)
    outer, inner = mesh_of(topology, network(topology), (2, 4)).axes
    assert outer.rings.bandwidth == pytest.approx(0.25e9)
    assert inner.rings.bandwidth == pytest.approx(100e9)
    step = COLLECTIVES["all_reduce"]
    quarter = 201e6 / 4
    assert outer.seconds(step, quarter / 2) == pytest.approx(0.201)


def test_an_exchange_of_all_with_all_counts_every_pair() -> None:
    """Each of four devices gives each of the other four an eighth of its eighth: a quarter of the tensor each way."""
    topology = two_groups()
    (axis,) = mesh_of(topology, network(topology), (8,)).axes
    nbytes = 64e6
    assert axis.seconds(COLLECTIVES["all_to_all"], nbytes / 64) == pytest.approx(nbytes / 4 / 1e9)


def test_hosts_with_a_card_for_each_device_use_them_all() -> None:
    """Eight devices on two hosts, each device with a card of 25 GB/s: rings leave a host by each of its four cards."""
    topology = load_topology("preset:2xa100x4", DiagnosticSink())
    (axis,) = mesh_of(topology, network(topology), (8,)).axes
    assert axis.rings.bandwidth == pytest.approx(4 * 25e9)
    inside = mesh_of(topology, network(topology), (2, 4)).axes[1]
    assert inside.rings.bandwidth == pytest.approx(205e9)


LATENCIES = st.sampled_from([0.0, 1e-6, 1e-4])
BANDWIDTHS = st.sampled_from([1e6, 3e6, 1e7, 1e9])


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Devices on switches in a random tree, with buses, half-duplex links and cables between devices."""
    count = draw(st.integers(2, 8))
    points = [f"d{i}" for i in range(count)]
    switches = draw(st.integers(1, 3))
    names = [f"s{i}" for i in range(switches)]
    links = []
    for i, name in enumerate(names[1:], 1):
        links.append((name, names[draw(st.integers(0, i - 1))]))
    links += [(point, draw(st.sampled_from(names))) for point in points]
    if draw(st.booleans()):
        links.append((points[0], points[1]))
    found = [
        Link(
            f"l{i}",
            ends,
            draw(BANDWIDTHS),
            draw(LATENCIES),
            draw(st.sampled_from(["full", "half"])),
            draw(st.booleans()),
            draw(LATENCIES),
            draw(st.sampled_from([0.0, 5e5, 2e6])),
            draw(LATENCIES),
        )
        for i, ends in enumerate(links)
    ]
    if draw(st.booleans()):
        found.append(Link("many", (*points, names[0]), draw(BANDWIDTHS), shared=draw(st.booleans())))
    block = draw(st.sampled_from([1, 2, 4, 8]))  # devices of a host
    devices = tuple(Device(point, "chip", f"h{i // block}") for i, point in enumerate(points))
    hosts = tuple(map(Host, dict.fromkeys(device.host for device in devices)))
    return Topology("@any", (CHIP,), hosts, devices, tuple(map(Switch, names)), tuple(found))


@given(machines())
@settings(max_examples=50)
def test_routes_between_classes_of_devices_stand_for_all(topology: Topology) -> None:
    """Devices that can be exchanged have routes alike, and of a large group only one for each pair of classes is looked at."""
    names = [device.name for device in topology.devices]
    net = network(topology)
    for groups in ([names], [names[::2], names[1::2]] if len(names) % 2 == 0 else [names]):
        every = exchanges(net, groups)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange, "MOST_PAIRS", 0)
            some = exchanges(net, groups)
        assert some == every
        assert dict(some.media) == pytest.approx(dict(every.media))


@st.composite
def hosts_alike(draw: st.DrawFn) -> Topology:
    """Three to six hosts with the same devices, each on two switches, one of them perhaps the host's own, and perhaps cables
    between each two; links are named in an order of their own."""
    count, size, own, cables = draw(st.integers(3, 6)), draw(st.integers(1, 3)), draw(st.booleans()), draw(st.booleans())
    ways = [(draw(BANDWIDTHS), draw(LATENCIES), draw(st.sampled_from(["full", "half"])), draw(st.booleans())) for _ in range(5)]
    ends = list[tuple[tuple[str, str], int]]()
    for host in range(count):
        inner = f"in{host}" if own else "in"
        ends += [((f"d{host}.{i}", inner), 0) for i in range(size)] + [((f"d{host}.{i}", "out"), 1) for i in range(size)]
        ends += [((inner, "out"), 2), ((inner, "other"), 3), ((f"d{host}.0", "other"), 3)] if own else []
    ends += [((f"d{one}.0", f"d{two}.0"), 4) for one, two in itertools.combinations(range(count), 2) if cables]
    names = draw(st.permutations([f"l{i}" for i in range(len(ends))]))
    links = [Link(name, pair, *ways[way]) for name, (pair, way) in zip(names, ends, strict=True)]
    devices = tuple(Device(f"d{host}.{i}", "chip", f"h{host}") for host in range(count) for i in range(size))
    switches = (*(f"in{host}" for host in range(count)), "other") if own else ("in",)
    every_host = tuple(Host(f"h{host}") for host in range(count))
    return Topology("@any", (CHIP,), every_host, devices, tuple(map(Switch, (*switches, "out"))), tuple(links))


@given(hosts_alike())
def test_routes_to_the_next_host_stand_for_those_to_all_others(topology: Topology) -> None:
    """Of a group with the same devices of hosts that can be exchanged only neighbours' routes are looked at; where names of
    links decide between routes, hosts may differ."""
    names, net = [device.name for device in topology.devices], network(topology)
    for group in (names, [name for name in names if name.endswith(".0")]):
        pairs = list(itertools.permutations(group, 2))
        if found := exchange._by_host(net, group):
            every, some = (Counter[str](), Counter[str]())
            for pair in pairs:
                every.update(medium for medium, _ in net.path(*pair).media)
            for pair, count in found:
                some.update({medium: count for medium, _ in net.path(*pair).media})
            assert some == every
            for cost in ("latency", "bandwidth", "start", "small", "switch"):
                costs = [{getattr(net.path(*pair), cost) for pair in each} for each in ([pair for pair, _ in found], pairs)]
                assert costs[0] == costs[1]


def test_routes_of_many_alike_hosts_are_few() -> None:
    """Eight hosts of eight devices have 4,032 pairs of devices: those inside a host and to the next are looked at."""
    topology = load_topology("preset:8xh100x8", DiagnosticSink())
    pairs = exchange._by_host(network(topology), [device.name for device in topology.devices])
    assert len(pairs) == 8 * (8 * 7 + 8 * 8)
    assert sum(count for _, count in pairs) == 64 * 63


def cut_seconds(topology: Topology, groups: Sequence[Sequence[str]], kind: str, nbytes: float) -> float:
    """What the capacity of the cuts of a network asks at least of an all-reduce, or all-to-all, of ``nbytes`` by each group:
    those that part its points in two, where the groups have members on both sides."""
    points = [d.name for d in topology.devices] + [s.name for s in topology.switches]
    worst = 0.0
    for picked in itertools.product((False, True), repeat=len(points) - 1):
        side = dict(zip(points, (False, *picked), strict=True))
        there = 0.0
        both = 0.0
        for link in topology.links:
            ones = sum(side[end] for end in link.ends)
            if 0 < ones < len(link.ends):
                wide = 1 if len(link.ends) == 2 or link.shared or link.duplex == "half" else min(ones, len(link.ends) - ones)
                there += wide * link.bandwidth
                half = link.duplex == "half" or (link.shared and len(link.ends) > 2)
                both += wide * link.bandwidth * (1 if half else 2)
        one_way = two_ways = 0.0
        for group in groups:
            inside = sum(side[name] for name in group)
            n = len(group)
            if 0 < inside < n:
                if kind == "all_reduce":  # the sum of either side must reach the other
                    one_way += nbytes
                    two_ways += 2 * nbytes
                else:
                    one_way += inside * (n - inside) * nbytes / n**2
                    two_ways += 2 * inside * (n - inside) * nbytes / n**2
        if there:
            worst = max(worst, one_way / there, two_ways / both)
    return worst


@given(st.data())
@settings(max_examples=40)
def test_no_collective_is_quicker_than_a_cut_allows(data: st.DataObject) -> None:
    topology = data.draw(machines())
    names = [device.name for device in topology.devices]
    size = data.draw(st.sampled_from([n for n in range(2, len(names) + 1) if len(names) % n == 0]))
    order = data.draw(st.permutations(names))
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    nbytes = 1e6
    summed = rings(Network(topology), groups).seconds(2 * (size - 1), nbytes / size)
    exchanged = exchanges(Network(topology), groups).seconds(size - 1, nbytes / size**2)
    assert summed >= cut_seconds(topology, groups, "all_reduce", nbytes) * (1 - 1e-9)
    assert exchanged >= cut_seconds(topology, groups, "all_to_all", nbytes) * (1 - 1e-9)


@given(machines(), st.data())
@settings(max_examples=40)
def test_a_collective_costs_what_its_messages_add_up_to(topology: Topology, data: st.DataObject) -> None:
    """Equal to the count over the messages of each medium, for every axis of a mesh."""
    count = len(topology.devices)
    shape = data.draw(st.sampled_from(shapes(count)))
    net = network(topology)
    mesh = mesh_of(topology, net, shape)
    symbol = Mesh("@m", tuple((axis.name, axis.size) for axis in mesh.axes), mesh.devices)
    for axis in mesh.axes:
        for kind, step in COLLECTIVES.items():
            part = data.draw(st.sampled_from([0.0, 1.0, 1e4, 1e7]))
            steps = step.rounds * (axis.size - 1)
            counted = _Traffic.of(topology, net, symbol, axis.name).seconds(step, net, steps, part)
            assert math.isclose(axis.seconds(step, part), counted, rel_tol=1e-9), kind


@given(BANDWIDTHS, st.floats(1.0, 10.0), st.floats(0.0, 1e9), st.floats(0.0, 1e9), LATENCIES, st.sampled_from([0.0, 5e5, 1e8]))
def test_more_of_anything_never_costs_more(
    bandwidth: float, more: float, part: float, least: float, switch: float, small: float
) -> None:
    slow, fast = (Speed(b, 1e-6, 1e-5, small, switch) for b in (bandwidth, bandwidth * more))
    assert fast.seconds(6, part) <= slow.seconds(6, part) * (1 + 1e-9)
    less, much = sorted((part, least))
    assert slow.seconds(6, less) <= slow.seconds(6, much) * (1 + 1e-9)
    assert slow.seconds(6, part) >= 6 * part / bandwidth * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "steps", "passed"),
    [("all_reduce", 6, 1 / 4), ("all_gather", 3, 1 / 4), ("reduce_scatter", 3, 1 / 4), ("all_to_all", 3, 1 / 16)],
)
def test_a_ring_of_four_takes_so_many_steps(name: str, steps: int, passed: float) -> None:
    """Of a tensor of 16 bytes, by the formulas of Thakur, Rabenseifner and Gropp; each step passes on this part of it."""
    assert list(COLLECTIVES) == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    step = COLLECTIVES[name]
    assert Axis("x", 4, Speed(2.0, 0.5)).seconds(step, 16 * passed) == steps * (16 * passed / 2.0 + 0.5)
    assert step.cuts_anew == (name == "all_reduce")
    assert step.reduces == (name in ("all_reduce", "reduce_scatter"))


def test_slices_and_terms_move_nothing() -> None:
    assert [name for name, step in RESHARD_STEPS.items() if not step.moves] == ["slice", "term"]
    assert Axis("x", 4, Speed(2.0, 0.5)).seconds(RESHARD_STEPS["slice"], 16.0) == 0.0


@given(st.lists(st.integers(0, 60 << 20), max_size=40))
def test_the_first_and_the_last_buckets_are_small(sizes: list[int]) -> None:
    found = buckets(sizes)
    assert [number for bucket in found for number in bucket] == list(range(len(sizes)))
    room = LAST
    for bucket in found[::-1]:
        held = sum(sizes[number] for number in bucket)
        assert held <= min(room, LAST + sum(sizes[: bucket[0]])) or len(bucket) == 1
        more = held + sizes[bucket[0] - 1] if bucket[0] else math.inf
        assert more > min(room, LAST + sum(sizes[: max(bucket[0] - 1, 0)])), "the gradient before it would have fit"
        room = min(2 * room, BUCKET)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12), st.integers(0, 40))
def test_what_is_exposed_is_what_a_clock_counts(rows: list[tuple[int, int]], end: int) -> None:
    """Tick by tick: one sum at a time, the first of those that may go on."""
    left = [[ready, seconds] for ready, seconds in sorted(rows)]
    clock = last = 0
    while any(seconds for _, seconds in left):
        row = next(row for row in left if row[1])
        clock += 1
        if row[0] < clock:
            row[1] -= 1
            last = clock
    sums = [(float(ready), float(seconds)) for ready, seconds in sorted(rows) if seconds]
    assert exposed(sums, end) == max(0, last - end)


@pytest.mark.parametrize("place", [0, 5])
def test_a_server_gets_and_gives_all_through_its_port(place: int) -> None:
    """Eight devices with ports of 100 GB/s and a slow trunk between their two switches, which four tensors cross each way."""
    topology = two_groups(bandwidth=10e9, shared=False)
    (axis,) = mesh_of(topology, network(topology), (8,)).axes
    size = float(BUCKET)
    assert axis.served(size, place) == pytest.approx(2 * max(7 * size / 100e9, 4 * size / 10e9))
    assert axis.served(size / 5, place) == pytest.approx(axis.served(size, place) / 5)  # its part of a bucket


@settings(deadline=None, max_examples=12)
@given(machines(), st.integers(0, 7))
def test_a_server_is_never_quicker_than_its_port(topology: Topology, place: int) -> None:
    net, count = network(topology), len(topology.devices)
    (axis,) = mesh_of(topology, net, (count,)).axes
    server = topology.devices[place % count].name
    own = max(link.bandwidth for link in topology.links if server in link.ends)
    least = 2 * (count - 1) * BUCKET / own
    assert axis.served(float(BUCKET), place % count) >= least * (1 - 1e-9)


@st.composite
def passes_of_gradients(draw: st.DrawFn) -> list[tuple[float, list[int]]]:
    """Of each op of a stage, in order, the seconds of its backward pass and the bytes of the gradients of its weights."""
    sizes = st.sampled_from([1 << 10, 1 << 18, (1 << 20) - 1, 1 << 20, 3 << 20, 30 << 20])
    return draw(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 3.0]), st.lists(sizes, max_size=2)), min_size=1, max_size=9))


@given(passes_of_gradients(), st.sampled_from([0.1, 1.0, 10.0]))
@settings(deadline=None)
def test_sums_are_hidden_as_a_trainer_hides_them(ops: list[tuple[float, list[int]]], slow: float) -> None:
    """As a trainer goes through the pass: op by op from the last, a full bucket is sent when the one before has arrived. And as
    ``verify-plan`` counts it."""
    gradients = [(op, size) for op, (_, sizes) in enumerate(ops) for size in sizes]
    seconds = [slow * size / BUCKET for _, size in gradients]
    number_of, room, held, bucket = dict[int, int](), float(LAST), 0.0, 0
    # Buckets are filled from the gradient that is made last, of the first op.
    made = [[n for n, (maker, _) in enumerate(gradients) if maker == op] for op in range(len(ops))]
    gradients_made = [*itertools.chain.from_iterable(made)]  # the last first
    for number in gradients_made:
        before = sum(gradients[other][1] for other in gradients_made[gradients_made.index(number) + 1 :])
        if held and held + gradients[number][1] > min(room, LAST + before):
            bucket, held, room = bucket + 1, 0.0, min(2 * room, BUCKET)
        number_of[number], held = bucket, held + gradients[number][1]
    waiting = {bucket: list(number_of.values()).count(bucket) for bucket in number_of.values()}
    clock = free = 0.0
    for op in reversed(range(len(ops))):
        clock += ops[op][0]
        for number in made[op]:
            waiting[number_of[number]] -= 1
            if not waiting[number_of[number]]:
                own = [n for n in number_of if number_of[n] == number_of[number]]
                free = max(free, clock) + math.fsum(seconds[n] for n in own)
    behind = max(0.0, free - clock)
    backs = [back for back, _ in ops]
    sums = [GradientSum(math.fsum(backs[op:]), size, one) for (op, size), one in zip(gradients, seconds, strict=True)]
    assert math.fsum(seconds) - hidden([sums], math.fsum(backs)) == pytest.approx(behind)
    summed = (Summed(math.fsum(backs[:op]), size, one) for (op, size), one in zip(gradients, seconds, strict=True))
    assert verified(summed) == pytest.approx(behind)


@given(passes_of_gradients(), st.sampled_from([0.1, 1.0, 10.0]), st.floats(0, 1))
@settings(deadline=None)
def test_a_part_of_the_pass_hides_no_less_than_its_part(ops: list[tuple[float, list[int]]], slow: float, part: float) -> None:
    backs = [back for back, _ in ops]
    gradients = [(math.fsum(backs[op:]), size) for op, (_, sizes) in enumerate(ops) for size in sizes]

    def hides(part: float) -> float:
        return hidden([[GradientSum(part * at, size, slow * size / BUCKET) for at, size in gradients]], part * math.fsum(backs))

    assert hidden_beside(hides(1.0), part) <= hides(part) + 1e-9
