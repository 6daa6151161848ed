"""Who brings a value that crosses between stages on meshes to whom, and what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from passes.costs.network import network
from passes.meshes.costs.cross_mesh import Crossing, Party, messages

HOSTS = """version = 1
switches = ["network"]
types.chip = "preset:p100"
"""
HOST = """
[[hosts]]
name = "{host}"
[[devices]]
name = "{host}{{0..7}}"
type = "chip"
host = "{host}"
[[links]]
each = "devices of {host}"
to = "{host}"
bandwidth = "8 GB/s"
latency = "0 us"
[[links]]
each = "{host}"
to = "network"
bandwidth = "1 GB/s"
latency = "0 us"
shared = true
"""


@pytest.fixture
def crossing(tmp_path: Path) -> Crossing:
    """Between hosts a and b of eight devices, whose ports all devices share."""
    file = tmp_path / "hosts.toml"
    file.write_text(HOSTS + HOST.format(host="a") + HOST.format(host="b"))
    topology = load_topology(str(file), DiagnosticSink())
    return Crossing(topology, network(topology))


def on(*devices: str) -> Party:
    return Party(devices, (len(devices),) if len(devices) > 1 else ())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_every_member_gets_a_value_once_and_every_host_as_seldom_as_it_can(makers: list[int], readers: list[int]) -> None:
    """``makers`` and ``readers``: the host of each member."""
    maker = on(*(f"m{number}" for number in range(len(makers))))
    reader = on(*(f"r{number}" for number in range(len(readers))))
    hosts = zip((*maker.devices, *reader.devices), map(str, (*makers, *readers)), strict=True)
    host_of = dict(hosts)
    found = messages(maker, reader, host_of)
    assert sorted(message.target for message in found) == sorted(reader.devices)
    if maker.matches(reader):
        assert [message.source for message in found] == list(maker.devices)
        return
    held = set(maker.devices)
    for message in found:
        assert message.source in held
        assert message.on == (message.source in reader.devices)
        held.add(message.target)
    for host in set(map(str, readers)):
        entering = [message for message in found if host_of[message.target] == host != host_of[message.source]]
        assert len(entering) == (int(host) not in makers)
        near = [message for message in found if host_of[message.target] == host and not message.on and message not in entering]
        assert len(near) == min(makers.count(int(host)), readers.count(int(host)))
    sources = [message.source for message in found]
    assert len(set(sources)) == len(sources)  # nobody sends it twice


def test_a_shared_port_carries_a_value_once_however_many_read_it(crossing: Crossing) -> None:
    """8 GB: 8 s through the ports, 1 s from one device of a host to the next."""
    maker, reader = on("a0", "a1", "a2"), on("b0", "b1", "b2", "b3")
    assert crossing.send(8e9, maker, reader) == pytest.approx(8.0)
    assert crossing.receive(8e9, maker, reader) == pytest.approx(9.0)  # and passes it on
    assert crossing.ends(8e9, (maker,), (reader,), returns=True) == pytest.approx((8.0 + 9.0, 9.0 + 8.0))
    assert [seconds for _, seconds in crossing.media(8e9, maker, reader)] == pytest.approx([8.0, 8.0])


def test_on_one_host_every_member_of_the_maker_sends(crossing: Crossing) -> None:
    maker, reader = on("a0", "a1"), on("a2", "a3", "a4")
    assert crossing.send(8e9, maker, reader) == pytest.approx(1.0)
    assert crossing.receive(8e9, maker, reader) == pytest.approx(2.0)
    assert crossing.receive(8e9, maker, on("a2")) == pytest.approx(1.0)
