"""``Job``: what ``dnnc train`` passes to a rank that it starts, and how the rank then meets the others.

A job is passed in memory that the rank inherits, since other users of the machine can read the arguments of a process, and a
job says where the ranks' store is.

The *store* is the key-value store of torch.distributed, about a kilobyte of addresses. On one host it is nameless memory that
the ranks inherit, so no other process can read or join it. On several hosts the first rank serves it on a socket that its host
has opened; another host gets its address once it has proven the secret (``dnnc.engines.torch.launch.meeting``). Tensors are
sent by gloo, which listens on ``address`` alone.

A rank started by hand has no job: it is alone, or meets the others by torchrun's environment variables.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from dnnc.engines.onnxruntime.transport.edges import anonymous_memory, read_memory, write_memory
from ir.system.scratch import PARTIAL, remove_dead_scratch

LOOPBACK = "127.0.0.1"
BACKEND = "dnnc"
"""The name under which torch.distributed knows ``Job._gloo``."""
UNFINISHED = (f".step*{PARTIAL}", f".best.*{PARTIAL}")
"""The names of checkpoints that are not whole."""


@dataclass(frozen=True, slots=True)
class Job:
    """``rank``: of ``world`` ranks; ``local_rank``: among those of its host.

    Inherited descriptors: ``alive``, a pipe that is closed when the process that started the ranks ends; ``tells``, a pipe for
    reports to that process; ``marks``, memory that says what each rank of the host is doing
    (``dnnc.engines.torch.launch.telling``); ``listen``, for the rank that serves the store, the socket for it.

    ``store``: on one host the path of its memory, on several HOST:PORT. ``address``: where gloo listens. ``beside``: the
    ranks of its host, in the order of ``local_rank``."""

    rank: int
    local_rank: int
    world: int
    alive: int
    tells: int
    marks: int
    store: str
    address: str = LOOPBACK
    listen: int | None = None
    beside: Sequence[int] = ()

    @classmethod
    def read(cls, descriptor: str) -> Job:
        """The job in the memory that this inherited descriptor opens."""
        size = os.fstat(int(descriptor)).st_size
        return cls(**json.loads(read_memory(int(descriptor), 0, size).rstrip(b"\0")))

    def write(self) -> int:
        """Writes the job to new memory and returns its descriptor, which the caller closes. Raises OSError."""
        text = json.dumps(asdict(self)).encode()
        memory = anonymous_memory(len(text))
        write_memory(memory, [text])
        return memory

    def end_with_starter(self) -> None:
        """From now on, when the process that started this rank ends, this rank and its process group end too, and the scratch
        files of the training are removed."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.read(self.alive, 1):
            pass
        for _ in range(3):  # another rank may be removing the files too, or still write some
            remove_dead_scratch()
            time.sleep(0.1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def join(self, limit: timedelta, patience: timedelta) -> None:
        """Joins the process group: waits at most ``limit`` for all ranks to start, later at most ``patience`` for each
        message."""
        import torch.distributed as dist

        dist.Backend.register_backend(BACKEND, self._gloo, devices=["cpu"])
        store = _once_all_started(self._store(limit), self.world, limit)
        dist.init_process_group(BACKEND, timeout=patience, store=store, rank=self.rank, world_size=self.world)

    def _store(self, limit: timedelta) -> Any:
        import torch.distributed as dist

        host, _, port = self.store.rpartition(":")
        if not host:
            return dist.FileStore(self.store, self.world)  # type: ignore[attr-defined]
        serves = self.listen is not None
        return dist.TCPStore(  # type: ignore[attr-defined]
            host.strip("[]"), int(port), self.world, serves, limit, wait_for_workers=False, master_listen_fd=self.listen
        )

    def _gloo(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """A gloo process group that listens on ``address``; its default would be the address that this host's name resolves
        to."""
        from torch.distributed import ProcessGroupGloo

        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices, options._timeout = [gloo.create_device(hostname=self.address)], timeout
        return gloo(store, rank, size, options)


def by_hand() -> tuple[int, int]:
    """The rank and the number of ranks of a process without a job, from torchrun's variables."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def join_by_hand(limit: timedelta, patience: timedelta) -> None:
    """As ``Job.join``, for a rank without a job."""
    import torch.distributed as dist

    rank, world = by_hand()
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    if world > 1:
        store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=limit))  # type: ignore[attr-defined]
    dist.init_process_group("gloo", timeout=patience, store=_once_all_started(store, world, limit), rank=rank, world_size=world)


def _once_all_started(store: Any, world: int, limit: timedelta) -> Any:
    """Waits until all ranks have started, some much later than others, and returns the store."""
    import torch.distributed as dist

    if store.add("dnnc/begun", 1) == world:
        store.set("dnnc/all", "begun")
    store.wait(["dnnc/all"], limit)
    return dist.PrefixStore("dnnc", store)  # type: ignore[attr-defined]
