"""Training objectives on graphs with explicit forward and backward nodes.

``problem`` states them as plain data, makes units of what must share a device, lets stages have replicas, and evaluates plans
from the definition; ``solver`` solves them.
"""

from passes.reference.training.problem import (
    OBJECTIVES,
    TrainingGraph,
    TrainingLoad,
    training_load,
    training_value,
    units,
)
from passes.reference.training.solver import Training, TrainingSolution, solve_training

__all__ = [
    "OBJECTIVES",
    "Training",
    "TrainingGraph",
    "TrainingLoad",
    "TrainingSolution",
    "solve_training",
    "training_load",
    "training_value",
    "units",
]
