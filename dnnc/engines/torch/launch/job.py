"""What ``dnnc train`` tells a rank that it starts, in memory that the rank inherits, and how the rank then meets the others.

Other users of the machine see arguments of processes, but not this memory, which says where the ranks' store is.

Ranks meet by a *store*, a kilobyte of addresses. On one host it is memory without a name that the ranks inherit, so no other
process can join or listen. On several hosts the first rank serves it on a socket that its host listens on already, and others
are told its address once their host has proven the secret (``dnnc.engines.torch.launch.meeting``). Tensors travel by gloo,
which listens on ``address`` alone.

A rank that somebody starts by hand has no such argument: it is alone, or meets the others as torchrun's variables say.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from dnnc.engines.onnxruntime.transport.edges import anonymous_memory, read_memory, write_memory
from ir.system.scratch import remove_dead_scratch

LOOPBACK = "127.0.0.1"
BACKEND = "dnnc"
"""The name, in torch.distributed, of gloo on one address."""


@dataclass(frozen=True, slots=True)
class Job:
    """``rank`` of ``world``, on its host the one at ``place``. Inherited descriptors: ``alive``, a pipe that ends when the
    process that started the ranks has gone; ``tells``, a pipe for what the rank tells it, and ``marks``, memory for what each
    rank of the host does (``dnnc.engines.torch.launch.telling``). ``store``: the path of the memory by which the ranks of one
    host meet, or, on several hosts, HOST:PORT; ``listen``: of the rank that serves it there, the inherited socket. ``address``:
    what gloo listens on."""

    rank: int
    place: int
    world: int
    alive: int
    tells: int
    marks: int
    store: str
    address: str = LOOPBACK
    listen: int | None = None

    @classmethod
    def read(cls, descriptor: str) -> Job:
        """The job in the memory that was inherited as this descriptor."""
        size = os.fstat(int(descriptor)).st_size
        return cls(**json.loads(read_memory(int(descriptor), 0, size).rstrip(b"\0")))

    def write(self) -> int:
        """A descriptor of new memory that holds the job, for the caller to close. Raises OSError."""
        text = json.dumps(asdict(self)).encode()
        memory = anonymous_memory(len(text))
        write_memory(memory, [text])
        return memory

    def end_with_starter(self) -> None:
        """From now on this rank ends, with all that it started, when the process that started it has gone; nothing of the
        training is left then."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.read(self.alive, 1):
            pass
        for _ in range(3):  # another rank may be removing it too, or still write there
            remove_dead_scratch()
            time.sleep(0.1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def join(self, limit: timedelta, patience: timedelta) -> None:
        """Meet the others, who may begin ``limit`` later, and wait at most ``patience`` for each message from then on."""
        import torch.distributed as dist

        dist.Backend.register_backend(BACKEND, self._gloo, devices=["cpu"])
        store = _together(self._store(limit), self.world, limit)
        dist.init_process_group(BACKEND, timeout=patience, store=store, rank=self.rank, world_size=self.world)

    def _store(self, limit: timedelta) -> Any:
        import torch.distributed as dist

        host, _, port = self.store.rpartition(":")
        if not host:
            return dist.FileStore(self.store, self.world)  # type: ignore[attr-defined]
        place, serves = (host.strip("[]"), int(port)), self.listen is not None
        return dist.TCPStore(  # type: ignore[attr-defined]
            *place, self.world, serves, limit, wait_for_workers=False, master_listen_fd=self.listen
        )

    def _gloo(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """A process group of gloo that listens on ``address``: by itself it takes what the name of this host resolves to."""
        from torch.distributed import ProcessGroupGloo

        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices, options._timeout = [gloo.create_device(hostname=self.address)], timeout
        return gloo(store, rank, size, options)


def by_hand() -> tuple[int, int]:
    """The number of a rank without a job, and how many there are."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def join_by_hand(limit: timedelta, patience: timedelta) -> None:
    """As ``Job.join``, of a rank without a job."""
    import torch.distributed as dist

    rank, world = by_hand()
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    if world > 1:
        store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=limit))  # type: ignore[attr-defined]
    dist.init_process_group("gloo", timeout=patience, store=_together(store, world, limit), rank=rank, world_size=world)


def _together(store: Any, world: int, limit: timedelta) -> Any:
    """The store, once all ranks have begun: some start much later than others."""
    import torch.distributed as dist

    if store.add("dnnc/begun", 1) == world:
        store.set("dnnc/all", "begun")
    store.wait(["dnnc/all"], limit)
    return dist.PrefixStore("dnnc", store)  # type: ignore[attr-defined]


__all__ = ["Job", "by_hand", "join_by_hand"]
