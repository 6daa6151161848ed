"""What an input may ask for: the sizes beyond which dnnc refuses instead of filling memory or taking hours.

Every number stands here, with its reason. A limit that a real model could meet is a field that the command sets; the others
are far above anything real. Limits bound what dnnc *computes or holds* on behalf of an input: weights are only named, so a
model of any size is planned.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIMITS", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits for one input."""

    text_bytes: int = 1 << 29
    """IR text, ONNX text, workloads and splits: bytes of one file."""

    document_bytes: int = 64 << 20
    """Documents that a person edits (plans, splits, manifests): bytes of one file."""

    topology_bytes: int = 4 << 20
    """Bytes of a topology file, an eighth of a second to read; patterns say in a line what stands a thousand times."""


LIMITS = Limits()
"""The limits that apply where the command says nothing else."""
