"""A process that measures its cores. ``dnnc.machines.probes`` starts it as ``python -m dnnc.engines.onnxruntime.probe CORES
THREADS``: CORES is a list such as ``0,1``, THREADS the number of threads of onnxruntime.

Each line of standard input is an order, a JSON object whose ``do`` names a function of ``ORDERS`` and whose other keys are its
arguments. All have ``rounds``, the number of seconds in the answer, and ``warm``, how often to do it before without measuring.
Each line of standard output is the answer to one order: ``{"seconds": [..], "share": part}`` or ``{"error": reason}``;
``share``: for which part of the time the measuring thread had a core (1 where it waits of its own accord). Models run and
tensors travel by the same code as in ``dnnc run``. The process exits when its standard input ends, even in the middle of an
order.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from dnnc.engines.onnxruntime.session.pinned import pin
from dnnc.engines.onnxruntime.session.session import Settings, nodes_by_provider, open_session
from dnnc.engines.onnxruntime.transport.edges import Descriptors, Edge, Receiver, Sender
from dnnc.onnx.elements import BFLOAT16, BY_NAME
from dnnc.onnx.ort import ProviderUnavailable, load_onnxruntime, plain_words
from dnnc.onnx.providers import Provider
from ir.system.host import CoreClock

_SUFFIX = "_kernel_time"
_LAYOUTS = ("ReorderInput", "ReorderOutput")
"""Ops that onnxruntime adds around a single op to change its memory layout; in a whole model neighbours have the same
layout."""
_NUMPY = {
    "float": "f4",
    "double": "f8",
    "float16": "f2",
    "int64": "i8",
    "int32": "i4",
    "int8": "i1",
    "uint8": "u1",
    "bool": "?",
}


clock = CoreClock(sleeps=False)


def _feeds(session: Any, seed: int) -> dict[str, Any]:
    """Random inputs of a session: standard normal floats; 0 or 1 for integers and booleans."""
    generator = np.random.default_rng(seed)
    feeds = {}
    for info in session.get_inputs():
        dtype = np.dtype(_NUMPY[info.type.removeprefix("tensor(").removesuffix(")")])
        integral = dtype.kind in "iub"
        values = generator.integers(0, 2, info.shape) if integral else generator.standard_normal(info.shape)
        feeds[info.name] = values.astype(dtype)
    return feeds


def kernels(order: Mapping[str, Any], threads: int) -> list[float]:
    """For each run of a model the sum of the seconds of its kernels, by onnxruntime's profile, without ``_LAYOUTS``. Keys of
    the order: ``model``, its path; ``seed`` of random inputs; ``profile``, prefix of a temporary file's path; ``evict``, bytes
    (default 0) to write before each run, so that the caches hold no weights."""
    rounds, warm = order["rounds"], order["warm"]
    session = open_session(Path(order["model"]).read_bytes(), Settings(threads, spin=threads > 1, profile=order["profile"]))
    feeds = _feeds(session, order["seed"])
    filler = np.zeros(order.get("evict", 0), np.uint8)
    clock.start()
    for _ in range(warm + rounds):
        if filler.size:  # as in a whole model: weights come from memory, inputs were just computed and are in the caches
            filler += 1
            for value in feeds.values():
                value.copy()
        session.run(None, feeds)
    clock.stop()
    profile = Path(session.end_profiling())
    events = json.loads(profile.read_text())
    profile.unlink()
    durations: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_SUFFIX) and event["args"]["op_name"] not in _LAYOUTS:
            durations[name].append(event["dur"] * 1e-6)
    return [sum(times) for times in zip(*(times[-rounds:] for times in durations.values()), strict=True)]


def runs(order: Mapping[str, Any], threads: int) -> list[float]:
    """Wall-clock seconds of each run of a model. Keys of the order: ``model``, its path; ``seed`` of random inputs."""
    session = open_session(Path(order["model"]).read_bytes(), Settings(threads, spin=threads > 1))
    feeds = _feeds(session, order["seed"])
    seconds = []
    clock.start()
    for number in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        session.run(None, feeds)
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    clock.stop()
    return seconds


def bound(order: Mapping[str, Any], threads: int) -> list[float]:
    """Wall-clock seconds of each run of a model on a GPU, without onnxruntime's graph optimisations. Keys of the order:
    ``model``, its path; ``seed`` of random inputs; ``provider``, a ``Provider`` in JSON; ``held``: "device" for inputs and
    outputs in the GPU's memory, "host" for inputs and outputs in pinned memory of the host, as in ``dnnc run``."""
    provider = Provider.from_json(order["provider"])
    session = open_session(Path(order["model"]).read_bytes(), Settings(threads, optimize=False, provider=provider))
    if not nodes_by_provider(session)[provider.name]:
        raise ProviderUnavailable(f"{provider.name} takes no op of it")
    ort, number = load_onnxruntime(), int(dict(provider.options).get("device_id", "0"))
    binding, kept = session.io_binding(), []
    for name, (element, value) in _typed_feeds(session, order["seed"]).items():
        if order["held"] == "device":
            held = ort.OrtValue.ortvalue_from_numpy(value, "cuda", number)
            kept.append(held)
            binding.bind_input(name, "cuda", number, element, list(value.shape), held.data_ptr())
        else:
            binding.bind_input(name, "cpu", 0, element, list(value.shape), _pinned_copy(value, kept))
    for info in session.get_outputs():
        if order["held"] == "device":
            binding.bind_output(info.name, "cuda", number)
        else:
            target = np.empty(info.shape, np.dtype(_NUMPY[info.type.removeprefix("tensor(").removesuffix(")")]))
            element = BY_NAME[target.dtype.name].number
            binding.bind_output(info.name, "cpu", 0, element, list(target.shape), _pinned_copy(target, kept))
    seconds = []
    for turn in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        if turn >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    return seconds


