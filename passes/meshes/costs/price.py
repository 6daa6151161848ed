"""What a sharding costs, counted by a walk over the function: every collective, one by one.

It reads the decisions and the layout rules, and nothing of the search: not its problem or tables. What members spend on an op
(``member_work``) and the ways between layouts (``layouts``) are asked where the search asks them; all else of the model that
``passes.partition.layouts.problem.build`` and ``mesh`` state is spelled out here a second time: an error in either shows as a
difference. A value is brought to a layout once, straight from the one it is made in, by the cheapest chain of collectives
(``layouts``).

Where members gather the factors of a weight's gradient (``factors``), what its sum would take is not counted, but each factor
that is not whole already, once for all weights that it is a factor of, in every microbatch; the longer product; and the memory
of the factors of one product.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ir.core.facets import SYNCS, sync_of
from ir.core.module import Func, Module
from ir.core.ops import Op
from ir.core.types import Partial, Replicate, TensorType, type_bytes
from ir.layout_rules import Backward, LayoutRule, Strategy, Surroundings, backward_rule, rules
from ir.ops.opdefs import COLLECTIVES, module_opsets
from passes.costs.blocked import blocked_values
from passes.costs.exchange import GradientSum, hidden, waiting_bytes
from passes.costs.learning import made_last, of_weights, recomputes, runs_first, scales, trained, updated_bytes
from passes.costs.memory.liveness import resource_bytes
from passes.costs.op_time import as_much, is_head, may_fuse
from passes.graph.graph import reads
from passes.meshes.costs.bill import Bill, Collective, Decisions
from passes.meshes.costs.member_work import MemberWork, whole_along
from passes.meshes.factors import Multiplied, factored, factors
from passes.meshes.layouts import Placements, Ways, gradient_layout, is_kept
from passes.meshes.mesh import DeviceMesh
from passes.solvers.work import did


def price(
    module: Module,
    func: Func,
    mesh: DeviceMesh,
    decisions: Decisions,
    *,
    training: bool = False,
    microbatches: int = 1,
    in_flight: int = 1,
) -> Bill:
    """The bill of ``decisions``; ``microbatches`` share the synchronisation of a weight's gradient, one is charged its part;
    what the backward pass needs is kept of ``in_flight``, where the forward pass runs again for it of one, beside what came
    from other stages of all. Raises KeyError where a decision is missing or names no strategy."""
    walk = _Walk(module, func, mesh, decisions, training, microbatches)
    bill = walk.bill
    did("priced", len(func.ops))
    if training and walk.again:
        received = [(walk.types[name], lies) for name, lies in decisions.entering.items()]
        whole = math.fsum((type_bytes(type_) or 0) * walk.members.fullest(type_, lies) for type_, lies in received)
        bill.saved += in_flight * whole
    else:
        bill.saved *= in_flight
    bill.memory += bill.saved
    return bill


class _Run(NamedTuple):
    """How ops of one ``kind`` run under strategies of these ``names``. ``lies``: layouts of operands, then of results;
    ``gradients``: of each operand, one placement for each axis whose strategy makes a gradient of it."""

    kind: int
    rule: LayoutRule | None
    names: tuple[str, ...]
    strategies: tuple[Strategy | None, ...]
    lies: tuple[Placements, ...]
    gradients: tuple[Placements, ...]


class _Walk:
    def __init__(
        self,
        module: Module,
        func: Func,
        mesh: DeviceMesh,
        decisions: Decisions,
        training: bool,
        microbatches: int,
    ) -> None:
        self.mesh, self.training, self.bill = mesh, training, Bill()
        self.again, self.scaled = recomputes(module), scales(module)
        self.times_read = Counter([*(value.name for value in func.results), *decisions.leaving])
        for op in func.ops:
            self.times_read.update(op.operands)
            self.times_read.update(name for name in reads(op) if name not in op.operands)
        self.chains: set[str] = set()
        self.blocked: frozenset[str] = frozenset() if training else blocked_values(module.entry)
        self.microbatches = microbatches
        self.ways = Ways(mesh)
        self.around = Surroundings(module.resources.values(), module_opsets(module))
        self.types = self.around.types
        self.types.update((value.name, value.type) for value in func.args)
        self.members = MemberWork(mesh, training=training, again=self.again)
        self.runs: dict[tuple[int, tuple[str, ...]], _Run] = {}
        self.known: dict[tuple[int, tuple[str, ...], int], tuple[float, float]] = {}
        self.lies: dict[str, Placements] = {}
        self.asked: dict[str, dict[Placements, None]] = {}
        self.given: dict[str, dict[Placements, None]] = {}
        self.synced = decisions.synced
        self.factored: Mapping[str, Multiplied] = {}
        self.passing = _passing(func, self.times_read) if decisions.synced else {}
        self.factors: dict[str, dict[Placements, None]] = {}
        self.factor_gradients: dict[str, dict[Placements, None]] = {}
        self.gathered: list[float] = []
        self.trained: set[str] = set()
        self.worked: list[float] = []
        self.hiding: list[float] = []
        self.held: list[float] = []
        self.updated: list[float] = []
        self.left: list[float] = []
        self.alone: list[float] = []
        self.together: list[float] = []
        self.drawn: dict[tuple[int, int], tuple[LayoutRule, dict[str, Backward]]] = {}
        self.resources = resources = module.resources
        self.bytes = resource_bytes(module)
        self.state = trained(resources) if training else {}
        of_all = of_weights(module.entry, self.state)  # some of it may come from other stages
        self.summed = {*resources, *of_weights(func, self.state), *(of_all if decisions.entering else ())}
        # As the search counts those of a stage:
        self.last = made_last(module.entry)
        self.first = runs_first(module.entry, (self.state.keys() | of_all) - self.last) if training else frozenset()
        self.wanted = Counter(name for op in func.ops for name in [*op.operands, *(set(reads(op)) - set(op.operands))])
        for name in dict.fromkeys(name for op in func.ops for name in reads(op) if name in resources):
            self.keep(name, decisions)
        whole: Placements = (Replicate(),) * len(mesh.axes)
        by_factors = {name for name, sync in decisions.synced.items() if sync.method == "sfb"}
        if by_factors:
            ruled, names = {op.id: rule for op, rule in rules(module, func)}, decisions.strategies
            self.factored = factored(func, by_factors, lambda op, i: self.terms(ruled[op.id], names.get(op.id, ()), i))
        self.lies.update(decisions.entering)
        self.trained |= decisions.learning
        for op in func.ops:
            run = self.run(op, decisions)
            self.around.see(op)
            if run.rule is None:
                self.compute(op, run)
                for name in reads(op):
                    self.ask(name, whole, None)
                    self.wait(name, whole, ())
                self.bill.reads[op.id] = [(name, whole) for name in reads(op)]
                self.lies.update((value.name, whole) for value in op.results)
            else:
                self.visit(op, run, run.rule)
        for value in func.results:
            if value.name in self.lies and value.name not in resources:
                self.ask(value.name, decisions.outputs[value.name], gradient_layout(decisions.outputs[value.name]))
        for name, lies in decisions.leaving.items():
            self.ask(name, lies, None)
        self.maker = {name: op.id for op in reversed(func.ops) for name in op.operands}
        self.maker.update((value.name, op.id) for op in func.ops for value in op.results)
        self.exchange()
        self.held.append(max(self.gathered, default=0.0))
        # Sums of any order of the ops agree to the last digit.
        self.bill.update = math.fsum(self.updated)
        self.bill.memory, self.bill.saved = math.fsum(self.held), math.fsum(self.left)
        self.bill.waiting = waiting_bytes(self.alone, self.together)
        self.bill.compute = math.fsum([*self.worked, *self.updated])
        self.bill.hiding = math.fsum(self.hiding)
        self.bill.hidden = self.hidden(module, func) / self.microbatches
        self.bill.lies = self.lies
        self.bill.asked = {name: tuple(layouts) for name, layouts in self.asked.items()}

    def exchange(self) -> None:
        """Adds what brings values, their gradients and factors of gradients of weights to where they are asked for."""
        for name, lies in self.lies.items():
            for target in self.asked.get(name, ()):
                self.bring(name, lies, target, backward=False)
            for source in self.given.get(name, ()):
                self.bring(name, source, gradient_layout(lies), backward=True)
            for target in self.factors.get(name, ()):
                if target not in self.asked.get(name, ()):
                    self.bring(name, lies, target, backward=True, factor="value")
            for target in self.factor_gradients.get(name, ()):
                if [*self.given.get(name, ())] != [target]:  # where all readers give it so, it is there
                    self.bring(name, gradient_layout(lies), target, backward=True, factor="gradient")

    def keep(self, name: str, decisions: Decisions) -> None:
        """A weight, where it is kept; a small constant is everywhere."""
        type_ = self.types[name]
        if not isinstance(type_, TensorType) or type_.elements is None or type_.nbytes is None:
            return
        learns = name in self.state
        if not is_kept(type_, training=self.training):
            size = self.bytes[name] + (type_.nbytes + self.state[name] if learns else 0)
            self.bill.constants += size * self.members.fullest(type_, (Replicate(),) * len(self.mesh.axes))
            return
        self.lies[name] = decisions.kept[name]
        size = self.bytes[name]
        if learns:
            self.trained.add(name)
            self.bill.learned.add(name)
            kept = self.state[name]
            moved = updated_bytes(size, kept, scaled=self.scaled)
            self.updated.append(self.members.update_seconds(type_, self.lies[name], moved) / self.microbatches)
            size = (size if self.microbatches == 1 else 0) + kept
        self.held.append(size * self.members.fullest(type_, self.lies[name]))

    def backs(self, rule: LayoutRule, size: int) -> dict[str, Backward]:
        """The strategies of a rule by name; equal ops share their rule."""
        key = id(rule), size
        if key not in self.drawn:
            self.drawn[key] = rule, {back.strategy.name: back for back in backward_rule(rule, size)}
        return self.drawn[key][1]

    def run(self, op: Op, decisions: Decisions) -> _Run:
        """How an op runs under its strategies; ops of one kind under the same run alike."""
        kind, rule = self.around.kind(op), self.around.rule(op)
        names = decisions.strategies[op.id] if rule is not None else ()
        if (kind, names) not in self.runs:
            self.runs[kind, names] = self.of_kind(op, kind, rule, names)
        return self.runs[kind, names]

    def of_kind(self, op: Op, kind: int, rule: LayoutRule | None, names: tuple[str, ...]) -> _Run:
        """As ``run``."""
        count = len(op.operands)
        if rule is None:
            whole: Placements = (Replicate(),) * len(self.mesh.axes)
            return _Run(kind, rule, (), (None,) * len(whole), (whole,) * (count + len(op.results)), ((),) * count)
        backs = [self.backs(rule, axis.size)[name] for axis, name in zip(self.mesh.axes, names, strict=True)]
        lies = [tuple([back.strategy.operands[i] for back in backs]) for i in range(count)]
        lies += [tuple([back.strategy.results[i] for back in backs]) for i in range(len(op.results))]
        gradients = tuple([tuple([g for back in backs if (g := back.gradients[i]) is not None]) for i in range(count)])
        return _Run(kind, rule, names, tuple([back.strategy for back in backs]), tuple(lies), gradients)

    def visit(self, op: Op, run: _Run, rule: LayoutRule) -> None:
        operands, results = run.lies[: len(op.operands)], run.lies[len(op.operands) :]
        along = [axes for i, name in enumerate(op.operands) if (axes := self.gather(op, i, name, operands, results))]
        self.compute(op, run, frozenset().union(*along))
        self.bill.reads[op.id] = [(name, lies) for name, lies in zip(op.operands, operands, strict=True) if name]
        flows = any(name in self.trained for name in op.operands)
        for i, name in enumerate(op.operands):
            gradient = run.gradients[i]
            if len(gradient) == len(self.mesh.axes):
                gradient = whole_along(gradient, self.factored[name].axes if name in self.factored else ())
            self.ask(name, operands[i], gradient if len(gradient) == len(self.mesh.axes) else None)
            self.wait(name, operands[i], gradient)
        for i, value in enumerate(op.results):
            self.lies[value.name] = results[i]
            if flows and rule.differentiable[1][i]:
                self.trained.add(value.name)

    def wait(self, name: str, lies: Placements, gradient: Placements) -> None:
        """Notes the gradient of a weight that an op reads in the layout ``lies``, where microbatches add to it: it waits in a
        bucket if it is summed over members that all keep the sum (``passes.programs.lower.buckets``)."""
        type_ = self.types.get(name)
        if self.microbatches == 1 or name not in self.bill.learned or not isinstance(type_, TensorType):
            return
        pairs = list(zip(gradient, self.lies[name], strict=False))
        sums = [kept for placement, kept in pairs if isinstance(placement, Partial)]
        whole = sync_of(self.resources[name].facets).method != SYNCS[1]  # not in parts (reduce_scatter)
        together = bool(sums) and whole and all(isinstance(kept, Replicate) for kept in sums)
        size = (type_.nbytes or 0) * self.members.fullest(type_, lies) / self.wanted[name]
        (self.together if together else self.alone).append(size)

    def terms(self, rule: LayoutRule | None, names: tuple[str, ...], operand: int) -> list[int]:
        """The axes along which members hold terms of the gradient of an operand."""
        if rule is None:
            return []
        backs = [self.backs(rule, axis.size)[name] for axis, name in zip(self.mesh.axes, names, strict=True)]
        return [axis for axis, back in enumerate(backs) if back.gradients[operand] == Partial("sum")]

    def gather(
        self, op: Op, number: int, name: str, operands: Sequence[Placements], results: Sequence[Placements]
    ) -> frozenset[int]:
        """Asks for the factors of the gradient of an operand whole, along the axes that are returned; none where its terms are
        summed."""
        product = self.factored.get(name) if self.training else None
        others = factors(op, number) if product is not None else None
        if product is None or others is None:
            return frozenset()
        result, axes = op.results[0], product.axes
        sizes = []
        for other in others:
            wanted = whole_along(operands[other], axes)
            self.factors.setdefault(op.operands[other], {})[wanted] = None
            sizes.append((self.types[op.operands[other]], wanted))
        wanted = whole_along(gradient_layout(results[0]), axes)
        self.factor_gradients.setdefault(self.passed(result.name), {})[wanted] = None
        sizes.append((result.type, wanted))
        whole = (
            t.nbytes * self.members.fullest(t, lies) for t, lies in sizes if isinstance(t, TensorType) and t.nbytes is not None
        )
        self.gathered.append(math.fsum(whole))
        rows = [("value", op.operands[other]) for other in others]
        self.bill.products.append((product.weight, op.id, (*rows, ("gradient", self.passed(result.name))), name))
        return axes

    def passed(self, name: str) -> str:
        """The last value that has the same gradient: one that only a sum of as many elements reads has that of the sum."""
        while name in self.passing:
            name = self.passing[name]
        return name

    def compute(self, op: Op, run: _Run, along: frozenset[int] = frozenset()) -> None:
        """``along``: the axes along which the gradient of its weight is multiplied whole."""
        operands = run.lies[: len(op.operands)]
        types = [self.types.get(name) if name else None for name in op.operands] + [value.type for value in op.results]
        port = self.follows(op, operands)
        key = run.kind, run.names, port
        if key not in self.known:
            self.known[key] = self.members.seconds(op, run.kind, types, run.strategies, run.lies, port)
        seconds, back = self.known[key]
        if along:
            more = self.members.repeated(op, types, run.strategies, run.lies, along)
            seconds, back = seconds + more, back + self.members.beside * more
            self.bill.repeated[op.id] = more
        self.worked.append(seconds)
        self.bill.work[op.id], self.bill.back[op.id] = seconds, back
        if op.id not in self.first:
            self.hiding.append(back)
        captured = dict.fromkeys(set(reads(op)) - set(op.operands), (Replicate(),) * len(self.mesh.axes))
        for name, lies in (*zip(op.operands, operands, strict=True), *captured.items()):
            type_ = self.types.get(name)
            if name[:1] == "@" and name in self.trained and isinstance(type_, TensorType):
                copies = 1 if self.microbatches == 1 else 2  # the gradient waits for those of other microbatches
                self.held.append(copies * (type_.nbytes or 0) * self.members.fullest(type_, lies) / self.wanted[name])
        if any(name in self.trained for name in op.operands):
            self.left.append(self.members.saved(op, types, run.strategies, run.lies))

    def follows(self, op: Op, operands: Sequence[Placements]) -> int:
        """The operand that stays in the registers when the op is fused into what makes it; -1 where it is not. Notes what can
        be fused into the op in turn."""
        joined = -1
        if self.training:
            return joined
        if may_fuse(op):
            for i, (value, lies) in enumerate(zip(op.operands, operands, strict=True)):
                alone = value in self.chains and self.times_read[value] == 1 and self.lies[value] == lies
                if alone and as_much(self.types[value], op.results[0].type):
                    joined = i
        if joined >= 0 or is_head(op):
            self.chains.add(op.results[0].name)
        return joined

    def ask(self, name: str, lies: Placements, gradient: Placements | None) -> None:
        if name in self.lies:
            self.asked.setdefault(name, {})[lies] = None
            if gradient is not None and name in self.trained:
                self.given.setdefault(name, {})[gradient] = None

    # -- conversions ---------------------------------------------------------------------------------------------------

    def bring(self, name: str, source: Placements, target: Placements, *, backward: bool, factor: str = "") -> None:
        """Adds the cheapest chain of collectives to the bill."""
        if name in self.blocked and source != target:
            self.reorder(name, source, target)
        summed = backward and name in self.summed  # once a step, in buckets
        runs = self.microbatches if summed else 1
        sync = self.synced.get(name)
        server = sync.server if summed and sync is not None and sync.method == "ps" else None
        for step in self.ways.way(self.types[name], source, target, together=summed) if source != target else ():
            if step.kind in COLLECTIVES:
                axis = self.mesh.axes[step.axis].name
                seconds = step.seconds / runs
                along = self.mesh.axes[step.axis]
                if server is not None and step.kind == "all_reduce":
                    seconds = along.served(step.size, max(server, 0) % along.size) / runs
                one = Collective(step.kind, axis, name, step.size, seconds, backward, runs, summed, factor)
                self.bill.collectives.append(one)
        if summed and source != target and name not in self.last:
            found = self.ways.layouts(self.types[name], together=True)
            self.bill.beside += float(found.first[found.numbers[source], found.numbers[target]]) / runs

    def reorder(self, name: str, source: Placements, target: Placements) -> None:
        """Counts what it takes to bring a value in blocks to another layout, beside collectives, as work of the op that makes
        it; of a value of another stage, of the op that reads it first."""
        seconds = self.members.reorder_seconds(self.types[name], source, target)
        self.worked.append(seconds)
        self.bill.work[self.maker[name]] += seconds

    def hidden(self, module: Module, func: Func) -> float:
        """Seconds of sums of gradients that the last backward pass of a step hides. A sum over the first axis of a weight
        begins in it; what follows on other axes, what leaves parts, and what waits for other stages that read the weight,
        waits for the update."""
        first: dict[str, int] = {}
        for position, op in enumerate(func.ops):
            for name in reads(op):
                first.setdefault(name, position)
        own = {op.id for op in func.ops}
        elsewhere = {name for op in module.entry.ops if op.id not in own for name in reads(op)}
        backs = [self.bill.back[op.id] for op in func.ops]
        made = list(itertools.accumulate(reversed(backs)))[::-1]  # when the gradients of an op are
        sums: dict[str, dict[str, Collective]] = {}
        for one in self.bill.collectives:
            alone = one.summed and len(self.given[one.value]) == 1 and one.value not in elsewhere
            if alone and not any(one.value in row for row in sums.values()):
                sums.setdefault(one.axis if one.kind == "all_reduce" else "", {})[one.value] = one
        sums.pop("", None)
        rows = [
            [GradientSum(made[first[name]], one.size, one.seconds * one.runs) for name, one in along.items()]
            for along in sums.values()
        ]
        return hidden(rows, math.fsum(backs))


def _passing(func: Func, times_read: Mapping[str, int]) -> dict[str, str]:
    """Of values that only a sum of as many elements reads, that sum: it has the same gradient."""
    made = {value.name: value.type for op in func.ops for value in op.results}
    terms = {"onnx.Add": 2, "onnx.Sub": 1}
    return {
        name: op.results[0].name
        for op in func.ops
        for name in op.operands[: terms.get(op.name, 0)]
        if times_read[name] == 1 and name in made and as_much(made[name], op.results[0].type)
    }
