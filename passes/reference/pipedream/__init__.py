"""PipeDream's objective: stages replicated over machines, the largest of compute, synchronisation and transfers.

``problem`` states it as plain data and evaluates plans from the definition; ``solver`` solves it, with a bound of its own in
``starts``; ``kernels`` holds the compiled loops.
"""

from passes.reference.pipedream.problem import SCHEDULES, Machines, Profile, StageTime, plan_faults, stage_times
from passes.reference.pipedream.solver import PipeDream, PipeDreamSolution, solve_pipedream

__all__ = [
    "SCHEDULES",
    "Machines",
    "PipeDream",
    "PipeDreamSolution",
    "Profile",
    "StageTime",
    "plan_faults",
    "solve_pipedream",
    "stage_times",
]
