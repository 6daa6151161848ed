"""What is folded, told of the function as it is: the analysis that ``fold`` writes down and that other passes may use
unwritten.

``folding(func, module)`` gives a ``Folding``:

- ``outer`` and each block's ``body`` are *items*: an op, or a copy of a block; an item covers ``length`` places from ``start``
  of the *order* it lies in. ``Folding.order`` and ``Copy.ops`` are such orders: positions in ``func.ops``. So the op at place
  ``k`` of a block is ``func.ops[copy.ops[k]]`` in each of its copies.
- ``Block.inputs`` is the interface: what the copies read from outside, name by name in ``Copy.operands``. An input is
  ``shared`` when all copies read the same name (a mask, the output of an encoder, a tied weight), else a ``weight`` (a resource
  of each copy) or a ``value``. Constants that all copies share are no input: they stay inside.
- ``Block.outputs`` are the values that any copy is read for from outside, ``Copy.results`` their names.
- Types of inputs and outputs are without layouts: copies may have been laid, and decided, differently (``variants.py``).
- ``Block.chains``: copies that feed one another, each the next, through the same ``links`` (output, input): layers.

Blocks nest. ``Block.copies`` are all copies of the expanded program, also those inside copies of other blocks: ``Copy.parent``
tells in which. Orders follow the function's own where the items allow it.

Every copy has been checked against the first, op by op, for one mapping of names that is one to one (``_check``); that the
result stands on, whatever the search did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ir.core.module import Func, Module
from ir.core.types import Type, without_layout
from ir.system.collector import collector_paused
from passes.graph.folding.order import canonical_order
from passes.graph.folding.program import Program, program_of
from passes.graph.folding.search import Grammar, Item, search
from passes.graph.graph import topological


@dataclass(frozen=True, slots=True)
class Input:
    """One name that a block reads from outside: ``kind`` is ``value``, ``weight`` or ``shared``."""

    kind: str
    type: Type


@dataclass(frozen=True, slots=True)
class Output:
    """A value that is read outside: result ``result`` of the op at ``place``."""

    place: int
    result: int
    type: Type


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy: its ops (positions in the function, in the block's order), the names at its inputs and outputs, and the block
    and number of the copy that it lies in, None in the function itself."""

    ops: tuple[int, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    parent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Copies (numbers, each the next) of which each gives output ``o`` to input ``i`` of the next, for each ``(o, i)`` of
    ``links``."""

    copies: tuple[int, ...]
    links: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A repeated part. ``copies`` are in topological order; the first is the one that names its body when it is written."""

    body: tuple[Item, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    copies: tuple[Copy, ...]
    chains: tuple[Chain, ...]

    @property
    def size(self) -> int:
        """Ops of one copy, those of blocks inside it included."""
        return len(self.copies[0].ops)


@dataclass(frozen=True, slots=True)
class Folding:
    """The repeats of ``func``. Blocks are numbered as they are met from outside in; ``order`` is that of ``outer`` with all
    copies expanded: a topological order of the function. ``keys``: equal for ops that agree in all but names, decisions and the
    elements of larger constants (``program``)."""

    func: Func
    order: tuple[int, ...]
    outer: tuple[Item, ...]
    blocks: tuple[Block, ...]
    keys: tuple[int, ...]


@collector_paused()
def folding(func: Func, module: Module) -> Folding:
    """The repeats of ``func``; resources are looked up in ``module``."""
    program = program_of(func, module.resources)
    order = canonical_order(program)
    grammar = search(program, order)
    return _Structure(program, order, grammar).folding()


@dataclass(slots=True)
class _Place:
    """A copy while it is looked for: where it begins in the canonical order, and what it lies in."""

    start: int
    parent: tuple[int, int] | None


class _Structure:
    """From stretches of the canonical order to blocks, interfaces and chains."""

    def __init__(self, program: Program, order: Sequence[int], grammar: Grammar) -> None:
        self.program, self.order, self.grammar = program, order, grammar
        self.place_of = {op: place for place, op in enumerate(order)}
        self.layouts: dict[int, list[int]] = {}
        self.arranged: dict[int, tuple[Item, ...]] = {}
        func = program.func
        self.types: dict[str, Type] = {value.name: without_layout(value.type) for value in func.args}
        self.last = [-1] * len(program.names)
        for op in range(len(order)):
            self.types.update((value.name, without_layout(value.type)) for value in func.ops[op].results)
            for value in program.reads[op]:
                self.last[value] = max(self.last[value], self.place_of[op])
        for value in program.results:
            self.last[value] = len(order)

    def folding(self) -> Folding:
        outer, layout = self.arrange(self.grammar.outer)
        for block in range(len(self.grammar.bodies)):
            self.layout(block)
        places = self.places()
        return Folding(
            self.program.func,
            tuple(self.order[place] for place in layout),
            outer,
            tuple(self.block(number, found) for number, found in enumerate(places)),
            self.program.keys,
        )

    # -- orders ------------------------------------------------------------------------------------------------------

    def layout(self, block: int) -> list[int]:
        """Places of a copy, from its start, in the order of the block's body."""
        if block not in self.layouts:
            body = self.grammar.bodies[block]
            self.arranged[block], places = self.arrange(body)
            self.layouts[block] = [place - body[0].start for place in places]
        return self.layouts[block]

    def arrange(self, items: Sequence[Item]) -> tuple[tuple[Item, ...], list[int]]:
        """``items`` as near to the order of the function as their dependencies allow: them, by place in that order, and the
        canonical places in it."""
        owner = {place: number for number, item in enumerate(items) for place in range(item.start, item.start + item.length)}
        readers: list[set[int]] = [set() for _ in items]
        first = [len(self.order)] * len(items)
        for place, number in owner.items():
            op = self.order[place]
            first[number] = min(first[number], op)
            for value in self.program.reads[op]:
                maker = owner.get(self.place_of.get(self.program.maker[value], -1), number)
                if maker != number:
                    readers[maker].add(number)
        numbers = sorted(range(len(items)), key=first.__getitem__)
        rank = {number: place for place, number in enumerate(numbers)}
        arranged: list[Item] = []
        places: list[int] = []
        for place in topological([[rank[reader] for reader in readers[number]] for number in numbers]):
            item = items[numbers[place]]
            arranged.append(Item(len(places), item.length, item.block))
            if item.block < 0:
                places.append(item.start)
            else:
                places += [item.start + offset for offset in self.layout(item.block)]
        return tuple(arranged), places

    def places(self) -> list[list[_Place]]:
        """Every copy of each block in the expanded program, by its place."""
        found: list[list[_Place]] = [[] for _ in self.grammar.bodies]

        def meet(items: Iterable[Item], shift: int, parent: tuple[int, int] | None) -> None:
            for item in items:
                if item.block >= 0:
                    start = item.start + shift
                    found[item.block].append(_Place(start, parent))
                    body = self.grammar.bodies[item.block]
                    meet(body, start - body[0].start, (item.block, start))

        meet(self.grammar.outer, 0, None)
        numbers = []
        for places in found:
            places.sort(key=lambda place: place.start)
            numbers.append({place.start: number for number, place in enumerate(places)})
        for places in found:
            for place in places:
                if place.parent is not None:
                    block, start = place.parent
                    place.parent = (block, numbers[block][start])
        return found

    # -- blocks ------------------------------------------------------------------------------------------------------

    def block(self, number: int, places: Sequence[_Place]) -> Block:
        layout = self.layouts[number]
        ops = [tuple(self.order[place.start + offset] for offset in layout) for place in places]
        outside = [self.outside(copy) for copy in ops]
        for copy, values in zip(ops[1:], outside[1:], strict=True):
            self.check(ops[0], copy, outside[0], values)
        inputs, columns = self.inputs(outside)
        outputs = self.outputs(ops, [place.start + len(layout) for place in places])
        names = self.program.names
        copies = tuple(
            Copy(
                copy,
                tuple(names[values[column]] for column in columns),
                tuple(self.program.func.ops[copy[output.place]].results[output.result].name for output in outputs),
                place.parent,
            )
            for copy, values, place in zip(ops, outside, places, strict=True)
        )
        return Block(self.arranged[number], inputs, outputs, copies, _chains(copies))

    def outside(self, ops: Sequence[int]) -> list[int]:
        """Values that ``ops`` read and do not define, in order of the first read."""
        inside = {value for op in ops for value in self.program.defs[op]}
        return [value for value in dict.fromkeys(v for op in ops for v in self.program.reads[op]) if value not in inside]

    def check(self, one: Sequence[int], other: Sequence[int], outside: Sequence[int], others: Sequence[int]) -> None:
        """The proof of a copy: keys equal op by op, and one mapping of values, one to one, that takes every read and every
        definition of ``one`` to that of ``other``. Raises AssertionError, a fault of the search."""
        program = self.program
        mapping = dict(zip(outside, others, strict=True))
        for left, right in zip(one, other, strict=True):
            if program.keys[left] != program.keys[right]:
                raise AssertionError(f"ops {left} and {right} are not alike")
            mapping.update(zip(program.defs[left], program.defs[right], strict=True))
            if [mapping[value] for value in program.reads[left]] != list(program.reads[right]):
                raise AssertionError(f"ops {left} and {right} do not read the same")
        if len(set(mapping.values())) != len(mapping):
            raise AssertionError("two values of a block are one in its copy")

    def inputs(self, outside: Sequence[Sequence[int]]) -> tuple[tuple[Input, ...], list[int]]:
        """The interface, and which of the values from outside each input is: values, then resources."""
        values, weights = [], []
        for column, value in enumerate(outside[0]):
            same = all(row[column] == value for row in outside)
            name = self.program.names[value]
            if name[:1] == "%":
                values.append((Input("shared" if same else "value", self.types[name]), column))
            elif not (same and value in self.program.fixed):
                weight = without_layout(self.program.resources[name].type)
                weights.append((Input("shared" if same else "weight", weight), column))
        found = values + weights
        return tuple(given for given, _ in found), [column for _, column in found]

    def outputs(self, ops: Sequence[Sequence[int]], ends: Sequence[int]) -> tuple[Output, ...]:
        """Values that some copy is read for behind its end."""
        defs, last = self.program.defs, self.last
        found = []
        for place, op in enumerate(ops[0]):
            slots = [slot for slot, value in enumerate(self.program.func.ops[op].results) if value.name]
            for slot, result in enumerate(slots):
                if any(last[defs[copy[place]][slot]] >= end for copy, end in zip(ops, ends, strict=True)):
                    found.append(Output(place, result, without_layout(self.program.func.ops[op].results[result].type)))
        return tuple(found)


def _chains(copies: Sequence[Copy]) -> tuple[Chain, ...]:
    """Longest stretches of copies in one parent that feed one another through the same links."""
    chains: list[Chain] = []
    members, links = [0], set[tuple[int, int]]()

    def close() -> None:
        if len(members) > 1:
            chains.append(Chain(tuple(members), tuple(sorted(links))))

    for number in range(1, len(copies)):
        before, after = copies[number - 1], copies[number]
        given = {name: output for output, name in enumerate(before.results)}
        fed = {(given[name], port) for port, name in enumerate(after.operands) if name in given}
        common = fed & links if len(members) > 1 else fed
        if before.parent == after.parent and common:
            members.append(number)
            links = common
        else:
            close()
            members, links = [number], set()
    close()
    return tuple(chains)
