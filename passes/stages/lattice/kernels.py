"""The compiled loops of the dynamic programme over a family of ideals. Arrays in, arrays out.

*The programme* takes any family of ideals sorted by weight (all of them, or a sample: then its value is an upper bound).
The cost of a stage I - J comes from the two boundaries: sent are the tensors cut by I and made outside J; received are
those cut by J, less those whose readers all lie outside I, and these are cut by I as well.

*Bounds on a stage from another.* Where seconds p and transfers are added, write B(I) for the transfers of the cut of I. For J
inside J' inside I: what I - J' parts and I - J does not is cut by J' and not by J; what is cut by J and not by J' is parted by
I - J and not by I - J'. So load(I - J) >= load(I - J') + p(J' - J) + B(J) - B(J'). In the same way, for J inside I' inside I:
load(I - J) >= load(I' - J) + p(I - I') + B(I) - B(I'). And a stage parts at least what only one of its boundaries cuts:
load(I - J) >= p(I - J) + |B(I) - B(J)|. Most pairs are refused by these, from pairs priced before.

Tests hold a slow, obvious twin of each kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.solvers.kernels import compiled, inlined, part
from passes.stages.lattice.kernel_arrays import Aim, Devices, Held, Ideals, Table, Tensors


@compiled
def possible_states(
    trial: float,
    slack: float,
    apart: bool,
    sums: Any,
    marks: Any,
    columns: tuple[int, int, int],
    total: Any,
    ahead: Any,
    behind: Any,
    with_ahead: Any,
    with_behind: Any,
    own_total: float,
    room_ahead: Any,
    room_behind: Any,
    allowed: Any,
) -> Any:
    """``allowed[N, S]``: whether the ideal may be a boundary in the state when no load exceeds ``trial`` (``tables`` says why).

    ``columns`` are ``first_sum``, ``first_mark`` and ``own_sum``. Column ``first_sum`` + x of ``sums`` is the weight at the
    prices of support x, with ``total[x]`` that of all nodes; columns ``first_mark`` + 2x and + 2x + 1 of ``marks`` are what the
    devices before and after the boundary must add for its cut. ``with_ahead[S]``, ``with_behind[S]``: the support of the
    devices used and left; ``ahead[S]``, ``behind[S]``: their price. Column ``own_sum`` is bytes of weights with one reader,
    ``own_total`` in all, and must fit what the devices on either side hold. ``apart``: compute and transfers are not added.
    Returns the number of ideals with a state, marked in the last column."""
    first_sum, first_mark, own_sum = columns
    count, states = sums.shape[0], ahead.shape[0]
    most = trial * (1.0 + slack)
    found = 0
    for i in range(count):
        some = False
        for s in range(states):
            x, y = with_ahead[s], with_behind[s]
            done, sent = sums[i, first_sum + x], marks[i, first_mark + 2 * x]
            left, received = total[y] - sums[i, first_sum + y], marks[i, first_mark + 2 * y + 1]
            capacity = most * ahead[s] + slack * (total[x] + sent)
            room = most * behind[s] + slack * (total[y] + received)
            if apart:
                fits = done <= capacity and sent <= capacity and left <= room and received <= room
            else:
                fits = done + sent <= capacity and left + received <= room
            own = sums[i, own_sum]
            fits = fits and own <= room_ahead[s] and own_total - own <= room_behind[s]
            allowed[i, s] = fits
            some = some or fits
        allowed[i, states] = some
        found += some
    return found


@part
def keeps_demands(begin: Any, end: Any, forced: Any, pin_ptr: Any, pin: Any) -> bool:
    """Whether no tensor that must be cut has its maker and a reader between two ideals."""
    one = np.uint64(1)
    for f in range(forced.shape[0]):
        h = forced[f]
        u = pin[pin_ptr[h]]
        if ((end[u >> 6] & ~begin[u >> 6]) >> np.uint64(u & 63)) & one:
            for e in range(pin_ptr[h] + 1, pin_ptr[h + 1]):
                v = pin[e]
                if (end[v >> 6] >> np.uint64(v & 63)) & one:
                    return False
    return True


@part
def held_beside(begin: Any, end: Any, held: Held) -> Any:
    """Bytes of ``Held`` of a stage between two ideals."""
    one = np.uint64(1)
    memory = np.int64(0)
    for r in range(held.shared_bytes.shape[0]):
        for e in range(held.shared_ptr[r], held.shared_ptr[r + 1]):
            v = held.shared[e]
            if ((end[v >> 6] & ~begin[v >> 6]) >> np.uint64(v & 63)) & one:
                memory += held.shared_bytes[r]
                break
    peak = np.int64(0)
    for w in range(begin.shape[0]):
        word = end[w] & ~begin[w]
        v = 64 * w
        while word:
            if word & one:
                peak = max(peak, held.live[v])
            word >>= one
            v += 1
    return memory + peak


@inlined
def least_beside(
    k: int, i: int, j: int, q: int, anchor: int, under: bool, over: bool, slack: float, busy: Any, moving: Any, raw: Any
) -> Any:
    """What the stage from ideal j to ideal i costs at least on kind k, by the bounds of the module: ``under``, from the
    stage of j to q inside i; ``over``, from the stage of ``anchor`` to i, where j is inside ``anchor``."""
    low = 0.0
    edge = slack * (busy[i, k] + 2 * moving[i, k] + 2 * moving[j, k])
    if under:
        low = raw[j, k] + busy[i, k] - busy[q, k] + moving[i, k] - moving[q, k]
        edge += slack * moving[q, k]
    if over:
        low = max(low, raw[anchor, k] + busy[anchor, k] - busy[j, k] + moving[j, k] - moving[anchor, k])
        edge += slack * moving[anchor, k]
    return low - edge


@inlined
def add_cut(
    i: int,
    j: int,
    bits: Any,
    cut: Any,
    first: int,
    last: int,
    pin_ptr: Any,
    pin: Any,
    lane_in: Any,
    lane_out: Any,
    transfer: Any,
    size: Any,
    received: float,
    moved: Any,
) -> Any:
    """Corrects ``moved[2, P]``, the transfers of the whole cut of ideal j by lane and port class, and ``received``, bytes of
    buffers for it, to those of the stage from j to ideal i, which cuts ``cut[first:last]``; returns the bytes."""
    for c in range(first, last):
        h = cut[c]
        old = False
        new = False
        for e in range(pin_ptr[h], pin_ptr[h + 1]):
            v = pin[e]
            if (bits[j, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
                old = True
                if new:
                    break
            elif (bits[i, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
                new = True
                if old:
                    break
        if not old:
            for p in range(transfer.shape[0]):
                moved[lane_out[h], p] += transfer[p, h]
        elif not new:
            received -= size[h]
            for p in range(transfer.shape[0]):
                moved[lane_in[h], p] -= transfer[p, h]
    return received


@part
def combined_load(comm: int, compute: float, receive: float, send: float) -> float:
    """``problem.load`` (``comm``: 0 sum, 1 overlap, 2 duplex)."""
    if comm == 0:
        return float(compute + receive + send)
    if comm == 1:
        return float(max(compute, receive + send))
    return float(max(compute, receive, send))


@inlined
def combined(mode: int, compute: float, first: float, second: float, shares: Any) -> float:
    """The load of a stage: ``compute`` and transfers of two lanes, or, for SIDES, two sides that count ``shares``."""
    if mode == 0:
        found = compute + first
    elif mode == 1:
        found = max(compute, first)
    elif mode == 2:
        found = max(compute, max(first, second))
    else:
        found = shares[0] * first + shares[1] * second
    return found


@compiled
def solve_family(
    aim: Aim, ideals: Ideals, tensors: Tensors, devices: Devices, held: Held, start: int, max_tests: int, table: Table
) -> Any:
    """Least possible largest load over chains of ideals of the family, for every vector of devices used; with ``additive``, the
    least possible sum of transfers instead. Works from ideal ``start`` until over ``max_tests`` pairs were met.

    Returns (the ideal to go on from, pairs met, pairs priced)."""
    most, floor, mode, additive, shares, caps, slack = aim
    bits, weight, compute, lacking, boundary, busy, moving, bytes_before, own_before, turns = ideals[:10]
    cut_start, cut_end, cut, allowed = ideals[10:]
    pin_ptr, pin, lane_in, lane_out, transfer, size, forced, turn_cost, turn_side = tensors
    port, price, limit, handover, pred_ptr, pred, pred_kind, idle = devices
    value, parent, via, link, head, stamp, memo, priced_at, raw = table
    count, states, kinds, infinite = weight.shape[0], idle.shape[0], port.shape[0], np.inf
    classes, most_beside, demands = transfer.shape[0], held.most, forced.shape[0] > 0
    edge = slack * weight[count - 1]
    added = mode == 0 or mode == 3
    lanes = boundary.shape[1] // max(classes, 1)
    moved = np.zeros((2, max(classes, 1)))
    least = np.full(states, infinite)
    i, met, priced = start, 0, 0
    while i < count and met <= max_tests:
        anchor = -1
        least[:] = infinite
        for x in range(states):
            if allowed[i, x] and least[x] > floor:
                best = least[x]
                for step in range(pred_ptr[x], pred_ptr[x + 1]):
                    s, t = pred[step], pred_kind[step]
                    reach = weight[i] - most * price[t] - edge
                    j = head[s] if head[s] != i else link[i, s]  # no stage is empty
                    while j >= 0 and weight[j] >= reach and best > floor:
                        before = value[j, s]
                        if before >= best:
                            j = link[j, s]
                            continue
                        met += 1
                        if stamp[j] != i:
                            stamp[j] = i
                            # Cheap reasons to refuse come first.
                            inside = False
                            for k in range(kinds):
                                memo[j, k] = infinite
                                low = busy[i, k] - busy[j, k]
                                if added:
                                    low += abs(moving[i, k] - moving[j, k]) - slack * (moving[i, k] + moving[j, k])
                                fits = limit[k] < 0 or own_before[i] - own_before[j] <= limit[k]
                                inside = inside or (low <= most and fits and lacking[i, k] == lacking[j, k])
                            if inside:
                                for w in range(bits.shape[1]):
                                    if bits[j, w] & ~bits[i, w]:
                                        inside = False
                                        break
                            if inside and added:
                                q = priced_at[j]
                                under = q >= 0
                                over = anchor >= 0
                                for w in range(bits.shape[1]):
                                    under = under and bits[q, w] & ~bits[i, w] == 0
                                    over = over and bits[j, w] & ~bits[anchor, w] == 0
                                if under or over:
                                    inside = False
                                    for k in range(kinds):
                                        low = least_beside(k, i, j, q, anchor, under, over, slack, busy, moving, raw)
                                        inside = inside or (low <= most and lacking[i, k] == lacking[j, k])
                            if inside and demands:
                                inside = keeps_demands(bits[j], bits[i], forced, pin_ptr, pin)
                            if inside:
                                priced += 1
                                priced_at[j] = i
                                anchor = j
                                for g in range(lanes):
                                    for p in range(classes):
                                        moved[g, p] = boundary[j, g * classes + p]
                                received = add_cut(
                                    i, j, bits, cut, cut_start[i], cut_end[i], pin_ptr, pin, lane_in, lane_out, transfer,
                                    size, bytes_before[j], moved,
                                )  # fmt: skip
                                memory = np.int64(-1)
                                for k in range(kinds):
                                    first, second = max(moved[0, port[k]], 0.0), max(moved[1, port[k]], 0.0)
                                    load = compute[i, k] - compute[j, k] + handover[k]
                                    if mode == 3:
                                        first += load
                                        second += compute[i, kinds + k] - compute[j, kinds + k]
                                    load = raw[j, k] = combined(mode, load, first, second, shares)
                                    for q in range(turn_side.shape[0]):
                                        turned = turn_cost[k, q] * abs(turns[i, q] - turns[j, q])
                                        first += turned if turn_side[q] == 0 else 0.0
                                        second += turned if turn_side[q] != 0 else 0.0
                                        load += turned if mode != 3 else shares[turn_side[q]] * turned
                                    if load > most or lacking[i, k] != lacking[j, k]:
                                        continue
                                    if mode == 3 and (first > caps[0] or second > caps[1] or first + second > caps[2]):
                                        continue
                                    if limit[k] >= 0:
                                        certain = own_before[i] - own_before[j] + np.int64(np.rint(received))
                                        if memory < 0 and certain + most_beside > limit[k]:
                                            memory = certain + held_beside(bits[j], bits[i], held)
                                        if max(certain, memory) > limit[k]:
                                            continue
                                    memo[j, k] = first + second if additive else load
                        worst = before + memo[j, t] if additive else max(max(before, memo[j, t]), floor)
                        if worst < best:
                            best = worst
                            value[i, x] = worst
                            parent[i, x] = j
                            via[i, x] = t
                        j = link[j, s]
            # A state with fewer devices and no larger value makes this one superfluous.
            if value[i, x] < least[x]:
                least[x] = value[i, x]
                link[i, x] = head[x]
                head[x] = i
            if least[x] < infinite:
                for d in range(idle.shape[1]):
                    if idle[x, d] >= 0:
                        least[idle[x, d]] = min(least[idle[x, d]], least[x])
        i += 1
    return i, met, priced
