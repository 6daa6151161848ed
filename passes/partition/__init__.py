"""Partition: a model into stages, one per device, with a proof of how good the split is.

The problem, its reductions, its bounds and the programme over its lattice are ``passes.model.stages``. Here ``partition_pass``
is the pass, ``throughput`` the search for one objective on ``search``, and further objectives stand beside it: ``training``,
``latency`` (one sample alone), ``pipedream``. ``any_split`` drops contiguity: ``local_search`` above, ``milp`` on
``any_reduce`` below. ``replicas`` lets a stage run on several devices, ``hierarchy``, ``grouped`` (exact) and ``on_links`` look
at links of two speeds, ``canonical`` numbers nodes so that no file's order matters, ``pieces`` makes stages of splits that go
back and forth. ``baselines`` are what others would do, for comparison.
"""

from passes.partition.partition_pass import PartitionPass
from passes.partition.throughput import Budget, Solution, solve

__all__ = [
    "Budget",
    "PartitionPass",
    "Solution",
    "solve",
]
