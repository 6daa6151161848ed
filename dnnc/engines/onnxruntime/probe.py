"""A process that measures what its cores do, on demand. Started as ``python -m dnnc.engines.onnxruntime.probe CORES THREADS``
by ``dnnc.machines.probes``; CORES is a list such as ``0,1``, THREADS those of onnxruntime.

Each line of standard input is an order as JSON, each line of standard output its answer: seconds, or why there are none.
Sessions are opened as ``dnnc run`` opens them, edges are those between its processes. The process ends with its standard input.
"""

from __future__ import annotations

import json
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

from dnnc.engines.onnxruntime.session.session import Settings, open_session
from dnnc.engines.onnxruntime.transport.edges import Descriptors, Edge, Receiver, Sender
from dnnc.onnx.ort import plain_words

_SUFFIX = "_kernel_time"
_LAYOUTS = ("ReorderInput", "ReorderOutput")
"""What onnxruntime adds around an op alone; in a whole model neighbours have one layout."""
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


def _feeds(session: Any, seed: int) -> dict[str, Any]:
    """Standard normal inputs; 0 and 1 where whole numbers are wanted."""
    generator = np.random.default_rng(seed)
    feeds = {}
    for given in session.get_inputs():
        dtype = np.dtype(_NUMPY[given.type.removeprefix("tensor(").removesuffix(")")])
        whole = dtype.kind in "iub"
        made = generator.integers(0, 2, given.shape) if whole else generator.standard_normal(given.shape)
        feeds[given.name] = made.astype(dtype)
    return feeds


def kernels(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds of the kernels of a model in each of some runs, after as many to warm up as ``warm`` says."""
    rounds, warm = order["rounds"], order["warm"]
    session = open_session(Path(order["model"]).read_bytes(), Settings(threads, spin=threads > 1, profile=order["profile"]))
    feeds = _feeds(session, order["seed"])
    evicted = np.zeros(order.get("evict", 0), np.uint8)
    for _ in range(warm + rounds):
        if evicted.size:  # weights come from memory, as in a whole model; what goes in was just made, and lies in the caches
            evicted += 1
            for value in feeds.values():
                value.copy()
        session.run(None, feeds)
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
    """Seconds of a model in each of some runs, as the clock on the wall shows them."""
    session = open_session(Path(order["model"]).read_bytes(), Settings(threads, spin=threads > 1))
    feeds = _feeds(session, order["seed"])
    seconds = []
    for number in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        session.run(None, feeds)
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    return seconds


def exchange(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds that a tensor takes to go to another process and back, in each of some turns: written where the other finds it,
    read there, and the same again. The process that begins answers with what it took."""
    edges = [(Edge.from_json(edge), Descriptors(*ends)) for edge, ends in order["edges"]]
    sender, receiver = Sender(*edges[0]), Receiver(*edges[1])
    (name,) = sender.views(0)
    source = np.ones(sender.views(0)[name].data.size, np.uint8)
    target = np.empty_like(source)

    def send() -> None:
        while not sender.open:
            sender.hear()
        slot = sender.take()
        np.copyto(sender.views(slot)[name].data, source)
        sender.send(slot, 0, 1)

    def receive() -> None:
        while not receiver.complete:
            receiver.hear()
        slot = receiver.take()
        np.copyto(target, receiver.values(slot)[name].data)
        receiver.release(slot)

    first, second = (send, receive) if order["begins"] else (receive, send)
    seconds = []
    for number in range(order["warm"] + order["rounds"]):
        start = time.perf_counter()
        first()
        second()
        if number >= order["warm"]:
            seconds.append(time.perf_counter() - start)
    return seconds


def copies(order: Mapping[str, Any], threads: int) -> list[float]:
    """Seconds that writing and reading a tensor as ``exchange`` does takes within one process, there and back."""
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
    "exchange": exchange,
    "copies": copies,
}


def _listen(orders: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)


def main(known: Mapping[str, Callable[[Mapping[str, Any], int], list[float]]] = ORDERS) -> None:
    """Follow the orders that are known until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the whole group; the starter ends this
    cores, threads = [int(core) for core in sys.argv[1].split(",")], int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order = json.loads(orders.get())
        try:
            answer: Mapping[str, Any] = {"seconds": known[order["do"]](order, threads)}
        except Exception as error:  # whatever onnxruntime raises is an answer: it does not run such a model
            answer = {"error": plain_words(str(error)) or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
