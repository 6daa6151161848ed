"""Forks a process for each member of a mesh, which runs a function with the member's ``Exchange``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dnnc.build.collective import Collective
from dnnc.engines.onnxruntime.transport.collectives import Exchange
from dnnc.engines.onnxruntime.transport.edges import anonymous_memory, map_memory
from dnnc.engines.onnxruntime.transport.sharing import places
from dnnc.engines.onnxruntime.transport.wiring import peers_of

Job = Callable[[Exchange], None]


@contextlib.contextmanager
def members(collectives: Sequence[Collective], count: int, job: Job) -> Iterator[tuple[int, ...]]:
    """Starts ``count`` processes that run ``job`` and yields their ids; kills those that still run after the block. The exit
    status is 1 after an exception, 75 after an EOFError because a peer has ended."""
    size = places(collectives).total
    memory = anonymous_memory(size)
    pipes = {(a, b): os.pipe() for a in range(count) for b in peers_of(collectives, a)}
    children = []
    try:
        for member in range(count):
            child = os.fork()
            if child == 0:
                _run(collectives, member, memory, size, pipes, job)
            children.append(child)
        for read, write in pipes.values():
            os.close(read)
            os.close(write)
        yield tuple(children)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        os.close(memory)


def _run(
    collectives: Sequence[Collective],
    member: int,
    memory: int,
    size: int,
    pipes: dict[tuple[int, int], tuple[int, int]],
    job: Job,
) -> None:
    """The process of one member; does not return."""
    status = 1
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        peers = {}
        for (source, target), (read, write) in pipes.items():
            if source == member:
                os.close(read)
                peers[target] = (peers.get(target, (-1, -1))[0], write)
            elif target == member:
                os.close(write)
                peers[source] = (read, peers.get(source, (-1, -1))[1])
            else:
                os.close(read)
                os.close(write)
        job(Exchange(collectives, member, map_memory(memory, size), places(collectives), peers))
        status = 0
    except EOFError:
        status = 75
    except BaseException as error:
        print(f"member {member}: {type(error).__name__}: {error}", flush=True)
    os._exit(status)


def statuses(processes: Sequence[int]) -> list[int]:
    """Waits for all processes; returns their exit statuses, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def shared_array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array that forked processes write and the test reads."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    descriptor = anonymous_memory(size)
    array = map_memory(descriptor, size)[:size].view(dtype).reshape(shape)
    os.close(descriptor)
    return array
