"""Which devices the stages of a plan have taken so far, and what the next stage may take: the states of the outer search.

Devices of a host that can be exchanged are a *pool*, hosts that can be exchanged a *group* (``passes.costs.parts``). A state
says of each host how many devices of each pool are taken, and nothing of which ones, nor of which host of a group: so it does
not depend on the order in which a topology declares its devices. A stage takes some devices of one host, or all of several
hosts; replicas may take devices of one type of any hosts.

Where there are too many states, hosts are taken in turn (``Hosts.IN_TURN``): none is begun before the one before is full or
what is left of it stays idle. Where there are too many of these too, the devices of a host are one *line* in the order of their
pools, of which a stage takes neighbours; and at last hosts follow each other in one order as well (``Hosts.IN_ORDER``).
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ir.core.topology import Device, Topology
from passes.costs.network import Network, device_classes
from passes.costs.parts import exchangeable_hosts, ordered
from passes.graph.serving import shared_evenly
from passes.meshes.mesh import MOST_DEVICES, few

Vector: TypeAlias = tuple[int, ...]
"""Devices of each pool of a host that are taken."""
State: TypeAlias = tuple[tuple[Vector, ...], ...]
"""Of each group, what is taken of its hosts, most first."""
Take: TypeAlias = tuple[tuple[int, Vector, Vector], ...]
"""What a stage takes: of each of its hosts the group, and what is taken of it before and after."""
Groups: TypeAlias = tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
"""``[group][host][pool]``: numbers of devices."""
NO_HOST, SOME_HOSTS = 0, 1
"""Places (``Taking.places_of``) that are no host, and hosts of several groups. Others are hosts of one group."""
ONE_ORDER = "of devices of a host in one order"
ONE_KIND = "of one type"
MOST_MOVES = 1024
"""Ways to go from one state to another up to which states are as they are, unless blocks of neighbours are more."""
MOST_SPANNED = 16
"""Devices up to which replicas may be some of one host and some of the next, where hosts are taken in turn."""


class Hosts(enum.Enum):
    """In which order hosts are taken; the value: as a person reads it."""

    ANY = ""
    IN_TURN = "on one host after another"
    IN_ORDER = "on hosts in one order"


@dataclass(frozen=True, slots=True)
class Asked:
    """What stages may take. ``size``: exactly so many devices (0: any number); ``replicas``: at most, which share ``groups`` of
    a decoder evenly (0 of other models); ``stages``: their exact number, 0 for any; ``one_kind``: as meshes, devices of one
    type and memory alone."""

    size: int = 0
    replicas: int = 1
    stages: int = 0
    groups: int = 0
    one_kind: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A stage takes ``take`` in state ``source``, as a mesh, as replicas, or as either."""

    source: int
    target: int
    take: Take
    mesh: bool
    replicas: bool


