"""What a stage needs of a device's memory, by kinds of bytes, and by how much a plan misses what there is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ir.core.module import Module, Plan
from ir.core.topology import Topology
from ir.ops.rows import edge_slots
from passes.costs.memory.liveness import SLOTS


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a stage on its fullest device; in training ``weights`` with gradients and state, ``workspace`` with what is
    saved for the backward pass. ``spare``: the part of ``buffers`` that only tensors passing over other stages have, which the
    search over the lattice does not plan with; without it the stage runs, but more slowly. ``alive``: values that are alive,
    in whatever layout, where most is."""

    weights: int
    workspace: int
    buffers: int = 0
    spare: int = 0
    alive: frozenset[str] = frozenset()

    def __add__(self, other: Footprint) -> Footprint:
        """What two stages need on one device."""
        both = (self.weights + other.weights, self.workspace + other.workspace, self.buffers + other.buffers)
        return Footprint(*both, self.spare + other.spare, self.alive | other.alive)

    @property
    def total(self) -> int:
        return self.weights + self.workspace + self.buffers

    @property
    def least(self) -> int:
        """Bytes without which the stage cannot run at all."""
        return self.total - self.spare

    def __str__(self) -> str:
        return f"{self.weights} of weights, {self.workspace} of workspace, {self.buffers} of buffers"


def slots(comm: str) -> int:
    """Buffers of a tensor that a stage receives from the stage before it."""
    return edge_slots(comm, 0, 1, SLOTS)


def buffer_bytes(comm: str, source: int, target: int, size: int, *, returns: bool = False) -> int:
    """Bytes of the buffers of a message of ``size`` bytes between two stages, which lie with the receiver. ``returns``: of a
    gradient, which comes back: the row of a training step receives it just before it is read."""
    return (SLOTS if returns else edge_slots(comm, source, target, SLOTS)) * size


def overfull(module: Module, topology: Topology, memory: int = 0) -> tuple[int, int, str]:
    """By how many bytes the plan of a module misses the memory of a device most, in which stage, and how it does; 0 where it
    fits. ``memory``: as ``device_memory`` of ``partition``."""
    most, index, text = 0, 0, ""
    plan = module.first(Plan)
    for row in plan.stages if plan is not None and memory >= 0 else ():
        for name in row.devices:
            limit = memory or topology.memory(topology.device(name))
            if limit is not None and row.memory - limit > most:
                most, index = row.memory - limit, row.index
                text = lacking(f"stage {index} needs", Footprint(row.weights, row.workspace, row.buffers), name, limit)
    return most, index, text


def lacking(who: str, needs: Footprint, device: str, limit: float) -> str:
    """A sentence on what is missing."""
    return f"{who} {needs.total} bytes on {device} ({needs}), {math.ceil(needs.total - limit)} more than there are"
