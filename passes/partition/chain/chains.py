"""What every run costs at least on one form of mesh: tables of units, multiplied one behind the other in (min, +).

Where a function is cut, one value (mostly the only one that crosses there) *links* the unit before to the one behind. A unit is
a problem of its own: its least cost by the layouts in which the links before and behind it lie, ``T[before, behind]``; units
that are alike have one table. Everything else that several units have a part in is shared evenly among them (``Parts``): a
weight that many read, a constant op, the conversions of a value that is read in many units. Any plan of a run, cut into its
units, pays at least what these sum up to; so the products of the tables bound all runs, and are exact where units meet in
their links only.

Under a limit of memory every byte has a price, and the sum of seconds and of bytes times price, less the limit times price, is
a bound too (the Lagrangian, as in ``search``). A price that suits one run bounds all others of the form as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ir.core.types import Replicate, Type, type_bytes
from passes.meshes.layouts import Layouts, split
from passes.partition.chain.borders import Cutter
from passes.partition.chain.crossings import Link
from passes.partition.chain.units import Units
from passes.partition.layouts.elimination.elimination import Eliminated, eliminate, join
from passes.partition.layouts.elimination.model import Charges, Model
from passes.partition.layouts.problem.graph import Graph, ValueNode
from passes.partition.layouts.problem.problem import Floats, NodeKind, ShardProblem, ValueKind
from passes.solvers.work import now

BUDGET = 1 << 24
"""Entries of the largest table of one unit."""
CLOSE = 1e-4
"""Relative: how near a bound under a limit of memory is to a way that fits where no better price is looked for."""
MOST_PRICES = 20
"""Prices of memory that are tried for one run."""


@dataclass(frozen=True, slots=True)
class Parts:
    """In how many units each node and each value of the whole problem has a part; the value that links the units at each cut
    (its number, -1 for none), by the unit behind it; units of one kind (``kinds[unit]``) have equal tables on every form."""

    nodes: dict[int, int]
    values: dict[int, int]
    links: tuple[int, ...]
    close: tuple[tuple[bool, bool, bool], ...]
    """Of the link at each cut, whether the unit before makes it, the unit behind reads it, and none before reads it."""
    kinds: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    """Nodes of the whole problem that each unit has a part in, ops first."""


def parts_of(cutter: Cutter, units: Units) -> Parts:
    """``cutter``: of the function on any mesh."""
    whole, problem = cutter.given, cutter.given.problem
    unit_of = {op: unit for unit, ops in enumerate(units.ops) for op in ops}
    ends: dict[int, list[int]] = {}
    for node in whole.outputs:
        ends.setdefault(problem.values[cutter.read[node][0]].maker[0], []).append(node)
    members = []
    nodes: dict[int, int] = {}
    values: dict[int, int] = {}
    for ops in units.ops:
        own = [*units.constants.needed(ops), *ops]
        weights = dict.fromkeys(
            node for op in own for number in cutter.read[op] if (node := problem.values[number].maker[0]) in whole.kept
        )
        members.append(tuple(dict.fromkeys((*own, *weights, *(node for op in own for node in ends.get(op, ()))))))
        for node in members[-1]:
            nodes[node] = nodes.get(node, 0) + 1
        for number in {number for node in members[-1] for number in cutter.read[node]}:
            values[number] = values.get(number, 0) + 1
    # At each cut the value with most bytes for each unit that reads it.
    crossing: list[list[int]] = [[] for _ in range(units.count + 1)]
    for number, value in enumerate(problem.values):
        if value.maker[0] in unit_of:
            last = max((unit_of[node] for node, _ in value.readers if node in unit_of), default=-1)
            for unit in range(unit_of[value.maker[0]] + 1, last + 1):
                crossing[unit].append(number)

    def weight(number: int) -> float:
        return (type_bytes(cutter.types[cutter.names[number]]) or 0) / values.get(number, 1)

    links = tuple(max(row, key=lambda number: (weight(number), -number), default=-1) for row in crossing)
    close = []
    for cut, number in enumerate(links):
        if number < 0:
            close.append((False, False, False))
            continue
        home, readers = unit_of[problem.values[number].maker[0]], problem.values[number].readers
        read = {home if node in whole.outputs else unit_of.get(node, home) for node, _ in readers}
        close.append((home == cut - 1, cut in read, all(unit >= cut for unit in read)))
    known: dict[object, int] = {}
    kinds = []
    for unit, own_nodes in enumerate(members):
        place = {node: i for i, node in enumerate(own_nodes)}
        told: list[object] = [(problem.kinds[node], nodes[node]) for node in own_nodes]
        seen: dict[int, int] = {}
        for node in own_nodes:
            for number in cutter.read[node]:
                if number not in seen:
                    seen[number] = len(seen)
                    value = problem.values[number]
                    maker = place.get(value.maker[0], -1)
                    ports = tuple(sorted((place[reader], port) for reader, port in value.readers if reader in place))
                    told.append((value.kind, maker, value.maker[1] if maker >= 0 else 0, ports, values[number]))
        for number in links[unit : unit + 2]:
            maker, result = problem.values[number].maker if number >= 0 else (-1, -1)
            kind = problem.values[number].kind if number >= 0 else -1  # a link may pass a unit that has no part in it
            told.append((kind, seen.get(number, -1), place.get(maker, -1), result))
        told.append(links[unit] >= 0 and links[unit] == links[unit + 1])
        kinds.append(known.setdefault(tuple(told), len(known)))
    return Parts(nodes, values, links, tuple(close), tuple(kinds), tuple(members))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit's problem, and the nodes that stand for its links (-1: none)."""

    problem: ShardProblem
    before: int
    behind: int


