"""Measures the GPUs of this host, through the execution provider of ONNX Runtime that their type names.

One device of each type is measured, while the others rest. An op is run several times in one run of a model: one takes
``(t(n) - t(1)) / (n - 1)`` seconds, without what the run itself costs. Each number of the type is scaled until ``op_seconds``
predicts what was measured, so its other numbers (tiles, caches) keep their meaning:

- *overhead*: an op of a long chain of small ones;
- *memory bandwidth*: an elementwise op on a tensor that no cache holds;
- *rates*, by element type: a product of large square matrices;
- *efficiency*, by class: ops of the zoo's models in a large batch;
- the *link* to the host: a copy of a tensor from the host and back, small and large, as between stages of ``dnnc run``;
- *handover*: a run that does next to nothing, with its input and output in the host's memory.

Only CUDA's provider is measured. Devices of other providers, and links between GPUs, keep their numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dnnc.machines.probes import NotRun, Probes, Sample, probes
from dnnc.machines.samples import CHAIN, Workload, chain, elementwise, product, zoo_ops
from dnnc.machines.topology.writer import Notes
from dnnc.onnx.providers import CUDA, Provider
from ir.core.topology import DeviceType, Topology
from ir.system.scratch import scratch_folder
from ir.text.units import percent_text
from passes.costs.op_time import op_seconds

DTYPES = ("f32", "f16", "bf16")
SIDE = 4096
"""Of the square matrices whose product is measured: 137 GFLOP, at least 0.1 ms of the fastest GPUs."""
STREAM = 1 << 26
"""Elements of the tensor that comes from memory: 256 MiB of f32, more than any cache."""
BATCH = 32
"""Samples of the zoo's models, whose ops then take longer than it takes to launch them."""
SMALL, LARGE = 1 << 10, 1 << 24
"""Elements (f32) of the tensors that are copied from the host and back."""
COPIES = 8
"""Runs of an op in one run of a model."""
ROUNDS = 10
_DIGITS = 3
_STEPS = 4
"""Of the iteration that scales a number: predictions are not proportional to it."""


@dataclass(slots=True)
class _Found:
    """What was measured of a type, with relative spreads; ``missing``: element types whose matrices it does not multiply."""

    type_: DeviceType
    spreads: dict[str, float] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def gpus_of(topology: Topology, host: str, available: tuple[str, ...]) -> dict[str, str]:
    """The first device of each type on ``host`` that CUDA's provider runs, by type; none where onnxruntime lacks it."""
    mine = {type_.name for type_ in topology.types if type_.provider == CUDA and CUDA in available}
    found: dict[str, str] = {}
    for device in topology.devices:
        if device.host == host and device.type in mine:
            found.setdefault(device.type, device.name)
    return found


def measured_gpus(
    topology: Topology,
    host: str,
    gpus: Mapping[str, str],
    cores: tuple[int, ...],
    seed: int,
    progress: Callable[[str, float | None], None],
) -> tuple[Topology, Notes]:
    """The topology with measured numbers for the types of ``gpus`` (``gpus_of``) and for their links to the host; notes on each
    number."""
    notes: dict[tuple[str, str], str] = {}
    for name, device in gpus.items():
        provider = Provider.of(topology, device)
        assert provider is not None
        with scratch_folder() as scratch, probes([cores], Path(scratch), seed) as running:
            progress(f"measure {device}", None)
            try:
                found = _measured(topology.type(name), _Runs(running, provider))
                link = _link(_Runs(running, provider))
                found.type_ = replace(found.type_, handover=_rounded(link.idle), source="")  # of other numbers
            except NotRun as error:
                notes[f"types.{name}", ""] = f"kept: {error}"
                continue
        topology = replace(topology, types=tuple(found.type_ if type_.name == name else type_ for type_ in topology.types))
        notes |= _notes(name, device, found)
        topology, told = _linked(topology, host, name, link)
        notes |= told
    return topology, notes


@dataclass(frozen=True, slots=True)
class _Runs:
    running: Probes
    provider: Provider

    def run(self, model: bytes, *, held: str = "device", rounds: int = ROUNDS) -> Sample:
        """Seconds of a run of ``model``. Raises NotRun."""
        order = {"do": "bound", "model": str(self.running.model(model)), "provider": self.provider.to_json(), "held": held}
        return Sample.of(self.running.ask(order, [0], rounds=rounds)[0])

    def op(self, work: Workload) -> Sample:
        """Seconds of the op of ``work`` within a model. Raises NotRun."""
        once, often = self.run(work.copies(1)), self.run(work.copies(COPIES))
        return Sample(max(1e-9, often.median - once.median) / (COPIES - 1), often.spread / (COPIES - 1))


