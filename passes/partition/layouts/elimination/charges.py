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
        columns = [problem.node_kinds[node_kind].reads[port].tolist() for port in ports]
        chosen = list(zip(*columns, strict=True))
        keys_of = {needs: tuple(sorted({key for need in needs for key in value.needs[need]})) for needs in set(chosen)}
        distinct = sorted(set(keys_of.values()))
        place = {keys: number for number, keys in enumerate(distinct)}
        known[node_kind, ports] = distinct, np.array([place[keys_of[needs]] for needs in chosen], np.int64)
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
    place = {key: number for number, key in enumerate(keys)}
    unions = np.zeros((1, len(keys)), dtype=bool)
    union_of: Integers = np.zeros((), np.int64)
    for reader, rows in enumerate(needs):
        wanted = np.zeros((len(rows), len(keys)), dtype=bool)
        for number, row in enumerate(rows):
            wanted[number, [place[key] for key in row]] = True
        if not reader:  # its rows are distinct
            unions, union_of = wanted, np.arange(len(rows), dtype=np.int64)
            continue
        either = (unions[:, None, :] | wanted[None, :, :]).reshape(len(unions) * len(rows), len(keys))
        packed = [row.tobytes() for row in np.packbits(either, axis=1)]
        known: dict[bytes, int] = {}
        numbers = np.array([known.setdefault(row, len(known)) for row in packed], np.int64)
        unions = either[np.unique(numbers, return_index=True)[1]]
        union_of = numbers.reshape(-1, len(rows))[union_of]
    # Column i of ``picked`` has the i-th key of each union; a union of fewer has that of a last column, which costs nothing.
    counts = unions.sum(axis=1)
    picked = np.argsort(~unions, axis=1, kind="stable")[:, : int(counts.max(initial=0))]
    picked[np.arange(picked.shape[1]) >= counts[:, None]] = len(keys)
    priced = np.hstack([weights[:, keys], np.zeros((len(weights), 1))])
    costs = np.zeros((len(weights), len(unions)))
    for column in picked.T:
        costs += priced[:, column]
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