@dataclass(frozen=True, slots=True)
class _Table:
    """``table[before, behind]`` of one unit at one price, and the way back; ``ends``: which variables the two are (0: before);
    ``needs``: bytes of those asked for."""

    table: Floats
    model: Model
    found: Eliminated | None
    ends: tuple[tuple[int, int], ...]
    needs: dict[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Way:
    """The cheapest way through a run at a price: its seconds and its bytes."""

    seconds: float
    memory: float


class Chain:
    """The tables of one form of mesh."""

    def __init__(self, cutter: Cutter, parts: Parts) -> None:
        """``cutter``: of the function on the mesh."""
        self.cutter, self.parts = cutter, parts
        self.units: dict[int, _Unit] = {}
        self.excess: dict[Type, Floats] = {}
        self.known: dict[tuple[int, float], _Table] = {}

    def states(self, cut: int) -> int:
        """The number of sources of the link before unit ``cut``, its layouts, once more where it may be one of a chain of
        epilogues (``fused``); 1 where there is none."""
        problem, number = self.cutter.given.problem, self.parts.links[cut]
        return len(problem.value_kinds[problem.values[number].kind].weights) if number >= 0 else 1

    def arriving(self, cut: int, seconds: Floats | None) -> Floats:
        """Seconds by layout of what comes from another stage as those by source: there it is of no chain of epilogues."""
        found = np.zeros(self.states(cut))
        count = len(self.layouts(cut).placements) if self.parts.links[cut] >= 0 else 1
        found[:count], found[count:] = 0.0 if seconds is None else seconds, np.inf
        return found

    def entering(self, cut: int, links: tuple[Link, Link], alike: bool) -> Floats:
        """Seconds by layout, beyond the least, that the stage from unit ``cut`` on spends on receiving the link before it; from
        one of another shape it comes whole. ``links``: from an earlier stage, and from the one before."""
        made, read, _ = self.parts.close[cut]
        if not read:
            return self.arriving(cut, None)
        if made and not alike:
            return self.arriving(cut, np.where(self.whole(cut), 0.0, np.inf))
        return self.arriving(cut, self.beyond(cut, links[1] if made else links[0]))

    def leaving(self, cut: int, links: tuple[Link, Link], alike: bool) -> Floats:
        """Likewise of sending it, for the stage before; parts are brought together for a stage of another shape. ``links``: to
        a later stage, and to the next."""
        made, read, _ = self.parts.close[cut]
        if not made or not (alike or read):
            return np.zeros(self.states(cut))
        if alike:
            return np.resize(self.beyond(cut, links[1] if read else links[0]), self.states(cut))
        return self.gathered(cut)

    def gathered(self, cut: int) -> Floats:
        """Seconds by layout for bringing the link before unit ``cut`` together, where no unit before may have done so."""
        gathered = self.layouts(cut).convert[:, int(self.whole(cut).argmax())] * self.parts.close[cut][2]
        return np.resize(gathered, self.states(cut))

    def name(self, cut: int) -> str:
        """Of the link before unit ``cut``; empty where there is none."""
        return self.cutter.names[self.parts.links[cut]] if self.parts.links[cut] >= 0 else ""

    def layouts(self, cut: int) -> Layouts:
        return self.cutter.given.layouts[self.name(cut)]

    def whole(self, cut: int) -> NDArray[np.bool_]:
        """Which layouts are whole tensors everywhere."""
        return np.array([all(isinstance(one, Replicate) for one in lies) for lies in self.layouts(cut).placements])

    def beyond(self, cut: int, link: Link) -> Floats:
        """Seconds by layout that a member spends on the link before unit ``cut``, less those for an even part of it."""
        name, mesh = self.name(cut), self.cutter.given.mesh
        type_, times = self.cutter.types[name], 2 if name in self.cutter.given.trained else 1
        if type_ not in self.excess:
            parts = np.array([split(type_, lies, mesh) for lies in self.layouts(cut).placements])
            self.excess[type_] = np.maximum(parts - 1 / math.prod(mesh.sizes), 0.0) * (type_bytes(type_) or 0)
        return times * self.excess[type_] / link.bandwidth

    # -- runs ----------------------------------------------------------------------------------------------------------

    def rows(self, price: float, before: Sequence[Floats]) -> list[Floats]:
        """``[j][i, layout]``: the least of units i .. j - 1 whose last link lies so, ``before[i]`` being paid at the first."""
        from passes.partition.chain.kernels import through

        found = [np.zeros((0, self.states(0)))]
        for unit in range(len(self.parts.kinds)):
            rows = np.vstack([found[-1], before[unit][None, :]])
            found.append(through(rows, self.table(unit, price).table))
        return found

    def way(self, price: float, first: int, behind: int, before: Floats, after: Floats) -> Way | None:
        """The cheapest way through units ``first .. behind - 1``, given what the layouts at its ends cost; None where there is
        none."""
        tables = [self.table(unit, price) for unit in range(first, behind)]
        sums = [before]
        for one in tables:
            sums.append((sums[-1][:, None] + one.table).min(axis=0))
        state = int((sums[-1] + after).argmin())
        total = float(sums[-1][state] + after[state])
        if not math.isfinite(total):
            return None
        states = [state]
        for one, row in zip(reversed(tables), reversed(sums[:-1]), strict=True):
            states.append(int((row + one.table[:, states[-1]]).argmin()))
        states.reverse()
        memory = math.fsum(self.bytes_of(one, *ends) for one, ends in zip(tables, pairwise(states), strict=True))
        return Way(total - price * memory, memory)

    def bytes_of(self, one: _Table, before: int, behind: int) -> float:
        if (before, behind) not in one.needs:
            chosen = self.chosen(one, before, behind)
            one.needs[before, behind] = one.model.problem.memory(chosen)
        return one.needs[before, behind]

    @staticmethod
    def chosen(one: _Table, before: int, behind: int) -> tuple[int, ...]:
        assert one.found is not None
        model = one.model
        values = {variable: (before, behind)[end] for end, variable in one.ends}
        one.found.trace(values)
        return tuple(values[model.choice(node)] for node in range(model.problem.size))

    def best_price(
        self,
        first: int,
        behind: int,
        before: Floats,
        after: Floats,
        limit: float,
        known: Iterable[float] = (0.0,),
        *,
        until: float = math.inf,
    ) -> float:
        """The price of a byte under which a run that must fit into ``limit`` bytes is bounded best; ``known``: prices to begin
        with. The lines of a way that fits and of one that does not meet at the next price to try (Everett 1963). After the
        time ``until`` (of ``now``) none is tried but those known."""
        if limit < 0:
            return 0.0
        dense: Way | None = None
        sparse: Way | None = None
        best, bound, price = 0.0, 0.0, 0.0
        waiting = sorted(known)
        for _ in range(MOST_PRICES):
            if waiting:
                price = waiting.pop(0)
            elif dense is None:
                break
            elif sparse is None:
                price = max(8.0 * price, dense.seconds / dense.memory)
            else:
                following = (sparse.seconds - dense.seconds) / (dense.memory - sparse.memory)
                if sparse.seconds <= bound * (1 + CLOSE) or math.isclose(following, price, rel_tol=1e-9):
                    break
                price = following
            found = self.way(price, first, behind, before, after)
            if found is None:
                return 0.0
            here = found.seconds + price * (found.memory - limit)
            if here > bound:
                best, bound = price, here
            if found.memory > limit:
                dense = found
            else:
                sparse, waiting = found, []
            if not waiting and now() > until:
                break
        return best

    # -- units ---------------------------------------------------------------------------------------------------------

    def table(self, unit: int, price: float) -> _Table:
        kind = self.parts.kinds[unit]
        if (kind, price) not in self.known:
            if kind not in self.units:
                self.units[kind] = self.unit(unit)
            self.known[kind, price] = self.searched(self.units[kind], (self.states(unit), self.states(unit + 1)), price)
        return self.known[kind, price]

    @staticmethod
    def searched(own: _Unit, shape: tuple[int, int], price: float) -> _Table:
        problem = own.problem
        model = Model(problem, Charges(problem), price)
        ends = tuple((end, model.choice(node)) for end, node in enumerate((own.before, own.behind)) if node >= 0)
        if not all(len(problem.node_kinds[number].seconds) for number in problem.kinds):
            return _Table(np.full(shape, np.inf), model, None, ends)
        factors = [model.node_factor(node).factor for node in range(problem.size)]
        for number in range(len(problem.values)):
            factors += [owned.factor for owned in model.value_factors(number, ())]
        scope = tuple(variable for _, variable in ends)
        found = eliminate(factors, model.sizes, scope, BUDGET)
        table = np.ascontiguousarray(join(found.left, scope, model.sizes)).reshape(shape)
        return _Table(table, model, found, ends)

    def unit(self, unit: int) -> _Unit:
        """The problem of a unit by itself."""
        whole, parts = self.cutter.given.problem, self.parts
        nodes, (before, behind) = parts.members[unit], parts.links[unit : unit + 2]
        place = {node: i for i, node in enumerate(nodes)}
        node_kinds: list[NodeKind] = []
        value_kinds: list[ValueKind] = []
        known: dict[tuple[str, int, int], int] = {}
        kinds = []
        for node in nodes:
            key = ("node", whole.kinds[node], parts.nodes[node])
            if key not in known:
                known[key] = len(node_kinds)
                node_kinds.append(whole.node(node).times(1 / parts.nodes[node]))
            kinds.append(known[key])

        def added(kind: NodeKind) -> int:
            node_kinds.append(kind)
            kinds.append(len(node_kinds) - 1)
            return len(kinds) - 1

        wanted = dict.fromkeys(number for node in nodes for number in self.cutter.read[node])
        wanted.update((number, None) for number in (before, behind) if number >= 0)
        values = []
        ends = {before: -1, behind: -1}
        entering = -1
        for number in wanted:
            value = whole.values[number]
            count = len(whole.value_kinds[value.kind].weights)
            key = ("value", value.kind, parts.values.get(number, 1))
            if key not in known:
                known[key], old = len(value_kinds), whole.value_kinds[value.kind]
                value_kinds.append(replace(old, weights=old.weights / parts.values.get(number, 1)))
            kind_number = known[key]
            if value.maker[0] in place:
                maker = place[value.maker[0]], value.maker[1]
            else:
                every = np.arange(count)
                maker = (added(NodeKind(("",) * count, np.zeros(count), np.zeros(count), makes=(every,))), 0)
                if number == before:
                    entering = maker[0]
            readers = sorted((place[node], port) for node, port in value.readers if node in place)
            if number == behind:
                teller, kind_number = self.told(value_kinds, kind_number)
                ends[behind] = added(teller)
                readers.append((ends[behind], 0))
            values.append(ValueNode(kind_number, maker, tuple(readers)))
        leaves = ends[behind] if behind >= 0 else -1
        return _Unit(ShardProblem(tuple(node_kinds), tuple(value_kinds), Graph(tuple(kinds), tuple(values))), entering, leaves)

    @staticmethod
    def told(value_kinds: list[ValueKind], number: int) -> tuple[NodeKind, int]:
        """A node that says in which layout a value leaves, and the kind of such a value: another source than its choice is
        forbidden."""
        old = value_kinds[number]
        count, keys = len(old.weights), old.weights.shape[1]
        other = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
        needs = (*old.needs, *((keys + layout,) for layout in range(count)))
        value_kinds.append(ValueKind(np.hstack([old.weights, other]), needs))
        reads = np.arange(count) + len(old.needs)
        return NodeKind(("",) * count, np.zeros(count), np.zeros(count), reads=(reads,)), len(value_kinds) - 1