@dataclass(frozen=True)
class Taking:
    """``groups[group][host][pool]``: numbers of ``devices``. ``moves`` by source, ``idle``: pairs of states of which the second
    has more taken, which stays idle; every state has a greater number than those that lead to it. ``line``: the devices of a
    pool cannot be exchanged. ``told``: what is not searched, empty if all is."""

    devices: tuple[Device, ...]
    groups: Groups
    states: tuple[State, ...]
    moves: tuple[Move, ...]
    idle: tuple[tuple[int, int], ...]
    line: bool
    told: str

    @cached_property
    def sizes(self) -> list[int]:
        """How many devices a mesh may have."""
        return sorted({size_of(move.take) for move in self.moves if move.mesh})

    def places_of(self, take: Take) -> tuple[int, int]:
        """The place of the hosts of which some was taken before, and of those of which some is left (``kernels.Moves``)."""
        full = [tuple(map(len, group[0])) for group in self.groups]
        entered = [group for group, before, _ in take if any(before)]
        left = [group for group, _, after in take if after != full[group]]
        one, other = (SOME_HOSTS if len(some) > 1 else some[0] + 2 if some else NO_HOST for some in (entered, left))
        return one, other

    @cached_property
    def apart(self) -> NDArray[np.bool_]:
        """``[left, entered]``: whether two stages, of which the first left one place and the next enters the other, are on no
        common host."""
        count = len(self.groups) + 2
        met = np.eye(count, dtype=bool)
        met[SOME_HOSTS], met[:, SOME_HOSTS] = True, True
        met[NO_HOST], met[:, NO_HOST] = False, False
        return ~met

    def signature(self, take: Take) -> object:
        """Two takes of one signature differ in nothing but names."""
        if self.line:
            return take
        return tuple(sorted((group, tuple(b - a for a, b in zip(*ends, strict=True))) for group, *ends in take))

    def hosts_of(self, state: State, take: Take) -> list[tuple[int, int]]:
        """A host (group, number) for each part of a take, the hosts of a state standing in its order."""
        free = {(group, number): taken for group, hosts in enumerate(state) for number, taken in enumerate(hosts)}
        return [self.first(free, group, before) for group, before, _ in take]

    @staticmethod
    def first(free: dict[tuple[int, int], Vector], group: int, before: Vector) -> tuple[int, int]:
        """The first host of a group of which so much is taken; it is removed."""
        found = next(host for host, taken in free.items() if host[0] == group and taken == before)
        del free[found]
        return found

    def of_hosts(self, take: Take, hosts: Sequence[tuple[int, int]]) -> list[int]:
        """The devices that a take is of these hosts."""
        return [
            device
            for (group, number), (_, before, after) in zip(hosts, take, strict=True)
            for pool, start, end in zip(self.groups[group][number], before, after, strict=True)
            for device in pool[start:end]
        ]

    def taken(self, state: State) -> list[int]:
        """Devices that are taken, the hosts of a state standing in its order."""
        return [
            device
            for group, hosts in enumerate(state)
            for number, counts in enumerate(hosts)
            for pool, count in zip(self.groups[group][number], counts, strict=True)
            for device in pool[:count]
        ]

    def realised(self, moves: Iterable[Move]) -> list[tuple[Device, ...]]:
        """The devices of stages that are taken one after the other: of hosts of which as much is taken, the last one used."""
        taken = {(group, number): zero for group, hosts in enumerate(self.states[0]) for number, zero in enumerate(hosts)}
        used = dict.fromkeys(taken, 0)
        found = []
        for turn, move in enumerate(moves, 1):
            for group, wanted in enumerate(self.states[move.source]):  # devices may have become idle meanwhile
                hosts = sorted((host for host in taken if host[0] == group), key=lambda host: taken[host], reverse=True)
                taken |= zip(hosts, wanted, strict=True)
            recent = dict(sorted(taken.items(), key=lambda item: (-used[item[0]], item[0])))
            hosts = [self.first(recent, group, before) for group, before, _ in move.take]
            found.append(tuple(self.devices[number] for number in self.of_hosts(move.take, hosts)))
            for host, (_, _, after) in zip(hosts, move.take, strict=True):
                taken[host], used[host] = after, turn
        return found


def size_of(take: Take) -> int:
    return sum(sum(after) - sum(before) for _, before, after in take)


def taking(topology: Topology, net: Network, asked: Asked) -> Taking:
    """The states of ``topology``, as fine as there are few enough."""
    found = _taking(topology, net, asked)
    return replace(found, told=", ".join(filter(None, [found.told, ONE_KIND]))) if asked.one_kind else found


