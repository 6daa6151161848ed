"""What all methods share: their options, their result, and checks of options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from dnnc.workloads.methods.faults import NothingFits, NothingFound, OptionNotOfObjective
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.module import Module
from ir.core.outcomes import Outcome
from ir.core.topology import Topology

if TYPE_CHECKING:
    from passes.partition.lattice.objective import Budget, Solution

Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """What to solve and how. ``objective``: empty for the one that the file suggests. ``accelerators``, ``cpus``, ``memory``
    (bytes of each device) and ``bandwidth`` (bytes per second) replace those of the file. ``forward``: drop backward nodes.
    ``time_limit``: seconds of search, None for the default of the method. ``replicas``: most devices of a stage.
    For PipeDream's objective, ``straight``: one machine per stage; ``schedule``: determines what memory holds;
    ``microbatches`` between two flushes. ``hierarchy``: number of groups and accelerators in each, with ``inner_bandwidth``
    inside a group and ``bandwidth`` between groups. ``pieces``: most pieces of an accelerator, for latency.
    ``topology``: machines in place of those of the file; ``by_bytes``: transfers take the time of their bytes on its links,
    not the stated seconds. ``method``: exact, or a baseline; ``expert``: file of a split by hand; ``compare``: run all
    methods."""

    file: str
    format: str = ""
    objective: str = ""
    split: str = "contiguous"
    comm: str = "sum"
    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None
    forward: bool = False
    time_limit: float | None = None
    straight: bool = False
    schedule: str = ""
    microbatches: int | None = None
    replicas: int = 1
    hierarchy: tuple[int, int] | None = None
    inner_bandwidth: float | None = None
    pieces: int = 1
    topology: str = ""
    by_bytes: bool = False
    method: str = "exact"
    expert: str = ""
    compare: bool = False


@dataclass(frozen=True, slots=True)
class SolvedPiece:
    """Ops that an accelerator runs without interruption, under latency: positions, and seconds since the sample arrived."""

    ops: tuple[int, ...]
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage on ``replicas`` devices of ``kind``: positions of its ops, ``load`` in seconds that each device is busy per
    sample, compute and transfers in it, and bytes on each device. ``name``: set if all devices of the kind are one entry.
    ``pieces``: in the order in which they run, under latency. ``device``: with groups, the number of its first device among
    those of its kind; its other devices are the next ones."""

    kind: str
    ops: tuple[int, ...]
    load: float
    compute: float
    transfer: float
    memory: int
    replicas: int = 1
    name: str = ""
    pieces: tuple[SolvedPiece, ...] = ()
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Transfers of a split per sample: number of ordered ``pairs`` of devices with a transfer, and of ``transfers``, tensors
    that a device receives. ``contiguous``: objective in seconds of the best contiguous plan found, with its transfers."""

    pairs: int
    transfers: int
    contiguous: float | None = None
    contiguous_pairs: int = 0
    contiguous_transfers: int = 0


@dataclass(frozen=True, slots=True)
class Solved:
    """Result of a method. ``stages`` in the order of the pipeline; ``reason``: how the bound was proven; ``seconds`` by phase,
    with ``search`` for the whole search. ``options``: parameters of the objective; ``split``: set if it is another than the
    options ask for. ``interrupted``: whether Ctrl-C ended the search."""

    value: float
    bound: float
    status: Outcome
    reason: str
    stages: tuple[SolvedStage, ...]
    ideals: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    split: str = ""
    boundaries: Boundaries | None = None
    interrupted: bool = False


Method: TypeAlias = Callable[[Module, SolveOptions, Progress], Solved]


def solved(
    solution: Solution,
    stages: tuple[SolvedStage, ...],
    build: float,
    search: float,
    options: dict[str, Any] | None = None,
    boundaries: Boundaries | None = None,
) -> Solved:
    counts = solution.statistics
    return Solved(
        solution.value,
        solution.bound,
        solution.status,
        solution.reason,
        stages,
        counts.ideals,
        counts.transitions,
        {"build": build, **counts.seconds, "search": search},
        options or {},
        boundaries=boundaries,
        interrupted=solution.interrupted,
    )


def topology_of(module: Module) -> Topology:
    """The topology of a workload; ``read_problem`` has checked that it has devices."""
    topology = module.first(Topology)
    assert topology is not None, "read_problem checks it"
    return topology


def takes(options: SolveOptions, *flags: str) -> None:
    """Raises UsageError for options of other objectives; ``flags``: the options of this one."""
    values = {
        "--straight": options.straight,
        "--schedule": options.schedule,
        "--microbatches": options.microbatches,
        "--replicas": options.replicas > 1,
        "--hierarchy": options.hierarchy,
        "--pieces": options.pieces > 1,
    }
    wrong = [flag for flag, value in values.items() if value and flag not in flags]
    if wrong:
        raise UsageError(OptionNotOfObjective(tuple(wrong), tuple(_OF[flag] for flag in wrong)))


_OF = {
    "--straight": "--objective pipedream",
    "--schedule": "--objective training and pipedream",
    "--microbatches": "--objective pipedream, and to training with --replicas",
    "--pieces": "--objective latency",
    "--hierarchy": "--objective throughput and pipedream with --split contiguous",
    "--replicas": "the exact method of --objective throughput and training, with --split contiguous",
}


SECONDS = 40.0
"""Longest search without --time-limit. Only lattices that are too large to enumerate need it."""


def budget_of(options: SolveOptions) -> Budget:
    from passes.partition.lattice.objective import Budget

    return Budget(seconds=SECONDS if options.time_limit is None else options.time_limit)


def does_not_fit(status: Outcome, topology: Topology) -> Infeasible:
    """The error of a search without a plan that cannot name the device that is too small."""
    limits = [limit for device in topology.devices if (limit := topology.memory(device)) is not None]
    proven = status == "infeasible"
    machines = len(topology.devices), min(limits, default=-1), max(limits, default=-1)
    error = Infeasible(NothingFits(*machines) if proven else NothingFound(*machines), where=topology.name)
    error.proven = proven
    return error
