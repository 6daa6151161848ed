"""The problem of a function as far as no mesh is needed: its nodes and values, and which of them are alike.

Nodes, in order: ops, weights that choose where they are kept, results of the function (``build``). Nodes
of one form have the same choices, seconds and bytes on every mesh; values of one form have the same layouts and conversions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ir.core.module import Func, Module
from ir.core.ops import Interned, Op
from ir.core.types import Type
from ir.layout_rules import LayoutRule, Surroundings
from ir.ops.opdefs import module_opsets
from passes.costs.blocked import blocked_values
from passes.costs.learning import made_last, of_weights, runs_first, trained
from passes.graph.folding import Folding
from passes.graph.graph import reads
from passes.meshes.layouts import is_kept
from passes.partition.layouts.problem.fused import Chains, Epilogue
from passes.partition.layouts.problem.graph import Graph, ValueNode

BESIDE, BEHIND = 1, 2
"""A gradient that is summed once a step: beside the last backward pass, or behind it."""


class ValueForm(NamedTuple):
    """``flows``: whether the value has a gradient; ``summed``: 0, or how that is summed once a step; ``link``: whether an
    epilogue may follow by it; ``blocked``: whether it is reordered where its layout changes (``passes.costs.blocked``)."""

    type: Type
    flows: bool
    summed: int
    link: bool
    blocked: bool


class OpForm(NamedTuple):
    """The first op of its form. ``reads``: of each operand that is priced its place (-1: a region reads it) and the form of its
    value; ``makes``: the form of each result, -1 for one without a name; ``flows``: whether it has a backward pass;
    ``hides``: whether sums of gradients may travel beside that (``runs_first``)."""

    op: Op
    rule: LayoutRule | None
    operands: tuple[Type | None, ...]
    reads: tuple[tuple[int, int], ...]
    makes: tuple[int, ...]
    flows: bool
    hides: bool
    epilogue: Epilogue | None


class WeightForm(NamedTuple):
    """The first weight of its form. ``becomes``: of a state, the form of the result that it becomes, which leaves where the
    state is kept; else -1. ``whole``: whether each device keeps all of it, as of a state that is given with a sequence."""

    name: str
    value: int
    becomes: int = -1
    whole: bool = False


class OutputForm(NamedTuple):
    """A result of the function. ``whole``: whether it leaves whole on each device."""

    value: int
    whole: bool = False


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
    forms of their own, and so have ops that it runs before it makes the first."""
    outlining = _Outlining(module, func, chains, training, apart)
    for position, op in enumerate(func.ops):
        outlining.op(op, folding.keys[position] if folding is not None else None)
    for name in dict.fromkeys(name for op in func.ops for name in reads(op) if name in outlining.weights):
        outlining.weight(name)
    for value in func.results:
        outlining.output(value.name)
    return outlining.finish(folding)


