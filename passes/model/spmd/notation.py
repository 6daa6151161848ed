"""How placements are told as texts, in plans."""

from __future__ import annotations

import re

from ir.diagnostics import InvalidInput
from ir.types import Partial, Placement, Replicate, Shard

_PLACEMENT = re.compile(r"S\((\d{1,4})\)|R|P\((sum|max)\)")


def read_placements(text: str) -> tuple[Placement, ...]:
    """``S(0), R, P(sum)``. Raises InvalidInput."""
    found: list[Placement] = []
    for part in text.split(","):
        match = _PLACEMENT.fullmatch(part.strip())
        if match is None:
            raise InvalidInput(f"'{part.strip()}' is no placement; S(dim), R or P(sum) expected", where=text)
        dim, reduction = match.groups()
        found.append(Shard(int(dim)) if dim else Partial(reduction) if reduction else Replicate())
    return tuple(found)


__all__ = ["read_placements"]
