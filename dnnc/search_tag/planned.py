"""Runs TAG's search in place of dnnc's own.

The pass ``partition`` of a pipeline, which would search a plan, is replaced by a pass that states the plan that TAG found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dnnc.search_tag.bridge import Expressed, expressed
from dnnc.search_tag.device_groups import Machines
from dnnc.search_tag.network import read_prior
from dnnc.search_tag.op_groups import Workload
from dnnc.search_tag.simulator import Simulator
from dnnc.search_tag.tree_search import ITERATIONS, Found, TreeSearch
from ir.core.diagnostics import Infeasible, InvalidInput
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from ir.text.units import seconds_text
from passes.framework.base import Pass, PassContext
from passes.framework.manager import PassManager

NAME = "tag"


@dataclass(frozen=True, slots=True)
class TagOptions:
    """``prior``: an ``.npz`` that ``dnnc tag train`` wrote, None for a uniform prior; ``iterations``: of the tree search, None
    for ``ITERATIONS``; ``microbatches``: of a step, run one after another."""

    prior: Path | None = None
    iterations: int | None = None
    microbatches: int = 1


@dataclass(frozen=True, slots=True)
class TagPlan:
    """``pipeline``: states the plan; ``found``: what the search gave; ``text``: a sentence on both for the certificate."""

    pipeline: tuple[Pass, ...]
    found: Found
    text: str


def tag_plan(pipeline: Sequence[Pass], module: Module, context: PassContext, options: TagOptions) -> TagPlan:
    """Runs ``pipeline`` on ``module``, which has a topology, up to the pass ``partition``, searches a plan by TAG's method, and
    returns the pipeline in which that plan replaces ``partition``. TAG's plan may be expressed in dnnc in several ways; the one
    of least value by dnnc's own cost counts.

    Raises InvalidInput for a file that is no prior and a topology with too many device groups, UsageError if METIS is not
    installed, Infeasible if no plan fits that dnnc can express."""
    prior = read_prior(options.prior) if options.prior is not None else None
    place = next(number for number, step in enumerate(pipeline) if step.name == "partition")
    facts = PassManager(pipeline[:place], expanded=True).run(module, context)
    topology = facts.first(Topology)
    assert topology is not None
    simulator = Simulator(Workload(facts, topology), Machines(topology), options.microbatches)
    result = TreeSearch(simulator, prior).run(
        options.iterations or ITERATIONS, lambda fraction: context.progress("TAG's tree search", fraction)
    )
    best = _cheapest(expressed(simulator, result.strategy), facts, context)
    context.count(NAME, iterations=len(result.curve), simulated=result.simulated, groups=simulator.workload.count)
    if result.interrupted:
        context.count(NAME, interrupted=1)
    seconds = min(result.outcome.seconds, result.with_factors.seconds)
    gathered = f" with {result.with_factors.gathered} gradients of gathered factors" if result.with_factors.gathered else ""
    text = (
        f"TAG's tree search, {len(result.curve)} iterations, {'trained' if prior else 'uniform'} prior: "
        f"{seconds_text(seconds)} a step in its simulator{gathered}, {seconds_text(result.baseline.seconds)} by data parallel; "
        f"expressed as {best.text}"
    )
    return TagPlan((*pipeline[:place], best.replay, *pipeline[place + 1 :]), result, text)


def _cheapest(candidates: Sequence[Expressed], facts: Module, context: PassContext) -> Expressed:
    """The candidate whose plan has the least value by dnnc's cost. Raises the last fault if none is a plan."""
    if len(candidates) == 1:
        return candidates[0]
    best: tuple[float, Expressed] | None = None
    fault: InvalidInput | Infeasible | None = None
    for candidate in candidates:
        try:
            replayed = PassManager((candidate.replay,), expanded=True).run(facts, replace(context, statistics={}))
        except (InvalidInput, Infeasible) as error:
            fault = error
            continue
        plan = replayed.first(Plan)
        assert plan is not None
        if best is None or plan.value < best[0]:
            best = plan.value, candidate
    if best is None:
        assert fault is not None
        raise fault
    return best[1]
