"""A device as a process, which follows its row of the schedule (``dnnc.engines.onnxruntime.rows``). Started as ``python -m
dnnc.engines.onnxruntime.worker`` by ``dnnc.engines.onnxruntime.starter.starting``.

Standard input begins with one line of JSON, the configuration. Each line after it orders a run: it has the number one past the
last microbatch, and after how many events to report these, 0 for none. Two more lines may come: in a run on several hosts an
object with the addresses of the processes on other hosts, and ``"noted"``, which answers a report of a failed microbatch. When
standard input ends (the run is over, or the starter was killed), the process exits at once. Answers and errors go to the
control pipe as lines of JSON.
The process imports numpy, onnxruntime and the standard library only, and pyzmq where there are several hosts.

Inputs are read where they lie in a slot and outputs of known size are written by ONNX Runtime into the slot of the next
stage; an output that goes to several stages is copied to the others. Values that are no tensors of fixed-width elements go
the slow way, through ``InferenceSession.run``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnc.engines.onnxruntime.engine import Executor, Loaded, Runnable
from dnnc.engines.onnxruntime.rows import LOADING, MEETING, RECEIVING, RUNNING, Follower, Work
from dnnc.engines.onnxruntime.session.program import OnnxRuntime
from dnnc.engines.onnxruntime.session.session import Settings, require_used
from dnnc.engines.onnxruntime.transport.edges import ValueSpec, map_memory, read_memory
from dnnc.engines.onnxruntime.transport.opening import Transports
from dnnc.engines.onnxruntime.transport.turns import Turns
from dnnc.onnx.ort import ProviderUnavailable
from dnnc.onnx.providers import Provider
from ir.core.diagnostics import InvalidInput
from ir.system.host import CoreClock

if TYPE_CHECKING:
    from dnnc.engines.onnxruntime.member import Member

STATUS_WORDS = 4
"""Words (int64) of a process's status: state, microbatch, nanoseconds of the monotonic clock when it changed, stage."""
PEER_GONE = 75
"""Exit status of a stage that lost a neighbour: the neighbour's failure is the reason."""
FAILED = 70
"""Exit status after an error that went to the control pipe."""


