"""Methods that solve a workload: one per objective and split, each in a file, listed in ``METHODS``.

A method takes the module of a workload (``dnnc.work`` ops and a topology) and returns stages with a bound, in seconds and
bytes; ``dnnc.workloads.solve`` converts them to the unit of the file. To add a method, write its file and list it. A method
raises Infeasible if no plan fits. The methods of ``METHODS`` are exact; ``baselines`` has those that they are compared with.

- ``partition``, ``groups``, ``any_split``: methods that run passes of dnnc: on equal links, on groups of accelerators, and for
  splits that need not be contiguous;
- ``canonical``: nodes numbered independently of the file's order; ``expert_file``: the split of an expert, from its file.
"""

from __future__ import annotations

from dnnc.workloads.methods.any_split import any_throughput, any_training
from dnnc.workloads.methods.base import Boundaries, Method, Progress, Solved, SolvedStage, SolveOptions
from dnnc.workloads.methods.baselines import EXACT, EXPERT, NAMES, MethodResult, baseline, compare_all
from dnnc.workloads.methods.latency import latency
from dnnc.workloads.methods.pipedream import pipedream
from dnnc.workloads.methods.throughput import throughput
from dnnc.workloads.methods.training import training
from ir.core.objectives import ANY, CONTIGUOUS, LATENCY, PIPEDREAM, THROUGHPUT, TRAINING

METHODS: dict[tuple[str, str], Method] = {
    (THROUGHPUT.name, CONTIGUOUS): throughput,
    (THROUGHPUT.name, ANY): any_throughput,
    (TRAINING.name, CONTIGUOUS): training,
    (TRAINING.name, ANY): any_training,
    (PIPEDREAM.name, CONTIGUOUS): pipedream,
    (LATENCY.name, CONTIGUOUS): latency,
}
"""The exact method by objective and split."""

__all__ = [
    "EXACT",
    "EXPERT",
    "METHODS",
    "NAMES",
    "Boundaries",
    "Method",
    "MethodResult",
    "Progress",
    "SolveOptions",
    "Solved",
    "SolvedStage",
    "baseline",
    "compare_all",
]
