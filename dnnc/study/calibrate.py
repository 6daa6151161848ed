"""Fits the numbers of a device type and of links to measured seconds of plans.

*Unknowns* are factors x on seconds. For the device type: one for all ``rates``, one for the ``efficiency`` of each class of
ops, one for the bandwidths of its memory, and one each for ``overhead``, ``launch`` and ``handover``. For each kind of link
(links with equal numbers): one for its bandwidths and one for its times. A time that is 0 is changed in steps of ``STEP``.

*Method*. Let s_i(x) be the seconds of plan i, computed anew on the changed machines, and m_i its measured seconds. Unless
another stage or path becomes the slowest, s_i is nearly linear in x, with slopes from differences. Each round minimises the
linear form, within bounds,

    mean of (s_i - m_i)^2 / (m_i s_i')  +  strength * sum of ((x_j - now_j) / width_j)^2

(s' are the seconds before the round: to first order, the terms are squared differences of logarithms), and computes the plans
anew there. The second sum keeps numbers near their present values if the rows say little about them. ``strength``, or no change
at all, is chosen by cross-validation: plans are left out in turn, and the mean relative error on their rows decides. Numbers
that make up less than ``LEAST_SHARE`` of the seconds of every plan stay as they are.

*The error on plans that were left out* is of a second cross-validation around the first: plans that are left out take part
neither in the fit nor in the choice of the strength. It uses the linear form at the fit, which depends on all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnnc.study.faults import TooFewPlans, TypeNotMeasured, TypesDiffer
from dnnc.study.runs import MeasuredRun, StatedPlan, read_rows, read_stated
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.core.topology import DeviceType, Link, Topology

LEAST_PLANS = 3
STEP = 20e-6
"""Seconds that stand for one unit of a factor, for times that are 0."""
LEAST_SHARE = 0.01
LEAST_CHANGE = 0.01
"""A factor that changes by less stays as it is."""
ROUNDS = 5
SETTLED = 0.005
"""Rounds end when the linear form and the plans computed anew differ by less, relatively."""
STRENGTHS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
FOLDS = 10

RATES, EFFICIENCY, MEMORY, BANDWIDTH, LATENCY = "rates", "efficiency.", "memory_bandwidth", "bandwidth", "latency"
TIMES = ("overhead", "launch", "handover", LATENCY)
_DIFFERENCE = 0.05
"""Step of a factor for slopes."""
_MOST = 10.0
"""Largest factor; its inverse is the smallest."""
_TRUST = 3.0
"""Largest ratio by which a factor changes in a round; a factor of 0 goes up to its square."""
_STILL = 1e-9
"""A slope below this share of the largest term counts as 0."""
Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.intp]
Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Number:
    """A number of machines that is fitted, or several that change together. ``of``: name of the device type, or of the first
    link of the kind; ``key``: its key in topology files; ``value``: before the fit. ``kind``: the kind of links, None for a
    device type."""

    of: str
    key: str
    value: float
    kind: Link | None = None

    @property
    def is_time(self) -> bool:
        return self.key in TIMES

    @property
    def now(self) -> float:
        """The factor before the fit."""
        return 1.0 if self.value or not self.is_time else 0.0

    @property
    def width(self) -> float:
        """Expected error of the factor: times, which files estimate, are less exact than rates, which are in data sheets."""
        return 2.0 if self.is_time else 0.5

    @property
    def least(self) -> float:
        """Smallest factor: an efficiency is at most 1."""
        if self.is_time:
            return 0.0
        return max(1 / _MOST, self.value if self.key.startswith(EFFICIENCY) else 0.0)

    @property
    def most(self) -> float:
        return _MOST if self.now else _MOST**2

    def at(self, factor: float) -> float:
        """The number for which seconds are ``factor`` times as long."""
        if factor == self.now:
            return self.value
        return _rounded(factor * (self.value or STEP)) if self.is_time else _rounded(self.value / factor)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A number with the fitted factor; ``share``: mean share of the plans' seconds that depends on it."""

    number: Number
    factor: float
    share: float

    @property
    def value(self) -> float:
        """The fitted number."""
        return self.number.at(self.factor)


