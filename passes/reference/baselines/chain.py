"""The dynamic programme over one topological order instead of the lattice of ideals: milliseconds instead of minutes.

A stage may begin and end only at prefixes of the order, at the ends of its groups. Over these boundaries the objective's own
programme is exact: the best way to cut the order, to give the pieces to kinds of devices and, where there are replicas, to
choose their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from passes.reference.baselines.case import Case, Limits, NoPlan
from passes.solvers.work import now
from passes.stages.lattice.dp import Found, KeepOn, Stages
from passes.stages.lattice.ideals import BIG, prefixes
from passes.stages.lattice.states import sequences
from passes.stages.lattice.tables import Tables

MAX_WORDS = 64 << 20
"""Eight-byte words that the prefixes of an order and the programme over them may take."""
TRIALS = (1.02, 1.1, 1.5, 4.0)
"""Trial values before no limit at all, as multiples of the lower bound."""


def best_chain(case: Case, chains: Sequence[Sequence[Sequence[int]]], limits: Limits) -> Stages:
    """The best plan along any of ``chains``, each a topological order of units in groups that stay together, as stages of the
    workload's nodes. Raises NoPlan when none satisfies every limit."""
    started = now()

    def keep_on(tested: int, part: float) -> bool:
        limits.progress("partition: chain", part)
        return now() - started < limits.seconds

    best, value, complete = None, float("inf"), True
    for groups in chains:
        order = [unit for group in groups for unit in group]
        ends = list(accumulate(map(len, groups), initial=0))
        for sequence in sequences(case.programme.problem):  # of devices, in which stages may take them
            tables = Tables(case.programme.problem, case.programme.price, sequence)
            if len(order) * tables.words_per_ideal > MAX_WORDS:
                raise NoPlan("the chain is too long for its budget of memory")
            # A trial value leaves few pairs of prefixes that may be a stage; a plan that is found at or below it is the best.
            for trial in [case.bound[0] * factor for factor in TRIALS if case.bound[0] > 0] + [BIG]:
                found = _along(case, order, ends, tables, min(trial, value, BIG), keep_on)
                complete = complete and found.complete
                if found.stages is not None and found.value < value:
                    value, best = found.value, found.stages
                if found.stages is not None or not found.complete or trial >= value:
                    break
    if best is None:
        raise NoPlan("no cut of the chain satisfies every limit" if complete else "its time ran out")
    return case.chained.stages(best)


def _along(case: Case, order: Sequence[int], ends: Sequence[int], tables: Tables, trial: float, keep_on: KeepOn) -> Found:
    """The best plan of value at most ``trial`` whose boundaries are prefixes of the order, of these lengths."""
    family = prefixes(tables, order, trial)
    kept = np.flatnonzero(np.isin(np.bitwise_count(family.bits).sum(axis=1), ends))
    return case.programme.programme(tables, family.only(kept), range(len(order)), trial, keep_on)
