"""Measures the devices of this host, and replaces their numbers in a topology: its CPUs here, its GPUs by ``kernels/gpus.py``.

A process on the cores of each device measures it (``probes.py``): all devices at once, as they work in a pipeline, and the
first of each type alone for comparison. Numbers are medians; the notes state how far the quartiles lie apart. What runs on a
device is run in several sweeps, because the clock of a core changes from second to second: so no class of ops is measured in
quick seconds alone, and another in slow ones. Of the devices of a type, the slowest of each sweep counts: replicas take
microbatches in turn, members of a mesh wait for each other, and the slowest stage sets the pace of a pipeline. On a virtual
machine whose cores ran products at 91 and 155 GFLOP/s, and changed places every few seconds, two replicas kept the pace of the
slower one; the median of both cores promised a tenth more.

- *rates*, by element type: products of square matrices; of ``i8`` those of quantised models, into 32 bits.
- *efficiency*, by class: ops of the zoo's models that do not wait for memory, quantised convolutions, and products by weights
  of 4 bits. ``flops / (rate *
  efficiency)`` of all ops of a class adds up to the seconds that they took, without those of scalar steps. An op that runs
  again and again finds its weights in the caches, so nothing is taken off for weights: products of BERT and GPT-2 reached 0.98
  of the rate of square ones as they ran, and 0.95 with weights evicted before each run, less their seconds at memory bandwidth.
  To take these seconds off runs that do not have them promised 1.24. No efficiency exceeds 1: rates are raised instead.
- *scalar rate*: ops that go element by element, the geometric mean of their steps over their seconds.
- *memory bandwidth*: a product with one row, which waits for its weights; that of a core's own *cache*: a small op.
- *Overhead*: the time of an op in a long chain of small ones. *Hand-over*: a stream through two stages that compute nothing
  (``handover.py``).
- *Links* inside the host: the time of a small tensor to another process, and the extra time of a large one over copying it
  within a process; the start of a *collective*: two processes meet between products, and start the next model. If torch is
  installed, the same *in training*, by gloo between two ranks; the bandwidth is that of a large all-reduce, for gradients are
  most of what ranks exchange, and a rank adds what it gets.
- *Training*: the kernels of torch, if it is installed (``kernels/training.py``).

Other hosts, devices of other execution providers, and classes without an op here keep their numbers.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dnnc.machines.detect import split_cores
from dnnc.machines.facts import Facts
from dnnc.machines.faults import MachineBusy, MoreDevicesThanCores, NoCpuDevice, UnknownHost
from dnnc.machines.handover import handover
from dnnc.machines.kernels.gpus import gpus_of, measured_gpus
from dnnc.machines.kernels.training import measured_training
from dnnc.machines.probes import NotRun, Probes, Sample, probes
from dnnc.machines.samples import (
    CACHED,
    CHAIN,
    Workload,
    chain,
    elementwise,
    packed,
    products,
    quantised,
    scalars,
    streamed,
    zoo_ops,
)
from dnnc.machines.topology.writer import Notes
from ir.core.diagnostics import UsageError
from ir.core.topology import DeviceType, Link, Topology
from ir.system.scratch import scratch_folder
from ir.text.units import percent_text, rate_text
from passes.costs.network import network
from passes.costs.products import BITS

_SECONDS, _TRAINING_SECONDS = 10, 20
"""Approximate duration of a measurement, and what training adds to it."""
QUIET = 0.95
"""Where the measuring processes had their cores for a smaller part of the time, the machine was busy: on a quiet one they have
them for 0.99."""
DTYPES = ("f32", "f64", "f16", "bf16", "i8")
NARROW = ("f16", "bf16")
UNSTEADY = 0.5
"""A rate of another element type than f32 whose relative spread is above this is not believed."""
SWEEPS = 4
ROUNDS = 4
"""Runs of each op that count, in each sweep."""
EQUAL = 0.95
"""Where the quickest device of a type takes a smaller part of the seconds of the slowest, the comment says so."""
CHAIN_ROUNDS = 30
SMALL, LARGE = 1 << 12, 1 << 22
"""Bytes of the tensors that are exchanged to measure latency and bandwidth."""
WORD = 64
"""Bytes of a message that only tells that a process is there."""
BETWEEN = 512
"""Rows of the square matrices that ranks multiply between sums, and processes between meetings: 2 to 3 ms, as between the
layers of a small model. Where the clocks of cores change, one waits longer for the other behind longer products."""
_DIGITS = 3
_TOLD = 80
"""Characters of a fault that a comment quotes."""
Progress = Callable[[str, float | None], None]


@dataclass(slots=True)
class _Measured:
    """Measurements of the devices of one type, with relative spreads; ``alone``: the memory bandwidth of one device while the
    others rest; ``quickest``: what the quickest device takes of the seconds of the slowest, which count; ``missing``:
    element types whose matrices onnxruntime does not multiply here; ``unsteady``: spreads of the rates that are not
    believed."""

    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    efficiency: dict[str, float] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    bandwidth: tuple[float, float] = (0.0, 0.0)
    overhead: tuple[float, float] = (0.0, 0.0)
    scalar: float = 0.0
    cache: tuple[float, float] = (0.0, 0.0)
    handover: tuple[float, float] | None = None
    alone: float = 0.0
    quickest: float = 1.0
    missing: list[str] = field(default_factory=list)
    unsteady: dict[str, float] = field(default_factory=dict)


def host_here(topology: Topology, facts: Facts, host: str = "") -> str:
    """The host of the topology that is this machine: ``host``, the only host, or the one with this machine's name. Raises
    UsageError if there is none, if it has no CPU devices, or more of them than cores."""
    names = [each.name for each in topology.hosts]
    name = host or (names[0] if len(names) == 1 else facts.host)
    if name not in names:
        raise UsageError(UnknownHost(topology.name[1:], name, tuple(names)), where="--host")
    devices = len(_devices(topology, name))
    if not devices:
        raise UsageError(NoCpuDevice(name), where="topology measure")
    if devices > facts.usable:
        raise UsageError(MoreDevicesThanCores(devices, facts.usable), where=f"topology measure: {name}")
    return name


def duration(training: bool = True) -> int:
    """Approximate seconds of a measurement, for ``training`` too if torch is installed."""
    return _SECONDS + (_TRAINING_SECONDS if training and importlib.util.find_spec("torch") is not None else 0)


def measured(
    topology: Topology,
    facts: Facts,
    host: str,
    *,
    seed: int = 0,
    training: bool = True,
    progress: Progress = lambda label, fraction: None,
) -> tuple[Topology, Notes, float]:
    """The topology with measured numbers for ``host``, which is this machine (see ``host_here``); notes on each number; and for
    which part of the time that their control group allows the measuring processes had their cores: below ``QUIET``, something
    else was at work. ``training``: measure it too, if torch is installed."""
    devices = _devices(topology, host)
    nodes = facts.nodes
    cores = split_cores(facts, None if len(devices) == len(nodes) and facts.quota is None else len(devices))
    by_type: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(devices):
        by_type[topology.device(name).type].append(number)
    ops = [*zoo_ops(), *quantised(), *packed()]
    with scratch_folder() as scratch, probes(cores, Path(scratch), seed) as running:
        caches = {name: topology.type(name).cache for name in by_type}
        measurements = _of_types(running, by_type, caches, ops, progress)
        slowest = min(each.bandwidth[0] for each in measurements.values())
        progress("measure how processes exchange", None)
        link = _link(running, slowest, training) if len(devices) > 1 else None
        if len(devices) > 1:
            woken = handover(Path(scratch))
            for each in measurements.values():
                each.handover = woken.median, woken.relative
        share = min(1.0, statistics.fmean(running.shares) / _allowed(facts, sum(map(len, cores))))
    topology, notes = _written(topology, host, measurements, link)
    if training and importlib.util.find_spec("torch") is not None:
        topology, more = measured_training(topology, devices, cores, seed, progress)
        notes = {**notes, **{key: f"{notes[key]}; {text}" if key in notes else text for key, text in more.items()}}
    if gpus := gpus_of(topology, host, facts.providers):
        topology, more = measured_gpus(topology, host, gpus, facts.cores, seed, progress)
        notes = {**notes, **more}
    return topology, notes, share


def busy_warning(share: float) -> MachineBusy | None:
    """The warning of a machine that was not quiet, by the part of the time for which its processes had their cores."""
    return MachineBusy(percent_text(share)) if share < QUIET else None


def _allowed(facts: Facts, cores: int) -> float:
    """For which part of the time the control group allows processes on so many cores to have all of them: a quota of 1.5 cores
    allows two of them three quarters."""
    return 1.0 if facts.quota is None else min(1.0, facts.quota / cores)


def _devices(topology: Topology, host: str) -> list[str]:
    """The CPU devices of a host."""
    cpus = {type_.name for type_ in topology.types if type_.on_cores}
    return [device.name for device in topology.devices if device.host == host and device.type in cpus]


def _of_types(
    running: Probes,
    by_type: Mapping[str, list[int]],
    caches: Mapping[str, int],
    ops: list[Workload],
    progress: Progress,
) -> dict[str, _Measured]:
    measurements = {name: _Measured() for name in by_type}
    taken = _Taken(running, by_type)
    rated = [(dtype, work) for dtype in DTYPES for work in products(dtype)]
    (stream,) = streamed()
    small, steps = elementwise(CACHED), list(scalars())
    models = {id(work): running.model(work.model) for work in (*(work for _, work in rated), stream, small, *steps, *ops)}
    chains = [running.model(chain(length)) for length in (1, CHAIN + 1)]
    missing: dict[str, None] = {}
    for sweep in range(SWEEPS):
        for dtype, work in rated:
            if dtype not in missing:
                progress(f"multiply matrices of {dtype}", sweep / SWEEPS)
                try:
                    taken.take(id(work), "kernels", models[id(work)], ROUNDS)
                except NotRun:
                    missing[dtype] = None
        taken.take(id(stream), "kernels", models[id(stream)], ROUNDS)
        if not sweep:
            taken.alone("alone", "kernels", models[id(stream)], ROUNDS)
        for work in (small, *steps):
            taken.take(id(work), "kernels", models[id(work)], ROUNDS)
        for length, model in enumerate(chains):
            taken.take(length, "runs", model, CHAIN_ROUNDS)
        for place, work in enumerate(ops):
            progress(f"run {work.op.name}", (sweep + place / len(ops)) / SWEEPS)
            if not (work.cost.kind.endswith(BITS) and "i8" in missing):
                taken.take(id(work), "kernels", models[id(work)], ROUNDS)
        taken.end_sweep()
    for name, each in measurements.items():
        each.missing = list(missing)
        each.quickest = statistics.median(taken.quickest[name])
        for dtype, work in rated:
            if dtype not in missing:
                one = taken.sample(id(work), name)
                rate = work.cost.flops / one.median, one.relative
                each.rates[dtype] = max(rate, each.rates.get(dtype, (0.0, 0.0)))
        each.unsteady = {dtype: spread for dtype, (_, spread) in each.rates.items() if dtype != "f32" and spread > UNSTEADY}
        each.rates = {dtype: rate for dtype, rate in each.rates.items() if dtype not in each.unsteady}
        one = taken.sample(id(stream), name)
        each.bandwidth = stream.cost.weight / one.median, one.relative
        each.alone = stream.cost.weight / taken.sample("alone", name).median
        one = taken.sample(id(small), name)
        each.cache = (small.cost.read + small.cost.write) / one.median, one.relative
        each.scalar = statistics.geometric_mean(work.cost.scalar / taken.sample(id(work), name).median for work in steps)
        short, long = (taken.sample(length, name) for length in range(2))
        each.overhead = max(0.0, long.median - short.median) / CHAIN, long.relative
        times = {id(work): taken.sample(id(work), name).median for work in ops if taken.has(id(work), name)}
        _fit(each, *_of_classes(each, ops, times, caches[name]))
    return measurements


class _Taken:
    """The seconds that the devices of each type took for each workload: of each sweep those of the device that took longest
    for all of it."""

    def __init__(self, running: Probes, by_type: Mapping[str, list[int]]) -> None:
        self.running, self.by_type = running, by_type
        self.seconds: dict[tuple[Hashable, str], list[float]] = defaultdict(list)
        self.sweep: dict[int, dict[Hashable, list[float]]] = defaultdict(dict)
        self.quickest: dict[str, list[float]] = defaultdict(list)

    def take(self, key: Hashable, order: str, model: Path, rounds: int) -> None:
        """Runs a model on all devices at once. Raises NotRun."""
        asked = [number for own in self.by_type.values() for number in own]
        for number, seconds in self.running.ask({"do": order, "model": str(model)}, asked, rounds=rounds).items():
            self.sweep[number][key] = seconds

    def alone(self, key: Hashable, order: str, model: Path, rounds: int) -> None:
        """Runs a model on the first device of each type, one after another."""
        for name, own in self.by_type.items():
            answers = self.running.ask({"do": order, "model": str(model)}, own[:1], rounds=rounds)
            self.seconds[key, name] += answers[own[0]]

    def end_sweep(self) -> None:
        for name, own in self.by_type.items():
            whole = {number: math.fsum(map(statistics.median, self.sweep[number].values())) for number in own}
            slowest = max(own, key=whole.__getitem__)
            self.quickest[name].append(min(whole.values()) / whole[slowest])
            for key, seconds in self.sweep[slowest].items():
                self.seconds[key, name] += seconds
        self.sweep.clear()

    def has(self, key: Hashable, name: str) -> bool:
        return (key, name) in self.seconds

    def sample(self, key: Hashable, name: str) -> Sample:
        return Sample.of(self.seconds[key, name])


def _of_classes(
    each: _Measured, ops: list[Workload], times: Mapping[int, float], cache: int
) -> tuple[dict[str, float], dict[str, float]]:
    """By class, the seconds of those ``ops`` that do not wait for memory, without those of scalar steps, and their seconds at
    the rate of products. ``times``: seconds of an op by the id of its workload; ``cache``: bytes of a device's own."""
    seconds: dict[str, float] = defaultdict(float)
    least: dict[str, float] = defaultdict(float)
    for work in ops:
        kind, cost, taken = work.cost.kind, work.cost, times.get(id(work))
        peak = each.rates.get("i8" if kind.endswith(BITS) else "f32")
        if peak is None or taken is None:
            continue
        moved = cost.read + cost.write - cost.weight
        values = moved / (each.cache if moved <= cache else each.bandwidth)[0]
        if max(values, cost.weight / each.bandwidth[0]) > taken / 2:
            continue
        seconds[kind] += max(taken - cost.scalar / each.scalar, taken / 10)
        least[kind] += cost.flops / peak[0]
        each.ops[kind] = each.ops.get(kind, 0) + 1
    return seconds, least


