"""Measures the machines of a Ray cluster as one topology: the devices of each node, and the network between each two.

Each node measures its own devices, all nodes at the same time (``measure.py``), by an actor of Ray. The network is measured by
relays with keys, by which values of ``dnnc run --cluster`` travel: a small tensor to the other node and back for latency, a
stream of large ones in each direction for bandwidth, of which the slower direction counts. Pairs are measured in the rounds of
a tournament: of N nodes each is in one pair at a time, so there are N - 1 rounds (N where N is odd).

Nodes alike in processor, devices and cores whose rates and bandwidths differ by less than ``ALIKE`` are written with the same
numbers, those of the slowest of them, so a plan may deal evenly among them. A network that is as quick between all pairs
becomes one link with an end at each host, which share nothing but their ends; otherwise there is a link for each pair.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnnc.engines.cluster.nodes.actor import NodeAgent
from dnnc.engines.cluster.nodes.matching import HostNeeds, Node
from dnnc.engines.cluster.nodes.ray_cluster import RayAgents, connected
from dnnc.engines.hosts.answers import Answers
from dnnc.engines.hosts.faults import ClusterNotReached, EndpointNotReached, NodeAmbiguous, NodeForTwoHosts
from dnnc.engines.hosts.options import ClusterOptions
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Edge, Receiver, Sender, ValueSpec
from dnnc.machines.detect import detected
from dnnc.machines.facts import read_facts
from dnnc.machines.measure import host_here, measured
from dnnc.machines.merge import HostLink, merged
from dnnc.machines.probes import Sample
from dnnc.machines.topology import read_topology, topology_to_toml
from dnnc.machines.topology.writer import Notes
from dnnc.onnx.elements import BY_NAME
from ir.core.diagnostics import DnncError, InvalidInput, UsageError
from ir.core.topology import Device, DeviceType, Link, Topology
from ir.text.units import percent_text

ALIKE = 1.15
"""By which factor numbers of equal machines, or of the network between different pairs, may differ: the clock of a core changes
by as much from minute to minute."""
SMALL, LARGE = 1 << 12, 1 << 22
"""Bytes of the tensors that are sent for latency and for bandwidth."""
TRIPS, WARM = 200, 20
GROUPS, STREAM = 8, 4
"""Of a stream that is measured: groups of tensors, and tensors of each."""
REACH_SECONDS = 30.0
MEASURE_SECONDS = 600.0
"""How long a node may take to measure its devices."""
_MOST_TOML = 1 << 22
"""Characters of a node's topology: a host of a thousand devices has less."""
_LEAST_SECONDS = 1e-9
_BYTE = BY_NAME["uint8"].number
_LINKS = 4
"""Edges between two nodes: small and large tensors, each way."""
Progress = Callable[[str, float | None], None]


class NodeMeter(NodeAgent):
    """The actor on a node that is measured."""

    def describe(self, host: str, devices: int | None, seed: int, training: bool) -> dict[str, Any]:
        """Measures the devices of this node, ``training`` too; the result as text, or what was refused."""
        _at_usual_priority()
        facts = replace(read_facts(), host=host)
        try:
            topology, notes = detected(facts, devices)
            here = host_here(topology, facts, host)
            topology, more, share = measured(topology, facts, here, seed=seed, training=training)
        except DnncError as error:
            return {"refused": [diagnostic.to_json() for diagnostic in error.diagnostics]}
        return {
            "toml": topology_to_toml(topology),
            "notes": [[*key, text] for key, text in {**notes, **more}.items()],
            "share": share,
            "processor": facts.processor,
        }

    def join(self, peer: str, first: int, begins: bool) -> None:
        """Opens the edges with a node, numbered from ``first`` on; whoever begins writes those of even numbers."""
        assert self._relay is not None
        self._ends: list[Sender | Receiver] = []
        for number in range(_LINKS):
            edge = Edge(FEEDER, FEEDER, (ValueSpec("x", _BYTE, (SMALL if number < 2 else LARGE,)),))
            make: Any = self._relay.sender if (number % 2 == 0) == begins else self._relay.receiver
            self._ends.append(make(first + number, edge, peer))

    def exchange(self, begins: bool) -> dict[str, list[float]]:
        """Sends tensors to the other node and receives those of it. Seconds: ``trip`` there and back, of who begins; ``large``,
        a received tensor of a stream of large ones. Empty where the connection to the other node broke."""
        _at_usual_priority()
        try:
            return self._exchanged(begins)
        except EOFError:
            return {}
        finally:
            for end in self._ends:
                end.close()

    def _exchanged(self, begins: bool) -> dict[str, list[float]]:
        out, back = (self._ends[number] for number in ((0, 1) if begins else (1, 0)))
        large_out, large_back = (self._ends[number] for number in ((2, 3) if begins else (3, 2)))
        trips = []
        for _ in range(WARM + TRIPS):
            start = time.perf_counter()
            for sends in (begins, not begins):
                _send(out, SMALL) if sends else _receive(back)
            trips.append(time.perf_counter() - start)
        streamed: list[float] = []
        for sends in (begins, not begins):
            for group in range(1 + GROUPS):
                start = time.perf_counter()
                for _ in range(STREAM):
                    _send(large_out, LARGE) if sends else _receive(large_back)
                if group and not sends:
                    streamed.append((time.perf_counter() - start) / STREAM)
        return {"trip": trips[WARM:], "large": streamed}


