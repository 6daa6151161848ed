"""Cost: what every op works and moves, from its types, independent of devices.

Writes a ``Cost`` facet on every op of every function, regions included. A formula per operator (``contractions.py``,
``pointwise.py``, ``microsoft.py``, ``backward.py``; conventions in ``facts.py``) gives flops and the parts of training; an
operator without one is counted by its bytes, ``kind = default``, and counted in the statistics: no op is silently free.

An op with regions carries what is inside, each op as often as it ran on given inputs (``Measured``). Where nothing was run,
``If`` carries its dearer branch, part by part, ``Loop`` and ``Scan`` their body times the trips where types tell them (a Loop's
limit that is a constant), else once. Its own operands and results are counted inside, where they are read and made. A call
carries the sum of the function that it calls.

Sizes that types do not tell are those of a ``Measured`` facet (``measured.py``). ``scalar.py``: what ONNX Runtime computes one
element after the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ir.core.diagnostics import InvalidInput
from ir.core.facets import Cost, Measured, OptimizerState
from ir.core.module import Func, Module
from ir.core.ops import Op, all_ops
from ir.core.ranges import COUNTED
from ir.core.types import DType, TensorType, Type
from ir.layout_rules import Numbers, resource_numbers
from ir.ops import operators
from ir.ops.grads import DETACH
from passes.costs.learning import detached, is_float, trained
from passes.costs.op_time import ran
from passes.costs.products import BITS
from passes.costs.profiled import with_profile
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import COST_PARTS, reads, total_cost
from passes.graph.sizes import sized_results
from passes.graph.sizes import sizes as unknown_sizes
from passes.prepare.cost import backward, contractions, microsoft, pointwise
from passes.prepare.cost.facts import Formula, OpFacts, Work
from passes.prepare.cost.faults import NoFormula, TooMuchWork, UnboundDimension, UnknownSizes
from passes.prepare.cost.measured import with_measurements
from passes.prepare.cost.scalar import scalar_steps

FORMULAS: dict[str, Formula] = {
    **pointwise.FORMULAS,
    **contractions.FORMULAS,
    **microsoft.FORMULAS,
    **backward.FORMULAS,
}
"""The formula of each operator, by the op's full name."""

