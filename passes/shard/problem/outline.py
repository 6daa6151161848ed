"""The problem of a function as far as no mesh is needed: its nodes and values, and which of them are alike.

Nodes, in order: ops, weights that choose where they are kept, results of the function (``build``). Nodes
of one form have the same choices, seconds and bytes on every mesh; values of one form have the same layouts and conversions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from ir.core.interning import Interned
from ir.core.module import Func, Module
from ir.core.ops import Op
from ir.core.types import Type
from ir.layout_rules import LayoutRule, Surroundings
from ir.ops.opdefs import module_opsets
from passes.model.folding import Folding
from passes.model.graph import reads
from passes.model.learning import made_last, of_weights, trained
from passes.model.spmd.layouts import is_kept
from passes.shard.problem.cells import cells_of
from passes.shard.problem.fused import Chains, Epilogue
from passes.shard.problem.graph import Graph, ValueNode

BESIDE, BEHIND = 1, 2
"""A gradient that is summed once a step: beside the last backward pass, or behind it."""


class ValueForm(NamedTuple):
    """``flows``: whether the value has a gradient; ``summed``: 0, or how that is summed once a step; ``link``: whether an
    epilogue may follow by it."""

    type: Type
    flows: bool
    summed: int
    link: bool


class OpForm(NamedTuple):
    """The first op of its form. ``reads``: of each operand that is priced its place (-1: a region reads it) and the form of its
    value; ``makes``: the form of each result, -1 for one without a name; ``flows``: whether it has a backward pass."""

    op: Op
    rule: LayoutRule | None
    operands: tuple[Type | None, ...]
    reads: tuple[tuple[int, int], ...]
    makes: tuple[int, ...]
    flows: bool
    epilogue: Epilogue | None


class WeightForm(NamedTuple):
    """The first weight of its form."""

    name: str
    value: int


class OutputForm(NamedTuple):
    """A result of the function."""

    value: int


@dataclass(frozen=True, slots=True)
class Outline:
    """``graph``: who makes and reads the values that are read; its kinds of nodes are numbers of ``forms``. ``value_of[name]``:
    a number of ``values`` for what is made or kept. ``kept``, ``outputs``, ``trained``, ``unsharded``: as of ``ShardInput``.
    ``weights``: those that choose where they are kept; ``state``: bytes of optimizer state of those that train; ``read``: how
    often the ops read a name."""

    forms: tuple[OpForm | WeightForm | OutputForm, ...]
    values: tuple[ValueForm, ...]
    graph: Graph
    value_of: dict[str, int]
    kept: dict[int, str]
    outputs: dict[int, str]
    trained: frozenset[str]
    unsharded: tuple[str, ...]
    weights: frozenset[str]
    state: dict[str, int]
    read: Counter[str]


def outline_of(module: Module, func: Func, chains: Chains, folding: Folding | None, *, training: bool, apart: bool) -> Outline:
    """The outline of ``func``, whose repeats ``folding`` tells. ``apart``: gradients that the backward pass makes last have
    forms of their own."""
    outlining = _Outlining(module, func, chains, training, apart)
    for op in func.ops:
        outlining.op(op)
    for name in dict.fromkeys(name for op in func.ops for name in reads(op) if name in outlining.weights):
        outlining.weight(name)
    for value in func.results:
        outlining.output(value.name)
    return outlining.finish(folding)


class _Outlining:
    def __init__(self, module: Module, func: Func, chains: Chains, training: bool, apart: bool) -> None:
        self.training, self.chains, self.resources = training, chains, module.resources
        self.last = made_last(func) if apart else frozenset()
        self.around = Surroundings(module.resources.values(), module_opsets(module))
        self.around.types.update((arg.name, arg.type) for arg in func.args)
        self.weights = frozenset(name for name, one in self.resources.items() if is_kept(one.type, training=training))
        self.state = trained(self.resources) if training else {}
        self.trained = {name for name in self.weights if name in self.state}
        self.summed = self.weights | of_weights(func, self.trained)
        self.read = Counter(name for op in func.ops for name in read_ports(op))
        self.types = Interned()
        self.value_forms: list[ValueForm] = []
        self.value_numbers: dict[object, int] = {}
        self.value_of: dict[str, int] = {}
        self.numbers: dict[object, int] = {}
        self.forms: list[OpForm | WeightForm | OutputForm] = []
        self.kinds: list[int] = []
        self.made: dict[str, tuple[int, int]] = {}
        self.readers: dict[str, list[tuple[int, int]]] = {}
        self.kept: dict[int, str] = {}
        self.outputs: dict[int, str] = {}
        self.unsharded: set[str] = set()

    def value(self, name: str) -> int:
        """The number of the form of a value; it has been made, or is a weight."""
        if name not in self.value_of:
            summed = (BEHIND if name in self.last else BESIDE) if name in self.summed else 0
            form = ValueForm(self.around.types[name], name in self.trained, summed, name in self.chains.links)
            key = self.types.number(form.type), *form[1:]
            if key not in self.value_numbers:
                self.value_numbers[key] = len(self.value_forms)
                self.value_forms.append(form)
            self.value_of[name] = self.value_numbers[key]
        return self.value_of[name]

    def node(self, key: object, form: OpForm | WeightForm | OutputForm) -> int:
        """Adds a node, of the form that ``key`` tells from others."""
        if key not in self.numbers:
            self.numbers[key] = len(self.forms)
            self.forms.append(form)
        self.kinds.append(self.numbers[key])
        return len(self.kinds) - 1

    def op(self, op: Op) -> None:
        """Adds an op; the values that it reads have been made."""
        kind, rule = self.around.kind(op), self.around.rule(op)
        self.around.see(op)
        count = len(op.operands)
        priced = [(i, name) for i, name in enumerate(read_ports(op)) if name in self.made or name in self.weights]
        flows = any(name in self.trained for name in op.operands)
        if rule is not None and self.training:
            self.trained.update(v.name for v, has in zip(op.results, rule.differentiable[1], strict=True) if has and flows)
        if rule is None:
            self.unsharded.add(op.name)
        operands = tuple([self.around.types.get(name) if name else None for name in op.operands])
        ports = tuple([(i if i < count else -1, self.value(name)) for i, name in priced])
        makes = tuple([self.value(value.name) if value.name else -1 for value in op.results])
        repeats = len(set(op.operands)) < count and tuple(op.operands.index(name) for name in op.operands)
        shared = tuple([self.read[name] for _, name in priced if name in self.weights and name in self.trained])
        epilogue = self.chains.epilogues.get(len(self.kinds))
        form = OpForm(op, rule, operands, ports, makes, flows, epilogue)
        node = self.node((kind, ports, makes, repeats, shared, epilogue), form)
        for port, (_, name) in enumerate(priced):
            self.readers.setdefault(name, []).append((node, port))
        self.made.update((value.name, (node, result)) for result, value in enumerate(op.results) if value.name)

    def weight(self, name: str) -> None:
        """Adds a resource that chooses where it is kept."""
        value = self.value(name)
        node = self.node(("weight", value, self.resources[name].facets), WeightForm(name, value))
        self.made[name] = (node, 0)
        self.kept[node] = name

    def output(self, name: str) -> None:
        """Adds a result of the function; an argument or a weight is handed on as it is."""
        if name not in self.made or name in self.weights:
            return
        node = self.node(("output", self.value(name)), OutputForm(self.value(name)))
        self.outputs[node] = name
        self.readers.setdefault(name, []).append((node, 0))

    def finish(self, folding: Folding | None) -> Outline:
        values = [
            ValueNode(self.value_of[name], maker, tuple(self.readers[name]))
            for name, maker in self.made.items()
            if name in self.readers
        ]
        cells = cells_of(folding, {name: node for node, name in self.kept.items()}) if folding is not None else ()
        return Outline(
            tuple(self.forms),
            tuple(self.value_forms),
            Graph(tuple(self.kinds), tuple(values), cells),
            {name: self.value_of[name] for name in self.made},
            self.kept,
            self.outputs,
            frozenset(self.trained),
            tuple(sorted(self.unsharded)),
            self.weights,
            self.state,
            self.read,
        )


def read_ports(op: Op) -> tuple[str, ...]:
    """What an op reads: its operands, as often as they stand there, then what its regions capture besides."""
    return (*op.operands, *(name for name in reads(op) if name not in op.operands)) if op.regions else op.operands


__all__ = [
    "BEHIND",
    "BESIDE",
    "OpForm",
    "Outline",
    "OutputForm",
    "ValueForm",
    "WeightForm",
    "outline_of",
    "read_ports",
]
