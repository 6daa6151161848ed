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
    """The transport. The place of an end is its descriptors: of the memory, to read tokens from and to write them to."""

    @property
    def address(self) -> Any:
        return None  # what it needs is inherited

    def meet(self, peers: Mapping[str, Any]) -> None:
        pass

    def incoming(self, edge: Edge, place: Any) -> Receiver:
        return Receiver(edge, Descriptors(*place))

    def outgoing(self, edge: Edge, place: Any) -> Sender:
        return Sender(edge, Descriptors(*place))

    def group(self, group: Mapping[str, Any]) -> Exchange:
        from dnnc.build.collective import Collective
        from dnnc.engines.onnxruntime.transport.collectives import Exchange, Places

        collectives = tuple(map(Collective.from_json, group["collectives"]))
        places = Places.from_json(group["places"])
        memory = map_memory(group["memory"], places.total)
        peers = {peer: (read, write) for peer, read, write in group["peers"]}
        return Exchange(collectives, group["member"], memory, places, peers)
