"""What the conversions of one value cost, as tables that an elimination can add: the only place that knows the forms.

A value is paid once per key, however many readers need it, so its cost ties its maker and all its readers together. With a few
readers that is one table of all (*joint*). With many, each reader pays its part of every key, one over the number of readers
that could need it: never more than the true cost, so that the search has a bound.

Choices that a table cannot tell apart are one *class*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.partition.layouts.problem.graph import Form, Integers
from passes.partition.layouts.problem.problem import Floats, ShardProblem

JOINT = 1 << 22
"""Entries of the largest joint table."""
MOST_JOINT = 6
"""Readers of a joint table."""


@dataclass(frozen=True, slots=True)
class Charge:
    """``source_of[choice]`` is the class of the maker's choice, ``need_of[r][choice]`` that of reader ``r``'s. ``tables``: one
    ``[source, need of 0, need of 1, ..]`` where ``joint``, else per reader ``[source, need]``."""

    joint: bool
    source_of: Integers
    need_of: tuple[Integers, ...]
    tables: tuple[Floats, ...]


def charge_of(problem: ShardProblem, form: Form, *, joint: bool = True) -> Charge:
    """The tables of all values of a form; ``joint``: whether maker and readers may meet in one table."""
    value, maker, readers = problem.value_kinds[form.kind], form.maker, form.readers
    sources, source_of = np.unique(problem.node_kinds[maker[0]].makes[maker[1]], return_inverse=True)
    known: dict[tuple[int, tuple[int, ...]], tuple[list[tuple[int, ...]], Integers]] = {}
    for node_kind, ports in dict.fromkeys(readers):
        columns = [problem.node_kinds[node_kind].reads[port] for port in ports]
        rows = [tuple(sorted({key for column in columns for key in value.needs[column[c]]})) for c in range(len(columns[0]))]
        distinct = sorted(set(rows))
        known[node_kind, ports] = distinct, np.array([distinct.index(row) for row in rows], np.int64)
    needs, need_of = [known[reader][0] for reader in readers], tuple(known[reader][1] for reader in readers)
    weights = value.weights[sources]
    size = len(sources) * math.prod(len(rows) for rows in needs)
    if joint and len(readers) <= MOST_JOINT and size <= JOINT:
        return Charge(True, source_of, need_of, (_joint(weights, needs),))
    return Charge(False, source_of, need_of, _relaxed(weights, needs))


def _joint(weights: Floats, needs: Sequence[Sequence[tuple[int, ...]]]) -> Floats:
    """``[source, need of 0, need of 1, ..]``: the weights of all keys that any reader needs. Each distinct union of needs is
    summed once."""
    keys = sorted({key for rows in needs for row in rows for key in row})
    unions, union_of = np.zeros((1, len(keys)), dtype=bool), np.zeros((), dtype=np.int64)
    for rows in needs:
        wanted = np.array([[key in row for key in keys] for row in rows], dtype=bool).reshape(len(rows), len(keys))
        either = (unions[:, None, :] | wanted[None, :, :]).reshape(len(unions) * len(rows), len(keys))
        packed = [row.tobytes() for row in np.packbits(either, axis=1)]
        known: dict[bytes, int] = {}
        number = np.array([known.setdefault(row, len(known)) for row in packed], np.int64)
        unions = either[np.unique(number, return_index=True)[1]]
        union_of = number.reshape(-1, len(rows))[union_of]
    costs = np.zeros((len(weights), len(unions)))
    for place, key in enumerate(keys):
        costs += np.where(unions[:, place], weights[:, key, None], 0.0)
    return costs[:, union_of]


def _relaxed(weights: Floats, needs: Sequence[Sequence[tuple[int, ...]]]) -> tuple[Floats, ...]:
    """Per reader ``[source, need]``: its part of the weights of all keys that it needs."""
    could: dict[int, int] = {}
    for rows in needs:
        for key in {key for row in rows for key in row}:
            could[key] = could.get(key, 0) + 1
    tables: dict[int, Floats] = {}  # equal readers have one
    for rows in needs:
        if id(rows) not in tables:
            table = tables[id(rows)] = np.zeros((len(weights), len(rows)))
            for need, row in enumerate(rows):
                for key in row:
                    table[:, need] += weights[:, key] / could[key]
    return tuple(tables[id(rows)] for rows in needs)
