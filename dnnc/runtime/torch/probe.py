"""A process that measures an exchange with another one by gloo, as ranks of ``dnnc train`` do (``dnnc.runtime.probe``)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dnnc.runtime.probe import main

_PATIENCE = timedelta(seconds=30)


def gloo(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds that a tensor takes to go to the other rank and back, in each of some turns."""
    torch.set_num_threads(threads)
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    rank = 0 if order["begins"] else 1
    dist.init_process_group("gloo", timeout=_PATIENCE, init_method=f"file://{order['store']}", rank=rank, world_size=2)
    tensor = torch.ones(order["size"], dtype=torch.uint8)
    seconds = []
    for number in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        for turn in (0, 1):
            work = dist.isend(tensor, 1 - rank) if turn == rank else dist.irecv(tensor, 1 - rank)
            assert work is not None
            work.wait()
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    dist.destroy_process_group()
    return seconds


if __name__ == "__main__":
    main({"gloo": gloo})
