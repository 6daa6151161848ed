"""A process that measures what ranks of ``dnnc train`` do (``dnnc.engines.onnxruntime.probe``): exchanges with another one by
gloo, and functions of the kernels of a training step."""

from __future__ import annotations

import os
import runpy
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dnnc.engines.onnxruntime.probe import main
from dnnc.engines.torch.exchange import swapped
from ir.system.host import not_preempting

_PATIENCE = timedelta(seconds=30)


def gloo(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds that a tensor takes to go to the other rank and back, in each of some turns."""
    tensor = torch.ones(order["size"], dtype=torch.uint8)
    with _two_ranks(order, threads) as rank:

        def there_and_back() -> float:
            start = time.perf_counter()
            for turn in (0, 1):
                work = dist.isend(tensor, 1 - rank) if turn == rank else dist.irecv(tensor, 1 - rank)
                assert work is not None
                work.wait()
            return time.perf_counter() - start

        return [there_and_back() for _ in range(order["warm"] + order["rounds"])][order["warm"] :]


def reduced(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds of an all-reduce of ``size`` bytes, as gradients are summed, in each of some turns; the ranks begin together."""
    tensor = torch.ones(order["size"] // 4)
    with _two_ranks(order, threads):

        def once() -> float:
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
            return time.perf_counter() - start

        return [once() for _ in range(order["warm"] + order["rounds"])][order["warm"] :]


def sums(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds that a sum of a few numbers takes that both ranks need before they go on, in each of some turns, by what ``dnnc
    train`` makes small sums of. Both compute between the sums, so one waits for the other; what the same computation takes
    without a sum is left out."""
    matrix = torch.randn(order["size"], order["size"], generator=torch.Generator().manual_seed(0))
    own, other = torch.ones(8), torch.empty(8)
    with _two_ranks(order, threads, bound=True) as rank:
        group = dist.group.WORLD

        def exchanged() -> float:
            begin = time.perf_counter()
            matrix @ matrix
            middle = time.perf_counter()
            matrix @ matrix
            for work in swapped(group, (0, 1), {1 - rank: own}, {1 - rank: other}):
                work.wait()
            own.add(other)
            return (time.perf_counter() - middle) - (middle - begin)

        return [exchanged() for _ in range(order["warm"] + order["rounds"])][order["warm"] :]


@contextmanager
def _two_ranks(order: Mapping[str, Any], threads: int, *, bound: bool = False) -> Iterator[int]:
    """Joins the other rank; the number of this one. It stays on its cores, and threads of gloo on the ``cores`` of both, or, if
    ``bound``, on its own; they do not preempt it. So it is in ``dnnc train``."""
    torch.set_num_threads(threads)
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    rank = 0 if order["begins"] else 1
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") and not bound else None
    if own is not None:
        os.sched_setaffinity(0, order["cores"])
    with not_preempting():
        dist.init_process_group("gloo", timeout=_PATIENCE, init_method=f"file://{order['store']}", rank=rank, world_size=2)
    if own is not None:
        os.sched_setaffinity(0, own)
    yield rank
    dist.destroy_process_group()


def function(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds of the function ``run(values, device)`` of the Python file ``source`` in each of some runs, and of adding the
    results of the numbers ``summed`` to what they add up to: of one thread the processor's, in which waiting for a busy
    neighbour does not count.

    Runs take turns with copies of the ``values`` (name, element type, shape, whether they were just made) of ``cold`` bytes in
    all: what was not just made comes from memory, as in a step of a whole model, unless it is small."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(order["seed"])
    run = runpy.run_path(order["source"])["run"]
    rounds, summed, device = order["warm"] + order["rounds"], order["summed"], torch.device("cpu")
    first = {name: _made(dtype, shape, generator) for name, dtype, shape, _ in order["values"]}
    size = sum(tensor.nbytes for tensor in first.values())
    more = min(rounds - 1, order["cold"] // max(size, 1))
    copies = [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(more))]
    results = run(first, device)
    sums = [[torch.zeros_like(results[number]) for number in summed] for _ in copies]
    fresh = [name for name, _, _, fresh in order["values"] if fresh]
    clock = time.thread_time if threads == 1 else time.perf_counter
    seconds = []
    for number in range(rounds):
        values, totals = copies[number % len(copies)], sums[number % len(copies)]
        for name in fresh:
            values[name].clone()
        del results
        start = clock()
        results = run(values, device)
        for total, term in zip(totals, summed, strict=True):
            total.add_(results[term])
        if number >= order["warm"]:
            seconds.append(clock() - start)
    return seconds


def _made(dtype: str, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Standard normal elements; 0 and 1 of integers and truths."""
    type_ = getattr(torch, dtype)
    if type_.is_floating_point:
        return torch.randn(shape, generator=generator).to(type_)
    return torch.randint(0, 2, shape, generator=generator).to(type_)


if __name__ == "__main__":
    main({"function": function, "gloo": gloo, "reduced": reduced, "sums": sums})
