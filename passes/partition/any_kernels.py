"""The compiled loop of the local search over assignments of nodes to devices: simulated annealing with exact increments.

A tensor costs a device its transfer when the device holds some of its pins (maker and readers) but not all: received when the
maker lies elsewhere, else sent. Moving one node changes this only for the device it leaves and the one it enters, so a move
costs the degree of the node. A load has one side, or two (forward and backward) of which each has its own cap; a tensor
belongs to one of them.

What falls is the *excess*: what all loads together have above their caps. A device below its cap is worth nothing, so work
moves there freely, and total transfers fall as well as the largest load. (A norm of the loads ended at worse plans: it leaves
slow devices idle.) Every loop here is compiled by the rules of ``passes.model.kernels`` (cache, no interpreter lock);
randomness is a 64-bit xorshift, so that the same seed gives the same plan on any machine and version.
"""

from __future__ import annotations

import numpy as np

from passes.model.kernels import compiled
from passes.model.stages.problem import Floats, Ints

WEIGHTS, BUFFERS, LIVE, HELD, BROKEN, SIDES = range(6)
"""Columns of the state of a device: bytes by part, nodes held, demanded cuts that are not cut; from ``SIDES`` on, for each
side, the seconds of its parts:"""
COMPUTE, RECEIVE, SEND, PARTS = range(4)


@compiled
def tensor_changes(
    v: int,
    device: int,
    other: int,
    sign: float,
    assigned: Ints,
    kind_of: Ints,
    state: Floats,
    counts: Ints,
    pins: Ints,
    maker: Ints,
    side: Ints,
    transfer: Floats,
    buffers: Ints,
    forced: Ints,
    touch_ptr: Ints,
    touching: Ints,
) -> None:
    """Adds ``sign`` times what the tensors of ``v`` cost the two devices as things are."""
    for i in range(touch_ptr[v], touch_ptr[v + 1]):
        h = touching[i]
        home = assigned[maker[h]]
        part = SIDES + PARTS * side[h]
        for d in (device, other):
            held = counts[h, d]
            if home == d:
                if held < pins[h]:
                    state[d, part + SEND] += sign * transfer[kind_of[d], h]
                if forced[h] and held > 1:
                    state[d, BROKEN] += sign
            elif held > 0:
                state[d, part + RECEIVE] += sign * transfer[kind_of[d], h]
                state[d, BUFFERS] += sign * buffers[h]


@compiled
def move(
    v: int,
    target: int,
    assigned: Ints,
    kind_of: Ints,
    seconds: Floats,
    state: Floats,
    counts: Ints,
    pins: Ints,
    maker: Ints,
    side: Ints,
    transfer: Floats,
    buffers: Ints,
    forced: Ints,
    touch_ptr: Ints,
    touching: Ints,
    weight_counts: Ints,
    weight_bytes: Ints,
    weight_ptr: Ints,
    weights: Ints,
    live: Ints,
) -> None:
    """Moves ``v`` to the device ``target``, keeping ``state``, ``counts`` and ``weight_counts``."""
    source = assigned[v]
    tensor_changes(
        v, source, target, -1.0, assigned, kind_of, state, counts, pins, maker, side, transfer, buffers, forced,
        touch_ptr, touching,
    )  # fmt: skip
    assigned[v] = target
    for i in range(touch_ptr[v], touch_ptr[v + 1]):
        counts[touching[i], source] -= 1
        counts[touching[i], target] += 1
    tensor_changes(
        v, source, target, 1.0, assigned, kind_of, state, counts, pins, maker, side, transfer, buffers, forced,
        touch_ptr, touching,
    )  # fmt: skip
    for s in range(len(seconds)):
        state[source, SIDES + PARTS * s + COMPUTE] -= seconds[s, kind_of[source], v]
        state[target, SIDES + PARTS * s + COMPUTE] += seconds[s, kind_of[target], v]
    state[source, HELD] -= 1
    state[target, HELD] += 1
    for i in range(weight_ptr[v], weight_ptr[v + 1]):
        w = weights[i]
        weight_counts[w, source] -= 1
        if weight_counts[w, source] == 0:
            state[source, WEIGHTS] -= weight_bytes[w]
        if weight_counts[w, target] == 0:
            state[target, WEIGHTS] += weight_bytes[w]
        weight_counts[w, target] += 1
    if live[v] > state[target, LIVE]:
        state[target, LIVE] = live[v]
    if live[v] > 0 and live[v] >= state[source, LIVE]:
        most = 0
        for u in range(len(assigned)):
            if assigned[u] == source and live[u] > most:
                most = live[u]
        state[source, LIVE] = most