def _send(end: Any, size: int) -> None:
    values = {"x": Raw(_BYTE, (size,), np.zeros(size, np.uint8))}
    for _ in end.send_microbatch(values):
        end.read_tokens()


def _receive(end: Any) -> None:
    while not end.complete:
        end.read_tokens()
    end.release(end.take())


def _at_usual_priority() -> None:
    with contextlib.suppress(OSError):  # Ray runs its workers at a low one
        os.setpriority(os.PRIO_PROCESS, 0, 0)


@dataclass(frozen=True, slots=True)
class ClusterMeasured:
    """``topology`` with notes on its numbers; ``shares``: for which part of the time the processes that measured each host had
    their cores."""

    topology: Topology
    notes: Notes
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Host:
    """What a node measured of itself."""

    topology: Topology
    notes: Notes
    share: float
    processor: str

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for hosts that may be written with the same numbers."""
        types = [(one.name, one.kind, one.cores, one.provider, tuple(sorted(dict(one.rates)))) for one in self.topology.types]
        return self.processor, tuple(types), tuple((one.name, one.type) for one in self.topology.devices)

    @property
    def speeds(self) -> list[float]:
        """Of each type: the rate of f32, the bandwidth of memory, and the other rates."""
        types = [(one.memory_bandwidth, dict(one.rates)) for one in self.topology.types]
        return [
            value
            for bandwidth, rates in types
            for value in (rates.pop("f32", 1.0), bandwidth, *(rates[name] for name in sorted(rates)))
        ]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The network between two hosts: seconds one way of a small tensor, bytes per second of large ones."""

    latency: Sample
    bandwidth: float
    spread: float


def measured_cluster(
    cluster: ClusterOptions,
    *,
    devices: int | None = None,
    seed: int = 0,
    training: bool = True,
    progress: Progress = lambda label, fraction: None,
) -> ClusterMeasured:
    """The topology of the nodes of a cluster that offer cores, or of those that ``cluster.hosts`` names. ``devices``: of each
    node, as for ``detected``; ``training``: measure it too. Raises UsageError for a stated node that is not there, InvalidInput
    where there is no such cluster, it asks for no token, versions differ or nodes do not reach each other, StageStopped where a
    node goes meanwhile."""
    where = f"--cluster {cluster.address}"
    with connected(cluster.address) as (ray, every, _):
        nodes = named_nodes(every, cluster.hosts, where)
        needs = {
            name: HostNeeds(name, int(node.resources.get("CPU", 0)), int(node.resources.get("GPU", 0)))
            for name, node in nodes.items()
        }
        agents = RayAgents(ray, nodes, needs, where, NodeMeter)
        try:
            agents.require_versions()
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            progress(f"measure the devices of {', '.join(nodes)}", None)
            asked = agents.begin({name: ("describe", name, devices, seed, training) for name in nodes})
            hosts = {
                name: _host(name, answer, where)
                for name, answer in agents.answers(asked, "its devices were measured", MEASURE_SECONDS).items()
            }
            pairs = _network(agents, nodes, cluster.ports, progress)
        finally:
            agents.close()
    return _joined(hosts, pairs, {name: node.address for name, node in nodes.items()}, when)


def named_nodes(nodes: Sequence[Node], stated: Mapping[str, str], where: str) -> dict[str, Node]:
    """The nodes to measure by the names of their hosts: those of ``stated``, else all that offer cores, called as their
    resource ``host:NAME`` says, else as the machine, with a number where several are. Raises UsageError, InvalidInput."""
    named: dict[str, Node] = {}
    if stated:
        for name, wanted in stated.items():
            called = [node for node in nodes if node.is_called(wanted)]
            if len(called) != 1:
                raise UsageError(NodeAmbiguous(wanted, len(called), tuple(map(str, nodes))), where=f"--host {name}={wanted}")
            if called[0] in named.values():
                both = tuple(other for other, node in {**named, name: called[0]}.items() if node is called[0])
                raise UsageError(NodeForTwoHosts(str(called[0]), both), where=f"--host {name}={wanted}")
            named[name] = called[0]
        return named
    for node in nodes:
        if node.resources.get("CPU", 0) < 1:
            continue
        marks = sorted(
            key.removeprefix("host:") for key in node.resources if len(key) > len("host:") and key.startswith("host:")
        )
        base = name = marks[0] if marks else re.sub(r"[^A-Za-z0-9_-]+", "-", node.name.partition(".")[0]).strip("-") or "host"
        number = 2
        while name in named:
            name, number = f"{base}{number}", number + 1
        named[name] = node
    if not named:
        raise InvalidInput(ClusterNotReached("none of its nodes offers cores"), where=where)
    return dict(sorted(named.items()))