def _taking(topology: Topology, net: Network, asked: Asked) -> Taking:
    devices = ordered(topology, net)
    number_of = {device.name: number for number, device in enumerate(devices)}
    groups: Groups = tuple(
        tuple(tuple(tuple(number_of[name] for name in names) for names in host) for host in group)
        for group in exchangeable_hosts(replace(topology, devices=devices))
    )
    kinds = [(device.type, topology.memory(device)) for device in devices]
    sizes = [sum(map(len, host)) for group in groups for host in group]
    lines: Groups = tuple(tuple((tuple(itertools.chain(*host)),) for host in group) for group in groups)
    unequal = any(len(group[0]) > 1 for group in groups)
    if asked.size and _straddles(sizes, asked.size):
        lines = (((tuple(itertools.chain(*(pool for group in lines for host in group for pool in host))),),),)
        steps = _Steps(lines, kinds, Hosts.IN_ORDER, asked, line=True, multiples=True)
        return _states(devices, steps, ONE_ORDER if len(device_classes(topology)) > 1 else "")
    most = max(MOST_MOVES, neighbours(sizes))
    options = [] if few(topology) else [(Hosts.ANY, groups, False), (Hosts.IN_TURN, groups, False)]
    if few(topology) or unequal:
        options.append((Hosts.IN_TURN, lines, True))
    if math.prod(len(group) + 1 for group in groups) > most:
        options = []
    for order, some, line in options:
        told = [order.value] if len(sizes) > 1 and order.value else []
        told += [ONE_ORDER] if line and unequal else []
        steps = _Steps(some, kinds, order, asked, line=line, multiples=few(topology))
        try:
            return _states(devices, steps, ", ".join(told), most)
        except TooManyMovesError:
            continue
    one = tuple((host,) for group in lines for host in group)
    steps = _Steps(one, kinds, Hosts.IN_ORDER, asked, line=True, multiples=few(topology))
    told = [Hosts.IN_ORDER.value] if len(sizes) > 1 else []
    return _states(devices, steps, ", ".join([*told, *([ONE_ORDER] if unequal else [])]))


class TooManyMovesError(Exception):
    """There are more moves than asked for."""


def neighbours(sizes: Sequence[int]) -> int:
    """About twice as many moves as there are where stages take neighbours on hosts of such sizes."""
    return sum(size * (size + 1) for size in sizes)


