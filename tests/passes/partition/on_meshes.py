"""The pass ``partition`` for plans on meshes alone, with the options that tests state most."""

from __future__ import annotations

from typing import Any

from passes.partition.partition_pass import PartitionPass


def on_meshes(mesh: str = "auto", *, stages: int = 1, training: bool = False, memory: int = 0, **options: Any) -> PartitionPass:
    """One mesh of shape ``mesh``, unless ``stages`` says how many. ``memory``: bytes per device."""
    objective = "training" if training else "throughput"
    return PartitionPass(mesh=mesh or "auto", stages=stages, objective=objective, device_memory=memory, **options)


__all__ = ["on_meshes"]
