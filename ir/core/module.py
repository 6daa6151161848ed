"""Module: one program, its machines, and all facts and decisions about it.

A module is an ordered tuple of symbols, each with a name ``@...`` that is unique in the module:

- ``Resource``: a weight or constant, by reference; the bytes stay where they are. Or a state: a tensor that a device keeps from
  step to step.
- ``Func``: a function; the first one is the entry.
- ``Topology`` (``ir/core/topology.py``), ``Mesh``: the machines.
- ``Stage``: after lowering, the program of one device (or of a mesh of devices), with ``comm`` ops at its borders.
- ``Program``: the ops of a stage on the local tensors of a device; devices that run the same ops share one.
- ``Schedule``: the order of work per device.  ``Plan``: what was decided, its objective, bound and proof.

Printing order is the tuple's order; passes append in the order above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from ir.core.attributes import Attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import Facets
from ir.core.faults import NoFunction
from ir.core.objectives import Objective, objective_of
from ir.core.ops import Op, Value
from ir.core.outcomes import Outcome
from ir.core.shares import Shares, equal
from ir.core.topology import Topology
from ir.core.types import Type


@dataclass(frozen=True, slots=True)
class External:
    """Bytes ``offset .. offset + length`` of ``file``, a path relative to the model's folder; never leaving it."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Inline:
    """The bytes themselves, as ``Dense.data`` lays them out."""

    data: bytes | tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Splat:
    """Every element is ``value`` (an int for integer and boolean types, else a float)."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Random:
    """Seeded pseudo-random elements: ``distribution`` is ``normal`` or ``uniform``, ``mean``/``scale`` its parameters (for
    ``uniform`` the middle and half the width). The generator is numpy's Philox keyed by ``seed``; equal text, equal bytes."""

    distribution: str
    seed: int
    scale: float = 1.0
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Declared:
    """No data: the program can be planned but not run."""


StoredData: TypeAlias = External | Inline | Splat | Random | Declared


@dataclass(frozen=True, slots=True)
class View:
    """A part of the tensor ``whole``, which has ``shape`` and the resource's element type: per dimension ``length`` elements
    from ``start``, row by row, reshaped to the shape of the resource's type."""

    whole: StoredData
    shape: tuple[int, ...]
    start: tuple[int, ...]
    length: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that stays on its device from one step to the next: after each step it becomes the result ``result`` of the
    entry function (a name without ``%``), which has its type.

    ``axis``: the dimension along which a step writes new positions into a buffer that keeps the others, so that the old and the
    new tensor may be one buffer; None: all elements are new. ``sets``: how many groups of sequences are in flight, each with a
    buffer of its own; a step reads that of its group."""

    result: str
    axis: int | None = None
    sets: int = 1


ResourceData: TypeAlias = StoredData | View | State


@dataclass(frozen=True, slots=True)
class Resource:
    """A named tensor outside the program text. ``digest`` is ``sha256:...`` where its bytes were read, else empty."""

    name: str
    type: Type
    data: ResourceData
    digest: str = ""
    facets: Facets = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Func:
    """A function. ``results`` are names of values (or of resources or arguments handed through) with their types."""

    name: str
    args: tuple[Value, ...]
    results: tuple[Value, ...]
    ops: tuple[Op, ...]
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes over an ordered list of devices (row-major); ``topology`` is implied by the module.

    ``shares``: for each axis the shares of its members in what is cut along it (``ir.core.shares``), in lowest terms; empty
    where all are 1."""

    name: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[str, ...]
    shares: tuple[Shares, ...] = ()

    def along(self, axis: int) -> Shares:
        """The shares along axis number ``axis``."""
        return self.shares[axis] if self.shares else equal(self.axes[axis][1])

    @property
    def cuts(self) -> tuple[Shares, ...]:
        """The shares along each axis."""
        return tuple(self.along(axis) for axis in range(len(self.axes)))


