"""Hosts that can be exchanged: as the definition says, on random machines, and on machines of very many hosts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.topology import Device, DeviceType, Host, Link, Switch, Topology
from passes.costs.host_classes import host_classes


def by_definition(topology: Topology) -> dict[str, int]:
    """Each host held against each leader: all links are the same once the two have changed names."""

    def shapes(swap: dict[str, str]) -> Counter[object]:
        return Counter(replace(k, name="", ends=tuple(sorted(swap.get(e, e) for e in k.ends))) for k in topology.links)

    members = {host.name: [d for d in topology.devices if d.host == host.name] for host in topology.hosts}
    leaders: list[str] = []
    found = {}
    for one, mine in members.items():
        for number, other in enumerate(leaders):
            theirs = members[other]
            if [replace(d, name="", host="") for d in mine] == [replace(d, name="", host="") for d in theirs]:
                pairs = [(one, other), *((a.name, b.name) for a, b in zip(mine, theirs, strict=True))]
                pairs += [(f"{one}.switch", f"{other}.switch")]
                if shapes(dict(pairs) | {b: a for a, b in pairs}) == shapes({}):
                    found[one] = number
                    break
        else:
            found[one] = len(leaders)
            leaders.append(one)
    return found


def machines(
    hosts: int, each: int, links: list[tuple[str, ...]], speeds: list[float] | None = None, *, switches: bool = False
) -> Topology:
    """``switches``: behind each host another one, which leads to its first device."""
    devices = tuple(Device(f"h{h}.{d}", "t", f"h{h}") for d in range(each) for h in range(hosts))
    joined = tuple(Link(f"l{n}", ends, (speeds or [1.0] * len(links))[n]) for n, ends in enumerate(links))
    own = tuple(f"h{h}.switch" for h in range(hosts)) if switches else ()
    joined += tuple(Link(f"w{h}", (name, f"h{h}.0" if each else f"h{h}"), 1.0) for h, name in enumerate(own))
    names = tuple(Host(f"h{h}", address=f"10.0.0.{h}") for h in range(hosts))
    return Topology("@t", (DeviceType("t"),), names, devices, tuple(map(Switch, ("s", *own))), joined)


@given(st.integers(0, 1 << 32))
@settings(max_examples=200, deadline=None)
def test_classes_are_what_the_definition_says(seed: int) -> None:
    draw = random.Random(seed)
    hosts, each = draw.randint(1, 5), draw.randint(0, 2)
    points = ["s", *(f"h{h}" for h in range(hosts)), *(f"h{h}.{d}" for h in range(hosts) for d in range(each))]
    links = []
    for _ in range(draw.randint(0, 3)):  # a link, and what it becomes where hosts are renamed by a shift: machines are regular
        ends = draw.sample(points, min(len(points), draw.choice([2, 2, 3])))
        for shift in range(hosts if draw.random() < 0.8 else 1):
            turned = (e if e == "s" else f"h{(int(e[1:].partition('.')[0]) + shift) % hosts}{e[2:]}" for e in ends)
            links.append(tuple(turned))
    speeds = [draw.choice([1.0, 1.0, 1.0, 2.0]) for _ in links]
    topology = machines(hosts, each, links, speeds, switches=draw.random() < 0.5)
    assert host_classes(topology) == by_definition(topology)


@pytest.mark.parametrize(
    ("links", "classes"),
    [
        ([(f"h{h}", "s") for h in range(4000)], 1),
        ([tuple(["s", *(f"h{h}.0" for h in range(4000))])], 1),
        ([(f"h{h}.0", f"h{(h + 1) % 4000}.0") for h in range(4000)], 4000),
    ],
    ids=["switch", "bus", "ring"],
)
def test_thousands_of_hosts(links: list[tuple[str, ...]], classes: int) -> None:
    found = host_classes(machines(4000, 1, links))
    assert len(set(found.values())) == classes


def test_a_full_mesh_of_hosts_is_one_class() -> None:
    links = [(f"h{a}.0", f"h{b}.0") for a in range(40) for b in range(a)]
    assert set(host_classes(machines(40, 1, links)).values()) == {0}
