"""Baselines: what a person or a simpler tool would do, judged by the definition that the exact search is judged by.

``case`` holds what a baseline sees and ``judge``; ``cases`` makes it from each objective's problem (``latency`` that of
latency). A baseline is a function of (case, limits) that gives stages or raises ``NoPlan``, in a file of its own or, short as
it is, in ``plain``. ``expert`` also takes what the person wrote; ``chain`` is a dynamic programme over one order, ``greedy``
fills devices one after the other, ``metis`` splits evenly, ``pipedream_style`` makes the graph a path and cuts that.
"""

from collections.abc import Callable
from typing import TypeAlias

from passes.reference.baselines.case import Case, Limits, NoPlan, Plan, StageLoad, judge
from passes.reference.baselines.cases import pipedream_case, throughput_case, training_case
from passes.reference.baselines.greedy import greedy
from passes.reference.baselines.latency import latency_case
from passes.reference.baselines.metis import metis
from passes.reference.baselines.pipedream_style import pipedream_style
from passes.reference.baselines.plain import expert, local_search, one_device, topological
from passes.stages.lattice.dp import Stages

Baseline: TypeAlias = Callable[[Case, Limits], Stages]

BASELINES: dict[str, Baseline] = {
    "one-device": one_device,
    "greedy": greedy,
    "topological": topological,
    "pipedream-style": pipedream_style,
    "local-search": local_search,
    "metis": metis,
}
"""By name, in the order in which they are told."""
LOOSE = ("local-search", "metis")
"""Those that ask for no contiguity: of no use where the objective does."""

__all__ = [
    "BASELINES",
    "LOOSE",
    "Baseline",
    "Case",
    "Limits",
    "NoPlan",
    "Plan",
    "StageLoad",
    "expert",
    "judge",
    "latency_case",
    "pipedream_case",
    "throughput_case",
    "training_case",
]
