"""The first screen of the page in sentences: what the plan is, how good it is, what limits it, what would help.

Every number is that of the plan or of its tables. What a change would give is said of this plan alone ("if sending cost
nothing"); what another plan could give, only as far as the lower bound proves it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dnnc.report.page.blocks import Blocks
from dnnc.report.page.texts import counted, listed, span
from dnnc.report.plan import EVEN, groups_of_bound, idle_devices, idle_text, only_kind, searched_text, unknown_sizes
from dnnc.report.timeline import TimelineSummary
from ir.core.module import Mesh, Module, Plan, PlanStage
from ir.core.names import bare
from ir.core.topology import Topology
from ir.text.units import bytes_text, count_text, outcome_text, percent_text, ratio_text, seconds_text
from passes.stages.load import load, seconds_on, stage_seconds, step_period

WORTH = 0.02
"""The least share of the time that is worth a sentence."""
SMALL = 0.005
"""The least gap that is worth a longer search."""
FULL = 0.9
"""The share of its memory from which a device counts as nearly full."""
WHATIF = "'dnnc whatif MODEL -t TOPOLOGY' predicts what more or fewer devices give"


@dataclass(frozen=True)
class Facts:
    """What the sentences are made of. ``media``: seconds per microbatch of each shared medium; ``measured``: seconds of a run
    that compare with the plan's value, None without one; ``verdict``: of a check, empty without one."""

    module: Module
    plan: Plan
    topology: Topology
    blocks: Blocks
    summary: TimelineSummary | None
    media: Mapping[str, float]
    measured: float | None = None
    verdict: str = ""

    @cached_property
    def busy(self) -> dict[str, float]:
        """Seconds per microbatch of each device that runs a stage."""
        seconds: dict[str, float] = {}
        for stage in self.plan.stages:
            for device in stage.devices:
                seconds[device] = seconds.get(device, 0.0) + seconds_on(stage, device, self.plan.comm)
        return seconds

    @cached_property
    def slowest(self) -> list[PlanStage]:
        """The stage that takes longest where samples run alone, else the stages of the device that is busy longest."""
        if self.plan.minimises.alone or not self.busy:
            return sorted(self.plan.stages, key=lambda stage: -stage_seconds(stage, self.plan.comm))[:1]
        device = max(self.busy, key=lambda name: self.busy[name])
        return [stage for stage in self.plan.stages if device in stage.devices]

    def limit(self, stage: PlanStage) -> int | None:
        """Bytes of the smallest device of a stage; None where no device has a limit."""
        limits = [self.topology.memory(self.topology.device(name)) for name in stage.devices]
        return min((limit for limit in limits if limit is not None), default=None)


def answers(facts: Facts) -> list[dict[str, Any]]:
    """The four questions, each with the sentences that answer it."""
    return [
        {"question": "What is the plan?", "sentences": list(_what(facts))},
        {"question": "How good is it?", "sentences": list(_how_good(facts))},
        {"question": "What limits it?", "sentences": list(_limits(facts))},
        {"question": "What would help?", "sentences": list(_helps(facts))},
    ]


# -- what it is --------------------------------------------------------------------------------------------------------


def _what(facts: Facts) -> Iterator[str]:
    plan, every = facts.plan, len(facts.topology.devices)
    used = len(facts.busy)
    on = f"{used} of the {every} devices" if used < every else f"all {every} devices" if every > 1 else "the one device"
    does = "trains" if plan.minimises.trains else "runs"
    ops, stages = counted(sum(stage.ops for stage in plan.stages), "operator"), counted(len(plan.stages), "stage")
    yield f"It {does} {bare(facts.module.name)} ({ops}) as {stages} on {on} of {bare(facts.topology.name)}."
    yield from _forms(plan, {mesh.name: mesh for mesh in facts.module.of_type(Mesh)})
    if plan.in_steps:
        flush = "" if plan.flush else "; the pipeline is never emptied, so stages work with slightly older weights"
        yield f"A training step works on {counted(plan.microbatches, 'microbatch', 'microbatches')}{flush}."
        if update := dict(plan.certificate).get("update"):
            yield f"Its update: {update}."
    elif plan.minimises.trains:
        yield "It trains on a stream of microbatches that is not parted into steps."
    elif plan.minimises.streams and len(plan.stages) > 1:
        yield "Several microbatches are in flight at once: each stage works on another one."
    elif plan.minimises.alone:
        yield "It is made for one sample that runs alone."
    if tokens := dict(plan.certificate).get("tokens"):  # of a language model: what the command prints of them, a line for each
        yield f"It makes {tokens.partition('; ')[0]}."


