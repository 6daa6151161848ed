"""Gradients that are summed together: sums over the same members travel in one message, a bucket, which begins when the
backward pass has made its last gradient (``passes.costs.exchange`` says which gradients are in it).

Invariants of what phase U of a stage then is:
1. Sums of gradients, with the ``grad.accumulate`` that each needs, come first: buckets in the order in which the backward pass
   makes the last gradient of each, and so the gradients in a bucket. All else keeps its order. A sum that needs something else
   of U, such as what another stage sends, stays.
2. Sums of one ``bucket`` stand side by side: over the same axis, by the same reduction, through the same member, of the same
   element type, none of what another makes.
3. A sum without a ``bucket`` travels alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ir.core.attributes import Attribute, AttrKind
from ir.core.facets import UPDATE, phase_of
from ir.core.ops import Op
from ir.core.types import TensorType, Type
from ir.ops.grads import ACCUMULATE
from passes.costs.exchange import buckets

SUM = "comm.all_reduce"


def in_buckets(ops: Sequence[Op], size: Callable[[Type], float]) -> tuple[Op, ...]:
    """The ops of a stage with its sums of gradients in buckets; ``size``: bytes of a type on a member."""
    updates = [op for op in ops if phase_of(op.facets) == UPDATE]
    made = {value.name: at for at, op in enumerate(ops) for value in op.results}
    first = {op.results[0].name: made.get(op.operands[0], -1) for op in updates if op.name == ACCUMULATE}
    means = {op.results[0].name: op for op in updates if op.name == ACCUMULATE}
    front: list[Op] = []
    taken: set[int] = set()
    number = 0
    while True:
        ready = [op for op in updates if op.name == SUM and id(op) not in taken and op.operands[0] in first]
        if not ready:
            break
        found = _filled(sorted(ready, key=lambda op: first[op.operands[0]]), size)
        for bucket in sorted(found, key=lambda bucket: first[bucket[-1].operands[0]]):
            front += [mean for op in bucket if (mean := means.pop(op.operands[0], None)) is not None]
            front += [_numbered(op, number) for op in bucket] if len(bucket) > 1 else bucket
            number += len(bucket) > 1
            taken.update(map(id, bucket))
            first.update((op.results[0].name, first[bucket[-1].operands[0]]) for op in bucket)
    if not front:
        return tuple(ops)
    moved = {value.name for op in front for value in op.results}
    left = [op for op in updates if not any(value.name in moved for value in op.results)]
    return (*(op for op in ops if phase_of(op.facets) != UPDATE), *front, *left)


def _filled(sums: Sequence[Op], size: Callable[[Type], float]) -> list[list[Op]]:
    """Sums in buckets; they stand in the order in which the backward pass makes the gradients."""
    alike: dict[object, list[Op]] = {}
    for op in sums:
        type_ = op.results[0].type
        element = type_.dtype if isinstance(type_, TensorType) else None
        key = op.get("mesh"), op.get("axis"), op.get("reduction"), op.get("through"), element
        alike.setdefault(key, []).append(op)
    return [
        [some[number] for number in bucket]
        for some in alike.values()
        for bucket in buckets([size(op.results[0].type) for op in some])
    ]


def _numbered(op: Op, number: int) -> Op:
    fields = {**dict(op.attributes), "bucket": Attribute(AttrKind.INT, number)}
    return replace(op, attributes=tuple(sorted(fields.items())))
