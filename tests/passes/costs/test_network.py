"""Routes, ports and exchangeable devices, against a slow and obvious search where there is one."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from passes.costs.network import FREE, Network, Unreachable, device_classes, network
from passes.framework.base import AnalysisCache

TYPE = DeviceType("t", rates=(("f32", 1e12),), memory_bandwidth=1e9)


def topology(devices: int, *links: Link, routes: tuple[Route, ...] = (), switches: tuple[str, ...] = ()) -> Topology:
    """Devices d0, d1... of one host ``h`` and what joins them."""
    made = tuple(Device(f"d{number}", "t", "h") for number in range(devices))
    return Topology("@t", (TYPE,), (Host("h"),), made, tuple(map(Switch, switches)), links, routes)


def test_least_latency_wins_over_bandwidth() -> None:
    found = Network(
        topology(
            2,
            Link("slow", ("d0", "d1"), 1e9, 1e-6),
            Link("up", ("d0", "s"), 100e9, 1e-6),
            Link("down", ("s", "d1"), 100e9, 1e-6),
            switches=("s",),
        )
    ).path("d0", "d1")
    assert (found.links, found.latency, found.bandwidth) == (("slow",), 1e-6, 1e9)


def test_ties_go_to_bandwidth_then_to_names() -> None:
    links = (Link("c", ("d0", "d1"), 1e9), Link("b", ("d0", "d1"), 2e9), Link("a", ("d0", "d1"), 2e9))
    assert Network(topology(2, *links)).path("d0", "d1").links == ("a",)
    # Latencies that differ by rounding only are a tie: 0.1 + 0.2 is not 0.3 in floats.
    uneven = (
        Link("x", ("d0", "s"), 1e9, 0.1e-6),
        Link("y", ("s", "d1"), 1e9, 0.2e-6),
        Link("direct", ("d0", "d1"), 9e9, 0.3e-6),
    )
    assert Network(topology(2, *uneven, switches=("s",))).path("d0", "d1").links == ("direct",)


def test_an_explicit_route_is_taken_as_it_is() -> None:
    links = (Link("fast", ("d0", "d1"), 9e9, 1e-9), Link("bus", ("h", "d0", "d1"), 1e9, 1e-3))
    found = Network(topology(2, *links, routes=(Route("d0", "d1", ("bus",)),)))
    assert found.path("d0", "d1").links == ("bus",)
    assert found.path("d1", "d0").links == ("fast",)
    assert found.port("d0").latency == 1e-9


def test_within_a_device_nothing_moves() -> None:
    path = Network(topology(1)).path("d0", "d0")
    assert (path.links, path.seconds(1e12)) == ((), 0.0)
    assert Network(topology(1)).port("d0") == FREE


def test_a_bus_is_crossed_once() -> None:
    path = Network(topology(3, Link("bus", ("h", "d0", "d1", "d2"), 8e9, 4e-6, shared=True))).path("d0", "d2")
    assert path.hops == (("bus", "d0", "d2"),)
    assert path.seconds(8e9) == 4e-6 + 1.0


def test_unreachable_and_unknown() -> None:
    with pytest.raises(Unreachable, match="from d0 to d1"):
        Network(topology(2)).path("d0", "d1")
    with pytest.raises(KeyError):
        Network(topology(1)).path("d0", "nobody")


def test_free_transfers_have_a_free_port() -> None:
    made = topology(2, Link("l", ("d0", "d1"), 1e9, 1e-6))
    free = Topology("@t", (TYPE, DeviceType("f", free_transfers=True)), made.hosts, (made.devices[0], Device("d1", "f", "h")),
                    links=made.links)  # fmt: skip
    found = Network(free)
    assert (found.port("d0").bandwidth, found.port("d1")) == (1e9, FREE)


def test_busy_counts_what_crosses_each_medium() -> None:
    links = (
        Link("a", ("d0", "s"), 10.0),
        Link("b", ("d1", "s"), 10.0),
        Link("card", ("s", "u"), 10.0),
        Link("cable", ("u", "d2"), 10.0, duplex="half"),
    )
    found = Network(topology(3, *links, switches=("s", "u")))
    out = [("d0", "d2", 20.0), ("d1", "d2", 30.0)]
    assert found.busy(out) == {"card from s": 5.0, "cable": 5.0}
    # A full-duplex link carries the way back beside the way out; the half-duplex one does not.
    assert found.busy([*out, ("d2", "d0", 40.0)]) == {"card from s": 5.0, "card from u": 4.0, "cable": 9.0}


@pytest.mark.parametrize(
    ("bus", "media"),
    [
        # A bus is one medium for all; the ways of a crossbar at the two devices are their ports, that to the host is none.
        (Link("bus", ("d0", "d1", "h"), 10.0, shared=True), {"d1": ("bus",), "d2": ("bus", "up from h")}),
        (Link("bus", ("d0", "d1", "h"), 10.0), {"d1": (), "d2": ("bus to h", "up from h")}),
        (Link("bus", ("d0", "d1", "h"), 10.0, duplex="half"), {"d1": ("bus",), "d2": ("bus", "up from h")}),
    ],
)
def test_media_of_links_with_many_ends(bus: Link, media: dict[str, tuple[str, ...]]) -> None:
    up, down = Link("up", ("h", "s"), 5.0), Link("down", ("s", "d2"), 5.0)
    found = Network(topology(3, bus, up, down, switches=("h", "s")))
    for target, names in media.items():
        assert tuple(name for name, _ in found.path("d0", target).media) == names


def test_a_cable_between_devices_is_a_medium_for_they_forward() -> None:
    found = Network(topology(3, Link("a", ("d0", "d1"), 10.0), Link("b", ("d1", "d2"), 10.0)))
    assert found.busy([("d0", "d2", 10.0), ("d1", "d2", 10.0)]) == {"a from d0": 1.0, "b from d1": 2.0}


def test_the_link_of_a_device_that_others_pass_is_a_medium() -> None:
    """d1 has a cable to d0, whose own link to the switch is slow: what d0 and d1 send to d2 shares the link of d1."""
    links = [Link(f"l{number}", (f"d{number}", "s"), 1.0 if number == 0 else 10.0) for number in range(4)]
    found = Network(topology(4, *links, Link("cable", ("d0", "d1"), 10.0), switches=("s",)))
    assert found.passed == {"d1"}
    assert found.busy([("d0", "d2", 20.0), ("d1", "d3", 30.0)]) == {"cable from d0": 2.0, "l1 from d1": 5.0}
    assert found.busy([("d2", "d0", 20.0), ("d3", "d1", 30.0)]) == {"cable from d1": 2.0, "l1 from s": 5.0}
    assert found.busy([("d2", "d3", 20.0)]) == {}


def test_stated_routes_pass_devices_too() -> None:
    links = [Link(f"l{number}", (f"d{number}", "s"), 10.0) for number in range(3)]
    cables = Link("near", ("d0", "d1"), 1.0, 1e-3), Link("far", ("d1", "d2"), 1.0, 1e-3)
    assert Network(topology(3, *links, *cables, switches=("s",))).passed == frozenset()
    routes = (Route("d0", "d2", ("near", "far")),)
    assert Network(topology(3, *links, *cables, switches=("s",), routes=routes)).passed == {"d1"}


def test_devices_are_exchangeable_when_nothing_but_names_changes() -> None:
    star = [Link(f"l{number}", (f"d{number}", "s"), 1e9, 1e-6) for number in range(3)]
    assert device_classes(topology(3, *star, switches=("s",))) == (("d0", "d1", "d2"),)
    wider = [star[0], star[1], Link("l2", ("d2", "s"), 2e9, 1e-6)]
    assert device_classes(topology(3, *wider, switches=("s",))) == (("d0", "d1"), ("d2",))
    mesh = [Link(f"{a}{b}", (f"d{a}", f"d{b}"), 1e9) for a, b in itertools.combinations(range(3), 2)]
    assert device_classes(topology(3, *mesh)) == (("d0", "d1", "d2"),)
    ring = [Link(f"{a}", (f"d{a}", f"d{(a + 1) % 4}"), 1e9) for a in range(4)]
    assert device_classes(topology(4, *ring)) == (("d0", "d2"), ("d1", "d3"))
    routed = topology(3, *star, switches=("s",), routes=(Route("d0", "d1", ("l0", "l1")),))
    assert device_classes(routed) == (("d0",), ("d1",), ("d2",))


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Small networks, often with ties."""
    devices, switches = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    points = [*(f"d{n}" for n in range(devices)), *(f"s{n}" for n in range(switches)), "h"]
    links = []
    for number in range(draw(st.integers(1, 6))):
        ends = tuple(draw(st.lists(st.sampled_from(points), min_size=2, max_size=3, unique=True)))
        bandwidth, latency = draw(st.sampled_from([1e9, 2e9, 3e9])), draw(st.sampled_from([0.0, 1e-6, 2e-6, 3e-6]))
        links.append(Link(f"l{number}", ends, bandwidth, latency))
    return topology(devices, *links, switches=tuple(points[devices:-1]))


