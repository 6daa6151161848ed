"""Which shares to try on a mesh of unequal devices: in proportion to how fast the model runs on each.

A device type has the seconds that all ops of the model take on it by the roofline, their overheads aside, which no sharding
divides. The speed along an axis is that of all devices at one place of it, together. Shares are those speeds in small whole
numbers, at several scales. Of these the few best go to the search, by an estimate: an op of which some dimension is cut in
whole (a factor of its rule that the sum of the shares divides) takes as long as the member that takes longest for its share;
any other as long as it takes whole on the slowest device. The estimate only chooses what is searched; what a plan costs is
``build``'s to say."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ir.diagnostics import UsageError
from ir.facets import Cost, Time
from ir.layout_rules import rules
from ir.module import Module
from ir.shares import Shares, equal
from ir.topology import Topology
from passes.model.op_time import op_seconds

Along = tuple[Shares, ...]
"""Shares along each axis; empty where all are equal."""
EQUAL = "equal"
MOST_TRIED = 3
"""Unequal shares that are searched, beside equal ones."""
SCALES = tuple(half / 2 for half in range(2, 17))
POWERS = (1.0, 0.75, 0.5, 0.25)
"""Of the speeds: shares less unequal than these may divide what others do not."""
LARGEST = 64
"""Of two speeds, beyond which shares would leave the slower device next to nothing."""
MOST = 1000


def read_shares(text: str, sizes: Sequence[int] = ()) -> Along:
    """``3,1`` or ``3,1x1,1``: the shares of each member along each axis, on a mesh of ``sizes`` where these are known.
    Raises UsageError."""
    axes = [part.split(",") for part in text.lower().split("x")]
    if not all(_is_share(share) for axis in axes for share in axis):
        hint = f"a number from 1 to {MOST} for each member along an axis"
        raise UsageError(f"shares is '{text}', expected '{EQUAL}' or shares such as 3,1 or 3,1x1,1", where="shard", hint=hint)
    found = tuple(tuple(map(int, axis)) for axis in axes)
    if sizes and tuple(map(len, found)) != tuple(sizes):
        mine, given = ("x".join(map(str, of)) for of in (map(len, found), sizes))
        raise UsageError(f"shares {text} are for a mesh of {mine}, and the mesh is {given}", where="shard")
    return found


def _is_share(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 5 and 0 < int(text) <= MOST


def lowest(along: Along) -> Along:
    """In lowest terms; empty where all are equal."""
    found = tuple(tuple(share // math.gcd(*axis) for share in axis) for axis in along)
    return found if any(max(axis) > 1 for axis in found) else ()


def shares_text(along: Along) -> str:
    """``3:1``, of several axes ``3:1 x 1:1``."""
    return " x ".join(":".join(map(str, axis)) for axis in along) or EQUAL


class Speeds:
    """How fast a model runs on the types of a topology."""

    def __init__(self, module: Module, topology: Topology) -> None:
        self.types = topology.types
        self.devices = topology.devices
        self.work: dict[frozenset[int], list[float]] = {}  # seconds by type, of ops whose factors have these sizes
        counts: Counter[object] = Counter()
        kept = {}
        for op, rule in rules(module, module.entry):
            cost = op.facet(Cost)
            if cost is not None:
                sizes = frozenset(factor.size for factor in rule.shardable if factor.divided) if rule else frozenset()
                counts[op.name, op.facets, sizes] += 1
                kept[op.name, op.facets, sizes] = op
        for key, op in kept.items():
            row = self.work.setdefault(key[2], [0.0] * len(self.types))
            for number, type_ in enumerate(self.types):
                row[number] += counts[key] * max(0.0, op_seconds(op, type_) - (0.0 if op.facet(Time) else type_.overhead))

    def candidates(self, sizes: Sequence[int], uneven: bool = False, most: int = MOST_TRIED) -> tuple[Along, ...]:
        """Shares to try on a mesh over the first devices: equal ones, then the best others, if devices differ in type."""
        numbers = {type_.name: number for number, type_ in enumerate(self.types)}
        members = [numbers[device.type] for device in self.devices[: math.prod(sizes)]]
        if len(set(members)) == 1 or not self.work:
            return ((),)
        options = [list(self.along(sizes, axis, members)) for axis in range(len(sizes))]
        equally = self.estimate(tuple(map(equal, sizes)), members, uneven)
        found = dict.fromkeys(lowest(along) for along in itertools.product(*map(dict.fromkeys, options)))
        found.pop((), None)
        ranked = sorted((self.estimate(along, members, uneven), along) for along in found)
        return ((), *(along for seconds, along in ranked[:most] if seconds < equally))

    def along(self, sizes: Sequence[int], axis: int, members: Sequence[int]) -> Iterator[Shares]:
        """Shares along one axis, in proportion to the speed of all members at each place, at several scales."""
        stride = math.prod(sizes[axis + 1 :])
        speeds = [0.0] * sizes[axis]
        for number, type_ in enumerate(members):
            seconds = math.fsum(row[type_] for row in self.work.values())
            speeds[number // stride % sizes[axis]] += 1.0 / seconds if seconds > 0 else 0.0
        least = min(speeds)
        if not least > 0 or max(speeds) / least > LARGEST:
            yield (1,) * sizes[axis]
            return
        for power, scale in itertools.product(POWERS, SCALES):
            yield tuple(math.floor(scale * (speed / least) ** power + 0.5) for speed in speeds)

    def estimate(self, along: Along, members: Sequence[int], uneven: bool) -> float:
        """Seconds of the ops, with these shares."""
        shares = [math.prod(place) for place in itertools.product(*along)]
        whole = sum(shares)
        total = 0.0
        for sizes, row in self.work.items():
            if any(size % whole == 0 or (uneven and size >= whole) for size in sizes):
                total += max(row[type_] * share / whole for type_, share in zip(members, shares, strict=True))
            else:
                total += max(row[type_] for type_ in members)
        return total


__all__ = ["EQUAL", "Along", "Speeds", "lowest", "read_shares", "shares_text"]
