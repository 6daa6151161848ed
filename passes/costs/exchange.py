"""What it costs a group of devices to bring parts together, on the links that their messages cross.

A collective is done in steps; in each of them every member of every group passes a part on, and all of these messages cross
the network at once. Of a ring (Thakur, Rabenseifner, Gropp 2005) they go to the next member; of an all-to-all each step goes
to other members, n-1 steps in all. A step is as fast as its slowest message: that of the narrowest route, or of the medium
(``Path.media``) that most messages share. So no collective is priced below the bytes that cross a medium over its bandwidth.

Where each host has several members of a group, as many rings may each carry a part of the data, the next leaving each host by
its next member (as NCCL's do): devices with network cards of their own then use all of these. That is done where it is faster.

Seconds of s steps that each pass on ``part`` bytes, x = s part in all, over a link of bandwidth B and latency L:

    start + s L + x / B + switch x / (x + knee),    knee = switch / (1 / small - 1 / B)

The last term says that libraries pass small messages on by a protocol of less latency and less bandwidth (NCCL's LL and LL128
beside Simple): near x = 0 a byte costs 1 / ``small``, and much data costs ``switch`` seconds more than x / B. ``start``,
``switch`` and ``small`` are 0 unless the link states them; so is the term.

Gradients are summed in buckets (Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3), which pay the latency once. In each
stage a sum begins in the stage's own last backward pass of a step, where that has made the last gradient of the bucket, and
travels beside the rest of the pass, one sum after the other. What is left when the pass ends is exposed: it comes before the
stage's update, which begins right behind the pass. How much of a pass hides sums is a fact of the device
(``DeviceType.beside``): on cores, which compute and exchange by turns, none of it. ``hidden`` counts both for stages of any
form. A stage that ends its last pass early updates its weights while others still work; the simulation of the rows
(``passes.timeline``) shows that, and nothing else depends on the stage's place in the pipeline.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from passes.costs.network import Network, Path

BUCKET = 25 << 20
"""Bytes of gradients that are summed together at most: as PyTorch's data parallel training has it."""
LAST = 1 << 20
"""Bytes of the bucket whose sum begins last, with nothing left to hide behind, and of the first, until which links are idle.
Of less, latency would be most of its seconds (``tests.bench.data_parallel``)."""
MOST_PAIRS = 1 << 10
"""Pairs of members whose routes are all looked at; of more, one for each pair of classes of devices that can be exchanged."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one collective at a time by all groups. ``bandwidth``: of what a member passes on while all others do; ``small``: the
    least of the links' bandwidths for small messages, 0 for none. Bytes per second; seconds. ``media``: what the bandwidth
    would be if each alone limited it; of no account where two speeds are compared."""

    bandwidth: float
    latency: float = 0.0
    start: float = 0.0
    small: float = 0.0
    switch: float = 0.0
    media: tuple[tuple[str, float], ...] = field(default=(), compare=False)

    def seconds(self, steps: int, part: float) -> float:
        """Of so many steps, each of which waits for ``part`` bytes."""
        moved = steps * part
        seconds = self.start + steps * self.latency + moved / self.bandwidth
        if self.switch and moved and 0 < self.small < self.bandwidth:
            knee = self.switch / (1 / self.small - 1 / self.bandwidth)
            seconds += self.switch * moved / (moved + knee)
        return seconds

    def reduce_seconds(self, members: int, size: float) -> float:
        """Of an all-reduce of a gradient of ``size`` bytes: its part of a bucket (``BUCKET``), full but for what is larger."""
        whole = max(size, BUCKET)
        return self.seconds(2 * (members - 1), whole / members) * size / whole

    def served_seconds(self, size: float) -> float:
        """Of the same sum where one member makes it (``through``): all gradients go there at once, and the sum comes back."""
        whole = max(size, BUCKET)
        return self.seconds(2, whole) * size / whole


def buckets(sizes: Sequence[float]) -> list[list[int]]:
    """Gradients that are summed together, by number; ``sizes``: bytes, in the order in which the backward pass makes them.

    They are filled from the end: the last holds at most ``LAST`` bytes, each before it at most twice as many as the next may,
    none more than ``BUCKET``, nor ``LAST`` more than all gradients before it, but for a bucket of one gradient. So the first
    is as small as the last, and each of those behind it at most about as large as what links have to do before it."""
    found: list[list[int]] = []
    held, room, before = 0.0, LAST / 2, math.fsum(sizes)
    for number in reversed(range(len(sizes))):
        before -= sizes[number]
        if not found or held + sizes[number] > min(room, LAST + before):
            found.append([])
            held, room = 0.0, min(2 * room, BUCKET)
        found[-1].append(number)
        held += sizes[number]
    return [bucket[::-1] for bucket in reversed(found)]


