"""What was decided of a sharding, and what it costs: the records that ``price`` reads and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ir.core.facets import Sync
from ir.core.ops import Op
from passes.meshes.layouts import Placements

UNSUMMED = 1e-12
"""The ``overlap`` (``passes.partition.layouts.problem.build``) of a problem that counts no sums of gradients, not even of what
the backward pass makes last: its bound is one of all plans, however members agree on gradients. Not 0, so that of two plans the
one with fewer sums is found."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """``strategies[op id]``: a strategy's name per axis; ``kept[resource]`` and ``outputs[value]``: layouts. Of a stage:
    ``entering``, how values of other stages arrive, ``leaving``, layouts in which values leave for other stages, and
    ``learning``, those of ``entering`` that have a gradient. ``synced``: of weights whose gradients are not summed by
    all-reduce, how members agree on them."""

    strategies: Mapping[str, tuple[str, ...]]
    kept: Mapping[str, Placements]
    outputs: Mapping[str, Placements]
    entering: Mapping[str, Placements] = field(default_factory=dict)
    leaving: Mapping[str, Placements] = field(default_factory=dict)
    learning: frozenset[str] = frozenset()
    synced: Mapping[str, Sync] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on ``value``: ``size`` bytes are those of the formula, the tensor as the other axes leave it. ``summed``:
    the synchronisation of a weight's gradient. ``seconds``: per microbatch,
    of one that is done once in ``runs`` of them its part. ``factor``: of what gathers a factor of the
    gradient of a weight, whether that is the ``value`` or its ``gradient``."""

    kind: str
    axis: str
    value: str
    size: float
    seconds: float
    backward: bool = False
    runs: int = 1
    summed: bool = False
    factor: str = ""


@dataclass(slots=True)
class Bill:
    """``compute`` and ``communication`` seconds, of ``compute`` in training a microbatch's part of the ``update``; ``memory``
    bytes per device of weights, in training with their gradients, the optimizer's state and what is ``saved`` for the backward
    pass; ``waiting``: bytes of gradients of one microbatch before they are added to those of others; ``constants``: bytes of
    small constants, which every member has; of each the member that holds most of it, as a part of what its device has
    (``build``). ``work``: seconds of compute by op; ``back``: seconds of sums that can travel beside an op's gradients.
    ``beside``: seconds of the sums, each the first of a weight's gradient, that may travel beside a backward pass; ``hiding``:
    of those of ``back``, what is left of the pass when it may have made the first such gradient.
    ``hidden``: a microbatch's part of the seconds of sums that travel beside the last backward pass of a step (``exchange``).
    ``lies``: the layout in which each value is made or kept; ``asked``: those in which it is needed; ``reads``: of each op,
    what it reads and in which layout. ``learned``: weights that count as they are read.
    ``products``: of gradients that are multiplied whole, the weight, the op, its factors (``Collective.factor``, value), and
    what the op reads of the weight; ``repeated``: the seconds of ``work`` that this takes more, by op."""

    compute: float = 0.0
    update: float = 0.0
    memory: float = 0.0
    saved: float = 0.0
    waiting: float = 0.0
    constants: float = 0.0
    collectives: list[Collective] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=dict)
    back: dict[str, float] = field(default_factory=dict)
    beside: float = 0.0
    hiding: float = 0.0
    hidden: float = 0.0
    lies: Mapping[str, Placements] = field(default_factory=dict)
    asked: Mapping[str, tuple[Placements, ...]] = field(default_factory=dict)
    reads: dict[str, list[tuple[str, Placements]]] = field(default_factory=dict)
    learned: set[str] = field(default_factory=set)
    products: list[tuple[str, str, tuple[tuple[str, str], ...], str]] = field(default_factory=list)
    repeated: dict[str, float] = field(default_factory=dict)

    def wanted(self, op: Op, whole: Placements) -> tuple[Placements, ...]:
        """The layout in which an op reads each operand: absent operands, and all of an op with regions, as ``whole``."""
        rows = iter(() if op.regions else self.reads[op.id])
        return tuple([next(rows, ("", whole))[1] if name else whole for name in op.operands])

    @property
    def communication(self) -> float:
        return math.fsum(one.seconds for one in self.collectives)

    @property
    def total(self) -> float:
        """Where nothing overlaps."""
        return self.compute + self.communication

    @property
    def overlapped(self) -> float:
        """Where sums of gradients travel beside the last backward pass of a step."""
        return self.total - self.hidden

    def relaxed(self, overlap: float | None, microbatches: int) -> float:
        """What is left where of the sums that can travel beside a backward pass but the part ``overlap`` counts, and of a
        step's last backward pass as much less (``passes.partition.layouts.problem.build``); None: all counts."""
        if overlap is None:
            return self.total
        alone = overlap == UNSUMMED
        sums = math.fsum(one.seconds for one in self.collectives if one.summed) if alone else self.beside
        return self.total - (1 - overlap) * sums - overlap * self.hiding / microbatches
