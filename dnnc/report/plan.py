"""Shows a plan: which ops run on which device, their cost, and the proven bound.

Seconds are per microbatch: one run of the model, in training with its backward pass. The share of a stage is its seconds over
those of the slowest device, which determines the throughput of the pipeline. Lines fit 80 columns for names of ordinary length.
"""

from __future__ import annotations

import math

from dnnc.report.tables import Table, columns
from ir.core.module import Plan, PlanStage
from ir.core.topology import Topology
from ir.text.units import bytes_text, count_text, outcome_text, percent_text, ratio_text, seconds_text
from ir.text.witness import BOUND_FOR, CHOSEN, OF_THESE, ON_MESHES_FOR
from passes.graph.sizes import NOT_SHOWN, SIZES
from passes.stages.load import stage_seconds, step_period

EVEN = 1e-6
"""Relative distance at which seconds count as equal."""
FEW = 4
"""Most lines about turns."""
LONG = 100
"""Most characters about shares that are shown; the plan's certificate has all."""


def plan_table(plan: Plan) -> Table:
    """One row per stage: device, ops, seconds (compute and transfers in it), memory, share of the bottleneck."""
    seconds = [stage_seconds(stage, plan.comm) for stage in plan.stages]
    of_device: dict[object, float] = {}
    for stage, total in zip(plan.stages, seconds, strict=True):
        key = stage.devices or stage.index
        of_device[key] = of_device.get(key, 0.0) + total
    slowest = max(of_device.values(), default=0.0)
    rows = []
    for stage, total in zip(plan.stages, seconds, strict=True):
        rows.append(
            (
                str(stage.index),
                _devices_text(stage),
                str(stage.ops),
                seconds_text(total),
                seconds_text(stage.compute),
                seconds_text(stage.receive + stage.send),
                bytes_text(stage.memory),
                percent_text(total / slowest) if slowest > 0 else "-",
            )
        )
    return Table(columns("stage <device ops seconds compute transfers memory share"), tuple(rows))


def _devices_text(stage: PlanStage) -> str:
    """``cpu0``, ``cpu0,cpu1``, or first, last and number of more replicas; the device type if no device is chosen."""
    names = stage.devices
    span = ",".join(names) or f"({stage.device_type})"
    return span if len(names) <= 3 else f"{names[0]}..{names[-1]} ({len(names)} replicas)"


def plan_headline(plan: Plan) -> str:
    """A line each for the objective compared with one device, the bound, the kinds and shares among which the plan is the best,
    and the cost of options that restrict it."""
    count = len(plan.stages)
    rate = f" ({count_text(1 / plan.value)} a second)" if plan.value > 0 and plan.minimises.streams else ""
    used = len({device for stage in plan.stages for device in stage.devices})
    on = f" on {used} device{'s' if used != 1 else ''}" if 0 < used < count else ""
    stages = f"{count} stage{'s' if count != 1 else ''}{on}"
    lines = [f"{plan.objective}: {seconds_text(plan.value)} {plan.minimises.per}{rate}, {stages}"]
    if plan.minimises.streams and not plan.in_steps and (busiest := step_period(plan)) < plan.value * (1 - EVEN):
        lines.append(f"  a link that stages share sets the pace: no device is busy for more than {seconds_text(busiest)}")
    lines += [f"  {line}" for line in turns_lines(plan)]
    if plan.microbatches > 1 or (plan.in_steps and count > 1):
        lines.append(f"  {_step_text(plan)}")
    if samples := dict(plan.certificate).get("samples"):
        lines.append(f"  {samples}")
    if (hidden := math.fsum(stage.hidden for stage in plan.stages)) > EVEN * plan.value:
        lines.append(f"  {seconds_text(hidden)} more of sums of gradients travel beside the backward pass")
    if update := dict(plan.certificate).get("update"):
        lines.append(f"  update: {update}")
    if synced := dict(plan.certificate).get("synchronised"):
        lines.append(f"  {synced}")
    if math.isfinite(plan.single):
        one = "one device with all these groups" if plan.minimises.decodes else "one device"
        faster = f"{ratio_text(plan.single / plan.value)} the speed of {one}" if plan.value > 0 else f"against {one}"
        lines.append(f"  {faster} ({seconds_text(plan.single)})" + (", if sizes were known" if unknown_sizes(plan) else ""))
        if callers := dict(plan.certificate).get("callers"):
            lines.append(f"  {callers} {plan.minimises.per}")
    elif used != 1:
        caches = " with the caches of these groups" if plan.minimises.decodes else ""
        lines.append(f"  the model{caches} fits no single device")
    lines += [f"  {line}" for line in dict(plan.certificate).get("tokens", "").split("; ") if line]
    if seconds := dict(plan.certificate).get("profile"):
        lines.append(f"  of a profile: {seconds}")
    if origins := dict(plan.certificate).get("seconds"):
        lines.append(f"  seconds of the model: {origins}")
    if uncounted := dict(plan.certificate).get("uncounted"):
        lines.append(f"  not counted: {uncounted}")
    if cores := dict(plan.certificate).get("cores"):
        lines.append(f"  {cores}: no faster than as many workers as cores")
    lines.append(f"  {proof_text(plan)}")
    if searched := searched_text(plan):
        lines.append(f"  searched: {searched}")
    if meshes := dict(plan.certificate).get("meshes"):
        lines.append(f"  meshes: {meshes}")
    if restricted := dict(plan.certificate).get("restricted"):
        by, _, without = restricted.partition("; ")
        lines += [f"  restricted {by}", f"    {without}"]
    shares = dict(plan.certificate).get("shares", "")
    if "," in shares:  # of several
        lines.append(f"  shares {shares}" if len(shares) < LONG else f"  shares {shares[:LONG]}...")
    return "\n".join(lines)