@dataclass(frozen=True, slots=True)
class Calibration:
    """``rows`` with predicted seconds ``before`` and ``after``; ``held_out``: mean relative error on plans that were left out;
    ``topology``: the machines with the new numbers. ``fitted`` is empty if no other numbers are better."""

    rows: tuple[MeasuredRun, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    held_out: float
    fitted: tuple[Fitted, ...]
    topology: Topology

    @property
    def plans(self) -> int:
        return len({row.build for row in self.rows})

    def on(self, topology: Topology) -> Topology:
        """Another topology with the new numbers."""
        return machines_at(topology, [one.number for one in self.fitted], [one.factor for one in self.fitted])

    def error(self, predicted: Sequence[float]) -> float:
        """Mean relative error over the rows."""
        measured = np.array([row.seconds for row in self.rows])
        return float(np.abs(np.array(predicted) / measured - 1).mean())


def calibrated(
    type_name: str, runs: Path, topology: Topology | None = None, progress: Progress = lambda label, fraction: None
) -> Calibration:
    """Fits the numbers of a device type, and of the links in its plans, to the rows of ``runs``. ``topology``: the machines
    that get the new numbers (default: those of the plan with the most devices). Raises InvalidInput, UsageError."""
    rows = read_rows(runs)
    plans = _plans(rows, progress)
    if len(plans) < LEAST_PLANS:
        raise InvalidInput(TooFewPlans(len(plans), LEAST_PLANS), where=str(runs))
    machines = [plan.topology for plan in plans.values()]
    base = topology or max(machines, key=lambda one: len(one.devices))
    fit = _Fit(rows, plans, numbers_of(type_name, [*machines, base], runs), progress)
    x, held_out = fit.run()
    x = np.where(np.abs(x - fit.now) < LEAST_CHANGE, fit.now, x)
    priced = fit.priced(x)
    shares = np.abs(fit.linear.slopes * x / fit.linear.seconds[:, None]).mean(axis=0)
    every = zip(fit.numbers, x, shares, strict=True)
    fitted = tuple(Fitted(number, float(x), float(share)) for number, x, share in every if x != number.now)
    before, after = (tuple(map(float, seconds[fit.plan_of_row])) for seconds in (fit.before, priced))
    return Calibration(tuple(rows), before, after, held_out, fitted, machines_at(base, fit.numbers, x))


def _plans(rows: Sequence[MeasuredRun], progress: Progress) -> dict[Path, StatedPlan]:
    """The plan of each build. Raises InvalidInput with the faults of all rows."""
    plans: dict[Path, StatedPlan] = {}
    faults: list[Diagnostic] = []
    for index, row in enumerate(rows):
        progress("read the plans", index / len(rows))
        try:
            if row.build not in plans:
                plans[row.build] = read_stated(row)
            else:
                plans[row.build].require(row)
        except InvalidInput as error:
            faults += error.diagnostics
    if faults:
        raise InvalidInput(faults)
    return plans


def numbers_of(type_name: str, machines: Sequence[Topology], runs: Path) -> list[Number]:
    """The numbers to fit. Raises UsageError if no plan has the type, InvalidInput if plans state it differently."""
    types = [type_ for topology in machines for type_ in topology.types if type_.name == type_name]
    if not types:
        names = sorted({type_.name for topology in machines for type_ in topology.types})
        raise UsageError(TypeNotMeasured(type_name, tuple(names)), where=str(runs))
    if any(_bare(other) != _bare(types[0]) for other in types[1:]):
        raise InvalidInput(TypesDiffer(type_name), where=str(runs))
    kinds: dict[Link, str] = {}
    for topology in machines:
        for link in topology.links:
            kinds.setdefault(_kind(link), link.name)
    of_links = [(name, kind) for kind, name in kinds.items()]
    return [
        *_numbers_of_type(types[0]),
        *(Number(name, "bandwidth", kind.bandwidth, kind) for name, kind in of_links),
        *(Number(name, "latency", kind.latency, kind) for name, kind in of_links),
    ]


def _numbers_of_type(type_: DeviceType) -> list[Number]:
    values = [(RATES, dict(type_.rates).get("f32", max(dict(type_.rates).values(), default=0.0)))]
    values += [(EFFICIENCY + kind, share) for kind, share in type_.efficiency if kind != "memory"]
    values += [(MEMORY, type_.memory_bandwidth)]
    numbers = [Number(type_.name, key, value) for key, value in values if value]
    return [*numbers, *(Number(type_.name, key, getattr(type_, key)) for key in ("overhead", "launch", "handover"))]


def _bare(type_: DeviceType) -> DeviceType:
    """The type without fields that the fit does not concern."""
    return replace(type_, memory=None, reserved=0, source="", provider="", provider_options=())


def _kind(link: Link) -> Link:
    """The link without name and ends: links of one kind are equal in this."""
    return replace(link, name="", ends=())


def machines_at(topology: Topology, numbers: Sequence[Number], factors: Sequence[float] | Floats) -> Topology:
    """The machines with each number changed by its factor."""
    moved = [(number, float(x)) for number, x in zip(numbers, factors, strict=True) if x != number.now]
    types = list(topology.types)
    links = list(topology.links)
    for number, x in moved:
        if number.kind is None:
            types = [_type_at(type_, number, x) if type_.name == number.of else type_ for type_ in types]
        else:
            links = [_fitted(link, old, number, x) for link, old in zip(links, topology.links, strict=True)]
    return replace(topology, types=tuple(types), links=tuple(links))


def _type_at(type_: DeviceType, number: Number, x: float) -> DeviceType:
    if number.key == RATES:
        rates = tuple((dtype, _rounded(rate / x)) for dtype, rate in type_.rates)
        return replace(type_, rates=rates, scalar_rate=_rounded(type_.scalar_rate / x))
    if number.key == MEMORY:
        return replace(
            type_,
            memory_bandwidth=number.at(x),
            unit_bandwidth=_rounded(type_.unit_bandwidth / x),
            store_bandwidth=_rounded(type_.store_bandwidth / x),
            cache_bandwidth=_rounded(type_.cache_bandwidth / x),
        )
    if number.is_time:
        times = {key: getattr(type_, key) for key in ("overhead", "launch", "handover")} | {number.key: number.at(x)}
        return replace(type_, overhead=times["overhead"], launch=times["launch"], handover=times["handover"])
    table = dict(type_.efficiency) | {number.key.removeprefix(EFFICIENCY): min(1.0, number.at(x))}
    return replace(type_, efficiency=tuple(table.items()))


def _fitted(link: Link, old: Link, number: Number, x: float) -> Link:
    """The link changed by the factor if it, or its link of training, is of the number's kind. ``old``: before the fit."""
    if _kind(old) == number.kind:
        return _link_at(link, number, x)
    if _kind(old.trained()) != number.kind:
        return link
    one = _link_at(link.trained(), number, x)
    return replace(link, training_bandwidth=one.bandwidth, training_latency=one.latency, training_start=one.start)


def _link_at(link: Link, number: Number, x: float) -> Link:
    """The link with its bandwidths or its times changed, those of collectives included."""
    if number.key == LATENCY:
        return replace(link, latency=number.at(x), start=_rounded(link.start * x), switch=_rounded(link.switch * x))
    return replace(link, bandwidth=number.at(x), small=_rounded(link.small / x))


def _rounded(value: float) -> float:
    """Rounded to four digits, for readable files."""
    return float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class _Linear:
    """Seconds of plans near the factors ``at``: ``seconds`` there, and ``slopes[plan, number]``."""

    at: Floats
    seconds: Floats
    slopes: Floats

    def __call__(self, x: Floats) -> Floats:
        return self.seconds + self.slopes @ (x - self.at)


def bounded(h: Floats, b: Floats, least: Floats, most: Floats) -> Floats:
    """Minimises x^T h x / 2 - b^T x for ``least`` <= x <= ``most``, h positive definite. Components beyond a bound are fixed at
    it, and released one by one if the slope there points inside."""
    x = np.clip(b / np.diag(h), least, most)
    free = np.ones(len(x), dtype=bool)
    for _ in range(4 * len(x)):
        x[free] = np.linalg.solve(h[np.ix_(free, free)], b[free] - h[np.ix_(free, ~free)] @ x[~free])
        beyond = free & ((x < least) | (x > most))
        if beyond.any():
            x = np.clip(x, least, most)
            free &= ~beyond
            continue
        slope = h @ x - b
        inward = np.where(free, 0.0, np.where(x <= least, -slope, slope))
        if not len(x) or inward.max() <= _STILL * np.abs(b).max():
            break
        free[inward.argmax()] = True
    return np.clip(x, least, most)


class _Fit:
    """The fit of rows. ``plan_of_row``: index of the plan of each row; ``before``: seconds of the plans before the fit;
    ``linear``: linear form near the fit."""

    def __init__(
        self, rows: Sequence[MeasuredRun], plans: dict[Path, StatedPlan], numbers: Sequence[Number], progress: Progress
    ) -> None:
        self.plans = list(plans.values())
        self.numbers = list(numbers)
        self.progress = progress
        places = {build: place for place, build in enumerate(plans)}
        self.plan_of_row = np.array([places[row.build] for row in rows])
        self.measured = np.array([row.seconds for row in rows])
        self.linear = self.linearised(self.now, "look for what the seconds depend on")
        self.before = self.linear.seconds
        matter = np.max(np.abs(self.linear.slopes) / self.before[:, None], axis=0) >= LEAST_SHARE
        self.numbers = [number for number, matters in zip(numbers, matter, strict=True) if matters]
        self.linear = _Linear(self.now, self.before, self.linear.slopes[:, matter])

    @property
    def now(self) -> Floats:
        return np.array([number.now for number in self.numbers])

    @property
    def everything(self) -> Places:
        return np.arange(len(self.measured))

    def run(self) -> tuple[Floats, float]:
        """The fitted factors (the present ones if none are better), and the mean relative error on plans left out."""
        present = self.error(self.before[self.plan_of_row], self.everything)
        best = self.linear
        for number in range(ROUNDS):
            strength = self.strength(self.linear, self.everything)
            if strength is None:
                break
            x = self.solved(self.linear, self.everything, strength)
            expected = self.linear(x)
            self.linear = self.linearised(x, f"fit, round {number + 1}")
            errors = [self.error(one.seconds[self.plan_of_row], self.everything) for one in (self.linear, best)]
            best = self.linear if errors[0] < errors[1] else best
            if np.all(np.abs(expected / self.linear.seconds - 1) < SETTLED):
                break
        self.linear = best
        held_out = self.held_out(best)
        return (best.at, held_out) if held_out < present else (self.now, present)

    def priced(self, x: Floats) -> Floats:
        """Seconds of the plans with these factors."""
        machines = [machines_at(plan.topology, self.numbers, x) for plan in self.plans]
        return np.array([plan.seconds_on(there) for plan, there in zip(self.plans, machines, strict=True)])

    def linearised(self, x: Floats, label: str) -> _Linear:
        seconds = self.priced(x)
        slopes = np.zeros((len(self.plans), len(x)))
        for j, number in enumerate(self.numbers):
            self.progress(label, j / len(x))
            step = _DIFFERENCE * x[j] if x[j] else 1.0
            there = x.copy()
            there[j] += step if x[j] + step <= number.most else -step
            slopes[:, j] = (self.priced(there) - seconds) / (there[j] - x[j])
        return _Linear(x, seconds, slopes)

    def solved(self, linear: _Linear, rows: Places, strength: float) -> Floats:
        """The factors that fit these rows best in the linear form."""
        plans = self.plan_of_row[rows]
        weights = 1 / np.sqrt(self.measured[rows] * linear.seconds[plans])
        a = linear.slopes[plans] * weights[:, None]
        lacking = (self.measured[rows] - linear.seconds[plans]) * weights
        held = strength / np.array([number.width**2 for number in self.numbers])
        least = np.maximum([number.least for number in self.numbers], linear.at / _TRUST)
        most = np.minimum([number.most for number in self.numbers], np.where(linear.at > 0, linear.at * _TRUST, _TRUST**2))
        curvature = a.T @ a / len(rows) + np.diag(held)
        return bounded(curvature, a.T @ (lacking + a @ linear.at) / len(rows) + held * self.now, least, most)

    def folds(self, rows: Places) -> Iterator[tuple[Places, Places]]:
        """Splits of the rows into rows to fit and rows left out; all rows of a plan are on one side."""
        plans = np.unique(self.plan_of_row[rows])
        plans = np.random.default_rng(0).permutation(plans)
        for fold in range(min(FOLDS, len(plans))):
            out = np.isin(self.plan_of_row[rows], plans[fold :: min(FOLDS, len(plans))])
            yield rows[~out], rows[out]

    def strength(self, linear: _Linear, rows: Places) -> float | None:
        """The strength with the least error on plans left out; None if the present numbers have a smaller error."""

        def left_out(strength: float) -> float:
            errors = [
                self.errors(linear(self.solved(linear, some, strength))[self.plan_of_row[out]], out)
                for some, out in self.folds(rows)
            ]
            return float(np.concatenate(errors).mean())

        least = min((left_out(strength), strength) for strength in STRENGTHS)
        return least[1] if least[0] < self.error(self.before[self.plan_of_row[rows]], rows) else None

    def held_out(self, linear: _Linear) -> float:
        """Mean relative error on plans that take part neither in the fit nor in the choice of the strength."""
        errors = []
        for some, out in self.folds(self.everything):
            strength = self.strength(linear, some)
            seconds = self.before if strength is None else linear(self.solved(linear, some, strength))
            errors.append(self.errors(seconds[self.plan_of_row[out]], out))
        return float(np.concatenate(errors).mean())

    def errors(self, seconds: Floats, rows: Places) -> Floats:
        """Relative errors of rows for these predicted seconds."""
        return np.asarray(np.abs(seconds / self.measured[rows] - 1))

    def error(self, seconds: Floats, rows: Places) -> float:
        return float(self.errors(seconds, rows).mean())
