"""What runs a build, behind three small interfaces, so that another engine is a file and not a rewrite.

- A ``Launcher`` starts a process for each device. Today: processes of this host (``processes.LocalProcesses``).
- A ``Transport`` moves values between processes: over channels, and in the collectives of a mesh. Today: memory that processes
  of one host share (``shared_memory.SharedMemory``).
- An ``Executor`` computes: it makes something that runs of a program's bytes. Today: ONNX Runtime, with the execution provider
  that the device's type names (``program.OnnxRuntime``).

A device's process (``worker.py``) follows its row of the schedule (``rows.py``) and knows no more of an engine than this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

from dnnc.build.collective import Collective
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.edges import Edge, ValueSpec

# Launcher


class Process(Protocol):
    """A process that was started. The end of its standard input is the end of its life."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None:
        """Its exit status (of a signal, its number below 0); None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Ends it at once."""


class Launcher(Protocol):
    """Starts the processes of a run."""

    def start(self, config: Mapping[str, Any], descriptors: Sequence[int]) -> Process:
        """A process that does what ``config`` says of a device. ``descriptors``: those of its ends of channels, of the memory
        that it shares and of the pipe for what it says, which keep their numbers."""


# Transport


class End(Protocol):
    """A process's end of an edge: of all that goes from one process to another. Values lie in *slots*, one for each microbatch
    that is under way; those of known size have places in it, others stream through it (``streams``)."""

    edge: Edge
    count: int
    streams: bool
    incoming: bool

    def views(self, slot: int) -> dict[str, Raw]:
        """The tensors of known size in a slot, in place."""

    def hear(self) -> None:
        """Takes note of what the other end has done; blocks until there is something. Raises EOFError when it has gone."""

    def fileno(self) -> int:
        """A descriptor that can be read when there is something to hear."""


class Outgoing(End, Protocol):
    """The end that sends."""

    @property
    def open(self) -> bool:
        """Whether there is a free slot."""

    def take(self) -> int:
        """A free slot, to be filled in place."""

    def send(self, slot: int, first: int, count: int) -> None:
        """Hands over ``count`` values of a slot from number ``first`` on, all of known size. Raises EOFError."""

    def sending(self, slot: int, first: int, count: int, values: Mapping[str, Any]) -> Iterator[None]:
        """As ``send``, with the ``values`` of unknown size, yielding each time that it must hear of the other end to go on."""


class Incoming(End, Protocol):
    """The end that receives. ``arrived``: of each value, the slots in which it is there and that were not taken yet, in order
    of microbatch."""

    arrived: Any

    @property
    def complete(self) -> bool:
        """Whether all values of the next microbatch are there."""

    def take(self) -> int:
        """The slot of the next microbatch, which is complete."""

    def values(self, slot: int) -> Mapping[str, Any]:
        """What is in a slot, whose values have arrived."""

    def release(self, slot: int) -> None:
        """Lets the other end fill the slot again. Raises EOFError."""


class Group(Protocol):
    """A member's part in the collectives of its stage, which are numbered; all members take part in them in the same order.

    Operands are written and results read where the transport wants them, so nothing is copied on the way. Places come in
    turns: a member may write the operand of the next microbatch while another still reads this one's result."""

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """What is exchanged, in order."""

    @property
    def turns(self) -> int:
        """How many places each operand and result has."""

    def operand(self, number: int, turn: int) -> Raw:
        """Where the operand of a collective is to be written."""

    def result(self, number: int, turn: int) -> Raw:
        """Where its result lies after ``run``."""

    def run(self, number: int, turn: int) -> None:
        """Takes part in a collective whose operand is in its place. Blocks for the others; EOFError when one has gone."""


class Transport(Protocol):
    """A process's way to the others. What its ends are, the starter of the run has said in the process's configuration."""

    def incoming(self, end: Any) -> Incoming:
        """The end of an edge to this process."""

    def outgoing(self, end: Any) -> Outgoing:
        """The end of an edge from this process."""

    def group(self, stage: Mapping[str, Any]) -> Group:
        """This process's part in the collectives of a stage."""


# Executor


class Runnable(Protocol):
    """What a device runs for each microbatch: a stage's model, or a member of a mesh with its collectives.

    Values go in and come out by name. A *binding* is what a program has worked out for given places of its inputs and outputs:
    it holds as long as the values lie there, so a stream of microbatches makes a few and runs each many times."""

    turns: int
    """How many bindings of the same places differ: a member uses the places of its collectives in turns."""
    turn: int
    """Which of them the next binding is."""

    @property
    def in_place(self) -> bool:
        """Whether inputs and outputs are all tensors of fixed-width elements, which can be read and written where they lie."""

    def bind(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Any:
        """A binding that reads ``feeds`` and writes ``targets``."""

    def placed(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Where every output lies once such a binding has run."""

    def run_bound(self, binding: Any) -> None:
        """Runs once into the places of a binding."""

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw], /) -> dict[str, Any]:
        """Runs once; returns the outputs, those in ``targets`` where these lie."""

    def take_spans(self, start: float, end: float) -> list[tuple[str, float, float, str]]:
        """What the last run did from ``start`` to ``end``: action, start, end, title."""


class Loaded(Runnable, Protocol):
    """A program as an executor makes it: one model."""

    outputs: tuple[ValueSpec, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """What it is fed."""

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw] | None = None, /) -> dict[str, Any]:
        """Runs once, as ``Runnable.run``."""

    @property
    def ops_taken(self) -> Mapping[str, int]:
        """How many of its ops each part of the executor (a provider of ONNX Runtime) takes; empty where nobody counts."""


class Executor(Protocol):
    """Loads programs onto one device, with threads and options of its own choice."""

    def load(self, model: bytes, outputs: tuple[ValueSpec, ...], weights: Mapping[str, int] | None = None) -> Loaded:
        """The program in ``model``, of which ``outputs`` are wanted. ``weights``: open files that hold its external data, by
        the locations that it names."""


__all__ = [
    "End",
    "Executor",
    "Group",
    "Incoming",
    "Launcher",
    "Loaded",
    "Outgoing",
    "Process",
    "Runnable",
    "Transport",
]
