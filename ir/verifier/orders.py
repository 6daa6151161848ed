"""INV22: rows of a schedule that the programs of its stages can follow."""

from __future__ import annotations

from ir.core.facets import FORWARD, phase_of
from ir.core.module import Plan, Schedule
from ir.ops.row_faults import faults
from ir.ops.rows import COMPUTE, UPDATE, Channel, Flow, with_gradients
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
    training = plan is not None and plan.in_steps
    sent = {
        op.get("channel"): phase_of(op.facets)
        for stage in findings.stages
        for op in findings.body(stage)
        if op.name == "comm.send"
    }
    channels = {}
    for stage in findings.stages:
        for op in findings.body(stage):
            if op.name == "comm.recv":
                number, made = int(op.get("channel")), sent.get(op.get("channel"), COMPUTE)
                channels[number] = Channel(int(op.get("peer")), stage.index, made, phase_of(op.facets))
    written_out = any(phase_of(op.facets) != FORWARD for stage in findings.stages for op in findings.body(stage))
    if training and plan is not None and not written_out:
        channels = with_gradients(channels, learned_channels(findings, plan))
    return Flow(
        tuple(stage.devices for stage in findings.stages),
        channels,
        plan.comm if plan is not None else "sum",
        schedule.slots,
        frozenset(stage.index for stage in findings.stages if stage.mesh),
        training,
        updates=frozenset(
            stage.index for stage in findings.stages if any(phase_of(op.facets) == UPDATE for op in findings.body(stage))
        ),
        serves=() if plan is None or findings.module.states else tuple(stage.serves for stage in plan.stages),
    )


def learned_channels(findings: Findings, plan: Plan) -> list[int]:
    """The channels whose value has a gradient, of a plan whose stages have no backward ops."""
    learning = {stage.index: stage.learning for stage in plan.stages}
    return [
        int(op.get("channel"))
        for stage in findings.stages
        for op in findings.body(stage)
        if op.name == "comm.recv" and op.results[0].name in learning.get(stage.index, ())
    ]
