"""Parts of a topology up to symmetry, against all subsets compared by graph isomorphism."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, islice

import networkx as nx
import pytest

from dnnc.machines import merged, parse_link
from dnnc.machines.topology import load_topology, read_topology
from dnnc.study.subsets import connected, parts, restricted, with_more
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.topology import Topology
from passes.costs.network import Network

DESKS = """version = 1
switches = ["office"]
[types]
core = "preset:cpu-1"
t4 = "preset:t4"
[templates.desk]
devices = [{ name = "gpu", type = "t4" }, { name = "cpu{0..1}", type = "core", memory = "8 GiB" }]
links = [
  { ends = ["host", "gpu", "cpu{0..1}"], bandwidth = "12 GB/s", latency = "5 us" },
  { name = "card", ends = ["host", "office"], bandwidth = "1 Gbit/s", latency = "50 us", shared = true },
]
[[hosts]]
name = "desk{a,b}"
template = "desk"
"""


def preset(name: str) -> Topology:
    return load_topology(f"preset:{name}", DiagnosticSink())


def mixed() -> Topology:
    both = [("a", preset("cpu-2,cores=2,memory=8GiB")), ("b", preset("a100x2"))]
    return merged("m", both, [parse_link("a-b=10Gbit/s,50us")]).topology


TOPOLOGIES = {
    "cpu-4": lambda: preset("cpu-4,cores=4,memory=8GiB"),
    "2xa100x2": lambda: preset("2xa100x2"),
    "3xt4x2": lambda: preset("3xt4x2"),
    "desks": lambda: read_topology(DESKS),
    "mixed": mixed,
}


def coloured(topology: Topology, part: tuple[str, ...]) -> nx.Graph:
    """The topology as a graph of points and links, the chosen devices marked."""
    graph = nx.Graph()
    for host in topology.hosts:
        graph.add_node(host.name, what=("host", host.cores, host.memory))
    for switch in topology.switches:
        graph.add_node(switch.name, what="switch")
    for device in topology.devices:
        graph.add_node(device.name, what=(device.type, device.memory, device.name in part))
        graph.add_edge(device.name, device.host, what="of")
    for link in topology.links:
        graph.add_node(("link", link.name), what=replace(link, name="", ends=()))
        graph.add_edges_from([(("link", link.name), end) for end in link.ends], what="end")
    return graph


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_set_is_listed_once_up_to_symmetry(name: str) -> None:
    topology = TOPOLOGIES[name]()
    listed = list(parts(topology))
    assert [len(part) for part in listed] == sorted(len(part) for part in listed)
    graphs = [coloured(topology, part) for part in listed]
    names = [device.name for device in topology.devices]
    seen: set[int] = set()
    for size in range(1, len(names) + 1):
        for part in combinations(names, size):
            graph = coloured(topology, part)
            alike = [
                number
                for number, other in enumerate(graphs)
                if len(listed[number]) == size
                and nx.is_isomorphic(
                    graph, other, lambda a, b: a["what"] == b["what"], lambda a, b: a.get("what") == b.get("what")
                )
            ]
            assert len(alike) == 1, part
            seen |= set(alike)
    assert len(seen) == len(listed)


def test_many_unlike_devices_are_listed_at_once() -> None:
    kinds = "".join(f'[[devices]]\nname = "d{i}"\ntype = "c"\nmemory = "{i + 1} MB"\n' for i in range(200))
    text = f'version = 1\n[types.c]\nrates = {{ f32 = "1 TFLOP/s" }}\nmemory_bandwidth = "1 GB/s"\n{kinds}'
    links = '[[links]]\nends = ["devices of host"]\nbandwidth = "1 GB/s"\nlatency = "1 us"\n'
    assert [len(part) for part in islice(parts(read_topology(text + links)), 300)] == [1] * 200 + [2] * 100


def test_what_stays_is_as_it_was() -> None:
    topology = mixed()
    before = Network(topology)
    for part in parts(topology):
        after = Network(restricted(topology, part))
        for source in part:
            for target in part:
                assert after.seconds(source, target, 1e6) == before.seconds(source, target, 1e6)


def test_a_bus_of_two_ends_is_one_medium() -> None:
    """Both directions share it, as before others were left out: it had become a cable, with the bandwidth in each."""
    text = 'version = 1\n[types]\nc = "preset:cpu-1"\n[[devices]]\nname = "d{0..2}"\ntype = "c"\n'
    bus = '[[links]]\nname = "bus"\nends = ["d{0..2}"]\nbandwidth = "1 GB/s"\nshared = true\n'
    topology = read_topology(text + bus)
    both = [("d0", "d1", 10**9), ("d1", "d0", 10**9)]
    assert Network(restricted(topology, ("d0", "d1"))).busy(both) == Network(topology).busy(both) == {"bus": 2.0}


def test_devices_out_of_reach_are_no_part() -> None:
    links = "".join(f'[[links]]\nends = ["d{i}", "d{i + 1}"]\nbandwidth = "1 GB/s"\n' for i in range(2))
    text = 'version = 1\n[types]\nc = "preset:cpu-1"\n[[devices]]\nname = "d{0..2}"\ntype = "c"\n'
    chain = read_topology(text + links)
    assert not connected(restricted(chain, ("d0", "d2")))
    assert ("d0", "d2") not in list(parts(chain))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_copy_is_like_its_original(name: str) -> None:
    topology = TOPOLOGIES[name]()
    for type_ in {device.type for device in topology.devices}:
        original = [device for device in topology.devices if device.type == type_][-1]
        larger, (first, second) = with_more(topology, type_, 2)
        network = Network(larger)
        copies = [device for device in larger.devices if device.name in (first, second)]
        assert [(c.type, c.host, c.memory) for c in copies] == [(type_, original.host, original.memory)] * 2
        for other in topology.devices:
            if other.name != original.name:
                assert network.path(other.name, first).latency == network.path(other.name, original.name).latency
                assert network.seconds(first, other.name, 1e6) == network.seconds(original.name, other.name, 1e6)
        assert network.path(first, second).latency > 0
    with pytest.raises(UsageError, match=r"E1131.*the topology has no device of that type"):
        with_more(topology, "tpu", 1)
