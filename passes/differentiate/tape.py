"""Reverse mode over one function: the gradients of its trainable resources, as ops in the order in which they may run.

``differentiated`` walks the ops of phase F backward. A value *depends* when a trainable resource reaches it through floats;
only such values get gradients. Contributions to the gradient of a value are summed in the stage of their readers first, then
in the first stage that makes the value: one tensor crosses per pair of stages. A weight keeps one sum per stage.

Of the ops that come out, those are of phase I that a gradient of a value needs which depends on the function's arguments; the
others reach gradients of weights alone and are of phase W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.core.diagnostics import InvalidInput
from ir.core.facets import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, StageSet, phase_of
from ir.core.module import Func, Module
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import TensorType, Type, without_layout
from passes.differentiate.faults import NoBody
from passes.differentiate.rules import EVERY_RESULT, RULES
from passes.differentiate.site import ZERO, Added, Program, Site
from passes.graph.graph import describe, reads

Body = Callable[[Op], Module | None]
"""The ops that a composite op stands for (``FunctionBodies``); None where it has no such definition."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """What reverse mode gives. ``added``: ops in order, of phase I or W, under their names; ``weights``: of each resource that
    has gradients, the name of its gradient by stage (0 in a program without stages), ``readers``: the last op of that stage
    that reads it; ``named``: results that ops of the forward program make in addition, by the id of the op and the number of
    the result; ``values``: the gradient of each value; ``given``: gradients that the ops of one op alone begin with."""

    added: tuple[Added, ...]
    weights: Mapping[str, Mapping[int, str]]
    readers: Mapping[tuple[str, int], Op]
    named: Mapping[tuple[str, int], Value]
    values: Mapping[str, str]
    given: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Seed:
    """The gradient of the loss with which the backward pass of a microbatch begins: 1, or the resource ``scale`` by the number
    of ``microbatches``: so much does a microbatch add to the gradients of a step, whose loss is scaled."""

    scale: str = ""
    microbatches: int = 1


def differentiated(
    func: Func,
    loss: str,
    trainable: Iterable[str],
    program: Program,
    body: Body,
    seed: Seed = Seed(),
) -> Gradients:
    """The gradients of ``loss`` by the resources ``trainable``. Raises InvalidInput for an op on the way that has none."""
    tape = _Tape(func, program, body)
    tape.mark(set(trainable))
    tape.walk(loss, seed)
    return tape.finished()


def differentiated_alone(op: Op, learned: Iterable[str], given: Mapping[str, int], program: Program, body: Body) -> Gradients:
    """The gradients of the operands ``learned`` of one op. ``given[result]``: how many readers of a result contribute to its
    gradient; what they contribute are the values ``Gradients.given``. Raises InvalidInput for an op that has no gradient."""
    tape = _Tape(Func("@main", (), (), (op,)), program, body)
    tape.mark(set(learned))
    tape.at(op)
    contributed = []
    for value in op.results:
        if value.name in tape.depends:
            for _ in range(given.get(value.name, 0)):
                contributed.append(Value(unique(f"{value.name}.given", program.taken), without_layout(value.type)))
                program.around.types[contributed[-1].name] = contributed[-1].type
                tape.contribute(value.name, contributed[-1].name, op)
    tape.back(op)
    return replace(tape.finished(), given=tuple(contributed))


@dataclass(slots=True)
class _Tape:
    """One walk backward. ``depends``, ``carries``: names that a trainable resource, that an argument reaches;
    ``parts[name][stage]``: contributions to the gradient of ``name``; ``totals``: gradients that are summed."""

    func: Func
    program: Program
    body: Body
    depends: set[str] = field(default_factory=set)
    carries: set[str] = field(default_factory=set)
    parts: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    totals: dict[str, str] = field(default_factory=dict)
    trainable: set[str] = field(default_factory=set)
    sources: dict[tuple[str, int], Op] = field(default_factory=dict)

    def mark(self, trainable: set[str]) -> None:
        """What depends on trainable resources, and what carries arguments."""
        self.trainable, self.depends = trainable, set(trainable)
        self.carries = {arg.name for arg in self.func.args}
        for op in self.func.ops:
            self.spread(op)

    def spread(self, op: Op) -> None:
        names = reads(op)
        if any(name in self.carries for name in names) or not names:
            self.carries.update(value.name for value in op.results)
        if any(name in self.depends for name in names):
            self.depends.update(value.name for value in op.results if value.name and _is_float(value.type))

    def walk(self, loss: str, seed: Seed) -> None:
        ops = [op for op in self.func.ops if phase_of(op.facets) == FORWARD]
        maker = next((op for op in ops if any(value.name == loss for value in op.results)), None)
        if maker is None or loss not in self.depends:
            return
        self.at(maker)
        type_ = self.program.around.types[loss]
        assert isinstance(type_, TensorType)
        gradient = seed.scale or self.program.constant(type_.dtype, (), [1.0])
        if seed.scale and seed.microbatches > 1:
            share = self.program.constant(type_.dtype, (), [1.0 / seed.microbatches])
            gradient = Site(self.program, maker, {}, ()).mul(gradient, share)
        self.contribute(loss, gradient, maker)
        for op in reversed(ops):
            self.back(op)

    def at(self, op: Op) -> int:
        """Makes the first stage of ``op`` that of the ops that are added now; its number."""
        stages = op.facet(StageSet, StageSet(())).stages[:1]
        self.program.stages = stages
        return stages[0] if stages else 0

    def contribute(self, name: str, gradient: str, op: Op) -> None:
        """Adds to the gradient of ``name``, which ``op`` reads or makes, in the present stage."""
        stage = self.program.stages[0] if self.program.stages else 0
        self.parts.setdefault(name, {}).setdefault(stage, []).append(gradient)
        self.sources.setdefault((name, stage), op)

    def back(self, op: Op) -> None:
        """Takes the gradients of the results of ``op`` to its operands."""
        gradients = {value.name: total for value in op.results if (total := self.total(value.name, op)) is not None}
        if not gradients:
            return
        self.at(op)
        self.totals.update(gradients)
        if not any(name in self.depends for name in reads(op)):
            return
        rule = RULES.get(op.name) if not op.regions else None
        if rule is None:
            self.through_body(op, gradients, "has no rule")
            return
        if op.name not in EVERY_RESULT and (beyond := [v.name for v in op.results[1:] if v.name in gradients]):
            self.through_body(op, gradients, f"has no rule for the gradient of its result {', '.join(beyond)}")
            return
        wanted = [name in self.depends for name in op.operands]
        site = Site(self.program, op, gradients, wanted)
        for name in (*gradients, *(name for name, wants in zip(op.operands, wanted, strict=True) if wants)):
            site.shape_of(name)  # a gradient has the shape of its value: told here where that is not known
        found = [*rule(site), *(None for _ in op.operands)]
        unknown = [
            name for name, wants, gradient in zip(op.operands, wanted, found, strict=False) if wants and gradient is None
        ]
        if unknown:
            self.through_body(op, gradients, f"has no rule for the gradient of its operand {', '.join(unknown)}")
            return
        for number, (name, gradient) in enumerate(zip(op.operands, found, strict=False)):
            if wanted[number] and gradient is not None and gradient != ZERO:
                self.checked(site, number, gradient)
                self.contribute(name, gradient, op)

    def checked(self, site: Site, number: int, gradient: str) -> None:
        """A gradient has the type of its value: a rule that gives another is wrong."""
        has, wanted = site.type_of(gradient), site.type(number)
        if has != wanted:
            raise AssertionError(f"the rule of {site.op.name} gives {has} for operand {number} of {wanted}")

    def through_body(self, op: Op, gradients: Mapping[str, str], lack: str) -> None:
        """Differentiates the ops that define ``op``, which run again for it. ``lack``: why there is no other way."""
        module = self.body(op)
        if module is None:
            what = "holds a body that runs as its values say" if op.regions else lack
            raise InvalidInput(NoBody(op.name, what), where=describe(op))
        names = self.program.imported(module)
        names |= {arg.name: name for arg, name in zip(module.entry.args, filter(None, op.operands), strict=True)}
        copies = []
        for inner in module.entry.ops:
            results = tuple(Value(self.program.temporary(), value.type) if value.name else value for value in inner.results)
            names.update((before.name, after.name) for before, after in zip(inner.results, results, strict=True))
            operands = tuple(names.get(name, name) for name in inner.operands)
            copy = replace(inner, operands=operands, results=results, facets=(), location=op.location)
            self.program.around.see(copy)
            self.spread(copy)
            self.program.added.append(Added(copy, op, self.program.stages))
            copies.append(copy.with_facets(StageSet(self.program.stages)) if self.program.stages else copy)
        for value, made in zip((value for value in op.results if value.name), module.entry.results, strict=True):
            if value.name in gradients:
                self.contribute(names.get(made.name, made.name), gradients[value.name], op)
        for copy in reversed(copies):
            self.back(copy)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def total(self, name: str, op: Op) -> str | None:
        """The gradient of a value that ``op`` makes; None where nothing contributes."""
        parts = self.parts.pop(name, None)
        if not parts:
            return None
        home = op.facet(StageSet, StageSet(())).stages[:1]
        sums = []
        for stage, names in sorted(parts.items()):
            self.program.stages = (stage,) if home else ()
            sums.append(self.sum_of(names, op))
        self.program.stages = home
        return self.sum_of(sums, op)

    def sum_of(self, names: Sequence[str], op: Op) -> str:
        """Their sum, in the present stage."""
        return Site(self.program, op, {}, ()).total(names)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finished(self) -> Gradients:
        """Sums of weights, then phases and names."""
        weights = self.weight_sums()
        needed = {name for by_stage in weights.values() for name in by_stage.values()}
        alive = []
        for one in reversed(self.program.added):
            if any(value.name in needed for value in one.op.results):
                needed.update(filter(None, one.op.operands))
                alive.append(one)
        alive.reverse()
        inner = {total for name, total in self.totals.items() if name in self.carries and total in needed}
        for one in reversed(alive):
            is_input = any(value.name in inner for value in one.op.results)
            one.phase = INPUT_GRADIENT if is_input else WEIGHT_GRADIENT
            if is_input:
                inner.update(filter(None, one.op.operands))
        names = self.names(alive, weights)
        for one in alive:
            operands = tuple(names.get(name, name) for name in one.op.operands)
            results = tuple(
                Value(names[value.name], value.type) if value.name in needed else Value("") for value in one.op.results
            )
            one.op = replace(one.op, operands=operands, results=results)
            self.program.around.types.update((value.name, value.type) for value in results)
        by_name = {name: {stage: names.get(one, one) for stage, one in parts.items()} for name, parts in weights.items()}
        values = {name: names.get(total, total) for name, total in self.totals.items()}
        named = {key: value for key, value in self.program.named.items() if value.name in needed}
        return Gradients(tuple(alive), by_name, self.sources, named, values)

    def weight_sums(self) -> dict[str, dict[int, str]]:
        """Of each trainable resource that has a gradient, its sum in each stage that reads the resource."""
        found: dict[str, dict[int, str]] = {}
        makers = {value.name: one.stages for one in self.program.added for value in one.op.results}
        for name in sorted(self.trainable & self.parts.keys()):
            for stage, parts in sorted(self.parts[name].items()):
                reader = self.sources[name, stage]
                self.program.stages = (stage,) if reader.facet(StageSet) else ()
                total = self.sum_of(parts, reader)
                # That of a term of the loss is a constant; that of a weight which is added is that of the sum, which another
                # stage may have made. Each is accumulated in the stage of the weight, like the others.
                if total[:1] == "@" or makers.get(total, self.program.stages) != self.program.stages:
                    site = Site(self.program, reader, {}, ())
                    total = site.emit("onnx.Identity", (total,), site.type_of(total))
                found.setdefault(name, {})[stage] = total
        return found

    def names(self, alive: Sequence[Added], weights: Mapping[str, Mapping[int, str]]) -> dict[str, str]:
        """What temporary names become: of a gradient ``%value.grad``, of what leads to one the op's and the operator's."""
        final: dict[str, str] = {}
        source = {value.name: one.source.id for one in alive for value in one.op.results}
        gradients = [*self.totals.items()]
        gradients += [(name, one) for name, parts in weights.items() for one in parts.values()]
        for name, total in gradients:
            if total in source and total not in final:
                base = f"{source[total]}.inner" if is_temporary(name) else name
                final[total] = unique(f"%{base[1:]}.grad", self.program.taken)
        for one in alive:
            for value in one.op.results:
                if is_temporary(value.name) and value.name not in final:
                    operator = one.op.name.rpartition(".")[2]
                    final[value.name] = unique(f"%{one.source.id[1:]}.{operator}", self.program.taken)
        return final


def is_temporary(name: str) -> bool:
    """Whether ``Program.temporary`` gave this name."""
    return name[:2] == "%\x00"


def _is_float(type_: Type) -> bool:
    bare = without_layout(type_)
    return not isinstance(bare, TensorType) or bare.dtype.is_float