def _forms(plan: Plan, meshes: Mapping[str, Mesh]) -> Iterator[str]:
    """What the devices of a stage do together."""
    split = [stage for stage in plan.stages if stage.mesh]
    copied = [stage for stage in plan.stages if not stage.mesh and len(stage.devices) > 1]
    if split:
        shapes = dict.fromkeys("x".join(str(size) for _, size in meshes[stage.mesh].axes) for stage in split)
        which = "Its" if len(plan.stages) == 1 else "Each stage's" if len(split) == len(plan.stages) else "Some stages'"
        yield f"{which} tensors are split over a mesh of devices ({', '.join(shapes)}), which work on each sample together."
    if copied:
        most = max(len(stage.devices) for stage in copied)
        if len(plan.stages) == 1:
            more = ", the fast ones more of them" if copied[0].steps else ""
            yield f"Each of {most} devices holds the whole model, and they take samples in turn{more}."
        else:
            which = f"stages {span([str(stage.index) for stage in copied])}" if len(copied) > 1 else f"stage {copied[0].index}"
            yield f"Up to {most} devices hold the same part ({which}) and take samples in turn."


# -- how good ----------------------------------------------------------------------------------------------------------


def _how_good(facts: Facts) -> Iterator[str]:
    plan = facts.plan
    rate = f", which is {count_text(1 / plan.value)} a second" if plan.value > 0 and plan.minimises.streams else ""
    yield f"It takes {seconds_text(plan.value)} {plan.minimises.per}{rate}."
    alone = seconds_text(plan.single)
    if not math.isfinite(plan.single):
        yield "No single device has the memory for the whole model."
    elif plan.single < plan.value * (1 - EVEN):
        yield f"It is slower than the best single device, which would take {alone}."
    elif plan.value > 0 and plan.single > plan.value * (1 + EVEN):
        yield f"It has {ratio_text(plan.single / plan.value)} the speed of the best single device, which would take {alone}."
    else:
        yield f"It is as fast as the best single device ({alone})."
    yield _proof(plan)
    if facts.measured is not None:
        ratio = f", {ratio_text(facts.measured / plan.value)} of what was predicted" if plan.value > 0 else ""
        yield f"A run measured {seconds_text(facts.measured)} {plan.minimises.per}{ratio}."
    if searched := searched_text(plan):
        yield f"Searched were {searched}."
    if facts.verdict:
        yield f"A check of its programs: {facts.verdict}."


def _proof(plan: Plan) -> str:
    bound = seconds_text(plan.bound)
    among = only_kind(plan)
    kind = f"among {among}" if among else "of the kinds that were searched"
    if unknown := unknown_sizes(plan):
        return f"How good it is cannot be said: {unknown}."
    if plan.status == "optimal":
        gap = f" (gap {percent_text(plan.gap)})" if plan.gap > 0 else ""
        return f"It is optimal: no plan {kind} takes less than {bound} on these machines, which is proven{gap}."
    if plan.bound <= 0:
        return "No lower bound is known, so a better plan may exist, and how much better is not known."
    return f"It is {outcome_text(plan.status, plan.gap)}: no plan {kind} takes less than {bound}, which is proven."


# -- what limits it ----------------------------------------------------------------------------------------------------


def _limits(facts: Facts) -> Iterator[str]:
    plan, slowest = facts.plan, facts.slowest
    if not slowest:
        return
    names = span(slowest[0].devices) or "the device"
    yield from _pace(facts, names)
    parts = {
        "computing": sum(stage.compute for stage in slowest),
        "exchanging parts of tensors inside the mesh": sum(stage.collectives for stage in slowest),
        "receiving from and sending to other stages": sum(stage.receive + stage.send for stage in slowest),
    }
    every = math.fsum(parts.values())
    told = [f"{seconds_text(s)} ({percent_text(s / every)}) {title}" for title, s in parts.items() if s > WORTH * every]
    if told:
        who = "each device" if len(slowest[0].devices) > 1 else names
        yield f"Of each microbatch that it works on, {who} spends {listed(told)}."
    yield from _within(facts, [stage.index for stage in slowest])
    if plan.in_steps and (sync := max(stage.sync for stage in plan.stages)) > WORTH * plan.value:
        yield f"Updating the weights, with the sums of their gradients, takes up to {seconds_text(sync)} of a step."


def _pace(facts: Facts, names: str) -> Iterator[str]:
    """What sets the pace: a link, a stage or the filling of the pipeline."""
    plan, slowest = facts.plan, facts.slowest
    which = f"stage{'s' if len(slowest) > 1 else ''} {listed([str(stage.index) for stage in slowest])}"
    link = max(facts.media, key=lambda name: facts.media[name], default="")
    busiest = seconds_text(step_period(plan))
    if plan.minimises.streams and link and facts.media[link] > step_period(plan) * (1 + EVEN):
        yield f"The link {link} sets the pace: it is busy for {seconds_text(facts.media[link])} of each microbatch."
        yield f"No device is busy for more than {busiest}."
    elif len(plan.stages) == 1:
        exchanging = slowest[0].collectives > slowest[0].compute
        yield (
            "Its devices exchange parts of tensors for longer than they compute." if exchanging else "It is limited by compute."
        )
    elif plan.minimises.alone:
        seconds = seconds_text(stage_seconds(slowest[0], plan.comm))
        yield f"Of the stages, {which} on {names} takes longest, {seconds}."
    else:
        yield f"The slowest device sets the pace: {names} with {which} takes {busiest} per microbatch."
    if plan.in_steps and facts.summary is not None and len(plan.stages) > 1 and facts.summary.bubble > WORTH:
        bubble = percent_text(facts.summary.bubble)
        yield f"The devices wait {bubble} of a step (the bubble), for the most part while the pipeline fills and drains."


