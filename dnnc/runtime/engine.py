"""What runs a build, behind three small interfaces, so that another engine is a file and not a rewrite.

- an ``Executor`` computes: it makes a ``Runnable`` of a program's bytes. Today: ONNX Runtime, with the execution provider that
  the device's type names (``program.OnnxRuntime``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dnnc.program.collective import Collective
from dnnc.runtime.codec import Raw
from dnnc.runtime.edges import ValueSpec


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

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw] | None = None) -> dict[str, Any]:
        """Runs once; returns the outputs, those in ``targets`` where these lie."""

    def take_spans(self, start: float, end: float) -> list[tuple[str, float, float, str]]:
        """What the last run did from ``start`` to ``end``: action, start, end, title."""


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


class Loaded(Runnable, Protocol):
    """A program as an executor makes it: one model."""

    outputs: tuple[ValueSpec, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """What it is fed."""

    @property
    def ops_taken(self) -> Mapping[str, int]:
        """How many of its ops each part of the executor (a provider of ONNX Runtime) takes; empty where nobody counts."""


class Executor(Protocol):
    """Loads programs onto one device, with threads and options of its own choice."""

    def load(self, model: bytes, outputs: tuple[ValueSpec, ...], weights: Mapping[str, int] | None = None) -> Loaded:
        """The program in ``model``, of which ``outputs`` are wanted. ``weights``: open files that hold its external data, by
        the locations that it names."""


__all__ = ["Executor", "Group", "Loaded", "Runnable"]
