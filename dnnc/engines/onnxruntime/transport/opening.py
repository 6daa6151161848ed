"""Opens the ends of edges and the groups of a process, each by the transport that its description names.

A description begins with the name of a transport: an end of an edge is ``[transport, edge, place]``, with the edge as JSON and
what that transport needs; a group is an object whose ``transport`` is the name, or ``EDGES`` where its members are on several
hosts and exchange operands by ends of edges, which are in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnc.engines.onnxruntime.engine import Group, Incoming, Outgoing, Transport
from dnnc.engines.onnxruntime.transport.edges import Edge
from dnnc.engines.onnxruntime.transport.shared_memory import SharedMemory

MEMORY, NETWORK = "memory", "network"
"""Shared memory inside a host, and sockets between hosts."""
EDGES = "edges"


class Transports:
    """The transports of a process, by name. ``network``: settings of the one between hosts; None in a run on one host."""

    def __init__(self, network: Mapping[str, Any] | None = None) -> None:
        self._by_name: dict[str, Transport] = {MEMORY: SharedMemory()}
        if network is not None:
            from dnnc.engines.cluster.network.transport import Network

            self._by_name[NETWORK] = Network(network)

    @property
    def address(self) -> Any:
        """Where others find this process, as JSON; None in a run on one host."""
        return self._by_name[NETWORK].address if NETWORK in self._by_name else None

    def meet(self, peers: Mapping[str, Any]) -> None:
        """Reaches the processes on other hosts, whose addresses these are, by name. Raises ConnectionError."""
        self._by_name[NETWORK].meet(peers)

    def incoming(self, end: Any) -> Incoming:
        """The end of an edge to this process."""
        name, edge, place = end
        return self._by_name[name].incoming(Edge.from_json(edge), place)

    def outgoing(self, end: Any) -> Outgoing:
        """The end of an edge from this process."""
        name, edge, place = end
        return self._by_name[name].outgoing(Edge.from_json(edge), place)

    def group(self, group: Mapping[str, Any]) -> Group:
        """This process's part in the collectives of a stage."""
        if group["transport"] != EDGES:
            return self._by_name[group["transport"]].group(group)
        from dnnc.build.collective import Collective
        from dnnc.engines.onnxruntime.transport.edge_group import EdgeExchange

        sends = {peer: self.outgoing(end) for peer, end in group["sends"]}
        receives = {peer: self.incoming(end) for peer, end in group["receives"]}
        return EdgeExchange(tuple(map(Collective.from_json, group["collectives"])), group["member"], sends, receives)
