"""NCCL's collectives in one NVLink host: ``passes.costs.exchange`` over the links of a preset, or with fitted ones."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.ops.opdefs import COLLECTIVES
from passes.costs.exchange import Speed, exchanges, rings
from passes.costs.network import Network
from tests.bench.referees.fitting import TOLD, Floats, error, fitted, judged

KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
BEFORE = {"a100": (3e11, 2e-6), "h100": (4.5e11, 2e-6), "h200": (4.5e11, 2e-6), "b200": (9e11, 2e-6)}
"""Bandwidth and latency of a path between two devices as the presets had them, or would have, from vendors' sheets alone."""
STARTS = ((5e-6, 1e-6, 3e11, 1e11, 3e-5),)


def judge(path: Path) -> Iterator[str]:
    tables: dict[str, list[tuple[int, int, float, float]]] = {}
    names = list(KINDS)
    with path.open() as file:
        for row in csv.DictReader(file):
            kind, members, size = names.index(row["collective"]), int(row["gpus"]), float(row["bytes"])
            tables.setdefault(row["gpu"], []).append((kind, members, size, float(row["milliseconds"]) * 1e-3))
    everything: list[tuple[float, float, float, float]] = []
    for name, found in sorted(tables.items()):
        table = np.array(found)
        rows, seconds = table[:, :3], table[:, 3]
        type_ = name.partition("_")[0]
        bandwidth, latency = BEFORE.get(type_, (3e11, 2e-6))
        old = np.log([1e-12, latency, bandwidth, bandwidth, 1e-12])
        folds, few = judged(model, STARTS, rows, seconds)
        line = (float(error(model, old, rows, seconds).mean()), preset_error(type_, rows, seconds), folds, few)
        everything.append(line)
        logs = fitted(model, STARTS, rows, seconds)
        start, step, wide, small, switch = np.exp(logs)
        yield TOLD.format(f"{type_:5} {len(rows):4} rows", *line) + (
            f"   start {start * 1e6:.2f} us, step {step * 1e6:.2f} us, {wide / 1e9:.0f} GB/s, small {small / 1e9:.0f} GB/s,"
            f" switch {switch * 1e6:.1f} us"
        )
    means = np.array(everything).mean(axis=0)
    yield TOLD.format("mean", *means)


def model(logs: Floats, rows: Floats) -> Floats:
    start, step, wide, small, switch = np.exp(logs)
    speed = Speed(float(wide), float(step), float(start), float(small), float(switch))
    return np.array([seconds_of(speed, *row) for row in rows])


def seconds_of(speed: Speed, kind: float, members: float, size: float) -> float:
    """Of a collective of ``size`` bytes: of the whole tensor, or of what each member gives away in an exchange of all with all
    (which side is counted shows in the bandwidths: only so do all kinds reach the same)."""
    step, n = list(COLLECTIVES.values())[int(kind)], int(members)
    return speed.seconds(step.rounds * (n - 1), size / n)


def preset_error(name: str, rows: Floats, seconds: Floats) -> float:
    """With the links of the shipped preset; nan where there is none."""
    found = []
    for (kind, members, size), measured in zip(rows, seconds, strict=True):
        try:
            topology = load_topology(f"preset:{name}x{int(members)}", DiagnosticSink())
        except InvalidInput:
            return float("nan")
        group = [[device.name for device in topology.devices]]
        spread = list(COLLECTIVES.values())[int(kind)].spreads
        speed = (exchanges if spread else rings)(Network(topology), group)
        found.append(abs(seconds_of(speed, kind, members, size) / measured - 1))
    return float(np.mean(found))
