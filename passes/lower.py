"""Lower: one program per stage, with explicit sends and receives at its borders.

Reads the ``StageSet`` facet of every op of the entry function; appends one ``Stage`` symbol per stage. The entry function
stays: it is what the stages are checked against. Where a stage is on a mesh, ``passes.spmd`` writes the stages, with what else
holds of them; collectives are explicit there.

Invariants of the result (``ir.verifier`` checks that channels pair up; ``tests/passes/test_lower.py`` the rest):
1. An op stands in each stage of its set, in the entry's order, unchanged, values under the entry's names. So the stages one
   after the other, without ``comm`` ops, are the entry function in another topological order (each op once unless replicated).
2. ``%v = comm.recv() {channel, peer}`` stand first in a stage, ``comm.send(%v) {channel, peer}`` right after the op that makes
   ``%v``. A channel is one tensor to one stage; it leads from a lower to a higher index, so stages never wait in a circle.
   Channels are numbered by the producer's place in the entry, then by receiver.
3. A replicated op sends to a stage that lacks it from its latest copy before that stage.
4. Arguments and resources reach each stage that reads them directly: no channel carries them. An output of the model that is
   itself an argument or a resource is handed through by stage 0; one that is made in several stages leaves the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from ir.attributes import attributes
from ir.diagnostics import Diagnostic, InvalidInput
from ir.facets import ShardRule, StageSet
from ir.module import Func, Mesh, Module, Plan, Resource, Schedule, Stage, Symbol
from ir.names import unique
from ir.ops import Op, Value
from ir.topology import Topology
from ir.types import type_bytes
from passes.analyses.memory import reads
from passes.analyses.sizes import sized_results
from passes.fold import on_expanded
from passes.framework.base import Pass, PassContext

AGREE = 1e-6
"""Relative: how far two sums of the same seconds may lie apart."""
_ORDER: tuple[type[Symbol], ...] = (Resource, Func, Topology, Mesh, Stage, Schedule, Plan)


@dataclass(frozen=True)
class LowerPass(Pass):
    """Write one program per stage, with explicit sends and receives at its borders."""

    name = "lower"

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput when an op has no stage, a stage has no op, or a value would travel backwards."""
        module = module.without(Stage)
        plan = module.first(Plan)
        devices = {stage.index: stage.devices for stage in plan.stages} if plan else {}
        cuts = cuts_of(module.entry)
        sharded = is_sharded(module)
        if sharded:
            from passes.spmd.lowering import lower_sharded  # builds on this file

            lowered = lower_sharded(module, cuts)
        else:
            lowered = lower_function(module.entry, cuts)
        taken = {symbol.name for symbol in module.symbols}
        stages = tuple(
            replace(stage, name=unique(stage.name, taken), devices=devices.get(stage.index, ())) for stage in lowered
        )
        context.count(
            self.name,
            stages=len(stages),
            channels=len(cuts),
            bytes=sum(cut.nbytes or 0 for cut in cuts),
            collectives=sum(op.dialect == "comm" and op.get("axis") is not None for stage in stages for op in stage.ops),
        )
        module = insert_symbols(module, stages)
        if sharded and plan is not None and plan.objective != "training":
            _compare(module, plan, context)
        return module


def _compare(module: Module, plan: Plan, context: PassContext) -> None:
    """Warns where the collectives of a stage cost other seconds than the plan says: somebody has edited one of them."""
    from passes.spmd.count import count

    counted: dict[int, list[float]] = {}
    for one in count(module):
        counted.setdefault(one.stage, []).append(one.seconds)
    for stage in plan.stages:
        seconds = math.fsum(counted.get(stage.index, ()))
        if not math.isclose(seconds, stage.collectives, rel_tol=AGREE, abs_tol=1e-15):
            found = f"{seconds:.4g} s by count, {stage.collectives:.4g} s by {plan.name}"
            message = f"the collectives of stage {stage.index} take {found}"
            context.sink.warn(message, where=plan.name, hint="run 'shard' again: the plan is not that of these decisions")


