"""The transport between processes of one host: shared memory for tensors, and pipes for tokens (``edges``, ``collectives``).

The starter makes the memory and the pipes; a process inherits their descriptors under the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dnnc.engines.onnxruntime.transport.edges import Descriptors, Edge, Receiver, Sender, map_memory

if TYPE_CHECKING:
    from dnnc.engines.onnxruntime.transport.collectives import Exchange


class SharedMemory:
    """The transport; a process's configuration describes an end as [edge, descriptors], both as JSON."""

    def incoming(self, end: Any) -> Receiver:
        return Receiver(Edge.from_json(end[0]), Descriptors(*end[1]))

    def outgoing(self, end: Any) -> Sender:
        return Sender(Edge.from_json(end[0]), Descriptors(*end[1]))

    def group(self, stage: Mapping[str, Any]) -> Exchange:
        from dnnc.build.collective import Collective
        from dnnc.engines.onnxruntime.transport.collectives import Exchange, Places

        collectives = tuple(map(Collective.from_json, stage["collectives"]))
        places = Places.from_json(stage["places"])
        memory = map_memory(stage["memory"], places.total)
        peers = {peer: (read, write) for peer, read, write in stage["peers"]}
        return Exchange(collectives, stage["member"], memory, places, peers)


__all__ = ["SharedMemory"]
