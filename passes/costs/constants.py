"""Ops that compute the same in every run (masks, positions): every stage that needs them has its own, so they never cross.

An op is *constant* where it reads nothing but what constant ops make, positions of tokens and masks of an encoder, which every
stage of a decoder is given, and constants that are small or repeat one number and that training does not move, is not random,
and no result of it is one of the function or is captured by the body of another op. Nor is what ends a chain of epilogues
(``op_time``) because several ops read it, if one of these could be fused: alone with it in a stage it would be, and what an op
costs must not hang on where others are. A constant op belongs to no unit: a run holds those it reads.
Written down, all stages but the first have copies of it (``passes.plan.copies``).
"""

from __future__ import annotations

from collections.abc import Collection

from ir.core.module import Func
from ir.ops.grads import written_resources
from ir.ops.operators import RANDOM, has
from passes.costs.op_time import epilogues, is_head, may_fuse
from passes.graph.graph import reads
from passes.graph.positional import POSITION


def constants_of(func: Func, weights: Collection[str]) -> frozenset[int]:
    """Positions of the constant ops of ``func``; ``weights``: resources that are neither small nor repeat one number,
    nor read for positions."""
    kept = {value.name for value in func.results}
    for op in func.ops:
        kept.update(name for name in reads(op) if name not in op.operands)
    positions = dict(func.attributes).get(POSITION)
    known, found = {f"%{positions.value}"} if positions is not None else set[str](), set[int]()
    ends, moving = _ends(func), written_resources(func.ops).union(weights)
    for position, op in enumerate(func.ops):
        if position in ends or op.regions or has(op, RANDOM) or not op.name.startswith("onnx."):
            continue
        steady = all(name in known or (name.startswith("@") and name not in moving) for name in reads(op))
        if steady and not any(value.name in kept for value in op.results):
            found.add(position)
            known.update(value.name for value in op.results)
    return frozenset(found)


def _ends(func: Func) -> set[int]:
    """Positions of what is of a chain, and is read by several ops of which one could be fused."""
    readers: dict[str, set[int]] = {}
    for position, op in enumerate(func.ops):
        for name in op.operands:
            readers.setdefault(name, set()).add(position)
    fused = epilogues(func.ops, [value.name for value in func.results])
    found = set()
    for position, op in enumerate(func.ops):
        if position in fused or is_head(op):
            its = readers.get(op.results[0].name, ())
            if len(its) > 1 and any(may_fuse(func.ops[reader]) for reader in its):
                found.add(position)
    return found
