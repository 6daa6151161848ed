"""What links between devices of unlike types cost at the borders of stages, beyond the best port of each type.

What is made before a border and read behind it is taken to go from the stage before to the next. Between stages of one type
alone, devices take the best link between two of them: of a stage of several types some groups come from another type, and the
slowest transfer counts. All others take the best link from their type to any other, no faster than that of the worse end. So
devices and links are told apart by type alone; ``place``, which knows them, has the last word, and the bound of a plan is of
ports (``planned``).

Devices of a type behind the same shared links, as behind that of their host to the network, send one after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ir.core.topology import Device, Topology
from passes.costs.network import Network
from passes.partition.decoding.problem import Detours
from passes.partition.layouts.problem.problem import Floats
from passes.stages.problem import Kind, Problem

MOST_SPEEDS = 4
"""Speeds of borders between unlike types that are told apart, at most; a slower one counts as the next faster that is."""


@dataclass(frozen=True)
class _Best:
    """The least latency and the most bandwidth of any of some links, and the bandwidth of what all of them share together
    (infinite: nothing)."""

    latency: float = math.inf
    bandwidth: float = 0.0
    together: float = math.inf


def detours_of(problems: Sequence[Problem], units: Sequence[Sequence[int]], topology: Topology, net: Network) -> Detours | None:
    """``problems``: of the same ops and devices, by batch; None where ports tell all."""
    kinds = problems[0].kinds
    if len(kinds) == 1:
        return None
    ports = [net.port(kind.devices[0]) for kind in kinds]
    some = [_representatives(kind, topology, net) for kind in kinds]
    inside = [_best(itertools.permutations(own, 2), net) for own in some]
    outside = [_best(itertools.product(own, [d for other in some if other is not own for d in other]), net) for own in some]
    slower, later, links, open_to = [], [], [], []
    for kind, (own, port) in enumerate(zip(inside, ports, strict=True)):
        if own.bandwidth > 0:
            slower.append(np.full(len(kinds), 1 / own.bandwidth - 1 / port.bandwidth))
            later.append(np.full(len(kinds), own.latency - port.latency))
            links.append(np.zeros(len(kinds)))
            open_to.append(np.arange(len(kinds)) == kind)
    alone = len(open_to)
    speeds = sorted({best.bandwidth for best in outside})
    speeds = speeds[-1 :: -max(1, math.ceil(len(speeds) / MOST_SPEEDS))]
    for speed in speeds:
        slower.append(
            np.array([1 / min(best.bandwidth, speed) - 1 / port.bandwidth for best, port in zip(outside, ports, strict=True)])
        )
        later.append(np.array([best.latency - port.latency for best, port in zip(outside, ports, strict=True)]))
        links.append(np.array([1 / best.together for best in outside]))
        counts_as = [min(other for other in speeds if other >= best.bandwidth) for best in outside]
        open_to.append(np.array([own >= speed for own in counts_as]))
    free = np.array([topology.type(kind.type).free_transfers for kind in kinds])
    per_byte, per_message, together = (np.where(free, 0.0, np.maximum(rows, 0.0)) for rows in (slower, later, links))
    if not (per_byte.any() or per_message.any() or together.any()):
        return None
    size, messages = (np.stack(values) for values in zip(*(_passing(problem, units) for problem in problems), strict=True))
    seconds = per_byte[None, :, :, None] * size[:, None, None, :] + per_message[None, :, :, None] * messages[:, None, None, :]
    return Detours(seconds, together[None, :, :, None] * size[:, None, None, :], np.array(open_to), alone)


def _representatives(kind: Kind, topology: Topology, net: Network) -> list[Device]:
    """Of the devices of a kind on each host that can be exchanged, two."""
    found: dict[tuple[str, int], list[Device]] = {}
    named = {device.name: device for device in topology.devices}
    for name in kind.devices:
        found.setdefault((named[name].host, net.class_of(name)), []).append(named[name])
    return [device for alike in found.values() for device in alike[:2]]


def _best(pairs: Iterator[tuple[Device, Device]], net: Network) -> _Best:
    """The best of the links from the first to the second devices of pairs; what is shared is summed over hosts of the first."""
    latency, bandwidth, shared = math.inf, 0.0, dict[str, dict[str, float]]()
    for one, other in pairs:
        for path in (net.path(one.name, other.name), net.path(other.name, one.name)):
            latency, bandwidth = min(latency, path.latency), max(bandwidth, path.bandwidth)
        media = dict(net.path(one.name, other.name).media)
        common = shared.setdefault(one.host, media)
        shared[one.host] = {name: speed for name, speed in common.items() if name in media}
    return _Best(latency, bandwidth, sum(min(common.values(), default=math.inf) for common in shared.values()))


def _passing(problem: Problem, units: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """``[unit]``: bytes and number of the values made before a unit and read from it on; none behind the last."""
    unit_of = {i: unit for unit, own in enumerate(units) for i in own}
    size, messages = np.zeros(len(units) + 1), np.zeros(len(units) + 1)
    for made, readers, own in zip(problem.producer.tolist(), problem.consumers, problem.tensor_bytes.tolist(), strict=True):
        passed = slice(unit_of[made] + 1, 1 + max(unit_of[reader] for reader in readers))
        size[passed] += own
        messages[passed] += 1
    return size, messages
