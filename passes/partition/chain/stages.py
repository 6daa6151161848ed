"""Joint search: where to cut a model into stages, on how many devices each, as which mesh, and how each is sharded.

A stage costs the sharded time of its run of units on its mesh, with what it receives, sends and, in inference on several
devices, hands over, all divided by its replicas; a plan its slowest stage (the period of a stream), or where few microbatches
are in flight, such as the groups of a decoder, the time of one through all stages divided by their number. The search is lazy
(``bounding``): every (run, form of mesh) has a bound, at first what no sharding avoids; the dynamic programme of ``pipeline``
finds the best plan under these, the forms of mesh in it get the tables of their units, which bound all runs, and so on until
all that decides the value has them. Its plan is then solved stage by stage, each given the layouts that the stages before it
really send, and priced with the real links (``solved``). Where that costs a stage more than its bound, the programme is asked
again, with what was seen in the place of the bound, for a plan that is better still. In the end runs are searched one by one.
Before all that a plan on blocks of one size is solved, so that there is one when time is over; after that time no problem is
built for a better one. Beside an incumbent the first question is whether any plan beats it; of training steps any that does is
asked for, whichever is the best (``refutes``).

In training a stage costs forward and backward of a microbatch, gradients that cross back included, and its part of the
synchronisation of weights' gradients, once per step; a plan ``(microbatches + stages - 1)`` times its slowest stage, as 1F1B
and GPipe fill and drain, or what the simulated step takes where that is more (``StageSearch.valued``). Stage ``s`` of ``S``
(from 0) holds what the backward passes of ``min(microbatches, S - s)`` microbatches need, as in 1F1B; bounds count those
of the fewest that a run may hold, by the units behind it.

What is exact and what is a relaxation: the bound of a run lets values enter in the layout that suits it best and leave as suits
it, over the best link that its block has: less than what any plan pays. So the programme's optimum under bounds is a lower
bound of all plans over these cuts and blocks, and the distance of the two is the gap. ``optimal`` is said where they meet only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ir.core.module import Plan
from ir.core.objectives import TRAINING
from ir.core.outcomes import TIGHT, outcome
from passes.costs.memory.footprint import Footprint, lacking
from passes.meshes.staged import Staged
from passes.partition.chain.bounding import Bounding
from passes.partition.chain.least import table_of
from passes.partition.chain.pipeline import (
    STEP,
    Programme,
    Sequenced,
    StageRun,
    Table,
    Tables,
    Transitions,
    beside,
    flush,
    in_turn,
    least,
    quicker,
    shortest,
    slowest,
)
from passes.partition.chain.solved import SolvedStages, StageSolver
from passes.partition.chain.submeshes import Block, Submeshes, of_shape
from passes.partition.layouts.mesh.named import UnfitError
from passes.partition.layouts.solver.search import BOUNDING, ENOUGH_PROVEN
from passes.plan.written import written
from passes.solvers.anytime import Anytime, Limits, Result
from passes.solvers.work import now

NEAR = 1e-2
"""Relative gap at which the search for few microbatches in flight ends."""
FAR = 5e-2
"""Relative gap of a training step's plan and bound beyond which runs are not searched one by one. On 24 devices in 6 hosts that
took half of the time, closed a gap of 9.4 % to 7.3 % at best, and found no better plan."""
SUFFICES = ((1 / 60, 2e-2), (1 / 15, 3e-2))
"""Parts of the time, and relative gaps: once such a part has passed, the search for a training step ends at such a gap, unless
less than ``ENOUGH_PROVEN`` is asked for. What is predicted of a step is not more exact, and the last percent takes most of a
search."""
SHARES = ((0.5, 0.7), (0.95, 1.0))
"""Of the time: until when bounds get better, and until when plans are looked for; the second time runs are searched one by
one."""
FIRST = 0.1
"""Of the time: until when the bounds of a first plan get better."""
SOME = 2.0
"""Seconds for a plan where there is none yet, whatever time is left."""
LITTLE = 5e-3
"""Relative: a plan of a training step is solved where its bound is that much better than the best at least."""
COARSE = 0.05
"""Relative: how near limits on a training step's stages lie at first; nearer once all that decides is solved."""
MOST_TRIES = 12
"""Plans that are solved once bounds are as good as there is time for."""
MOST_LARGE = 40
"""Plans of which a stage is too large."""


SMALL_GAP = Limits(gap=ENOUGH_PROVEN)


