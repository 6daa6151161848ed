"""Opens the ends of edges and the groups of a process, each by the transport that its description names.

A description begins with the name of a transport: an end of an edge is ``[transport, edge, place]``, with the edge as JSON and
what that transport needs; a group is an object whose ``transport`` is the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnc.engines.onnxruntime.engine import Group, Incoming, Outgoing, Transport
from dnnc.engines.onnxruntime.transport.edges import Edge
from dnnc.engines.onnxruntime.transport.shared_memory import SharedMemory

MEMORY = "memory"
"""Shared memory inside a host."""


class Transports:
    """The transports of a process, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Transport] = {MEMORY: SharedMemory()}

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
        return self._by_name[group["transport"]].group(group)


__all__ = ["MEMORY", "Transports"]
