"""The best plan of several searches, each for plans of another form, with one incumbent and one bound.

The searches run one after the other. Each has the best plan so far as its incumbent, so a search whose bound is not below the
incumbent's value ends at once. The bound of the plan is the least bound of all searches: "optimal" holds for the plans of all
forms. A limit by the clock is divided: each search has an equal part of what is left. Ctrl-C ends a search with its best plan.
Once there is a plan, searches after Ctrl-C or after the end of the clock are left out. A search that was cut short or left out
has at least the bound that holds without a search (``Search.least``). The bound of a search whose plans are all of a later one
too is left out (``Search.covered``).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan
from ir.core.objectives import THROUGHPUT
from ir.text.units import seconds_text
from ir.text.witness import MESHES
from passes.framework.base import NoBetterPlan, PassContext, Statistics
from passes.framework.registry import BOUND
from passes.graph.sizes import assessed
from passes.plan.proof import proven_again
from passes.solvers.work import clock_left, is_over, within

BELOW = 1e-7
"""Relative: how far the bound of a search may lie below the value of another's plan and still prove it optimal: bounds on
meshes are lowered for rounding a few times."""
_LOG = logging.getLogger("dnnc.passes.partition")


@dataclass(frozen=True, slots=True)
class Search:
    """A search for plans of one ``form`` (``ir.text.witness``), of a ``kind`` in words. ``run``: the module with its plan, on
    the devices that it names; it is given a context with the incumbent, and seconds, None for as long as the search takes.
    ``least``: seconds that no plan of the form is below, known without a search. ``covered``: all its plans are also of a
    later search, so that the bound of that one holds for them, and its own is left out."""

    kind: str
    form: str
    run: Callable[[PassContext, float | None], Module]
    least: Callable[[], float] = lambda: 0.0
    covered: bool = False


@dataclass(slots=True)
class _Outcome:
    """What a search ended with: a module with a ``plan``, or none, and no plan of it is below ``bound``. ``error``: why there
    is no plan; None where that of another search is as good. ``asked``: the value of the incumbent; only plans below it were
    looked for."""

    search: Search
    bound: float = 0.0
    module: Module | None = None
    plan: Plan | None = None
    error: Infeasible | None = None
    warnings: DiagnosticSink = field(default_factory=DiagnosticSink)
    statistics: Statistics = field(default_factory=dict)
    seconds: float = 0.0
    asked: float = math.inf

    @property
    def value(self) -> float:
        return self.plan.value if self.plan is not None else math.inf

    @property
    def found(self) -> float:
        """The value of a plan that was looked for; inf where there is none."""
        return self.value if self.value < self.asked else math.inf

    @property
    def interrupted(self) -> bool:
        return any(bool(counted.get("interrupted")) for counted in self.statistics.values())

    @property
    def text(self) -> str:
        """The value of the plan, if it is one that was looked for, else what is proven, in words."""
        if self.found < math.inf:
            return seconds_text(self.found)
        if self.bound == math.inf:
            return "none fits"
        return f"none below {seconds_text(self.bound)}" if self.bound else "not searched to the end"


def best_of(searches: Sequence[Search], context: PassContext, name: str) -> Module:
    """The module with the best plan of all searches, the first of equal ones; the statistics of the pass ``name`` have the
    bound of each form. Raises Infeasible where no plan fits: the error of a search on single devices, if there is one; proven
    if no search leaves a plan open. Raises NoBetterPlan where no search has a plan that is better than the incumbent of
    ``context``."""
    outcomes: list[_Outcome] = []
    for number, search in enumerate(searches):
        best = _best(outcomes)
        if best is not None and (any(one.interrupted for one in outcomes) or is_over()):
            outcomes.append(_Outcome(search, search.least()))
            continue
        left = clock_left()
        seconds = None if left == math.inf else max(left / (len(searches) - number), 1e-3)
        outcomes.append(_searched(search, seconds, replace(context, incumbent=_incumbent(outcomes, context.incumbent))))
        if outcomes[-1].interrupted and outcomes[-1].plan is None and best is None:
            raise KeyboardInterrupt
    best, bound = _best(outcomes), min(one.bound for one in outcomes)
    _count(outcomes, best, context, name)
    if best is None:
        if context.incumbent is not None and any(one.error is None for one in outcomes):
            raise NoBetterPlan(bound, name)
        errors = [one.error for one in sorted(outcomes, key=lambda one: one.search.form == MESHES)]
        error = next(error for error in errors if error is not None)
        error.proven, error.bound = bound == math.inf, bound
        raise error
    assert best.module is not None
    assert best.plan is not None
    context.sink.diagnostics.extend(best.warnings.diagnostics)
    if best.search.covered:
        told = {**dict(best.plan.certificate), "bound": "the search for stages on meshes, which has this plan too"}
        own = assessed(replace(best.plan, certificate=tuple(told.items())), best.module.entry, best.value, best.value)
    else:
        own = replace(best.plan, bound=max(best.bound, best.plan.bound))
    plan = _certified(_with_bound(own, bound), best, outcomes)
    found = best.module.replace(best.plan, plan)
    return found if plan.bound == best.plan.bound or best.search.form != MESHES else proven_again(found)


def _searched(search: Search, seconds: float | None, context: PassContext) -> _Outcome:
    """What one search ends with. ``seconds``: as of ``Search.run``, and by the clock."""
    outcome = _Outcome(search, asked=context.incumbent.value if context.incumbent is not None else math.inf)
    began = time.perf_counter()
    inside = replace(context, sink=outcome.warnings, statistics=outcome.statistics)
    try:
        with within(seconds):
            outcome.module = search.run(inside, seconds)
    except NoBetterPlan as error:
        outcome.bound = error.bound
    except Infeasible as error:
        outcome.error, outcome.bound = error, math.inf if error.proven else error.bound
    except KeyboardInterrupt:
        inside.count(search.kind, interrupted=1)
    else:
        outcome.plan = outcome.module.first(Plan)
        assert outcome.plan is not None
        outcome.bound = outcome.plan.bound
    if search.covered:
        outcome.bound = outcome.value
    elif clock_left() < math.inf or outcome.interrupted:
        outcome.bound = min(max(outcome.bound, search.least()), outcome.value)
    outcome.seconds = time.perf_counter() - began
    if outcome.module is not None:
        log_plan(search.kind, outcome.module)
    else:
        _LOG.debug("%s: %s", search.kind, outcome.error.diagnostics[0].message if outcome.error is not None else outcome.text)
    return outcome


def log_plan(kind: str, module: Module) -> None:
    """Logs value and bound of the module's plan, which a search for plans of this kind made."""
    if (plan := module.first(Plan)) is not None:
        value, bound = seconds_text(plan.value), seconds_text(plan.bound)
        _LOG.debug("%s: a plan of %s, lower bound %s, %s", kind, value, bound, plan.status)


