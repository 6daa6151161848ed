"""Cuts and pins that contradict each other or the graph: refused before a search, with the ops that are in the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ir.core.diagnostics import Diagnostic, Infeasible
from passes.model.stages.problem import Problem
from passes.model.stages.reduce import Groups

_SHOWN = 8
"""Ops of a way that are told."""


def check_separable(fine: Problem, groups: Groups, pins: Mapping[int, str]) -> None:
    """Raises Infeasible when a cut or a pin asks to part ops that must share a stage: those of one group."""
    faults = []
    label = {op: g for g, members in enumerate(groups) for op in members}
    for h in fine.forced:
        inside = [v for v in fine.consumers[h] if label[v] == label[int(fine.producer[h])]]
        if inside:
            maker, reader = fine.names[int(fine.producer[h])], fine.names[inside[0]]
            faults.append(
                Diagnostic(
                    f"{maker} and {reader} must share a stage, so no cut falls between them",
                    where=f"--cut {fine.tensor_names[h]}",
                    hint="a quantisation, a shared weight or a value of unknown size (--inputs measures it) joins them",
                )
            )
    for members in groups:
        devices = sorted({pins[op] for op in members if op in pins})
        if len(devices) > 1:
            names = ", ".join(f"{fine.names[op]}={pins[op]}" for op in members if op in pins)
            faults.append(
                Diagnostic(
                    f"{names}: these ops must share a stage, hence a device", where="--pin", hint="pin them to one device"
                )
            )
    if faults:
        raise Infeasible(faults)


def check_order(fine: Problem, groups: Groups, pins: Mapping[int, str]) -> None:
    """Raises Infeasible where data would leave a device and come back to it, by these pins: each device runs one stage, and
    stages follow each other."""
    label = {op: g for g, members in enumerate(groups) for op in members}
    following = [set[int]() for _ in groups]
    for h, readers in enumerate(fine.consumers):
        maker = label[int(fine.producer[h])]
        following[maker].update(label[int(v)] for v in readers if label[int(v)] != maker)
    ways: dict[str, dict[str, list[int]]] = {}
    pinned = {label[op]: op for op in pins}
    for op, device in sorted(pins.items()):
        for way in _ways(label[op], following, pinned):
            ways.setdefault(device, {}).setdefault(pins[pinned[way[-1]]], way)
    circle = _circle({device: sorted(others.keys() - {device}) for device, others in ways.items()})
    if not circle:
        return
    told = []
    for here, there in zip(circle, [*circle[1:], circle[0]], strict=True):
        way = ways[here][there]
        names = [f"{fine.names[pinned[g]]}={pins[pinned[g]]}" if g in pinned else fine.names[groups[g][0]] for g in way]
        told.append(" -> ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], "..", names[-1]]))
    message = f"these pins close a cycle of devices, which run a stage each: {'; '.join(told)}"
    hint = "pin the ops between to the same device, or let data flow back and forth: --split any"
    raise Infeasible(message, where="--pin", hint=hint)


def _ways(start: int, following: Sequence[set[int]], ends: Mapping[int, int]) -> list[list[int]]:
    """A shortest way from one group to each of ``ends`` that it reaches."""
    before: dict[int, int] = {start: start}
    waiting, found = deque([start]), []
    while waiting:
        group = waiting.popleft()
        if group in ends and group != start:
            way = [group]
            while way[-1] != start:
                way.append(before[way[-1]])
            found.append(way[::-1])
        for other in sorted(following[group]):
            if other not in before:
                before[other] = group
                waiting.append(other)
    return found


def _circle(following: Mapping[str, Sequence[str]]) -> list[str]:
    """Names that follow each other in a circle, a shortest one; empty where there is none."""
    best: list[str] = []
    for start in sorted(following):
        before: dict[str, str] = {}
        waiting = deque([start])
        while waiting and start not in before:
            name = waiting.popleft()
            for other in following.get(name, ()):
                if other not in before:
                    before[other] = name
                    waiting.append(other)
        if start in before:
            circle = [before[start]]
            while circle[-1] != start:
                circle.append(before[circle[-1]])
            best = min(best or circle[::-1], circle[::-1], key=len)
    return best


__all__ = ["check_order", "check_separable"]
