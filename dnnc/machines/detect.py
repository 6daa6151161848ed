"""The topology of a host, from the facts read of it (``facts.py``). What no system states is taken from the presets.

Each NUMA node is a device, or the cores are split evenly over a requested number of devices, neighbouring cores together.
Devices whose slowest cores are of different kinds (``core_kinds``) are of different types, so that each is measured. A note
beside each number says whether it was *read* from the system, is from the *vendor*'s data sheet, or is a *guess*, which ``dnnc
topology measure`` replaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dnnc.machines.facts import Facts, Gpu
from dnnc.machines.faults import MoreDevicesThanCores
from dnnc.machines.topology import read_topology
from dnnc.machines.topology.writer import Notes
from dnnc.onnx.providers import CPU, CUDA
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.text.units import bytes_text
from passes.costs.op_time import EPILOGUE

_CORE = "preset:cpu-1"
_PCIE = (12e9, 10e-6)
"""Bandwidth and latency assumed between a GPU and its host: PCIe 3 with 16 lanes."""
_UNKNOWN_GPU = DeviceType("gpu", "gpu", (("f16", 20e12), ("f32", 10e12)), 500e9, overhead=5e-6, efficiency=(("default", 0.5),))
_MIB = 1 << 20
_RUNTIME = 55 * _MIB
"""Bytes that a process of ``dnnc run`` holds in addition to its model."""
_ALIKE = 0.85
"""Cores of one kind are at least so quick as the quickest of it: processors of one kind state clocks that differ by a few
percent, large and small ones by a third and more."""
_TOLD = 8
"""Devices whose cores the comment lists."""


def split_cores(facts: Facts, devices: int | None) -> tuple[tuple[int, ...], ...]:
    """The cores of each CPU device: those of one NUMA node, or an equal part for each of ``devices``. One core is left for the
    process of each GPU, as far as every CPU device still has one. Raises UsageError for more devices than cores."""
    nodes = [list(node.cores) for node in facts.nodes]
    kept = max(0, min(len(facts.gpus) if CUDA in facts.providers else 0, facts.usable - (devices or 1)))
    usable = facts.usable - kept
    for _ in range(kept):
        max(nodes, key=len).pop()
    if devices is None and sum(map(len, nodes)) == usable and all(nodes):
        return tuple(map(tuple, nodes))
    count = devices if devices is not None else min(len(nodes), usable)
    if count > usable:
        raise UsageError(MoreDevicesThanCores(count, usable), where=f"--devices {count}")
    ordered = [core for node in nodes for core in node][:usable]
    size = len(ordered) // count
    return tuple(tuple(ordered[number * size : (number + 1) * size]) for number in range(count))


def core_kinds(facts: Facts) -> dict[int, int]:
    """The kind of each core by its number, 0 for the quickest; empty where the system does not state how quick they are."""
    kinds: dict[int, int] = {}
    best = kind = 0
    for speed, core in sorted(zip(facts.speeds, facts.cores, strict=False), key=lambda row: (-row[0], row[1])):
        if best and speed < _ALIKE * best:
            best, kind = speed, kind + 1
        best, kinds[core] = best or speed, kind
    return kinds


def detected(facts: Facts, devices: int | None = None) -> tuple[Topology, Notes]:
    """The topology of a host, and notes on where each number is from."""
    parts = split_cores(facts, devices)
    notes: dict[tuple[str, str], str] = {("", ""): _headline(facts)}
    shares = _shares(facts, parts)
    base = read_topology_of(_CORE)
    kinds = core_kinds(facts)
    types: dict[tuple[int, int], DeviceType] = {}
    placed = []
    for number, (cores, share) in enumerate(zip(parts, shares, strict=True)):
        found = sorted({kinds.get(core, 0) for core in cores})
        key = len(cores), found[-1]
        if key not in types:
            types[key] = _core_type(base.types[0], *key, min(shares), facts.cache)
            notes |= _core_notes(types[key], facts)
            notes[f"types.{types[key].name}", ""] += _kinds_text(facts, found)
        placed.append(Device(f"cpu{number}", types[key].name, facts.host, share if share != types[key].memory else None))
    notes["devices.cpu0", ""] = _cores_text(parts)
    cpus = [device.name for device in placed]
    links = [replace(base.links[0], ends=(facts.host, *cpus))]
    notes |= {("links.memory", key): f"guess: that of {_CORE}" for key in ("bandwidth", "latency", "training")}
    gpu_types: dict[str, DeviceType] = {}
    for gpu in facts.gpus:
        type_, known = _gpu_type(gpu)
        gpu_types[type_.name] = type_
        notes |= _gpu_notes(type_, known)
        own = gpu.memory if gpu.memory != type_.memory else None
        placed.append(Device(f"gpu{gpu.index}", type_.name, facts.host, own, gpu.index))
        notes[f"devices.gpu{gpu.index}", "type"] = f"read: nvidia-smi calls it {gpu.name}"
        links.append(Link(f"pcie{gpu.index}", (facts.host, f"gpu{gpu.index}"), *_PCIE))
        guess = "guess: PCIe 3 x16; links between GPUs (NVLink) are not looked for"
        notes |= {(f"links.pcie{gpu.index}", key): guess for key in ("bandwidth", "latency")}
    host = Host(facts.host, facts.usable, facts.memory // _MIB * _MIB)
    notes |= {(f"hosts.{host.name}", key): f"read: {text}" for key, text in _limits(facts).items()}
    name = "@" + re.sub(r"[^A-Za-z0-9_]", "_", facts.host)
    return Topology(name, (*types.values(), *gpu_types.values()), (host,), tuple(placed), (), tuple(links)), notes


def missing_providers(topology: Topology, available: Iterable[str]) -> list[str]:
    """The execution providers that the types name and ONNX Runtime lacks."""
    return sorted({type_.provider for type_ in topology.types if type_.provider} - set(available))


def read_topology_of(preset: str) -> Topology:
    """A preset's topology."""
    from dnnc.machines.presets import find_preset

    return read_topology(find_preset(preset.removeprefix("preset:")).text, where=preset)


