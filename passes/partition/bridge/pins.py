"""Cuts and pins: those that contradict each other or the graph are refused before a search, with the ops that are in the way;
what cuts between two stages leave open is a smaller problem."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence

from ir.core.diagnostics import Infeasible
from passes.partition.faults import CutAgainstPins, CutJoined, PinsApart, PinsInCircle
from passes.stages.problem import Problem
from passes.stages.reduce import Groups, ordered

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
            faults.append(CutJoined(maker, reader).at(f"--cut {fine.tensor_names[h]}"))
    for members in groups:
        devices = sorted({pins[op] for op in members if op in pins})
        if len(devices) > 1:
            names = ", ".join(f"{fine.names[op]}={pins[op]}" for op in members if op in pins)
            faults.append(PinsApart(names).at("--pin"))
    if faults:
        raise Infeasible(faults)


def check_order(fine: Problem, groups: Groups, pins: Mapping[int, str]) -> None:
    """Raises Infeasible where data would leave a device and come back to it, by these pins: each device runs one stage, and
    stages follow each other."""
    label = {op: g for g, members in enumerate(groups) for op in members}
    following = _following(fine, groups)
    pinned = {label[op]: op for op in pins}
    ways: dict[str, dict[str, list[int]]] = {}
    for op, device in sorted(pins.items()):
        for way in _ways(label[op], following, pinned):
            ways.setdefault(device, {}).setdefault(pins[pinned[way[-1]]], way)
    circle = _circle({device: sorted(others.keys() - {device}) for device, others in ways.items()})
    if not circle:
        return
    pairs = zip(circle, [*circle[1:], circle[0]], strict=True)
    told = [_told(fine, groups, pins, ways[here][there]) for here, there in pairs]
    raise Infeasible(PinsInCircle("; ".join(told)), where="--pin")


def check_cuts(fine: Problem, groups: Groups, pins: Mapping[int, str], *, ordered: bool) -> None:
    """Raises Infeasible where a cut parts ops that are pinned to one device, each of which runs one stage. ``ordered``: stages
    follow each other, so a cut parts all that is before it from all that is behind it."""
    label = {op: g for g, members in enumerate(groups) for op in members}
    following = _following(fine, groups) if ordered else [set[int]() for _ in groups]
    before = [set[int]() for _ in groups]
    for group, others in enumerate(following):
        for other in others:
            before[other].add(group)
    faults = []
    for h in fine.forced:
        sources = _nearest(label[int(fine.producer[h])], before, pins, label)
        for reader in dict.fromkeys(label[int(v)] for v in fine.consumers[h]):
            ends = _nearest(reader, following, pins, label)
            if both := sorted(sources.keys() & ends.keys()):
                way = _told(fine, groups, pins, [*sources[both[0]][::-1], *ends[both[0]]])
                faults.append(CutAgainstPins(both[0], way).at(f"--cut {fine.tensor_names[h]}"))
                break
    if faults:
        raise Infeasible(faults)


def on_two_sides(fine: Problem, groups: Groups) -> Groups:
    """The groups of plans of at most two stages: all that comes before a cut is in the first, so one group, and all that comes
    behind one in the second. The groups as they are where a cut lies behind another: no such plan has both."""
    label = {op: g for g, members in enumerate(groups) for op in members}
    following = _following(fine, groups)
    before = [set[int]() for _ in groups]
    for group, others in enumerate(following):
        for other in others:
            before[other].add(group)
    first = _reached({label[int(fine.producer[h])] for h in fine.forced}, before)
    second = _reached({label[int(v)] for h in fine.forced for v in fine.consumers[h]}, following)
    if not first or not second or first & second:
        return groups
    sides = [[op for group in sorted(side) for op in groups[group]] for side in (first, second)]
    return ordered(fine, [*sides, *(members for group, members in enumerate(groups) if group not in first | second)])


def _reached(starts: set[int], following: Sequence[set[int]]) -> set[int]:
    """The groups that ways from ``starts`` lead to, these included."""
    found, waiting = set(starts), sorted(starts)
    while waiting:
        new = following[waiting.pop()] - found
        found |= new
        waiting += sorted(new)
    return found


def _nearest(
    start: int, following: Sequence[set[int]], pins: Mapping[int, str], label: Mapping[int, int]
) -> dict[str, list[int]]:
    """By device, a shortest way to a group with an op that is pinned to it, which may be ``start`` itself."""
    pinned = {label[op]: pins[op] for op in pins}
    found = {pinned[start]: [start]} if start in pinned else {}
    for way in _ways(start, following, pinned):
        found.setdefault(pinned[way[-1]], way)
    return found


def _following(fine: Problem, groups: Groups) -> list[set[int]]:
    """Of each group those that read what it makes."""
    label = {op: g for g, members in enumerate(groups) for op in members}
    following = [set[int]() for _ in groups]
    for h, readers in enumerate(fine.consumers):
        maker = label[int(fine.producer[h])]
        following[maker].update(label[int(v)] for v in readers if label[int(v)] != maker)
    return following


def _told(fine: Problem, groups: Groups, pins: Mapping[int, str], way: Sequence[int]) -> str:
    """The ops of a way, for a person; of a group its pinned one."""
    names = []
    for group in way:
        op = next((op for op in groups[group] if op in pins), groups[group][0])
        names.append(f"{fine.names[op]}={pins[op]}" if op in pins else fine.names[op])
    return " -> ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], "..", names[-1]])


def _ways(start: int, following: Sequence[set[int]], ends: Container[int]) -> list[list[int]]:
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