_MAX_TRIPS = 1 << 31  # exporters write "no limit" as the largest integer
_MOST = 1 << 60
"""Flops or bytes of a model in one run; training counts them three times, and its plans are made in 63 bits."""
_DIM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class CostPass(Pass):
    """Count flops, bytes and the parts of training of every op.

    ``unknown``: the number that a dimension counts for that only running the model tells (the result of ``NonZero``) and
    that was not measured, with a warning that names such a value.
    """

    name: ClassVar[str] = "cost"
    unknown: int = 1

    def __post_init__(self) -> None:
        if self.unknown < 0:
            raise ValueError(f"unknown is a number of elements, at least 0, not {self.unknown}")

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput where a dimension of the inputs is not bound: no cost could be a number."""
        if context.measure is not None and (unknown_sizes(module.entry).unknown or any(op.regions for op in module.entry.ops)):
            context.progress("run the model to measure sizes", None)
            module = with_measurements(module, context.measure(module))
        sizes = _Sizes(module, self.unknown)
        program = _Program(module, sizes, context)
        symbols = tuple(program.func(symbol.name) if isinstance(symbol, Func) else symbol for symbol in module.symbols)
        _check_total(program.func(module.entry.name))
        result = replace(module, symbols=symbols)
        sizes.report(result, context)
        if context.profile is not None:
            result, origins = with_profile(result, context.profile)
            context.count(self.name, **{f"profile {name}": str(found) for name, found in origins.items()})
        ops = sum(1 for _ in _all_ops(result))
        plain = Counter(op.name for op in _all_ops(result) if op.facet(Cost, Cost()).kind == "default")
        context.count(
            self.name,
            ops=ops,
            by_formula=ops - plain.total(),
            by_default=plain.total(),
            default_ops=", ".join(f"{name} x{count}" for name, count in sorted(plain.items())),
            flops=sum(op.facet(Cost, Cost()).flops for op in result.entry.ops),
        )
        return result


def _all_ops(module: Module) -> Iterator[Op]:
    return (op for func in module.of_type(Func) for op in all_ops(func.ops))


class _Program:
    """The functions of a module, each costed once: those that are called before what calls them (calls form no cycle)."""

    def __init__(self, module: Module, sizes: _Sizes, context: PassContext) -> None:
        self.funcs = {func.name: func for func in module.of_type(Func)}
        self.resources = module.resources
        self.entry = module.entry.name
        marked = any(isinstance(facet, OptimizerState) for resource in self.resources.values() for facet in resource.facets)
        self.trained = frozenset(trained(self.resources)) if marked else frozenset[str]()
        self.sizes = sizes
        self.context = context
        self.costed: dict[str, Func] = {}
        self.known: dict[object, Cost] = {}  # of ops that are alike: the copies of a block

    def func(self, name: str) -> Func:
        if name not in self.costed:
            func = self.funcs[name]
            types: dict[str, Type] = {name: resource.type for name, resource in self.resources.items()}
            types.update((arg.name, arg.type) for arg in func.args)
            learned = set(self.trained) if self.trained and name == self.entry else None
            self.costed[name] = replace(func, ops=_Coster(self, types, learned, detached(func)).body(func.ops))
        return self.costed[name]


@dataclass(slots=True)
class _Coster:
    """Costs the ops of one function; ``types`` grows with the values it passes, and so does ``learned``: what has a gradient
    that leads to a trained weight, None where nothing says what is trained."""

    program: _Program
    types: dict[str, Type]
    learned: set[str] | None = None
    detached: frozenset[str] = frozenset()
    """Values that have no gradient, whatever they depend on."""
    narrow: set[str] = field(default_factory=set)
    """What is dequantised from 8 bits: runtimes compute a product of such operands in 8 bits."""

    def body(self, ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(map(self.op, ops))

    def op(self, op: Op) -> Op:
        if op.regions:
            return self.control(op)
        results = sized_results(op)
        self.types.update((value.name, value.type) for value in results if value.name)
        if op.name == "dnnc.call" and op.get("callee") in self.program.funcs:
            return op.with_facets(replace(total_cost(self.program.func(op.get("callee")).ops), kind="control"))
        sizes = self.program.sizes
        operands = tuple(sizes.number(name, self.types[name]) if name in self.types else None for name in op.operands)
        made = tuple(sizes.number(value.name, value.type) for value in results)
        facts = OpFacts(op, operands, made, self.learns(op), self.constants(op))
        alike, known = _alike(facts), self.program.known
        if alike not in known:
            work = self.work(facts)
            if work is None:
                return op.with_facets(_cost(facts, Work("default")))
            known[alike] = _cost(facts, work)
        cost = self.in_bits(op, operands, alike)
        return op.with_facets(replace(cost, input_grad=0, weight_grad=0, saved=0) if self.is_detached(op) else cost)

    def constants(self, op: Op) -> tuple[Numbers | None, ...]:
        """Of each operand that is a small constant, its elements."""
        resources = self.program.resources
        return tuple(resource_numbers(resources[name]) if name in resources else None for name in op.operands)

    def in_bits(self, op: Op, operands: Sequence[Type | None], alike: object) -> Cost:
        """The cost of ops that are ``alike``, where both operands are dequantised of the class of 8 bits."""
        cost, known = self.program.known[alike], self.program.known
        if operators.has(op, operators.DEQUANTISES):
            first = operands[0]
            if isinstance(first, TensorType) and first.dtype in (DType.I8, DType.U8):
                self.narrow.add(op.results[0].name)
        elif operators.has(op, operators.FUSES) and len(op.operands) > 1 and self.narrow.issuperset(op.operands[:2]):
            return known.setdefault((alike, BITS), replace(cost, kind=f"{cost.kind}{BITS}"))
        return cost

    def learns(self, op: Op) -> tuple[bool, ...] | None:
        """Which operands need a gradient; notes which results have one."""
        if self.learned is None:
            return None
        found = tuple(name in self.learned and not self.is_detached(op) for name in op.operands)
        if any(found):
            self.learned.update(value.name for value in op.results if is_float(value.type))
        return found

    def is_detached(self, op: Op) -> bool:
        """Whether no gradient goes back through an op."""
        return op.name == DETACH or (bool(op.results) and all(value.name in self.detached for value in op.results))

    def work(self, facts: OpFacts) -> Work | None:
        """The formula's answer; the default where there is none. None, with a warning, where shapes and attributes fit no op of
        this name."""
        formula = FORMULAS.get(facts.op.name)
        if formula is None:
            return Work("default")
        try:
            work = replace(formula(facts), scalar=scalar_steps(facts))
            if any(count is not None and not 0 <= count < COUNTED for count in _counts(work)):
                raise ValueError("a count that is none")
            return work
        except (LookupError, ValueError, ArithmeticError, TypeError):
            self.program.context.sink.warn(NoFormula(facts.op.name), where=facts.op.id)
            return None

    def control(self, op: Op) -> Op:
        """An op with regions: each region costed, and their sum on the op."""
        for value in sized_results(op):
            self.types[value.name] = value.type
        regions, totals = [], []
        for key, region in op.regions:
            self.types.update((arg.name, arg.type) for arg in region.args)
            costed = replace(region, ops=self.body(region.ops))
            regions.append((key, costed))
            totals.append(total_cost(costed.ops))
        if self.learned is not None and any(name in self.learned for name in reads(op)):
            self.learned.update(value.name for value in op.results if is_float(value.type))
        if (measured := op.facet(Measured)) is not None:
            inside = [(ran(inner), inner.facet(Cost, Cost())) for _, region in regions for inner in region.ops]
            times = max(1, measured.runs)
            parts = {name: sum(runs * getattr(cost, name) for runs, cost in inside) // times for name in COST_PARTS}
        elif op.name == "onnx.If":
            parts = {name: max(getattr(total, name) for total in totals) for name in COST_PARTS}
        else:
            trips = self.trips(op)
            parts = {name: trips * sum(getattr(total, name) for total in totals) for name in COST_PARTS}
        return replace(op, regions=tuple(regions)).with_facets(Cost(**parts, kind="control"))

    def trips(self, op: Op) -> int:
        """How often the regions run, as far as types tell: for Scan, and for Loop where its limit is a constant; else 1."""
        if op.name == "onnx.Scan":
            count = int(op.get("num_scan_inputs", 0))
            axes = op.get("scan_input_axes") or (0,)
            if 0 < count <= len(op.operands):
                name = op.operands[-count]
                type_ = self.program.sizes.number(name, self.types[name]) if name in self.types else None
                if isinstance(type_, TensorType) and type_.shape and -len(type_.shape) <= axes[0] < len(type_.shape):
                    dim = type_.shape[axes[0]]
                    return dim if isinstance(dim, int) else 1
        if op.name == "onnx.Loop" and op.operands and op.operands[0].startswith("@"):
            resource = self.program.resources.get(op.operands[0])
            limit = resource_numbers(resource) if resource is not None else None
            return int(limit[0]) if limit and len(limit) == 1 and 0 <= limit[0] < _MAX_TRIPS else 1
        return 1


def _alike(facts: OpFacts) -> object:
    """What ops of equal cost have in common: all but the names of values, which only say which operands are weights, and which
    are one and the same."""
    names = facts.op.operands
    places = tuple((names.index(name), name[:1] == "@") if name else None for name in names)
    return facts.op.name, facts.op.attributes, facts.operands, facts.results, places, facts.learns, facts.constants


def _counts(work: Work) -> tuple[int | None, ...]:
    return (work.flops, work.input_grad, work.weight_grad, work.saved, work.read, work.write, work.weight, work.scalar)


def _check_total(func: Func) -> None:
    """Raises InvalidInput where the numbers of all ops, which plans add up, would not fit 63 bits: names the dearest op."""
    for name, value in ((name, getattr(total_cost(func.ops), name)) for name in COST_PARTS):
        if value >= _MOST:
            op = max(func.ops, key=lambda op: int(getattr(op.facet(Cost, Cost()), name)))
            share = getattr(op.facet(Cost, Cost()), name)
            raise InvalidInput(TooMuchWork(name, value, share, op.name, _MOST), where=op.id)


def _cost(facts: OpFacts, work: Work) -> Cost:
    """The facet: the formula's answer, bytes it leaves out taken from the operands and results, each name once."""
    names = {name: facts.bytes(i) for i, name in enumerate(facts.op.operands) if name}
    read = sum(names.values()) if work.read is None else work.read
    weight = sum(size for name, size in names.items() if name.startswith("@")) if work.weight is None else work.weight
    write = sum(facts.bytes(-1 - i) for i in range(len(facts.results))) if work.write is None else work.write
    if facts.learns is not None and not any(facts.learns):
        return Cost(work.flops, read, write, weight, kind=work.kind, scalar=work.scalar)
    return Cost(work.flops, read, write, weight, work.input_grad, work.weight_grad, work.saved, work.kind, work.scalar)


