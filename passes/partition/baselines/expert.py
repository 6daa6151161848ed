"""A split that somebody made by hand, completed and judged like any other.

What a person writes down is mostly the forward part: a node that the split leaves out follows the nodes of its colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.model.stages.lattice.dp import Stages
from passes.partition.baselines.case import Case, NoPlan


def expert(case: Case, given: Stages, names: Sequence[str]) -> Stages:
    """``given``: stages of (label, nodes of the workload), each node at most once; ``names`` of the nodes, for messages.
    Raises NoPlan for a node that is on no device, nor any of its colour."""
    home = {v: s for s, (_, nodes) in enumerate(given) for v in nodes}
    added: list[list[int]] = [[] for _ in given]
    missing = []
    for members in (case.loose or case.chained).members:
        places = sorted({home[v] for v in members if v in home})
        for v in members:
            if v not in home and places:
                added[places[0]].append(v)
            elif v not in home:
                missing.append(names[v])
    if missing:
        raise NoPlan(f"{len(missing)} nodes are on no device: {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    return tuple((label, tuple(sorted((*nodes, *more)))) for (label, nodes), more in zip(given, added, strict=True))


__all__ = ["expert"]