def waiting_bytes(alone: Iterable[float], summed: Iterable[float]) -> float:
    """The most bytes of gradients of one microbatch that are alive beside the sums over the microbatches, as its backward pass
    ends. Gradients that no other device adds to (``alone``) are added to their sums then, all at once; those ``summed`` with
    other devices as soon as their bucket is full, so one bucket of them waits at a time."""
    summed = list(summed)
    return math.fsum(alone) + min(math.fsum(summed), max([BUCKET, *summed]))


class GradientSum(NamedTuple):
    """The sum of one gradient over the devices of a stage. ``made``: seconds of sums that a backward pass can hide before it
    has made the gradient (``DeviceType.beside``); ``size``: its bytes; ``seconds``: of the sum, its part of a bucket."""

    made: float
    size: float
    seconds: float


def hidden(sums: Iterable[Sequence[GradientSum]], backward: float) -> float:
    """Seconds of sums of gradients that travel beside the last backward pass of a step, which can hide ``backward`` seconds.
    ``sums``: those over one set of devices each, which share buckets, in the order of the ops that read the weights first; of
    gradients made at one time the later op's comes first.

    Where the order of work runs gradients of values and of weights apart (I and W), the sums travel beside the last W, which
    takes a part p of the pass. With gradients made at as large parts of it as of the whole, they hide at least p times as much
    (the minimum over k of the sums before bucket k and what is left of the pass behind it is concave in the length of the pass,
    and 0 at 0): ``hidden_beside``."""
    begun = []
    for along in sums:
        rows = sorted(reversed(along), key=lambda one: one.made)
        for bucket in buckets([one.size for one in rows]):
            begun.append((rows[bucket[-1]].made, math.fsum(rows[number].seconds for number in bucket)))
    return max(0.0, math.fsum(seconds for _, seconds in begun) - exposed(sorted(begun), backward))


def hidden_beside(seconds: float, part: float) -> float:
    """Of ``seconds`` that the whole backward pass hides, those that a ``part`` of it hides at least (``hidden``)."""
    return seconds * min(max(part, 0.0), 1.0)


def exposed(sums: Iterable[tuple[float, float]], end: float) -> float:
    """Seconds from the ``end`` of a backward pass to that of the last of its ``sums``: when each may begin, counted from the
    begin of the pass, and its seconds, in the order in which they are done."""
    done = 0.0
    for ready, seconds in sums:
        done = max(done, ready) + seconds
    return max(0.0, done - end)


def rings(net: Network, groups: Sequence[Sequence[str]], free: Container[str] = ()) -> Speed:
    """Of collectives in which each member passes on to the next of its group, in all groups at once. What passes between two
    devices of ``free`` costs nothing. Raises Unreachable."""
    one = _speed(net, _paths(net, _around(groups), free), 1)
    blocks = [[list(block) for _, block in itertools.groupby(group, net.host)] for group in groups]
    rails = len(blocks[0][0])
    if rails == 1 or any(len(own) == 1 or any(len(block) != rails for block in own) for own in blocks):
        return one
    turned = [[name for block in own for name in (*block[by:], *block[:by])] for by in range(rails) for own in blocks]
    several = _speed(net, _paths(net, _around(turned), free), 1, rails)
    return several if several.bandwidth > one.bandwidth else one


def exchanges(net: Network, groups: Sequence[Sequence[str]], free: Container[str] = ()) -> Speed:
    """The same of collectives in which each member gives a part to every other of its group, one in each step."""
    steps = max(len(groups[0]) - 1, 1)
    if len(groups) * len(groups[0]) ** 2 <= MOST_PAIRS:
        pairs = (pair for group in groups for pair in itertools.permutations(group, 2))
        return _speed(net, _paths(net, pairs, free), steps)
    paths, times = list[Path](), list[int]()
    for group in groups:
        for pair, count in _by_host(net, group) or _by_class(net, group):
            route = _paths(net, [pair], free)
            paths += route
            times += [count] * len(route)
    return _speed(net, paths, steps, times=times)


