"""Canonicalize: the same program with fewer and simpler ops.

Binds symbolic dimensions, computes what is constant (shape arithmetic, masks, positions), drops ops that hand an operand
through, inlines an ``If`` whose condition is known, keeps equal small constants once, and removes what nothing reads. As one op
it writes a transpose that merges dimensions on its way (``merged``) and a sequence of which only known parts are read
(``sequences``); a CastLike becomes a Cast. A resource with optimizer state is trained: it is no constant, and it equals no
other; control flow that it reaches is written as plain ops where that is possible (``unrolled``).

``bind`` binds dimensions of a module that is IR already; ``constants`` are those of a module as rules see them; ``noops``
proves which ops hand an operand through. ``unfuse`` is a pass of its own: it takes a fused product apart where a plan may want
its parts on different devices.

Invariants: the numbers that come out are the same, bit for bit where constants are computed by exact operations (a sine of a
constant may be rounded otherwise than the runtime would); arguments and results of the entry keep their names; an op that
survives keeps the names of its results and its location; running the pass again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ir.core.attributes import Dense, attributes
from ir.core.diagnostics import UsageError
from ir.core.facets import OptimizerState
from ir.core.module import Func, Module, Resource, Stage, Symbol
from ir.core.names import ABSENT
from ir.core.ops import Op, Region, Value, all_ops, all_reads, all_values
from ir.core.types import ONNX_TYPES, TensorType, Type
from ir.ops.opdefs import module_opsets
from passes.framework.base import ConstantEvaluator, Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import live_ops, renamed, used_symbols
from passes.prepare.canonicalize.bind import bind_types
from passes.prepare.canonicalize.constants import Constants, equal_constants
from passes.prepare.canonicalize.faults import NoBinding
from passes.prepare.canonicalize.folding import Answer, folded, static
from passes.prepare.canonicalize.merged import unmerged
from passes.prepare.canonicalize.noops import passed_through
from passes.prepare.canonicalize.sequences import without_sequences
from passes.prepare.canonicalize.unrolled import Unroller

_ROUNDS = 8  # each round needs one that removed a reader before it; real models need two


@dataclass(frozen=True)
class CanonicalizePass(Pass):
    """Bind dimensions, fold constants and shape arithmetic, drop no-ops and dead code.

    ``dims``: ``NAME=NUMBER`` or ``NAME=OTHER`` (the two are one dimension). ``fold-bytes``: largest constant that is written
    out; what would be larger is computed when the program runs.
    """

    name: ClassVar[str] = "canonicalize"
    dims: tuple[str, ...] = ()
    fold_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if self.fold_bytes < 0:
            raise ValueError(f"fold-bytes is a number of bytes, at least 0, not {self.fold_bytes}")

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises UsageError for a binding that is none, or of a dimension that the module lacks."""
        counts = dict.fromkeys(("ops_before", "folded", "passed_through", "unmerged", "inlined", "unrolled", "dead"), 0)
        counts["ops_before"] = _count(module)
        if self.dims:
            module = bind_types(module, dict(map(_binding, self.dims)))
        given, aliases = module, dict[str, str]()
        for _ in range(_ROUNDS):
            before = module
            module = self._round(module, context, counts, aliases)
            if module == before:
                break
        context.gone.update(_gone(given, module, aliases))
        context.count(self.name, **counts, ops_after=_count(module))
        return module

    def _round(self, module: Module, context: PassContext, counts: dict[str, int], aliases: dict[str, str]) -> Module:
        constants = Constants(module, self.fold_bytes)
        opsets = module_opsets(module)
        symbols = []
        for symbol in module.symbols:
            if isinstance(symbol, Func):
                given = without_sequences(symbol, constants)
                taken = {value.name for value in (*symbol.args, *all_values(symbol.ops))}
                unroller = Unroller(constants, {}, taken, opsets.get("onnx", 0))
                resources = module.of_type(Resource)
                learned = {one.name for one in resources if any(isinstance(facet, OptimizerState) for facet in one.facets)}
                simplifier = _Simplifier(constants, context.evaluate, opsets, counts, _names_read(given), unroller, learned)
                simplifier.types.update((arg.name, arg.type) for arg in symbol.args)
                simplifier.types.update((name, resource.type) for name, resource in constants.resources.items())
                yielded = {value.name for value in symbol.results}
                simplifier.read |= yielded
                ops = simplifier.body(given, yielded)
                aliases |= simplifier.aliases
                alive = live_ops(ops, yielded)
                counts["dead"] += len(ops) - len(alive)
                symbol = symbol if alive == symbol.ops else replace(symbol, ops=alive)
            symbols.append(symbol)
        return _with_resources(replace(module, symbols=tuple(symbols)), constants)


