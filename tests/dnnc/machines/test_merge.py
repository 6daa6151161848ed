"""Several topologies as one: nothing changes within each, names stay apart, links join them."""

from __future__ import annotations

import pytest

from dnnc.machines import merged, parse_link
from dnnc.machines.topology import load_topology, read_topology, topology_to_toml
from ir.core.diagnostics import DiagnosticSink, DnncError, InvalidInput, UsageError
from ir.core.topology import Topology
from passes.costs.network import Network, device_classes

SPECS = ("cpu-2,cores=2,memory=8GiB", "a100x2", "2xh100x2")


def preset(name: str) -> Topology:
    return load_topology(f"preset:{name}", DiagnosticSink())


@pytest.mark.parametrize("first", SPECS)
@pytest.mark.parametrize("second", SPECS)
def test_each_part_stays_what_it_was(first: str, second: str) -> None:
    parts = [("a", preset(first)), ("b", preset(second))]
    ends = [f"{file}.{part.hosts[0].name}" for file, part in parts]
    clash = {host.name for host in parts[0][1].hosts} & {host.name for host in parts[1][1].hosts}
    ends = [end if part.hosts[0].name in clash else part.hosts[0].name for end, (_, part) in zip(ends, parts, strict=True)]
    whole = merged("both", parts, [parse_link(f"{ends[0]}--{ends[1]}=10Gbit/s,50us")]).topology
    assert read_topology(topology_to_toml(whole)) == whole
    network, place = Network(whole), 0
    for _, part in parts:
        before = Network(part)
        devices = whole.devices[place : place + len(part.devices)]
        place += len(part.devices)
        names = dict(zip([device.name for device in part.devices], devices, strict=True))
        for source, device in names.items():
            old, new = part.type(part.device(source).type), whole.type(device.type)
            assert (old.rates, old.efficiency, part.memory(part.device(source))) == (
                new.rates,
                new.efficiency,
                whole.memory(device),
            )
            for target, other in names.items():
                assert network.seconds(device.name, other.name, 1e6) == before.seconds(source, target, 1e6)
    across = network.path(whole.devices[0].name, whole.devices[-1].name)
    assert across.bandwidth == 1.25e9
    assert across.latency > 50e-6
    assert len(whole.types) == (1 if first == second else 2)


def test_equal_hosts_stay_exchangeable() -> None:
    whole = merged("m", [("a", preset("a100x2")), ("b", preset("a100x2"))], [parse_link("a-b=100Gbit/s,5us")])
    assert [len(group) for group in device_classes(whole.topology)] == [2, 2]
    assert whole.joined == ("a100",)
    assert ("a", "gpu0", "a.gpu0") in whole.renamed


def test_a_name_made_by_prefixing_may_be_taken() -> None:
    odd = read_topology('version = 1\n[types]\na100 = "preset:a100"\n[[devices]]\nname = "a.gpu0"\ntype = "a100"\n')
    whole = merged(
        "m",
        [("a", preset("a100")), ("b", preset("a100")), ("c", odd)],
        [parse_link("a-b=1GB/s,1us"), parse_link("b-c=1GB/s,1us")],
    )
    assert [device.name for device in whole.topology.devices] == ["a.gpu0_", "b.gpu0", "a.gpu0"]


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([], "no links lead from a.gpu0 to b.gpu0"),
        (["a-x=1GB/s,1us"], "no host is called 'x'"),
        (["a-a=1GB/s,1us"], "both ends"),
        (["a-b=1GB/s"], "expected HOST-HOST=BANDWIDTH,LATENCY"),
        (["a-b=1Gb/s,1us"], "may mean bits or bytes"),
        (["a-b=0 B/s,1us"], "expected more than 0"),
        (["a-b-c=1GB/s,1us"], "expected HOST-HOST"),
    ],
)
def test_what_is_refused(links: list[str], words: str) -> None:
    with pytest.raises(DnncError, match=words) as caught:
        merged("m", [("a", preset("a100")), ("b", preset("a100"))], [parse_link(link) for link in links])
    assert isinstance(caught.value, InvalidInput if not links else UsageError)
