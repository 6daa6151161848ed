"""What methods share: the options they read, the answer they give, and the faults they raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from dnnc.workloads.faults import NothingFits, NothingFound, OptionNotOfObjective
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.module import Module
from ir.core.topology import Topology

if TYPE_CHECKING:
    from passes.partition import Budget, Solution

Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """What to solve and how. ``objective`` empty: as the file suggests. ``accelerators``, ``cpus``, ``memory`` (bytes each),
    ``bandwidth`` (bytes per second) stand over the file's. ``forward``: leave backward nodes out. ``time_limit``: seconds of
    search, None for the method's own. ``replicas``: most devices that a stage may run on. Of PipeDream's objective:
    ``straight``: one machine per stage; ``schedule``: what memory holds; ``microbatches`` between two flushes.
    ``hierarchy``: groups of accelerators and accelerators in each, with ``inner_bandwidth`` inside and ``bandwidth`` between.
    ``pieces``: of latency, most that an accelerator runs, one after another.
    ``topology``: machines in place of the file's; ``by_bytes``: what is sent are bytes over its links, not stated seconds.
    ``method``: exact, or a baseline; ``expert``: the file of a split made by hand; ``compare``: all of them."""

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
    """What an accelerator runs at one go, under latency: positions of its ops, seconds from the arrival of the sample."""

    ops: tuple[int, ...]
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage on ``replicas`` devices of ``kind``: positions of its ops, seconds that each device is busy per sample, the
    compute and the transfers in it, and bytes on each. ``name``: of all devices of its kind together, which run it. Of latency:
    ``pieces``, in their order. ``device``: the place of its first one among those of its kind, where these stand in groups;
    the others follow it."""

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
    """What a split costs to run: ordered ``pairs`` of devices of which one sends to the other, and ``transfers``, tensors that
    a device receives, for each sample. Beside it the best ``contiguous`` plan found, its objective in seconds."""

    pairs: int
    transfers: int
    contiguous: float | None = None
    contiguous_pairs: int = 0
    contiguous_transfers: int = 0


@dataclass(frozen=True, slots=True)
class Solved:
    """What a method gives. ``stages`` in pipeline order; ``reason``: how the bound was reached; ``seconds`` by phase,
    ``search`` the whole search. ``options``: what else defines the objective; ``split``: of what sort the plan is, where
    not what was asked for. ``interrupted``: the search was, from the keyboard."""

    value: float
    bound: float
    status: str
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
    """The devices of a workload; ``dnnc.workloads.solve`` checks that there are some."""
    topology = module.first(Topology)
    assert topology is not None, "solve checks it"
    return topology


def takes(options: SolveOptions, *flags: str) -> None:
    """Raises UsageError for an option of other objectives; ``flags`` are those that this one has."""
    given = {
        "--straight": options.straight,
        "--schedule": options.schedule,
        "--microbatches": options.microbatches,
        "--replicas": options.replicas > 1,
        "--hierarchy": options.hierarchy,
        "--pieces": options.pieces > 1,
    }
    wrong = [flag for flag, value in given.items() if value and flag not in flags]
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
"""Longest search unless told otherwise: only lattices too large to walk need it."""


def budget_of(options: SolveOptions) -> Budget:
    from passes.partition import Budget

    return Budget(seconds=SECONDS if options.time_limit is None else options.time_limit)


def does_not_fit(status: str, topology: Topology) -> Infeasible:
    """The error where a search without an explanation of its own found no plan."""
    limits = [limit for device in topology.devices if (limit := topology.memory(device)) is not None]
    proven = status == "infeasible"
    machines = len(topology.devices), min(limits, default=-1), max(limits, default=-1)
    error = Infeasible(NothingFits(*machines) if proven else NothingFound(*machines), where=topology.name)
    error.proven = proven
    return error


__all__ = [
    "SECONDS",
    "Boundaries",
    "Method",
    "Progress",
    "SolveOptions",
    "Solved",
    "SolvedPiece",
    "SolvedStage",
    "budget_of",
    "does_not_fit",
    "solved",
    "takes",
    "topology_of",
]
