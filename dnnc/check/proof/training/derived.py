"""Whether the training step of ``plan.ir`` is the one that follows from its forward ops.

The forward ops are differentiated anew (pass ``differentiate``) as on one device: without stages, layouts and replicas, with
nothing recomputed. What each resource becomes, and the loss, must be the same expression in both. Sums are compared without
order: a gradient that several readers add to may be summed in any order, and as sums of means or means of sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from dnnc.check.proof.explain import NOT_PROVEN, REFUTED, Failure
from dnnc.check.proof.terms import (
    ABSENT,
    CONSTANT,
    Key,
    Terms,
    constant_key,
    constant_of,
    content,
    content_of,
    op_key,
    structure_of,
    unknown_of,
    version,
)
from dnnc.check.proof.training.model import resolved
from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.facets import FORWARD, InTraining, OptimizerState, phase_of
from ir.core.module import Inline, Module, Resource, Splat
from ir.core.names import bare
from ir.core.ops import Op, Value
from ir.core.types import TensorType, Type, without_layout
from ir.ops.boxes import shape_of
from ir.ops.grads import ACCUMULATE, ASSIGN, BATCH_NORMALIZATION
from ir.ops.loss_scale import LOSS_SCALE
from ir.ops.opdefs import RESHARD, module_opsets
from ir.ops.optimizers import DEFAULTS, EMA, NESTEROV, OPTIMIZERS, UpdateOperands
from passes.differentiate import DifferentiatePass
from passes.graph.graph import origins

_SUMS = ("onnx.Add", "onnx.Sum")
_ALIASES = (RESHARD, "onnx.Identity")


def derivation_faults(module: Module, microbatches: int) -> Iterator[Failure]:
    """What of the entry function of ``module`` (expanded) does not follow from its forward ops."""
    entry = module.entry
    updates = [op for op in entry.ops if op.name in OPTIMIZERS]
    numbers: dict[str, float] = {}
    grouped = _of_groups(module)
    for op in updates:
        keys = DEFAULTS[op.name.removeprefix("grad.")].keys() - grouped.get(op.operands[0], ())
        own = {key: op.get(key) for key in sorted(keys)}
        own |= {NESTEROV: op.get(NESTEROV, 0)} if op.name == "grad.momentum" else {}
        if any(numbers.setdefault(key, value) != value for key, value in own.items()):
            yield Failure(REFUTED, f"{op.id} is updated by other numbers than {updates[0].id}", entry.name)
    states = {name for op in updates for name in UpdateOperands.of(op).states}
    states |= {op.operands[0] for op in entry.ops if op.name == EMA}
    states |= {name for op in entry.ops if op.name == LOSS_SCALE for name in op.operands[:3]}
    try:
        nesterov = bool(numbers.pop(NESTEROV, 0))
        step = DifferentiatePass(microbatches, recompute="none", nesterov=nesterov, **numbers)
        made = step.run(_forward(module, states), pass_context(DiagnosticSink()))
    except Exception as error:  # of ops that no importer wrote: a build may be anybody's
        told = error if isinstance(error, InvalidInput | UsageError) else type(error).__name__
        yield Failure(NOT_PROVEN, f"the forward ops of the step cannot be differentiated: {told}", entry.name)
        return
    initial = {resource.name: resource for resource in made.of_type(Resource)}
    for name in sorted(states & initial.keys()):
        mine_first, theirs_first = module.resources[name], initial[name]
        if (mine_first.data, without_layout(mine_first.type)) != (theirs_first.data, without_layout(theirs_first.type)):
            yield Failure(
                REFUTED, f"the optimizer's state {name} is to begin as {theirs_first.data}, not as {mine_first.data}", ""
            )
    terms = Terms()
    theirs, mine = _Expressions(made, terms), _Expressions(module, terms)
    for name in dict.fromkeys([*theirs.assigned, *mine.assigned]):
        one, other = theirs.assigned.get(name), mine.assigned.get(name)
        if one is None or other is None or one.phase != other.phase:
            which = "changes" if one is None else "does not change"
            yield Failure(REFUTED, f"the step {which} {name}, other than what follows from its forward ops", entry.name)
        elif theirs.terms_of[one.value] != mine.terms_of[other.value]:
            yield mine.difference(other.value, f"what {name} becomes")
            return
    for one_value, other_value in zip(made.entry.results, entry.results, strict=True):
        if theirs.terms_of[one_value.name] != mine.terms_of[other_value.name]:
            yield mine.difference(other_value.name, "the loss")


def _of_groups(module: Module) -> dict[str, Collection[str]]:
    """By what an optimizer's op reads as its weight, the numbers that are those of the weight's parameter group."""
    facets = {r.name: facet for r in module.of_type(Resource) for facet in r.facets if isinstance(facet, OptimizerState)}
    names = {**{name: name for name in facets}, **origins(module.entry)}
    return {name: facets[weight].numbers.keys() for name, weight in names.items() if weight in facets}


def _forward(module: Module, states: set[str]) -> Module:
    """The forward ops as a module of one device, without optimizer state."""
    ops, names = [], dict[str, str]()
    for op in module.entry.ops:
        operands = tuple(names.get(name, name) for name in op.operands)
        if op.name == RESHARD:
            names[op.results[0].name] = operands[0]
        elif phase_of(op.facets) == FORWARD and op.name != ASSIGN:
            facets = tuple(facet for facet in op.facets if isinstance(facet, InTraining))
            ops.append(replace(op, operands=operands, results=tuple(map(_bare, op.results)), facets=facets))
    types = {value.name: value for op in ops for value in op.results}
    results = tuple(types.get(names.get(v.name, v.name), _bare(v)) for v in module.entry.results)
    func = replace(module.entry, args=tuple(map(_bare, module.entry.args)), ops=tuple(ops), results=results)
    resources = [
        replace(resource, type=without_layout(resource.type))
        for resource in module.of_type(Resource)
        if resource.name not in states
    ]
    return replace(module, symbols=(*resources, func))


def _bare(value: Value) -> Value:
    return replace(value, type=without_layout(value.type))


class _Expressions:
    """The expressions of a function. ``terms_of``: by name; ``new``: the ops whose expressions ``terms`` did not have, in
    order; ``assigned``: what resources become."""

    def __init__(self, module: Module, terms: Terms) -> None:
        func = module.entry
        self.terms, self.opsets = terms, module_opsets(module)
        self.resources = module.resources
        self.terms_of: dict[str, int] = {}
        self.types: dict[str, Type] = {}
        self.new: list[Op] = []
        self.makers: dict[str, Op] = {}
        ops, self.assigned = resolved(func.ops)
        for value in func.args:
            self.define(value, ("input", value.name))
        for op in ops:
            self.op(op)
        for value in (*func.results, *(Value(final.value) for final in self.assigned.values())):
            self.read(value.name)

    def define(self, value: Value, key: Key) -> None:
        self.terms_of[value.name] = self.terms.number(key)
        self.types[value.name] = without_layout(value.type)

    def read(self, name: str) -> int:
        if not name:
            return ABSENT
        if name not in self.terms_of:
            resource = self.resources.get(name)
            key = _constant(resource) if resource is not None and name not in self.assigned else None
            self.terms_of[name] = self.terms.number(("resource", name) if key is None else key)
            if resource is not None:
                self.types[name] = without_layout(resource.type)
        return self.terms_of[name]

    def op(self, op: Op) -> None:
        self.makers.update((value.name, op) for value in op.results if value.name)
        if op.name in _ALIASES and op.operands and self.same_types(op):
            self.terms_of[op.results[0].name] = self.read(op.operands[0])
            self.types[op.results[0].name] = without_layout(op.results[0].type)
            return
        dense = constant_of(op) if op.name == CONSTANT else None
        if dense is not None and dense.type == without_layout(op.results[0].type):
            self.define(op.results[0], constant_key((content_of(dense),)))
            return
        before = len(self.terms.keys)
        structure, captured, inside = structure_of(op, self.opsets, self.read)
        operands = [*map(self.read, op.operands), *captured]
        number = version(op, self.opsets)
        types = {self.types.get(name) for name in (*op.operands, *(value.name for value in op.results[1:]))}
        if op.name in _SUMS and {*types, without_layout(op.results[0].type)} == {without_layout(op.results[0].type)}:
            self.define(op.results[0], self.sum(operands))
        elif op.name == ACCUMULATE and self.same_types(op):
            terms = [self.terms.number(("mean", op.get("microbatches"), term)) for term in self.summands(operands[0])]
            self.define(op.results[0], self.sum(terms))
        else:
            key = op_key(_counted(op), number, operands, structure)
            if unknown_of(op, number, inside):
                key = (*key, "named", op.id)
            for place, value in enumerate(op.results):
                if place == 0 and op.name == BATCH_NORMALIZATION and op.get("training_mode", 0):
                    rest = tuple(item for item in op.attributes if item[0] != "momentum")  # y does not depend on the averages
                    self.define(value, ("y", number, rest, tuple(operands[:3]), without_layout(value.type)))
                elif value.name:
                    self.define(value, ("result", self.terms.number(key), place, without_layout(value.type)))
        if len(self.terms.keys) > before:
            self.new.append(op)

    def same_types(self, op: Op) -> bool:
        """Whether an op's result has the type of its first operand."""
        self.read(op.operands[0])
        return self.types.get(op.operands[0]) == without_layout(op.results[0].type)

    def summands(self, term: int) -> tuple[int, ...]:
        key = self.terms.keys[term]
        return key[1] if key[0] == "sum" else (term,)

    def sum(self, terms: Sequence[int]) -> Key:
        """The key of the sum of terms, those that are sums themselves taken apart; of a single one its own."""
        parts = sorted(part for term in terms for part in self.summands(term))
        return ("sum", tuple(parts)) if len(parts) > 1 else self.terms.keys[parts[0]]

    def difference(self, name: str, what: str) -> Failure:
        """The first op on the way to a value that makes what the other function does not."""
        needed, todo = set(), [name]
        while todo:
            op = self.makers.get(todo.pop())
            if op is not None and op.id not in needed:
                needed.add(op.id)
                todo += op.operands
        first = next((op for op in self.new if op.id in needed), None)
        if first is None:
            return Failure(REFUTED, f"{what} is {name}, other than what follows from the forward ops", "")
        operands = ", ".join(filter(None, first.operands)) or "no operands"
        made = f"{first.name} of {operands}, which makes '{bare(first.id)}' on the way to {what}"
        return Failure(REFUTED, f"{made}, does not follow from the forward ops", f"plan.ir, phase {phase_of(first.facets)}")


def _counted(op: Op) -> Op:
    """The op with a name for each result: a copy that runs again names those alone that are read."""
    return replace(op, results=tuple(Value(f"%{place}") for place in range(len(op.results))))


def _constant(resource: Resource) -> Key | None:
    """The key of a resource by its elements, where the text has them and training does not change it."""
    type_, shape = without_layout(resource.type), shape_of(resource.type)
    if not isinstance(type_, TensorType) or shape is None or resource.facets:
        return None
    match resource.data:
        case Inline(data):
            return constant_key((content(type_.dtype, shape, data),))
        case Splat(value) if not shape:
            return "splat", type_.dtype, shape, str(value)
    return None