@compiled
def combined_load(comm: int, compute: float, receive: float, send: float) -> float:
    """``problem.load`` (``comm``: 0 sum, 1 overlap, 2 duplex)."""
    if comm == 0:
        return float(compute + receive + send)
    if comm == 1:
        return float(max(compute, receive + send))
    return float(max(compute, receive, send))


@compiled
def side_load(state: Floats, d: int, side: int, comm: int) -> float:
    """The load of one side of a device."""
    part = SIDES + PARTS * side
    return float(combined_load(comm, state[d, part + COMPUTE], state[d, part + RECEIVE], state[d, part + SEND]))


@compiled
def penalty(state: Floats, d: int, limit: float, scale: float) -> float:
    """0 where a device keeps every constraint, else ``scale`` and more."""
    memory = state[d, WEIGHTS] + state[d, BUFFERS] + state[d, LIVE]
    value = scale * state[d, BROKEN]
    if memory > limit:
        value += scale * (1.0 + (memory - limit) / (limit + 1.0))
    return float(value)


@compiled
def anneal(
    assigned: Ints,
    kind_of: Ints,
    limits: Floats,
    seconds: Floats,
    pins: Ints,
    maker: Ints,
    side: Ints,
    transfer: Floats,
    buffers: Ints,
    forced: Ints,
    touch_ptr: Ints,
    touching: Ints,
    near_ptr: Ints,
    near: Ints,
    weight_bytes: Ints,
    weight_ptr: Ints,
    weights: Ints,
    live: Ints,
    comm: int,
    stages: int,
    caps: Floats,
    scale: float,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
) -> tuple[int, float, Ints]:
    """At most ``steps`` proposals from ``assigned``, which becomes the last state, the temperature falling from ``hot`` to
    ``cold`` times ``scale`` geometrically. Ends early where every side is within its cap and every constraint kept.

    Returns the proposals made, the least penalised value met (the sum over sides of the largest load) and its assignment. A
    proposal moves one node, a connected cluster of up to eight nodes of one device, or swaps two nodes.
    ``seconds[sides, kinds, n]``; ``stages``: devices that must hold a node, 0 for any number."""
    n, devices, tensors, sides = len(assigned), len(kind_of), len(pins), len(seconds)
    state = np.zeros((devices, SIDES + PARTS * sides))
    counts = np.zeros((tensors, devices), np.int64)
    weight_counts = np.zeros((len(weight_bytes), devices), np.int64)
    for v in range(n):
        d = assigned[v]
        for s in range(sides):
            state[d, SIDES + PARTS * s + COMPUTE] += seconds[s, kind_of[d], v]
        state[d, HELD] += 1
        state[d, LIVE] = max(state[d, LIVE], live[v])
        for i in range(touch_ptr[v], touch_ptr[v + 1]):
            counts[touching[i], d] += 1
        for i in range(weight_ptr[v], weight_ptr[v + 1]):
            if weight_counts[weights[i], d] == 0:
                state[d, WEIGHTS] += weight_bytes[weights[i]]
            weight_counts[weights[i], d] += 1
    for h in range(tensors):
        home = assigned[maker[h]]
        part = SIDES + PARTS * side[h]
        for d in range(devices):
            if d == home:
                if counts[h, d] < pins[h]:
                    state[d, part + SEND] += transfer[kind_of[d], h]
                if forced[h] and counts[h, d] > 1:
                    state[d, BROKEN] += 1
            elif counts[h, d] > 0:
                state[d, part + RECEIVE] += transfer[kind_of[d], h]
                state[d, BUFFERS] += buffers[h]

    best = assigned.copy()
    best_value = np.inf
    energy = np.inf
    moved = np.empty(8, np.int64)
    came = np.empty(8, np.int64)
    loads = np.zeros((sides, devices))
    excess = np.zeros(devices)
    broken = np.zeros(devices)
    kept = np.zeros((2, sides + 2))
    source, target = 0, 0
    temperature = hot * scale
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    random = np.uint64(seed * 2 + 1)
    for _ in range(3):
        random ^= random << np.uint64(13)
        random ^= random >> np.uint64(7)
        random ^= random << np.uint64(17)

    for step in range(steps + 1):
        number = 0
        if step > 0 and n > 0 and devices > 1:
            random ^= random << np.uint64(13)
            random ^= random >> np.uint64(7)
            random ^= random << np.uint64(17)
            word = random >> np.uint64(8)
            v = int((word & np.uint64(0xFFFFFF)) % np.uint64(n))
            dice = (word >> np.uint64(24)) & np.uint64(0xF)
            pick = int((word >> np.uint64(28)) & np.uint64(0xFFFFF))
            source = int(assigned[v])
            degree = near_ptr[v + 1] - near_ptr[v]
            target = pick % devices
            if (dice & np.uint64(1)) and degree > 0:
                target = int(assigned[near[near_ptr[v] + pick % degree]])
            if target == source:
                target = (source + 1 + (pick >> 4) % (devices - 1)) % devices
            wanted = 1
            if dice >= 10:
                wanted = 2 + pick % 7
            # One node, or a cluster: nodes of the same device found from the first along shared tensors.
            if np.isfinite(seconds[0, kind_of[target], v]):
                moved[0], came[0] = v, source
                number = 1
                k = 0
                while k < number and number < wanted:
                    u = moved[k]
                    for i in range(near_ptr[u], near_ptr[u + 1]):
                        x = near[i]
                        if number < wanted and assigned[x] == source and np.isfinite(seconds[0, kind_of[target], x]):
                            new = True
                            for j in range(number):
                                if moved[j] == x:
                                    new = False
                            if new:
                                moved[number], came[number] = x, source
                                number += 1
                    k += 1
                if dice >= 6 and dice < 10:
                    x = (v + 1 + pick) % n
                    for _ in range(8):
                        if assigned[x] == target:
                            break
                        x = (x + 1) % n
                    if assigned[x] == target and np.isfinite(seconds[0, kind_of[source], x]):
                        moved[1], came[1] = x, target
                        number = 2
            for k in range(number):
                move(
                    moved[k], source + target - came[k], assigned, kind_of, seconds, state, counts, pins, maker, side,
                    transfer, buffers, forced, touch_ptr, touching, weight_counts, weight_bytes, weight_ptr, weights, live,
                )  # fmt: skip
            if number == 0:
                temperature *= cooling
                continue
        worst, proposed, used = 0.0, 0.0, 0
        for k, d in enumerate((source, target)):
            for s in range(sides):
                kept[k, s] = loads[s, d]
            kept[k, sides], kept[k, sides + 1] = excess[d], broken[d]
        for d in range(devices):
            # Only two devices differ from the step before; the first step fills all.
            if step == 0 or d in (source, target):
                broken[d] = penalty(state, d, limits[kind_of[d]], scale)
                excess[d] = 0.0
                for s in range(sides):
                    loads[s, d] = side_load(state, d, s, comm)
                    excess[d] += max(0.0, loads[s, d] - caps[s])
            worst += broken[d]
            proposed += excess[d] + broken[d]
            if state[d, HELD] > 0:
                used += 1
        for s in range(sides):
            worst += loads[s].max()
        if stages > 0:
            worst += scale * abs(used - stages)
            proposed += scale * abs(used - stages)
        random ^= random << np.uint64(13)
        random ^= random >> np.uint64(7)
        random ^= random << np.uint64(17)
        chance = float(random >> np.uint64(11)) / 9007199254740992.0
        if proposed <= energy or chance < np.exp((energy - proposed) / temperature):
            energy = proposed
            if worst < best_value:
                best_value = worst
                best[:] = assigned
                if proposed <= 0.0:
                    return step, best_value, best
        else:
            for k, d in enumerate((source, target)):
                for s in range(sides):
                    loads[s, d] = kept[k, s]
                excess[d], broken[d] = kept[k, sides], kept[k, sides + 1]
            for k in range(number - 1, -1, -1):
                move(
                    moved[k], came[k], assigned, kind_of, seconds, state, counts, pins, maker, side,
                    transfer, buffers, forced, touch_ptr, touching, weight_counts, weight_bytes, weight_ptr, weights, live,
                )  # fmt: skip
        temperature *= cooling
    return steps, best_value, best


__all__ = ["anneal", "combined_load"]
