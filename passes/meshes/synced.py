"""How members agree on the gradient of each weight of a plan: what ``sync`` asks for, where the plan allows it.

- ``sfb``: of a weight whose gradient is a product (``factors``) that members hold terms of.
- ``ps``: of a weight whose gradient is summed by an all-reduce. Servers are spread: each weight, the largest first, goes to the
  member that is done first with those before it.
- ``auto``: the factors are gathered of those weights for which that takes least (``duplicated``): seconds of the products that
  each member then multiplies whole, and of what it gathers, less those of the sums that are saved. A backward pass may hide a
  part of these sums, so they are counted whole and by parts, and each answer is priced: what is kept is the quickest plan by
  the bill, which knows what is hidden (``Bill.overlapped``). Then a few weights are tried the other way, and sums go through a
  server where that is quicker.

``auto`` chooses nothing that takes more memory than there is. Gradients of a weight that several stages read are summed by
all-reduce.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.core.facets import Sync, sync_of
from ir.core.module import Func, Module, Resource
from passes.costs.learning import trained
from passes.graph.graph import reads
from passes.meshes.costs.bill import Bill
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.staged import Staged

COUNTED = (1.0, 0.5, 0.25)
"""Parts of the seconds of sums by which ``auto`` weighs them, beside the part that the plan does not hide."""
MOST_SERVERS = 16
"""Members of an axis that may be servers."""
MOST_FLIPS = 16
"""Weights whose choice is tried the other way behind that: a sum may hide behind the backward pass because another is saved,
which no price of one weight alone tells (an MLP of 4096 wide layers on 2xa100x4: 4.26 instead of 5.16 ms a step)."""
_ASKED = ("sfb", "ps", "auto")


def synced_in(resources: Mapping[str, Resource], names: Iterable[str]) -> dict[str, Sync]:
    """The decisions about weights that the module states, of those whose gradients are not summed by all-reduce."""
    found = {name: sync_of(resources[name].facets) for name in names if name in resources}
    return {name: sync for name, sync in found.items() if sync.method in ("sfb", "ps")}


def synchronised(module: Module, stage: Staged, microbatches: int, *, flips: int = MOST_FLIPS) -> Staged:
    """A stage of a training step, decided but for this, with what the module's ``sync`` asks for and its price. ``flips``: how
    many weights are tried the other way."""
    chooser = _Chooser(module, stage, microbatches, flips)
    return chooser.stage() if chooser.asked else stage


def part_of(func: Func, stage: Staged) -> Func:
    """The ops of a stage as a function."""
    own = [func.ops[i] for i in stage.ops]
    made = {value.name for op in own for value in op.results}
    entering = [v for op in func.ops for v in op.results if v.name in stage.decisions.entering and v.name not in made]
    results = tuple(value for value in func.results if value.name in made)
    return replace(func, args=(*func.args, *entering), results=results, ops=tuple(own))


@dataclass(slots=True)
class _Chooser:
    """Decides for one stage, as ``before`` but for this; ``microbatches`` share a sum."""

    module: Module
    before: Staged
    microbatches: int
    flips: int

    @property
    def asked(self) -> dict[str, Sync]:
        """Of the weights that this stage alone reads, what is asked for beside all-reduce."""
        func, resources = self.module.entry, self.module.resources
        own = set(self.before.ops)
        read = {name for i in own for name in reads(func.ops[i]) if name in resources}
        read -= {name for i, op in enumerate(func.ops) if i not in own for name in reads(op)}
        found = {name: sync_of(resources[name].facets) for name in sorted(read & trained(resources).keys())}
        return {name: sync for name, sync in found.items() if sync.method in _ASKED}

    def stage(self) -> Staged:
        """The stage with its decisions."""
        asked = self.asked
        by_factors = [name for name, sync in asked.items() if sync.method != "ps"]
        every = self.priced(dict.fromkeys(by_factors, Sync("sfb")))
        able = {name for name, *_ in every.bill.products} & set(by_factors)
        fixed = {name: sync for name, sync in asked.items() if sync.method == "sfb" and name in able}
        served = [name for name, sync in asked.items() if sync.method == "ps"]
        best = self.priced({**fixed, **self.servers(served, asked)})
        free = {name for name, sync in asked.items() if sync.method == "auto"}
        if not free:
            return best
        base = best
        hidden = base.bill.hidden / (math.fsum(one.seconds for one in base.bill.collectives if one.summed) or 1.0)
        for part in sorted({*COUNTED, 1.0 - hidden}, reverse=True):
            chosen = self.products(base.bill, every.bill, able & free, part)
            found = self.priced({**base.decisions.synced, **dict.fromkeys(sorted(chosen), Sync("sfb"))})
            best = min(best, found, key=self.value)
        best = self.flipped(best, every.bill, base.bill, able & free)
        left = sorted(free - best.decisions.synced.keys())
        quicker = self.servers(left, asked, quicker=best.bill)
        return min(best, self.priced({**best.decisions.synced, **quicker}), key=self.value) if quicker else best

    def priced(self, synced: Mapping[str, Sync]) -> Staged:
        """The stage under these decisions. What is saved for backward passes is as it was."""
        decisions = replace(self.before.decisions, synced=synced)
        func, old = part_of(self.module.entry, self.before), self.before.bill
        bill = price(self.module, func, self.before.mesh, decisions, training=True, microbatches=self.microbatches)
        bill.memory += old.saved - bill.saved
        bill.saved = old.saved
        return replace(self.before, decisions=decisions, bill=bill)

    def value(self, stage: Staged) -> tuple[bool, float]:
        """Whether a stage misses the memory that there is, and its seconds."""
        limit = stage.mesh.memory
        types = {name: resource.type for name, resource in self.module.resources.items()}
        over = limit is not None and footprint(self.module.entry, types, stage).total > limit
        return over, stage.bill.overlapped

    def products(self, now: Bill, every: Bill, weights: Collection[str], part: float) -> frozenset[str]:
        """The weights whose factors are gathered where ``part`` of the seconds of sums counts; ``every``: the bill where all
        are that can be."""
        saved: dict[str, float] = defaultdict(float)
        of = {value: weight for weight, _, _, value in every.products}
        for one in now.collectives:
            saved[of.get(one.value, one.value)] += one.seconds if one.summed else 0.0
        spent: dict[tuple[str, str], float] = defaultdict(float)
        for one in every.collectives:
            spent[one.factor, one.value] += one.seconds if one.factor else 0.0
        numbers: dict[object, int] = {}
        costs: list[float] = []

        def node(key: object, cost: float) -> int:
            if key not in numbers:
                numbers[key] = len(costs)
                costs.append(cost)
            return numbers[key]

        edges = []
        for name, op, rows, _ in every.products:
            if name not in weights:
                continue
            weight = node(name, -part * saved[name])
            product = node(("op", op), every.repeated[op])
            edges.append((product, weight, math.inf))
            edges += [(node(row, spent[row]), product, math.inf) for row in rows]
        chosen = duplicated(costs, edges)
        return frozenset(name for name in weights if numbers.get(name) in chosen)

    def flipped(self, best: Staged, every: Bill, summed: Bill, weights: Collection[str]) -> Staged:
        """The stage, or a quicker one in which another choice is made for some of the weights with the longest sums, each tried
        once, with those that have no other factors (the bias beside a matrix)."""
        rows: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for name, _, some, _ in every.products:
            rows[name].update(some)
        spent: dict[str, float] = defaultdict(float)
        for one in summed.collectives:
            spent[one.value] += one.seconds if one.summed else 0.0
        for name in sorted(weights, key=lambda name: (-spent[name], name))[: self.flips]:
            group = [other for other in sorted(weights) if rows[other] <= rows[name]]
            synced = {other: sync for other, sync in best.decisions.synced.items() if other not in group}
            if name not in best.decisions.synced:
                synced |= dict.fromkeys(group, Sync("sfb"))
            best = min(best, self.priced(synced), key=self.value)
        return best

    def servers(self, weights: Collection[str], asked: Mapping[str, Sync], quicker: Bill | None = None) -> dict[str, Sync]:
        """A server of each of these weights whose gradient is summed by all-reduce on an axis; with ``quicker``, of those alone
        whose sum then takes less than in this bill."""
        axes = {axis.name: axis for axis in self.before.mesh.axes}
        sums = [one for one in (quicker or self.before.bill).collectives if one.summed and one.kind == "all_reduce"]
        busy: dict[tuple[str, int], float] = defaultdict(float)
        found = {}
        for one in sorted(sums, key=lambda one: (-one.size, one.value)):
            axis = axes[one.axis]
            if one.value not in weights or one.value in found or axis.servers is None:
                continue
            seconds = {place: axis.served(one.size, place) for place in range(min(axis.size, MOST_SERVERS))}
            place = asked[one.value].server
            if not 0 <= place < axis.size:
                place = min(seconds, key=lambda place: (busy[axis.name, place] + seconds[place], place))
            seconds.setdefault(place, 0.0)
            if quicker is None or seconds[place] < one.seconds * one.runs:
                found[one.value] = Sync("ps", server=place)
                busy[axis.name, place] += seconds[place]
        return found


def duplicated(costs: Sequence[float], edges: Sequence[tuple[int, int, float]]) -> frozenset[int]:
    """Which ops every member runs whole, so that the fewest seconds are spent: a minimum cut. Node i costs ``costs[i]`` where
    it is chosen (negative: it saves); an edge (i, j, b) costs b where j is chosen and i is not, so that j's operand i has to be
    gathered, and is never cut where b is inf. TAG states it as an integer program (Zhang et al. 2023), whose dual is a flow:
    from the source to nodes that save, from nodes that cost to the sink, from j to i along each edge. Of several best choices
    the smallest."""
    from passes.solvers.flow_kernels import max_flow, source_side

    source, sink = len(costs), len(costs) + 1
    most = 1.0 + math.fsum(abs(cost) for cost in costs)  # more than any choice is worth
    arcs = [(source, i, -cost) for i, cost in enumerate(costs) if cost < 0]
    arcs += [(i, sink, cost) for i, cost in enumerate(costs) if cost > 0]
    arcs += [(after, before, min(cost, most)) for before, after, cost in edges if cost > 0]
    tails = np.array([end for one, other, _ in arcs for end in (one, other)], np.int64)
    heads = np.array([end for one, other, _ in arcs for end in (other, one)], np.int64)
    residual = np.array([part for _, _, capacity in arcs for part in (capacity, 0.0)], np.float64)
    order = np.argsort(tails, kind="stable")
    first = np.searchsorted(tails[order], np.arange(len(costs) + 3))
    max_flow(first, order, heads, residual, source, sink, math.inf)
    side = source_side(first, order, heads, residual, source)
    return frozenset(int(i) for i in np.flatnonzero(side[: len(costs)]))
