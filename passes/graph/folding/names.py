"""The names of an op in one fixed order: those that it reads, those that it assigns, and where it and the ops inside it came
from.

Everything of an op but its names and locations is its *shape*. Two ops of one shape differ by these lists alone, so that
``graph.rebuild(op, ...)`` with the lists of another op of its shape gives that op. That is all that folding takes from a copy
and that expanding puts back.

The order: *reads* are the operands (absent ones too), then, for each region, what its ops read from outside the op in the
order of the text, then what it yields from outside; *assigned* are the results that are not dropped, then, for each region, its
arguments and what its ops assign; *locations* are the op's, then those of the ops inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ir.core.ops import Location, Op, Region, all_ops, all_values


def reads(op: Op) -> tuple[str, ...]:
    """Each occurrence of a name that ``op`` reads from outside itself."""
    if not op.regions:
        return op.operands
    found = list(op.operands)
    for _, region in op.regions:
        _reads_of(region, set(), found)
    return tuple(found)


def _reads_of(region: Region, around: set[str], found: list[str]) -> None:
    local = around | {value.name for value in region.args}
    for op in region.ops:
        found += [name for name in op.operands if name not in local]
        for _, inner in op.regions:
            _reads_of(inner, local, found)
        local.update(value.name for value in op.results)
    found += [name for name in region.results if name not in local]


def assigned(ops: Iterable[Op]) -> Iterator[str]:
    """The names that ``ops`` assign, their regions included."""
    return (value.name for value in all_values(ops) if value.name)


def locations(ops: Iterable[Op]) -> Iterator[Location]:
    """Where ``ops`` came from, those in their regions included."""
    return (op.location for op in all_ops(ops))
