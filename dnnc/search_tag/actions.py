"""Actions: what TAG's search chooses for an op group, and what its choices for two op groups make their tensors travel.

An action is a non-empty set of device groups, on all of whose devices the ops of the op group run, and how:

- ``all_reduce``: every device has an equal part of the batch; gradients of weights are summed by a collective;
- ``ps``: the same, but each gradient is summed on a parameter server, which sends back the weight. The weights are spread
  evenly over the devices, which are all servers;
- ``duplicate``: every device does the whole batch, and nothing is summed;
- ``model``: each op runs on one of the devices, whole.

On one device these are the same, so that only the first counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from dnnc.search_tag.device_groups import Machines


class How(IntEnum):
    """How replicas of an op group agree; the number is its place among the features."""

    ALL_REDUCE = 0
    PS = 1
    DUPLICATE = 2
    MODEL = 3

    @property
    def splits(self) -> bool:
        """Whether devices have parts of the batch."""
        return self in (How.ALL_REDUCE, How.PS)


@dataclass(frozen=True, slots=True)
class Action:
    """``groups``: numbers of device groups, ascending."""

    groups: tuple[int, ...]
    how: How

    def __str__(self) -> str:
        return f"{self.how.name.lower()} on {'+'.join(map(str, self.groups))}"


def actions(machines: Machines) -> tuple[Action, ...]:
    """Every action on these machines; the first is ``all_reduce`` over all devices."""
    every = range(len(machines.groups))
    subsets = [chosen for size in reversed(every) for chosen in itertools.combinations(every, size + 1)]
    return tuple(
        Action(chosen, how) for chosen in subsets for how in How if how is How.ALL_REDUCE or machines.count(chosen) > 1
    )


def moved(machines: Machines, source: Action, target: Action) -> Mapping[tuple[int, int], float]:
    """What part of a tensor goes from one device group to another between its maker's and its reader's action, by both groups;
    above 1 where several devices get all of it. Between the devices of one group: the group twice."""
    before, after = machines.count(source.groups), machines.count(target.groups)
    whole = target.how is How.DUPLICATE and after > 1
    if source.how is How.DUPLICATE and before > 1:
        return _from_copies(machines, source, target, whole, after)
    if source.how.splits and target.how.splits and not whole:
        return _overlaps(machines, source, target)
    found = {}
    for a, b in itertools.product(source.groups, target.groups):
        makers, readers = (len(machines.groups[number].devices) for number in (a, b))
        part = makers / before * (readers if whole else readers / after)
        found[a, b] = part * (1 - 1 / makers) if a == b else part
    return {pair: part for pair, part in found.items() if part}


def _from_copies(machines: Machines, source: Action, target: Action, whole: bool, after: int) -> dict[tuple[int, int], float]:
    """Of a tensor that each of its makers has: the others get theirs from the group that is quickest to send it."""
    found = {}
    for b in target.groups:
        if b not in source.groups:
            nearest = max(source.groups, key=lambda a: (machines.channel(a, b).bandwidth, -a))
            readers = len(machines.groups[b].devices)
            found[nearest, b] = float(readers) if whole else readers / after
    return found


def _overlaps(machines: Machines, source: Action, target: Action) -> dict[tuple[int, int], float]:
    """Of a tensor that lies in equal parts of the batch: what of a maker's part the readers need and do not have."""
    if source.groups == target.groups:
        return {}
    found = {}
    makers, readers = _parts(machines, source), _parts(machines, target)
    for a, b in itertools.product(source.groups, target.groups):
        common = _common((makers[a][0][0], makers[a][-1][1]), (readers[b][0][0], readers[b][-1][1]))
        if a == b:
            common -= sum(map(_common, makers[a], readers[b]))
        if common > 1e-12:
            found[a, b] = common
    return found


def _parts(machines: Machines, action: Action) -> dict[int, list[tuple[float, float]]]:
    """Begin and end, from 0 to 1, of the part of the batch of each device, by device group."""
    count, at = machines.count(action.groups), 0
    found = {}
    for number in action.groups:
        size = len(machines.groups[number].devices)
        found[number] = [(k / count, (k + 1) / count) for k in range(at, at + size)]
        at += size
    return found


def _common(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


__all__ = ["Action", "How", "actions", "moved"]