def searched_text(plan: Plan) -> str:
    """Which search found the plan, and what the others came to; empty if there was one search."""
    own, _, others = dict(plan.certificate).get("kinds", "").partition("; ")
    return f"{own} (this plan); {others}" if ": " in others else "; ".join(filter(None, (own, others)))


def only_kind(plan: Plan) -> str:
    """The kind of plans that was searched where it was one, and the certificate says which were not; else empty."""
    own, _, others = dict(plan.certificate).get("kinds", "").partition("; ")
    return own if others and ": " not in others else ""


def _step_text(plan: Plan) -> str:
    """The microbatches of a training step, in words."""
    count, period = plan.microbatches, seconds_text(step_period(plan))
    many = f"{count} microbatch{'es' if count > 1 else ''} a step"
    if not plan.flush:
        each = f"{period} each on the slowest device"
        return f"{many}, without a flush: {each}; stages work with weights that lack the newest updates"
    if len(plan.stages) > 1:
        more = sum(stage.replicas for stage in plan.stages) - 1
        if math.isclose((count + more) * step_period(plan), plan.value, rel_tol=EVEN):
            return f"{many}, one every {period}, and {more} more to fill and drain"
        waiting = percent_text(1 - count * step_period(plan) / plan.value) if plan.value else "-"
        return f"{many}, {period} each on the slowest device, which waits {waiting} of the step"
    (stage,) = plan.stages
    each = seconds_text(step_period(plan) - stage.sync / count)
    synced = f", {seconds_text(stage.sync)} once to update the weights" if stage.sync else ""
    return f"{many}, one after the other, {each} each{synced}"


def idle_devices(plan: Plan, topology: Topology) -> tuple[str, ...]:
    """Devices that run no stage, in the topology's order."""
    used = {device for stage in plan.stages for device in stage.devices}
    return tuple(device.name for device in topology.devices if device.name not in used)


def turns_lines(plan: Plan) -> list[str]:
    """For stages whose replicas have unlike turns, how many of a round each has; none of a decoder, whose groups are told
    elsewhere. Of many stages the first few."""
    lines = []
    for stage in plan.stages if not plan.minimises.decodes else ():
        of_count: dict[int, list[str]] = {}
        for replica, name in enumerate(stage.devices):
            of_count.setdefault(stage.serves.count(replica), []).append(name)
        told = [
            f"{', '.join(names) if len(names) <= 3 else f'{names[0]}, {names[1]} and {len(names) - 2} more'} "
            + (f"have {count} each" if len(names) > 1 else f"has {count}")
            for count, names in sorted(of_count.items(), reverse=True)
        ]
        if stage.serves:
            lines.append(f"turns of stage {stage.index}: of {len(stage.serves)} microbatches {'; '.join(told)}")
    return lines if len(lines) <= FEW else [*lines[: FEW - 1], f"turns of {len(lines) - FEW + 1} more stages are in the plan"]


def idle_text(plan: Plan, topology: Topology, reason: str = "") -> str:
    """The devices that run no stage and why: ``reason``, or what is proven of plans that use them. Empty if all are used."""
    idle = idle_devices(plan, topology)
    if not idle:
        return ""
    them = "it" if len(idle) == 1 else "them"
    if not reason and "plan" in dict(plan.certificate):
        reason = f"the replayed plan leaves {them} out"
    if not reason and not (reason := dict(plan.certificate).get("idle", "")):
        of = f" of {groups}" if (groups := groups_of_bound(plan)) else ""
        of += f" among {among}" if (among := only_kind(plan)) else ""
        proven = plan.status == "optimal" and dict(plan.certificate).get("bound") != OF_THESE
        reason = f"no plan{of} with {them} is faster" if proven else f"no faster plan with {them} was found"
    names = ", ".join(idle) if len(idle) <= 3 else f"{idle[0]}, {idle[1]} and {len(idle) - 2} more"
    return f"  not used: {names} ({reason})"


def proof_text(plan: Plan) -> str:
    """The proven distance of the plan from the optimum, in words."""
    if unknown := unknown_sizes(plan):
        told = f"{unknown}: this plan may be far off"
        return told if NOT_SHOWN in told else f"{told}\n  measure them with --inputs FILE.npz, or bind dimensions with --dim"
    among = only_kind(plan)
    gap = f", gap {percent_text(plan.gap)}" if plan.status == "optimal" else ""
    words = outcome_text(plan.status, plan.gap) + (f" among {among}" if among else "")
    if dict(plan.certificate).get("bound") == OF_THESE:
        words += " with these stages on these meshes"
    if groups := groups_of_bound(plan):
        every = BOUND_FOR in dict(plan.certificate)[CHOSEN]
        words += f" for {groups} alone" if every else f" (of plans on meshes, of those with {groups} alone)"
    return f"{words}: lower bound {seconds_text(plan.bound)}{gap}"


def groups_of_bound(plan: Plan) -> str:
    """The groups of a decoder that alone are proven to have no better plan, or none on meshes; empty where others are too."""
    told = dict(plan.certificate).get(CHOSEN, "")
    return (told.partition(BOUND_FOR)[2] or told.partition(ON_MESHES_FOR)[2]).removesuffix(" alone")


def unknown_sizes(plan: Plan) -> str:
    """Number of sizes that were unknown to the plan, with an example; empty if all were known."""
    return dict(plan.certificate).get(SIZES, "")