def _host(name: str, answer: Any, where: str) -> _Host:
    """What a node answered of itself. Raises InvalidInput for what it refused, or what is no topology of this one host."""
    answers = Answers(name, where)
    answer = answers.table(answer, "its devices")
    if "refused" in answer:
        raise InvalidInput(answers.diagnostics(answer["refused"]))
    text = answers.text(answer.get("toml"), "its topology", _MOST_TOML)
    try:
        topology = read_topology(text, name=name)
    except DnncError as error:
        raise answers.refuse("its topology", error.diagnostics[0].message, "a topology") from None
    hosts = {name, *(host.name for host in topology.hosts), *(device.host for device in topology.devices)}
    if len(hosts) > 1 or not topology.devices or len(topology.hosts) != 1:
        raise answers.refuse("its topology", sorted(hosts), f"devices of the host '{name}' alone")
    notes = {}
    for note in answers.items(answer.get("notes"), "notes"):
        table, key, words = (answers.text(one, "a note") for one in answers.items(note, "a note", 3))
        notes[table, key] = words
    share = answers.real(answer.get("share"), "share", 0.0, 1.0)
    return _Host(topology, notes, share, answers.text(answer.get("processor"), "processor"))


def _seconds(answers: Answers, answer: Any, name: str) -> Sample:
    """The sample of seconds that an answer states under a name."""
    times = answers.items(answers.table(answer, "its measurement").get(name), name)
    if not times:
        raise answers.refuse(name, times, "seconds")
    return Sample.of([answers.real(one, name, _LEAST_SECONDS, MEASURE_SECONDS) for one in times])