class _Outlining:
    def __init__(self, module: Module, func: Func, chains: Chains, training: bool, apart: bool) -> None:
        self.training, self.chains, self.resources = training, chains, module.resources
        self.blocked: frozenset[str] = frozenset() if training else blocked_values(func)
        self.last = made_last(func) if apart else frozenset()
        self.around = Surroundings(module.resources.values(), module_opsets(module))
        self.around.types.update((arg.name, arg.type) for arg in func.args)
        self.weights = frozenset(name for name, one in self.resources.items() if is_kept(one.type, training=training))
        self.state = trained(self.resources) if training else {}
        self.trained = {name for name in self.weights if name in self.state}
        learned = of_weights(func, self.state)
        self.summed = self.weights | learned
        self.first = runs_first(func, (self.state.keys() | learned) - self.last) if apart else frozenset()
        self.read = Counter(name for op in func.ops for name in read_ports(op))
        self.types = Interned()
        self.value_forms: list[ValueForm] = []
        self.value_numbers: dict[object, int] = {}
        self.value_of: dict[str, int] = {}
        self.numbers: dict[object, int] = {}
        self.known: dict[object, tuple[int, tuple[int, ...], tuple[bool, ...]]] = {}
        self.forms: list[OpForm | WeightForm | OutputForm] = []
        self.kinds: list[int] = []
        self.made: dict[str, tuple[int, int]] = {}
        self.readers: dict[str, list[tuple[int, int]]] = {}
        self.kept: dict[int, str] = {}
        self.outputs: dict[int, str] = {}
        self.unsharded: set[str] = set()
        self.states = module.states
        drawn_from = dict(func.attributes).get("decoding.logits")
        small = {f"%{state.result}" for name, state in self.states.items() if name not in self.weights}
        self.whole = small | ({f"%{drawn_from.value}"} if drawn_from is not None else set())

    def value(self, name: str) -> int:
        """The number of the form of a value; it has been made, or is a weight."""
        if name not in self.value_of:
            flows, link = name in self.trained, name in self.chains.links
            form = ValueForm(self.around.types[name], flows, self.summing(name), link, name in self.blocked)
            key = self.types.number(form.type), *form[1:]
            if key not in self.value_numbers:
                self.value_numbers[key] = len(self.value_forms)
                self.value_forms.append(form)
            self.value_of[name] = self.value_numbers[key]
        return self.value_of[name]

    def summing(self, name: str) -> int:
        """How the gradient of a value is summed once a step (``ValueForm``)."""
        return (BEHIND if name in self.last else BESIDE) if name in self.summed else 0

    def number(self, key: object, form: OpForm | WeightForm | OutputForm) -> int:
        """The number of a form, which ``key`` tells from others."""
        if key not in self.numbers:
            self.numbers[key] = len(self.forms)
            self.forms.append(form)
        return self.numbers[key]

    def node(self, key: object, form: OpForm | WeightForm | OutputForm) -> int:
        """Adds a node of the form that ``key`` tells from others."""
        self.kinds.append(self.number(key, form))
        return len(self.kinds) - 1

    def op(self, op: Op, alike: int | None) -> None:
        """Adds an op; the values that it reads have been made. ``alike``: the key of the op (``Folding.keys``)."""
        names = read_ports(op)
        priced = [(i, name) for i, name in enumerate(names) if name in self.made or name in self.weights]
        reads_ = tuple([(i, self.value(name)) for i, name in priced])
        repeats = len(set(op.operands)) < len(op.operands) and tuple(op.operands.index(name) for name in op.operands)
        shared = tuple([self.read[name] for _, name in priced if name in self.weights and name in self.trained])
        links, blocked = self.chains.links, self.blocked
        results = tuple([(v.name in links, self.summing(v.name), v.name in blocked) for v in op.results])
        epilogue = self.chains.epilogues.get(len(self.kinds))
        if alike is None:
            alike = self.around.kind(op)
        constants = tuple([self.around.numbers.get(name) for name in op.operands])
        hides = op.id not in self.first
        key = alike, constants, reads_, repeats, shared, results, hides, epilogue
        if key not in self.known:
            self.known[key] = self.form(op, reads_, repeats, shared, hides, epilogue)
        number, makes, learned = self.known[key]
        self.around.see(op)
        node = len(self.kinds)
        self.kinds.append(number)
        for port, (_, name) in enumerate(priced):
            self.readers.setdefault(name, []).append((node, port))
        for result, (value, form, learns) in enumerate(zip(op.results, makes, learned, strict=True)):
            if value.name:
                self.made[value.name] = node, result
                self.value_of[value.name] = form
            if learns:
                self.trained.add(value.name)

    def form(
        self,
        op: Op,
        reads_: tuple[tuple[int, int], ...],
        repeats: tuple[int, ...] | bool,
        shared: tuple[int, ...],
        hides: bool,
        epilogue: Epilogue | None,
    ) -> tuple[int, tuple[int, ...], tuple[bool, ...]]:
        """The number of the form of an op, the forms of its results (-1: has no name), and which of these have a gradient."""
        kind, rule, count = self.around.kind(op), self.around.rule(op), len(op.operands)
        flows = any(name in self.trained for name in op.operands)
        learned = rule.differentiable[1] if rule is not None and self.training and flows else (False,) * len(op.results)
        if rule is None:
            self.unsharded.add(op.name)
        self.around.see(op)
        self.trained.update(value.name for value, learns in zip(op.results, learned, strict=True) if learns)
        makes = tuple([self.value(value.name) if value.name else -1 for value in op.results])
        operands = tuple([self.around.types.get(name) if name else None for name in op.operands])
        ports = tuple([(i if i < count else -1, value) for i, value in reads_])
        form = OpForm(op, rule, operands, ports, makes, flows, hides, epilogue)
        return self.number((kind, ports, makes, repeats, shared, hides, epilogue), form), makes, tuple(map(bool, learned))

    def weight(self, name: str) -> None:
        """Adds a resource that chooses where it is kept."""
        value, state = self.value(name), self.states.get(name)
        result = f"%{state.result}" if state is not None else ""
        becomes = self.value(result) if result in self.made else -1
        whole = state is not None and becomes < 0
        form = WeightForm(name, value, becomes, whole)
        node = self.node(("weight", *form[1:], self.resources[name].facets), form)
        self.made[name] = (node, 0)
        self.kept[node] = name
        if becomes >= 0:
            self.outputs[node] = result
            self.readers.setdefault(result, []).append((node, 0))

    def output(self, name: str) -> None:
        """Adds a result of the function; an argument or a weight is handed on as it is, and what a state becomes has been added
        with the state."""
        if name not in self.made or name in self.weights or name in self.outputs.values():
            return
        form = OutputForm(self.value(name), name in self.whole)
        node = self.node(("output", form), form)
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


def cells_of(folding: Folding, weights: Mapping[str, int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The nodes of each copy of what ``folding`` finds repeated in the function itself, in an order that copies share: the ops
    of a copy, by position, and the weights that it alone reads, whose nodes ``weights`` tells."""
    chains = []
    for block in folding.blocks:
        private = [port for port, given in enumerate(block.inputs) if given.kind == "weight"]
        for chain in block.chains:
            copies = [block.copies[number] for number in chain.copies]
            if copies[0].parent is not None:
                continue
            names = [[copy.operands[port] for port in private] for copy in copies]
            counts: dict[str, int] = {}
            for row in names:
                for name in set(row):
                    counts[name] = counts.get(name, 0) + 1
            own = [
                slot for slot in range(len(private)) if all(counts[row[slot]] == 1 and row[slot] in weights for row in names)
            ]
            chains.append(
                tuple((*copy.ops, *(weights[row[slot]] for slot in own)) for copy, row in zip(copies, names, strict=True))
            )
    return tuple(chains)