def _best(outcomes: Sequence[_Outcome]) -> _Outcome | None:
    """The first of the best outcomes; None where no search has a plan."""
    return min((one for one in outcomes if one.plan is not None), key=lambda one: one.value, default=None)


def _incumbent(outcomes: Sequence[_Outcome], known: Plan | None) -> Plan | None:
    """The best plan so far, or ``known`` where that is better, with the least bound of all searches; of infinite value where
    there is none yet."""
    if not outcomes:
        return known
    best, bound = _best(outcomes), min(one.bound for one in outcomes)
    if known is not None and (best is None or known.value <= best.value):
        return _with_bound(known, bound)
    if best is not None and best.plan is not None:
        return _with_bound(best.plan, bound)
    return Plan("@plan", THROUGHPUT.name, "sum", math.inf, math.inf, bound, "within-gap", math.inf, ())


def _with_bound(plan: Plan, bound: float) -> Plan:
    """The plan with the least of its bound and ``bound``; it stays optimal only if its value equals that."""
    if bound >= min(plan.bound, plan.value * (1 - BELOW)):
        return plan
    return replace(plan, bound=bound, status="within-gap")


def _certified(plan: Plan, best: _Outcome, outcomes: Sequence[_Outcome]) -> Plan:
    """The plan, with what the best of each other kind came to in its certificate."""
    others = dict.fromkeys(one.search.kind for one in outcomes if one.search.kind != best.search.kind)
    if not others:
        return plan
    told = [
        min((one for one in outcomes if one.search.kind == kind), key=lambda one: (one.found, one.bound)) for kind in others
    ]
    text = "; ".join([best.search.kind, *(f"{one.search.kind}: {one.text}" for one in told)])
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "kinds": text}.items())))


def _count(outcomes: Sequence[_Outcome], best: _Outcome | None, context: PassContext, name: str) -> None:
    """Counts of all searches, those of the best last; seconds are sums, and so is what was interrupted."""
    for one in (*outcomes, *([best] if best is not None else ())):
        for counted_by, counted in one.statistics.items():
            context.count(counted_by, **counted)
    bounds: dict[str, float] = {}
    for one in outcomes:
        bounds[one.search.form] = min(one.bound, bounds.get(one.search.form, math.inf))
    context.count(
        name,
        seconds=math.fsum(one.seconds for one in outcomes),
        build=math.fsum(float(one.statistics.get(name, {}).get("build", 0.0)) for one in outcomes),
        interrupted=int(any(one.interrupted for one in outcomes)),
        **{f"{BOUND}{form}": bound for form, bound in bounds.items()},
    )
