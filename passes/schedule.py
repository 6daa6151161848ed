"""Schedule: the order of work per device, for a stream of samples or for a training step.

Reads a plan whose stages are on devices; writes one ``Schedule``. Which order, and what holds of it, is
``passes/model/timeline/orders.py``'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.module import Module, Plan, Schedule
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.framework.symbols import insert_symbols
from passes.model.timeline.orders import step, stream
from passes.model.timeline.workload import largest_load, workload


@dataclass(frozen=True)
class SchedulePass(Pass):
    """Order receives, compute and sends per device for streamed inference, or for a training step (1F1B)."""

    name: ClassVar[str] = "schedule"

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput when the module has no plan on devices."""
        load, plan = workload(module), module.first(Plan)
        assert plan is not None, "a workload is a plan's"
        training = plan.minimises.trains
        schedule = step(load, plan.microbatches) if training else stream(load, largest_load(load))
        context.count(self.name, period=schedule.period, latency=schedule.latency)
        return insert_symbols(module.without(Schedule), (schedule,))
