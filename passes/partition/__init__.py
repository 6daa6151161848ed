"""Partition: a model into stages, one per device, with a proof of how good the split is.

An *ideal* is a set of nodes that has all nodes before each of its own; the stages of a contiguous plan are the differences of
consecutive ideals of a chain, and all ideals of a graph are its *lattice*. The problem, its exact reductions, its simple bounds
and the dynamic programme over a family of ideals are ``passes.model.stages``. ``objective`` says what an objective brings to
the search and what a solution is. The rooms here, from the top down:

- ``bridge``: the pass; from IR to a problem, from a solution to a plan.
- ``groups``: throughput over links of two speeds, with a search of its own.
- ``search``: the search over ideals that objectives share, and throughput, the first of them.
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
