"""What the conversions of one value cost, as tables that an elimination can add: the only place that knows the forms.

A value is paid once per key, however many readers need it, so its cost ties its maker and all its readers together. With one
reader that is a table of two; with a few it is one table of all (*joint*). With many, a variable says which keys are *held*: a
source and a set of keys, paid once; a reader may choose only what is held. Of large sets there are too many: one *wild* state
per source stands for all of them, at the price of the cheapest. A search that ends in a wild state has a bound and no price;
else its result is exact. Where even small sets are too many, each reader pays its part of every key, one over the number of
readers that could need it: never more than the true cost, so again a bound (*relaxed*).

Choices that a table cannot tell apart are one *class*.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.shard.problem.graph import Form
from passes.shard.problem.problem import Floats, Integers, ShardProblem

JOINT = 1 << 22
"""Entries of the largest joint table."""
MOST_JOINT = 6
"""Readers of a joint table."""
HELD = 1 << 10
"""Most states of what is held."""


@dataclass(frozen=True, slots=True)
class Charge:
    """``source_of[choice]`` is the class of the maker's choice, ``need_of[r][choice]`` that of reader ``r``'s. ``mode``:

    - ``joint``: ``tables[0][source, need of 0, need of 1, ..]``;
    - ``held``: ``tables`` are ``[source, state]`` (with what the state costs), then per reader ``[state, need]``;
    - ``relaxed``: per reader ``[source, need]``.

    ``wild``: states that stand for others.
    """

    mode: str
    source_of: Integers
    need_of: tuple[Integers, ...]
    tables: tuple[Floats, ...]
    wild: frozenset[int] = frozenset()


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
        return Charge("joint", source_of, need_of, (_joint(weights, needs),))
    held = _held(weights, needs)
    if held is not None:
        return Charge("held", source_of, need_of, *held)
    return Charge("relaxed", source_of, need_of, _relaxed(weights, needs))


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


def _held(weights: Floats, needs: Sequence[Sequence[tuple[int, ...]]]) -> tuple[tuple[Floats, ...], frozenset[int]] | None:
    """States: a source with a set of its keys that cost something; the wild ones. None where there are too many."""
    asked = sorted({key for rows in needs for row in rows for key in row})
    dear = [[key for key in asked if 0 < weights[source, key] < np.inf] for source in range(len(weights))]
    most = max(map(len, dear), default=0)
    while most and sum(math.comb(len(keys), count) for keys in dear for count in range(most + 1)) + len(dear) > HELD:
        most -= 1
    if not most and any(dear):
        return None
    states: list[tuple[int, frozenset[int], float]] = []
    wild = set()
    for source, options in enumerate(dear):
        for count in range(min(most, len(options)) + 1):
            for keys in itertools.combinations(options, count):
                states.append((source, frozenset(keys), float(sum(weights[source, key] for key in keys))))
        if len(options) > most:
            wild.add(len(states))
            cheapest = sorted(float(weights[source, key]) for key in options)
            states.append((source, frozenset(options), sum(cheapest[: most + 1])))
    paid = np.full((len(weights), len(states)), np.inf)
    for number, (source, _, cost) in enumerate(states):
        paid[source, number] = cost
    # Which states lack which keys, then which readers' needs meet none of them.
    lacks = np.array([[key not in keys and weights[source, key] != 0 for key in asked] for source, keys, _ in states])
    tables: dict[int, Floats] = {}  # equal readers have one
    for rows in needs:
        if id(rows) not in tables:
            wants = np.array([[key in row for key in asked] for row in rows])
            tables[id(rows)] = np.where(lacks.astype(np.int64) @ wants.T.astype(np.int64), np.inf, 0.0)
    return (paid, *(tables[id(rows)] for rows in needs)), frozenset(wild)


def _relaxed(weights: Floats, needs: Sequence[Sequence[tuple[int, ...]]]) -> tuple[Floats, ...]:
    could: dict[int, int] = {}
    for rows in needs:
        for key in {key for row in rows for key in row}:
            could[key] = could.get(key, 0) + 1
    tables = []
    for rows in needs:
        table = np.zeros((len(weights), len(rows)))
        for need, row in enumerate(rows):
            for key in row:
                table[:, need] += weights[:, key] / could[key]
        tables.append(table)
    return tuple(tables)


__all__ = ["HELD", "JOINT", "MOST_JOINT", "Charge", "charge_of"]
