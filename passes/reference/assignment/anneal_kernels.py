"""The compiled loop of the local search over assignments of nodes to devices: simulated annealing with exact increments.

A tensor costs a device its transfer when the device holds some of its pins (maker and readers) but not all: received when the
maker lies elsewhere, else sent. Moving one node changes this only for the device it leaves and the one it enters, so a move
costs the degree of the node. A load has one side, or two (forward and backward) of which each has its own cap; a tensor
belongs to one of them.

What falls is the *excess*: what all loads together have above their caps. A device below its cap is worth nothing, so work
moves there freely, and total transfers fall as well as the largest load. (A norm of the loads ended at worse plans: it leaves
slow devices idle.) Every loop here is compiled by the rules of ``passes.solvers.kernels`` (cache, no interpreter lock);
randomness is a 64-bit xorshift, so that the same seed gives the same plan on any machine and version.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from passes.solvers.kernels import compiled, part
from passes.stages.arrays import Ints
from passes.stages.lattice.kernels import combined_load
from passes.stages.problem import Floats

WEIGHTS, BUFFERS, LIVE, HELD, BROKEN, SIDES = range(6)
"""Columns of ``state[D]``: bytes by part, nodes held, demanded cuts that are not cut; from ``SIDES`` on, for each
side, the seconds of its parts:"""
COMPUTE, RECEIVE, SEND, PARTS = range(4)


PINS, MAKER, SIDE, BYTES, FORCED, FACTS = range(6)
"""Columns of ``Instance.tensors``: nodes that make or read it, its maker, its side, bytes of its buffers, whether it must be
cut."""
TENSORS, NEIGHBOURS, WEIGHTS_OF, POINTERS = range(4)
"""Columns of ``Instance.rows``: where a node's row of ``touching``, ``near`` or ``weights`` begins; it ends where the next
does."""


class Instance(NamedTuple):
    """What annealing reads. ``kind_of[D]`` of each device, ``limits[T]`` bytes, ``seconds[side, T, n]``, ``tensors[H, FACTS]``,
    ``transfer[T, H]``. By ``rows[n + 1, POINTERS]``: the tensors of a node (``touching``), its neighbours (``near``), the
    weights that it holds, of ``weight_bytes[W]``. ``live[n]`` bytes; ``comm``: 0 sum, 1 overlap, 2 duplex; ``stages``: devices
    that must hold a node, 0 for any number. The helpers below take the arrays by themselves: each access to a tuple's counts
    its references."""

    kind_of: Ints
    limits: Floats
    seconds: Floats
    tensors: Ints
    transfer: Floats
    rows: Ints
    touching: Ints
    near: Ints
    weights: Ints
    weight_bytes: Ints
    live: Ints
    comm: int
    stages: int


@part
def random_after(word: Any) -> Any:
    """The next number of a 64-bit xorshift."""
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    return word


@part
def tensor_changes(
    v: int,
    device: int,
    other: int,
    sign: float,
    assigned: Ints,
    state: Floats,
    counts: Ints,
    kind_of: Ints,
    tensors: Ints,
    transfer: Floats,
    rows: Ints,
    touching: Ints,
) -> None:
    """Adds ``sign`` times what the tensors of ``v`` cost the two devices as things are."""
    for i in range(rows[v, TENSORS], rows[v + 1, TENSORS]):
        h = touching[i]
        home = assigned[tensors[h, MAKER]]
        part = SIDES + PARTS * tensors[h, SIDE]
        for d in (device, other):
            held = counts[h, d]
            if home == d:
                if held < tensors[h, PINS]:
                    state[d, part + SEND] += sign * transfer[kind_of[d], h]
                if tensors[h, FORCED] and held > 1:
                    state[d, BROKEN] += sign
            elif held > 0:
                state[d, part + RECEIVE] += sign * transfer[kind_of[d], h]
                state[d, BUFFERS] += sign * tensors[h, BYTES]


@part
def move_node(
    v: int,
    target: int,
    assigned: Ints,
    state: Floats,
    counts: Ints,
    kind_of: Ints,
    seconds: Floats,
    tensors: Ints,
    transfer: Floats,
    rows: Ints,
    touching: Ints,
) -> None:
    """Moves ``v`` to the device ``target``: all but its weights and live bytes."""
    source = assigned[v]
    tensor_changes(v, source, target, -1.0, assigned, state, counts, kind_of, tensors, transfer, rows, touching)
    assigned[v] = target
    for i in range(rows[v, TENSORS], rows[v + 1, TENSORS]):
        counts[touching[i], source] -= 1
        counts[touching[i], target] += 1
    tensor_changes(v, source, target, 1.0, assigned, state, counts, kind_of, tensors, transfer, rows, touching)
    for s in range(len(seconds)):
        state[source, SIDES + PARTS * s + COMPUTE] -= seconds[s, kind_of[source], v]
        state[target, SIDES + PARTS * s + COMPUTE] += seconds[s, kind_of[target], v]
    state[source, HELD] -= 1
    state[target, HELD] += 1


@part
def move_bytes(
    v: int,
    source: int,
    target: int,
    assigned: Ints,
    state: Floats,
    weight_counts: Ints,
    rows: Ints,
    weights: Ints,
    weight_bytes: Ints,
    live: Ints,
) -> None:
    """Moves the weights and live bytes of ``v``, once ``move_node`` has moved it."""
    for i in range(rows[v, WEIGHTS_OF], rows[v + 1, WEIGHTS_OF]):
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


@part
def side_load(state: Floats, d: int, side: int, comm: int) -> float:
    """The load of one side of a device."""
    part = SIDES + PARTS * side
    return float(combined_load(comm, state[d, part + COMPUTE], state[d, part + RECEIVE], state[d, part + SEND]))


@part
def penalty(state: Floats, d: int, limit: float, scale: float) -> float:
    """0 where a device keeps every constraint, else ``scale`` and more."""
    memory = state[d, WEIGHTS] + state[d, BUFFERS] + state[d, LIVE]
    value = scale * state[d, BROKEN]
    if memory > limit:
        value += scale * (1.0 + (memory - limit) / (limit + 1.0))
    return float(value)


@part
def begun(instance: Instance, assigned: Ints) -> tuple[Floats, Ints, Ints]:
    """Of an assignment: ``state[D, columns]`` (above); how many pins of a tensor and readers of a weight each device holds."""
    kind_of, seconds, tensors, transfer = instance.kind_of, instance.seconds, instance.tensors, instance.transfer
    rows, touching, weights, live = instance.rows, instance.touching, instance.weights, instance.live
    devices, sides = len(kind_of), len(seconds)
    state = np.zeros((devices, SIDES + PARTS * sides))
    counts = np.zeros((len(tensors), devices), np.int64)
    weight_counts = np.zeros((len(instance.weight_bytes), devices), np.int64)
    for v in range(len(assigned)):
        d = assigned[v]
        for s in range(sides):
            state[d, SIDES + PARTS * s + COMPUTE] += seconds[s, kind_of[d], v]
        state[d, HELD] += 1
        state[d, LIVE] = max(state[d, LIVE], live[v])
        for i in range(rows[v, TENSORS], rows[v + 1, TENSORS]):
            counts[touching[i], d] += 1
        for i in range(rows[v, WEIGHTS_OF], rows[v + 1, WEIGHTS_OF]):
            w = weights[i]
            if weight_counts[w, d] == 0:
                state[d, WEIGHTS] += instance.weight_bytes[w]
            weight_counts[w, d] += 1
    for h in range(len(tensors)):
        home = assigned[tensors[h, MAKER]]
        part = SIDES + PARTS * tensors[h, SIDE]
        for d in range(devices):
            if d == home:
                if counts[h, d] < tensors[h, PINS]:
                    state[d, part + SEND] += transfer[kind_of[d], h]
                if tensors[h, FORCED] and counts[h, d] > 1:
                    state[d, BROKEN] += 1
            elif counts[h, d] > 0:
                state[d, part + RECEIVE] += transfer[kind_of[d], h]
                state[d, BUFFERS] += tensors[h, BYTES]
    return state, counts, weight_counts


@part
def proposal(
    word: Any, assigned: Ints, kind_of: Ints, seconds: Floats, rows: Ints, near: Ints, moved: Ints, came: Ints
) -> tuple[int, int, int]:
    """What to change: one node, a cluster of up to eight nodes of one device that shared tensors join, or two nodes that swap.

    Fills ``moved`` (nodes) and ``came`` (their devices); returns (how many, the device of the first, the device it goes to), 0
    nodes where that one cannot run it."""
    n, devices = len(assigned), len(kind_of)
    v = int((word & np.uint64(0xFFFFFF)) % np.uint64(n))
    dice = (word >> np.uint64(24)) & np.uint64(0xF)
    pick = int((word >> np.uint64(28)) & np.uint64(0xFFFFF))
    source = int(assigned[v])
    degree = rows[v + 1, NEIGHBOURS] - rows[v, NEIGHBOURS]
    target = pick % devices
    if (dice & np.uint64(1)) and degree > 0:
        target = int(assigned[near[rows[v, NEIGHBOURS] + pick % degree]])
    if target == source:
        target = (source + 1 + (pick >> 4) % (devices - 1)) % devices
    kind, back = kind_of[target], kind_of[source]
    if not np.isfinite(seconds[0, kind, v]):
        return 0, source, target
    moved[0], came[0] = v, source
    number, wanted, k = 1, 1, 0
    if dice >= 10:
        wanted = 2 + pick % 7
    while k < number and number < wanted:
        u = moved[k]
        for i in range(rows[u, NEIGHBOURS], rows[u + 1, NEIGHBOURS]):
            x = near[i]
            if number < wanted and assigned[x] == source and np.isfinite(seconds[0, kind, x]):
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
        if assigned[x] == target and np.isfinite(seconds[0, back, x]):
            moved[1], came[1] = x, target
            number = 2
    return number, source, target


@compiled
def anneal(
    instance: Instance,
    assigned: Ints,
    caps: Floats,
    scale: float,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
) -> tuple[int, float, Ints]:
    """At most ``steps`` proposals from ``assigned``, which becomes the last state, the temperature falling from ``hot`` to
    ``cold`` times ``scale`` geometrically. Ends early where every side is within its cap and every constraint kept.

    Returns the proposals made, the least penalised value met (the sum over sides of the largest load) and its assignment."""
    kind_of, limits, seconds, tensors, transfer, rows, touching, near, weights, weight_bytes, live, comm, stages = instance
    n, devices, sides = len(assigned), len(kind_of), len(seconds)
    state, counts, weight_counts = begun(instance, assigned)
    best, best_value, energy = assigned.copy(), np.inf, np.inf
    moved, came = np.empty(8, np.int64), np.empty(8, np.int64)
    loads, excess, broken = np.zeros((sides, devices)), np.zeros(devices), np.zeros(devices)
    kept = np.zeros((2, sides + 2))
    source, target = 0, 0
    temperature = hot * scale
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    random = np.uint64(seed * 2 + 1)
    for _ in range(3):
        random = random_after(random)
    for step in range(steps + 1):
        number = 0
        if step > 0 and n > 0 and devices > 1:
            random = random_after(random)
            number, source, target = proposal(random >> np.uint64(8), assigned, kind_of, seconds, rows, near, moved, came)
            if number == 0:
                temperature *= cooling
                continue
            for k in range(number):
                v, goes = moved[k], source + target - came[k]
                move_node(v, goes, assigned, state, counts, kind_of, seconds, tensors, transfer, rows, touching)
                move_bytes(v, came[k], goes, assigned, state, weight_counts, rows, weights, weight_bytes, live)
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
            largest = 0.0
            for d in range(devices):
                largest = max(largest, loads[s, d])
            worst += largest
        if stages > 0:
            worst += scale * abs(used - stages)
            proposed += scale * abs(used - stages)
        random = random_after(random)
        chance = float(random >> np.uint64(11)) / 9007199254740992.0
        if proposed <= energy or chance < np.exp((energy - proposed) / temperature):
            energy = proposed
            if worst < best_value:
                best_value = worst
                for v in range(n):  # an array assigned to a slice compiles for seconds
                    best[v] = assigned[v]
                if proposed <= 0.0:
                    return step, best_value, best
        else:
            for k, d in enumerate((source, target)):
                for s in range(sides):
                    loads[s, d] = kept[k, s]
                excess[d], broken[d] = kept[k, sides], kept[k, sides + 1]
            for k in range(number - 1, -1, -1):
                v, left = moved[k], source + target - came[k]
                move_node(v, came[k], assigned, state, counts, kind_of, seconds, tensors, transfer, rows, touching)
                move_bytes(v, left, came[k], assigned, state, weight_counts, rows, weights, weight_bytes, live)
        temperature *= cooling
    return steps, best_value, best