class Worker:
    """A device's process and its messages to the starter. ``stage``, ``microbatch``: what it works on now."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        provider = Provider.from_json(config["provider"])
        self.settings = Settings(config["threads"], config["spin"], config["optimize"], provider)
        self.executor: Executor = OnnxRuntime(self.settings)
        self.control = int(config["control"])
        status = map_memory(config["status"], 8 * STATUS_WORDS * config["processes"]).view(np.int64)
        self.status = status[config["process"] * STATUS_WORDS :][:STATUS_WORDS].data  # quicker to write to than an array
        self.stage, self.microbatch = int(config["stages"][0]["stage"]), 0
        self.runs: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self.peers: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        self.noted = threading.Event()
        self.write_lock = threading.Lock()

    def mark(self, state: int, stage: int, microbatch: int) -> None:
        """Publishes what the process is doing, for the starter's messages and time limit."""
        self.stage, self.microbatch = stage, microbatch
        self.status[1] = microbatch
        self.status[2] = time.monotonic_ns()
        self.status[3] = stage
        self.status[0] = state

    def send(self, message: Mapping[str, Any]) -> None:
        """Writes one line of JSON to the starter; ends this process when the starter has ended."""
        line, start = json.dumps(message).encode() + b"\n", 0
        with self.write_lock:
            try:
                while start < len(line):
                    start += os.write(self.control, line[start:])
            except BrokenPipeError:
                os._exit(PEER_GONE)

    def report(self, error: Exception) -> None:
        """Tells the starter of an error that ends this process, with the stage and microbatch at which it happened."""
        refused = {"refused": [one.to_json() for one in error.diagnostics]} if isinstance(error, InvalidInput) else {}
        self.send({"error": _said(error), "stage": self.stage, "microbatch": self.microbatch, **refused})

    def fail(self, error: Exception) -> None:
        """Tells the starter that a program raised an error for a microbatch; the process goes on once the starter has noted it:
        what it hands over may arrive before the message."""
        self.noted.clear()
        self.send({"failed": _said(error), "stage": self.stage, "microbatch": self.microbatch})
        self.noted.wait()

    def tell(self, events: list[Any]) -> None:
        """Tells the starter of events before the run is over."""
        self.send({"so_far": events})

    def read_orders(self, buffered: bytes) -> None:
        """Thread: queues the runs that the starter orders; ends the process when standard input ends."""
        while True:
            *lines, buffered = buffered.split(b"\n")
            for line in lines:
                order = json.loads(line)
                if order == "noted":
                    self.noted.set()
                elif isinstance(order, dict):
                    self.peers.put(order)
                else:
                    self.runs.put((order[0], order[1]))
            data = os.read(0, 4096)
            if not data:
                os._exit(0)
            buffered += data

    def run(self) -> None:
        self.transport = Transports(self.config.get("network"))
        if (address := self.transport.address) is not None:
            self.send({"address": address})
            self.transport.meet(self.peers.get())
        works = [self.load(stage) for stage in self.config["stages"]]
        follower = Follower(works, self.config["lanes"], self.mark, self.fail, self.tell)
        done = 0
        self.mark(RECEIVING, self.stage, done)
        self.send({"ready": True})
        try:
            while True:
                until, follower.reports = self.runs.get()
                clock = CoreClock(sleeps=True)
                if follower.reports:
                    clock.start()
                follower.follow(done, until)
                done = until
                self.mark(RECEIVING, self.stage, done)
                if follower.reports:
                    clock.stop()
                    self.send({"events": follower.events, "cpu": time.process_time(), "share": clock.share})
                follower.events = []
        except EOFError:
            os._exit(PEER_GONE)

    def load(self, stage: Mapping[str, Any]) -> Work:
        """A stage with its program and its ends of edges. Raises what onnxruntime raises."""
        self.mark(LOADING, stage["stage"], 0)
        numbers, of = stage["turns"]
        return Work(
            stage["stage"],
            Turns(tuple(numbers), of),
            self.runnable(stage),
            [_opened(ends, self.transport.incoming) for ends in stage["receives"]],
            [_opened(ends, self.transport.outgoing) for ends in stage["sends"]],
            [self.transport.incoming(end) for end in stage["feeds"]],
            [self.transport.outgoing(end) for end in stage["sinks"]],
        )

    def runnable(self, stage: Mapping[str, Any]) -> Runnable:
        """What this process runs of a stage."""
        if "segments" in stage:
            return self.stateful_member(stage) if "decoding" in stage else self.member(stage, _specs(stage["outputs"]))
        return self.stateful(stage) if "decoding" in stage else self.whole(stage)

    def whole(self, stage: Mapping[str, Any]) -> Loaded:
        """The program of a stage that is not split over a mesh."""
        program = self.program(stage["model"], _specs(stage["outputs"]))
        require_used([program], self.config["provider"]["provider"])
        return program

    def stateful(self, stage: Mapping[str, Any]) -> Loaded:
        """The program of a stage whose states stay in this process."""
        from dnnc.engines.onnxruntime.decoding.states import StatefulProgram

        told = stage["decoding"]
        offset, size, weights = stage["model"]
        step, prompt = read_memory(self.config["programs"], offset, size), None
        if "prompt" in told:
            offset, size, _ = told["prompt"]
            prompt = read_memory(self.config["programs"], offset, size)
        program: Loaded = StatefulProgram((step, prompt), told, _specs(stage["outputs"]), self.settings, weights)
        require_used([program], self.config["provider"]["provider"])
        return program

    def stateful_member(self, stage: Mapping[str, Any]) -> Runnable:
        """The programs of a member of a mesh whose states stay in this process."""
        from dnnc.engines.onnxruntime.decoding.member import StatefulMember, specs_of
        from dnnc.engines.onnxruntime.decoding.states import FEW_BITS

        told = stage["decoding"]
        members = [self.member(stage, ())]
        if "prompt" in told:
            segments = told["prompt"]["segments"]
            few = any(FEW_BITS in read_memory(self.config["programs"], *place[:2]) for _, place, _ in segments)
            executor = OnnxRuntime(replace(self.settings, packed=few))
            members.append(self.member(told["prompt"], (), executor))
        return StatefulMember(members, [specs_of(member, stage["group"]["member"]) for member in members], told)

    def member(self, stage: Mapping[str, Any], outputs: tuple[ValueSpec, ...], executor: Executor | None = None) -> Member:
        """The program of a member of a mesh. ``outputs``: what leaves the stage, in places of the member until it is copied;
        ``executor``: that of the process where there is none."""
        from dnnc.engines.onnxruntime.member import LoadedSegment, Member

        segments = [
            LoadedSegment(level, self.program(place, _specs(specs), executor)) for level, place, specs in stage["segments"]
        ]
        require_used([segment.program for segment in segments], self.config["provider"]["provider"])
        return Member(segments, self.transport.group(stage["group"]), outputs, self.meet)

    def meet(self, meeting: bool) -> None:
        """Notes that a member begins a collective, or a segment."""
        self.mark(MEETING if meeting else RUNNING, self.stage, self.microbatch)

    def program(self, place: list[Any], outputs: tuple[ValueSpec, ...], executor: Executor | None = None) -> Loaded:
        """The model whose bytes lie at an offset among those that the starter verified, with the weights that it opened."""
        offset, size, weights = place
        return (executor or self.executor).load(read_memory(self.config["programs"], offset, size), outputs, weights)


def _opened(ends: list[Any], opening: Callable[[Any], Any]) -> list[Any]:
    """The ends of a list, each opened once: one may serve several groups."""
    made: dict[str, Any] = {}
    for key, end in ((json.dumps(end), end) for end in ends):
        if key not in made:
            made[key] = end and opening(end)
    return [made[json.dumps(end)] for end in ends]


def _specs(items: list[list[Any]]) -> tuple[ValueSpec, ...]:
    return tuple(ValueSpec(n, e, None if s is None else tuple(s)) for n, e, s in items)


def _said(error: Exception) -> str:
    """What the starter is told of an error."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return str(error) if isinstance(error, ProviderUnavailable) else f"{type(error).__name__}: {error}"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the whole group; the starter ends the run
    buffered = b""
    while b"\n" not in buffered:
        data = os.read(0, 1 << 16)
        if not data:
            return
        buffered += data
    line, _, rest = buffered.partition(b"\n")
    config = json.loads(line)
    if config["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, config["cores"])
    worker = Worker(config)
    threading.Thread(target=worker.read_orders, args=(rest,), daemon=True).start()
    try:
        worker.run()
    except Exception as error:  # whatever loading a model can raise is reported by the starter, with the stage's name
        worker.report(error)
    sys.stderr.flush()
    os._exit(FAILED)


if __name__ == "__main__":
    main()