def _within(facts: Facts, stages: Sequence[int]) -> Iterator[str]:
    """Which operators and collectives of these stages take most of the time."""
    compute: dict[str, float] = defaultdict(float)
    exchange: dict[str, float] = defaultdict(float)
    for layer in (layer for run in facts.blocks.runs if run.stage in stages for layer in run.layers):
        for row in layer.rows:
            if row.op.dialect != "dnnc":  # a unit of a profile says nothing of what it does
                compute[row.op.name.partition(".")[2]] += row.compute
            for one in row.collectives:
                exchange[f"{one.kind.replace('_', '-')} along mesh axis {one.axis}"] += one.seconds
    for title, seconds in (("compute", compute), ("exchange", exchange)):
        every = math.fsum(seconds.values())
        if every > 0:
            name = max(seconds, key=lambda key: seconds[key])
            yield f"Of the {title}, {name} takes {percent_text(seconds[name] / every)} ({seconds_text(seconds[name])})."


# -- what would help ---------------------------------------------------------------------------------------------------


def _helps(facts: Facts) -> Iterator[str]:
    plan, topology = facts.plan, facts.topology
    if unknown_sizes(plan):
        yield "Known sizes: 'dnnc compile --inputs FILE.npz' measures them, '--dim NAME=NUMBER' binds a dimension."
    elif plan.status != "optimal" and plan.bound > 0 and plan.gap >= SMALL:
        most = ratio_text(plan.value / plan.bound)
        yield f"Perhaps a longer search (--time-limit): a better plan would have at most {most} the speed."
    if restricted := dict(plan.certificate).get("restricted"):
        by, _, without = restricted.partition("; ")
        yield f"Fewer options: {by.removeprefix('by ')} restrict the plan. Without them: {without.removeprefix('without, ')}."
    yield from _ideals(facts)
    if plan.in_steps and plan.flush and len(plan.stages) > 1 and facts.summary is not None and facts.summary.bubble > WORTH:
        yield f"More microbatches per step (--microbatches, now {plan.microbatches}): filling and draining would weigh less."
    tight = {stage.index: (stage, limit) for stage in plan.stages if (limit := facts.limit(stage))}
    tight = {index: pair for index, pair in tight.items() if pair[0].memory > FULL * pair[1]}
    if tight:
        stage, limit = max(tight.values(), key=lambda pair: pair[0].memory / pair[1])
        share = percent_text(stage.memory / limit)
        yield f"More memory: stage {stage.index} holds {bytes_text(stage.memory)} of {bytes_text(limit)} ({share})."
    if idle := idle_devices(plan, topology):
        reason = idle_text(plan, topology).rpartition("(")[2].removesuffix(")")
        run = "runs" if len(idle) == 1 else "run"
        yield f"Not the {counted(len(idle), 'device')} that {run} nothing ({span(idle)}): {reason}."
    kinds = groups_of_bound(plan) or "these kinds"
    better = f"no better plan of {kinds} exists here, so " if plan.status == "optimal" else ""
    yield f"Other machines, or another model or batch: {better}{WHATIF}."


def _ideals(facts: Facts) -> Iterator[str]:
    """What the plan of a stream would take with free links, or with devices that are busy equally long."""
    plan = facts.plan
    if not plan.minimises.streams or plan.value <= 0:
        return
    free, busy = _free_transfers(plan), list(facts.busy.values())
    if 0 < free < plan.value * (1 - WORTH):
        gain = ratio_text(plan.value / free)
        yield f"Faster links: this plan would take {seconds_text(free)} if sending cost nothing, {gain} the speed at most."
    even = math.fsum(busy) / len(busy) if busy else 0.0
    if len(plan.stages) > 1 and 0 < even < plan.value * (1 - WORTH):
        groups = f" of {of}" if (of := groups_of_bound(plan)) else ""
        why = f", but no plan{groups} does that" if plan.status == "optimal" else ""
        yield f"A more even split: it would take {seconds_text(even)} if its devices were busy equally long{why}."


def _free_transfers(plan: Plan) -> float:
    """Seconds per microbatch of the slowest device if nothing that it sends or receives took time."""
    busy: dict[tuple[str, ...], float] = defaultdict(float)
    for stage in plan.stages:
        step = load(plan.comm, stage.working, stage.receive, stage.send)
        part = stage.compute / step if step else 1.0
        busy[stage.devices or (str(stage.index),)] += stage_seconds(stage, plan.comm) * part
    return max(busy.values(), default=0.0)
