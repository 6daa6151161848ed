"""Options of the searches of ``partition``, each stated once; the pass tells what they mean (``partition_pass``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ir.core.objectives import THROUGHPUT, TRAINING
from ir.core.outcomes import TIGHT
from passes.framework.base import PassContext
from passes.framework.registry import ANY_FORM, ANY_MESH, NO_MESH

MICROBATCHES = 8
"""Of a training step in stages unless it is told."""


@dataclass(frozen=True)
class PlanOptions:
    """What every search reads."""

    objective: str = THROUGHPUT.name
    stages: int = 0
    replicas: int = 1
    microbatches: int = 0
    family: str = ""
    time_limit: float | None = None

    @property
    def training(self) -> bool:
        return self.objective == TRAINING.name


@dataclass(frozen=True)
class MeshOptions(PlanOptions):
    """What searches on meshes read besides."""

    mesh: str = NO_MESH
    strategy: str = ""
    shares: str = ""
    device_memory: int = 0
    gap: float | None = None

    @property
    def shape(self) -> str:
        """The shape of mesh that each stage is on; empty where any will do."""
        return "" if self.mesh in (NO_MESH, ANY_FORM, ANY_MESH) else self.mesh

    @property
    def step_microbatches(self) -> int:
        """Runs of the function that make a training step; 1 at inference."""
        return (self.microbatches or (1 if self.stages == 1 else MICROBATCHES)) if self.training else 1


def worth_finding(context: PassContext) -> float:
    """Seconds below which a plan is better than the incumbent, if there is one."""
    return context.incumbent.value * (1 - TIGHT) if context.incumbent is not None else math.inf
