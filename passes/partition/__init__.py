"""Partition: a model into stages, one per device, with a proof of how good the split is.

The problem, its reductions, its simple bounds and the programme over its lattice are ``passes.model.stages``. The rooms here,
from the top down:

- ``bridge``: the pass; from IR to a problem, from a solution to a plan.
- ``baselines``: what others would do, judged as the exact search is.
- ``assignment``: splits that need not be contiguous; ``groups``: links of two speeds; ``latency``: one sample alone;
  ``training`` and ``pipedream``: objectives of their own on the shared search.
- ``search``: the search over ideals that objectives share (``objective`` says what each brings), throughput the first of them.
- ``heuristics``: plans without a proof; ``bounds``: proofs where the lattice is too large to walk.
"""

from passes.partition.bridge.partition_pass import PartitionPass
from passes.partition.objective import Budget, Solution
from passes.partition.search.throughput import solve

__all__ = [
    "Budget",
    "PartitionPass",
    "Solution",
    "solve",
]
