"""What is searched when a language model decodes on unlike devices: a chain of units, in stages that several devices share.

A plan has stages, each a run of units on some devices, which each hold all of it; sequences in G *groups* of b, all of which
step in turn; and of each stage the groups that each of its devices serves, whose caches stay there. Of a stage s, device d with
g of the G groups and t seconds for a step of one of them:

- period(s) = max over its devices of g t / G, seconds of the stage per step of a group;
- path(s) = max over its devices of t, plus the hop to the next stage;
- a device holds weights(s) + g b caches(s) <= its memory, g >= 1.

    value = max(max over stages of period(s), sum over stages of path(s) / G)    seconds per step of a group
    tokens per second = b / value

The second term is the latency of one group: with too few of them in flight devices wait. Devices of one type are exchangeable;
with devices of several types the g that minimise a period are in proportion to speed, up to whole groups and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import Floats


@dataclass(frozen=True)
class Decoding:
    """``batches``: sequences of a group that a plan may choose from. ``seconds[b, type, unit]``: of a step of a group of
    ``batches[b]``, infinite where the type cannot run the unit. ``weights[unit]``: bytes; ``caches[unit]``: bytes of one
    sequence. ``hops[b, unit]``: seconds from the stage before to one that begins with ``unit``, ``hops[b, 0]`` from the last
    stage back to the first. ``counts``, ``memory``: devices of each type, and bytes of one of them (infinite: no limit)."""

    batches: tuple[int, ...]
    seconds: Floats
    weights: Floats
    caches: Floats
    hops: Floats
    counts: tuple[int, ...]
    memory: tuple[float, ...]
    groups: tuple[int, int] = (1, 256)
    """The fewest and the most groups that a plan may choose."""

    @property
    def units(self) -> int:
        return len(self.weights)

    def runs(self, values: Floats) -> Floats:
        """``[.., i, j]``: the sum of values of units i .. j - 1; 0 where j <= i."""

        def sums(of: Floats) -> Floats:
            up_to = np.concatenate([np.zeros((*of.shape[:-1], 1)), np.cumsum(of, axis=-1)], axis=-1)
            return np.asarray(np.maximum(up_to[..., None, :] - up_to[..., :-1, None], 0.0))

        never = np.isinf(values)
        found = sums(np.where(never, 0.0, values))
        return np.where(sums(never.astype(float)) > 0, np.inf, found) if never.any() else found

    def sets(self, batch: int) -> Floats:
        """``[type, i, j]``: of how many groups a device of a type holds the caches beside the weights of units i .. j - 1, at
        most ``groups[1]``; negative where not even the weights fit."""
        room = np.array(self.memory)[:, None, None] - self.runs(self.weights)[None]
        need = self.batches[batch] * self.runs(self.caches)[None]
        with np.errstate(divide="ignore", invalid="ignore"):
            held = np.where(need > 0, np.floor(room / need), np.inf)
        return np.where(room < 0, -1.0, np.minimum(held, self.groups[1]))


@dataclass(frozen=True)
class SharedStage:
    """Units ``first .. behind - 1`` on ``devices`` of each type. ``shares``: of each type the groups of each of its devices."""

    first: int
    behind: int
    devices: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class DecodingPlan:
    """``batch``: sequences of a group; ``value``: seconds per step of a group; no plan has more than ``bound`` tokens per
    second."""

    stages: tuple[SharedStage, ...]
    batch: int
    groups: int
    value: float
    bound: float = math.inf

    @property
    def tokens_per_second(self) -> float:
        return self.batch / self.value

    @property
    def gap(self) -> float:
        """Relative distance of the bound."""
        return self.bound / self.tokens_per_second - 1


def shared(problem: Decoding, stages: Sequence[SharedStage], batch: int, groups: int) -> DecodingPlan | None:
    """The plan of these stages with the best shares, ``batch`` being a number of ``problem.batches``; None where caches do not
    fit."""
    seconds, sets = problem.runs(problem.seconds[batch]), problem.sets(batch)
    periods, path, found = [0.0], 0.0, []
    for stage in stages:
        run = stage.first, stage.behind
        each = [
            (float(seconds[kind, run[0], run[1]]), int(sets[kind, run[0], run[1]]), kind)
            for kind, count in enumerate(stage.devices)
            for _ in range(count)
        ]
        shares = dealt([one for one, _, _ in each], [most for _, most, _ in each], groups)
        if shares is None:
            return None
        periods.append(max(share * one for share, (one, _, _) in zip(shares, each, strict=True)) / groups)
        used = [one for share, (one, _, _) in zip(shares, each, strict=True) if share]
        path += max(used) + float(problem.hops[batch, stage.first])
        by_kind = tuple(tuple(s for s, one in zip(shares, each, strict=True) if one[2] == k) for k in range(len(stage.devices)))
        found.append(SharedStage(*run, stage.devices, by_kind))
    return DecodingPlan(tuple(found), problem.batches[batch], groups, max(*periods, path / groups))


def dealt(seconds: Sequence[float], most: Sequence[int], groups: int) -> list[int] | None:
    """The groups of each device, ``most`` at most, so that the largest of groups x seconds is least; None where they hold too
    few together."""
    shares = [0] * len(seconds)
    for _ in range(groups):
        free = [device for device in range(len(seconds)) if shares[device] < most[device] and seconds[device] < math.inf]
        if not free:
            return None
        chosen = min(free, key=lambda device: ((shares[device] + 1) * seconds[device], device))
        shares[chosen] += 1
    return shares


def vectors(counts: Sequence[int]) -> NDArray[np.int64]:
    """All numbers of devices of each type up to ``counts``, in mixed radix: the difference of the numbers of two vectors, the
    second nowhere greater, is the number of their difference."""
    return np.stack([axis.ravel() for axis in np.indices([count + 1 for count in counts])], axis=1).astype(np.int64)


__all__ = ["Decoding", "DecodingPlan", "SharedStage", "dealt", "shared", "vectors"]
