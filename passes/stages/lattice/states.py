"""Which devices a plan has used up to a boundary: the states of the programme.

A state is a vector of devices used, one digit per pool of interchangeable devices, numbered in mixed radix. Where there are
too many vectors, stages take devices in the order of a *sequence* instead, any of them left out: feasible plans, no longer all.

``ahead`` and ``behind`` price what is used and what is left; a *support* is the set of kinds among them. A node of a prefix is
on one of the kinds ahead, so its weight there is the least over these alone: with no CPU ahead nothing is at a CPU's price.

A state with a device more, unused, is never better (``idle``): what it allows later, the one with fewer allows too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from passes.stages.arrays import Ints
from passes.stages.problem import Floats, Problem, pools, taken_from

MOST_STATES = 4096
"""Vectors of devices used beyond which only sequences are tried: nine different devices and more."""
MOST_SUPPORTS = 8
"""Supports beyond which only single kinds are told apart from all kinds together."""


@dataclass(frozen=True)
class States:
    """What of the devices is used, numbered, with what is ahead and behind at the given prices.

    ``next[S, T]``: the state with one more stage of a kind, -1 where there is none; ``ahead[S]``: price of the devices
    used; ``behind[S]``: of those that may still be used; ``final[S]``: the state may be the last; ``used[S]``: devices
    (at least); ``every``: no way to give devices to stages is left out. ``idle[S, D]``: see the module, -1 where there is none.
    ``with_ahead[S]``, ``with_behind[S]``: places in ``supports`` (kinds, ascending) of what is used and left;
    ``room_ahead[S]``, ``room_behind[S]``: bytes that these devices hold together (inf: one of them is unlimited)."""

    next: Ints
    ahead: Floats
    behind: Floats
    final: np.ndarray[Any, np.dtype[np.bool_]]
    used: Ints
    every: bool
    idle: Ints
    supports: tuple[tuple[int, ...], ...]
    with_ahead: Ints
    with_behind: Ints
    room_ahead: Floats
    room_behind: Floats

    @cached_property
    def before(self) -> tuple[Ints, Ints, Ints]:
        """What ``next`` says, by the state after: pointers, states before, kinds."""
        state, kind = np.nonzero(self.next >= 0)
        after = self.next[state, kind]
        order = np.argsort(after, kind="stable")
        pointers = np.zeros(len(self.used) + 1, np.int64)
        np.cumsum(np.bincount(after, minlength=len(self.used)), out=pointers[1:])
        return pointers, state[order].astype(np.int64), kind[order].astype(np.int64)


def states(problem: Problem, price: Floats, sequence: Sequence[int] = ()) -> States:
    """All vectors of devices used, in mixed radix; or, with a ``sequence`` of kinds (one entry per device), only stages on
    its devices in its order, any of them left out. Where stages may have replicas and their number is prescribed, that of the
    stages so far is a digit too. Vectors of more devices than a plan may have are left out."""
    if sequence:
        return _sequence_states(problem, price, sequence)
    pool_of = pools(problem.kinds)
    alone = list(dict.fromkeys(pool_of))
    counted = problem.stages is not None and len(alone) < len(problem.kinds)
    limits = [problem.kinds[k].count for k in alone] + [problem.stages or 0] * counted
    strides = [math.prod(limit + 1 for limit in limits[:place]) for place in range(len(limits))]
    most = np.array(limits)
    numbers = np.arange(math.prod(limit + 1 for limit in limits))
    digits = (numbers[:, None] // np.array(strides)) % (most + 1)
    few = digits[:, : len(alone)].sum(axis=1) <= problem.devices
    place_of = np.where(few, np.cumsum(few) - 1, -1)
    numbers, digits = numbers[few], digits[few]
    total = len(numbers)
    devices = digits[:, : len(alone)]
    used = devices.sum(axis=1)
    made = digits[:, -1] if counted else used
    bound = problem.devices if problem.stages is None else problem.stages
    following = np.full((total, len(problem.kinds)), -1, np.int64)
    more = made < bound
    left = most[: len(alone)] - devices
    for k, (kind, sources) in enumerate(zip(problem.kinds, taken_from(problem.kinds), strict=True)):
        after, wanted = numbers + (strides[-1] if counted else 0), np.full(total, kind.replicas)
        for place in map(alone.index, sources):
            taken = np.minimum(left[:, place], wanted)
            after, wanted = after + taken * strides[place], wanted - taken
        fits = more & (wanted == 0) & (used + kind.replicas <= problem.devices) & (kind.replicas >= problem.replicas)
        following[fits, k] = place_of[after[fits]]
    remaining = np.where(more, problem.devices - used, 0) if counted else np.maximum(bound - made, 0)
    behind = np.zeros(total)
    rates = price[alone].tolist()
    for place in sorted(range(len(alone)), key=lambda place: -rates[place]):
        taken = np.minimum(left[:, place], remaining)
        behind += taken * rates[place]
        remaining = remaining - taken
    final = np.ones(total, np.bool_) if problem.stages is None else made == problem.stages
    idle = np.full((total, 1), -1)
    if problem.stages is None:
        spare = (left > 0) & (used < problem.devices)[:, None]
        idle = np.where(spare, place_of[np.where(spare, numbers[:, None] + strides[: len(alone)], 0)], -1)
    supports, (with_ahead, with_behind) = _supports(alone, (devices > 0, left > 0))
    memory = np.array([np.inf if (limit := problem.kinds[k].memory) is None else float(limit) for k in alone])
    room_ahead, room_behind = (np.where(count > 0, np.maximum(count, 1) * memory, 0.0).sum(axis=1) for count in (devices, left))
    return States(
        next=following,
        ahead=devices @ price[alone],
        behind=behind,
        final=final,
        used=used,
        every=True,
        idle=idle.astype(np.int64),
        supports=supports,
        with_ahead=with_ahead,
        with_behind=with_behind,
        room_ahead=room_ahead,
        room_behind=room_behind,
    )


def _supports(alone: Sequence[int], present: Sequence[Any]) -> tuple[tuple[tuple[int, ...], ...], list[Ints]]:
    """The sets of kinds among ``present[..][S, P]`` (which pools have devices), all kinds first, and the place of each state's.
    A state without devices counts with all kinds."""
    everything = (1 << len(alone)) - 1
    masks = [(rows @ (1 << np.arange(len(alone)))).tolist() for rows in present]
    found = sorted({mask for rows in masks for mask in rows} - {0, everything})
    if len(found) >= MOST_SUPPORTS:
        found = [mask for mask in found if mask.bit_count() == 1]
    known = [everything, *found]
    place = {mask: index for index, mask in enumerate(known)}
    supports = tuple(tuple(k for bit, k in enumerate(alone) if mask >> bit & 1) for mask in known)
    return supports, [np.array([place.get(mask, 0) for mask in rows], np.int64) for rows in masks]


def sequences(problem: Problem) -> list[tuple[int, ...]]:
    """What ``Tables`` takes as ``sequence``: nothing where every vector of devices used can be carried at every ideal, else
    orders of devices to try, each a kind per device; speed is that of the whole model. Where a plan may not have all devices,
    these are the fastest."""
    alone = sorted(set(pools(problem.kinds)))
    stages = 1 if problem.stages is None or len(alone) == len(problem.kinds) else problem.stages + 1
    if stages * math.prod(problem.kinds[k].count + 1 for k in alone) <= MOST_STATES:
        return [()]
    seconds = np.where(np.isfinite(problem.seconds), problem.seconds, np.nan)
    speed = np.nan_to_num(np.nanmean(np.column_stack([seconds, np.zeros(len(problem.kinds))]), axis=1))
    # Without replicas no plan has more stages than nodes.
    most = problem.size if len(alone) == len(problem.kinds) else problem.devices
    sources = taken_from(problem.kinds)
    near = {k: (sources[k][-1], -len(sources[k])) for k in alone}  # those that a stage may have together, the last kind first
    given = [k for k in sorted(alone, key=near.__getitem__) for _ in range(min(problem.kinds[k].count, max(most, 1)))]
    fast = sorted(given, key=lambda k: (speed[k], near[k]))
    if problem.most is not None:
        fast = fast[: problem.most]
        given = sorted(fast, key=near.__getitem__)
    return list(dict.fromkeys([tuple(given), tuple(fast), tuple(reversed(fast))]))


def _sequence_states(problem: Problem, price: Floats, sequence: Sequence[int]) -> States:
    """State (p, u): the devices before position p were used or left out, u of them used (0 when their number is free)."""
    devices, kinds, pool_of, sources = len(sequence), len(problem.kinds), pools(problem.kinds), taken_from(problem.kinds)
    levels = 1 if problem.stages is None else problem.stages + 1
    step = 0 if levels == 1 else 1
    width = np.array([kind.replicas for kind in problem.kinds])
    takes = np.zeros((kinds, kinds), np.bool_)
    for k, own in enumerate(sources):
        takes[list(own), k] = True
    following = np.full(((devices + 1) * levels, kinds), -1, np.int64)
    nearest, run = np.full(kinds, -1), np.zeros(kinds, np.int64)  # of each kind: after its next place; its devices from here on
    for position in range(devices - 1, -1, -1):
        run = np.where(takes[sequence[position]], run + 1, 0)
        nearest = np.where((run > 0) & (width <= run) & (width >= problem.replicas), position + width, nearest)
        for level in range(levels - step):
            following[position * levels + level] = np.where(nearest >= 0, nearest * levels + level + step, -1)
    spent = np.concatenate([[0.0], np.cumsum(price[list(sequence)])])
    ahead, behind = np.repeat(spent, levels), np.repeat(spent[-1] - spent, levels)
    used = np.tile(np.arange(levels), devices + 1) if levels > 1 else np.arange(devices + 1)
    final = np.ones(len(following), np.bool_) if problem.stages is None else used == problem.stages
    numbers = np.arange(len(following))
    idle = np.where(numbers + levels < len(following), numbers + levels, -1)[:, None]
    whole = tuple(dict.fromkeys(pool_of))
    zeros = np.zeros(len(following), np.int64)
    endless = np.full(len(following), np.inf)
    return States(following, ahead, behind, final, used, False, idle, (whole,), zeros, zeros, endless, endless)
