"""Decode tokens per second of a language model served by unlike nodes, by simulation.

A *node* is one GPU that holds a run of layers. A request goes through nodes that together hold all layers: first its prompt,
then, one round for each token of its answer, one token. A node takes all that waits for it as one batch, at most one prompt in
it, and is busy for

    sum over its layers of  prompt(tokens of the prompt) + decode(tokens that decode)

seconds, by the measured seconds of one layer; a request that comes from a node that holds some of these layers too runs only
the rest. What leaves a batch leaves together, so tokens behind a prompt wait for it at each node: that, more than the share of
time that prompts take, is what bounds these systems. A link carries one message after another, hidden x 2 bytes per token, and
then its latency.

*Routes.* A request keeps the route of its prompt. Of nodes that hold the same layer each gets requests in proportion to its
speed: the flow f from the first layer to the last that minimises the sum over nodes and links of load_i(f)^2 / work_i, where
work_i is the seconds of one layer (of a link: of a message) per token of an answer, prompts included, and load_i that for all
layers that the flow runs there. Of nodes that hold exactly the same layers each so has a load of its part of the flow, which is
in proportion to its speed. Found by Frank and Wolfe's method (1956); its linear step is the shortest path.

*How many requests are in flight.* Requests always wait; caches bound those in flight. A scheduler that knows the caches admits
a request while it fits (``FULL``). One that does not can only be given a number at which no cache overflows by chance: the
greatest n with

    n v m + HEADROOM sqrt(n v s^2 + n v (1 - v) m^2) <= tokens of the cache

on each node, where v is the share of requests that pass it, m and s the mean and deviation of the tokens that a request holds.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np

END = -1
"""In routes: the client, before the first node and behind the last."""
SPEED_AT = 8
"""Tokens of a decode batch at which the speeds of nodes are compared."""
FLOW_STEPS = 500
SMALLEST_SHARE = 4e-3
"""Shares of a flow below it are left out: they are steps of the method."""
FULL = 0.8
"""Of the caches of a layer, up to which a scheduler that knows the caches admits requests: the mark in Helix's offline runs."""
HEADROOM = 5.0
"""Standard deviations that are left free where the scheduler does not know the caches."""
SPACING = 0.05
"""Seconds between the first requests."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and answers: exponential, cut off at ``longest``, with these means after the cut."""

    prompt: float
    answer: float
    longest: tuple[int, int] = (2048, 1024)

    @cached_property
    def scales(self) -> tuple[float, float]:
        """Means before the cut."""
        return cut_scale(self.prompt, self.longest[0]), cut_scale(self.answer, self.longest[1])

    def draw(self, chance: random.Random) -> tuple[int, int]:
        one, other = (
            min(longest, 1 + int(chance.expovariate(1 / scale)))
            for scale, longest in zip(self.scales, self.longest, strict=True)
        )
        return one, other

    @property
    def held(self) -> tuple[float, float]:
        """Mean and deviation of the tokens that a request in flight holds: its prompt, and of its answer as much as is left,
        for exponential lengths have no memory."""
        scale, longest = self.scales[0], self.longest[0]
        square = 2 * scale * scale - 2 * scale * (scale + longest) * math.exp(-longest / scale)
        return self.prompt + self.answer, math.hypot(math.sqrt(square - self.prompt**2), self.answer)


def cut_scale(mean: float, longest: float) -> float:
    """The scale of an exponential variable whose minimum with ``longest`` has such a mean."""
    scale = mean
    for _ in range(50):
        scale = mean / (1 - math.exp(-longest / scale))
    return scale


@dataclass(frozen=True)
class LayerSeconds:
    """Measured seconds of one layer on one GPU by size, linear between sizes and beyond them."""

    decode: tuple[tuple[int, float], ...]
    prompt: tuple[tuple[int, float], ...]

    @cached_property
    def decoding(self) -> list[float]:
        return [0.0, *(between(self.decode, size) for size in range(1, 2 * self.decode[-1][0]))]

    def prompting(self, tokens: float) -> float:
        return between(self.prompt, tokens) if tokens else 0.0


