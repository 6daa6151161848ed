"""Which node of a cluster stands for each host of a topology.

In this order: the node that ``--host NAME=NODE`` names; the node with the custom resource ``host:NAME``; the node with the
address that the topology states; for the others, in the
order of the topology, the first node that stands for no host yet and has the cores and GPUs of the host's devices. A node is
named by its address, its host name or the beginning of its id. No node stands for two hosts, since two hosts share no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dnnc.engines.hosts.faults import NodeAmbiguous, NodeForTwoHosts, NoNodeForHost, StatedHostUnknown
from ir.core.diagnostics import Fault, InvalidInput, UsageError


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster. ``resources``: what it offers, ``CPU``, ``GPU`` and custom ones; ``port``: Ray's there;
    ``started``: when, in milliseconds since 1970 by its own clock."""

    id: str
    address: str
    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    port: int = 0
    started: int = 0

    def is_called(self, name: str) -> bool:
        return name in (self.address, self.name) or (len(name) >= 6 and self.id.startswith(name))

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name != self.address else self.address


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """A host of the topology, the cores and GPUs that its devices use, and its address where that is stated."""

    name: str
    cores: int
    gpus: int = 0
    address: str = ""

    def fits(self, node: Node) -> bool:
        return self.cores <= node.resources.get("CPU", 0) and self.gpus <= node.resources.get("GPU", 0)


def match_hosts(
    hosts: Sequence[HostNeeds], nodes: Sequence[Node], stated: Mapping[str, str], where: str
) -> tuple[dict[str, Node], tuple[str, ...]]:
    """The node of each host, and the names of the hosts whose nodes were only chosen because they suffice. ``stated``: nodes by
    the names of hosts. Raises UsageError for a stated host or node that is not there, InvalidInput where hosts and nodes do not
    fit."""
    if unknown := sorted(set(stated) - {host.name for host in hosts}):
        raise UsageError(StatedHostUnknown(unknown[0], tuple(host.name for host in hosts)), where=f"--host {unknown[0]}")
    found: dict[str, Node] = {}
    for name, wanted in stated.items():
        called = [node for node in nodes if node.is_called(wanted)]
        if len(called) != 1:
            raise UsageError(NodeAmbiguous(wanted, len(called), tuple(map(str, nodes))), where=f"--host {name}={wanted}")
        found[name] = called[0]
    for host in hosts:
        marked = [node for node in nodes if f"host:{host.name}" in node.resources]
        if host.name not in found and marked:
            found[host.name] = marked[0]
        elif host.name not in found and host.address:
            if not (there := [node for node in nodes if node.is_called(host.address)]):
                fault: Fault = NodeAmbiguous(host.address, 0, tuple(map(str, nodes)))
                raise InvalidInput(fault, where=f"{where}: host '{host.name}'")
            found[host.name] = there[0]
    chosen = []
    for host in hosts:
        if host.name not in found:
            free = [node for node in nodes if host.fits(node) and node not in found.values()]
            marked_for_others = {node.id for node in nodes if any(key.startswith("host:") for key in node.resources)}
            if not (free := [node for node in free if node.id not in marked_for_others]):
                fault = NoNodeForHost(host.name, host.cores, host.gpus, tuple(map(str, nodes)))
                raise InvalidInput(fault, where=where)
            found[host.name] = free[0]
            chosen.append(host.name)
    by_node: dict[str, list[str]] = {}
    for name, node in found.items():
        by_node.setdefault(node.id, []).append(name)
    for node in found.values():
        if len(names := by_node[node.id]) > 1:
            raise InvalidInput(NodeForTwoHosts(str(node), tuple(names)), where=where)
    return {host.name: found[host.name] for host in hosts}, tuple(chosen)


def _marks(node: Node) -> set[str]:
    return {resource for resource in node.resources if resource.startswith("host:")}


def nodes_again(before: Mapping[str, Node], nodes: Sequence[Node]) -> dict[str, Node]:
    """The node of each host that is there now, of the nodes that stood for them before: the same one; else one with the
    resource of the host; else one at the same address that is marked for no other host."""
    found = {name: node for name, node in before.items() if any(node.id == other.id for other in nodes)}
    for name, node in before.items():
        free = [one for one in nodes if one.id not in {other.id for other in found.values()}]
        marked = [one for one in free if f"host:{name}" in one.resources]
        same = [one for one in free if one.address == node.address and _marks(one) <= _marks(node)]
        if name not in found and (there := marked + same):
            found[name] = there[0]
    return found
