"""What is searched when a language model decodes on unlike devices: a chain of units, in stages that several devices share.

A plan has stages, each a run of units on some devices, which each hold all of it; sequences in G *groups* of b, all of which
step in turn; and of each stage the groups that each of its devices serves, whose caches stay there. Of a stage s, device d with
g of the G groups and t seconds for a step of one of them:

- period(s) = max over its devices of g t / G, seconds of the stage per step of a group;
- path(s) = max over its devices of t, plus the hop to the next stage;
- a device holds memory(s) + g b caches(s) <= its memory, g >= 1.

    value = max(max over stages of period(s), sum over stages of path(s) / G)    seconds per step of a group
    tokens per second = b / value

The second term is the latency of one group: with too few of them in flight devices wait. Devices of one type are exchangeable;
with devices of several types the g that minimise a period are in proportion to speed, up to whole groups and memory.

A stream of samples is planned so, too: it has no caches and no loops (``Decoding.loops``), so paths count nothing, and a group
is one of G *turns*: of G samples that follow each other a device takes as many as it has turns. A stage of devices of one type
needs no more turns than devices.

Where links are unlike, t depends on the stages beside (``Detours``), and what devices of one type send through the links that
they share takes as long together: with m seconds of these links for a step of a group, period(s) >= m (sum of their g) / G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ir.core.outcomes import TIGHT
from passes.partition.layouts.problem.problem import Floats


@dataclass(frozen=True)
class Detours:
    """What a border between two stages costs beyond the best that each type can do. The border is on one of several *routes*:
    one for each type, between stages of that type alone, and others between any stages, each as fast as the links of some type.
    ``seconds[b, route, type, unit]``: more for a device, of a step of a group, where a stage begins or ends before ``unit``;
    ``links[..]``: of links that all devices of the type share; both 0 before the first unit and behind the last.
    ``open[route, type]``: whether a stage with a device of the type may have a border on the route; on the first ``alone`` of
    them, only if it has no device of another type."""

    seconds: Floats
    links: Floats
    open: NDArray[np.bool_]
    alone: int

    def between(self, one: Sequence[int], other: Sequence[int], batch: int) -> int:
        """The route that costs stages of so many devices of each type least."""
        kinds = [kind for kind, counts in enumerate(zip(one, other, strict=True)) if any(counts)]
        allowed = np.flatnonzero(self.open_to(np.array([one, other])).all(axis=1)).tolist()
        cost = (self.seconds[batch] + self.links[batch])[:, kinds].sum(axis=(1, 2)).tolist()
        return int(min(allowed, key=lambda route: cost[route]))

    def open_to(self, stages: NDArray[np.int64]) -> NDArray[np.bool_]:
        """``[route, stage]``: whether stages may have a border on a route; ``stages[stage, type]``: devices of each type."""
        used = stages > 0
        found = np.array(np.any(self.open[:, None] & used, axis=2), np.bool_)
        found[: self.alone] &= ~np.any(~self.open[: self.alone, None] & used, axis=2)
        return found


@dataclass(frozen=True)
class Borders:
    """What a stage costs besides its units. ``crossing[b, type, i, j]``: seconds in which units i .. j - 1 receive from others
    and send to them. ``buffers[b, i, j]``: bytes of what they receive. ``workspace[b, unit]``: bytes alive while a unit runs,
    of which a stage needs the most of its units. ``handover[type]``: seconds of each stage where there are several devices."""

    crossing: Floats
    buffers: Floats
    workspace: Floats
    handover: Floats
    detours: Detours | None = None


@dataclass(frozen=True)
class Decoding:
    """``batches``: sequences of a group that a plan may choose from, ascending. ``seconds[b, type, unit]``: of a step of a
    group of ``batches[b]``, infinite where the type cannot run the unit. ``weights[unit]``: bytes; ``caches[unit]``: bytes of
    one sequence. ``hops[b, unit]``: seconds from the stage before to one that begins with ``unit``, ``hops[b, 0]`` from the
    last stage back to the first. ``counts``, ``memory``: devices of each type, and bytes of one of them (infinite: no limit).
    ``shared``: weights of several units, each with its bytes and those units, ascending, which are not among ``weights``.
    ``stages``: exactly so many (0: any number); ``replicas``: most devices of a stage (0: any number). ``loops``: whether the
    next step of a group waits for its last one."""

    batches: tuple[int, ...]
    seconds: Floats
    weights: Floats
    caches: Floats
    hops: Floats
    counts: tuple[int, ...]
    memory: tuple[float, ...]
    groups: tuple[int, int] = (1, 256)
    """The fewest and the most groups that a plan may choose."""
    shared: tuple[tuple[float, tuple[int, ...]], ...] = ()
    borders: Borders | None = None
    stages: int = 0
    replicas: int = 0
    loops: bool = True

    @property
    def units(self) -> int:
        return len(self.weights)

    def seconds_of_runs(self, low: int, high: int) -> Floats:
        """``[type, i, j]``: seconds per token of units i .. j - 1 as a stage, no more than with any of the batches numbered
        ``low .. high``; with one batch exact, of one of several devices (one device alone hands nothing over)."""
        found = runs(self.least(self.seconds, low, high))
        if self.borders is not None:
            found = found + self.least(self.borders.crossing, low, high)
            found = found + (self.borders.handover / self.batches[high])[:, None, None]
        return found

    @property
    def detours(self) -> Detours:
        """Those of the borders; of no seconds where there are none."""
        if self.borders is not None and self.borders.detours is not None:
            return self.borders.detours
        none = np.zeros((len(self.batches), 1, len(self.counts), self.units + 1))
        return Detours(none, none, np.ones((1, len(self.counts)), np.bool_), 0)

    def least(self, values: Floats, low: int, high: int) -> Floats:
        """The least of ``values[b]`` per token, over the batches numbered ``low .. high``."""
        sizes = np.array(self.batches[low : high + 1], np.float64).reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray((values[low : high + 1] / sizes).min(axis=0))

    def memory_of_runs(self, batch: int) -> Floats:
        """``[i, j]``: bytes of units i .. j - 1 on a device, without caches."""
        found = runs(self.weights)
        for size, units in self.shared:
            one = np.zeros(self.units)
            one[list(units)] = size
            found = found + runs(one)
            for before, behind in pairwise(units):  # a run that has both holds it once
                found[: before + 1, behind + 1 :] -= size
        if self.borders is not None:
            alive = np.broadcast_to(self.borders.workspace[batch][None, :], (self.units, self.units))
            most = np.maximum.accumulate(np.triu(alive), axis=1)
            found[:, 1:] += most
            found = found + self.borders.buffers[batch]
        return found

    def sets(self, batch: int) -> Floats:
        """``[type, i, j]``: of how many groups a device of a type holds the caches beside the weights of units i .. j - 1, at
        most ``groups[1]``; negative where not even the weights fit."""
        room = np.array(self.memory)[:, None, None] - self.memory_of_runs(batch)[None]
        need = self.batches[batch] * runs(self.caches)[None]
        with np.errstate(divide="ignore", invalid="ignore"):
            held = np.where(need > 0, np.floor(room / need), np.inf)
        return np.where(room < 0, -1.0, np.minimum(held, self.groups[1]))


def runs(values: Floats) -> Floats:
    """``[.., i, j]``: the sum of values of units i .. j - 1; 0 where j <= i."""

    def sums(of: Floats) -> Floats:
        up_to = np.concatenate([np.zeros((*of.shape[:-1], 1)), np.cumsum(of, axis=-1)], axis=-1)
        return np.asarray(np.maximum(up_to[..., None, :] - up_to[..., :-1, None], 0.0))

    never = np.isinf(values)
    found = sums(np.where(never, 0.0, values))
    return np.where(sums(never.astype(float)) > 0, np.inf, found) if never.any() else found


class Devices(NamedTuple):
    """``vectors[state, type]``; ``blocks``; ``open[route, block]``; of each type how many devices are in a bundle."""

    vectors: NDArray[np.int64]
    blocks: NDArray[np.int64]
    open: NDArray[np.bool_]
    bundles: NDArray[np.int64]


class Runs(NamedTuple):
    """``seconds[type, i, j]`` per token of units i .. j - 1 on a device, ``sets`` of groups that it holds; what borders add to
    them (``problem.Detours``): ``detour`` and ``links``, both ``[route, type, unit]``."""

    seconds: Floats
    sets: Floats
    detour: Floats
    links: Floats


class Asked(NamedTuple):
    """Devices have ``seconds`` per token for all groups, and take ``need`` groups together; ``whole``: whole groups, and each
    device at least one. ``takes[type, i, j]``: the groups that a bundle of a type takes of a run, where all borders are on one
    route."""

    seconds: float
    need: float
    whole: bool
    takes: Floats


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


def shared(
    problem: Decoding, stages: Sequence[SharedStage], batch: int, groups: int, routes: Sequence[int] = ()
) -> DecodingPlan | None:
    """The plan of these stages with the best shares, ``batch`` being a number of ``problem.batches``; None where caches do not
    fit. ``routes``: of the borders; where not given, of each the one that costs its stages least."""
    size = problem.batches[batch]
    seconds, sets = size * problem.seconds_of_runs(batch, batch), problem.sets(batch)
    if problem.borders is not None and sum(sum(stage.devices) for stage in stages) == 1:
        seconds[:, 0, problem.units] -= problem.borders.handover
    periods, path, found = [0.0], 0.0, []
    detours = problem.detours
    ends = [0, *(routes or (detours.between(a.devices, b.devices, batch) for a, b in pairwise(stages))), 0]
    for stage, own in zip(stages, pairwise(ends), strict=True):
        run = stage.first, stage.behind
        more, links = (
            [values[batch, route, :, unit] for route, unit in zip(own, run, strict=True)]
            for values in (detours.seconds, detours.links)
        )
        each = [
            (float(seconds[kind, run[0], run[1]] + more[0][kind] + more[1][kind]), int(sets[kind, run[0], run[1]]), kind)
            for kind, count in enumerate(stage.devices)
            for _ in range(count)
        ]
        busy = np.maximum(*links).tolist()
        alike = sum(count > 0 for count in stage.devices) == 1
        turns = len(each) if alike and not problem.loops else groups  # alike devices of a stream have one turn each
        shares = dealt(
            [one for one, _, _ in each],
            [most for _, most, _ in each],
            turns,
            [busy[kind] for _, _, kind in each],
            stage.devices,
        )
        if shares is None:
            return None
        periods.append(max(share * one for share, (one, _, _) in zip(shares, each, strict=True)) / turns)
        periods += [
            busy[kind] * sum(share for share, one in zip(shares, each, strict=True) if one[2] == kind) / turns
            for kind in range(len(busy))
        ]
        used = [one for share, (one, _, _) in zip(shares, each, strict=True) if share]
        path += max(used) + float(problem.hops[batch, stage.first])
        by_kind = tuple(tuple(s for s, one in zip(shares, each, strict=True) if one[2] == k) for k in range(len(stage.devices)))
        found.append(SharedStage(*run, stage.devices, by_kind))
    return DecodingPlan(tuple(found), size, groups, max(*periods, path / groups if problem.loops else 0.0))


def on_one_device(problem: Decoding, batch: int) -> DecodingPlan | None:
    """The best plan of one device that holds everything, of a batch; None where there is none, or several stages are asked for.
    It has as many groups as hide the hop from the device to itself, or as fit."""
    if problem.stages > 1:
        return None
    (few, many), plans = problem.groups, list[DecodingPlan | None]()
    seconds, sets = problem.seconds_of_runs(batch, batch)[:, 0, problem.units], problem.sets(batch)[:, 0, problem.units]
    handover = problem.borders.handover if problem.borders is not None else np.zeros(len(seconds))
    for kind, one in enumerate(np.eye(len(problem.counts), dtype=np.int64).tolist()):
        step = problem.batches[batch] * float(seconds[kind]) - float(handover[kind])
        hidden = math.ceil((step + float(problem.hops[batch, 0])) / step) if problem.loops and 0 < step < math.inf else few
        groups = max(few, min(many, int(sets[kind]), hidden))
        plans.append(shared(problem, [SharedStage(0, problem.units, tuple(one))], batch, groups))
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.value, default=None)


def on_all_devices(problem: Decoding, batch: int, gap: float = 0.0) -> DecodingPlan | None:
    """The best plan, of a batch, of one stage of whose groups all devices take as many as suits their speed, slow ones maybe
    none, or one of fewer groups that is as good but for ``gap``; None where there is none, or such a stage is not asked for. In
    a time P for all groups a device that needs t for one takes P / t whole ones, or as many as it holds; a P that is best is a
    multiple of some t."""
    (few, many), counts = problem.groups, np.array(problem.counts)
    if problem.stages > 1 or 0 < problem.replicas < counts.sum():
        return None
    seconds = problem.batches[batch] * problem.seconds_of_runs(batch, batch)[:, 0, problem.units]
    sets = problem.sets(batch)[:, 0, problem.units]
    able = (sets >= 1) & np.isfinite(seconds) & (seconds > 0)
    times = np.unique(np.outer(seconds[able], np.arange(1, many + 1)))
    whole = np.minimum(np.floor(times[:, None] / seconds[able] * (1 + TIGHT)), sets[able])
    groups = np.minimum(whole @ counts[able], many)
    if not (groups >= few).any():
        return None
    path = (np.where(whole > 0, seconds[able], 0.0).max(axis=1) + problem.hops[batch, 0]) * problem.loops
    rates = np.where(groups >= few, groups / np.maximum(times, path), 0.0)
    best = int(np.argmax((groups >= few) & (rates >= rates.max() / (1 + gap))))
    return shared(problem, [SharedStage(0, problem.units, problem.counts)], batch, int(groups[best]))


def dealt(
    seconds: Sequence[float], most: Sequence[int], groups: int, links: Sequence[float] = (), sizes: Sequence[int] = ()
) -> list[int] | None:
    """The groups of each device, ``most`` at most, so that the largest of groups x seconds is least; None where they hold too
    few together. ``links``: of each device the seconds of links, for each group of one of the devices of its type, of which
    there are ``sizes``, those of one type side by side."""
    kind_of = [kind for kind, count in enumerate(sizes) for _ in range(count)] or list(range(len(seconds)))
    shares, of_kind = [0] * len(seconds), [0] * (1 + max(kind_of))
    busy = links or [0.0] * len(seconds)

    def ends(device: int) -> tuple[float, float, int]:
        own = (shares[device] + 1) * seconds[device]
        return max(own, (of_kind[kind_of[device]] + 1) * busy[device]), own, device

    for _ in range(groups):
        free = [device for device in range(len(seconds)) if shares[device] < most[device] and seconds[device] < math.inf]
        if not free:
            return None
        chosen = min(free, key=ends)
        shares[chosen] += 1
        of_kind[kind_of[chosen]] += 1
    return shares


def bundled(problem: Decoding, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each type how many devices are taken together, and how many such bundles there are, so that these have at most
    ``most`` vectors. Where stages may have no larger bundles, some devices are not used, of the slowest types first."""
    sizes, counts = [1] * len(problem.counts), list(problem.counts)
    slow = np.where(np.isinf(problem.seconds[0]), 0.0, problem.seconds[0]).sum(axis=1).tolist()
    while math.prod(count + 1 for count in counts) > most:
        kind = max(range(len(counts)), key=lambda kind: (counts[kind], slow[kind]))
        if problem.replicas and sizes[kind] >= problem.replicas:
            counts[kind] -= 1
        else:
            sizes[kind] += 1
            counts[kind] = problem.counts[kind] // sizes[kind]
    return np.array(sizes, np.int64), np.array(counts, np.int64)


def vectors(counts: Sequence[int]) -> NDArray[np.int64]:
    """All numbers of devices of each type up to ``counts``, in mixed radix: the difference of the numbers of two vectors, the
    second nowhere greater, is the number of their difference."""
    return np.stack([axis.ravel() for axis in np.indices([count + 1 for count in counts])], axis=1).astype(np.int64)
