"""A lower bound for straight pipelines from their first stages alone.

With one machine per stage, a boundary is possible at trial value T only if what it cuts moves within T, whatever the stages on
its sides hold. Near the start of a network cuts are dear and such ideals few. So: walk over every ideal of at most b seconds,
keep those whose cut is within T, and chain them by stages of at most T seconds. A plan of value at most T has a last boundary
J of at most b seconds, the empty ideal included. The next one is over b, so J lies above b - T; and if J is reached by k stages
at the least, the other N - k machines take what is left only if they have T each. When no J satisfies both, no plan is
within T.

The walk leaves nothing out, so the bound holds however the rest of the network looks. It wants b somewhat over T, and does
not help where the whole budget of ideals is spent before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.core.outcomes import SLACK, TIGHT
from passes.partition.lattice.bounds.policy import POLICY
from passes.solvers.work import did
from passes.stages.lattice.dp import KeepOn
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats


def start_bound(
    tables: Tables, moved: Floats, machines: int, bound: float, value: float, max_visits: int, keep_on: KeepOn
) -> float:
    """A bound of at least ``bound`` on the largest stage of a straight pipeline; ``moved[H]``: seconds to move each tensor.
    ``value``: of a plan, so that nothing beyond it is tried."""
    from passes.reference.pipedream import kernels

    n = tables.problem.size
    seconds, cost = tables.problem.seconds[0], np.zeros(n)
    np.add.at(cost, tables.problem.producer, moved)
    total, reaches = float(seconds.sum()), list(POLICY.start_reaches)
    graph = tables.succ_ptr, tables.succ, tables.pred_ptr, tables.pred
    over = min(bound * POLICY.start_step, value)
    while reaches and bound < value * (1 - TIGHT) and reaches[0] * over < total and keep_on(0, 0.0):
        high = reaches[0] * over
        bits = np.zeros((POLICY.start_ideals, max(1, (n + 63) // 64)), np.uint64)
        reached, cuts = np.empty(POLICY.start_ideals), np.empty(POLICY.start_ideals)
        whole, visited, count = kernels.thin_ideals(*graph, seconds, cost, high, over, max_visits, bits, reached, cuts)
        max_visits -= int(visited)
        did("ideal", int(visited))
        if not whole:
            break
        order = np.argsort(reached[:count], kind="stable")
        chains = _Chains(np.ascontiguousarray(bits[order]), reached[order], cuts[order], high, total, machines)
        bound = chains.bound(bound, over, keep_on)
        if bound < over * (1 - TIGHT):
            reaches.pop(0)  # a longer start may say more
        else:
            over = min(bound * POLICY.start_step, value)
    return bound


@dataclass(frozen=True)
class _Chains:
    """Thin ideals of at most ``high`` seconds, sorted by their seconds, of ``total`` that there are."""

    bits: np.ndarray[Any, np.dtype[np.uint64]]
    reached: Floats
    cuts: Floats
    high: float
    total: float
    machines: int

    def bound(self, bound: float, over: float, keep_on: KeepOn) -> float:
        """The largest trial value up to ``over``, to some halvings, that no plan reaches; at least ``bound``."""
        trial = over * (1 - TIGHT / 2)
        for _ in range(POLICY.start_trials):
            if trial <= bound or not keep_on(len(self.reached), 0.0):
                break
            if self._passes(trial):
                over = trial
            else:
                bound = trial
            trial = (bound + over) / 2
        return bound

    def _passes(self, trial: float) -> bool:
        """Whether stages of at most ``trial`` may lead on from here."""
        from passes.reference.pipedream import kernels

        allowed = trial * (1 + SLACK)
        stages = np.empty(len(self.reached), np.int64)
        kernels.fewest_stages(self.bits, self.reached, self.cuts, allowed, stages)
        did("tested", len(stages) ** 2)
        last, used = np.append(self.reached, 0.0), np.append(stages, 0)
        onward = last + allowed > self.high * (1 - SLACK)
        enough = self.total - last <= (self.machines - used) * allowed * (1 + SLACK)
        return bool((onward & enough & (used <= self.machines)).any())
