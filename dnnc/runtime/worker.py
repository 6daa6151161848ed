"""One stage (a replica of one, a member of its mesh) as a process: receive, run, send, for ever. Started as ``python -m
dnnc.runtime.worker`` by ``dnnc.runtime.pipeline``.

Standard input holds one line of JSON (the configuration) and then stays open as a life line: when it ends, whatever the reason
(the run is over, the starter was killed), the process exits at once. Lines on it ask for the events recorded so far. Answers
and errors go as lines of JSON to the control pipe. The process imports numpy, onnxruntime and the standard library only.

Inputs are read where they lie in a slot and outputs of known size are written by ONNX Runtime into the slot of the next
stage; an output that goes to several stages is copied to the others. Values that are no tensors of fixed-width elements go
the slow way, through ``InferenceSession.run``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnc.ort import ProviderUnavailable
from dnnc.program.elements import Array
from dnnc.providers import Provider
from dnnc.runtime.codec import Raw
from dnnc.runtime.edges import Descriptors, Edge, Received, Receiver, Sender, ValueSpec, map_memory, read_memory
from dnnc.runtime.program import Program
from dnnc.runtime.session import Settings, refuse_idle

if TYPE_CHECKING:
    from dnnc.runtime.member import Member

STARTING, LOADING, RECEIVING, WAITING, RUNNING, SENDING, MEETING = range(7)
"""What a stage is doing. WAITING: for a free slot of a consumer; MEETING: exchanging parts with the other members."""
STATUS_WORDS = 4
"""Words (int64) of a stage's status: state, microbatch, nanoseconds of the monotonic clock when it changed, microbatches
done."""
PEER_GONE = 75
"""Exit status of a stage whose neighbour went away; the neighbour has the fault."""
FAILED = 70
"""Exit status after an error that was reported on the control pipe."""


class Worker:
    """The loop of a stage process and its conversation with the starter."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.control = int(config["control"])
        self.status = map_memory(config["status"], 8 * STATUS_WORDS * config["processes"]).view(np.int64)
        self.status = self.status[config["process"] * STATUS_WORDS :][:STATUS_WORDS]
        self.events: list[tuple[str, int, float, float, str]] = []  # action, microbatch, start, end, title
        self.done = int(config["replica"])  # the microbatch to do next; a replica does every so-many-th
        self.write_lock = threading.Lock()
        self.fixed = False
        self.bound: dict[tuple[int, ...], Bound] = {}  # by the slots of all edges; a stream goes through few combinations

    def mark(self, state: int) -> None:
        """Publishes what the stage is doing, for the starter's messages and time limit."""
        self.status[1] = self.done
        self.status[2] = time.monotonic_ns()
        self.status[0] = state

    def say(self, message: Mapping[str, Any]) -> None:
        """One line of JSON to the starter; lost when it has gone."""
        line, start = json.dumps(message).encode() + b"\n", 0
        with self.write_lock:
            try:
                while start < len(line):
                    start += os.write(self.control, line[start:])
            except BrokenPipeError:
                os._exit(PEER_GONE)

    def obey(self, buffered: bytes) -> None:
        """Thread: answers requests; ends the process when the life line ends, at any time."""
        wanted: list[int] = []  # per request: report once all microbatches below this number are done
        while True:
            readable = select.select([0], [], [], 0.0005 if wanted else None)[0]
            if readable:
                data = os.read(0, 4096)
                if not data:
                    os._exit(0)
                *lines, buffered = (buffered + data).split(b"\n")
                wanted += [int(line) for line in lines]
            while wanted and self.done >= wanted[0]:
                wanted.pop(0)
                events, self.events = self.events, []
                self.say({"events": events, "cpu": time.process_time()})

    def run(self) -> None:
        config = self.config
        self.mark(LOADING)
        program = self.load()
        # Of each edge one side per replica of the stage there, None where that never has a microbatch of this one.
        receivers = [[end and Receiver(Edge.from_json(end[0]), Descriptors(*end[1])) for end in e] for e in config["receives"]]
        senders = [[end and Sender(Edge.from_json(end[0]), Descriptors(*end[1])) for end in e] for e in config["sends"]]
        values = [value for sides in (*receivers, *senders) for side in sides if side for value in side.edge.values]
        self.fixed = program.in_place and all(value.size is not None for value in values)
        self.say({"ready": True})
        try:
            while True:
                self.step(program, _turn(receivers, self.done), _turn(senders, self.done))
                self.done += int(config["replicas"])
                self.status[3] += 1
                program.turn = (program.turn + 1) % program.turns
        except EOFError:
            os._exit(PEER_GONE)

    def load(self) -> Program | Member:
        """What the process runs for each microbatch. Raises what onnxruntime raises."""
        config = self.config
        outputs = _specs(config["outputs"])
        if "segments" not in config:
            program = self.program(config["model"], outputs)
            refuse_idle([program], config["provider"]["provider"])
            return program
        from dnnc.program.collective import Collective
        from dnnc.runtime.collectives import Exchange, Places
        from dnnc.runtime.member import Member, Piece

        collectives = tuple(map(Collective.from_json, config["collectives"]))
        places = Places.from_json(config["places"])
        memory = map_memory(config["memory"], places.total)
        peers = {peer: (read, write) for peer, read, write in config["peers"]}
        pieces = [Piece(level, self.program(place, _specs(specs))) for level, place, specs in config["segments"]]
        refuse_idle([piece.program for piece in pieces], config["provider"]["provider"])
        exchange = Exchange(collectives, config["member"], memory, places, peers)
        return Member(pieces, exchange, outputs, lambda meeting: self.mark(MEETING if meeting else RUNNING))

    def program(self, place: list[Any], outputs: tuple[ValueSpec, ...]) -> Program:
        """The model whose bytes lie at an offset among those that the starter verified, with the weights that it opened."""
        offset, size, weights = place
        config = self.config
        settings = Settings(config["threads"], config["spin"], config["optimize"], Provider.from_json(config["provider"]))
        return Program(read_memory(config["programs"], offset, size), outputs, settings, weights)

    def step(self, program: Program | Member, receivers: list[Receiver], senders: list[Sender]) -> None:
        """One microbatch."""
        self.mark(RECEIVING)
        messages = [receiver.receive() for receiver in receivers]
        self.mark(WAITING)
        slots = [sender.acquire() for sender in senders]
        start = time.monotonic()
        self.mark(RUNNING)
        if self.fixed:
            key = (program.turn, *map(id, (*receivers, *senders)), *(message.slot for message in messages), *slots)
            bound = self.bound.get(key)
            if bound is None:
                bound = self.bound[key] = self.bind(program, messages, senders, slots)
            program.run_bound(bound.binding)
            dynamic: list[dict[str, Any]] = [{} for _ in senders]
        else:
            bound, dynamic = self.run_once(program, messages, senders, slots)
        end = time.monotonic()
        self.events += [(what, self.done, begin, done, title) for what, begin, done, title in program.take_spans(start, end)]
        self.mark(SENDING)
        for target, source in bound.copies:
            np.copyto(target, source)
        for sender, slot, values in zip(senders, slots, dynamic, strict=True):
            sender.send(slot, values)
        for receiver, message in zip(receivers, messages, strict=True):
            receiver.release(message)
        if senders:
            self.events.append(("send", self.done, end, time.monotonic(), ""))

    def bind(self, program: Program | Member, messages: list[Received], senders: list[Sender], slots: list[int]) -> Bound:
        """What to run for these slots: a binding that stays right as long as the process lives."""
        feeds, targets = _feeds(messages), _targets(senders, slots)
        binding = program.bind(feeds, targets)
        return Bound(binding, _copies(senders, slots, program.placed(feeds, targets)))

    def run_once(
        self, program: Program | Member, messages: list[Received], senders: list[Sender], slots: list[int]
    ) -> tuple[Bound, list[dict[str, Any]]]:
        """Runs; returns what is still to be copied, and per sender the values whose size was not known."""
        results = program.run(_feeds(messages), _targets(senders, slots))
        dynamic = [{v.name: results[v.name] for v in sender.edge.values if v.size is None} for sender in senders]
        return Bound(None, _copies(senders, slots, results)), dynamic


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding, and what is to be copied after it ran: (target, source) each."""

    binding: Any
    copies: tuple[tuple[Array, Array], ...]


def _specs(items: list[list[Any]]) -> tuple[ValueSpec, ...]:
    return tuple(ValueSpec(n, e, None if s is None else tuple(s)) for n, e, s in items)


def _turn(edges: list[list[Any]], microbatch: int) -> list[Any]:
    """The side of each edge whose replica has this microbatch."""
    return [sides[microbatch % len(sides)] for sides in edges]


def _feeds(messages: list[Received]) -> dict[str, Any]:
    return {name: value for message in messages for name, value in message.values.items()}


def _targets(senders: list[Sender], slots: list[int]) -> dict[str, Raw]:
    """Where outputs of known size go: the first slot that wants each."""
    targets: dict[str, Raw] = {}
    for sender, slot in zip(senders, slots, strict=True):
        targets = sender.views(slot) | targets
    return targets


def _copies(senders: list[Sender], slots: list[int], places: Mapping[str, Raw]) -> tuple[tuple[Array, Array], ...]:
    """Copies that bring each tensor of known size from its place to every slot that wants it. Raises ValueError for a shape
    that is not the planned one."""
    copies = []
    for sender, slot in zip(senders, slots, strict=True):
        for name, target in sender.views(slot).items():
            source = places[name]
            if source.shape != target.shape:
                raise ValueError(f"'{name}' has shape {list(source.shape)}, the plan says {list(target.shape)}")
            if source.data.ctypes.data != target.data.ctypes.data:
                copies.append((target.data, source.data))
    return tuple(copies)


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
    threading.Thread(target=worker.obey, args=(rest,), daemon=True).start()
    try:
        worker.run()
    except MemoryError:
        worker.say({"error": "out of memory", "microbatch": worker.done})
    except ProviderUnavailable as error:
        worker.say({"error": str(error), "microbatch": worker.done})
    except Exception as error:  # whatever a model can raise is reported by the starter, with the stage's name
        worker.say({"error": f"{type(error).__name__}: {error}", "microbatch": worker.done})
    sys.stderr.flush()
    os._exit(FAILED)


if __name__ == "__main__":
    main()