def every_path(found: Topology, source: str, target: str) -> list[tuple[int, float]]:
    """(picoseconds, bandwidth) of every simple path, one by one."""
    results = []

    def walk(point: str, visited: frozenset[str], latency: float, bandwidth: float) -> None:
        if point == target:
            results.append((round(latency * 1e12), bandwidth))
            return
        for link in found.links:
            for end in link.ends if point in link.ends else ():
                if end not in visited:
                    walk(end, visited | {end}, latency + link.latency, min(bandwidth, link.bandwidth))

    walk(source, frozenset([source]), 0.0, math.inf)
    return results


@given(networks())
@settings(max_examples=75)
def test_routes_equal_the_best_of_all_paths(found: Topology) -> None:
    net = Network(found)
    for one, other in itertools.permutations([device.name for device in found.devices], 2):
        paths = every_path(found, one, other)
        if not paths:
            with pytest.raises(Unreachable):
                net.path(one, other)
            continue
        path = net.path(one, other)
        assert (round(path.latency * 1e12), -path.bandwidth) == min((latency, -width) for latency, width in paths)


@given(networks())
@settings(max_examples=30)
def test_no_route_beats_a_port(found: Topology) -> None:
    net = Network(found)
    for one, other in itertools.permutations([device.name for device in found.devices], 2):
        if not every_path(found, one, other):
            continue
        path = net.path(one, other)
        for end in (one, other):
            assert net.port(end).latency <= path.latency
            assert net.port(end).bandwidth >= path.bandwidth
            assert net.port(end).seconds(1e6) <= path.seconds(1e6)


@given(networks())
@settings(max_examples=30)
def test_exchanging_devices_of_a_class_changes_no_cost(found: Topology) -> None:
    net = Network(found)
    names = [device.name for device in found.devices]

    def cost(one: str, other: str) -> tuple[float, float] | None:
        try:
            path = net.path(one, other)
        except Unreachable:
            return None
        return (path.latency, path.bandwidth)

    for group in device_classes(found):
        for one, other in itertools.combinations(group, 2):
            swap = {one: other, other: one}
            for a, b in itertools.permutations(names, 2):
                assert cost(a, b) == cost(swap.get(a, a), swap.get(b, b))


def test_kept_by_the_analysis_cache() -> None:
    made, cache = topology(1), AnalysisCache()
    assert cache.get(network, made) is cache.get(network, made)


def test_kept_from_one_step_of_a_compile_to_the_next() -> None:
    """Ten steps ask for it; to find the routes of 65,536 devices on a bus takes a second each time."""
    top = topology(3)
    assert network(top) is network(topology(3))
    assert device_classes(top) is device_classes(topology(3))