def is_sharded(module: Module) -> bool:
    """Whether ops have strategies for a mesh, or the plan puts a stage on one."""
    plan = module.first(Plan)
    if plan is not None and any(stage.mesh for stage in plan.stages):
        return True
    return any(op.facet(ShardRule) is not None for op in module.entry.ops)


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor that crosses from stage ``source`` to stage ``target``; its channel is its position in ``cuts_of``."""

    tensor: Value
    source: int
    target: int
    nbytes: int | None
    """Bytes per microbatch, measured ones where the type does not tell; None where nothing does."""


def stage_members(func: Func) -> tuple[tuple[int, ...], ...]:
    """The stages of each op of ``func``, in the ops' order.

    Raises InvalidInput when an op has none, when a number below the highest is used by no op, or for a value that is made
    only in stages after one that reads it."""
    members = tuple(op.facet(StageSet, StageSet(())).stages for op in func.ops)
    problems = [
        Diagnostic("the op is in no stage", where=describe(op), hint="run 'partition' (or replay a plan) before 'lower'")
        for op, stages in zip(func.ops, members, strict=True)
        if not stages
    ]
    used = sorted({index for stages in members for index in stages})
    for before, after in pairwise((-1, *used)):
        if after > before + 1:
            holes = f"stage {before + 1} has" if after == before + 2 else f"stages {before + 1} to {after - 1} have"
            message = f"{holes} no op, but stage {used[-1]} has"
            problems.append(Diagnostic(message, where=func.name, hint="number the stages without holes"))
    made: dict[str, tuple[Op, tuple[int, ...]]] = {}
    for op, stages in zip(func.ops, members, strict=True):
        for name in reads(op) if stages else ():
            producer, holders = made.get(name, (None, ()))
            if producer is not None and holders and min(holders) > min(stages):
                problems.append(
                    Diagnostic(
                        f"stage {min(stages)} reads {name}, which stage {min(holders)} makes ({describe(producer)})",
                        where=describe(op),
                        hint="move one of the two ops: what a stage reads comes from stages of lower number",
                    )
                )
        made.update((value.name, (op, stages)) for value in op.results)
    if problems:
        raise InvalidInput(problems)
    return members


def cuts_of(func: Func) -> tuple[Cut, ...]:
    """Every tensor that crosses from one stage to another, by producer in ``func``'s order, then by receiver. Raises as
    ``stage_members``."""
    members = stage_members(func)
    targets: dict[str, dict[int, int]] = {}
    made: dict[str, tuple[int, ...]] = {}
    for op, stages in zip(func.ops, members, strict=True):
        for name in reads(op):
            for stage in stages:
                if name in made and stage not in made[name]:
                    targets.setdefault(name, {})[stage] = max(holder for holder in made[name] if holder < stage)
        made.update((value.name, stages) for value in op.results)
    return tuple(
        Cut(value, source, target, type_bytes(sized.type))
        for op in func.ops
        for value, sized in zip(op.results, sized_results(op), strict=True)
        for target, source in sorted(targets.get(value.name, {}).items())
    )


def lower_function(func: Func, cuts: tuple[Cut, ...]) -> tuple[Stage, ...]:
    """The programs of ``func``'s stages, on no device yet; ``cuts`` are its ``cuts_of``."""
    members = stage_members(func)
    arguments = {value.name: value for value in func.args}
    outputs = {value.name: value for value in func.results}
    first_holder: dict[str, int] = {}
    stages = []
    for index in range(1 + max((index for stages in members for index in stages), default=0)):
        own = [op for op, stages in zip(func.ops, members, strict=True) if index in stages]
        used = dict.fromkeys(name for op in own for name in reads(op))
        for op in own:
            for value in op.results:
                first_holder.setdefault(value.name, index)
        results = [
            value
            for name, value in outputs.items()
            if first_holder.get(name, -1) == index or (index == 0 and (name in arguments or name[:1] == "@"))
        ]
        if index == 0:
            used.update(dict.fromkeys(value.name for value in results))
        body = [
            Op("comm.recv", results=(cut.tensor,), attributes=attributes(channel=channel, peer=cut.source))
            for channel, cut in enumerate(cuts)
            if cut.target == index
        ]
        sends: dict[str, list[tuple[int, Cut]]] = {}
        for channel, cut in enumerate(cuts):
            if cut.source == index:
                sends.setdefault(cut.tensor.name, []).append((channel, cut))
        for op in own:
            body.append(op)
            body += [
                Op("comm.send", (value.name,), attributes=attributes(channel=channel, peer=cut.target), location=op.location)
                for value in op.results
                for channel, cut in sends.get(value.name, ())
            ]
        args = tuple(value for value in func.args if value.name in used)
        stages.append(Stage(f"@stage{index}", index, (), args, tuple(results), tuple(body)))
    return tuple(stages)


def stage_function(stage: Stage) -> Func:
    """The program of ``stage`` as a function without ``comm`` ops: what it receives is an argument, behind the model's inputs;
    what it sends is a result, behind the model's outputs, each tensor once."""
    received = [op.results[0] for op in stage.ops if op.name == "comm.recv"]
    ops = tuple(op for op in stage.ops if op.dialect != "comm")
    made = {value.name: value for op in ops for value in op.results}
    results = {value.name: value for value in stage.results}
    for op in stage.ops:
        if op.name == "comm.send":
            results.setdefault(op.operands[0], made[op.operands[0]])
    return Func(stage.name, (*stage.args, *received), tuple(results.values()), ops, stage.attributes)


def describe(op: Op) -> str:
    """How diagnostics name an op: its graph path and node, else its id."""
    node = "/".join(part for part in (op.location.path, op.location.node) if part)
    return f"{node} ({op.id})" if op.location.node else op.id


def listing(names: Iterable[str]) -> str:
    """Names for a message; a long list is cut."""
    names = list(names)
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:8])} and {len(names) - 8} more"


def insert_symbols(module: Module, symbols: Iterable[Symbol]) -> Module:
    """The module with ``symbols``, all of one class, behind those of its class and the classes printed before it."""
    added = tuple(symbols)
    if not added:
        return module
    rank = _ORDER.index(type(added[0]))
    position = 1 + max((i for i, symbol in enumerate(module.symbols) if _ORDER.index(type(symbol)) <= rank), default=-1)
    return replace(module, symbols=(*module.symbols[:position], *added, *module.symbols[position:]))
