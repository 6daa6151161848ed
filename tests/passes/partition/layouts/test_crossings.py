"""What crosses between two meshes takes no less than the best link of the first is told to allow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.topology import Device, DeviceType, Host, Link, Switch, Topology
from passes.costs.network import network
from passes.costs.parts import ordered
from passes.meshes.costs.cross_mesh import Crossing, Party, alone
from passes.partition.chain.crossings import Links

SIZE = 1e6
HOST = st.tuples(
    st.integers(1, 3), st.sampled_from([1e9, 4e9]), st.sampled_from([1e9, 2e9, 9e9]), st.sampled_from(["full", "half"])
)


def topology_of(hosts: list[tuple[int, float, float, str]]) -> Topology:
    """Hosts of so many devices, with links of these bandwidths inside and outside; of the latter the ``duplex``."""
    kind = DeviceType("t", "gpu", (("f32", 1e9),), 1e9, None, 0.0)
    devices = [Device(f"h{h}d{i}", "t", f"h{h}") for h, (count, *_) in enumerate(hosts) for i in range(count)]
    links = [Link(f"in-{one.name}", (one.name, one.host), hosts[int(one.host[1:])][1], 1e-6) for one in devices]
    links += [Link(f"out-h{h}", (f"h{h}", "hub"), far, 2e-6, duplex) for h, (*_, far, duplex) in enumerate(hosts)]
    return Topology(
        "@top", (kind,), tuple(Host(f"h{h}") for h in range(len(hosts))), tuple(devices), (Switch("hub"),), tuple(links)
    )


@given(st.lists(HOST, min_size=2, max_size=5), st.booleans(), st.data())
@settings(deadline=None, max_examples=100)
def test_no_message_is_quicker_than_the_best_link(
    hosts: list[tuple[int, float, float, str]], returns: bool, data: st.DataObject
) -> None:
    topology = topology_of(hosts)
    net = network(topology)
    devices, crossing = ordered(topology, net), Crossing(topology, net)
    links = Links(topology, net, devices, returns=returns)
    whole = data.draw(st.booleans())  # hosts
    order = data.draw(st.permutations(range(len(hosts))))
    inside = [number for host in order for number, one in enumerate(devices) if one.host == f"h{host}"]
    numbers = inside if whole else data.draw(st.permutations(inside))
    cut = data.draw(st.integers(1, len(devices) - 1))
    own, later = sorted(numbers[:cut]), sorted(numbers[cut:])
    count = data.draw(st.sampled_from([min(cut, len(later)), len(later)]))
    first, second = ([devices[number].name for number in some] for some in (own, data.draw(st.permutations(later))[:count]))
    maker, reader = (Party(tuple(names), (len(names),)) if len(names) > 1 else alone(names[0]) for names in (first, second))
    behind, before = links.behind(own, later, False), links.before(later, own, False)
    alike, times = maker.matches(reader), 2 if returns else 1
    size = SIZE / len(first) if alike else SIZE
    told = [(behind, len(first), crossing.ends(size, (maker,), (reader,), returns=returns)[0])]
    if count == len(later):
        told.append((before, count, crossing.ends(size, (maker,), (reader,), returns=returns)[1]))
    for link, members, spent in told:
        rate, once = link.rates(members)
        least = times * (SIZE / (rate if alike else once) + link.latency)
        assert spent >= least * (1 - 1e-9)


def test_members_of_a_host_share_its_link() -> None:
    """Two hosts of three and of one: three parts of four cross the first host's link, which all of the later have behind it."""
    topology = topology_of([(3, 9e9, 1e9, "full"), (1, 9e9, 1e9, "full"), (3, 9e9, 9e9, "full"), (1, 9e9, 9e9, "full")])
    net = network(topology)
    devices = topology.devices
    link = Links(topology, net, devices, returns=True).behind(range(4), range(4, 8), False)
    assert link.bandwidth == pytest.approx(1e9 / 3)
    first, second = (Party(tuple(one.name for one in some), (4,)) for some in (devices[:4], devices[4:]))
    spent = Crossing(topology, net).ends(SIZE / 4, (first,), (second,), returns=True)[0]
    assert spent == pytest.approx(2 * (SIZE / link.rates(4)[0] + link.latency))
