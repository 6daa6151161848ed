"""A training step as a model: the entry function of ``plan.ir``, in which each name of a resource means what it holds there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dnnc.check.proof.model import Model, read_model
from dnnc.check.proof.training.units import takes_statistics
from ir.core.facets import phase_of
from ir.core.module import Declared, Module, Resource
from ir.core.ops import Op, all_reads
from ir.ops.grads import ASSIGN
from ir.ops.opdefs import RESHARD, is_collective


@dataclass(frozen=True, slots=True)
class Final:
    """What a resource is assigned last, in ``phase``: the value of this name."""

    phase: str
    value: str


@dataclass(frozen=True, slots=True)
class StepModel:
    """``model``: the values of a step. ``assigned``: by resource, what it is when the step (or, of phase F, the microbatch) is
    done."""

    model: Model
    assigned: dict[str, Final]

    def node(self, resource: str) -> int:
        return self.model.node_of[self.assigned[resource].value]


def step_model(module: Module) -> StepModel:
    """The step that the entry function of ``module`` (expanded) is, wherever its ops run."""
    entry = module.entry
    ops, assigned = resolved(entry.ops)
    func = replace(entry, ops=tuple(ops))
    symbols = tuple(  # what a resource that is assigned holds at first is no constant of the step
        replace(symbol, data=Declared()) if isinstance(symbol, Resource) and symbol.name in assigned else symbol
        for symbol in module.symbols
    )
    module = replace(module, symbols=symbols)
    return StepModel(read_model(module, func), assigned)


def resolved(ops: Sequence[Op]) -> tuple[list[Op], dict[str, Final]]:
    """The ops without assignments, where a name of a resource that is read behind one is the assigned value; and what each
    resource is assigned. What a stage keeps of a resource (``once``) is another name of the resource. Sums over replicas are
    other names of what they sum: each replica has a term of the whole value."""
    now: dict[str, str] = {}
    assigned: dict[str, Final] = {}
    made = []
    read = {name for op in ops for name in all_reads(op)}
    kept = {op.results[0].name: op.operands[0] for op in ops if op.name == RESHARD and op.get("once")}
    for op in ops:
        own = tuple(kept.get(name, name) for name in op.operands) if kept else op.operands
        operands = own if takes_statistics(op, read) else tuple(now.get(name, name) for name in own)
        if op.name == ASSIGN:
            now[own[0]] = operands[1]
            assigned[own[0]] = Final(phase_of(op.facets), operands[1])
        elif is_collective(op):
            made.append(Op(RESHARD, operands, op.results, facets=op.facets))
        else:
            made.append(replace(op, operands=operands) if operands != op.operands else op)
    return made, assigned
