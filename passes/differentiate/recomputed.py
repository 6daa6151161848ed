"""Recomputation: forward ops run again for the gradients of their stage, in phase I, in place of saving what they made.

With ``stage``, a stage keeps of each microbatch what it received, the arguments that it reads and what it sent; all other
forward values that its backward ops read are computed again from these (GPipe, section 2.3; Chen et al. 2016). A copy of
``%h`` is called ``%h.again``, lies as the first one and has its strategies. What is random is kept: it would not come out the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.core.facets import INPUT_GRADIENT, UPDATE, ShardRule, StageSet
from ir.core.names import unique
from ir.core.ops import Op, Value, all_ops, all_values
from ir.ops.operators import RANDOM, has
from passes.differentiate.site import Added, Program
from passes.graph.graph import reads, rebuild
from passes.meshes.reshard_ops import bare_value


def recomputed(ops: Sequence[Op], added: Sequence[Added], program: Program) -> list[Added]:
    """``added``, ops of phases I and W, reading copies of what the forward ops ``ops`` made; the copies stand before the first
    of the ops of their stage."""
    stages = sorted({one.stages for one in added})
    copies: dict[tuple[int, ...], list[Added]] = {}
    names: dict[tuple[int, ...], dict[str, str]] = {}
    for at in stages:
        copies[at], names[at] = _copies(ops, added, at, program)
    found: list[Added] = []
    for one in added:
        found += copies.pop(one.stages, ())
        mapping = names[one.stages]
        operands = tuple(mapping.get(name, name) for name in one.op.operands)
        found.append(replace(one, op=replace(one.op, operands=operands)))
    return found


def _copies(
    ops: Sequence[Op], added: Sequence[Added], at: tuple[int, ...], program: Program
) -> tuple[list[Added], dict[str, str]]:
    """The copies of one stage, and what each value is called in them."""
    own = [op for op in ops if not at or at[0] in op.facet(StageSet, StageSet(())).stages]
    crossing = {name for op in ops if at and at[0] not in op.facet(StageSet, StageSet(())).stages for name in reads(op)}
    needed = {name for one in added if one.stages == at and one.phase != UPDATE for name in one.op.operands}
    again = []
    for op in reversed(own):
        made = {value.name for value in op.results}
        if made & (needed - crossing) and op.results and not any(has(inner, RANDOM) for inner in all_ops((op,))):
            needed |= set(reads(op))
            again.append(op)
    names: dict[str, str] = {}
    found = []
    for op in reversed(again):
        called = {name: names[name] for name in reads(op) if name in names}
        inner = [value.name for value in all_values((op,))][len(op.results) :]
        called |= {name: unique(f"{name}.again", program.taken) for name in inner if name}
        here = rebuild(op, called)
        results = []
        for value in op.results:
            name = value.name
            if name and name not in crossing:
                names[name] = unique(f"{name}.again", program.taken)
                program.around.types[names[name]] = bare_value(value).type
            results.append(Value(names.get(name, ""), bare_value(value).type))
        facets = tuple(facet for facet in op.facets if isinstance(facet, ShardRule))
        found.append(Added(replace(here, results=tuple(results), facets=facets), op, at, INPUT_GRADIENT))
    return found, names
