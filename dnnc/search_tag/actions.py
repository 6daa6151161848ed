"""Actions: the choices of TAG's search for an op group, and the tensors that move between op groups with two actions.

An action is a non-empty set of device groups, whose devices all run the op group, and one of four ways:

- ``all_reduce``: every device computes an equal part of the batch; gradients of weights are summed by a collective;
- ``ps``: the same, but each gradient is summed on a parameter server, which sends back the weight. The weights are spread
  evenly over the devices, each of which is a server;
- ``duplicate``: every device computes the whole batch, and nothing is summed;
- ``model``: each op runs on one of the devices, for the whole batch.

On one device the four are equal, so only ``all_reduce`` is an action.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from dnnc.search_tag.device_groups import Machines


class How(IntEnum):
    """The way in which devices share an op group; its number is its index among the features."""

    ALL_REDUCE = 0
    PS = 1
    DUPLICATE = 2
    MODEL = 3

    @property
    def splits(self) -> bool:
        """Whether each device computes a part of the batch."""
        return self in (How.ALL_REDUCE, How.PS)


@dataclass(frozen=True, slots=True)
class Action:
    """``groups``: numbers of device groups, ascending."""

    groups: tuple[int, ...]
    how: How

    def __str__(self) -> str:
        return f"{self.how.name.lower()} on {'+'.join(map(str, self.groups))}"


def actions(machines: Machines) -> tuple[Action, ...]:
    """All actions on these machines; the first is ``all_reduce`` over all devices."""
    every = range(len(machines.groups))
    subsets = [chosen for size in reversed(every) for chosen in itertools.combinations(every, size + 1)]
    return tuple(
        Action(chosen, how) for chosen in subsets for how in How if how is How.ALL_REDUCE or machines.count(chosen) > 1
    )


def moved(machines: Machines, source: Action, target: Action) -> Mapping[tuple[int, int], float]:
    """For each pair of device groups, the share of a tensor that moves from the first, with the action of its producer, to the
    second, with that of its reader. It exceeds 1 if several devices get the whole tensor. A pair of equal groups: between
    devices of that group."""
    before, after = machines.count(source.groups), machines.count(target.groups)
    whole = target.how is How.DUPLICATE and after > 1
    if source.how is How.DUPLICATE and before > 1:
        return _from_copies(machines, source, target, whole, after)
    if source.how.splits and target.how.splits and not whole:
        return _overlaps(machines, source, target)
    shares = {}
    for a, b in itertools.product(source.groups, target.groups):
        makers, readers = (len(machines.groups[number].devices) for number in (a, b))
        part = makers / before * (readers if whole else readers / after)
        shares[a, b] = part * (1 - 1 / makers) if a == b else part
    return {pair: part for pair, part in shares.items() if part}


def _from_copies(machines: Machines, source: Action, target: Action, whole: bool, after: int) -> dict[tuple[int, int], float]:
    """Shares of a tensor that every producer holds: other groups receive it from the group with the fastest channel."""
    shares = {}
    for b in target.groups:
        if b not in source.groups:
            nearest = max(source.groups, key=lambda a: (machines.channel(a, b).bandwidth, -a))
            readers = len(machines.groups[b].devices)
            shares[nearest, b] = float(readers) if whole else readers / after
    return shares


def _overlaps(machines: Machines, source: Action, target: Action) -> dict[tuple[int, int], float]:
    """Shares of a tensor split along the batch: what readers need of a producer's part and do not hold."""
    if source.groups == target.groups:
        return {}
    shares = {}
    makers, readers = _parts(machines, source), _parts(machines, target)
    for a, b in itertools.product(source.groups, target.groups):
        common = _common((makers[a][0][0], makers[a][-1][1]), (readers[b][0][0], readers[b][-1][1]))
        if a == b:
            common -= sum(map(_common, makers[a], readers[b]))
        if common > 1e-12:
            shares[a, b] = common
    return shares


def _parts(machines: Machines, action: Action) -> dict[int, list[tuple[float, float]]]:
    """First and last position, from 0 to 1, of each device's part of the batch, by device group."""
    count, at = machines.count(action.groups), 0
    shares = {}
    for number in action.groups:
        size = len(machines.groups[number].devices)
        shares[number] = [(k / count, (k + 1) / count) for k in range(at, at + size)]
        at += size
    return shares


def _common(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
