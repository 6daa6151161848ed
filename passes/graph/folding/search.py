"""Which stretches of the canonical order become blocks: exact repeats, the most ops saved first, then repeats among what is
left.

A round looks at the order of the function and at the bodies of the blocks found so far, all as one string of keys, with a call
of a block as one letter. Candidates are the runs (a chain of layers, cut where the fewest values cross) and the maximal
repeats. A candidate's occurrences agree in every key; they are copies only when the *wiring* agrees too (``_wiring``): each
read comes from the same place inside, or from outside, and two reads are the same name in one copy exactly when they are in the
other. Hashes play no part. Of candidates that overlap, the one that saves most ops stays: ``copies * ops - (ops + copies)``.
Rounds go on until nothing is saved: layers first, then what repeats inside a layer, and blocks of blocks.

Stretches of a topological order are convex, and calls in their place keep the order topological: no cycle can arise.

Work is bounded by the size of the function, whatever it is: ``WORK`` steps of wiring per node and round, best candidates first.
A limit that binds costs savings, never correctness.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from passes.graph.folding.program import Program
from passes.graph.folding.repeats import Repeat, Repeats, Run

MIN_SUPPORT = 2
"""Copies that a block needs."""
MIN_OPS = 2
"""Ops that a block needs; calls of blocks inside it count one."""
WORK = 4
"""Nodes whose wiring is compared in a round, per node of the string."""
CHAIN = 4
"""How much more a chain counts than the same savings apart: what encoder and decoder layers share across their borders must not
cut up both stacks."""
PHASES = 4
"""Ways to cut a chain that are compared by their wiring."""
SPREAD = 8
"""A round ends at what saves less than so small a part of its best: with calls in place, something better may be there."""
MOST_CUTS = 3
"""How often a candidate is cut to a part of it."""
MOST_CYCLES = 2000
"""Kinds of chains that a round looks at, longest first."""
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Item:
    """An op (``block`` is -1) or a copy of a block, in some sequence: ``length`` ops from ``start`` of the canonical order."""

    start: int
    length: int
    block: int = -1


@dataclass(frozen=True, slots=True)
class Grammar:
    """``outer``: the canonical order with copies in place of their ops. ``bodies[b]``: the items of block ``b``, at the places
    of the copy that was found first; blocks refer to blocks, without a cycle."""

    outer: tuple[Item, ...]
    bodies: tuple[tuple[Item, ...], ...]


@dataclass(slots=True)
class _Node:
    """A letter: an op or a call, with the values that it reads from outside and those it defines that may be read."""

    letter: int
    reads: tuple[int, ...]
    defs: tuple[int, ...]
    item: Item


@dataclass(slots=True)
class _Sequence:
    """The function's order, or a body; ``outs`` are the values that are read after its end."""

    nodes: list[_Node]
    outs: frozenset[int]


@dataclass(slots=True)
class _Candidate:
    """Stretches of one spelling, ``count`` or fewer, of ``rank`` among equals: at ``starts``, None where that was not asked so
    far. ``cuts``: how often a part of it was taken instead. ``wirings`` of the places looked at so far."""

    length: int
    weight: int
    rank: int
    count: int
    repeat: Repeat | None
    starts: tuple[int, ...] | None
    cuts: int = 0
    wirings: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def saved(self, copies: int) -> int:
        """What so many copies are worth: the ops that need no look of their own, those of blocks inside included (layers are
        worth more than what joins two of them); nothing where the text would not get shorter."""
        if copies * self.length <= self.length + copies:
            return 0
        return (copies * self.weight - self.weight - copies) * (CHAIN if self.rank < PHASES else 1)


def search(program: Program, order: Sequence[int]) -> Grammar:
    """Folds ``order``: blocks have at least ``MIN_OPS`` ops or calls, and ``MIN_SUPPORT`` copies in one round."""
    nodes = [_Node(program.keys[op], program.reads[op], program.defs[op], Item(place, 1)) for place, op in enumerate(order)]
    sequences = [_Sequence(nodes, frozenset(program.results))]
    calls = max(program.keys, default=0) + 1
    weights = frozenset(value for value, name in enumerate(program.names) if name[:1] == "@")
    while True:
        found = _Round(sequences, calls, weights).run()
        if not found:
            break
        sequences = found
    items = [tuple(node.item for node in sequence.nodes) for sequence in sequences]
    return _tidy(Grammar(items[0], tuple(items[1:])))


