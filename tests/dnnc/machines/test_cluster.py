"""Machines of a cluster as one topology: who is measured with whom, what is written, and real relays."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from dnnc.cli import main
from dnnc.engines.cluster.nodes.matching import Node
from dnnc.machines import cluster, detected, read_facts
from dnnc.machines.cluster import NodeMeter, _Host, _joined, _Pair, named_nodes, tournament
from dnnc.machines.probes import Sample
from dnnc.machines.topology import read_topology, topology_to_toml
from ir.core.diagnostics import UsageError
from passes.costs.network import network


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_each_two_nodes_meet_once_and_none_is_in_two_pairs(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    rounds = list(tournament(names))
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        met = [name for pair in pairs for name in pair]
        assert len(set(met)) == len(met)
    assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == list(combinations(names, 2))


def test_hosts_are_called_as_their_nodes_say() -> None:
    marked = Node("1" * 20, "192.0.2.1", "big.example", {"CPU": 2, "host:a": 1})
    others = [Node(str(n) * 20, f"192.0.2.{n}", "pc.example", {"CPU": 2}) for n in (2, 3)]
    idle = Node("4" * 20, "192.0.2.4", "laptop", {})
    named = named_nodes([marked, *others, idle], {}, "")
    assert {name: node.address for name, node in named.items()} == {"a": "192.0.2.1", "pc": "192.0.2.2", "pc2": "192.0.2.3"}
    assert named_nodes([marked, *others, idle], {"x": "192.0.2.4"}, "") == {"x": idle}
    with pytest.raises(UsageError, match="E2213"):
        named_nodes([marked], {"x": "192.0.2.9"}, "")
    with pytest.raises(UsageError, match="E2215"):
        named_nodes([marked], {"x": "192.0.2.1", "y": "big.example"}, "")


def host(name: str, factor: float = 1.0) -> _Host:
    """What a node would have measured: everything so many times as fast as a core of the preset."""
    topology, notes = detected(replace(read_facts(gpus=""), host=name), 1)
    types = (
        replace(one, rates=tuple((d, r * factor) for d, r in one.rates), memory_bandwidth=one.memory_bandwidth * factor)
        for one in topology.types
    )
    return _Host(replace(topology, types=tuple(types)), notes, 1.0, "a processor")


def pair(bandwidth: float) -> _Pair:
    return _Pair(Sample(1e-3, 1e-5), bandwidth, 0.01)


def addresses(*names: str) -> Mapping[str, str]:
    return {name: f"192.0.2.{number}" for number, name in enumerate(names, 1)}


def test_equal_hosts_share_the_numbers_of_the_slowest() -> None:
    """Of three equal machines and a quicker one; the equal network between all is one link."""
    hosts = {"a": host("a", 1.1), "b": host("b"), "c": host("c", 3.0), "d": host("d", 1.05)}
    found = _joined(hosts, {both: pair(1e9 + 1e6 * len(both[0])) for both in combinations(hosts, 2)}, addresses(*hosts), "now")
    topology = found.topology
    types = {device.host: device.type for device in topology.devices}
    assert types["a"] == types["b"] == types["d"] != types["c"]
    assert dict(topology.type(types["a"]).rates) == dict(hosts["b"].topology.types[0].rates)
    assert topology.type(types["a"]).source == (
        "dnnc topology measure --cluster: b, now, the slowest of a, b, d, measured each"
    )
    assert [one.address for one in topology.hosts] == [*addresses(*hosts).values()]
    assert topology.links[-1].ends == tuple(hosts)
    path = network(topology).path("a.cpu0", "c.cpu0")
    assert path.latency == pytest.approx(1e-3)
    assert path.bandwidth == topology.links[-1].bandwidth
    text = topology_to_toml(topology, found.notes)
    assert read_topology(text, name="cluster") == topology
    assert "by ZeroMQ with CURVE" in text
    assert "Measured by 'dnnc topology measure --cluster' on a, b, c, d, now." in text


def test_equal_hosts_keep_their_own_memory() -> None:
    big, small = host("big"), host("small", 0.95)
    types = tuple(replace(one, memory=8 << 30) for one in small.topology.types)
    hosts = {
        "big": replace(big, topology=replace(big.topology, types=tuple(replace(t, memory=64 << 30) for t in types))),
        "small": replace(small, topology=replace(small.topology, types=types)),
    }
    topology = _joined(hosts, {("big", "small"): pair(1e9)}, addresses(*hosts), "now").topology
    assert len({device.type for device in topology.devices}) == 1
    limits = {device.host: topology.memory(device) for device in topology.devices}
    reserved = topology.types[0].reserved
    assert limits == {"big": (64 << 30) - reserved, "small": (8 << 30) - reserved}


def test_an_uneven_network_is_a_link_for_each_pair() -> None:
    hosts = {name: host(name) for name in "abc"}
    pairs = {("a", "b"): pair(1e9), ("a", "c"): pair(1e8), ("b", "c"): pair(1e9)}
    found = _joined(hosts, pairs, addresses("a", "b", "c"), "now")
    between = found.topology.links[-3:]
    assert {link.ends: link.bandwidth for link in between} == {both: one.bandwidth for both, one in pairs.items()}
    same = _joined(hosts, pairs, dict.fromkeys(hosts, "127.0.0.1"), "now")
    assert [one.address for one in same.topology.hosts] == ["", "", ""], "an address of several nodes names none"


def test_relays_measure_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "TRIPS", 5)
    monkeypatch.setattr(cluster, "WARM", 1)
    monkeypatch.setattr(cluster, "LARGE", 1 << 16)
    a, b = NodeMeter(), NodeMeter()
    offers = {name: meter.listen("127.0.0.1", (26000, 26999))["offer"] for name, meter in (("a", a), ("b", b))}
    with ThreadPoolExecutor(2) as both:
        assert list(both.map(lambda m, other: m.reach({other: offers[other]}, 10.0), (a, b), "ba")) == [[], []]
        for first in (0, 4):
            a.join("b", first, True)
            b.join("a", first, False)
            one, other = both.map(lambda m, begins: m.exchange(begins), (a, b), (True, False))
            assert len(one["trip"]) == 5
            assert len(one["large"]) == len(other["large"]) == cluster.GROUPS
            assert min(*one["trip"], *one["large"], *other["large"]) > 0
    a.close()
    b.close()


def test_one_node_has_no_network() -> None:
    said = list[str]()
    agents: Any = None  # nobody is asked
    assert cluster._network(agents, {"a": Node("1" * 20, "192.0.2.1", "a")}, (1, 2), lambda label, _: said.append(label)) == {}
    assert said == []


def test_what_cannot_go_with_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "measure", "here.toml", "--cluster", "127.0.0.1:1"]) == 2
    assert "E2228" in capsys.readouterr().err
    assert main(["topology", "measure", "--ports", "1-2"]) == 2
    assert "E2227" in capsys.readouterr().err
