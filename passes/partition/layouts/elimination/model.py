"""Factors of a problem: the variables of nodes and values, and the tables over them.

Variables: a node's choice; the source class of a value and the need class of each of its readers where a table of more than two
hangs on them; the state of what is held of a value. Each belongs to a node (its maker or reader), and so to the cell of that
node. Tables are built once per form of value (its kind, those of its nodes), so equal layers share them.
"""

from __future__ import annotations

from collections.abc import Container, Set
from dataclasses import dataclass

import numpy as np

from passes.partition.layouts.elimination.charges import Charge, charge_of
from passes.partition.layouts.elimination.elimination import Factor
from passes.partition.layouts.problem.graph import Integers
from passes.partition.layouts.problem.problem import Floats, ShardProblem


class Charges:
    """Charges of values, made once per form."""

    def __init__(self, problem: ShardProblem, spread: Set[int] = frozenset()) -> None:
        """``spread``: values whose readers must not meet in one table."""
        self.problem, self.spread = problem, spread
        self.known: dict[tuple[int, bool], Charge] = {}
        self.values: dict[int, tuple[Charge, tuple[int, ...]]] = {}

    def of(self, number: int) -> tuple[Charge, tuple[int, ...]]:
        """The charge of a value and its reading nodes, each once."""
        if number not in self.values:
            self.values[number] = self.found(number)
        return self.values[number]

    def found(self, number: int) -> tuple[Charge, tuple[int, ...]]:
        form, row = self.problem.graph.form_of[number]
        joint = number not in self.spread
        if (form, joint) not in self.known:
            self.known[form, joint] = charge_of(self.problem, self.problem.graph.forms[form], joint=joint)
        return self.known[form, joint], tuple(self.problem.graph.forms[form].nodes[row, 1:].tolist())


@dataclass(frozen=True, slots=True)
class Owned:
    """A factor and the nodes that its variables belong to."""

    factor: Factor
    nodes: tuple[int, ...]


class Model:
    """Factors of a problem where a byte of memory per device costs ``price`` seconds."""

    def __init__(self, problem: ShardProblem, charges: Charges, price: float = 0.0) -> None:
        self.problem, self.charges, self.price = problem, charges, price
        self.numbers: dict[tuple[object, ...], int] = {}
        self.sizes: dict[int, int] = {}
        self.owner: list[int] = []
        self.known: dict[int, list[Owned]] = {}
        self.unary: dict[int, Floats] = {}
        self.links: dict[int, Floats] = {}
        self.permuted: dict[int, Floats] = {}

    def variable(self, owner: int, size: int, *name: object) -> int:
        number = self.numbers.setdefault((owner, *name), len(self.numbers))
        if number == len(self.owner):
            self.sizes[number] = size
            self.owner.append(owner)
        return number

    def choice(self, node: int) -> int:
        """The variable of a node's choice."""
        return self.variable(node, len(self.problem.node(node).seconds))

    def node_factor(self, node: int) -> Owned:
        kind = self.problem.kinds[node]
        if kind not in self.unary:
            found = self.problem.node_kinds[kind]
            self.unary[kind] = found.seconds + self.price * found.memory if self.price else found.seconds
        return Owned(Factor((self.choice(node),), self.unary[kind]), (node,))

    def value_factors(self, number: int, nodes: Container[int]) -> list[Owned]:
        """The factors of a value: of one that is spread over many cells, those of its readers among ``nodes``."""
        if number in self.charges.spread:
            return self.charged(number, nodes)
        if number not in self.known:
            self.known[number] = self.charged(number, None)
        return self.known[number]

    def charged(self, number: int, nodes: Container[int] | None) -> list[Owned]:
        value = self.problem.values[number]
        charge, readers = self.charges.of(number)
        maker = value.maker[0]
        found: list[Owned] = []
        direct = charge.joint and len(readers) == 1 and readers[0] != maker
        source = self.classed(found, maker, charge.source_of, direct, "source", number)
        wanted = [i for i, node in enumerate(readers) if nodes is None or node in nodes]
        needs = [self.classed(found, readers[i], charge.need_of[i], direct, "need", number) for i in wanted]
        if charge.joint:
            table = charge.tables[0]
            if direct:  # no variables between: the table in terms of choices
                if id(table) not in self.permuted:
                    self.permuted[id(table)] = table[charge.source_of][:, charge.need_of[0]]
                table = self.permuted[id(table)]
            found.append(Owned(Factor((source, *needs), table), (maker, *readers)))
            return found
        for i, need in zip(wanted, needs, strict=True):
            found.append(Owned(Factor((source, need), charge.tables[i]), (maker, readers[i])))
        return found

    def classed(self, found: list[Owned], node: int, classes: Integers, direct: bool, *name: object) -> int:
        """The variable of a node's class, tied to its choice."""
        choice = self.choice(node)
        if direct:
            return choice
        count = int(classes.max()) + 1 if len(classes) else 0
        variable = self.variable(node, count, *name)
        if id(classes) not in self.links:
            link = np.full((len(classes), count), np.inf)
            link[np.arange(len(classes)), classes] = 0.0
            self.links[id(classes)] = link
        found.append(Owned(Factor((choice, variable), self.links[id(classes)]), (node,)))
        return variable