def _fit(each: _Measured, seconds: Mapping[str, float], least: Mapping[str, float]) -> None:
    """Sets the efficiency of each class to ``least / seconds``, the time of its ops at the rate of products over their measured
    time. Rates are scaled so that no efficiency exceeds 1 and the time of products stays as measured; those of other element
    types than f32 are of products at the efficiency of ``matmul``."""
    efficiency = {kind: least[kind] / seconds[kind] for kind in seconds}
    for kind in efficiency:
        if kind.endswith(BITS):
            efficiency[kind] *= efficiency.get("matmul", 1.0)
    scale = max(1.0, *efficiency.values())
    each.efficiency = {kind: _rounded(value / scale) for kind, value in sorted(efficiency.items())}
    reached = {"f32": 1 / scale}
    for dtype, (rate, spread) in each.rates.items():
        each.rates[dtype] = rate / reached.get(dtype, each.efficiency.get("matmul", 1.0)), spread


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Between two processes: seconds one way of a small tensor, bytes per second of a large one, each with its relative spread.
    ``start``: the additional seconds of a small collective, 0 if not measured. ``training``: the same between ranks, or why it
    could not be measured."""

    latency: tuple[float, float]
    bandwidth: tuple[float, float]
    start: tuple[float, float] = (0.0, 0.0)
    training: _Exchange | str = ""


def _link(running: Probes, memory: float, training: bool) -> _Exchange:
    """Bandwidth = bytes / (time of a large tensor between processes - time within one process), at most that of ``memory``."""
    model, short = (str(running.model(content)) for content in (next(products("f32", (BETWEEN,))).model, chain(1)))
    orders = (
        (SMALL, {"do": "exchange", "rounds": 300, "warm": 10}),
        (LARGE, {"do": "exchange", "rounds": 40, "warm": 10}),
        (WORD, {"do": "meet", "rounds": 200, "warm": 5, "model": model, "short": short}),
    )
    small, large, met = running.exchanges((0, 1), orders)
    alone = Sample.of(running.ask({"do": "copies", "size": LARGE}, [0], rounds=40)[0])
    more = (large.median - small.median - alone.median) / 2
    bandwidth = LARGE / max(more, LARGE / memory), large.relative
    latency, start = small.median / 2, max(0.0, met.median - small.median / 2)
    return _Exchange((latency, small.relative), bandwidth, (start, met.relative), _by_gloo(running) if training else "")


def _by_gloo(running: Probes) -> _Exchange | str:
    """The exchange between ranks by gloo, or why it could not be measured; empty without torch."""
    if importlib.util.find_spec("torch") is None:
        return ""
    try:
        small, large, summed = running.gloo((0, 1), (("gloo", SMALL), ("reduced", LARGE), ("sums", BETWEEN)), rounds=40)
    except NotRun as error:
        return f"gloo: {str(error)[:_TOLD]}"
    latency = small.median / 2
    bandwidth = LARGE / max(large.median - 2 * latency, large.median / 10)  # each rank passes on half of it twice
    start = max(0.0, summed.median - latency)
    return _Exchange((latency, small.relative), (bandwidth, large.relative), (start, summed.relative))


def _written(
    topology: Topology, host: str, measurements: Mapping[str, _Measured], link: _Exchange | None
) -> tuple[Topology, Notes]:
    notes: dict[tuple[str, str], str] = {}
    own = set(_devices(topology, host))
    shared = {device.type for device in topology.devices if device.name not in own}
    names = {name: f"{name}.{host}" if name in shared else name for name in measurements}
    types: list[DeviceType] = []
    for type_ in topology.types:
        if type_.name not in measurements or type_.name in shared:
            types.append(type_)
        if type_.name in measurements:
            types.append(_type(type_, names[type_.name], measurements[type_.name]))
            notes |= _notes(types[-1], measurements[type_.name], type_)
    devices = tuple(replace(device, type=names[device.type]) if device.name in own else device for device in topology.devices)
    links = topology.links
    if link is not None:
        between = _between(topology, host, own)
        links = tuple(_faster(each, link, len(between)) if each.name in between else each for each in links)
        notes |= {key: text for name in between for key, text in _link_notes(name, link).items()}
    return replace(topology, types=tuple(types), devices=devices, links=links), notes


def _type(type_: DeviceType, name: str, found: _Measured) -> DeviceType:
    rates = {**dict(type_.rates), **{dtype: _rounded(rate) for dtype, (rate, _) in found.rates.items()}}
    efficiency = {**dict(type_.efficiency), **found.efficiency}
    return replace(
        type_,
        name=name,
        rates=tuple(sorted(rates.items())),
        efficiency=tuple(sorted(efficiency.items())),
        scalar_rate=_rounded(found.scalar),
        cache_bandwidth=_rounded(max(found.cache[0], found.bandwidth[0])),
        memory_bandwidth=_rounded(found.bandwidth[0]),
        overhead=_rounded(found.overhead[0]),
        handover=type_.handover if found.handover is None else _rounded(found.handover[0]),
        source="",
    )


def _notes(type_: DeviceType, found: _Measured, before: DeviceType) -> Notes:
    table = f"types.{type_.name}"
    peaks = ", ".join(f"{dtype} +-{percent_text(spread)}" for dtype, (_, spread) in sorted(found.rates.items()))
    missing = f"; {', '.join(found.missing)}: this onnxruntime multiplies none" if found.missing else ""
    unsteady = "".join(f"; {dtype} not believed (+-{percent_text(spread)})" for dtype, spread in sorted(found.unsteady.items()))
    slower = [dtype for dtype in NARROW if found.rates.get(dtype, (math.inf, 0.0))[0] < found.rates["f32"][0]]
    narrow = (
        f"; {', '.join(slower)}: slower than f32, to which it is converted for want of arithmetic of its own" if slower else ""
    )
    unmeasured = sorted(set(dict(before.rates)) - set(found.rates))
    others = f"; kept, not measured: {', '.join(unmeasured)}" if unmeasured else ""
    alone = f"; a device alone {rate_text(found.alone, 'B/s')}" if found.alone else ""
    percent = percent_text(found.quickest)
    unequal = f"; the quickest device takes {percent} of the seconds of the slowest" * (found.quickest < EQUAL)
    ops = ", ".join(f"{count} {kind}" for kind, count in sorted(found.ops.items()))
    kept = sorted(set(dict(type_.efficiency)) - set(found.efficiency))
    return {
        (table, "rates"): f"measured: products, all devices at once, {peaks}{narrow}{missing}{unsteady}{others}{unequal}",
        (
            table,
            "memory_bandwidth",
        ): f"measured: weights from memory, all devices at once, +-{percent_text(found.bandwidth[1])}{alone}",
        (table, "scalar_rate"): "measured: running sums, elements of a table, products of elements",
        (table, "products"): f"cache: kept; its bandwidth measured: a small op, +-{percent_text(found.cache[1])}",
        (table, "overhead"): f"measured: an op of a chain of {CHAIN}, +-{percent_text(found.overhead[1])}",
        (table, "efficiency"): f"measured: {ops} of zoo models; kept: {', '.join(kept) or 'none'}",
        (table, "handover"): "kept"
        if found.handover is None
        else f"measured: two stages that compute nothing, +-{percent_text(found.handover[1])}",
        (table, "memory"): "kept",
        **({(table, "source"): "kept"} if before.source and type_.source else {}),
    }


def _between(topology: Topology, host: str, own: set[str]) -> tuple[str, ...]:
    """The links between the first two devices, if all of them are inside the host; else none."""
    first, second, *_ = [device.name for device in topology.devices if device.name in own]
    crossed = network(topology).path(first, second).links
    ends = {link.name: link.ends for link in topology.links}
    inside = all(end == host or end in own for name in crossed for end in ends[name])
    return crossed if inside else ()


def _faster(link: Link, found: _Exchange, parts: int) -> Link:
    latency, start = _rounded(found.latency[0] / parts), _rounded(found.start[0] / parts)
    link = replace(link, bandwidth=_rounded(found.bandwidth[0]), latency=latency, start=start)
    ranks = found.training
    if isinstance(ranks, str):
        return link
    return replace(
        link,
        training_bandwidth=_rounded(ranks.bandwidth[0]),
        training_latency=_rounded(ranks.latency[0] / parts),
        training_start=_rounded(ranks.start[0]),
    )


def _link_notes(name: str, found: _Exchange) -> Notes:
    table, ranks = f"links.{name}", found.training
    notes = {
        (table, "bandwidth"): f"measured: {LARGE >> 20} MiB through shared memory, +-{percent_text(found.bandwidth[1])}",
        (table, "latency"): f"measured: {SMALL >> 10} KiB through shared memory, +-{percent_text(found.latency[1])}",
        (table, "collectives"): f"measured: two processes meet between products, +-{percent_text(found.start[1])}",
    }
    if not isinstance(ranks, str):
        spreads = ", ".join(percent_text(spread) for _, spread in (ranks.bandwidth, ranks.latency, ranks.start))
        told = (
            f"measured: {LARGE >> 20} MiB and {SMALL >> 10} KiB by gloo, the first summed, sums between products; +-{spreads}"
        )
        return {**notes, (table, "training"): told}
    return {**notes, (table, ""): f"kept in training; {ranks}"} if ranks else notes


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
