"""Which shares to try on a mesh of unequal devices: in proportion to how fast the model runs on each.

A device type has the seconds that all ops of the model take on it by the roofline, in training with their gradients, their
overheads aside, which no sharding divides. The speed along an axis is that of all devices at one place of it, together. Shares
are those speeds in small whole numbers, at several scales; on a mesh of one axis also the samples of a batch, dealt out so that
the device that takes longest for its own takes least, or as evenly as they go.

Of these the few best go to the search, in training those that divide the samples before others. They are compared by an
estimate: an op takes as long as the member that takes longest for its part of a factor of the op's rule, the best one, in
whole elements; where none is long enough, as long as it takes whole on the slowest device. In training on many devices, shares
that do not divide the samples cut a factor only if their sum divides it (``FEW_UNLIKE``). Those that are not quicker than
equal shares are left out. What members exchange is not in the estimate, and those that divide the samples exchange little:
where equal shares do not divide them, the best that do are searched all the same. The estimate only chooses what is searched;
what a plan costs is ``build``'s to say. What no plan is below is ``least``: each op divided among all devices as their speeds
are, or on a mesh as one of its factors may be cut there (``Cuts``).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ir.core.facets import Cost, Time
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.outcomes import TIGHT
from ir.core.shares import Shares, equal, nested_cut, none_empty
from ir.core.topology import Device, DeviceType, Topology
from ir.layout_rules import rules
from ir.verifier.machines import MOST_SHARE
from passes.costs.learning import learning_seconds, samples_of
from passes.costs.op_time import dtype_of, fuses, in_training, least_seconds, may_fuse, op_seconds
from passes.meshes.mesh import Member, foremost_members
from passes.meshes.notation import Along, lowest
from passes.partition.layouts.problem.problem import Floats
from passes.stages.bounds import node_weights, prices
from passes.stages.problem import Kind, Problem, precedence

MOST_TRIED = 3
"""Unequal shares that are searched, beside equal ones."""
MOST_DEALT = 2
"""The same in training, where some divide the samples of a batch; and of such, where equal shares do not."""
SCALES = tuple(half / 2 for half in range(2, 17))
POWERS = (1.0, 0.75, 0.5, 0.25)
"""Of the speeds: shares less unequal than these may divide what others do not."""
FEW_UNLIKE = 8
"""Devices up to which a training step may have shares that divide neither samples nor all of a factor. Of more there are many
meshes: with them resnet101 on 28 devices of three types took 43 s and was proven within 16 %, without 21 s, within 0.05 %."""
HALF = 0.5
"""Of an element: with less the smallest share of a factor is taken for empty, which is about when it is."""
LARGEST = 64
"""Of two speeds, beyond which shares would leave the slower device next to nothing."""


@dataclass(slots=True)
class Cuts:
    """How an op may be cut along the axes of a mesh, which have the shares ``along``, among ``members``, of each type those
    with the largest parts."""

    along: Along
    members: Sequence[Member]
    known: dict[frozenset[int], list[dict[str, float]]] = field(default_factory=dict)
    pieces: dict[tuple[int, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)

    def parts(self, sizes: frozenset[int]) -> list[dict[str, float]]:
        """Of every way to cut an op whose factors have these sizes, by type the largest part that a member has; ways that leave
        no type less than another does are left out."""
        if sizes not in self.known:
            each = ([self.piece(*cut) for cut in groups] for groups in self.groupings(sizes))
            found = dict.fromkeys(tuple(self.largest(pieces).items()) for pieces in each if all(pieces))
            ways = [dict(parts) for parts in found]
            self.known[sizes] = [way for way in ways if not any(_less(other, way) for other in ways)]
        return self.known[sizes]

    def groupings(self, sizes: frozenset[int]) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
        """The factors that axes cut, each as its size and its axes, one inside the other. Axes that cut factors of one size cut
        the same or different ones."""
        count = len(self.along)
        factors = [(0, 0), *itertools.product(sorted(sizes), range(count))]
        for cut in itertools.product(factors, repeat=count):
            groups: dict[tuple[int, int], tuple[int, ...]] = {}
            for axis, factor in enumerate(cut):
                if factor[0]:
                    groups[factor] = (*groups.get(factor, ()), axis)
            yield [(size, axes) for (size, _), axes in groups.items()]

    def piece(self, size: int, axes: tuple[int, ...]) -> tuple[float, ...]:
        """Of each member its part of a factor that these axes cut; empty where a part would be."""
        if (size, axes) not in self.pieces:
            cut = [self.along[axis] for axis in axes]
            members = self.members if none_empty(size, cut) else ()
            self.pieces[size, axes] = tuple(
                nested_cut(size, ((self.along[axis], member.place[axis]) for axis in axes))[1] / size for member in members
            )
        return self.pieces[size, axes]

    def largest(self, pieces: Sequence[tuple[float, ...]]) -> dict[str, float]:
        """By type, the largest part of the op that a member has, of whose factors members have these pieces."""
        found: dict[str, float] = {}
        for number, member in enumerate(self.members):
            part = math.prod(piece[number] for piece in pieces)
            found[member.type.name] = max(part, found.get(member.type.name, 0.0))
        return found


class Speeds:
    """How fast a model runs on the types of a topology. ``work[sizes]``: seconds by type of the ops whose factors have these
    sizes, ``seconds`` of all ops; ``floors[sizes]``: the least seconds by type of each kind of op, times how often it is
    there, of those whose factors of any kind have these sizes."""

    def __init__(self, module: Module, topology: Topology, *, training: bool = False) -> None:
        self.types = {type_.name: type_ for type_ in topology.types}
        self.numbers = {name: number for number, name in enumerate(self.types)}
        self.devices, self.samples, self.training = topology.devices, samples_of(module.entry), training
        self.work: dict[frozenset[int], list[float]] = {}
        floors: dict[frozenset[int], list[list[float]]] = {}
        counts: Counter[tuple[object, frozenset[int], frozenset[int]]] = Counter()
        kept: dict[tuple[object, frozenset[int], frozenset[int]], tuple[int, Op]] = {}
        for index, (op, rule) in enumerate(rules(module, module.entry)):
            if op.facet(Cost) is not None:
                factors = rule.shardable if rule else ()
                sizes = frozenset(factor.size for factor in factors if factor.divided)
                every = frozenset(factor.size for factor in factors)
                alike = op.name, op.facets, dtype_of(op)
                counts[alike, sizes, every] += 1
                kept[alike, sizes, every] = index, op
        passes = [learning_seconds(module, type_) for type_ in topology.types] if training else []
        for key, (index, op) in kept.items():
            row = self.work.setdefault(key[1], [0.0] * len(topology.types))
            gradients = _gradients(op) if training else 0
            floor: list[float] = []
            floors.setdefault(key[2], []).append(floor)
            for number, type_ in enumerate(topology.types):
                whole = passes[number][index].both if training else op_seconds(op, type_)
                start = (in_training(type_) if training else type_).overhead
                overhead = 0.0 if op.facet(Time) else start * (2 if gradients else 1)
                row[number] += counts[key] * max(0.0, whole - overhead)
                fused = not training and may_fuse(op) and fuses(type_)
                floor.append(0.0 if fused else counts[key] * _floor(op, type_, gradients, training))
        self.floors: dict[frozenset[int], Floats] = {sizes: np.array(rows) for sizes, rows in floors.items()}
        self.seconds = [math.fsum(column) for column in zip(*self.work.values(), strict=True)]
        self.tried: dict[object, tuple[Along, ...]] = {}

    def members(self, devices: Sequence[Device]) -> list[int]:
        """The number of the type of each device."""
        return [self.numbers[device.type] for device in devices]

    def least(self, devices: Sequence[Device], along: Along = ()) -> float:
        """Seconds of a run that no plan on these devices is below; ``along``: on the mesh of them with these shares."""
        members = self.members(devices)
        found = math.fsum(_together([row[number] for number in members]) for rows in self.floors.values() for row in rows)
        if not along:
            return found
        places = itertools.product(*(range(len(axis)) for axis in along))
        every = (Member(place, self.types[device.type]) for device, place in zip(devices, places, strict=True))
        cuts = Cuts(along, foremost_members(every, along))
        cut = 0.0
        for sizes, rows in self.floors.items():
            longest = [
                np.max([rows[:, self.numbers[type_]] * part for type_, part in parts.items()], axis=0)
                for parts in cuts.parts(sizes)
            ]
            cut += float(np.min(longest, axis=0).sum())
        return max(found, cut * (1 - TIGHT))

    def spread(self) -> float:
        """Seconds of a run that no plan is below, in whatever stages, on meshes or not: all ops spread evenly over all devices,
        at the prices of a second of each type for which this is most (``passes.stages.bounds.prices``)."""
        count = Counter(device.type for device in self.devices)
        used = [name for name in self.types if count[name]]
        rows = [row for rows in self.floors.values() for row in rows]
        if not rows:
            return 0.0
        seconds = np.array(rows, np.float64)[:, [self.numbers[name] for name in used]].T
        kinds = tuple(Kind(name, tuple(one.name for one in self.devices if one.type == name)) for name in used)
        names, none = tuple(map(str, range(len(rows)))), np.zeros(len(rows), np.int64)
        edges = precedence(names, len(kinds), [() for _ in names])
        problem = Problem(names, kinds, seconds, live=none, weight_bytes=none[:0], weight_readers=(), **edges)
        price = prices(problem)
        return float(node_weights(problem, price).sum() / (price @ [count[name] for name in used])) * (1 - TIGHT)

    def candidates(self, sizes: Sequence[int], most: int = MOST_TRIED, devices: Sequence[Device] = ()) -> tuple[Along, ...]:
        """Shares to try on a mesh over ``devices`` (the first ones unless given): equal ones, then the best others, if devices
        differ in type; of one type in training, the samples dealt out where they cannot be cut equally."""
        members = self.members(devices or self.devices[: math.prod(sizes)])
        key = tuple(sizes), tuple(members), most
        if key not in self.tried:
            self.tried[key] = self.best(sizes, members, most)
        return self.tried[key]

    def best(self, sizes: Sequence[int], members: Sequence[int], most: int) -> tuple[Along, ...]:
        """``candidates``, on members of these types."""
        if not self.work:
            return ((),)
        if len(set(members)) == 1:
            evenly = dealt_evenly(self.samples, sizes) if self.training else ()
            return ((), evenly) if evenly else ((),)
        options = [list(self.along(sizes, axis, members)) for axis in range(len(sizes))]
        if len(sizes) == 1:
            by_speed = dealt(self.samples, [self.seconds[number] for number in members])
            options[0] += [by_speed, dealt(self.samples, [1.0] * len(members))]
        equally = self.estimate(tuple(map(equal, sizes)), members)
        found = dict.fromkeys(lowest(along) for along in itertools.product(*map(dict.fromkeys, options)))
        found.pop((), None)
        apart = {along: self.training and not self.splits(along) for along in found}
        seconds = self.estimates([*found], members)
        ranked = [along for *_, along in sorted((apart[along], one, along) for along, one in zip(found, seconds, strict=True))]
        if self.training and ranked and not apart[ranked[0]]:
            most = min(most, MOST_DEALT)
        below = {along for along, one in zip(found, seconds, strict=True) if one < equally}
        chosen = [along for along in ranked[:most] if along in below]
        if not self.splits(tuple(map(equal, sizes))):
            split = [along for along in ranked if self.splits(along)][:MOST_DEALT]
            chosen = [*split, *(along for along in chosen if along not in split)][:most]
        return ((), *chosen)

    def splits(self, along: Along) -> bool:
        """Whether the samples of a batch can be cut along all axes."""
        whole = math.prod(map(sum, along))
        return self.samples % whole == 0

    def along(self, sizes: Sequence[int], axis: int, members: Sequence[int]) -> Iterator[Shares]:
        """Shares along one axis, in proportion to the speed of all members at each place, at several scales."""
        stride = math.prod(sizes[axis + 1 :])
        speeds = [0.0] * sizes[axis]
        for number, type_ in enumerate(members):
            seconds = self.seconds[type_]
            speeds[number // stride % sizes[axis]] += 1.0 / seconds if seconds > 0 else 0.0
        least = min(speeds)
        if not least > 0 or max(speeds) / least > LARGEST:
            yield (1,) * sizes[axis]
            return
        for power, scale in itertools.product(POWERS, SCALES):
            yield tuple(math.floor(scale * (speed / least) ** power + 0.5) for speed in speeds)

    def estimate(self, along: Along, members: Sequence[int]) -> float:
        """Seconds of the ops, with these shares."""
        return self.estimates([along], members)[0]

    def estimates(self, every: Sequence[Along], members: Sequence[int]) -> list[float]:
        """Seconds of the ops, with each of some shares along axes of the same sizes."""
        if not every:
            return []
        parts = np.ones((len(every), 1), np.int64)
        for shares in zip(*every, strict=True):
            parts = (parts[:, :, None] * np.array(shares)[:, None, :]).reshape(len(every), -1)
        whole, (used, of_type) = parts.sum(axis=1), np.unique(members, return_inverse=True)
        largest = np.stack([parts[:, of_type == number].max(axis=1) / whole for number in range(len(used))], axis=1)
        total = np.zeros(len(every))
        smallest = parts.min(axis=1) / whole
        few = not self.training or len(self.devices) <= FEW_UNLIKE
        may_round = np.array([few or self.splits(along) for along in every])
        for sizes, row in self.work.items():
            seconds = np.array(row)[used]
            least = np.full(len(every), seconds.max())
            for size in sizes:
                cut = (np.ceil(size * largest * (1 - TIGHT)) / size * seconds).max(axis=1)
                cuttable = (size * smallest >= HALF) & (may_round | (size % whole == 0))
                least = np.where(cuttable, np.minimum(least, cut), least)
            total += least
        return [float(one) for one in total]


def dealt(samples: int, seconds: Sequence[float]) -> Shares:
    """The samples of a batch (of a large one, equal parts of several samples), over devices that take so many ``seconds`` for
    one: one each, then each to the device that takes least with one more, which makes the largest time least. All equal where
    there are fewer than devices."""
    count = next(n for n in range(min(samples, MOST_SHARE), 0, -1) if samples % n == 0)
    if count < len(seconds) or not all(one > 0 for one in seconds):
        return equal(len(seconds))
    counts = [1] * len(seconds)
    queue = [(2 * one, place) for place, one in enumerate(seconds)]
    heapq.heapify(queue)
    for _ in range(count - len(seconds)):
        _, place = queue[0]
        counts[place] += 1
        heapq.heapreplace(queue, ((counts[place] + 1) * seconds[place], place))
    return tuple(counts)


def dealt_evenly(samples: int, sizes: Sequence[int]) -> Along:
    """The same over equal devices in a mesh of one axis; no shares where the batch is cut equally, and on several axes."""
    return lowest((dealt(samples, [1.0] * sizes[0]),)) if len(sizes) == 1 else ()


def _less(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether one way to cut leaves no type more than another does, and one less."""
    return one != other and all(part <= other[type_] for type_, part in one.items())


def _gradients(op: Op) -> int:
    """Flops of both gradients."""
    cost = op.facet(Cost, Cost())
    return cost.input_grad + cost.weight_grad


def _floor(op: Op, type_: DeviceType, gradients: int, training: bool) -> float:
    """Seconds that all parts of an op take together at least on devices of one type."""
    found = least_seconds(op, type_, training=training)
    return found + (least_seconds(op, type_, gradients) if gradients else 0.0)


def _together(seconds: Sequence[float]) -> float:
    """What devices take that each need so long for the whole, when all work on it and end at once."""
    if not all(seconds):
        return 0.0
    together = math.fsum(1.0 / one for one in seconds)
    return 1.0 / together if together else math.inf
