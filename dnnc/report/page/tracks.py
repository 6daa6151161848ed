"""Timelines for the page: the bars of each device, devices that do the same on one track.

The members of a mesh do the same at the same time, so one track stands for all of them. What a stage exchanges inside a pass is
summed by kind of collective: the cost model adds these seconds up and does not say how they alternate with compute.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnc.build.timeline import predicted
from dnnc.build.trace import TraceEvent
from dnnc.report.page.blocks import Blocks
from dnnc.report.page.texts import exact, span
from dnnc.report.timeline import ROUNDING, TimelineSummary, summarize_timeline
from ir.core.module import Module, Plan, Schedule, Stage
from ir.ops.rows import BACKWARD, COMPUTE, RECEIVE, SEND, shown
from passes.timeline.memory import Held, memory_over_time
from passes.timeline.simulate import simulate

MOST_BARS = 12_000
"""Bars of a timeline that a page holds: those that start first."""
COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Timeline:
    """``groups``: devices that do the same, by the first of them. ``memory``: of these first ones."""

    groups: Mapping[str, tuple[str, ...]]
    events: tuple[TraceEvent, ...]
    summary: TimelineSummary
    memory: Mapping[str, Held]


def timeline(module: Module, blocks: Blocks) -> Timeline | None:
    """The predicted timeline of a module, None where it has no schedule."""
    plan, schedule = module.first(Plan), module.first(Schedule)
    if plan is None or schedule is None or not all(stage.devices for stage in plan.stages):
        return None
    groups = alike(plan, schedule)
    exchanged = _exchanged(plan, blocks)
    simulated = [event for event in simulate(module) if event.device in groups]
    drawn = predicted(module.without(Stage), simulated=simulated)  # without programs, which give a bar to each collective
    events = tuple(part for event in drawn for part in _parts(event, exchanged))
    memory = memory_over_time(module, simulated)
    every = shown(schedule)
    summary = summarize_timeline(
        events,
        every,
        period=schedule.period / schedule.microbatches if schedule.periodic else None,
        memory={device: memory[device].peak for device in groups},
    )
    whole = tuple(replace(one, device=name) for one in summary.devices for name in groups[one.device])
    return Timeline(groups, events, replace(summary, devices=whole), {name: memory[name] for name in groups})


def alike(plan: Plan, schedule: Schedule) -> dict[str, tuple[str, ...]]:
    """Devices that do the same at the same time, by the first of each group: members of a mesh with the same row."""
    meshes: dict[str, tuple[int, ...]] = defaultdict(tuple)
    for stage in plan.stages:
        for device in stage.devices if stage.mesh else ():
            meshes[device] = (*meshes[device], stage.index)
    groups: dict[object, list[str]] = {}
    for device, actions in schedule.rows:
        key = (meshes[device], actions) if device in meshes else device
        groups.setdefault(key, []).append(device)
    return {devices[0]: tuple(devices) for devices in groups.values()}


def _exchanged(plan: Plan, blocks: Blocks) -> dict[tuple[int, str], list[tuple[str, float]]]:
    """Seconds of each kind of collective of a stage per microbatch, in its forward and in its backward pass."""
    sums: dict[tuple[int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run in blocks.runs:
        for layer in run.layers:
            for one in layer.collectives:
                if plan.minimises.trains and one.summed:
                    continue  # gradients of weights: once a step, in the update
                sums[run.stage, BACKWARD if one.backward else COMPUTE][one.kind] += one.seconds
    return {key: sorted(kinds.items()) for key, kinds in sums.items()}


def _parts(event: TraceEvent, exchanged: Mapping[tuple[int, str], Sequence[tuple[str, float]]]) -> Iterable[TraceEvent]:
    """The bar of a pass without its collectives, and a bar of each kind of these behind it."""
    stage = int(dict(event.args)["stage"])
    kinds = exchanged.get((stage, event.kind), ()) if not event.lane else ()
    end = max(event.start, event.end - sum(seconds for _, seconds in kinds))
    yield replace(event, end=end) if kinds else event
    for kind, seconds in kinds:
        until = min(event.end, end + seconds)
        args = (*event.args, ("collective", kind))
        yield TraceEvent(event.track, f"{kind} of {event.name}", COLLECTIVE, end, until, args)
        end = until


def tracks_json(events: Iterable[TraceEvent], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Bars by track, each ``[start, seconds, kind, stage, microbatch, name]`` with the numbers of kind and name in their lists;
    ``left_out``: bars behind the first ``MOST_BARS``."""
    ordered = sorted(_joined(events), key=lambda event: (event.start, event.end))
    kept, kinds, names = ordered[:MOST_BARS], dict[str, int](), dict[str, int]()
    rows: dict[tuple[str, str], list[list[float | int]]] = {}
    for event in kept:
        args = dict(event.args)
        bar = [
            exact(event.start),
            exact(event.end - event.start),
            kinds.setdefault(event.kind, len(kinds)),
            _number(args.get("stage")),
            _number(args.get("microbatch")) if event.kind != "U" else -1,
            names.setdefault(event.name, len(names)),
        ]
        rows.setdefault((event.track, event.lane), []).append(bar)
    order = {device: place for place, device in enumerate(groups)}
    tracks = [
        {"devices": span(groups.get(device, (device,))), "lane": lane, "bars": rows[device, lane]}
        for device, lane in sorted(rows, key=lambda key: (order.get(key[0], len(order)), key))
    ]
    end = max((event.end for event in ordered), default=0.0)
    return {
        "tracks": tracks,
        "kinds": list(kinds),
        "names": list(names),
        "end": exact(end),
        "shown": exact(end if len(kept) == len(ordered) else kept[-1].start),
        "left_out": len(ordered) - len(kept),
    }


def _joined(events: Iterable[TraceEvent]) -> Iterable[TraceEvent]:
    """The events, with transfers of a stage's microbatch that follow each other without a pause as one: a stage may send
    hundreds of tensors."""
    last: dict[tuple[str, str], TraceEvent] = {}
    count: dict[tuple[str, str], int] = {}
    for event in events:
        key, before = (event.track, event.lane), last.get((event.track, event.lane))
        same = before is not None and before.kind == event.kind and before.args[:2] == event.args[:2]
        if before is not None and same and event.kind in (SEND, RECEIVE) and event.start - before.end <= ROUNDING * event.end:
            count[key] += 1
            number = dict(event.args).get("microbatch", "")
            name = f"{count[key]} x {event.kind} {dict(event.args).get('stage', '')}.{number}"
            last[key] = replace(before, name=name, end=event.end)
            continue
        if before is not None:
            yield before
        last[key], count[key] = event, 1
    yield from last.values()


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def memory_json(timeline_: Timeline, plan: Plan, limits: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """Of each group of devices what it holds over time: ``weights`` and ``buffers`` all the time, and ``steps``, from so many
    seconds on so many bytes in all."""
    rows = []
    for device, names in timeline_.groups.items():
        held = timeline_.memory[device]
        own = [stage for stage in plan.stages if device in stage.devices]
        weights = min(held.constant, sum(stage.weights for stage in own))
        steps = [(exact(at), size) for at, size in held.steps[:MOST_BARS]]
        changes = [step for before, step in itertools.pairwise([(0.0, -1), *steps]) if step[1] != before[1]]
        rows.append(
            {
                "devices": span(names),
                "weights": weights,
                "buffers": held.constant - weights,
                "steps": changes,
                "peak": held.peak,
                "limit": limits[device],
            }
        )
    return rows