def _by_host(net: Network, group: Sequence[str]) -> list[tuple[tuple[str, str], int]]:
    """As ``_by_class``, of a group with the same devices of four hosts or more that can be exchanged: all pairs inside a host,
    and those to the next host as often as there are others. Exchanging hosts exchanges their routes, so a medium of one host,
    or of all, is crossed by as many. Empty for other groups, where names of links decided between routes, and where the next
    host and the next but one are reached over different media, as where each pair of hosts has one of its own."""
    hosts: dict[str, list[str]] = {}
    for name in group:
        hosts.setdefault(net.host(name), []).append(name)
    own = list(hosts.values())
    if len(own) < 4 or len({tuple(sorted(map(net.place, names))) for names in own}) > 1:
        return []
    around = [
        [pair for one, two in zip(own, own[by:] + own[:by], strict=True) for pair in itertools.product(one, two)]
        for by in (1, 2)
    ]
    found = [(pair, 1) for names in own for pair in itertools.permutations(names, 2)]
    found += [(pair, len(own) - 1) for pair in around[0]]
    if any(net.is_named(*pair) for pair, _ in found):
        return []
    crossing = [Counter(name for pair in pairs for name, _ in net.path(*pair).media) for pairs in around]
    return found if crossing[0] == crossing[1] else []


def _by_class(net: Network, group: Sequence[str]) -> Iterator[tuple[tuple[str, str], int]]:
    """Pairs of different members whose routes stand for those of all pairs, and of how many each: of two classes of devices
    that can be exchanged one pair stands for all, where each of the other routes occupies the same media."""
    alike: dict[int, list[str]] = {}
    for name in group:
        alike.setdefault(net.class_of(name), []).append(name)
    for sources, targets in itertools.product(alike.values(), repeat=2):
        inside = sources is targets
        pairs = [(one, two) for one in sources[:2] for two in targets[: 2 + inside] if one != two]
        count = len(sources) * (len(targets) - inside)
        if len({net.path(*pair).media for pair in pairs}) == 1:
            yield pairs[0], count
        else:
            yield from (((one, two), 1) for one in sources for two in targets if one != two)


def through(net: Network, groups: Sequence[Sequence[str]], place: int, free: Container[str] = ()) -> Speed:
    """Of collectives in which every other member of a group gives all of its tensor to the member at ``place``, or gets one
    from there, all at once: of each of these messages. They share that member's port. Raises Unreachable."""
    speeds = []
    for inward in (True, False):
        pairs = [(other, group[place]) if inward else (group[place], other) for group in groups for other in group]
        paths = _paths(net, pairs, free)
        one = _speed(net, paths, 1)
        own = [path.hops[-1 if inward else 0][0] for path in paths]  # a device uses one of its links at a time
        ports = [max(net.links[link].bandwidth for link in own) * len(groups) / len(own)] if own else []
        crossing = Counter(hop for path in paths for hop in path.hops)
        links = (net.links[hop[0]].bandwidth / count for hop, count in crossing.items())
        speeds.append(replace(one, bandwidth=min([one.bandwidth, *ports, *links])))
    return max(speeds, key=lambda speed: speed.seconds(1, BUCKET))


def _around(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    return (pair for group in groups for pair in zip(group, [*group[1:], *group[:1]], strict=True))


def _speed(net: Network, paths: Sequence[Path], steps: int, rails: int = 1, times: Sequence[int] = ()) -> Speed:
    """Of each message when those of all ``paths`` are sent in so many steps, each in ``rails`` parts on paths of their own.
    ``times``: how many messages go by each path, one unless given."""
    if not paths:
        return Speed(math.inf)
    crossing: dict[str, int] = {}
    capacity: dict[str, float] = {}
    for path, count in zip(paths, times or [1] * len(paths), strict=True):
        for name, bandwidth in path.media:
            crossing[name] = crossing.get(name, 0) + count
            capacity[name] = bandwidth
    shared = {name: steps * rails * bandwidth / crossing[name] for name, bandwidth in capacity.items()}
    if rails == 1:
        alone = min(path.bandwidth for path in paths)
    else:
        entered = Counter(hop for path in paths for hop in path.hops)
        alone = min(rails * net.links[hop[0]].bandwidth / count for hop, count in entered.items())
        alone = min(alone, min(net.port(path.source).bandwidth for path in paths))  # a device sends on one link at a time
    return Speed(
        min(alone, min(shared.values(), default=math.inf)),
        max(path.latency for path in paths),
        max(path.start for path in paths),
        min((path.small for path in paths if path.small), default=0.0),
        max(path.switch for path in paths),
        tuple(sorted(shared.items())),
    )


def _paths(net: Network, pairs: Iterable[tuple[str, str]], free: Container[str]) -> list[Path]:
    return [net.path(one, two) for one, two in pairs if one != two and not (one in free and two in free)]
