"""INV22: rows of a schedule that the programs of its stages can follow."""

from __future__ import annotations

from ir.module import Schedule
from ir.row_faults import faults
from ir.rows import Channel, Flow
from ir.verifier.findings import Findings

_SHOWN = 8


def check_orders(findings: Findings) -> None:
    """The rows against the stage programs; without these, or where they have other faults, nothing is known of channels."""
    if findings.diagnostics or not findings.stages:
        return
    for schedule in findings.module.of_type(Schedule):
        if all(stage.devices for stage in findings.stages):
            for fault in faults(schedule, flow_of(findings, schedule))[:_SHOWN]:
                findings.add("INV22", f"in {schedule.name}: {fault}", schedule)


def flow_of(findings: Findings, schedule: Schedule) -> Flow:
    """What the schedule is about, by the stage programs of the module."""
    plan = findings.plan
    training = plan is not None and plan.flushes
    planned = plan.stages if plan is not None else ()
    learning = {stage.index: stage.learning for stage in planned}
    channels = {
        int(op.get("channel")): Channel(int(op.get("peer")), stage.index, op.results[0].name in learning.get(stage.index, ()))
        for stage in findings.stages
        for op in stage.ops
        if op.name == "comm.recv"
    }
    return Flow(
        tuple(stage.devices for stage in findings.stages),
        channels,
        plan.comm if plan is not None else "sum",
        schedule.slots,
        frozenset(stage.index for stage in findings.stages if stage.mesh),
        training,
    )


__all__ = ["check_orders", "flow_of"]