@dataclass(frozen=True, kw_only=True)
class StagesPlan(Result):
    """``value`` and ``bound`` in seconds per sample of the slowest stage; ``stages`` as decided. Statistics: ``units`` of the
    function, ``forms`` of meshes, distinct ``keys`` of runs, runs that were ``solved``, ``rounds`` of the programme.
    ``unsharded``: operators without a layout rule."""

    stages: tuple[Staged, ...]
    units: int
    forms: int
    keys: int
    solved: int
    rounds: int
    unsharded: tuple[str, ...] = ()


class StageSearch(Anytime[SolvedStages]):
    """The search over one module and one set of blocks, those that ``bounding`` is of. ``groups``: microbatches of a stream
    that are in flight at most, on blocks without replicas; 0: as many as keep all stages busy."""

    def __init__(self, bounding: Bounding, limits: Limits = SMALL_GAP, groups: int = 0) -> None:
        super().__init__(limits, bounding.progress)
        self.groups = groups
        self.bounding, self.meshes = bounding, bounding.meshes
        self.transitions = Transitions(bounding.meshes, bounding.units.count)
        self.flushes = bounding.microbatches if bounding.training else 0
        self.step, self.rounds = COARSE, 0
        self.found: Sequenced | None = None
        self.solver = StageSolver(bounding, bounding.topology, bounding.net, self.worth if groups else None)
        self.seen = dict[object, dict[tuple[int, int], float]]()
        """What runs of solved plans cost, by blocks that are alike and by what is beside them: as in the dearest plan that was
        solved, with whatever stages around them. It decides which plan is solved next, and bounds nothing."""
        self.lacked = False  # whether a stage of a plan was too large

    def run(self, stages: int) -> StagesPlan | None:
        """The plan; None where nothing fits, or where none was found that is better than the incumbent: none is below
        ``bound``. ``stages``: exactly so many; 0: any number. An interrupt from the keyboard ends the search with the plan at
        hand, or with the first that can be made of what is known."""
        bounding = self.bounding
        self.search(partial(self._every, stages), partial(self.solve, stages, 0.0))
        best = self.best
        if best is None or best.value >= self.limits.beaten:
            if best is not None:  # some bounds are of better plans alone
                self.bound = min(self.bound, best.value)
            return None
        keys = len({key for row in bounding.units.keys for key in row})
        bound = min(self.bound, best.value)
        return StagesPlan(
            stages=best.staged or tuple(map(self.solver.decided, best.stages)),
            value=best.value,
            bound=bound,
            status=outcome(best.value, bound),
            interrupted=self.interrupted,
            units=bounding.units.count,
            forms=len(self.meshes.forms),
            keys=keys,
            solved=bounding.solved,
            rounds=self.rounds,
            unsharded=bounding.base.unsharded,
        )

    def _every(self, stages: int) -> None:
        """All phases, as far as there is time for them."""
        start, seconds, gap = self.started, self.limits.seconds, self.limits.gap
        sizes = sorted({block.size for block in self.meshes.blocks})
        if self.limits.beaten < math.inf and self.flushes and not stages:
            if self.refutes(start + SHARES[0][0] * seconds):
                return
        elif self.limits.beaten < math.inf:
            if not self.bounded(stages, start + SHARES[0][0] * seconds, exact=False):
                self.bound = math.inf
            if self.refuted:
                return
        # So that there is a plan whatever happens; what fits at all fits on many devices together.
        for size in (sizes[0], *reversed(sizes[1:])):
            if self.best is None:
                self.plain(stages, start + FIRST * seconds, size)
        tries = MOST_TRIES
        for turn, (bounds, plans) in enumerate(SHARES):
            best = self.best
            if turn and best is not None and self.flushes and not self.near(FAR, math.inf):
                break
            if not self.bounded(stages, start + bounds * seconds, exact=turn == len(SHARES) - 1):
                # Nothing fits, if it is so without the limit that what was found before sets.
                if best is None and not self.sequence(self.programme(stages), math.inf).runs:
                    self.bound = math.inf
                break
            until = start + plans * seconds
            if not turn:
                tries -= self.solve(stages, (now() + until) / 2, tries=1)
            if self.best is None or not self.near(gap, until):
                tries -= self.solve(stages, until, tries=tries)
            if self.best is None or self.near(gap, start + seconds):
                break
        if self.flushes and not stages and self.lacked and not self.near(gap, start + seconds):
            self.each_number(start + seconds)

    def each_number(self, ends: float) -> None:
        """Bounds and plans of each number of stages by itself. A first stage that is too large before many others, each of
        which adds a microbatch in flight, may fit before few: ``solve`` takes it for too large wherever it comes."""
        bounding, bounds = self.bounding, list[float]()
        for stages in range(1, 1 + min(self.meshes.devices, bounding.units.count)):
            found: Sequenced | None = None
            while True:
                found = self.sequence(self.programme(stages), ends, known=found)
                if not found.runs or found.value >= self.beaten:
                    break
                if not bounding.refine(found, ends - now(), bounding.least.held(stages), exact=False):
                    break
            bounds.append(found.value)
            if now() > ends:
                return
            if found.value < self.beaten:
                self.solve(stages, ends)
        self.tell(min(bounds, default=math.inf), "")

    def nearest(self, stages: int) -> str:
        """What the plan lacks whose fullest device needs least of its memory, by bounds or, where these fit, by what was found;
        empty where there is no such plan."""
        bounding, known = self.bounding, dict[tuple[int, bool, int], Table]()
        every = bounding.least.held(stages)

        def part(block: Block, before: bool, behind: bool, comes: bool, goes: bool, held: int) -> Table:
            form, limit = bounding.forms[block.form], bounding.limit(block.mesh)
            runs = np.isfinite(table_of([0.0] * bounding.units.count))
            filled = bounding.needs(form, before, held) / max(limit, 1) if limit is not None else 0.0
            table = np.where(runs, filled, np.inf)
            return known.setdefault((block.form, before, held), Table.of(table))

        if not bounding.units.count:
            return ""
        found = least(Programme(part, self.transitions, every))
        if not found.runs:
            return ""
        for number, (run, (before, *_, held)) in enumerate(zip(found.runs, beside(found.runs, every), strict=True)):
            form, limit = bounding.forms[run.block.form], bounding.limit(run.block.mesh)
            weights, workspace, buffers = (
                math.ceil(table[run.first, run.behind]) for table in (form.bytes, *bounding.beside_weights(form, before, held))
            )
            needs = Footprint(weights, workspace, buffers)
            if limit is not None and limit < needs.total >= found.value * limit:
                return lacking(f"stage {number} needs at least", needs, run.block.mesh.devices[0], limit)
        return self.solver.nearest

    def refutes(self, until: float) -> bool:
        """Whether no training step is quicker than the incumbent by more than the gap. Betters the bounds of plans that may be,
        ``until`` there are none, or the bound of one does not rise. The last thousandth costs little, and proves the incumbent
        optimal."""
        bounding, beaten, few = self.bounding, self.limits.beaten, 1
        while True:
            self.rounds += 1
            gap = self.sufficient(self.limits.gap)
            than = beaten / (1 + (gap if gap > ENOUGH_PROVEN else 0.0))
            found = quicker(Programme(bounding.table, self.transitions), self.flushes, than, beaten, few)
            if not found.runs:
                self.tell(found.value, "")
                return True
            few = len(found.runs)  # bounds do not fall: fewer stages stay ruled out
            self.progress("stages", None)
            for plan in [found] if few > 1 else self.in_one_stage(found.value):
                if now() > until or not bounding.refine(plan, until - now(), (), exact=False, limit=found.value):
                    return False

    def in_one_stage(self, limit: float) -> list[Sequenced]:
        """The plans of one stage that may take ``limit`` seconds, one for each form and number of replicas."""
        count, found = self.bounding.units.count, dict[tuple[int, int], Sequenced]()
        for block in self.meshes.blocks:
            seconds = float(self.bounding.table(block, False, False).seconds[0, count])
            if seconds <= limit:
                found.setdefault((block.form, block.replicas), Sequenced(seconds, (StageRun(0, count, block),)))
        return list(found.values())

    @property
    def refuted(self) -> bool:
        """Whether no plan is better than the incumbent, or that at hand, by more than the gap."""
        return self.bound * (1 + self.sufficient(self.limits.gap)) >= self.beaten < math.inf

    @property
    def beaten(self) -> float:
        """The value of the incumbent or the plan at hand, the better one; inf where there is neither."""
        return min(self.value, self.limits.beaten)

    def sufficient(self, gap: float) -> float:
        """The gap, or what is enough now."""
        if self.groups and self.limits.gap >= ENOUGH_PROVEN:
            return max(gap, NEAR)
        if not self.flushes or not self.limits.seconds or self.limits.gap < ENOUGH_PROVEN:
            return gap
        passed = (now() - self.started) / self.limits.seconds
        return max([gap, *(enough for since, enough in SUFFICES if passed > since)])

    def near(self, gap: float, ends: float) -> bool:
        """Whether nothing better is looked for."""
        return self.beaten <= self.bound * (1 + self.sufficient(gap)) or now() > ends

    def bounded(self, stages: int, until: float, exact: bool) -> bool:
        """Betters the bound until all that decides is as it is; False where nothing fits."""
        while True:
            self.rounds += 1
            self.found = self.sequence(self.programme(stages), until, known=self.found)
            if not self.found.runs:
                return False
            self.tell(self.found.value, "")
            self.progress("stages", None)
            left = until - now()
            if left < 0 or self.refuted:
                return True
            if not self.bounding.refine(self.found, left, self.bounding.least.held(stages), exact=exact):
                if not self.flushes or stages or self.step <= STEP:
                    return True
                self.step = max(STEP, self.step / 8)

    def programme(self, stages: int) -> Programme:
        """Over the bounds."""
        return Programme(self.bounding.table, self.transitions, self.bounding.least.held(stages))

    def sequence(self, programme: Programme, until: float, *, gaps: bool = True, known: Sequenced | None = None) -> Sequenced:
        """The best sequence of a programme; ``known``: under seconds that were nowhere above its."""
        if self.flushes:
            return flush(programme, self.flushes, until, self.step, known)
        if self.groups:
            return in_turn(programme, self.groups, gaps=gaps)
        return least(programme, gaps=gaps, limit=programme.slowest(known.runs) if known and known.runs else math.inf)

    def worth(self, seconds: Sequence[float]) -> float:
        """The value of a plan, given what its stages spend."""
        value = max(seconds) * (self.flushes + len(seconds) - 1 if self.flushes else 1)
        return max(value, math.fsum(seconds) / self.groups) if self.groups else value

    def plain(self, stages: int, ends: float, size: int) -> None:
        """Looks for a plan on blocks of so many devices, as replicas or as meshes of as few axes as there are."""
        blocks = [block for block in self.meshes.blocks if block.size == size]
        axes = min(len(block.mesh.axes) for block in blocks)
        self.solve(stages, ends, [block for block in blocks if len(block.mesh.axes) == axes], tries=1)

    def solve(self, stages: int, ends: float, blocks: Sequence[Block] = (), tries: int = MOST_TRIES) -> int:
        """Solves plans, and keeps the best at hand; ``blocks``: on which, all unless given. The first one that is found of all
        is built whatever time is left, others on forms for which there is time. Returns how many tries it took."""
        bounding, count = self.bounding, self.bounding.units.count
        transitions = Transitions(self.meshes.among(blocks), count) if blocks else self.transitions
        built = False  # whether plans are on forms only whose problems are built
        nowhere = Table.of(np.full((count, count + 1), np.inf))
        raised: dict[object, tuple[Table, Table]] = {}
        held = bounding.least.held(stages)
        full: list[tuple[StageRun, int]] = []  # that were too large, with all around them, and what they held in flight

        def table(block: Block, before: bool, behind: bool, comes: bool, goes: bool, in_flight: int) -> Table:
            if built and not bounding.is_built(block.form):
                return nowhere
            sides = block, before, behind, comes, goes, in_flight
            bound, like = bounding.table(*sides), bounding.likeness(*sides)
            places = self.seen.get(like, {})
            key: object = like if places else (id(bound), in_flight if full else 0)
            known = raised.get(key)
            if known is None or known[0] is not bound:
                costs = bound.seconds.copy()
                for place, cost in places.items():
                    costs[place] = max(costs[place], cost)
                for large, most in full:
                    if large.block.form != block.form or 0 < in_flight < most:
                        continue
                    for start, end in bounding.least.runs_of[bounding.units.key(large.first, large.behind)]:
                        if start <= large.first or held or not self.flushes:  # later stages of a step hold fewer microbatches
                            costs[: start + 1, end:] = math.inf
                known = raised[key] = bound, Table.of(costs)
            return known[1]

        # First without idle devices between stages: bounds take links from the best of them, plans from the last.
        gaps = self.flushes > 0
        last: Sequenced | None = None
        number = 0
        while number < tries and len(full) < (MOST_LARGE if now() < ends else tries):
            if self.best is not None and self.near(self.limits.gap, ends):
                break
            gaps = gaps or number == (tries + 1) // 2
            most = self.beaten * (1 - (LITTLE if self.flushes else 0.0))
            found = last = self.refined(table, transitions, stages, ends, gaps, most, last)
            if not found.runs or found.value >= most:
                if gaps:
                    break
                gaps, number = True, number + 1
                continue
            limit = slowest(table, found.runs, held) * (1 + TIGHT)
            if self.best is not None and not all(bounding.is_built(run.block.form) for run in found.runs):
                built = True  # there was no time for these
                continue
            self.progress("stages", number / MOST_TRIES)
            made = self.solver.solve(found.runs, max(ends, now() + SOME) if self.best is None else ends)
            learnt = False
            if isinstance(made, int):
                full.append((found.runs[made], beside(found.runs, held)[made][-1]))
                self.lacked = True
                raised.clear()
                continue
            number += 1
            made, spent = self.valued(made)
            for run, sides, cost in zip(found.runs, beside(found.runs, held), spent, strict=True):
                known = self.seen.setdefault(bounding.likeness(run.block, *sides), {})
                least_cost = bounding.table(run.block, *sides).seconds[run.first, run.behind] * (1 + TIGHT)
                if cost > known.get((run.first, run.behind), least_cost if self.groups else limit):
                    known[run.first, run.behind], learnt = cost, True
            raised.clear()
            self.keep(made, made.value)
            if not learnt:
                if gaps:
                    break
                gaps = True
        return number

    def valued(self, made: SolvedStages) -> tuple[SolvedStages, tuple[float, ...]]:
        """A plan with its value, and what its stages spend for that. A training step that would be the best so far is
        simulated: the stage whose sums take longest is charged what that takes longer than filling, running and draining."""
        value = self.worth(made.seconds)
        made, spent = replace(made, value=value), list(made.seconds)
        if not self.flushes or len(spent) == 1 or value >= self.beaten:
            return made, made.seconds
        staged = tuple(map(self.solver.decided, made.stages))
        plan = Plan("@plan", TRAINING.name, "sum", value, value, 0.0, "within-gap", 0.0, (), microbatches=self.flushes)
        found = written(self.bounding.module, staged, plan).first(Plan)
        assert found is not None
        if found.value > value * (1 + TIGHT):
            longest = max(range(len(spent)), key=lambda number: found.stages[number].sync)
            if found.stages[longest].sync > 0:
                spent[longest] = max(spent[longest], found.value / (self.flushes + len(spent) - 1))
        return replace(made, staged=staged, value=max(value, found.value)), tuple(spent)

    def refined(
        self,
        table: Tables,
        transitions: Transitions,
        stages: int,
        ends: float,
        gaps: bool,
        most: float,
        known: Sequenced | None,
    ) -> Sequenced:
        """Of the best sequences the one of least sum, once no bound of its runs gets better or none is worth less than
        ``most``; its value is the best's. ``known``: as of ``sequence``."""
        held = self.bounding.least.held(stages)
        found = known
        while True:
            programme = Programme(table, transitions, held)
            found = self.sequence(programme, ends, gaps=gaps, known=found)
            if not found.runs or found.value >= most:
                return found
            limit = programme.slowest(found.runs) * (1 + TIGHT)
            short = shortest(programme, limit, len(found.runs) if self.flushes else 0, gaps=gaps)
            short = replace(found, runs=short.runs or found.runs)
            if not self.bounding.refine(short, ends - now(), held, exact=False):
                return short


