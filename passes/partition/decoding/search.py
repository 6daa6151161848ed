"""The plan of most tokens per second (``problem``), with a bound, over all cuts, devices, batches and numbers of groups.

Branch and bound over boxes: batches numbered low .. high, groups from G to H. Can a box have more than x tokens per second? A
plan would need stages each of which takes all groups together,

    sum over its devices of min(sets / G, 1 / (x t)) >= 1,

and paths of at most H / x together, where t are seconds per token, of each unit the least over the batches of the box; sets are
those of its smallest batch, and a path counts the fastest device of a stage. Whether there are such stages, two dynamic
programmes over cuts and devices say: how far devices get without the limit on paths, which is quick, and then the least sum of
paths. A box of one batch and one number of groups is asked exactly: min(sets, floor(G / (x t))) whole groups for each device,
and the slowest device of a stage in its path. The box that may have most is next; of one that may be better both halves are
asked, of one batch and number of groups the plan is the new incumbent. So no plan has more than (1 + gap) times the tokens of
the incumbent, or, where time is over, than the best box that is left may have. Plans of one device, which hand nothing
over, are all tried first.

Where costs at borders make a longer run cheaper, the quick programme asks for the least of all longer runs.

Many devices of many types have too many vectors. Devices of a type are then taken in *bundles* of one stage each. Where stages
of many devices are too many all the same, stages have few here; those of many are looked for before: one stage on all devices,
and stages of larger bundles. In both cases the bound is what all devices could cover, each of the run that suits it best
(``covered``).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from passes.partition.decoding.problem import (
    Asked,
    Decoding,
    DecodingPlan,
    Devices,
    Runs,
    SharedStage,
    bundled,
    on_all_devices,
    on_one_device,
    runs,
    shared,
    vectors,
)
from passes.partition.decoding.tables import Tables, tables_of
from passes.partition.layouts.problem.problem import Floats
from passes.solvers.anytime import Anytime, Limits
from passes.solvers.work import did

GAP = 1e-3
"""Relative: how much better a plan is at least that is looked for."""
NEAR = 1e-2
"""Relative, as ``GAP``, where costs of links are estimates."""
TRIED = 0.3
"""Part of the time in which first plans are looked for."""
ATTEMPT = 1.0
"""Seconds of counted work of the search with costs of links."""
MORE_GROUPS = 4
"""For each device, where no search over all numbers of groups follows."""
COARSE = 1e-2
"""Relative: how near the rate of a box of several is to the least that is known of it."""
HALVED = 24
"""Times that the interval of rates of a box is halved."""
BEYOND = 1 + 1e-9
"""For rounding."""
MOST_STATES = 20_000
"""Vectors of bundles of devices by type, at most."""
MOST_COVERED = 200
"""Boxes that are bounded by what devices cover."""
MOST_TRANSITIONS = 250_000
"""Pairs of a vector and a block in it: where there are more, stages have fewer devices."""
FEW_STATES = math.isqrt(2 * MOST_TRANSITIONS)
"""With at most so many vectors there are no more pairs, whatever the devices of a stage."""


@dataclass(slots=True, order=True)
class _Box:
    """``most``: no plan in it has more tokens per second; boxes are ordered by it, the highest first."""

    order: tuple[float, int]
    low: int
    high: int
    few: int
    many: int

    @property
    def most(self) -> float:
        return -self.order[0]


class DecodingSearch(Anytime[DecodingPlan]):
    """A search over one problem. ``best``: the plan so far, ``value``: its seconds per token."""

    def __init__(self, problem: Decoding, gap: float = GAP, seconds: float = math.inf, states: int = 0) -> None:
        """``states``: vectors of bundles of devices at most, ``MOST_STATES`` if 0."""
        super().__init__(Limits(seconds=seconds, gap=gap))
        self.problem = problem
        self.gap = math.sqrt(1 + gap) - 1  # once for the bound, once for fewer sequences in flight (``lean``)
        self.bundles, counts = bundled(problem, states or MOST_STATES)
        self.all_devices = tuple(counts.tolist()) == problem.counts
        self.vectors = vectors(counts.tolist())
        self.replicas, self.blocks = self.allowed()
        present = (self.vectors[self.blocks] > 0) @ (1 << np.arange(len(problem.counts)))
        self.kinds, kind_of = np.unique(present, return_inverse=True)
        self.kind_of = kind_of.astype(np.int64)
        open_to = problem.detours.open_to(self.vectors[self.blocks])
        self.devices = Devices(self.vectors, self.blocks, open_to, self.bundles)
        borders = float((self.devices.open.sum(axis=0, dtype=np.float64) ** 2).sum())  # pairs of them, of all blocks
        self.transitions = len(self.vectors) * borders * max(1, problem.stages) / 2
        self.known: dict[tuple[int, int], Tables] = {}
        self.boxes = 0
        self.of_others = math.inf if self.limited or not self.all_devices else 0.0
        """A rate that no plan in stages other than those searched is above."""

    def allowed(self) -> tuple[int, NDArray[np.int64]]:
        """The most devices of a stage, and the vectors that stages may have."""
        sums, most = self.vectors @ self.bundles, self.most
        while most > self.bundles.min() and np.count_nonzero(sums <= most) * len(sums) > 2 * MOST_TRANSITIONS:
            most -= 1
        return most, np.flatnonzero((sums > 0) & (sums <= most)).astype(np.int64)

    @property
    def most(self) -> int:
        """The most devices that a stage might have."""
        every = int((self.vectors @ self.bundles).max())
        return min(self.problem.replicas or every, every - max(self.problem.stages - 1, 0))

    @property
    def limited(self) -> bool:
        """Whether stages have fewer devices here than they might."""
        return self.replicas < self.most

    @property
    def rate(self) -> float:
        """Tokens per second of the best plan."""
        return self.best.tokens_per_second if self.best is not None else 0.0

    def run(self) -> DecodingPlan | None:
        """The best plan with its bound; None where nothing fits, or none was found in time."""
        if len(self.blocks):
            self.search(self.branch)
        if self.best is None:
            return None
        most = 1 / self.bound if self.bound else math.inf
        return replace(self.best, bound=max(most, self.rate, self.of_others))

    def attempt(self, known: DecodingPlan | None) -> DecodingPlan | None:
        """The best of ``known`` and of a few plans of few batches and numbers of groups, without a bound."""

        def tries() -> None:
            chosen = [*self.tries(MORE_GROUPS)]
            if known is not None:
                self.keep(known, 1 / known.tokens_per_second)
                self.in_one_stage()
                own = self.problem.batches.index(known.batch)
                chosen = [
                    (own, known.groups),
                    *((batch, known.groups) for batch in sorted({one for one, _ in chosen})),
                    *chosen,
                ]
            for batch, groups in dict.fromkeys(chosen):
                if self.left() > 0:
                    self.try_one(batch, groups)
            if self.best is not None and self.left() > 0:
                tables = self.tables(*[self.problem.batches.index(self.best.batch)] * 2)
                self.improve(tables, self.best.groups, self.highest(tables, self.best.groups, self.best.groups))

        self.search(tries)
        return self.best

    def in_one_stage(self) -> None:
        """Keeps the best plan of one stage, where stages have fewer devices here than they might."""
        for batch in range(len(self.problem.batches) if self.limited else 0):
            if (found := on_all_devices(self.problem, batch, self.gap)) is not None:
                self.keep(found, 1 / found.tokens_per_second)

    def in_larger_bundles(self, seconds: float) -> None:
        """Looks so long for plans with any number of devices in a stage, and keeps the best."""
        larger = type(self)(self.problem, self.limits.gap, seconds, FEW_STATES)
        if self.best is not None:
            larger.keep(self.best, self.value)
        if len(larger.blocks):
            larger.search(larger.branch)
        if larger.best is not None:
            self.keep(larger.best, larger.value)
        if larger.interrupted:
            raise KeyboardInterrupt

    def of_any_stages(self) -> float:
        """Where devices are in bundles, or stages have fewer than they might, a rate that no plan is above, by what devices
        cover (``covered``), box by box; else 0."""
        if not self.of_others:
            return 0.0
        whole = 0, len(self.problem.batches) - 1, *self.problem.groups
        heap = [(-self.covered(*whole, math.inf), whole)]
        for _ in range(MOST_COVERED):
            most, ranges = -heap[0][0], heap[0][1]
            if most <= self.rate * (1 + self.gap) or (ranges[0] == ranges[1] and ranges[2] == ranges[3]):
                break
            heapq.heappop(heap)
            for half in self.halves(*ranges):
                heapq.heappush(heap, (-self.covered(*half, most), half))
        return max(-heap[0][0], self.rate)

    def covered(self, low: int, high: int, few: int, many: int, known: float) -> float:
        """A rate that no plan of a box is above, at most ``known``. In a plan of rate x a device takes of its run at most
        y = min(sets / G, 1 / (x t), 1) of the groups, whole ones, those of a stage together all. So for any weights of units,
        which a run has the sum of,

            sum over devices of the largest y times weight of any run >= the weight of all units.

        Weights are the seconds of units on each type."""
        tables, pairs = self.tables(low, high), np.triu_indices(self.problem.units, 1, self.problem.units + 1)
        seconds, sets = (values[:, pairs[0], pairs[1]] for values in (tables.runs.seconds, tables.runs.sets))
        alone = self.problem.least(self.problem.seconds, low, high)
        weights = [runs(own / own.sum())[pairs] for own in alone if 0 < own.sum() < math.inf]
        held, counts = np.clip(sets / few, 0.0, 1.0), np.array(self.problem.counts)

        def suffices(rate: float) -> bool:
            with np.errstate(divide="ignore"):
                taken = np.minimum(held, 1 / (rate * seconds))
            if few == many:
                taken = np.floor(taken * (few * BEYOND)) / few
            return all(float(counts @ (taken * own).max(axis=1)) >= 1 / BEYOND for own in weights)

        most = min(known, self.by_path(tables, many), 1e12)
        if suffices(most):
            return most
        least = most
        while not suffices(least) and least > 1e-12:
            most, least = least, least / 2
        while most > least * (1 + COARSE / 4):
            middle = math.sqrt(least * most)
            least, most = (middle, most) if suffices(middle) else (least, middle)
        return most

    def branch(self) -> None:
        """Looks through all boxes; an interrupt leaves the bound of what is left."""
        last = len(self.problem.batches) - 1
        first = self.box(0, last, *self.problem.groups, math.inf)
        heap, left = [first], 0.0
        for batch in range(last + 1):  # boxes are of plans that hand over: they bound no others
            if (found := on_one_device(self.problem, batch)) is not None:
                self.keep(found, 1 / found.tokens_per_second)
        self.in_one_stage()
        self.tell(1 / first.most if first.most else math.inf, "")
        self.infeasible = not first.most
        tried = self.limits.seconds * TRIED
        if self.limited and len(self.vectors) > FEW_STATES:
            self.in_larger_bundles(tried / 2)
        for batch, groups in self.tries():
            if self.limits.seconds - self.left() < tried or self.best is None:
                self.try_one(batch, groups)
        while heap and heap[0].most > self.rate * (1 + self.gap) and self.left() > 0:
            box = heapq.heappop(heap)
            self.tell(1 / max(box.most, left), "")
            tables = self.tables(box.low, box.high)
            if not self.may(tables, box, self.rate * (1 + self.gap)):
                continue
            if box.low == box.high and box.few == box.many:
                left = max(left, self.improve(tables, box.few, box.most))
                continue
            for ranges in self.halves(box.low, box.high, box.few, box.many):
                if (half := self.box(*ranges, box.most)).most > self.rate * (1 + self.gap):
                    heapq.heappush(heap, half)
        most = max(left, heap[0].most if heap else 0.0, self.rate * (1 + self.gap))
        if self.best is not None:
            self.tell(1 / (most * BEYOND), "")
            self.of_others = self.of_any_stages()
            if first.most >= self.rate / (1 + self.gap):  # else no plan that is found here is as good
                self.lean()

    def tries(self, each: int = 1) -> Iterator[tuple[int, int]]:
        """Batches and groups of first plans: of both, those about half as many as the ones before, from ``each`` groups for
        each device on."""
        few, many = self.problem.groups
        most = min(many, max(8 * few, each * sum(self.problem.counts)))
        sizes, numbers = self.problem.batches, list[int]()
        for number, size in enumerate(sizes):
            if not numbers or size >= 2 * sizes[numbers[-1]] or number == len(sizes) - 1:
                numbers.append(number)
        groups = [few]
        while groups[-1] < most:
            groups.append(min(2 * groups[-1], most))
        yield from ((number, group) for number in reversed(numbers) for group in reversed(groups))

    def try_one(self, batch: int, groups: int) -> None:
        """Looks for plans of a batch with so many groups that are better than the best by some."""
        tables = self.tables(batch, batch)
        if self.best is None and (most := self.highest(tables, groups, groups)):
            for near in (1.3, math.inf):
                if self.best is None and (found := self.plan(tables, groups, near / most)) is not None:
                    self.keep(found, 1 / found.tokens_per_second)
        for better in (1.3, 1.03):
            while self.best is not None and (found := self.plan(tables, groups, 1 / (better * self.rate))) is not None:
                if not self.keep(found, 1 / found.tokens_per_second):
                    return

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def box(self, low: int, high: int, few: int, many: int, most: float) -> _Box:
        self.boxes += 1
        most = self.highest(self.tables(low, high), few, many, most)
        return _Box((-most, self.boxes), low, high, few, many)

    def halves(self, low: int, high: int, few: int, many: int) -> Iterator[tuple[int, int, int, int]]:
        """Both halves of a box, by batches or by groups, of which it has more."""
        sizes = self.problem.batches
        if few < many and (low == high or sizes[high] * few < many * sizes[low]):
            middle = min(math.isqrt(few * many), many - 1)
            yield from ((low, high, few, middle), (low, high, middle + 1, many))
            return
        middle = (low + high) // 2
        if sizes[high] * few >= many * sizes[low]:
            wanted = math.sqrt(sizes[low] * sizes[high])
            middle = next((n for n in range(high - 1, low, -1) if sizes[n] <= wanted), low)
        yield from ((low, middle, few, many), (middle + 1, high, few, many))

    def tables(self, low: int, high: int) -> Tables:
        if (low, high) not in self.known:
            self.known[low, high] = tables_of(self.problem, self.kinds.tolist(), low, high)
        return self.known[low, high]

    def highest(self, tables: Tables, few: int, many: int, known: float = math.inf) -> float:
        """A rate that no plan of a box is above, by what devices take together and the least path; at most ``known``. It is
        not told exactly where no plan of the box is better than the best."""
        near = self.gap / 4 if few == many and tables.low == tables.high else COARSE
        high = min(known, self.by_path(tables, many), 1e12)
        low = self.rate * (1 + self.gap)
        if low >= high or (low > 0 and not self.reaches(tables, few, 1 / low, exact=False)):
            return min(low, high)
        if self.reaches(tables, few, 1 / high, exact=False):
            return high
        if not low:
            if not self.reaches(tables, few, math.inf, exact=False):
                return 0.0
            low = high
            while not self.reaches(tables, few, 1 / low, exact=False):
                high, low = low, low / 4
        for _ in range(HALVED):
            if high <= low * (1 + near):
                break
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.reaches(tables, few, 1 / middle, exact=False) else (low, middle)
        return high

    def by_path(self, tables: Tables, many: int) -> float:
        """A rate that no plan of at most so many groups is above, by the least path."""
        path = float(tables.rest[0] + tables.hops[0]) if self.problem.loops else 0.0
        return many / path if path > 0 else math.inf

    def may(self, tables: Tables, box: _Box, rate: float) -> bool:
        """Whether a plan of a box might have so many tokens per second."""
        tau = 1 / rate if rate > 0 else math.inf
        if not self.reaches(tables, box.few, tau, exact=False):
            return False
        value, _ = self.shortest(tables, box.few, tau, self.budget(box.many, tau), exact=False)
        return bool(np.isfinite(value[self.problem.stages, :, :, -1]).any())

    def improve(self, tables: Tables, groups: int, most: float) -> float:
        """The best plan of a batch with so many groups is the best of all, if it is better. Returns a rate that no such plan is
        above, at most ``most``, which is known; that and the best rate approach each other."""
        if self.best is None and (found := self.plan(tables, groups, math.inf)) is not None:
            self.keep(found, 1 / found.tokens_per_second)
        elif self.best is None:
            return 0.0
        while most > (low := self.rate * (1 + self.gap)):
            middle = math.sqrt(low * most) if most > low * (1 + self.gap) else low
            found = self.plan(tables, groups, 1 / middle)
            if found is None:
                most = middle
            elif not self.keep(found, 1 / found.tokens_per_second):
                return most
        return most

    def lean(self) -> None:
        """Makes the best plan one of fewer sequences in flight, of which each then waits less for its next token, where it has
        as many tokens per second but for the gap. Tried are batches about half as large each, each with few groups first."""
        best, rate = self.best, self.rate / (1 + self.gap)
        assert best is not None
        flight = best.batch * best.groups
        numbers = sorted({number for number, _ in self.tries()} | {self.problem.batches.index(best.batch)})
        for number in numbers:
            size, tables = self.problem.batches[number], self.tables(number, number)
            for groups in range(self.problem.groups[0], 1 + min(self.problem.groups[1], (flight - 1) // size)):
                found = self.plan(tables, groups, 1 / rate) if self.left() > 0 else None
                if found is not None and found.tokens_per_second >= rate / BEYOND:
                    self.best, self.value, flight = found, 1 / found.tokens_per_second, size * groups
                    break

    # -- dynamic programmes --------------------------------------------------------------------------------------------

    def asked(self, runs: Runs, groups: int, tau: float, *, exact: bool) -> Asked:
        """What is asked of a stage of so many groups, of ``tau`` seconds per token."""
        need, seconds = float(groups) * (1.0 if exact else 1 / BEYOND), tau * groups
        if len(self.devices.open) > 1:
            return Asked(seconds, need, exact, np.zeros((0, 0, 0)))
        with np.errstate(divide="ignore", invalid="ignore"):
            each = seconds / runs.seconds * BEYOND
        each = np.where(np.isinf(runs.seconds), 0.0, np.where(np.isnan(each), np.inf, each))
        takes = self.bundles[:, None, None] * np.minimum(runs.sets, np.floor(each) if exact else each)
        return Asked(seconds, need, exact, np.asarray(takes, np.float64))

    def far(self, tables: Tables, groups: int, tau: float, *, exact: bool) -> NDArray[np.int32]:
        from passes.partition.decoding.kernels import furthest

        return furthest(tables.longer, self.devices, self.asked(tables.longer, groups, tau, exact=exact))

    def reaches(self, tables: Tables, groups: int, tau: float, *, exact: bool) -> bool:
        from passes.partition.decoding.kernels import reached

        did("entry", self.transitions + len(self.blocks) * self.problem.units)
        return bool(reached(self.far(tables, groups, tau, exact=exact), self.devices, self.problem.stages))

    def shortest(
        self, tables: Tables, groups: int, tau: float, budget: float, *, exact: bool
    ) -> tuple[Floats, NDArray[np.int32]]:
        from passes.partition.decoding.kernels import shortest

        did("entry", self.transitions * self.problem.units)
        far, most = self.far(tables, groups, tau, exact=exact), budget * BEYOND if math.isfinite(budget) else 1e300
        asked = self.asked(tables.runs, groups, tau, exact=exact)
        paths = tables.slow if exact else tables.fast
        ways = paths, self.kind_of, tables.hops, tables.rest
        return shortest(tables.runs, far, self.devices, *ways, asked, most, self.problem.stages)

    def budget(self, groups: int, tau: float) -> float:
        """Seconds per token that paths may have together."""
        return groups * tau if self.problem.loops else math.inf

    def plan(self, tables: Tables, groups: int, tau: float) -> DecodingPlan | None:
        """The plan of the shortest paths with periods of at most ``tau`` seconds per token, if these fit into the groups."""
        if not self.reaches(tables, groups, tau, exact=True):
            return None
        value, way = self.shortest(tables, groups, tau, self.budget(groups, tau), exact=True)
        layer, unit = self.problem.stages, self.problem.units
        state, route = divmod(int(value[layer, :, :, unit].argmin()), value.shape[2])
        if not math.isfinite(value[layer, state, route, unit]):
            return None
        stages, routes = list[SharedStage](), list[int]()
        while unit:
            block, first, route = way[layer, state, route, unit].tolist()
            devices = self.vectors[self.blocks[block]] * self.bundles
            stages.append(SharedStage(first, unit, tuple(devices.tolist())))
            routes.append(route)
            state, unit, layer = state - int(self.blocks[block]), first, max(layer - 1, 0)
        return shared(self.problem, stages[::-1], tables.low, groups, routes[-2::-1])


def best_on_links(ports: Decoding, links: Decoding, gap: float, seconds: float) -> tuple[DecodingPlan | None, DecodingSearch]:
    """The best plan found for a problem with costs of ``links`` between unlike types, with a bound of the plans of the same
    problem on ``ports``, and the search on these. ``seconds``: of counted work, of each of both searches."""
    search = DecodingSearch(ports, gap, seconds)
    plan = search.run()
    if plan is None or links.borders is None or links.borders.detours is None:
        return plan, search
    known = shared(links, plan.stages, ports.batches.index(plan.batch), plan.groups)
    found = DecodingSearch(links, NEAR, min(seconds, ATTEMPT)).attempt(known)
    return (replace(found, bound=plan.bound) if found is not None else plan), search


def best_plan(problem: Decoding, gap: float = GAP, seconds: float = math.inf) -> DecodingPlan | None:
    """The plan of most tokens per second, with its bound; None where nothing fits. ``seconds``: of counted work."""
    return DecodingSearch(problem, gap, seconds).run()


def fastest_plan(problem: Decoding) -> DecodingPlan | None:
    """The plan of the least seconds per token of one user: one group of the first batch, no stage shared."""
    alone = replace(problem, batches=problem.batches[:1], groups=(1, 1), replicas=1)
    search = DecodingSearch(alone, 0.0)
    plans = [search.plan(search.tables(0, 0), 1, math.inf), on_one_device(alone, 0)]
    found = min((plan for plan in plans if plan is not None), key=lambda plan: plan.value, default=None)
    return replace(found, bound=max(found.tokens_per_second, search.of_any_stages())) if found is not None else None
