"""What runs a build, behind three small interfaces, so that another engine is a file and not a rewrite.

- A ``Launcher`` starts a process for each device. Today: processes of this host (``processes.LocalProcesses``).
- A ``Transport`` moves values between processes: over channels, and in the collectives of a mesh. Today: memory that processes
  of one host share (``shared_memory.SharedMemory``), and sockets between hosts
  (``dnnc.engines.cluster.network.transport.Network``).
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
    """A process that was started. It exits when its standard input ends."""

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
        """Starts the process of a device, which ``config`` describes. It inherits ``descriptors``, of channels, shared memory
        and its control pipe, under the same numbers."""


# Transport


class End(Protocol):
    """A process's end of an edge, which carries all values from one process to another. Each microbatch under way has a *slot*:
    values of known size lie in it at fixed places, others stream through it (``streams``)."""

    edge: Edge
    count: int
    streams: bool
    incoming: bool

    def views(self, slot: int) -> dict[str, Raw]:
        """The tensors of known size in a slot, in place."""

    def read_tokens(self) -> None:
        """Reads tokens of the other end; blocks until there is one. Raises EOFError when its process has ended."""

    def fileno(self) -> int:
        """A descriptor that is readable when there are tokens."""


class Outgoing(End, Protocol):
    """The end that sends."""

    @property
    def has_free_slot(self) -> bool:
        """Whether there is a free slot for a microbatch."""

    def take(self) -> int:
        """A free slot, to be filled in place."""

    def send(self, slot: int, first: int, count: int, parts: int = 0) -> None:
        """Hands over ``count`` values of a slot from number ``first`` on, all of known size. ``parts``: how many of the parts
        of each are in use, 0 for all. Raises EOFError."""

    def send_streaming(self, slot: int, first: int, count: int, values: Mapping[str, Any]) -> Iterator[None]:
        """As ``send``, with ``values`` of unknown size too. Yields each time that it needs a token of the other end."""


class Incoming(End, Protocol):
    """The end that receives. ``arrived``: for each value, the slots that hold it and were not taken yet, in order of
    microbatch."""

    arrived: Any

    @property
    def complete(self) -> bool:
        """Whether all values of the next microbatch are there."""

    def take(self) -> int:
        """The slot of the next microbatch, which is complete."""

    def values(self, slot: int) -> Mapping[str, Any]:
        """The values in a slot, once all have arrived."""

    def release(self, slot: int) -> None:
        """Lets the other end fill the slot again. Raises EOFError."""


class Group(Protocol):
    """A member's part in the collectives of its stage. They are numbered, and all members run them in this order.

    The transport says where operands are written and results read, so nothing is copied. There are ``turns`` such places: a
    member may write the operand of the next microbatch while another still reads the result of this one."""

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
    """How a process reaches the others. A place is what the starter tells the transport of an end or a group."""

    @property
    def address(self) -> Any:
        """Where others find this process, as JSON; None where nobody has to be told."""

    def meet(self, peers: Mapping[str, Any]) -> None:
        """Reaches the processes at the other ends, whose addresses these are, by name, before an end is opened. Raises
        ConnectionError that names those that were not reached."""

    def incoming(self, edge: Edge, place: Any) -> Incoming:
        """The end of an edge to this process."""

    def outgoing(self, edge: Edge, place: Any) -> Outgoing:
        """The end of an edge from this process."""

    def group(self, group: Mapping[str, Any]) -> Group:
        """This process's part in the collectives of a stage."""


# Executor


class Runnable(Protocol):
    """What a device runs for each microbatch: a stage's model, or a member of a mesh with its collectives.

    Inputs and outputs have names. A *binding* fixes where a program reads inputs and writes outputs: a stream of microbatches
    reuses the same places, so it makes few bindings and runs each many times."""

    turns: int
    """How many bindings of the same places differ: a member uses the places of its collectives in turns."""
    turn: int
    """Which of them the next binding is."""
    parts: int
    """How many of the parts (``ValueSpec``) of each output the last run wrote, 0 for all."""

    @property
    def in_place(self) -> bool:
        """Whether inputs and outputs are all tensors of fixed-width elements, which can be read and written where they lie."""

    def bind(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Any:
        """A binding that reads ``feeds`` and writes ``targets``."""

    def output_places(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Every output after such a binding has run, where it lies."""

    def run_bound(self, binding: Any) -> None:
        """Runs once into the places of a binding."""

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw], /) -> dict[str, Any]:
        """Runs once; returns the outputs, those in ``targets`` where these lie."""

    def take_spans(self, start: float, end: float) -> list[tuple[str, float, float, str]]:
        """The spans of the last run, from ``start`` to ``end``: action, start, end, title."""


class Loaded(Runnable, Protocol):
    """One model, loaded by an executor."""

    outputs: tuple[ValueSpec, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its inputs."""

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw] | None = None, /) -> dict[str, Any]:
        """Runs once, as ``Runnable.run``."""

    @property
    def ops_taken(self) -> Mapping[str, int]:
        """How many of its ops each provider of the executor runs; empty where the executor does not count them."""


class Executor(Protocol):
    """Loads programs onto one device, with threads and options of its own choice."""

    def load(self, model: bytes, outputs: tuple[ValueSpec, ...], weights: Mapping[str, int] | None = None) -> Loaded:
        """The program in ``model``, of which ``outputs`` are wanted. ``weights``: open files that hold its external data, by
        the locations that it names."""
