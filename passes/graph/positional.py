"""What a step of a decoder computes from the positions of its tokens alone: masks, position ids, rotary angles.

Such values are small and cheap, and every stage is given ``position``: a stage that needs one computes it. So none of them
crosses between stages (``spread``), and a search need not count one that does. The same holds for the mask of an encoder, a
state ``[batch, length]`` that is given where a sequence begins.
"""

from __future__ import annotations

from dataclasses import replace

from ir.core.facets import StageSet
from ir.core.module import Module
from ir.core.types import TensorType, Type
from passes.graph.graph import reads

POSITION = "decoding.position"
"""The attribute of an entry function that names its argument of positions."""


def positional(module: Module) -> frozenset[int]:
    """The ops of the entry function, by number, that compute with positions, given masks and constants alone; none without
    positions."""
    func = module.entry
    position = f"%{dict(func.attributes)[POSITION].value}" if POSITION in dict(func.attributes) else ""
    if not position or position == "%":
        return frozenset()
    states, resources = module.states, module.resources
    masks = {name for name, state in states.items() if not state.result and _rank(resources[name].type) <= 2}
    known, found = {position, *masks}, []
    for i, op in enumerate(func.ops):
        names = list(reads(op))
        if known.intersection(names) and all(name in known or (name[0] == "@" and name not in states) for name in names):
            found.append(i)
            known.update(value.name for value in op.results)
    outputs = {value.name for value in func.results}
    return frozenset(i for i in found if not any(value.name in outputs for value in func.ops[i].results))


def read_for_positions(module: Module) -> frozenset[str]:
    """The resources and states that ops read which positions alone decide: each stage that needs these ops has them."""
    ops = module.entry.ops
    return frozenset(name for i in positional(module) for name in reads(ops[i]) if name.startswith("@"))


def _rank(type_: Type) -> int:
    return len(type_.shape or ()) if isinstance(type_, TensorType) else 0


def spread(module: Module) -> Module:
    """``module``, whose ops have stages, with each positional op in the stages that read it, or need it to make what they read,
    and in no other."""
    found = positional(module)
    if not found:
        return module
    func, needed, ops = module.entry, dict[str, set[int]](), list(module.entry.ops)
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if i in found:
            stages = {stage for value in op.results for stage in needed.get(value.name, ())}
            ops[i] = op = op.with_facets(StageSet(tuple(sorted(stages)))) if stages else op
        for name in reads(op):
            needed.setdefault(name, set()).update(op.facet(StageSet, StageSet(())).stages)
    return module.replace(func, replace(func, ops=tuple(ops)))
