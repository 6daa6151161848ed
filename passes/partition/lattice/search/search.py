"""The search that objectives share: from orders over exact trials to bands, with a bound at every moment.

An objective brings its own dynamic programme and its own definition of a plan's value; what it shares with others is the
lattice of ideals. The walk over that lattice needs a ``Problem``: nodes, precedence (its tensors), and seconds such that a
device with load at most T takes at most T seconds of them (its windows of weight).

0. Where a plan of another kind is known (``Budget.beaten``), the programme at its value: nothing found ends the search.
1. Upper bound: the programme over the prefixes of a few topological orders; of one, where there are few ideals at its value.
2. The ideals that can be boundaries of a better plan (``ideals.lattice``), and the programme over them, first at a trial value
   just below the upper bound and only to find out whether anything reaches it (what is good enough is not improved, so
   most of the work falls away). Nothing found proves the upper bound; something found is a better plan, and the programme,
   now in earnest, finds the optimum below it. Where there are many ideals, trial values rising from the lower bound come
   first: narrow windows cost next to nothing, and each raises the bound.
3. When the lattice is over budget even so: plans over many minimum cuts (``cut_plans``), bounds from the first stages alone,
   single nodes, contractions, intervals of the lattice and parts (``bounds``), then the ideals near an order that the best plan
   so far follows, in bands as wide as the budget allows; around each better plan anew. The plan is feasible, the lower bound
   stands, and the gap between them is reported.

A graph of more nodes than tables of n * n bits are made for (``segments``) has plans along two orders, over some of their
prefixes, and the objective's own bound; nothing else is tried.

With many different devices the vectors of devices used are too many to carry along. Then stages take devices in the order
of a few sequences (as given, fastest first, slowest first), any of them left out: feasible plans, the same lower bound.

Invariants: ``bound`` is never above the optimum; ``value`` is that of the stages kept, from the definition; a plan or a
bound once reached is never given up, whatever stops the search, an interrupt from the keyboard included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.core.outcomes import TIGHT
from passes.partition.lattice.bounds.interval_bounds import IntervalBounds, applies
from passes.partition.lattice.bounds.minimum_cuts import node_bound
from passes.partition.lattice.bounds.policy import POLICY
from passes.partition.lattice.bounds.subproblems import contraction_bounds, part_bound
from passes.partition.lattice.heuristics.cut_plans import CutPlans
from passes.partition.lattice.heuristics.segments import entries, segmented, segments
from passes.partition.lattice.objective import Budget, IdealSearch, SearchObjective, Solution
from passes.solvers.anytime import Progress
from passes.solvers.work import now
from passes.stages.lattice import orders
from passes.stages.lattice.dp import Found, KeepOn, Stages
from passes.stages.lattice.ideals import BIG, Family, lattice, prefixes
from passes.stages.lattice.states import sequences
from passes.stages.lattice.tables import Tables
from passes.stages.problem import FAR, Floats
from passes.stages.reduce import members_of, permuted


class Search(IdealSearch):
    """One search; ``run`` gives the plan, its bound and what was done."""

    def __init__(self, objective: SearchObjective, budget: Budget, progress: Progress) -> None:
        super().__init__(budget, progress, objective.bound(), TIGHT)
        self.objective = objective
        self.sequences = sequences(objective.problem)
        self.tables = Tables(objective.problem, objective.price, self.sequences[0])
        self.order = orders.given(self.tables)
        self.scale = float("inf")
        self.few: Family | None = None
        self.cuts: CutPlans | None = None
        self.exhausted = False
        self.spent: dict[str, int] = {}

    def run(self) -> Solution:
        """Optimal within the budget, else the best plan found; ``stages`` is None when there is none. An interrupt from the
        keyboard ends the search; with no plan yet, it is passed on."""
        self.search(self._phases)
        self.infeasible = self.exhausted and self.tables.states.every
        return self.solution()

    def _phases(self) -> None:
        if self.objective.problem.size > POLICY.huge:
            self.phase("segments", self._along_segments)
            return
        if np.isfinite(self.limits.beaten):
            self.phase("beaten", self._refute)
        for name, work in (
            ("linear", self._linear),
            ("exact", self._exact),
            ("cuts", self._cuts),
            ("starts", self._starts),
            ("bound", self._raise),
            ("cuts", self._cuts),
            ("band", self._band),
        ):
            if not self.exhausted and not self.done():
                self.phase(name, work)

    def done(self) -> bool:
        """Whether nothing is left to look for: the plan is the best, or good enough, or no plan is better than that of another
        kind."""
        return self.tight() or self.enough() or self.bound >= self.limits.beaten

    def _visits(self) -> int:
        """Ideals that one walk may meet: the budget's, or fewer, where less time is left than these take."""
        return min(self.limits.ideals, int(max(self.left(), 0.1) * POLICY.ideals_per_second))

    def _keep_on(self, phase: str, until: float, budgets: int = 1) -> KeepOn:
        """For one run of the programme: stops it at so many budgets of pairs, or ``until`` seconds after the start."""
        spent = self.spent.get(phase, 0)

        def keep_on(tested: int, part: float) -> bool:
            self.progress(f"partition: {phase}", part)
            self.spent[phase] = spent + tested
            return spent + tested <= budgets * self.limits.pairs and now() - self.started < until

        return keep_on

    def _accept(self, stages: Stages | None) -> bool:
        """Keeps the stages when they are better, valued from the definition."""
        if stages is None:
            return False
        value = self.objective.value(stages)
        if value < self.value:
            self.value, self.best = value, stages
            return True
        return False

    def _better(self) -> float:
        """The trial value of what is better than the best plan."""
        return self.value * (1 - TIGHT / 2) if np.isfinite(self.value) else BIG

    def _programme(self, tables: Tables, family: Family, trial: float, keep_on: KeepOn, floor: float | None = None) -> Found:
        """One run of the programme over the nodes of the problem; values up to ``floor``, or the bound, are equally good."""
        nodes = range(self.objective.problem.size)
        found = self.objective.programme(tables, family, nodes, trial, keep_on, self.bound if floor is None else floor)
        self._count(family, found)
        return found

    def _count(self, ideals: Family, found: Found) -> None:
        self.statistics.stored = max(self.statistics.stored, ideals.size)
        self.statistics.tested += found.tested
        self.statistics.transitions += found.priced

    def _refute(self) -> None:
        """Whether any plan is better than that of another kind: where none is, nothing else is looked for."""
        if self.tables.states.every:
            self._trial(self.limits.beaten, None)

    def _linear(self) -> None:
        for make in (orders.given, orders.thin):
            for sequence in self.sequences:
                tables = self._tables(sequence)
                order, keep_on = make(tables), self._keep_on("linear", self.limits.seconds)
                if self.best is None and self.objective.problem.size * self.objective.problem.devices > POLICY.wide:
                    family = prefixes(tables, order, BIG)
                    ends = family.only(np.array([0, family.size - 1]))
                    self._accept(self._programme(tables, ends, BIG, keep_on, 0.0).stages)
                for trial in self._first_trials():
                    family = prefixes(tables, order, trial)
                    if family.size * tables.words_per_ideal > self.limits.memory // 8:
                        return
                    found = self._programme(tables, family, trial, keep_on)
                    if found.complete and self._accept(found.stages):
                        self.order, self.tables = self._along(order), tables
                    if self.best is not None or not found.complete:
                        break
                if self.tight() or self.left() <= 0:
                    return
                if make is orders.given and self.best is not None and self.tables.states.every:
                    self.few = self._lattice(self._better(), POLICY.few)
                    if self.few is not None:
                        return

    def _along_segments(self) -> None:
        """Plans along two orders of a graph too large for all else, over some of the prefixes: few at first, then more near
        the cuts of the best plan."""
        keep_on = self._keep_on("segments", self.limits.seconds)
        for make in (orders.given, orders.late):
            order = make(self.tables)
            for sequence in self.sequences:
                stages: Stages | None = None
                for size in (*POLICY.segments, POLICY.segments[-1]):
                    if self.tight() or (self.best is not None and self.left() <= 0):
                        return
                    found = self._segmented(order, sequence, stages, size, keep_on)
                    if found is None:
                        continue  # finer segments may hold a plan
                    if self._accept(found):
                        self.order = order
                    stages = found
                    if self._near_enough():
                        break

    def _segmented(
        self, order: Sequence[int], sequence: Sequence[int], stages: Stages | None, size: int, keep_on: KeepOn
    ) -> Stages | None:
        """The best plan over about ``size`` prefixes of ``order``, or fewer where they take too much room; ``stages``: a plan
        along it."""
        objective, most = self.objective, self.limits.memory // 8
        while True:
            groups = segments(objective.problem, order, self.tables.weight, stages, size)
            problem = segmented(objective.problem, groups)
            coarse = objective.segmented(groups, problem)
            cut = entries(problem)
            if size < 2 or (cut <= most and len(groups) * cut <= POLICY.segments_work):
                tables = Tables(problem, objective.price, sequence)
                if size < 2 or len(groups) * tables.words_per_ideal + cut // 2 <= most:
                    break
            size //= 2
        low = [self.bound * times for times in POLICY.first if self.bound > 0]
        for trial in [*low, BIG] if stages is None else [objective.value(stages)]:
            family = prefixes(tables, range(problem.size), trial)
            found = coarse.programme(tables, family, range(problem.size), trial, keep_on, self.bound)
            self._count(family, found)
            if found.stages is not None:
                return members_of(found.stages, groups)
            if not found.complete:
                break
        return None

    def _first_trials(self) -> tuple[float, ...]:
        """Values at which a plan along an order is looked for, in turn: without any plan, values near the bound cost least."""
        if self.best is not None:
            return (self._better(),)
        return (*(self.bound * times for times in POLICY.first if self.bound > 0), BIG)

    def _tables(self, sequence: Sequence[int]) -> Tables:
        if self.tables.sequence == tuple(sequence):
            return self.tables
        return Tables(self.objective.problem, self.objective.price, sequence)

    def _along(self, order: Sequence[int]) -> list[int]:
        """The order, stage by stage of the best plan: its boundaries are prefixes."""
        stage_of = {v: s for s, (_, nodes) in enumerate(self.best or ()) for v in nodes}
        return sorted(order, key=lambda v: stage_of[v])

    def _narrow(self) -> bool:
        """Whether there were numbers so far above the best plan's value that sums over ideals were too coarse for plans as
        good; they are left out from now on, and families made before are void."""
        if self.value * FAR >= self.scale:
            return False
        self.scale = self.value
        narrowed = self.objective.within(self.value)
        if narrowed is self.objective:
            return False
        self.objective = narrowed
        self.tables = Tables(narrowed.problem, narrowed.price, self.tables.sequence)
        return True

    def _exact(self) -> None:
        if self._narrow():
            self.few = None
        tables = self.tables
        ideals = self._lattice(self._better()) if self.few is None else self.few
        if not self.tables.states.every:
            if ideals is not None:
                self._try(ideals, self._better(), self.bound)
            return
        many = ideals is None or ideals.size >= POLICY.many
        if many and np.isfinite(self.value):
            for part in POLICY.trials:
                trial = self.bound + (self.value - self.bound) * part
                if trial * FAR < self.value:
                    continue  # sums are too coarse for it
                if self.done() or not self._trial(trial, ideals):
                    return
        if not self.exhausted and not self.done():
            self._trial(self._better(), ideals)
        if self.exhausted and ideals is not None and self.best is not None and self.tables is tables:
            self.phase("polish", lambda: self._polish(ideals))

    def _lattice(self, trial: float, most: int | None = None) -> Family | None:
        visits = self._visits() if most is None else min(most, self._visits())
        return lattice(self.tables, trial, max_visits=visits, max_words=self.limits.memory // 8)

    def _trial(self, trial: float, ideals: Family | None) -> bool:
        """Whether a plan reaches ``trial``: if not, that is the bound; if so, the optimum. ``ideals``: every one that a better
        plan can use, if there was room for them. False when over budget, or when there is nothing left to try."""
        family = ideals if ideals is not None else self._lattice(trial)
        if family is None:
            return False
        found = self._try(family, trial, trial if trial < BIG else self.bound)
        if not found.complete:
            return False
        if self._narrow():
            return self._trial(self._better(), None)
        self.statistics.ideals = max(self.statistics.ideals, family.visited)
        if found.stages is None and trial < BIG:
            if trial > self.bound:
                self.bound, self.reason = trial, "no plan at or below it: every ideal within its windows was searched"
            self.exhausted = self.tight()
            return True
        if found.stages is not None and trial < BIG and not self.tight():
            found = self._try(family, self._better(), self.bound)
            if not found.complete:
                return False
            if self._narrow():
                return self._trial(self._better(), None)
        self.exhausted = True
        self.bound = self.value
        self.reason = "every ideal within the windows of the optimum was searched"
        return False

    def _try(self, family: Family, trial: float, floor: float) -> Found:
        """One run of the programme over the whole problem; a better plan is kept."""
        found = self._programme(self.tables, family, trial, self._keep_on("exact", self.limits.seconds / 2), floor)
        self._accept(found.stages)
        return found

    def _polish(self, ideals: Family) -> None:
        stages = self.objective.polish(self.tables, ideals, self.value, self._keep_on("exact", self.limits.seconds))
        if stages is not None:
            value = self.objective.value(stages)
            if value <= self.value * (1 + TIGHT):
                self.best, self.value = stages, value

    def _starts(self) -> None:
        """The bound of the first stages alone, of a lattice too large to walk."""
        if self.best is None or self.left() <= 0:
            return
        keep_on = self._keep_on("starts", now() - self.started + self.left() * POLICY.start_share)
        bound = self.objective.starts(self.tables, self.bound, self.value, self._visits(), keep_on)
        self.tell(bound, "the first stages alone: every ideal near the start was searched")

    def _cuts(self) -> None:
        """Plans over many minimum cuts, then over those around the best plan, until no better one is found."""
        moved = self.objective.moved()
        known = self.objective.contracts or moved is not None
        if self.best is None or not known or not applies(self.tables) or self._near_enough() or self.left() <= 0:
            return
        self._narrow()
        until = now() - self.started + max(self.left(), 0.0) * POLICY.cut_share
        keep_on, cuts, idle, more = self._keep_on("cuts", until), self.cuts, 0, True
        if cuts is None or cuts.tables is not self.tables:
            self.cuts = cuts = CutPlans(self.tables, moved)
            more = cuts.along(keep_on)
        while idle < POLICY.idle and not self._near_enough():
            if self._over(cuts.family(self.best, self._better()), keep_on):
                idle = 0
            elif more:
                idle, more = idle + 1, cuts.around(self.best, keep_on)
            else:
                break

    def _over(self, family: Family, keep_on: KeepOn) -> bool:
        """Whether a plan over the family is better than the best."""
        better = self._accept(self._programme(self.tables, family, self._better(), keep_on).stages)
        if better:
            self.order = self._along(self.order)
        return better

    def _raise(self) -> None:
        """Bounds of a lattice too large to walk, and the plans that come with them."""
        if self.best is None or not self.tables.states.every:
            return
        self._narrow()
        keep_on = self._keep_on("bound", self.limits.seconds * POLICY.bound_share, POLICY.budgets)
        if self.objective.contracts:
            self.tell(*node_bound(self.tables, self.bound))
            if not keep_on(0, 0.0):
                return
            if not self._near_enough():
                self._contract(self._keep_on("bound", self.limits.seconds * POLICY.contract_share, POLICY.budgets))
            if not self._near_enough() and applies(self.tables):
                intervals = IntervalBounds(self.tables, self.value)
                try:
                    intervals.run(self._keep_on("intervals", self.limits.seconds * POLICY.interval_share))
                finally:  # an interrupt included: what is proven stays so
                    self.tell(intervals.bound, intervals.reason)
        if not self._near_enough():
            self._parts(keep_on)

    def _near_enough(self) -> bool:
        return min(self.value, self.limits.beaten) <= self.bound * (1 + POLICY.small_gap)

    def _contract(self, keep_on: KeepOn) -> None:
        max_words = self.limits.memory // 8
        for step in contraction_bounds(self.objective, self.bound, self.value, max_words, keep_on):
            self.statistics.tested += step.found.tested
            self.statistics.transitions += step.found.priced
            self.tell(step.bound, step.reason)
            if self._accept(step.stages):
                self.order = self._along(self.order)
            if self._near_enough() or self.left() < self.limits.seconds * (1 - POLICY.contract_share):
                return

    def _parts(self, keep_on: KeepOn) -> None:
        for _ in range(POLICY.parts):
            assert self.best is not None, "only a plan has a dearest stage"
            order, dearest = self._along(self.order), self.objective.dearest(self.best)
            max_words = self.limits.memory // 8
            bound, reason, order = part_bound(self.objective, order, dearest, self.bound, self.value, max_words, keep_on)
            self.tell(bound, reason)
            if self._near_enough() or not self._prefixes(order, keep_on):
                return

    def _prefixes(self, order: Sequence[int], keep_on: KeepOn) -> bool:
        """Whether a plan along ``order`` is better than the best."""
        better = self._over(prefixes(self.tables, order, self._better()), keep_on)
        if better:
            self.order = self._along(order)
        return better

    def _band(self) -> None:
        band, idle = 4, 0
        # Wide bands cost most and rarely help once the gap is small: stop after two that did not.
        while self.left() > 0 and not (idle >= 2 and self.value <= self.bound * (1 + POLICY.small_gap)):
            better = self._near(band)
            if better is None or self.tight() or band >= self.objective.problem.size:
                return
            idle = 0 if better else idle + 1
            band += 0 if better else max(1, band // 4)

    def _near(self, band: int) -> bool | None:
        """Searches the ideals near the best order; True when that improved the plan, None when over budget."""
        order, trial = self.order, self._better()
        tables = Tables(permuted(self.objective.problem, order), self.objective.price, self.tables.sequence)
        ideals = lattice(tables, trial, band=band, max_visits=self._visits(), max_words=self.limits.memory // 8)
        if ideals is None:
            return None
        keep_on = self._keep_on("band", self.limits.seconds)
        found = self.objective.programme(tables, ideals, order, trial, keep_on, self.bound)
        self._count(ideals, found)
        if not found.complete:
            return None
        if found.stages is not None and self._accept(
            tuple((label, tuple(sorted(order[v] for v in nodes))) for label, nodes in found.stages)
        ):
            self.order = self._along(order)
            return True
        return False


def per_ideal(family: Family, per_node: Floats) -> Floats:
    """Sums of ``per_node[n, C]`` over the nodes of each ideal, ``[N, C]``, a few thousand ideals at a time."""
    sums = np.empty((family.size, per_node.shape[1]))
    for start in range(0, family.size, 2048):
        rows = np.unpackbits(family.bits[start : start + 2048].view(np.uint8), axis=1, bitorder="little")
        sums[start : start + 2048] = rows[:, : len(per_node)].astype(np.float64) @ per_node
    return sums
