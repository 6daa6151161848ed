"""The compiled loops of the search over stages in groups of devices (``solver``). Arrays in, arrays out.

Ideals of a family are sorted as for ``lattice.kernels``; a stage lies between two of them, a *pair*. What a pair costs at
either speed is found once (``price_pairs``); the sweeps and the programme of one group then run over the pairs alone. Tests
hold the whole equal to brute force.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from passes.solvers.kernels import compiled, nested, part
from passes.stages.lattice.kernel_arrays import Held
from passes.stages.lattice.kernels import combined_load, held_beside, keeps_demands

COMPUTE, IN_NEAR, IN_FAR, OUT_NEAR, OUT_FAR, AMOUNTS = range(6)
"""Columns of what a pair costs: seconds of compute, and of receiving and sending were all of it inside or between groups."""


class Ideals(NamedTuple):
    """A family and what its nodes and tensors cost: ``bits[N, W]``; ``compute`` (seconds) and ``own`` (bytes) of its nodes;
    cuts of ideals as for ``lattice.kernels``; of each tensor its pins, the seconds to receive and to send it inside a group
    (``near_in``, ``near_out``) and between groups (``far_in``, ``far_out``), and the bytes of a buffer for it; ``forced``:
    those that must be cut; ``beside``: bytes that are no sum over nodes. ``mode``: how compute and transfers add up."""

    mode: int
    bits: Any
    compute: Any
    own: Any
    cut_start: Any
    cut_end: Any
    cut: Any
    pin_ptr: Any
    pin: Any
    near_in: Any
    far_in: Any
    near_out: Any
    far_out: Any
    buffers: Any
    forced: Any
    beside: Held


class Pairs(NamedTuple):
    """Pairs (J, I): pair p of I, ``ends[I] <= p < ends[I + 1]``, begins at ``before[p]`` and costs ``amounts[p]``."""

    ends: Any
    before: Any
    amounts: Any


class Group(NamedTuple):
    """What a programme of one group fills in: ``value[d, I]``, ``closed[I]``, and how they were reached (``pair_of[d, I]``,
    ``with_replicas[d, I]``)."""

    value: Any
    closed: Any
    pair_of: Any
    with_replicas: Any


@part
def inside(bits: Any, end: int, begin: int, v: int) -> bool:
    """Whether node v lies between two ideals."""
    word = bits[end, v >> 6] & ~bits[begin, v >> 6]
    return bool((word >> np.uint64(v & 63)) & np.uint64(1))


@compiled
def price_pairs(first: int, most: float, room: float, ideals: Ideals, pairs: Pairs, max_tests: int, filled: int) -> Any:
    """Pairs (J, I), from ideal ``first`` on, of load at most ``most`` with every link as fast as inside, that hold at most
    ``room`` bytes. ``filled``: pairs so far.

    Returns (the ideal to go on from, pairs, tests); the pairs are -1 where there is no room for them."""
    mode, bits, compute, own, cut_start, cut_end, cut, pin_ptr, pin, near_in, far_in, near_out, far_out, buffers = ideals[:14]
    ends, before, amounts = pairs
    forced, most_beside = ideals.forced, ideals.beside.most
    count = len(bits)
    edge = 1e-12 * count + 1e-11 * compute[count - 1]
    tests = 0
    i = first
    while i < count and tests <= max_tests:
        for j in range(i - 1, -1, -1):
            busy = compute[i] - compute[j]
            if busy > most + edge:
                break
            tests += 1
            if own[i] - own[j] > room:
                continue
            if not nested(bits, j, bits, i) or (len(forced) and not keeps_demands(bits[j], bits[i], forced, pin_ptr, pin)):
                continue
            in_near, in_far, out_near, out_far, held = 0.0, 0.0, 0.0, 0.0, own[i] - own[j]
            for c in range(cut_start[j], cut_end[j]):
                h = cut[c]
                for e in range(pin_ptr[h] + 1, pin_ptr[h + 1]):
                    if inside(bits, i, j, pin[e]):
                        in_near += near_in[h]
                        in_far += far_in[h]
                        held += buffers[h]
                        break
            for c in range(cut_start[i], cut_end[i]):
                h = cut[c]
                if inside(bits, i, j, pin[pin_ptr[h]]):
                    out_near += near_out[h]
                    out_far += far_out[h]
            if held + most_beside > room and held <= room:
                held += held_beside(bits[j], bits[i], ideals.beside)
            if held > room or combined_load(mode, busy, in_near, out_near) > most + edge:
                continue
            if filled == len(before):
                return i, -1, tests
            before[filled] = j
            amounts[filled, COMPUTE] = busy
            amounts[filled, IN_NEAR], amounts[filled, IN_FAR] = in_near, in_far
            amounts[filled, OUT_NEAR], amounts[filled, OUT_FAR] = out_near, out_far
            filled += 1
        i += 1
        ends[i] = filled
    return i, filled, tests


@compiled
def sweep(mode: int, size: int, full: bool, most_replicas: int, trial: float, pairs: Pairs, value: Any) -> None:
    """Fills ``value[2, N, U]``: the least largest load of the stages up to an ideal (0) and from it on (1), inf over ``trial``;
    0 is filled in already where there are no stages. The state u is the devices so far, groups that were left early (none if
    they are ``full``) counted in full; a multiple of ``size`` where a group is closed.

    The first stage of a group pays the outer price for all that it receives, the last for all that it sends, the others
    the inner one: never more than what stages really pay."""
    ends, before, amounts = pairs
    count, states = value.shape[1], value.shape[2]
    last = ends[count]
    for backward in range(2):
        i = count - 1 if backward else 0
        for step in range(last):
            p = last - 1 - step if backward else step
            while p >= ends[i + 1]:
                i += 1
            while p < ends[i]:
                i -= 1
            j = before[p]
            for u in range(states - 1):
                if not backward and value[0, j, u] > trial:
                    continue
                taken = u % size
                into = amounts[p, IN_FAR] if taken == 0 else amounts[p, IN_NEAR]
                for r in range(1, min(most_replicas, size - taken) + 1):
                    for closing in range(2):
                        x = u + r
                        if closing:
                            x = u - taken + size
                        if closing != (taken + r == size) and (full or not closing):
                            continue
                        if backward and value[1, i, x] > trial:
                            continue
                        out = amounts[p, OUT_FAR] if closing else amounts[p, OUT_NEAR]
                        load = combined_load(mode, amounts[p, COMPUTE], into, out) / r
                        if load > trial:
                            continue
                        if backward:
                            value[1, j, u] = min(value[1, j, u], max(load, value[1, i, x]))
                        else:
                            value[0, i, x] = min(value[0, i, x], max(load, value[0, j, u]))


@compiled
def group_programme(
    begin: int,
    end: int,
    size: int,
    fewest: int,
    fewest_last: int,
    most_replicas: int,
    trial: float,
    ideals: Ideals,
    pairs: Pairs,
    group: Group,
) -> Any:
    """The stages of one group that begins at the ideal ``begin``, over pairs of loads at most ``trial``: on ``fewest`` to
    ``size`` devices, or on ``fewest_last`` at least where it ends the plan. What was made before the group is received at the
    outer price.

    With ``end`` >= 0 the group ends there, and what is read after it is sent at the outer price: ``closed[end]`` is the least
    largest load of its stages, exact; ``pair_of[d, I]``, ``with_replicas[d, I]`` say how ``value[d, I]`` was reached with d
    devices. With ``end`` < 0, ``closed[I]`` for every end I at once, where only the last stage pays the outer price for what it
    sends: at most the exact value. Returns (the ideal after the last one reached, pairs met)."""
    mode, bits, compute, _, cut_start, cut_end, cut, pin_ptr, pin, near_in, far_in, near_out, far_out = ideals[:13]
    ends, before, amounts = pairs
    value, closed, pair_of, with_replicas = group
    count = len(bits)
    last = count - 1 if end < 0 else end
    closed[begin : last + 1] = np.inf
    value[:, begin : last + 1] = np.inf
    value[0, begin] = 0.0
    reach = compute[begin] + size * trial * (1.0 + 1e-9)
    met = 0
    i = begin + 1
    while i <= last and compute[i] <= reach:
        if end >= 0 and not nested(bits, i, bits, end):
            i += 1
            continue
        for p in range(ends[i], ends[i + 1]):
            j = before[p]
            if j < begin:
                continue
            least = np.inf
            for d in range(size):
                least = min(least, value[d, j])
            if least > trial:
                continue
            met += 1
            into = amounts[p, IN_NEAR]
            for c in range(cut_start[begin], cut_end[begin]):
                h = cut[c]
                for e in range(pin_ptr[h] + 1, pin_ptr[h + 1]):
                    if inside(bits, i, j, pin[e]):
                        into += far_in[h] - near_in[h]
                        break
            out = amounts[p, OUT_NEAR]
            if end >= 0:
                for c in range(cut_start[end], cut_end[end]):
                    h = cut[c]
                    if inside(bits, i, j, pin[pin_ptr[h]]):
                        out += far_out[h] - near_out[h]
            load = combined_load(mode, amounts[p, COMPUTE], into, out)
            at_end = combined_load(mode, amounts[p, COMPUTE], into, amounts[p, OUT_FAR])
            for d in range(size):
                if value[d, j] > trial:
                    continue
                for r in range(1, min(most_replicas, size - d) + 1):
                    worst = max(value[d, j], load / r)
                    if worst <= trial and worst < value[d + r, i]:
                        value[d + r, i] = worst
                        pair_of[d + r, i] = p
                        with_replicas[d + r, i] = r
                    worst = max(value[d, j], at_end / r)
                    needed = fewest_last if i == count - 1 else fewest
                    if end < 0 and d + r >= needed and worst <= trial and worst < closed[i]:
                        closed[i] = worst
        i += 1
    if end >= 0:
        for d in range(fewest_last if end == count - 1 else fewest, size + 1):
            closed[end] = min(closed[end], value[d, end])
    return i, met
