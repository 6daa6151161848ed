"""From the throughput problem of a module to the latency problem: which kinds are CPUs, and what a node weighs.

A *CPU* is a kind of device that transfers for free and has no memory limit; there may be one such kind. Of a workload, which
states the bytes of each node, memory is exact. Of an ONNX model a node is charged its weights (those it shares with others
too), and room for what it reads; the largest working set of any node is kept free on each accelerator. That is never too
little, so a plan that fits here fits; it can be too much, so the bound is only one for memory counted in this way
(``exact_memory``). With ``least_memory`` a node is charged its weights alone, an even share of those that others read too:
never too much, so the bound holds for every plan that fits, and a plan may turn out not to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.partition.latency.problem import LatencyProblem
from passes.partition.problem import Kind, Problem, slots


@dataclass(frozen=True)
class BuiltLatency:
    """``kinds``: of each accelerator kind of ``problem`` its number in the throughput problem; ``cpu``: that of the CPU kind,
    None without one."""

    problem: LatencyProblem
    kinds: tuple[int, ...]
    cpu: int | None
    exact_memory: bool


def latency_problem(
    problem: Problem,
    free_transfers: Sequence[bool],
    colours: tuple[tuple[int, ...], ...],
    pieces: int,
    least_memory: bool = False,
) -> BuiltLatency:
    """The latency problem of the same nodes and devices. ``free_transfers``: by kind; ``colours``: nodes that share a device;
    ``pieces``: most per accelerator. Raises ValueError for more than one kind of CPU, and for cuts or stages prescribed."""
    if problem.forced or problem.stages is not None:
        raise ValueError("cuts and numbers of stages are demanded of pipelines, not of a single sample")
    cpus = [k for k, kind in enumerate(problem.kinds) if free_transfers[k] and kind.memory is None]
    if len(cpus) > 1:
        names = " and ".join(problem.kinds[k].type for k in cpus)
        raise ValueError(f"latency takes one kind of CPU (free transfers, no memory limit), found {names}")
    rest = [k for k in range(len(problem.kinds)) if k not in cpus]
    size = np.zeros(problem.size, np.int64)
    for weight, readers in zip(problem.weight_bytes, problem.weight_readers, strict=True):
        size[list(readers)] += weight // len(readers) if least_memory else weight
    exact = not problem.live.any() and not problem.tensor_bytes.any() and all(len(r) == 1 for r in problem.weight_readers)
    for bytes_, readers in zip(problem.tensor_bytes, problem.consumers, strict=True):
        size[list(readers)] += 0 if least_memory else slots("sum") * int(bytes_)
    live = 0 if least_memory else int(problem.live.max(initial=0))
    kinds = [problem.kinds[k] for k in rest]
    if live:
        kinds = [kind if kind.memory is None else replace(kind, memory=max(kind.memory - live, 0)) for kind in kinds]
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
    )
    latency.check()
    return BuiltLatency(latency, tuple(rest), cpus[0] if cpus else None, exact)


__all__ = ["BuiltLatency", "latency_problem"]
