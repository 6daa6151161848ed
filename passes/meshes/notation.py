"""How placements, shares and how gradients are synchronised are told as texts, in plans and options."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.facets import SYNCS, Sync
from ir.core.shares import Shares
from ir.core.types import Partial, Placement, Replicate, Shard
from ir.verifier.machines import MOST_SHARE
from passes.graph.faults import NoPlacement, NoShares, NoSyncMethod, SharesOfOtherMesh

Along = tuple[Shares, ...]
"""Shares along each axis; empty where all are equal."""
EQUAL = "equal"
_SERVED = re.compile(r"ps(?:\((\d{1,9})\))?")
_PLACEMENT = re.compile(r"S\((\d{1,4})\)|R|P\((sum|max)\)")


def read_placements(text: str) -> tuple[Placement, ...]:
    """``S(0), R, P(sum)``. Raises InvalidInput."""
    found: list[Placement] = []
    for part in text.split(","):
        match = _PLACEMENT.fullmatch(part.strip())
        if match is None:
            raise InvalidInput(NoPlacement(part.strip()), where=text)
        dim, reduction = match.groups()
        found.append(Shard(int(dim)) if dim else Partial(reduction) if reduction else Replicate())
    return tuple(found)


def read_sync(text: str) -> Sync:
    """``all_reduce``, ``reduce_scatter``, ``sfb``, ``ps`` or, with the place of the server, ``ps(0)``. Raises InvalidInput."""
    served = _SERVED.fullmatch(text)
    if served is not None:
        return Sync("ps", server=int(served.group(1) or -1))
    if text not in SYNCS or text == "auto":
        methods = tuple(method for method in SYNCS if method != "auto")
        raise InvalidInput(NoSyncMethod(text[:80], methods), where=text)
    return Sync(text)


def sync_text(sync: Sync) -> str:
    """What ``read_sync`` reads."""
    return f"ps({sync.server})" if sync.method == "ps" and sync.server >= 0 else sync.method


def read_shares(text: str, sizes: Sequence[int] = ()) -> Along:
    """``3,1`` or ``3,1x1,1``: the shares of each member along each axis, on a mesh of ``sizes`` where these are known.
    Raises UsageError."""
    axes = [part.split(",") for part in text.lower().split("x")]
    if not all(_is_share(share) for axis in axes for share in axis):
        raise UsageError(NoShares(text, EQUAL, MOST_SHARE), where="partition")
    found = tuple(tuple(map(int, axis)) for axis in axes)
    if sizes and tuple(map(len, found)) != tuple(sizes):
        mine, given = ("x".join(map(str, of)) for of in (map(len, found), sizes))
        raise UsageError(SharesOfOtherMesh(text, mine, given), where="partition")
    return found


def _is_share(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 5 and 0 < int(text) <= MOST_SHARE


def lowest(along: Along) -> Along:
    """In lowest terms; empty where all are equal."""
    found = tuple(tuple(share // common for share in axis) for axis in along for common in (math.gcd(*axis),))
    return found if any(max(axis) > 1 for axis in found) else ()


def shares_text(along: Along) -> str:
    """``3:1``, of several axes ``3:1 x 1:1``."""
    return " x ".join(":".join(map(str, axis)) for axis in along) or EQUAL
