"""From the throughput problem of a module to the latency problem: which kinds are CPUs, and what a node weighs; and the answer
as stages, which the pass ``partition`` takes: every piece is one, on its device, in the order in which they run.

A *CPU* is a kind of device that transfers for free and has no memory limit; there may be one such kind. A piece takes the bytes
of a stage (``passes.stages.problem``): of a workload what its nodes state, of a model weights, workspace (exactly, by
``liveness``) and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from passes.costs.memory.footprint import slots
from passes.partition.lattice.objective import Budget, Solution
from passes.reference.latency.liveness import Liveness
from passes.reference.latency.problem import LatencyProblem, Programs
from passes.reference.latency.solver import LatencyBudget, solve_latency
from passes.stages.problem import Kind, Problem


@dataclass(frozen=True)
class BuiltLatency:
    """``kinds``: of each accelerator kind of ``problem`` its number in the throughput problem; ``cpu``: that of the CPU kind,
    None without one."""

    problem: LatencyProblem
    kinds: tuple[int, ...]
    cpu: int | None


def latency_problem(
    problem: Problem,
    free_transfers: Sequence[bool],
    colours: tuple[tuple[int, ...], ...],
    pieces: int,
    liveness: Liveness | None = None,
) -> BuiltLatency:
    """The latency problem of the same nodes and devices. ``free_transfers``: by kind; ``colours``: nodes that share a device;
    ``pieces``: most per accelerator; ``liveness``: what is alive in a piece of a model; a workload has none.
    Raises ValueError for more than one kind of CPU, and for cuts or stages prescribed."""
    if problem.forced or problem.stages is not None:
        raise ValueError("cuts and numbers of stages are demanded of pipelines, not of a single sample")
    cpus = [k for k, kind in enumerate(problem.kinds) if free_transfers[k] and kind.memory is None]
    if len(cpus) > 1:
        names = " and ".join(problem.kinds[k].type for k in cpus)
        raise ValueError(f"latency takes one kind of CPU (free transfers, no memory limit), found {names}")
    rest = [k for k in range(len(problem.kinds)) if k not in cpus]
    size = np.zeros(problem.size, np.int64)
    for weight, readers in zip(problem.weight_bytes, problem.weight_readers, strict=True):
        if len(readers) == 1:
            size[readers[0]] += weight
    shared = [w for w, readers in enumerate(problem.weight_readers) if len(readers) > 1]
    programs = (
        None
        if liveness is None
        else Programs(
            received=slots("sum") * problem.tensor_bytes,
            weight_bytes=problem.weight_bytes[shared],
            weight_readers=tuple(problem.weight_readers[w] for w in shared),
            liveness=liveness,
        )
    )
    kinds = [problem.kinds[k] for k in rest]
    limited = any(kind.memory is not None for kind in kinds)
    latency = LatencyProblem(
        names=problem.names,
        kinds=tuple(Kind(kind.type, kind.devices, kind.memory) for kind in kinds),
        seconds=np.ascontiguousarray(problem.seconds[rest]),
        cpu=problem.seconds[cpus[0]].copy() if cpus else np.full(problem.size, np.inf),
        size=size,
        producer=problem.producer,
        consumers=problem.consumers,
        transfer=np.ascontiguousarray(problem.transfer[rest]),
        colours=colours,
        pieces=pieces,
        programs=programs if limited else None,
    )
    latency.check()
    return BuiltLatency(latency, tuple(rest), cpus[0] if cpus else None)


def solve_pieces(
    problem: Problem,
    budget: Budget,
    progress: Callable[[str, float | None], None],
    pieces: int,
    liveness: Liveness | None = None,
) -> Solution:
    """The least latency with up to ``pieces`` pieces per device, none of which transfers for free. ``liveness``: what is alive
    in a piece of a model. Raises TooManyKindsError, ValueError for demands that a single sample cannot
    meet."""
    built = latency_problem(problem, [False] * len(problem.kinds), (), pieces, liveness)
    ideals = min(budget.ideals, LatencyBudget().ideals)
    limits = LatencyBudget(**{**vars(budget), "ideals": ideals})
    found = solve_latency(built.problem, limits, progress)
    devices: dict[tuple[int, int], list[int]] = {}
    parts = []
    for piece in found.schedule.pieces if found.schedule is not None else ():
        devices.setdefault((piece.kind, piece.device), []).extend(piece.nodes)
        parts.append((list(devices).index((piece.kind, piece.device)), piece.nodes))
    stages = tuple((built.kinds[kind], tuple(sorted(nodes))) for (kind, _), nodes in devices.items())
    shared = {name: value for name, value in vars(found).items() if name != "schedule"}
    return Solution(**{**shared, "stages": stages if found.schedule is not None else None, "apart": tuple(parts)})