def between(table: Sequence[tuple[int, float]], size: float) -> float:
    """Linear in ``size`` between the entries of ``table``; beyond the last in proportion, before the first as between the first
    two, but at least half of it."""
    sizes, seconds = zip(*table, strict=True)
    if size > sizes[-1]:
        return float(seconds[-1] * size / sizes[-1])
    if size < sizes[0]:
        slope = max(0.0, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
        return float(max(seconds[0] - slope * (sizes[0] - size), seconds[0] / 2))
    return float(np.interp(size, sizes, seconds))


@dataclass(frozen=True)
class Node:
    """Layers ``first .. behind - 1`` on a GPU. ``tokens``: of one layer that its caches hold; ``region``: of its host."""

    gpu: str
    first: int
    behind: int
    tokens: float
    region: int = 0

    @property
    def layers(self) -> int:
        return self.behind - self.first


@dataclass(frozen=True)
class Links:
    """Bytes per second and seconds of latency of a link within a region and between two."""

    inside: tuple[float, float]
    between: tuple[float, float]

    def of(self, one: int, other: int) -> tuple[float, float]:
        return self.inside if one == other else self.between


Flow: TypeAlias = Mapping[int, Mapping[int, float]]
"""By node (``END``: the client) the shares of all requests that go on to each next one."""


@dataclass(frozen=True)
class Service:
    """A model of ``layers`` layers on ``nodes``. ``token_bytes``: of the hidden state of a token; ``seconds``: by GPU;
    ``knows_caches``: of the scheduler."""

    layers: int
    token_bytes: int
    nodes: tuple[Node, ...]
    seconds: Mapping[str, LayerSeconds]
    links: Links
    lengths: Lengths
    knows_caches: bool

    def work(self, node: Node) -> float:
        """Seconds of one layer per token of an answer, prompts included."""
        seconds = self.seconds[node.gpu]
        prompt = seconds.prompting(self.lengths.prompt) / self.lengths.answer
        return seconds.decoding[SPEED_AT] / SPEED_AT + prompt

    @cached_property
    def flow(self) -> Flow:
        """Shares of requests, as told in the docstring of the file."""
        work = [self.work(node) for node in self.nodes]
        sent = self.token_bytes * (1 + self.lengths.prompt / self.lengths.answer)
        load: dict[object, float] = defaultdict(float)
        flow: dict[tuple[int, int], float] = defaultdict(float)
        for step in range(1, FLOW_STEPS + 1):
            route = self.cheapest(load)
            for each in (flow, load):
                for key in each:
                    each[key] *= 1 - 1 / step  # type: ignore[index]
            for (before, _), (node, layer) in itertools.pairwise([(END, 0), *route, (END, self.layers)]):
                flow[before, node] += 1 / step
                if node != END:
                    load[node] += (self.nodes[node].behind - layer) * work[node] / step
                    if before != END:
                        load[before, node] += sent / self.link(before, node)[0] / step
        shares: dict[int, dict[int, float]] = defaultdict(dict)
        for (before, node), share in sorted(flow.items()):
            if share > SMALLEST_SHARE:
                shares[before][node] = share
        return shares

    def cheapest(self, load: Mapping[object, float]) -> list[tuple[int, int]]:
        """The route of the least sum of the loads of its nodes, by layer, and links: each node with its first layer."""
        best: dict[int, tuple[float, list[tuple[int, int]]]] = {self.layers: (0.0, [])}  # by the next layer
        for layer in reversed(self.entries):
            least: tuple[float, list[tuple[int, int]]] | None = None
            for number, node in enumerate(self.nodes):
                if node.first <= layer < node.behind and node.behind in best:
                    cost, rest = best[node.behind]
                    cost += (node.behind - layer) * load[number] + (load[number, rest[0][0]] if rest else 0.0)
                    if least is None or cost < least[0]:
                        least = cost, [(number, layer), *rest]
            if least is not None:
                best[layer] = least
        return best[0][1]

    @cached_property
    def entries(self) -> list[int]:
        """Layers at which a request may come to a node: the first, and those behind the last of a node."""
        return sorted({0, *(node.behind for node in self.nodes)} - {self.layers})

    def link(self, one: int, other: int) -> tuple[float, float]:
        return self.links.of(self.nodes[one].region, self.nodes[other].region)

    @cached_property
    def shares(self) -> list[float]:
        """Of requests that pass each node."""
        found = [0.0] * len(self.nodes)
        for following in self.flow.values():
            for node, share in following.items():
                if node != END:
                    found[node] += share
        return found

    @cached_property
    def in_flight(self) -> int:
        """How many requests are in flight where the scheduler does not know the caches."""
        mean, deviation = self.lengths.held
        least = math.inf
        for node, v in zip(self.nodes, self.shares, strict=True):
            spread = HEADROOM * math.sqrt(v * deviation**2 + v * (1 - v) * mean**2)  # times the root of n
            root = (-spread + math.sqrt(spread**2 + 4 * v * mean * node.tokens)) / (2 * v * mean) if v > 0 else math.inf
            least = min(least, root * root)
        return max(1, math.floor(least))

    def tokens_per_second(self, seconds: float = 600.0, warm_up: float = 60.0, seed: int = 0) -> float:
        """Simulated tokens of answers per second, of ``seconds`` after ``warm_up``."""
        return Simulation(self, seed).run(warm_up + seconds, warm_up)


@dataclass(slots=True)
class Request:
    """``route``: nodes, each with its first layer; ``at``: how far it is; ``left``: tokens of its answer."""

    route: list[tuple[int, int]]
    prompt: int
    left: int
    at: int = 0
    prompting: bool = True


class Simulation:
    """The state of a service while it is simulated; what happens next is (seconds, order, what it does at these seconds)."""

    def __init__(self, service: Service, seed: int) -> None:
        count = len(service.nodes)
        self.service, self.chance = service, random.Random(seed)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.waiting: list[list[Request]] = [[] for _ in range(count)]
        self.busy = [False] * count
        self.held = [0.0] * count  # tokens x layers that requests are expected to fill
        self.credit: dict[tuple[int, int], float] = defaultdict(float)
        self.link_free: dict[tuple[int, int], float] = defaultdict(float)
        self.flying = 0
        self.drawn: tuple[int, int] | None = None  # lengths of a request that waits
        self.tokens, self.warm_up = 0, 0.0

    def run(self, until: float, warm_up: float) -> float:
        """Tokens of answers per second after ``warm_up``."""
        self.warm_up = warm_up
        self.at(0.0, self.begin)
        while self.events:
            now, _, happens = heapq.heappop(self.events)
            if now > until:
                break
            happens(now)
        return self.tokens / (until - warm_up)

    def at(self, seconds: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (seconds, next(self.order), happens))

    def begin(self, now: float) -> None:
        """The first requests, one after the other."""
        if self.admit(now):
            self.at(now + SPACING, self.begin)

    # -- requests ------------------------------------------------------------------------------------------------------

    def admit(self, now: float) -> bool:
        """Starts the request that waits, if it may; where a cache has room for no further one, later (``returned``)."""
        service = self.service
        if not (self.roomy() if service.knows_caches else self.flying < service.in_flight):
            return False
        prompt, answer = self.drawn or service.lengths.draw(self.chance)
        route = self.route(prompt)
        self.drawn = None if route else (prompt, answer)
        if not route:
            return False
        self.fill(route, prompt, 1)
        self.flying += 1
        self.at(now + service.links.inside[1], partial(self.arrive, Request(route, prompt, answer)))
        return True

    def roomy(self) -> bool:
        """Whether the fullest layer is below ``FULL``."""
        room, held = [0.0] * self.service.layers, [0.0] * self.service.layers
        for node, used in zip(self.service.nodes, self.held, strict=True):
            for layer in range(node.first, node.behind):
                room[layer] += node.tokens
                held[layer] += used / node.layers
        return all(used < FULL * tokens for used, tokens in zip(held, room, strict=True))

    def route(self, prompt: int) -> list[tuple[int, int]]:
        """The next route by the shares, each in its turn (smooth weighted round robin); empty if every way is full."""
        service, node, layer = self.service, END, 0
        need, route = prompt + service.lengths.answer, list[tuple[int, int]]()
        while layer < service.layers:
            open_ = {
                after: share
                for after, share in service.flow[node].items()
                if not service.knows_caches or self.fits(after, layer, need)
            }
            if not open_:
                return []
            total = sum(open_.values())
            for after, share in open_.items():
                self.credit[node, after] += share / total
            chosen = max(open_, key=lambda after: self.credit[node, after])
            self.credit[node, chosen] -= 1
            route.append((chosen, layer))
            node, layer = chosen, service.nodes[chosen].behind
        return route

    def fits(self, number: int, layer: int, need: float) -> bool:
        node = self.service.nodes[number]
        return self.held[number] + need * (node.behind - layer) <= node.tokens * node.layers

    def fill(self, route: Sequence[tuple[int, int]], prompt: int, sign: int) -> None:
        for number, layer in route:
            self.held[number] += sign * (prompt + self.service.lengths.answer) * (self.service.nodes[number].behind - layer)

    def returned(self, request: Request, now: float) -> None:
        """A round is over: the next one, or another request."""
        if not request.prompting:
            request.left -= 1
            self.tokens += now > self.warm_up
        request.prompting, request.at = False, 0
        if request.left > 0:
            self.at(now + self.service.links.inside[1], partial(self.arrive, request))
            return
        self.fill(request.route, request.prompt, -1)
        self.flying -= 1
        while self.admit(now):
            pass

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def arrive(self, request: Request, now: float) -> None:
        number = request.route[request.at][0]
        self.waiting[number].append(request)
        if not self.busy[number]:
            self.busy[number] = True
            self.at(now, partial(self.start, number))  # behind what else arrives just now

    def start(self, number: int, now: float) -> None:
        """All that waits is a batch, but for further prompts."""
        batch, rest, prompted = list[Request](), list[Request](), False
        for request in self.waiting[number]:
            if request.prompting and prompted:
                rest.append(request)
            else:
                prompted |= request.prompting
                batch.append(request)
        self.waiting[number] = rest
        node = self.service.nodes[number]
        seconds = self.service.seconds[node.gpu]
        starts = sorted({request.route[request.at][1] for request in batch})
        spent = 0.0
        for layer, behind in itertools.pairwise([*starts, node.behind]):
            running = [request for request in batch if request.route[request.at][1] <= layer]
            prompts = [request.prompt for request in running if request.prompting]
            one = seconds.prompting(sum(prompts)) + seconds.decoding[len(running) - len(prompts)]
            spent += (behind - layer) * one
        self.at(now + spent, partial(self.finish, number, batch))

    def finish(self, number: int, batch: Sequence[Request], now: float) -> None:
        for request in batch:
            request.at += 1
            if request.at == len(request.route):
                self.at(now + self.service.links.inside[1], partial(self.returned, request))
                continue
            after = request.route[request.at][0]
            bandwidth, latency = self.service.link(number, after)
            size = self.service.token_bytes * (request.prompt if request.prompting else 1)
            self.link_free[number, after] = max(now, self.link_free[number, after]) + size / bandwidth
            self.at(self.link_free[number, after] + latency, partial(self.arrive, request))
        self.busy[number] = bool(self.waiting[number])
        if self.busy[number]:
            self.at(now, partial(self.start, number))