def _measured(type_: DeviceType, runs: _Runs) -> _Found:
    short, long = runs.run(chain(1)), runs.run(chain(CHAIN + 1))
    found = _Found(replace(type_, overhead=_rounded(max(0.0, long.median - short.median) / CHAIN)), {"overhead": long.relative})
    work = elementwise(STREAM)
    one = runs.op(work)
    found.type_ = _scaled(found.type_, work, one, _bandwidth)
    found.spreads["memory_bandwidth"] = one.relative
    for dtype in DTYPES:
        try:
            work = product(dtype, SIDE)
            one = runs.op(work)
        except NotRun:
            found.missing.append(dtype)
            continue
        found.type_ = _scaled(found.type_, work, one, partial(_rate, dtype))
        found.spreads[dtype] = one.relative
    seconds: dict[str, float] = defaultdict(float)
    works: dict[str, list[Workload]] = defaultdict(list)
    for work in zoo_ops(BATCH):
        kind = work.cost.kind
        try:
            seconds[kind] += runs.op(work).median
        except NotRun:
            continue
        works[kind].append(work)
    for kind, alike in works.items():
        if kind != "matmul":
            found.type_ = _fitted(found.type_, kind, alike, seconds[kind])
        found.ops[kind] = len(alike)
    return found


def _scaled(type_: DeviceType, work: Workload, one: Sample, scale: Callable[[DeviceType, float], DeviceType]) -> DeviceType:
    """The type whose number is scaled until ``work`` takes as long as measured."""
    for _ in range(_STEPS):
        type_ = scale(type_, max(1e-9, op_seconds(work.op, type_) - type_.overhead) / one.median)
    return type_


def _fitted(type_: DeviceType, kind: str, works: list[Workload], seconds: float) -> DeviceType:
    """The type whose efficiency for a class is scaled until its ops take so many seconds in sum, at most 1."""
    table = dict(type_.efficiency)
    before = table.get(kind, table.get(kind.rpartition("-")[0], table.get("default", 1.0)))
    for _ in range(_STEPS):
        predicted = sum(op_seconds(work.op, type_) - type_.overhead for work in works)
        before = min(1.0, before * max(1e-9, predicted) / seconds)
        type_ = replace(type_, efficiency=tuple(sorted({**dict(type_.efficiency), kind: _rounded(before)}.items())))
    return type_


def _bandwidth(type_: DeviceType, factor: float) -> DeviceType:
    return replace(type_, memory_bandwidth=_rounded(type_.memory_bandwidth * factor))


def _rate(dtype: str, type_: DeviceType, factor: float) -> DeviceType:
    rates = dict(type_.rates)
    rates[dtype] = _rounded((rates.get(dtype) or rates.get("f32") or max(rates.values())) * factor)  # as ``rate_of``
    return replace(type_, rates=tuple(sorted(rates.items())))


@dataclass(frozen=True, slots=True)
class _Link:
    """Of the link to the host, in each direction: bytes per second and seconds of latency; ``spread``: that of the large copy;
    ``idle``: seconds of a run that does next to nothing."""

    bandwidth: float
    latency: float
    spread: float
    idle: float


def _link(runs: _Runs) -> _Link:
    small, large = (runs.run(elementwise(size).model, held="host") for size in (SMALL, LARGE))
    inside, idle = runs.run(elementwise(LARGE).model), runs.run(elementwise(SMALL).model)
    copied = max(1e-9, (large.median - small.median) - (inside.median - idle.median)) / 2
    return _Link(4 * LARGE / copied, max(0.0, small.median - idle.median) / 2, large.relative, idle.median)


def _linked(topology: Topology, host: str, type_: str, link: _Link) -> tuple[Topology, Notes]:
    """The links between the host and the devices of a type, where nothing else is on the way, with what was measured."""
    devices = {device.name for device in topology.devices if device.type == type_ and device.host == host}
    links = tuple(
        replace(each, bandwidth=_rounded(link.bandwidth), latency=_rounded(link.latency))
        if host in each.ends and set(each.ends) <= {host, *devices}
        else each
        for each in topology.links
    )
    text = f"measured: {4 * LARGE >> 20} MiB from the host and back, +-{percent_text(link.spread)}"
    changed = [each.name for each, before in zip(links, topology.links, strict=True) if each != before]
    notes = {(f"links.{name}", key): text for name in changed for key in ("bandwidth", "latency")}
    return replace(topology, links=links), notes


def _notes(name: str, device: str, found: _Found) -> Notes:
    table = f"types.{name}"
    rates = ", ".join(f"{dtype} +-{percent_text(found.spreads[dtype])}" for dtype in DTYPES if dtype in found.spreads)
    missing = f"; {', '.join(found.missing)}: the provider multiplies none" if found.missing else ""
    kept = sorted(set(dict(found.type_.rates)) - set(found.spreads))
    ops = ", ".join(f"{count} {kind}" for kind, count in sorted(found.ops.items()))
    return {
        (table, "rates"): f"measured on {device}: products, {rates}{missing}; kept: {', '.join(kept) or 'none'}",
        (table, "memory_bandwidth"): f"measured: an elementwise op, +-{percent_text(found.spreads['memory_bandwidth'])}",
        (table, "handover"): "measured: a run that does next to nothing",
        (table, "overhead"): f"measured: an op of a chain of {CHAIN}, +-{percent_text(found.spreads['overhead'])}",
        (table, "efficiency"): f"measured: {ops} of zoo models in batches of {BATCH}",
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
