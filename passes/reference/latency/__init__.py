"""Latency of one sample: accelerators run contiguous pieces, one after another, CPUs run single nodes.

``problem`` states the model and evaluates a plan from the definition; ``liveness`` says how much of a piece is alive at once.
``reduce`` makes problems smaller without losing an optimum, and relaxes them. ``engine`` searches one family of ideals with the
loops of ``ideal_kernels`` (the ideals), ``kernels`` (bounds) and ``label_kernels`` (plans). ``bounds`` holds what needs no
lattice, ``solver`` puts all of it together. ``build`` makes the problem from one of throughput.
"""

from passes.reference.latency.build import BuiltLatency, latency_problem
from passes.reference.latency.engine import TooManyKindsError
from passes.reference.latency.problem import LatencyProblem, Piece, PieceTimes, Programs, Schedule, faults, schedule
from passes.reference.latency.solver import LatencyBudget, LatencySolution, solve_latency

__all__ = [
    "BuiltLatency",
    "LatencyBudget",
    "LatencyProblem",
    "LatencySolution",
    "Piece",
    "PieceTimes",
    "Programs",
    "Schedule",
    "TooManyKindsError",
    "faults",
    "latency_problem",
    "schedule",
    "solve_latency",
]