def _shares(facts: Facts, parts: tuple[tuple[int, ...], ...]) -> list[int]:
    """Bytes of memory of each device, in whole MiB, in proportion to its cores."""
    total = sum(map(len, parts))
    return [max(_MIB, facts.memory * len(cores) // total // _MIB * _MIB) for cores in parts]


def _core_type(core: DeviceType, cores: int, kind: int, memory: int, cache: int) -> DeviceType:
    """The type of a device with ``cores`` cores, each like the preset's ``core`` with a ``cache`` of its own, 0: not known; the
    slowest of them of a ``kind``, which its name states unless it is the quickest."""
    name = (core.name if cores == 1 else f"cores{cores}") + (f"-{kind + 1}" if kind else "")
    rates = tuple((dtype, rate * cores) for dtype, rate in core.rates)
    return replace(
        core,
        name=name,
        rates=rates,
        scalar_rate=core.scalar_rate * cores,
        memory=memory,
        reserved=_RUNTIME,
        source="",
        cores=cores,
        cache=(cache or core.cache) * cores,
        cache_bandwidth=core.cache_bandwidth * cores,
    )


def _core_notes(type_: DeviceType, facts: Facts) -> Notes:
    table = f"types.{type_.name}"
    guess = f"guess: that of {_CORE}, an AMD EPYC (Zen 4)"
    cores = type_.cores
    notes = dict.fromkeys(((table, key) for key in ("memory_bandwidth", "overhead", "handover", "efficiency")), guess)
    notes[table, "rates"] = guess if cores == 1 else f"{guess}, times {cores} cores"
    notes[table, "scalar_rate"] = notes[table, "rates"]
    notes[table, "products"] = f"cache: {'read' if facts.cache else 'guess'}; bandwidth: {notes[table, 'rates']}"
    notes[table, "cores"] = "read: this device's part of the host's"
    notes[table, "memory"] = "read: this device's part of the host's memory"
    notes[table, "reserved"] = "measured elsewhere: a process that runs next to nothing (python -m tests.bench.memory)"
    return {**notes, (table, ""): f"{cores} core{'s' if cores > 1 else ''} of {facts.processor}"}


def _kinds_text(facts: Facts, found: Sequence[int]) -> str:
    """What the comment of a type says of the kinds ``found`` among its cores."""
    kinds = set(core_kinds(facts).values())
    if len(kinds) < 2:
        return ""
    of = f"; of {len(kinds)} kinds, by the clocks or capacities that the system states, "
    if len(found) > 1:
        return f"{of}more than one: threads wait for the slowest"
    return f"{of}the quickest" if not found[0] else f"{of}kind {found[0] + 1} from the quickest on"


def _gpu_type(gpu: Gpu) -> tuple[DeviceType, str]:
    """The type of a GPU, and the name of its preset; empty if it has none."""
    words = re.findall(r"[a-z0-9]+", gpu.name.lower())
    for size in (3, 2, 1):
        for first in range(len(words) - size + 1):
            name = "".join(words[first : first + size])
            try:
                type_ = read_topology_of(name).types[0]
            except InvalidInput:
                continue
            if type_.kind == "gpu":
                unfused = tuple(
                    item for item in type_.efficiency if item[0] != EPILOGUE
                )  # measured: CUDA's provider fuses little
                return replace(type_, provider=CUDA, efficiency=unfused), f"preset:{name}"
    name = "-".join(words) or "gpu"
    return replace(_UNKNOWN_GPU, name=name, memory=gpu.memory, provider=CUDA), ""


def _gpu_notes(type_: DeviceType, preset: str) -> Notes:
    table = f"types.{type_.name}"
    origin = f"vendor: that of {preset}, which says its source" if preset else "guess: no preset is of this GPU"
    notes = {(table, key): origin for key in ("rates", "memory_bandwidth")}
    notes |= {(table, key): f"guess: that of {preset}" if preset else "guess" for key in ("overhead", "efficiency")}
    return {**notes, (table, "memory"): origin if preset else "read: nvidia-smi"}


def _headline(facts: Facts) -> str:
    lines = [f"What 'dnnc topology detect' found on {facts.host}: {facts.processor}."]
    others = [name for name in facts.providers if name != CPU]
    lines.append(f"Execution providers of ONNX Runtime: {', '.join([*others, CPU] if CPU in facts.providers else others)}.")
    lines.append("read: what the system says; vendor: a data sheet; guess: to be measured ('dnnc topology measure').")
    return "\n".join(lines)


def _limits(facts: Facts) -> dict[str, str]:
    """Where the numbers of the host are from, by key."""
    cores = f"{len(facts.cores)} of {facts.present} by the affinity of the process"
    if facts.quota is not None:
        cores += f", {facts.quota:g} at a time by its control group"
    nodes = f"; {len(facts.nodes)} NUMA nodes" if len(facts.nodes) > 1 else ""
    memory = "all there is" if facts.memory_limit is None else f"the control group's limit is {bytes_text(facts.memory_limit)}"
    return {"cores": cores + nodes, "memory": memory}


def _cores_text(parts: Sequence[tuple[int, ...]]) -> str:
    """The numbers of the cores of the first devices."""
    devices = [f"cpu{number}: {_runs(cores)}" for number, cores in enumerate(parts[:_TOLD])]
    return f"read: cores of {'; '.join(devices)}{' ...' if len(parts) > _TOLD else ''}"


def _runs(cores: tuple[int, ...]) -> str:
    """The numbers of cores, with runs written as ``0-3``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and runs[-1][-1] == core - 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