@dataclass(slots=True)
class _Simplifier:
    """One walk over a function, in order. ``read``: every name that something reads; ``aliases``: values that are gone, and
    what stands for them; ``makers``: the op that makes each value."""

    constants: Constants
    evaluate: ConstantEvaluator | None
    opsets: dict[str, int]
    counts: dict[str, int]
    read: set[str]
    unroller: Unroller
    learned: set[str]
    """Trained weights, and what depends on them."""
    types: dict[str, Type] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    makers: dict[str, Op] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.types = self.unroller.types

    def body(self, ops: Iterable[Op], yielded: set[str]) -> list[Op]:
        """The ops of a body after simplification; the values in ``yielded`` stay defined."""
        kept: list[Op] = []
        for op in ops:
            kept += self.op(op, yielded)
        return kept

    def op(self, op: Op, yielded: set[str]) -> list[Op]:
        """What remains of ``op``: nothing, itself, or what an inlined branch leaves."""
        operands = tuple(self.aliases.get(name, name) for name in op.operands)
        if operands != op.operands:
            op = replace(op, operands=operands)
        if op.regions:
            if (branch := self.taken_branch(op)) is not None:
                self.counts["inlined"] += 1
                return self.inlined(op, branch, yielded)
            op = self.with_regions(op)
            if self.learned.intersection(all_reads(op)) and (ops := self.unroller.unrolled(op)) is not None:
                self.counts["unrolled"] += 1
                self.read |= _names_read(ops)
                return self.body(ops, yielded)
        if self.learned.intersection(op.operands):
            self.learned.update(value.name for value in op.results)
        self.types.update((value.name, value.type) for value in op.results)
        if op.name == "onnx.Identity" and op.results[0].name in yielded:
            return [op]  # all that can become of an op that must give this name to something
        if (whole := unmerged(op, self.makers, self.types)) is not None:
            self.counts["unmerged"] += 1
            op = whole
        op = _cast(op)
        self.makers.update((value.name, op) for value in op.results)
        if (targets := self.handed_through(op)) is not None:
            self.counts["passed_through"] += 1
            return self.stand_in(op, targets, yielded)
        answers = folded(op, self.types, self.constants, self.evaluate, self.opsets)
        if answers is None:
            return [op]
        self.counts["folded"] += 1
        pairs = zip(op.results, answers, strict=True)
        targets = {value.name: self.constant(value, answer) for value, answer in pairs if value.name in self.read}
        return self.stand_in(op, targets, yielded)

    def handed_through(self, op: Op) -> dict[str, str] | None:
        """What the used results of ``op`` equal, where it only hands an operand through."""
        if (target := passed_through(op, self.types, self.constants)) is None:
            return None
        first, others = op.results[0], [value for value in op.results[1:] if value.name in self.read]
        targets = {first.name: target}
        for value in others:
            # The mask of a Dropout that drops nothing; no other rule knows its further results.
            if op.name != "onnx.Dropout" or not isinstance(value.type, TensorType) or value.type.elements is None:
                return None
            targets[value.name] = self.constant(value, 1.0 if value.type.dtype.is_float else 1)
        return targets

    def constant(self, value: Value, answer: Answer) -> str:
        """A resource for a result that is constant; its name."""
        if isinstance(answer, Dense) and not static(value.type):
            value = replace(value, type=answer.type)
        assert isinstance(value.type, TensorType)
        name = self.constants.add(value.name, value.type, answer)
        self.types[name] = value.type
        return name

    def stand_in(self, op: Op, targets: dict[str, str], yielded: set[str]) -> list[Op]:
        """Lets each result's target stand for it; a result that must stay defined becomes an Identity of its target."""
        kept = []
        for value in op.results:
            if value.name not in targets:
                continue
            if value.name in yielded:
                kept.append(Op("onnx.Identity", (targets[value.name],), (value,), location=op.location))
            else:
                self.aliases[value.name] = targets[value.name]
        return kept

    def with_regions(self, op: Op) -> Op:
        """``op`` with its regions simplified."""
        regions = []
        for key, region in op.regions:
            self.types.update((arg.name, arg.type) for arg in region.args)
            ops = tuple(self.body(region.ops, set(region.results)))
            results = tuple(self.aliases.get(name, name) for name in region.results)
            regions.append(
                (key, region if (ops, results) == (region.ops, region.results) else Region(region.args, ops, results))
            )
        return op if tuple(regions) == op.regions else replace(op, regions=tuple(regions))

    def taken_branch(self, op: Op) -> Region | None:
        """The branch that an ``If`` with a known condition takes."""
        condition = self.constants.splat(op.operands[0]) if op.name == "onnx.If" and op.operands else None
        return None if condition is None else dict(op.regions).get("then_branch" if condition else "else_branch")

    def inlined(self, op: Op, branch: Region, yielded: set[str]) -> list[Op]:
        """The ops of ``branch`` in the place of ``op``; what it yields takes the names of the op's results."""
        made = {value.name for inner in branch.ops for value in inner.results}
        names: dict[str, str] = {}
        for value, given in zip(op.results, branch.results, strict=True):
            if given in made:
                names.setdefault(given, value.name)
        kept = self.body(renamed(branch.ops, names), yielded)
        for value, given in zip(op.results, branch.results, strict=True):
            if names.get(given) != value.name:
                target = names.get(given, given)
                # A captured value, a constant, or a value that the branch yields twice.
                kept += self.stand_in(replace(op, results=(value,)), {value.name: self.aliases.get(target, target)}, yielded)
        return kept