def stages_by_name(
    bounded: Callable[[Submeshes, str], Bounding], meshes: Submeshes, strategy: str, stages: int, limits: Limits
) -> StagesPlan | None:
    """The plan called ``strategy`` in stages on meshes of one shape, the best of the shapes that there are: ops are split as in
    the plan of the whole function, and cut where the slowest stage is quickest. ``bounded``: bounds of plans by name among
    meshes. The bound is one of plans of any kind on any of ``meshes``. None where nothing fits; raises UnfitError where the
    model has no such plan on any shape."""
    shapes = sorted({block.mesh.sizes for block in meshes.blocks}, key=lambda sizes: (-math.prod(sizes), sizes))
    if len(shapes) > 1:  # what is split over one device is not split
        shapes = [sizes for sizes in shapes if 1 < math.prod(sizes) <= meshes.devices // max(stages, 1)] or [(1,)]
    ends = now() + limits.seconds
    best: StagesPlan | None = None
    unfit: list[UnfitError] = []
    for number, sizes in enumerate(shapes):
        left = max(0.1, (ends - now()) / (len(shapes) - number))
        if best is not None and now() > ends:
            break
        try:
            found = StageSearch(bounded(of_shape(meshes, sizes), strategy), replace(limits, seconds=left)).run(stages)
        except UnfitError as error:
            unfit.append(UnfitError(f"mesh {'x'.join(map(str, sizes))}: {error}"))
            continue
        if found is not None and (best is None or found.value < best.value):
            best = found
        if found is not None and found.interrupted:
            return replace(best or found, bound=0.0, interrupted=True)
    if best is None:
        if len(unfit) == len(shapes):
            raise unfit[0]
        return None
    free = StageSearch(bounded(meshes, ""), replace(limits, seconds=BOUNDING, gap=0.0)).run(stages)  # for the bound alone
    bound = free.bound if free is not None else 0.0
    return replace(best, bound=min(bound, best.value))