def _straddles(sizes: Sequence[int], size: int) -> bool:
    """Whether blocks of that size that keep to hosts leave out devices that blocks one behind the other would not."""
    inside = sum(host // size for host in sizes)
    across = len(sizes) * sizes[0] // size if len(set(sizes)) == 1 and size % sizes[0] == 0 else 0
    return max(inside, across) < sum(sizes) // size


class _Steps:
    """What stages and idleness may take, state by state."""

    def __init__(
        self, groups: Groups, kinds: Sequence[object], order: Hosts, asked: Asked, *, line: bool, multiples: bool
    ) -> None:
        """``kinds``: of each device, equal of those that may be replicas of one stage; ``multiples``: blocks begin at a
        multiple of their size."""
        self.groups, self.order, self.asked, self.line, self.multiples = groups, order, asked, line, multiples
        self.full = [tuple(map(len, group[0])) for group in groups]
        self.zero = [(0,) * len(full) for full in self.full]
        self.kinds = [[[{kinds[device] for device in pool} for pool in host] for host in group] for group in groups]
        self.count = sum(sum(full) * len(group) for full, group in zip(self.full, groups, strict=True))
        self.least = 0.0 if asked.stages or asked.size else self.count / MOST_DEVICES
        self.start: State = tuple((zero,) * len(group) for zero, group in zip(self.zero, groups, strict=True))

    def opened(self, state: State) -> list[tuple[int, Vector]]:
        """Hosts that are neither full nor untouched."""
        return [
            (group, taken)
            for group, hosts in enumerate(state)
            for taken in dict.fromkeys(hosts)
            if any(taken) and taken != self.full[group]
        ]

    def untouched(self, state: State) -> list[int]:
        """Of each group, hosts that may be begun."""
        return [hosts.count(zero) for hosts, zero in zip(state, self.zero, strict=True)]

    def next(self, fresh: Sequence[int]) -> list[int]:
        """Groups of which a host may be begun now."""
        groups = [group for group, count in enumerate(fresh) if count]
        return groups[:1] if self.order is Hosts.IN_ORDER else groups

    def takes(self, state: State) -> Iterator[tuple[Take, bool, bool]]:
        """What a stage may take; whether as a mesh, and as replicas. Of some that are looked at neither holds."""
        opened, untouched = self.opened(state), self.untouched(state)
        begun = opened if self.order is Hosts.ANY or opened else []
        fresh = [0] * len(untouched) if opened and self.order is not Hosts.ANY else untouched
        known = set[Take]()
        hosts = [*begun, *((group, self.zero[group]) for group in self.next(fresh))]
        for group, before in hosts:
            for after in self.inside(group, before):
                inside: Take = ((group, before, after),)
                known.add(inside)
                yield inside, self.meshed(inside), self.alike(inside)
        for counts in self.whole(fresh):
            hosts_ = ((group, self.zero[group], self.full[group]) for group, n in enumerate(counts) for _ in range(n))
            known.add(whole := tuple(hosts_))
            yield whole, self.meshed(whole), self.alike(whole)
        if self.asked.replicas > 1 and not self.asked.size and not self.multiples:
            spanned = self.anywhere(state) if self.order is Hosts.ANY else self.following(opened, untouched)
            yield from ((some, False, self.alike(some)) for some in spanned if some not in known)

    def inside(self, group: int, before: Vector) -> Iterator[Vector]:
        """What may be taken of one host after that."""
        full = self.full[group]
        for after in itertools.product(*(range(a, b + 1) for a, b in zip(before, full, strict=True))):
            size = sum(after) - sum(before)
            if not size or (self.asked.size and size != self.asked.size):
                continue
            if self.multiples and sum(before) % size:
                continue
            if self.multiples and not self.asked.size and (sum(full) % size or size < min(self.least, sum(full))):
                continue
            yield after

    def whole(self, fresh: Sequence[int]) -> Iterator[Vector]:
        """How many hosts of each group may be taken as a whole, two at least."""
        if self.order is Hosts.IN_ORDER:
            options: Iterable[Vector] = self.neighbours(fresh)
        elif self.multiples:
            options = self.divided(fresh)
        else:
            options = itertools.product(*(range(count + 1) for count in fresh))
        for counts in options:
            size = sum(count * sum(full) for count, full in zip(counts, self.full, strict=True))
            if sum(counts) > 1 and size == (self.asked.size or size) and not (self.multiples and size < self.least):
                yield counts

    def neighbours(self, fresh: Sequence[int]) -> Iterator[Vector]:
        """The next hosts in the one order."""
        for start in self.next(fresh):
            for count in range(1, len(fresh) - start + 1):
                if not self.multiples or (len(fresh) % count == 0 and start % count == 0):
                    yield (*[0] * start, *[1] * count, *[0] * (len(fresh) - start - count))

    def divided(self, fresh: Sequence[int]) -> Iterator[Vector]:
        """The same part of the hosts of each of some groups, after a multiple of these."""
        every = [len(group) for group in self.groups]
        for part in range(1, max(every) + 1):
            able = [group for group, count in enumerate(every) if count % part == 0]
            for number in range(1, len(able) + 1):
                for some in itertools.combinations(able, number):
                    counts = [every[group] // part if group in some else 0 for group in range(len(every))]
                    if all(
                        not n or (n <= left and (all_ - left) % n == 0)
                        for n, left, all_ in zip(counts, fresh, every, strict=True)
                    ):
                        yield tuple(counts)

    def meshed(self, take: Take) -> bool:
        """Whether the devices may be a mesh."""
        return not self.asked.one_kind or len(self.kinds_of(take)) == 1

    def alike(self, take: Take) -> bool:
        """Whether the devices may be replicas of one stage."""
        size = size_of(take)
        if not 1 < size <= self.asked.replicas or not shared_evenly(self.asked.groups, size):
            return False
        return len(self.kinds_of(take)) == 1

    def kinds_of(self, take: Take) -> set[object]:
        """Of which kinds the devices are."""
        return {
            kind
            for group, before, after in take
            for pool, start, end in zip(self.kinds[group][0], before, after, strict=True)
            if end > start
            for kind in pool
        }

    def anywhere(self, state: State) -> Iterator[Take]:
        """Some devices of one kind of several hosts."""
        every = {kind for group in self.kinds for pool in group[0] for kind in pool}
        for kind in sorted(every, key=repr):
            choices: list[list[Take]] = []
            for group, hosts in enumerate(state):
                mine = [kind in pool for pool in self.kinds[group][0]]
                for before, count in Counter(hosts).items():
                    limits = (full if own else start for start, full, own in zip(before, self.full[group], mine, strict=True))
                    after = list(itertools.product(*(range(a, b + 1) for a, b in zip(before, limits, strict=True))))
                    some = itertools.combinations_with_replacement(after, count)
                    choices.append([tuple((group, before, end) for end in ends if end != before) for ends in some])
            for parts in itertools.product(*choices):
                take = tuple(itertools.chain(*parts))
                if len(take) > 1:
                    yield take

    def following(self, opened: Sequence[tuple[int, Vector]], untouched: Sequence[int]) -> Iterator[Take]:
        """The rest of the host that was begun, some whole ones, and some devices of a further one."""
        if self.count > MOST_SPANNED:
            return
        rests: list[Take] = [(), *(((group, before, self.full[group]),) for group, before in opened)]
        rests = rests[1:] or rests
        every: Iterable[Vector] = itertools.product(*(range(count + 1) for count in untouched))
        if self.order is Hosts.IN_ORDER:
            every = ((0,) * len(untouched), *self.neighbours(untouched))
        for counts in every:
            whole = tuple((group, self.zero[group], self.full[group]) for group, n in enumerate(counts) for _ in range(n))
            left = [count - n for count, n in zip(untouched, counts, strict=True)]
            for rest in rests:
                if len(rest) + len(whole) > 1:
                    yield (*rest, *whole)
                for group in self.next(left):
                    if rest or whole:
                        for after in self.inside(group, self.zero[group]):
                            if after != self.full[group]:
                                yield (*rest, *whole, (group, self.zero[group], after))

    def idle(self, state: State) -> Iterator[State]:
        """States in which devices are idle that were free."""
        if self.order is Hosts.ANY:
            return
        opened = self.opened(state)
        if not self.line:
            for group, before in opened:
                yield moved(state, ((group, before, self.full[group]),))
            return
        for group, before in opened or [(group, self.zero[group]) for group in self.next(self.untouched(state))]:
            yield moved(state, ((group, before, (before[0] + 1,)),))


def moved(state: State, take: Take) -> State:
    """The state after what was taken."""
    hosts = [list(own) for own in state]
    for group, before, after in take:
        hosts[group].remove(before)
        hosts[group].append(after)
    return tuple(tuple(sorted(own, reverse=True)) for own in hosts)


def _states(devices: tuple[Device, ...], steps: _Steps, told: str, most: float = math.inf) -> Taking:
    """All states. Raises TooManyMovesError where there are more than so many moves."""
    numbers, queue = {steps.start: 0}, deque([steps.start])
    moves, idle = list[Move](), list[tuple[int, int]]()

    def number(state: State) -> int:
        if state not in numbers:
            numbers[state] = len(numbers)
            queue.append(state)
        return numbers[state]

    looked = 0
    while queue:
        state = queue.popleft()
        source = numbers[state]
        for take, mesh, replicas in steps.takes(state):
            looked += 1
            if mesh or replicas:
                moves.append(Move(source, number(moved(state, take)), take, mesh, replicas))
            if len(moves) > most or looked > 4 * most:
                raise TooManyMovesError
        idle += [(source, number(after)) for after in steps.idle(state)]
    states = sorted(numbers, key=lambda state: sum(sum(map(sum, hosts)) for hosts in state))
    place = {numbers[state]: index for index, state in enumerate(states)}
    moves = [replace(move, source=place[move.source], target=place[move.target]) for move in moves]
    moves.sort(key=lambda move: move.source)
    pairs = sorted((place[source], place[target]) for source, target in idle)
    return Taking(devices, steps.groups, tuple(states), tuple(moves), tuple(pairs), steps.line, told)
