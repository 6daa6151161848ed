"""1F1B without a flush: the forward passes of a step follow those of the step before, so no device ever waits for the pipeline
to fill, and a stage works with weights that lack the newest updates. Every pass of a step uses the weights as they were when
the step's first F began, which the stage keeps (``ir/ops/rows.py``, rule 7).

- ``pipedream``: a stage updates its weights as soon as the last backward pass of a step is done (weight stashing: Narayanan et
  al., SOSP 2019, section 3.3). With M microbatches a step and w in flight, a step lacks up to ceil((w-1) / M) updates, the last
  stage's none, and as many old versions are kept. M is 1 in PipeDream.
- ``2bw``: a stage updates its weights when the first F of the next step is done, so every stage lacks just one update and keeps
  one old version (PipeDream-2BW: Narayanan et al., ICML 2021, section 3.1). That needs as many microbatches a step as stage 0
  has in flight.

In flight are the least that reach the pace of the slowest stage (``derived_depths``)."""

from __future__ import annotations

from dataclasses import replace

from ir.core.diagnostics import UsageError
from ir.ops.rows import BACKWARD, COMPUTE, UPDATE
from passes.graph.faults import OneDeviceEach, SharedWeight, TwoVersions
from passes.timeline.families.auto import derived_depths
from passes.timeline.families.base import Orders, Pass
from passes.timeline.workload import Workload

MOST = 1 << 10
"""Microbatches in flight at most."""


def pipedream(load: Workload, microbatches: int) -> Orders:
    """The orders of a period."""
    return _orders(load, microbatches, _depths(load, "pipedream"))


def two_buffers(load: Workload, microbatches: int) -> Orders:
    """The orders of a period of ``2bw``."""
    depths = _depths(load, "2bw")
    if max(depths) > microbatches:
        raise UsageError(TwoVersions(max(depths), microbatches), where="--schedule 2bw")
    return _orders(load, microbatches, depths, late=True)


def _depths(load: Workload, family: str) -> list[int]:
    """Microbatches in flight of each stage. Raises UsageError for stages that share devices, have several, or update a weight
    together."""
    if max(map(len, load.replicas)) > 1 or len(set(load.replicas)) < len(load.replicas):
        raise UsageError(OneDeviceEach(), where=f"--schedule {family}")
    if any(wire.made == UPDATE for wire in load.wires):
        raise UsageError(SharedWeight(), where=f"--schedule {family}")
    return derived_depths(replace(load, weights=()), MOST)


def _orders(load: Workload, microbatches: int, depths: list[int], *, late: bool = False) -> Orders:
    """1F1B in its steady state. ``late``: an update comes behind the first F of the next step."""
    orders = {}
    for stage, (device,) in enumerate(load.replicas):
        order: list[Pass] = []
        for number in range(microbatches):
            order += (BACKWARD, stage, number), (COMPUTE, stage, number + depths[stage])
        update = (UPDATE, stage, microbatches - 1)
        order.insert(len(order) if late and depths[stage] == 1 else len(order) - 1, update)
        orders[device] = order
    return orders
