"""What the nodes of a cluster have, host by host, and what is missing for the machines of a topology.

Each node is asked for its versions, cores, memory, execution providers and free disk; its clock is compared with that of this
machine; and all nodes and this machine connect to each other on ports of the range that a run uses, with keys of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.cluster.nodes.actor import Facts
from dnnc.engines.cluster.nodes.matching import HostNeeds, Node, match_hosts
from dnnc.engines.cluster.nodes.ray_cluster import RayAgents, connected, version_faults
from dnnc.engines.hosts.answers import Answers
from dnnc.engines.hosts.faults import CoresMissing, EndpointNotReached, ProviderMissingThere
from dnnc.engines.hosts.options import ClusterOptions
from dnnc.engines.onnxruntime.starter.roles import STARTER
from dnnc.onnx.providers import CPU, Provider
from ir.core.diagnostics import Diagnostic
from ir.core.topology import Topology

REACH_SECONDS = 10.0
"""How long a node tries to reach another one."""
_ASKED = 5
"""Questions by which a clock is compared; the quickest answer counts."""


@dataclass(frozen=True, slots=True)
class HostSurvey:
    """What was found of one host. ``clock``: seconds that its clock is ahead of the one here, known to ``clock_within``;
    ``faults``: what is missing."""

    host: str
    node: Node
    facts: Facts
    clock: float
    clock_within: float
    faults: tuple[Diagnostic, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "address": self.node.address,
            "node": self.node.name,
            **asdict(self.facts),
            "clock": {"ahead": self.clock, "within": self.clock_within},
            "missing": [fault.to_json() for fault in self.faults],
        }


def survey(topology: Topology, cluster: ClusterOptions) -> tuple[HostSurvey, ...]:
    """What was found of each host of a topology that has devices. Raises InvalidInput and UsageError as a run on the cluster
    does where there is no cluster, or no node for a host."""
    where, wanted = f"--cluster {cluster.address}", {need.name: need for need in _needs(topology)}
    with connected(cluster.address) as (ray, nodes, here):
        found, _ = match_hosts(list(wanted.values()), nodes, cluster.hosts, where)
        agents = RayAgents(ray, found, {name: HostNeeds(name, 0) for name in found}, where)
        try:
            facts = {name: Facts.read(agents.ask(name, "facts"), name, where) for name in found}
            clocks = {name: _clock(agents, name) for name in found}
            unreached = _unreached(agents, found, here, cluster.ports)
        finally:
            agents.close()
    versions = version_faults({name: fact.versions for name, fact in facts.items()}, where)
    surveys = []
    for name, node in found.items():
        fact, faults = facts[name], [fault for host, fault in versions if host == name]
        if fact.cores < wanted[name].cores:
            faults.append(CoresMissing(name, wanted[name].cores, fact.cores).at(where))
        for provider in sorted(_providers(topology, name) - set(fact.providers)):
            faults.append(ProviderMissingThere(name, provider, fact.providers).at(where))
        faults += [EndpointNotReached(name, endpoint).at(where) for endpoint in unreached[name]]
        surveys.append(HostSurvey(name, node, fact, *clocks[name], tuple(faults)))
    return tuple(surveys)


def _needs(topology: Topology) -> Iterator[HostNeeds]:
    for host in topology.hosts:
        types = [topology.type(device.type) for device in topology.devices if device.host == host.name]
        if types:
            yield HostNeeds(host.name, sum(type_.cores for type_ in types), address=host.address)


def _providers(topology: Topology, host: str) -> set[str]:
    """Execution providers that devices of a host name, but the CPU's."""
    names = (Provider.of(topology, device.name) for device in topology.devices if device.host == host)
    return {provider.name for provider in names if provider is not None} - {CPU}


def _clock(agents: RayAgents, host: str) -> tuple[float, float]:
    """Seconds that the clock of a host is ahead of the one here, and how exactly that is known."""
    tried = []
    for _ in range(_ASKED):
        begin = time.time()
        there = Answers(host, agents.where).real(agents.ask(host, "clock"), "clock")
        end = time.time()
        tried.append(((end - begin) / 2, there - (begin + end) / 2))
    within, ahead = min(tried)
    return ahead, within


def _unreached(agents: RayAgents, nodes: dict[str, Node], here: str, ports: tuple[int, int]) -> dict[str, list[str]]:
    """By host, endpoints of other hosts and of this machine that it does not reach, or that do not reach it."""
    own = Relay(here, ports)
    try:
        offers = {name: agents.listen(name, node.address, ports) for name, node in nodes.items()}
        every = {**offers, STARTER: own.offer}
        asked = agents.begin({name: ("reach", _others(every, name), REACH_SECONDS) for name in nodes})
        missing: list[str] = []
        try:
            own.meet(offers, REACH_SECONDS)
        except ConnectionError as error:
            missing = str(error).split(", ")
        answers = agents.unreached(asked, every, "it connected to the others")
        return {name: [*answers[name], *(e for e in missing if e == offers[name][0])] for name in nodes}
    finally:
        own.close()


def _others(every: dict[str, tuple[str, str]], name: str) -> dict[str, tuple[str, str]]:
    return {other: offer for other, offer in every.items() if other != name}