class _Round:
    """One pass over all sequences. ``calls``: letters from here on are calls, by block; ``weights``: values that are
    resources."""

    def __init__(self, sequences: list[_Sequence], calls: int, weights: frozenset[int]) -> None:
        self.sequences, self.calls = sequences, calls
        letters: list[int] = []
        self.flat: list[_Node | None] = []
        self.sequence_at: list[int] = []
        for number, sequence in enumerate(sequences):
            letters += [node.letter for node in sequence.nodes]
            self.flat += [*sequence.nodes, None]
            letters.append(-_NEVER + number)
            self.sequence_at += [number] * (len(sequence.nodes) + 1)
        self.letters = letters
        self.ops_before = [0, *accumulate(0 if node is None else node.item.length for node in self.flat)]
        self.repeats = Repeats(letters)
        self.used = bytearray(len(letters))
        self.work = WORK * len(letters)
        self.last_read, self.crossing, self.fan = self._lifetimes()
        self.weighted = np.array([node is not None and not weights.isdisjoint(node.reads) for node in self.flat], dtype=float)
        self.blocks: list[_Sequence] = []
        self.replaced: dict[int, tuple[int, _Node]] = {}

    def run(self) -> list[_Sequence]:
        """The sequences with the best repeats as calls, then the bodies of new blocks; empty when nothing is saved."""
        # Best first; of equals the longer (fewer calls), then chains, which are cut with care, then the first in the order.
        heap: list[tuple[int, int, int, int, int, _Candidate]] = []
        for number, candidate in enumerate(self._candidates()):
            bound = candidate.saved(candidate.count)
            if bound > 0:
                heap.append((-bound, -candidate.length, candidate.rank, -1, number, candidate))
        heapq.heapify(heap)
        best = 0
        while heap and self.work > 0:
            _, _, _, start, number, candidate = heapq.heappop(heap)
            groups = self._copies(candidate, -heap[0][0] if heap else 0)
            value = sum(candidate.saved(len(copies)) for copies in groups)
            if value <= 0:
                continue
            entry = (-value, -candidate.length, candidate.rank, groups[0][0], number, candidate)
            if (heap and heap[0] < entry) or start != groups[0][0]:
                heapq.heappush(heap, entry)
                continue
            if value * SPREAD < best:
                break
            best = max(best, value)
            for copies in groups:
                self._accept(copies, candidate.length)
        if not self.blocks:
            return []
        return [self._rewritten(number) for number in range(len(self.sequences))] + self.blocks

    # -- candidates --------------------------------------------------------------------------------------------------

    def _candidates(self) -> Iterable[_Candidate]:
        seen = set()
        for start, length, rank in self._cuts():
            name = self.repeats.name(start, length)
            if name not in seen:
                seen.add(name)
                starts = tuple(self.repeats.equal_to(start, length))
                yield _Candidate(length, self._weight(start, length), rank, len(starts), None, starts)
        for repeat in self.repeats.maximal(MIN_OPS):
            weight = self._weight(self.repeats.start(repeat), repeat.length)
            yield _Candidate(repeat.length, weight, PHASES, repeat.count, repeat, None)

    def _cuts(self) -> Iterable[tuple[int, int, int]]:
        """For each cycle that runs go through, its best copies, with their rank: where most copies fit, the fewest values cross
        its ends, these are read most (the stream between layers, not the inside of one), and it begins with an op that has
        weights."""
        cycles: dict[tuple[int, int, int], list[tuple[Run, int]]] = {}
        for run in self.repeats.runs:
            origin = self.repeats.rotation(run)
            cycles.setdefault(self.repeats.name(origin, run.period), []).append((run, origin))
        ranked = sorted(cycles.values(), key=lambda runs: (-sum(run.end - run.start for run, _ in runs), runs[0][0].start))
        for runs in ranked[:MOST_CYCLES]:
            period = runs[0][0].period
            times = 1
            if period < MIN_OPS:
                # Ops alone may be taken together to reach the least size; calls may not, or a chain of calls would be
                # folded again and again, in powers of two.
                times = -(-MIN_OPS // period)
                first = runs[0][0].start
                if any(letter >= self.calls for letter in self.letters[first : first + period]):
                    continue
            copies, crossing, fan, heads = (np.zeros(period) for _ in range(4))
            for run, origin in runs:
                places = np.arange(run.start, run.end - period + 1)
                phases = (places - origin) % period
                copies += np.bincount(phases, minlength=period)
                crossing += np.bincount(phases, self.crossing[places], minlength=period)
                fan += np.bincount(phases, self.fan[places], minlength=period)
                heads += np.bincount(phases, self.weighted[places], minlength=period)
            run, origin = runs[0]
            ahead = (origin + np.arange(period) - run.start) % period
            best = np.lexsort((ahead, -heads, -fan, crossing, -copies))[:PHASES]
            for rank, phase in enumerate(best):
                start = run.start + int(ahead[phase])
                if copies[phase] == copies[best[0]] and start + period * times <= run.end:
                    yield start, period * times, rank

    def _lifetimes(self) -> tuple[list[dict[int, int]], np.ndarray, np.ndarray]:
        """Per sequence the place where each value is read last; per place, how many values made before it are read at it or
        later, and how often."""
        last: list[dict[int, int]] = [{} for _ in self.sequences]
        crossing, fan = [0] * (len(self.flat) + 1), [0] * (len(self.flat) + 1)
        place = 0
        for number, sequence in enumerate(self.sequences):
            made: dict[int, int] = {}
            ends = last[number]
            for node in sequence.nodes:
                for value in node.reads:
                    ends[value] = place
                    if value in made:
                        fan[made[value] + 1] += 1
                        fan[place + 1] -= 1
                made.update(dict.fromkeys(node.defs, place))
                place += 1
            for value, start in made.items():
                crossing[start + 1] += 1
                crossing[min(place, ends.get(value, start)) + 1] -= 1
            ends.update(dict.fromkeys(sequence.outs, _NEVER))
            place += 1
        return last, np.cumsum(crossing, dtype=float), np.cumsum(fan, dtype=float)

    # -- copies ------------------------------------------------------------------------------------------------------

    def _copies(self, candidate: _Candidate, wanted: int) -> list[list[int]]:
        """Where the candidate's copies begin: free, apart, and by wiring; kinds of wiring that save nothing left out. Not
        compared, when even all of one wiring would save less than ``wanted``: then all, as an upper bound."""
        used = self.used
        if candidate.starts is None:
            candidate.starts = self._places(candidate)
        starts = tuple(s for s in candidate.starts if used.find(1, s, s + candidate.length) < 0)
        if len(starts) < 2 and candidate.cuts < MOST_CUTS:
            starts = self._free_part(candidate)
        candidate.starts = starts
        length = candidate.length
        apart = _apart(starts, length)
        if candidate.saved(len(apart)) < max(1, wanted):
            return [apart] if len(apart) >= MIN_SUPPORT else []
        kinds: dict[tuple[int, ...], list[int]] = {}
        for start in starts:
            wiring = candidate.wirings.get(start)
            if wiring is None:
                wiring = candidate.wirings[start] = self._wiring(start, length)[0]
                self.work -= length
            kinds.setdefault(wiring, []).append(start)
        busy: set[int] = set()
        groups = []
        for places in sorted(kinds.values(), key=lambda places: (-len(places), places[0])):
            free = _apart([s for s in places if s not in busy and s + length - 1 not in busy], length)
            if len(free) >= MIN_SUPPORT and candidate.saved(len(free)) > 0:
                groups.append(free)
                if len(kinds) > 1:
                    busy.update(place for start in free for place in range(start, start + length))
        return groups

    def _places(self, candidate: _Candidate) -> tuple[int, ...]:
        """Where a repeat stands. One that overlaps itself (``L a L``, ``a`` a changed layer) is cut to what fits between its
        occurrences, less the calls at its ends: there ``a`` is left."""
        assert candidate.repeat is not None
        self.work -= candidate.count
        starts = self.repeats.starts(candidate.repeat)
        gap = min(after - before for before, after in pairwise(starts))
        return starts if gap >= candidate.length else self._cut(candidate, starts[0], starts[0] + gap)

    def _free_part(self, candidate: _Candidate) -> tuple[int, ...]:
        """Where the longest part stands that nothing else has taken of the candidate's first two places."""
        assert candidate.starts is not None
        places, length = candidate.starts[:2], candidate.length
        taken = np.zeros(length + 2, dtype=np.int8)
        taken[0] = taken[-1] = 1
        for start in places:
            taken[1:-1] |= np.frombuffer(self.used, np.int8, length, start)
        self.work -= length // 10
        edges = np.flatnonzero(taken)
        widest = int(np.argmax(np.diff(edges)))
        first, last = int(edges[widest]), int(edges[widest + 1]) - 1
        if len(places) < 2 or last - first < MIN_OPS:
            return ()
        return self._cut(candidate, places[0] + first, places[0] + last)

    def _cut(self, candidate: _Candidate, first: int, last: int) -> tuple[int, ...]:
        """Makes ``candidate`` the stretch ``first .. last`` without calls at its ends; where that stands free."""
        while last - first > MIN_OPS and self.letters[first] >= self.calls:
            first += 1
        while last - first > MIN_OPS and self.letters[last - 1] >= self.calls:
            last -= 1
        candidate.length, candidate.cuts = last - first, candidate.cuts + 1
        candidate.weight = self._weight(first, last - first)
        candidate.wirings.clear()
        self.work -= len(self.letters) // 1000  # what asking for all of them takes
        used, length = self.used, candidate.length
        return tuple(s for s in self.repeats.equal_to(first, length) if used.find(1, s, s + length) < 0)

    def _weight(self, start: int, length: int) -> int:
        """Ops of a stretch, those of blocks included."""
        return self.ops_before[start + length] - self.ops_before[start]

    def _wiring(self, start: int, length: int) -> tuple[tuple[int, ...], list[int], list[int]]:
        """Where each read of a stretch comes from, as a number per read (>= 0: the so-manieth value defined inside; < 0: the
        so-manieth from outside); the values from outside, and those defined, in order."""
        inside: dict[int, int] = {}
        outside: dict[int, int] = {}
        wiring: list[int] = []
        for node in self.flat[start : start + length]:
            assert node is not None
            for value in node.reads:
                place = inside.get(value)
                wiring.append(~outside.setdefault(value, len(outside)) if place is None else place)
            for value in node.defs:
                inside[value] = len(inside)
        return tuple(wiring), list(outside), list(inside)

    def _accept(self, starts: list[int], length: int) -> None:
        """Makes a block of the stretches at ``starts``."""
        block = len(self.sequences) - 1 + len(self.blocks)
        copies = []
        read_later: set[int] = set()
        for start in starts:
            _, outside, inside = self._wiring(start, length)
            last = self.last_read[self.sequence_at[start]]
            read_later |= {slot for slot, value in enumerate(inside) if last.get(value, -1) >= start + length}
            copies.append((start, outside, inside))
            self.used[start : start + length] = b"\1" * length
        slots = sorted(read_later)
        for start, outside, inside in copies:
            nodes = [node for node in self.flat[start : start + length] if node is not None]
            item = Item(nodes[0].item.start, sum(node.item.length for node in nodes), block)
            defs = tuple(inside[slot] for slot in slots)
            self.replaced[start] = (length, _Node(self.calls + block, tuple(outside), defs, item))
            if start == starts[0]:
                self.blocks.append(_Sequence(nodes, frozenset(defs)))

    def _rewritten(self, number: int) -> _Sequence:
        """Sequence ``number`` with calls in place of copies."""
        place = sum(len(sequence.nodes) + 1 for sequence in self.sequences[:number])
        end = place + len(self.sequences[number].nodes)
        nodes: list[_Node] = []
        while place < end:
            length, call = self.replaced.get(place, (1, self.flat[place]))
            assert call is not None
            nodes.append(call)
            place += length
        return _Sequence(nodes, self.sequences[number].outs)


def _apart(starts: Sequence[int], length: int) -> list[int]:
    """Of ascending ``starts``, the first and each next that does not overlap the one before."""
    kept: list[int] = []
    for start in starts:
        if not kept or kept[-1] + length <= start:
            kept.append(start)
    return kept


def _tidy(grammar: Grammar) -> Grammar:
    """Bodies of blocks that one call is left of, or that are one call, stand at their calls; blocks are numbered as they are
    met from outside in."""
    calls = [0] * len(grammar.bodies)
    for items in (grammar.outer, *(body for body in grammar.bodies if len(body) > 1)):
        for item in items:
            while item.block >= 0 and len(grammar.bodies[item.block]) == 1:
                item = grammar.bodies[item.block][0]
            if item.block >= 0:
                calls[item.block] += 1

    def spliced(items: Iterable[Item], shift: int) -> Iterable[Item]:
        for item in items:
            if item.block >= 0 and (calls[item.block] == 1 or len(grammar.bodies[item.block]) == 1):
                body = grammar.bodies[item.block]
                yield from spliced(body, shift + item.start - body[0].start)
            else:
                yield Item(item.start + shift, item.length, item.block)

    numbers: dict[int, int] = {}
    bodies: list[tuple[Item, ...]] = []

    def renumbered(items: Iterable[Item]) -> list[Item]:
        return [Item(i.start, i.length, numbers.setdefault(i.block, len(numbers)) if i.block >= 0 else -1) for i in items]

    outer = renumbered(spliced(grammar.outer, 0))
    while len(bodies) < len(numbers):
        old = list(numbers)[len(bodies)]
        bodies.append(tuple(renumbered(spliced(grammar.bodies[old], 0))))
    return Grammar(tuple(outer), tuple(bodies))
