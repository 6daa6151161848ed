"""Verifies PipeDream's objective: stages with replicas, load as the largest of compute and transfers, memory by schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from dnnc.workloads.verify_plan.claims import Device, Report, groups_of, microbatches_of, statement_faults
from dnnc.workloads.verify_plan.numbers import Malformed, same, some
from dnnc.workloads.verify_plan.workload import Id, Workload


def verify_pipedream(
    workload: Workload, devices: Sequence[Device], largest: Fraction | None, statement: Mapping[str, Any]
) -> Report:
    wrong: list[str] = []
    if not workload.both:
        raise Malformed("PipeDream's objective is of PipeDream profiles, which state both passes of a node")
    rows: dict[int, list[Device]] = {}
    for device in devices:
        if device.nodes:
            if isinstance(device.stage, bool) or not isinstance(device.stage, int):
                raise Malformed(f"device {device.name}: expected the number of its 'stage'", result=True)
            rows.setdefault(device.stage, []).append(device)
    stages = [rows[number] for number in sorted(rows)]
    for row in stages:
        wrong += [
            f"{other.name} and {row[0].name} are replicas and hold different nodes"
            for other in row
            if set(other.nodes) != set(row[0].nodes)
        ]
    where: dict[Id, int] = {}
    for index, row in enumerate(stages):
        for id_ in row[0].nodes:
            if id_ not in workload.nodes:
                wrong.append(f"{row[0].name} holds node {id_!r}, which the workload does not have")
            elif id_ in where:
                wrong.append(f"node {id_!r} is listed twice, on {stages[where[id_]][0].name} and on {row[0].name}")
            else:
                where[id_] = index
    if missing := [id_ for id_ in workload.nodes if id_ not in where]:
        wrong.append(f"{len(missing)} nodes are on no device: {some(missing)}")
    for maker, readers in workload.readers.items():
        for reader in sorted(readers, key=str):
            if maker in where and reader in where and where[reader] < where[maker]:
                names = stages[where[maker]][0].name, stages[where[reader]][0].name
                wrong.append(
                    f"the split is not contiguous: {names[0]} sends node {maker!r} back to {names[1]} (node {reader!r})"
                )
    used = sum(len(row) for row in stages)
    if workload.accelerators is not None and used > workload.accelerators:
        wrong.append(f"{used} devices are used, there are {workload.accelerators}")
    options = statement.get("options") if isinstance(statement.get("options"), dict) else {}
    assert isinstance(options, dict)
    if options.get("straight") and any(len(row) > 1 for row in stages):
        wrong.append("a stage has replicas, and the result says straight")
    groups = groups_of(statement, workload.bandwidth)
    loads: list[tuple[str, float, float]] = []
    objective, before, onward = Fraction(0), set[Id](), used
    for index, row in enumerate(stages):
        inside = {id_ for id_, at in where.items() if at == index}
        load, needed = _stage(workload, inside, before, len(row), onward, options, 0 < index < len(stages) - 1, groups)
        objective = max(objective, load)
        for device in row:
            if device.load is not None and not same(device.load, load):
                wrong.append(f"the load of {device.name} is {float(load):.12g}, not {float(device.load):.12g} as claimed")
            if device.memory is not None and abs(device.memory - needed) > used * (len(inside) + 1):
                wrong.append(
                    f"the memory of {device.name} is {float(needed):.12g} bytes, not {float(device.memory):.12g} as claimed"
                )
            if workload.memory is not None and needed > workload.memory:
                wrong.append(f"{device.name} needs {float(needed):.12g} bytes, it has {float(workload.memory):.12g}")
            loads.append((device.name, float(load), float(needed)))
        before |= inside
        onward -= len(row)
    if largest is not None and not same(largest, objective):
        wrong.append(f"the objective is {float(objective):.12g}, not {float(largest):.12g} as claimed")
    return Report(float(objective), loads, wrong + list(statement_faults(statement, largest)))


def _stage(
    workload: Workload,
    inside: set[Id],
    before: set[Id],
    replicas: int,
    onward: int,
    options: Mapping[str, Any],
    sends: bool,
    groups: tuple[int, Fraction] | None,
) -> tuple[Fraction, Fraction]:
    """Milliseconds per minibatch and bytes of a stage; ``onward``: machines from this stage to the end of the pipeline."""
    assert workload.bandwidth is not None, "a profile has a bandwidth"
    share = workload.bandwidth * replicas
    synced, received, sent = (share * _faster(groups, onward - replicas - low, onward + high) for low, high in _ENDS)
    weights = sum((workload.nodes[v].size for v in inside), Fraction(0))
    compute = sum((workload.both[v] for v in inside), Fraction(0)) / replicas
    load = compute + 4 * (replicas - 1) * weights / synced / replicas
    load = max(load, 2 * _cut(workload, before) / received)
    if sends:
        load = max(load, 2 * _cut(workload, before | inside) / sent)
    schedule, microbatches = str(options.get("schedule", "stash")), microbatches_of(options)
    if schedule not in _SCHEDULES:
        raise Malformed(f"options.schedule is {schedule!r}, expected one of {', '.join(_SCHEDULES)}", result=True)
    flight = math.ceil(Fraction(onward, replicas))
    if microbatches and schedule in ("flush", "gpipe"):
        flight = microbatches if schedule == "gpipe" else min(flight, microbatches)
    copies = {"stash": flight, "2bw": 2}.get(schedule, 1)
    return load, copies * weights + flight * sum((workload.output[v] for v in inside), Fraction(0))


_SCHEDULES = ("stash", "2bw", "flush", "gpipe")

_ENDS = ((0, 0), (0, 1), (1, 0))
"""Machines after and before a stage that take part when it synchronises, receives and sends."""


def _faster(groups: tuple[int, Fraction] | None, first: int, end: int) -> Fraction:
    """Bandwidth among machines ``first`` to ``end`` - 1, counted from the last, over that between groups."""
    if groups is None or len({machine // groups[0] for machine in range(first, end)}) > 1:
        return Fraction(1)
    return groups[1]


def _cut(workload: Workload, ideal: set[Id]) -> Fraction:
    """Bytes of outputs that are produced inside ``ideal`` and read outside, each once."""
    return sum((workload.output[v] for v in ideal if workload.readers[v] - ideal), Fraction(0))
