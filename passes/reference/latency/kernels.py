"""The compiled loops of the latency search: steps between ideals, and a lower bound of the time still to come (tails).

A plan is a sequence of *steps*: each adds one CPU node or a whole piece to an ideal, which gives a larger ideal. A *label* is
what matters of the steps so far: the ideal reached, how many pieces of each kind are left (a number k in mixed radix, see
``digits``), and when each tensor that is still to be read becomes ready. ``Graph`` and ``Lattice`` hold the arrays. The
*frontier* of an ideal is its nodes with a reader outside; ``lattice.front`` lists it, and a node's *place* is its position
there from 1.

``tails`` walks the ideals backward. For ideal I, state k and a node u of the frontier, the tail is the least, over all ways to
complete the plan, of the time from when u is ready to the end: every completion ends at or after ready[u] + tail(u). Place 0
holds the same if all of I is ready at time 0. This is a bound and not the truth, since the minimum is taken for each u apart,
and since k does not tell how the pieces of one accelerator share its memory and wait for each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from passes.solvers.kernels import compiled, inlined, part

NEVER = np.inf


class Graph(NamedTuple):
    """A ``reduce.Reduced`` as arrays: nodes (its groups) [n], tensors [H], kinds of accelerators [T], colours [C], free sources
    [F] (``reduce.Free``). Where ``programs``, also weights [W], ops [N] and values [V] of ``problem.Programs``; else W, N and V
    are 0, and bytes of a piece are a sum over its nodes. A *set* is a row of bits in 64-bit words, one bit per node. ``x_ptr``
    goes with a flat array ``x``: the part of v is ``x[x_ptr[v]:x_ptr[v + 1]]``."""

    before: Any  # [n] sets: nodes that come before the node
    follow: Any  # [n] sets: nodes that read a tensor of the node
    made_ptr: Any
    made: Any  # by node: tensors that it makes
    readers: Any  # [H] sets: nodes that read the tensor
    transfer: Any  # [T, H] seconds into or out of a piece
    maker_ptr: Any
    makers: Any  # by node: nodes whose tensors it reads
    seconds: Any  # [T, n], 0 where ``lacking``
    lacking: Any  # [T, n]: whether the kind cannot run the node
    cpu: Any  # [n] seconds, infinite where no CPU runs the node
    size: Any  # [n] bytes
    limit: Any  # [T] bytes of memory
    colours: Any  # [C] sets
    free_groups: Any  # [F] sets: nodes that read the free source
    free_transfer: Any  # [T, F] seconds
    free_size: Any  # [F] bytes
    free_inside: Any  # [T, F]: whether the kind can hold the free source
    evict: Any  # [T, F]: all free sources, those that a CPU holds at the fewest seconds of transfer per byte first
    early: Any  # [n] seconds: the node is ready no earlier in any plan
    attended: int  # free sources below this number can cost something in a piece that fits in memory; the others cannot
    one_piece: bool  # each accelerator runs one piece, so each colour lies in one piece
    programs: bool
    received: Any  # [H] bytes of a piece that receives the tensor
    weights: Any  # [W] sets: nodes that read the weight
    weight_bytes: Any  # [W]
    ops: Any  # [N]: the node of the op, -1 for none
    inner: Any  # [N] bytes alive in the regions of the op
    op_made_ptr: Any
    op_made: Any  # by op: values that it makes
    op_read_ptr: Any
    op_read: Any  # by op: values that it reads
    value_bytes: Any  # [V]
    argument: Any  # [V]: whether no op makes the value
    left: Any  # [V]: scratch memory of ``workspace``, all 0 between calls


class Lattice(NamedTuple):
    """Ideals [I], smaller first: ideal 0 is empty, the last one has all nodes. A cover of an ideal has one node more. A sum
    over the piece i - j is the difference of two sums over ideals."""

    bits: Any  # [I] sets
    cover_ptr: Any
    cover_node: Any  # by ideal: the node that a cover adds
    cover_to: Any  # by ideal: the cover
    front_ptr: Any
    front: Any  # by ideal: its frontier, ascending
    seconds: Any  # [I, T]: sum over the nodes
    lacking: Any  # [I, T]: the number of nodes that the kind cannot run
    size: Any  # [I] bytes: sum over the nodes
    free_size: Any  # [I] bytes of the free sources whose last reader is in the ideal


@part
def digits(k: int, kind: int, stride: Any) -> Any:
    """How many pieces of ``kind`` are left in state ``k``."""
    return (k // stride[kind]) % (stride[kind + 1] // stride[kind])


@part
def meets(row: Any, inner: Any, outer: Any) -> bool:
    """Whether a bit set has a member in outer - inner."""
    found = np.uint64(0)
    for w in range(len(row)):
        found |= row[w] & outer[w] & ~inner[w]
    return bool(found)


@part
def leaves(row: Any, outer: Any) -> bool:
    """Whether a bit set has a member outside ``outer``."""
    found = np.uint64(0)
    for w in range(len(row)):
        found |= row[w] & ~outer[w]
    return bool(found)


@part
def within(row: Any, inner: Any, outer: Any) -> bool:
    """Whether a bit set lies in outer - inner."""
    found = np.uint64(0)
    for w in range(len(row)):
        found |= row[w] & ~(outer[w] & ~inner[w])
    return not found


@inlined
def begun(colours: Any, bits: Any, j: int, i: int) -> bool:
    """Whether a colour with nodes in i - j also has nodes in j. No ideal larger than i repairs that."""
    found = False
    for c in range(len(colours)):
        if meets(colours[c], bits[j], bits[i]) and meets(colours[c], bits[0], bits[j]):
            found = True
            break
    return found


@inlined
def torn(colours: Any, bits: Any, j: int, i: int) -> bool:
    """Whether a colour with nodes in i - j also has nodes outside it."""
    found = False
    for c in range(len(colours)):
        if meets(colours[c], bits[j], bits[i]) and not within(colours[c], bits[j], bits[i]):
            found = True
            break
    return found


@part
def supersets(graph: Any, lattice: Any, j: int, most: float, queue: Any, stamp: Any) -> int:
    """Fills ``queue`` with the ideals i > j, smaller first, for which i - j may be a piece: it tears no colour, and some kind
    runs it within its memory and ``most`` seconds, transfers, free sources and what ``programs`` adds left out (``seconds_of``
    counts those). Returns their number. ``stamp[i]``: j once i is seen."""
    kinds = len(graph.limit)
    count = 0
    head = -1
    at = j
    stamp[j] = j
    while True:
        for c in range(lattice.cover_ptr[at], lattice.cover_ptr[at + 1]):
            i = lattice.cover_to[c]
            if stamp[i] == j:
                continue
            stamp[i] = j
            possible = False
            for t in range(kinds):
                if (
                    lattice.lacking[i, t] == lattice.lacking[j, t]
                    and lattice.size[i] - lattice.size[j] <= graph.limit[t]
                    and lattice.seconds[i, t] - lattice.seconds[j, t] <= most
                ):
                    possible = True
            if possible and not (graph.one_piece and begun(graph.colours, lattice.bits, j, i)):
                queue[count] = i
                count += 1
        head += 1
        if head == count:
            break
        at = queue[head]
    kept = 0
    for q in range(count):
        if not (graph.one_piece and torn(graph.colours, lattice.bits, j, queue[q])):
            queue[kept] = queue[q]
            kept += 1
    return kept


@compiled
def workspace(graph: Any, inner: Any, outer: Any) -> Any:
    """The most bytes alive at once while the ops of the piece outer - inner run (``Liveness.workspace``). With r readers in the
    piece still to come, ``left[value]`` is r before the value is counted as alive and -1 - r while it is."""
    left, most, alive = graph.left, 0, 0
    for turn in range(2):  # the first counts readers, the second runs the ops
        for o in range(len(graph.ops)):
            v = graph.ops[o]
            if v < 0 or not ((outer[v >> 6] & ~inner[v >> 6]) >> np.uint64(v & 63)) & np.uint64(1):
                continue
            if turn == 0:
                for y in range(graph.op_read_ptr[o], graph.op_read_ptr[o + 1]):
                    left[graph.op_read[y]] += 1
                continue
            for y in range(graph.op_made_ptr[o], graph.op_made_ptr[o + 1]):
                alive += graph.value_bytes[graph.op_made[y]]
                left[graph.op_made[y]] = -1 - left[graph.op_made[y]]
            for y in range(graph.op_read_ptr[o], graph.op_read_ptr[o + 1]):
                value = graph.op_read[y]
                if graph.argument[value] and left[value] > 0:
                    alive += graph.value_bytes[value]
                    left[value] = -1 - left[value]
            most = max(most, alive + graph.inner[o])
            for y in range(graph.op_read_ptr[o], graph.op_read_ptr[o + 1]):
                value = graph.op_read[y]
                if left[value] > 0:
                    left[value] -= 1
                elif left[value] < -1:
                    left[value] += 1
                    if left[value] == -1:
                        alive -= graph.value_bytes[value]
                        left[value] = 0
            for y in range(graph.op_made_ptr[o], graph.op_made_ptr[o + 1]):
                if left[graph.op_made[y]] == -1:  # nobody here reads it
                    alive -= graph.value_bytes[graph.op_made[y]]
                    left[graph.op_made[y]] = 0
    return most


@part
def bytes_of(graph: Any, lattice: Any, j: int, i: int) -> Any:
    """Bytes of the piece i - j without free sources."""
    total = lattice.size[i] - lattice.size[j]
    if not graph.programs:
        return total
    inner, outer = lattice.bits[j], lattice.bits[i]
    total += workspace(graph, inner, outer)
    for w in range(len(graph.weight_bytes)):
        if meets(graph.weights[w], inner, outer):
            total += graph.weight_bytes[w]
    for x in range(lattice.front_ptr[j], lattice.front_ptr[j + 1]):
        u = lattice.front[x]
        for y in range(graph.made_ptr[u], graph.made_ptr[u + 1]):
            h = graph.made[y]
            if graph.received[h] and meets(graph.readers[h], inner, outer):
                total += graph.received[h]
    return total


@part
def seconds_of(graph: Any, lattice: Any, j: int, i: int, t: int, limit: int) -> Any:
    """Seconds that the piece i - j takes on kind ``t`` with ``limit`` bytes to itself, transfers included; infinite where the
    kind cannot run it or it does not fit. Where its free sources do not fit, those cheapest per byte stay on a CPU and are
    transferred, the last in part (a fractional knapsack): a lower bound."""
    if lattice.lacking[i, t] != lattice.lacking[j, t] or bytes_of(graph, lattice, j, i) > limit:
        return NEVER
    inner, outer = lattice.bits[j], lattice.bits[i]
    cost = lattice.seconds[i, t] - lattice.seconds[j, t]
    for x in range(lattice.front_ptr[j], lattice.front_ptr[j + 1]):
        u = lattice.front[x]
        for y in range(graph.made_ptr[u], graph.made_ptr[u + 1]):
            if meets(graph.readers[graph.made[y]], inner, outer):
                cost += graph.transfer[t, graph.made[y]]
    for x in range(lattice.front_ptr[i], lattice.front_ptr[i + 1]):
        u = lattice.front[x]
        if (inner[u >> 6] >> np.uint64(u & 63)) & np.uint64(1):
            continue
        for y in range(graph.made_ptr[u], graph.made_ptr[u + 1]):
            if leaves(graph.readers[graph.made[y]], outer):
                cost += graph.transfer[t, graph.made[y]]
    for f in range(graph.attended):
        if within(graph.free_groups[f], inner, outer):
            if not graph.free_inside[t, f]:
                cost += graph.free_transfer[t, f]
        elif meets(graph.free_groups[f], inner, outer):
            cost += graph.free_transfer[t, f]
    if lattice.size[i] - lattice.size[j] + lattice.free_size[i] - lattice.free_size[j] > limit:
        over = lattice.size[i] - lattice.size[j] - float(limit)
        for f in range(len(graph.free_size)):
            if graph.free_inside[t, f] and within(graph.free_groups[f], inner, outer):
                over += graph.free_size[f]
        for x in range(len(graph.free_size)):
            if over <= 0:
                break
            f = graph.evict[t, x]
            if graph.free_inside[t, f] and within(graph.free_groups[f], inner, outer):
                if graph.free_size[f] > over:
                    cost += graph.free_transfer[t, f] * (over / graph.free_size[f])
                    break
                cost += graph.free_transfer[t, f]
                over -= graph.free_size[f]
    return cost


@part
def place(lattice: Any, i: int, u: int) -> Any:
    """The place of node u in the frontier of ideal i; 0 when it is not there."""
    for x in range(lattice.front_ptr[i], lattice.front_ptr[i + 1]):
        if lattice.front[x] == u:
            return x - lattice.front_ptr[i] + 1
    return 0


@part
def step_of(graph: Any, lattice: Any, j: int, q: int, queue: Any) -> Any:
    """Step number ``q`` from ideal j as (node, ideal reached). The steps are first the covers of j, the node on a CPU (ideal -1
    where no CPU runs it), then the pieces that ``supersets`` wrote in ``queue`` (node -1)."""
    c = lattice.cover_ptr[j] + q
    if c >= lattice.cover_ptr[j + 1]:
        return -1, queue[c - lattice.cover_ptr[j + 1]]
    v = lattice.cover_node[c]
    return v, lattice.cover_to[c] if graph.cpu[v] < NEVER else -1


@part
def mark_read(graph: Any, lattice: Any, j: int, i: int, read: Any) -> None:
    """Sets ``read[x]`` to whether the step i - j reads a tensor of the x-th node (from 0) of the frontier of ideal j."""
    first = lattice.front_ptr[j]
    for x in range(lattice.front_ptr[j + 1] - first):
        read[x] = meets(graph.follow[lattice.front[first + x]], lattice.bits[j], lattice.bits[i])


@part
def longest_tail(tail: Any, onward: int, fresh: int, new: Any) -> Any:
    """The longest tail among the places ``new[:fresh]`` of the ideal and state whose tails begin at ``tail[onward]``."""
    longest = 0.0
    for x in range(fresh):
        longest = max(longest, tail[onward + new[x]])
    return longest


@compiled
def tails(
    graph: Any,
    lattice: Any,
    stride: Any,
    most: float,
    start: Any,
    tail: Any,
    queue: Any,
    stamp: Any,
    begin: int,
    work: int,
) -> Any:
    """Fills ``tail[start[j] + k * (1 + width of the frontier of j) + place]``, seconds, for ideals j from ``begin`` down to 0,
    until about ``work`` steps are done. Completions that take more than ``most`` are left out; where there is no other the tail
    is infinite. Returns (the next ideal j, -1 when all are done; the number of steps done)."""
    kinds, last, done = len(graph.limit), len(lattice.bits) - 1, 0
    states = stride[kinds]
    new = np.empty(len(graph.cpu) + 1, np.int64)
    read = np.empty(len(graph.cpu) + 1, np.bool_)
    stays = np.empty(len(graph.cpu) + 1, np.int64)
    j = begin
    while j >= 0:
        if done > work:
            return j, done
        front = lattice.front_ptr[j + 1] - lattice.front_ptr[j]
        base, step = start[j], front + 1
        if j == last:
            tail[base : base + states] = 0.0
            j -= 1
            continue
        tail[base : base + states * step] = NEVER
        covers = lattice.cover_ptr[j + 1] - lattice.cover_ptr[j]
        count = supersets(graph, lattice, j, most, queue, stamp)
        done += 1 + count
        for q in range(covers + count):
            v, i = step_of(graph, lattice, j, q, queue)
            if i < 0:
                continue
            wide = lattice.front_ptr[i + 1] - lattice.front_ptr[i] + 1
            fresh = 0
            for x in range(lattice.front_ptr[i], lattice.front_ptr[i + 1]):
                u = lattice.front[x]
                if not (lattice.bits[j, u >> 6] >> np.uint64(u & 63)) & np.uint64(1):
                    new[fresh] = x - lattice.front_ptr[i] + 1
                    fresh += 1
            marked = False
            begins = 0.0
            # Tails are least with all pieces left. A step that even then, and without transfers, ends too late always does.
            soonest = longest_tail(tail, start[i] + (states - 1) * wide, fresh, new)
            for t in range(1 if v >= 0 else kinds):
                computed = graph.cpu[v] if v >= 0 else lattice.seconds[i, t] - lattice.seconds[j, t]
                if computed + soonest > most:
                    continue
                cost = computed if v >= 0 else seconds_of(graph, lattice, j, i, t, graph.limit[t])
                done += 0 if v >= 0 else len(graph.ops) // 32  # a model's bytes: a look at each op
                if cost > most:
                    continue
                if not marked:
                    marked = True
                    mark_read(graph, lattice, j, i, read)
                    for x in range(front):
                        u = lattice.front[lattice.front_ptr[j] + x]
                        stays[x] = place(lattice, i, u)
                        if read[x]:
                            begins = max(begins, graph.early[u])
                used = 0 if v >= 0 else stride[t]
                if begins + cost + longest_tail(tail, start[i] + (states - 1 - used) * wide, fresh, new) > most:
                    continue
                for k in range(states):
                    if v < 0 and digits(k, t, stride) == 0:
                        continue
                    onward = start[i] + (k - used) * wide
                    if tail[onward] == NEVER:
                        continue
                    through = cost + longest_tail(tail, onward, fresh, new)
                    if through > most:
                        continue
                    tail[base + k * step] = min(tail[base + k * step], max(tail[onward], through))
                    for x in range(front):
                        value = tail[onward + stays[x]] if stays[x] else 0.0
                        if read[x]:
                            value = max(value, through)
                        at = base + k * step + 1 + x
                        tail[at] = min(tail[at], value)
        j -= 1
    return -1, done
