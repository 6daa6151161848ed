"""The transport of the engine between hosts: ends of edges whose other ends are reached by a relay.

Shared memory (``dnnc.engines.onnxruntime.transport.shared_memory``) is the transport inside a host; a device's process gets the
same kind of ends from both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.onnxruntime.engine import Group
from dnnc.engines.onnxruntime.transport.edges import Edge, Receiver, Sender


class Network:
    """The transport. ``settings``: the ``address`` of this host and the ``ports`` to choose from. The place of an end is the
    number of its link and the name of the process at its other end."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        first, last = settings["ports"]
        self._relay = Relay(settings["address"], (first, last))

    @property
    def address(self) -> Any:
        """Where others find this process, and its public key."""
        return self._relay.offer

    def meet(self, peers: Mapping[str, Sequence[str]]) -> None:
        """Connects to the processes at the other ends, of which this is what ``address`` was there. Raises ConnectionError."""
        self._relay.meet(peers)

    def incoming(self, edge: Edge, place: Any) -> Receiver:
        link, peer = place
        return self._relay.receiver(link, edge, peer)

    def outgoing(self, edge: Edge, place: Any) -> Sender:
        link, peer = place
        return self._relay.sender(link, edge, peer)

    def group(self, group: Mapping[str, Any]) -> Group:
        raise ValueError("members on several hosts exchange operands by edges")  # as the roles say (``EDGES``)
