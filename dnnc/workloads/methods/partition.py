"""Runs the passes ``partition`` and ``reference``, which ``dnnc compile`` uses too, for methods of ``dnnc solve``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dnnc.workloads.methods.base import SECONDS, Progress, Solved, SolvedStage, SolveOptions
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import StageSet
from ir.core.module import Module, Plan

if TYPE_CHECKING:
    from passes.partition.bridge.lattice_search import LatticeSearch


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A plan, the positions of the ops of each stage (``members``), and the statistics of the pass (``counted``)."""

    plan: Plan
    members: tuple[tuple[int, ...], ...]
    counted: dict[str, int | float | str]

    def solved(self, stages: Sequence[SolvedStage], options: dict[str, Any]) -> Solved:
        """The result of a method with these stages."""
        phases = {name: value for name, value in self.counted.items() if isinstance(value, float)}
        del phases["seconds"]  # its rest, beside build and search, turned the plan into IR
        build, search = phases.pop("build"), phases.pop("search")
        return Solved(
            self.plan.value,
            self.plan.bound,
            self.plan.status,
            dict(self.plan.certificate).get("bound", ""),
            tuple(stages),
            int(self.counted["ideals"]),
            int(self.counted["transitions"]),
            {"build": build, **phases, "search": search},
            options,
            interrupted=bool(self.counted["interrupted"]),
        )


def run_partition(module: Module, options: SolveOptions, progress: Progress, solver: LatticeSearch) -> PartitionResult:
    """Runs the pass on the workload within the time limit of ``options``. Raises Infeasible."""
    from dnnc.onnx import DIALECTS
    from passes.framework.base import PassContext
    from passes.framework.manager import PassManager

    context = PassContext(sink=DiagnosticSink(), progress=progress, dialects=DIALECTS)
    limit = SECONDS if options.time_limit is None else options.time_limit
    module = PassManager((replace(solver, time_limit=limit),), verify=False).run(module, context)
    plan = module.first(Plan)
    assert plan is not None, "the pass makes a plan"
    members: list[list[int]] = [[] for _ in plan.stages]
    for v, op in enumerate(module.entry.ops):
        for index in op.facet(StageSet, StageSet(())).stages:
            members[index].append(v)
    return PartitionResult(plan, tuple(map(tuple, members)), dict(context.statistics[solver.name]))