def _pinned_copy(value: Any, kept: list[Any]) -> int:
    """The address of a copy of an array in memory that the GPU copies from and to directly; ``kept`` keeps it."""
    memory = np.frombuffer(mmap.mmap(-1, max(1, value.nbytes)), np.uint8)
    memory[: value.nbytes] = value.reshape(-1).view(np.uint8)
    pin(memory)
    kept.append(memory)
    return int(memory.ctypes.data)


def _typed_feeds(session: Any, seed: int) -> dict[str, tuple[int, Any]]:
    """Random inputs of a session with ONNX's number of their element type; bfloat16 by its bits, as integers."""
    generator = np.random.default_rng(seed)
    feeds: dict[str, tuple[int, Any]] = {}
    for info in session.get_inputs():
        name = info.type.removeprefix("tensor(").removesuffix(")")
        if name == "bfloat16":
            bits = generator.standard_normal(info.shape).astype(np.float32).view(np.uint32)
            feeds[info.name] = BFLOAT16, (bits >> 16).astype(np.uint16)
        else:
            dtype = np.dtype(_NUMPY[name])
            drawn = generator.integers(0, 2, info.shape) if dtype.kind in "iub" else generator.standard_normal(info.shape)
            feeds[info.name] = BY_NAME[dtype.name].number, np.ascontiguousarray(drawn.astype(dtype))
    return feeds


def exchange(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds of each round trip of a tensor to another process, which has the mirrored order, and back. One way is a copy into
    a slot of the edge and a copy out of it at the other end. Keys of the order: ``begins``, whether this process sends first
    (only its answer is meaningful); ``edges``, first the one to send by, then the one to receive by, each as ``[Edge in JSON,
    Descriptors]``."""
    send, receive = _ends(order)
    first, second = (send, receive) if order["begins"] else (receive, send)
    seconds = []
    for number in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        first()
        second()
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    return seconds


def meet(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds from the end of each run of a model until another process, which has the same order, has run it too, and a short
    model behind that. Keys of the order: ``model``, ``short``: their paths; ``seed``; ``edges`` as of ``exchange``."""
    send, receive = _ends(order)
    settings = Settings(threads, spin=threads > 1)
    sessions = [open_session(Path(order[key]).read_bytes(), settings) for key in ("model", "short")]
    (run, feeds), (run_short, short_feeds) = [(session.run, _feeds(session, order["seed"])) for session in sessions]
    seconds = []
    for number in range(order["warm"] + order["rounds"]):
        run(None, feeds)
        start = time.perf_counter()
        send()
        receive()
        run_short(None, short_feeds)
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    return seconds


def _ends(order: Mapping[str, Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    """What sends a tensor over the first edge of an order, and what receives one from the second."""
    edges = [(Edge.from_json(edge), Descriptors(*ends)) for edge, ends in order["edges"]]
    sender, receiver = Sender(*edges[0]), Receiver(*edges[1])
    (name,) = sender.views(0)
    source = np.ones(sender.views(0)[name].data.size, np.uint8)
    target = np.empty_like(source)

    def send() -> None:
        while not sender.has_free_slot:
            sender.read_tokens()
        slot = sender.take()
        np.copyto(sender.views(slot)[name].data, source)
        sender.send(slot, 0, 1)

    def receive() -> None:
        while not receiver.complete:
            receiver.read_tokens()
        slot = receiver.take()
        np.copyto(target, receiver.values(slot)[name].data)
        receiver.release(slot)

    return send, receive


def copies(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds of the four copies of ``size`` bytes that a round trip of ``exchange`` makes, within this process. An exchange
    takes longer by what the two processes need to wake each other."""
    source = np.ones(order["size"], np.uint8)
    middle, target = np.empty_like(source), np.empty_like(source)
    seconds = []
    for number in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        for _ in range(2):
            np.copyto(middle, source)
            np.copyto(target, middle)
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    return seconds


ORDERS: Mapping[str, Callable[[Mapping[str, Any], int], list[float]]] = {
    "kernels": kernels,
    "runs": runs,
    "bound": bound,
    "exchange": exchange,
    "meet": meet,
    "copies": copies,
}


def _listen(orders: SimpleQueue[str]) -> None:
    """Queues the lines of standard input; ends the process, not only this thread, when there are no more."""
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)


def main(handlers: Mapping[str, Callable[[Mapping[str, Any], int], list[float]]] = ORDERS) -> None:
    """Executes orders one after another until standard input ends. ``handlers[do]`` takes the order and the number of threads,
    and returns seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the starter ends this one
    cores, threads = [int(core) for core in sys.argv[1].split(",")], int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order = json.loads(orders.get())
        try:
            clock.reset()
            answer: Mapping[str, Any] = {"seconds": handlers[order["do"]](order, threads), "share": clock.share}
        except Exception as error:  # an answer too: onnxruntime does not run such a model
            answer = {"error": plain_words(str(error)) or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