@dataclass(slots=True)
class _Sizes:
    """Types with a number for every dimension, and the record of those that had none."""

    module: Module
    unknown: int
    free: dict[str, str] = field(default_factory=dict)  # symbol of an input -> the input
    unbound: dict[str, str] = field(default_factory=dict)  # of these, the ones met -> the value where first met
    guessed: dict[str, str] = field(default_factory=dict)  # value -> what is not known of it
    known: dict[str, Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for func in self.module.of_type(Func):
            for arg in func.args:
                for dim in (arg.type.shape or ()) if isinstance(arg.type, TensorType) else ():
                    if isinstance(dim, str):
                        for name in _DIM_NAME.findall(dim):
                            self.free.setdefault(name, arg.name)
            break  # the entry: the only one whose inputs a user gives

    def number(self, name: str, type_: Type) -> Type:
        """``type_`` with numbers only."""
        if isinstance(type_, TensorType) and type_.shape is not None and all(isinstance(dim, int) for dim in type_.shape):
            return type_
        if not isinstance(type_, TensorType):
            if not hasattr(type_, "nbytes"):
                self.guessed.setdefault(name, f"type {type_}")
            return type_
        if type_.shape is None:
            self.guessed.setdefault(name, "its rank")
            return type_
        return replace(type_, shape=tuple(self._dim(name, position, dim) for position, dim in enumerate(type_.shape)))

    def _dim(self, value: str, position: int, dim: int | str | None) -> int:
        if isinstance(dim, int):
            return dim
        bindable = [name for name in _DIM_NAME.findall(dim or "") if name in self.free]
        for name in bindable:
            self.unbound.setdefault(name, value)
        if not bindable:
            self.guessed.setdefault(value, f"dimension {position}" + (f" ('{dim}')" if dim else ""))
        return self.unknown

    def report(self, module: Module, context: PassContext) -> None:
        """Warns of guesses, which ``module`` shows as unknown sizes. Raises InvalidInput for unbound dimensions."""
        if self.unbound:
            raise InvalidInput(
                UnboundDimension(name, self.free[name], value).at(value) for name, value in sorted(self.unbound.items())
            )
        found = unknown_sizes(module.entry)
        if found.unknown:
            what = self.guessed.get(found.unknown[0], "")
            bound = ", or bind the dimensions (--dim)" if self.free else ""
            hint = f"give real inputs (--inputs FILE.npz), whose sizes are measured{bound}"
            if context.measure is not None:
                hint = "it is no tensor, or in a branch or loop that did not run on the given inputs"
            reason = f" ({what})" if what else ""
            context.sink.warn(UnknownSizes(found.text, reason, self.unknown, hint), where=found.unknown[0])


__all__ = ["FORMULAS", "CostPass"]