def _cast(op: Op) -> Op:
    """A CastLike as a Cast, which does not read the tensor that only says the element type: what it reads it waits for, and on
    a mesh has beside the other."""
    made = op.results[0].type if op.name == "onnx.CastLike" else None
    if not isinstance(made, TensorType) or made.dtype not in ONNX_TYPES:
        return op
    fields = attributes({**dict(op.attributes), "to": ONNX_TYPES[made.dtype]})
    return replace(op, name="onnx.Cast", operands=op.operands[:1], attributes=fields)


def _names_read(ops: Iterable[Op]) -> set[str]:
    """Every name read or yielded in a body and its regions."""
    return {name for op in ops for name in all_reads(op)} - {ABSENT}


def _binding(text: str) -> tuple[str, int | str]:
    """``NAME=NUMBER`` or ``NAME=OTHER``. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(NoBinding(text), where="canonicalize{dims}")
    return name.strip(), int(value) if value.strip().lstrip("-").isdigit() else value.strip()


def _gone(given: Module, module: Module, aliases: Mapping[str, str]) -> dict[str, str]:
    """Values and nodes of the entry that are left out, with what stands for the first result; empty for nothing."""
    left = {value.name for op in module.entry.ops for value in op.results}
    nodes = {op.location.node for op in module.entry.ops}
    gone: dict[str, str] = {}
    for op in given.entry.ops:
        for value in op.results[::-1]:
            name = value.name
            while name not in left and name in aliases:
                name = aliases[name]
            if value.name not in left:
                gone[value.name] = name if name != value.name else ""
                if op.location.node and op.location.node not in nodes:
                    gone[op.location.node] = gone[value.name]
    return gone


def _with_resources(module: Module, constants: Constants) -> Module:
    """``module`` with the resources that are used: those it had in their order, then those made now."""
    used = used_symbols(module)
    resources = {name: resource for name, resource in constants.resources.items() if name in used}
    merged = equal_constants(resource for resource in resources.values() if resource.name not in constants.written)
    resources = {name: resource for name, resource in resources.items() if name not in merged}
    last = max((i for i, symbol in enumerate(module.symbols) if isinstance(symbol, Resource)), default=-1)
    had = module.resources
    made = [resource for name, resource in resources.items() if name not in had]
    symbols: list[Symbol] = [] if last >= 0 else list(made)
    for i, symbol in enumerate(module.symbols):
        if not isinstance(symbol, Resource):
            symbols.append(_with_names(symbol, merged) if merged and isinstance(symbol, Func | Stage) else symbol)
        elif symbol.name in resources:
            symbols.append(symbol)
        if i == last:
            symbols += made
    return replace(module, symbols=tuple(symbols))


def _with_names(symbol: Func | Stage, names: dict[str, str]) -> Func | Stage:
    results = tuple(Value(names.get(value.name, value.name), value.type) for value in symbol.results)
    return replace(symbol, ops=renamed(symbol.ops, names), results=results)


def _count(module: Module) -> int:
    """Ops of all functions, those in regions too."""
    return sum(1 for func in module.of_type(Func) for _ in all_ops(func.ops))


__all__ = ["CanonicalizePass"]
