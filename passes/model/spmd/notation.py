"""How placements, and how gradients are synchronised, are told as texts, in plans."""

from __future__ import annotations

import re

from ir.diagnostics import InvalidInput
from ir.facets import SYNCS, Sync
from ir.types import Partial, Placement, Replicate, Shard

_SERVED = re.compile(r"ps(?:\((\d{1,9})\))?")
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


def read_sync(text: str) -> Sync:
    """``all_reduce``, ``reduce_scatter``, ``sfb``, ``ps`` or, with the place of the server, ``ps(0)``. Raises InvalidInput."""
    served = _SERVED.fullmatch(text)
    if served is not None:
        return Sync("ps", server=int(served.group(1) or -1))
    if text not in SYNCS or text == "auto":
        methods = ", ".join(method for method in SYNCS if method != "auto")
        raise InvalidInput(f"'{text[:80]}' is no method of synchronisation; {methods} expected", where=text)
    return Sync(text)


def sync_text(sync: Sync) -> str:
    """What ``read_sync`` reads."""
    return f"ps({sync.server})" if sync.method == "ps" and sync.server >= 0 else sync.method


__all__ = ["read_placements", "read_sync", "sync_text"]