@dataclass(frozen=True, slots=True)
class Stage:
    """The program of stage ``index``: it runs on each of ``devices`` (replicas), or as one SPMD program over ``mesh``.

    ``args`` are the inputs of the model that this stage reads, ``results`` the outputs of the model that it makes; other values
    arrive by ``comm.recv`` and leave by ``comm.send``."""

    name: str
    index: int
    devices: tuple[str, ...]
    args: tuple[Value, ...]
    results: tuple[Value, ...]
    ops: tuple[Op, ...]
    mesh: str = ""
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class Program:
    """The ops of the stage ``stage`` (a symbol) on the tensors that each of ``devices`` holds. Members of a mesh, or replicas,
    that run the same ops share a program; ``comm.member`` makes the constants that differ by member.

    Types are local and without layouts. ``comm.part`` is a member's part of a resource. Where a part of a tensor crosses the
    border of the stage, an attribute ``of`` of ``comm.part``, ``comm.recv`` and ``comm.send`` is the type of the whole with its
    layout, which says which part it is (``ir.ops.boxes``); so does the type of each of ``results``, the outputs of the model
    that the stage makes. ``args`` are the inputs of the model that it reads, whole."""

    name: str
    stage: str
    devices: tuple[str, ...]
    args: tuple[Value, ...]
    results: tuple[Value, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """One cell of a schedule: ``kind`` is ``F``, ``I``, ``W``, ``B`` (``I``, then ``W``), ``U`` (the update, once a step),
    ``recv`` or ``send``; for stage ``stage``, microbatch ``microbatch`` (None where it has none), on channel ``channel`` (None
    for compute)."""

    kind: str
    stage: int
    microbatch: int | None = None
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Order of actions per device, in ``rows`` (device, actions).

    ``periodic``: rows hold one period of an endless stream (microbatch numbers are offsets) that repeats every ``period``
    seconds, with ``slots`` buffers per channel: a sample, or a training step of ``microbatches`` without a flush. Else the rows
    hold all ``microbatches`` of a training step with one (kind ``1f1b``): ``period`` and ``latency`` are both the seconds from
    its start to its end.
    ``latency``: predicted seconds from a sample's first input to its last output."""

    name: str
    kind: str
    rows: tuple[tuple[str, tuple[Action, ...]], ...]
    microbatches: int = 1
    periodic: bool = False
    period: float = 0.0
    latency: float = 0.0
    slots: int = 2


@dataclass(frozen=True, slots=True)
class PlanStage:
    """The predicted cost of one stage: seconds of a device per sample (microbatch) that it handles; bytes of memory on each of
    its devices, by part: ``weights``, ``workspace`` (activations alive at once) and ``buffers`` (slots of its channels).
    ``replicas`` devices take samples in turn; ``devices`` names them once the stage is placed.

    ``serves``: the number of the replica that has each turn, of which a fast one may have more than a slow one; sample m is
    turn m modulo their number. Of a decoder: of each group of sequences the replica that has its states and does all its steps.
    Empty where each replica has one turn, or groups in turn. Where replicas hold unlike numbers of groups, ``weights`` are
    those of the one that holds most. ``steps``: seconds of a sample, or of a step of a group, receives and sends included, on
    each replica, where some have unlike turns or groups are on devices of unlike speed; else empty.

    ``mesh``: the symbol of the mesh whose devices (``devices``, row by row) work on each sample together; empty for one device
    or replicas. ``collectives``: seconds that they exchange parts, beside ``compute``. Where their memory differs, ``weights``
    are told as if all devices were the smallest: of one with twice its memory, half of what it holds. ``shared``: links that
    something besides the stage crosses too, each with the seconds that its collectives keep it busy.

    In training ``compute`` and ``collectives`` are those of a microbatch forward and backward: ``backward``, what of their sum
    the backward pass takes; ``sync``, seconds of the update once a step, in which gradients of weights are synchronised, and
    of which each microbatch that a device handles is charged its part; ``learning``: what the stage receives and sends the
    gradient of back; ``hidden``, seconds once a step of what is synchronised beside the last backward pass, and so is not among
    ``sync`` and ``collectives``."""

    index: int
    device_type: str
    devices: tuple[str, ...] = ()
    ops: int = 0
    compute: float = 0.0
    receive: float = 0.0
    send: float = 0.0
    weights: int = 0
    workspace: int = 0
    buffers: int = 0
    replicas: int = 1
    mesh: str = ""
    collectives: float = 0.0
    backward: float = 0.0
    sync: float = 0.0
    hidden: float = 0.0
    learning: tuple[str, ...] = ()
    shared: tuple[tuple[str, float], ...] = ()
    serves: tuple[int, ...] = ()
    steps: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        """The part of all samples that the busiest of its replicas handles."""
        return max(map(self.serves.count, self.serves)) / len(self.serves) if self.serves else 1 / self.replicas

    @property
    def working(self) -> float:
        """Seconds between the last receive and the first send."""
        return self.compute + self.collectives

    @property
    def memory(self) -> int:
        return self.weights + self.workspace + self.buffers


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision and its proof.

    ``objective``: its name in ``ir.core.objectives``. ``comm``: how compute and transfers of a device add up (``sum``,
    ``overlap``, ``duplex``). ``value``: the objective on the real links (on the port model until ``place`` ran), in seconds;
    ``port_value``: on the port model; ``bound``: no plan of the stated kind is better; ``status``: the outcome of the
    search; ``single``: the best single device's value, or inf when the model fits none. ``certificate``: how the bound was
    reached, as sorted (key, text) pairs. ``tokens``: of a decoder that is planned for tokens, the sequences of a group, each of
    which gets one in a step: value, port_value, bound and single are seconds per token; 1 for other objectives.
    ``microbatches``: of a training step; 0 where a profile trains as a stream of samples: the value is then the time between
    two. ``flush``: whether the pipeline is empty behind each step; where it is not, the value is the time between two steps."""

    name: str
    objective: str
    comm: str
    value: float
    port_value: float
    bound: float
    status: Outcome
    single: float
    stages: tuple[PlanStage, ...]
    certificate: tuple[tuple[str, str], ...] = ()
    microbatches: int = 1
    flush: bool = True
    tokens: int = 1

    @property
    def period(self) -> float:
        """The value in seconds per microbatch, as those of stages are, or per training step."""
        return self.value * self.tokens

    @property
    def minimises(self) -> Objective:
        """What ``objective`` names. Raises UsageError for a name that none has, which the verifier refuses."""
        return objective_of(self.objective)

    @property
    def in_steps(self) -> bool:
        """Whether the value is of a training step of ``microbatches``."""
        return self.minimises.trains and self.microbatches > 0

    @property
    def on_meshes(self) -> bool:
        """Whether a stage splits its tensors over a mesh."""
        return any(stage.mesh for stage in self.stages)

    @property
    def gap(self) -> float:
        """Relative distance of the value from the bound: ``value / bound - 1``; 0 when both are 0."""
        return self.value / self.bound - 1 if self.bound > 0 else (0.0 if self.value == 0 else float("inf"))


Symbol: TypeAlias = Resource | Func | Topology | Mesh | Stage | Program | Schedule | Plan
S = TypeVar("S", Resource, Func, Topology, Mesh, Stage, Program, Schedule, Plan)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Module:
    """A whole program. Attributes that frontends set: ``producer`` (text), ``opset.DOMAIN`` (int, ``opset.onnx`` for
    the default)."""

    name: str
    symbols: tuple[Symbol, ...] = ()
    attributes: Attributes = ()

    def of_type(self, kind: type[S]) -> Iterator[S]:
        """Symbols of one class, in order."""
        return (symbol for symbol in self.symbols if isinstance(symbol, kind))

    def first(self, kind: type[S]) -> S | None:
        return next(self.of_type(kind), None)

    @property
    def entry(self) -> Func:
        """The first function. Raises InvalidInput when there is none: a module of machines alone is no program."""
        func = self.first(Func)
        if func is None:
            raise InvalidInput(NoFunction(), where=self.name)
        return func

    @property
    def resources(self) -> dict[str, Resource]:
        """Resources by name. Built at each call: keep it where it is used in a loop."""
        return {resource.name: resource for resource in self.of_type(Resource)}

    @property
    def states(self) -> dict[str, State]:
        """The states by the name of their resource, in order."""
        return {one.name: one.data for one in self.of_type(Resource) if isinstance(one.data, State)}

    def symbol(self, name: str) -> Symbol | None:
        return next((symbol for symbol in self.symbols if symbol.name == name), None)

    def replace(self, old: Symbol, new: Symbol) -> Module:
        """The module with ``new`` standing where ``old`` (the same object) stood."""
        return replace(self, symbols=tuple(new if symbol is old else symbol for symbol in self.symbols))

    def without(self, *kinds: type[Symbol]) -> Module:
        return replace(self, symbols=tuple(s for s in self.symbols if not isinstance(s, kinds)))

    def extend(self, symbols: Iterable[Symbol]) -> Module:
        return replace(self, symbols=(*self.symbols, *symbols))