def tournament(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Rounds of pairs in which each two meet once and nobody is in two pairs of a round (the circle method)."""
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    for _ in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        yield [(one, other) for one, other in pairs if one is not None and other is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _network(
    agents: RayAgents, nodes: Mapping[str, Node], ports: tuple[int, int], progress: Progress
) -> dict[tuple[str, str], _Pair]:
    """The network between each two hosts. Raises InvalidInput where they do not reach each other, StageStopped where a host
    goes or a connection breaks meanwhile."""
    if len(nodes) < 2:
        return {}
    doing = "the network was measured"
    offers = {name: agents.listen(name, node.address, ports) for name, node in nodes.items()}
    others = {name: {other: offer for other, offer in offers.items() if other != name} for name in nodes}
    asked = agents.begin({name: ("reach", others[name], REACH_SECONDS) for name in nodes})
    faults = [
        EndpointNotReached(name, endpoint).at(agents.where)
        for name, unreached in agents.unreached(asked, offers, doing).items()
        for endpoint in unreached
    ]
    if faults:
        raise InvalidInput(faults)
    found: dict[tuple[str, str], _Pair] = {}
    rounds = list(tournament(list(nodes)))
    for number, pairs in enumerate(rounds):
        progress(f"measure the network: {', '.join(map(' to '.join, pairs))}", number / len(rounds))
        first = number * _LINKS
        sides = {one: (other, True) for one, other in pairs} | {other: (one, False) for one, other in pairs}
        agents.answers(agents.begin({name: ("join", peer, first, begins) for name, (peer, begins) in sides.items()}), doing)
        asked = agents.begin({name: ("exchange", begins) for name, (_, begins) in sides.items()})
        answers = agents.answers(asked, doing, MEASURE_SECONDS)
        for one, other in pairs:
            if {} in (answers[one], answers[other]):
                raise StageStopped(EndpointNotReached(one, offers[other][0]), where=agents.where)
            received = (_seconds(Answers(name, agents.where), answers[name], "large") for name in (one, other))
            slower = max(received, key=lambda sample: sample.median)
            trip = _seconds(Answers(one, agents.where), answers[one], "trip")
            latency = Sample(trip.median / 2, trip.spread / 2)
            found[one, other] = _Pair(latency, LARGE / slower.median, slower.relative)
    return found


def _joined(
    hosts: Mapping[str, _Host], pairs: Mapping[tuple[str, str], _Pair], addresses: Mapping[str, str], when: str
) -> ClusterMeasured:
    """One topology of all hosts."""
    leaders = _leaders(hosts)
    several = len(set(leaders.values())) > 1
    parts = []
    for name, leader in leaders.items():
        topology, mine = _called(hosts[leader].topology, leader, name), hosts[name].topology
        own = mine.hosts[0]
        alone = list(addresses.values()).count(addresses[name]) == 1
        members = [one for one in leaders if leaders[one] == leader]
        source = f"dnnc topology measure --cluster: {leader}, {when}"
        if len(members) > 1:
            source = f"{source}, the slowest of {', '.join(members)}, measured each"
        before = f"{leader}." if several else ""
        part = replace(
            topology,
            types=tuple(replace(one, name=f"{before}{one.name}", source=source) for one in topology.types),
            devices=tuple(
                replace(one, type=f"{before}{one.type}", memory=_memory(mine, same, topology.type(one.type)))
                for one, same in zip(topology.devices, mine.devices, strict=True)
            ),
            hosts=(replace(own, address=addresses[name] if alone else ""),),
        )
        parts.append((name, part))
    links = [HostLink(pair, _rounded(found.bandwidth), _latency(pair, found, dict(parts))) for pair, found in pairs.items()]
    joined = merged("cluster", parts, links)
    whole, new = joined.topology, {(file, old): name for file, old, name in joined.renamed}
    notes = {("", ""): f"Measured by 'dnnc topology measure --cluster' on {', '.join(hosts)}, {when}."}
    for name, leader in leaders.items():
        for (table, key), text in hosts[leader].notes.items():
            kind, _, old = table.partition(".")
            if kind == "types" and key != "source":
                notes[f"types.{leader}.{old}" if several else table, key] = text
            elif kind in ("devices", "links"):
                notes[f"{kind}.{new.get((name, old), old)}", key] = text
        for (table, key), text in hosts[name].notes.items():
            notes |= {(f"hosts.{name}", key): text} if table.startswith("hosts.") else {}
    between = whole.links[len(whole.links) - len(links) :]
    told = {link.name: _told(pair, pairs[pair]) for link, pair in zip(between, pairs, strict=True)}
    if len(pairs) > 1 and _spread([found.bandwidth for found in pairs.values()]) < ALIKE:
        slowest = min(between, key=lambda link: link.bandwidth)
        latency = statistics.median(link.latency for link in between)
        network = Link("network", tuple(hosts), slowest.bandwidth, _rounded(latency))
        told = {"network": f"{told[slowest.name]}, the slowest of {len(pairs)} pairs, which differ by less than 15 %"}
        whole = replace(whole, links=(*whole.links[: len(whole.links) - len(links)], network))
    notes |= {(f"links.{name}", "bandwidth"): text for name, text in told.items()}
    return ClusterMeasured(whole, notes, {name: host.share for name, host in hosts.items()})


def _memory(own: Topology, device: Device, written: DeviceType) -> int | None:
    """The memory that a ``device`` of its host's topology states where its type is ``written`` with another host's numbers."""
    memory = device.memory if device.memory is not None else own.type(device.type).memory
    return None if memory == written.memory else memory


def _told(pair: tuple[str, str], found: _Pair) -> str:
    return (
        f"measured: streams of {LARGE >> 20} MiB between {' and '.join(pair)} by ZeroMQ with CURVE, "
        f"+-{percent_text(found.spread)}; latency of {SMALL >> 10} KiB, +-{percent_text(found.latency.relative)}"
    )


def _latency(pair: tuple[str, str], found: _Pair, parts: Mapping[str, Topology]) -> float:
    """Of the link: what a route crosses inside the hosts has latencies of its own."""
    inside = [max((link.latency for link in parts[name].links if name in link.ends), default=0.0) for name in pair]
    return _rounded(max(found.latency.median - sum(inside), found.latency.median / 10))


def _leaders(hosts: Mapping[str, _Host]) -> dict[str, str]:
    """The host whose numbers each host is written with: the slowest of those alike, or itself."""
    groups: list[list[str]] = []
    for name, host in sorted(hosts.items(), key=lambda item: item[1].speeds):
        for group in groups:
            first = hosts[group[0]]
            if host.alike == first.alike and all(
                max(one, other) < ALIKE * min(one, other) for one, other in zip(host.speeds, first.speeds, strict=True)
            ):
                group.append(name)
                break
        else:
            groups.append([name])
    return {name: next(group[0] for group in groups if name in group) for name in hosts}


def _called(topology: Topology, old: str, new: str) -> Topology:
    """The topology of one host with another name of the host."""
    return replace(
        topology,
        hosts=tuple(replace(host, name=new) for host in topology.hosts),
        devices=tuple(replace(device, host=new) for device in topology.devices),
        links=tuple(replace(link, ends=tuple(new if end == old else end for end in link.ends)) for link in topology.links),
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
