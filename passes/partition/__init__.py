"""Partition: a model into stages, one per device, with a proof of how good the split is.

``problem`` states the problem as plain data; ``from_ir`` builds it from a module; ``throughput`` solves it (further
objectives stand beside it); ``partition_pass`` is the pass. ``ideals``, ``dp``, ``bounds``, ``orders`` and ``reduce`` are the
engine, shared by objectives; ``kernels`` holds its compiled loops and is loaded when the first search starts. ``any_split``
drops contiguity: ``local_search`` above, ``milp`` (the only door to the mixed-integer solver) on ``any_reduce`` below.
``replicas`` lets a stage run on several devices, ``hierarchy``, ``grouped`` (exact) and ``on_links`` look at links of two
speeds, ``canonical`` numbers nodes so that no file's order matters, ``pieces`` makes
stages of splits that go back and forth, ``latency`` is for one sample alone. ``baselines`` are what others would do, for
comparison.
"""

from passes.model.stages.problem import Kind, Problem, StageCost, load, plan_costs, stage_cost, violations
from passes.partition.partition_pass import PartitionPass
from passes.partition.throughput import Budget, Solution, solve

__all__ = [
    "Budget",
    "Kind",
    "PartitionPass",
    "Problem",
    "Solution",
    "StageCost",
    "load",
    "plan_costs",
    "solve",
    "stage_cost",
    "violations",
]
