"""Products of matrices in bf16, inside serving frameworks: ``passes.costs.products`` with a preset, or with fitted numbers.

Who measured them (ai-dynamo/aiconfigurator, ``collector/trtllm/collect_gemm.py``) took turns between at most five copies of the
weights, as many as exceed the second-level cache. So weights whose copies just fill it are found there, half as large ones or
somewhat larger ones are not: L40S, of 96 MiB, moves 34 MB (three copies) at 1.8 TB/s, 42 MB (again three) at 0.65.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.topology import DeviceType
from passes.costs.op_time import efficiency_of
from passes.costs.products import CUTS, TILES, Product, hit, product_seconds
from tests.bench.referees.fitting import TOLD, Floats, fitted, judged

SHEETS = {
    "a100": (108, 312e12, 2.039e12, 40e6),
    "h100": (132, 989e12, 3.35e12, 50e6),
    "h200": (132, 989e12, 4.8e12, 50e6),
    "b200": (148, 2250e12, 8e12, 126e6),
    "l40s": (142, 362e12, 864e9, 96e6),
}
"""Of vendors: multiprocessors, dense bf16 flop/s, bytes per second of memory, bytes of second-level cache."""
TURNS = {"a100": 40 << 20, "h100": 50 << 20, "h200": 50 << 20, "b200": 126 << 20, "l40s": 96 << 20}
"""Bytes of cache that copies of weights were made to exceed."""
STARTS = [
    (0.8, 0.9, ratio, 4.0, 2e-6, 2e-6, spread, cache, step, 2.0)
    for cache, ratio in ((0.4, 1.0), (1.1, 2.0))
    for spread, step in ((0.3, 1.2e-7), (5.0, 4e-8))
]
"""Efficiency, that of memory, bandwidth of the cache and of the units over that of memory, overhead, split, balance over
what is left of 1, cache over the sheet's, step, bandwidth of stores over that of memory."""


def judge(path: Path) -> Iterator[str]:
    tables: dict[str, list[tuple[int, int, int, float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            tables.setdefault(row["gpu"], []).append((*shape, float(row["milliseconds"]) * 1e-3))
    everything = []
    for name, found in sorted(tables.items()):
        gpu = name.partition("_")[0]
        table = np.array(found)
        rows, seconds = table[:, :3], table[:, 3]
        model = model_of(gpu)
        units, rate, bandwidth, cache = SHEETS[gpu]
        plain = np.maximum(2 * rows.prod(axis=1) / (0.7 * rate), bytes_of(rows) / bandwidth) + 3e-6
        shipped = shipped_seconds(gpu, rows)
        folds, few = judged(model, STARTS, rows, seconds)
        line = (float(np.abs(plain / seconds - 1).mean()), float(np.abs(shipped / seconds - 1).mean()), folds, few)
        everything.append(line)
        best = np.exp(fitted(model, STARTS, rows, seconds))
        told = f"matmul {best[0]:.3f}, memory {best[1]:.3f}, overhead {best[4] * 1e6:.2f} us, units {units}"
        told += f", unit_bandwidth {best[3] * bandwidth / 1e12:.2f} TB/s, cache {best[7] * cache / 1e6:.0f} MB"
        told += f", cache_bandwidth {best[2] * bandwidth / 1e12:.3f} TB/s"
        told += f", step {best[8] * 1e9:.0f} ns, store_bandwidth {best[9] * bandwidth / 1e12:.2f} TB/s"
        told += f", split {best[5] * 1e6:.2f} us, balance {best[6] / (1 + best[6]):.2f}"
        yield TOLD.format(f"{gpu:5} {len(rows):4} rows", *line) + f"   {told}"
    means = np.array(everything).mean(axis=0)
    yield TOLD.format("mean", *means)


def bytes_of(rows: Floats) -> Floats:
    m, n, k = rows.T
    return np.asarray(2 * (m * k + k * n + m * n))


def weights_of(rows: Floats) -> Floats:
    return np.asarray(2 * rows[:, 1] * rows[:, 2])


def between(gpu: str, rows: Floats) -> Floats:
    """Bytes that are moved until the same copy of weights is read again."""
    weights = weights_of(rows)
    return np.asarray(np.clip(np.ceil(TURNS[gpu] / weights), 1, 5) * weights + bytes_of(rows) - weights)


def model_of(gpu: str) -> Callable[[Floats, Floats], Floats]:
    """``product_seconds`` over arrays, for the thousands of evaluations of a fit."""
    units, peak, bandwidth, room = SHEETS[gpu]
    tiles_m, tiles_n = (np.array(sizes, float)[None, :, None] for sizes in zip(*TILES, strict=True))
    cuts = np.array(CUTS, float)[None, None, :]

    def model(logs: Floats, rows: Floats) -> Floats:
        efficiency, memory, cached, loads, overhead, split, spread, larger, step, stores = np.exp(np.clip(logs, -40, 40))
        rate, balance, fast = peak * efficiency, spread / (1 + spread), cached * bandwidth
        m, n, k = (column[:, None, None] for column in rows.T)
        length = np.ceil(k / cuts / 32) * 32
        tiles = np.ceil(m / tiles_m) * np.ceil(n / tiles_n) * cuts
        whole, exact = np.ceil(tiles / units), np.maximum(1, tiles / units)
        waves = whole - balance * (whole - exact)
        load = (tiles_m + tiles_n) * length * 2 * units / (loads * bandwidth)
        pace = np.maximum(2 * tiles_m * tiles_n * length * units / rate, np.maximum(load, length / 32 * step))
        work = waves * (pace + tiles_m * tiles_n * 2 * units / (stores * bandwidth))
        arithmetic = (work + (cuts > 1) * (split + 2 * cuts * m * n * 4 / fast)).min(axis=(1, 2))
        size = bytes_of(rows)
        cold = weights_of(rows) * (1 - hits(between(gpu, rows), larger * room))
        warm = (size - weights_of(rows)) * hits(size, larger * room) + weights_of(rows) - cold
        moved = warm / fast + (size - warm) / (memory * bandwidth)
        return np.asarray(overhead + (arithmetic**4 + moved**4) ** 0.25)

    return model


def hits(sizes: Floats, cache: float) -> Floats:
    return np.array([hit(size, cache) for size in sizes.tolist()])


def seconds_of(gpu: str, type_: DeviceType, rate: float, rows: Floats) -> Floats:
    cold = weights_of(rows) * (1 - hits(between(gpu, rows), type_.cache))
    sizes = zip(rows.astype(int).tolist(), bytes_of(rows).astype(int).tolist(), cold.astype(int).tolist(), strict=True)
    return np.array([product_seconds(Product(1, m, n, k, size, 2, none), type_, rate) for (m, n, k), size, none in sizes])


def shipped_seconds(gpu: str, rows: Floats) -> Floats:
    """By the shipped preset; nan where there is none."""
    try:
        (type_,) = load_topology(f"preset:{gpu}", DiagnosticSink()).types
    except InvalidInput:
        return np.full(len(rows), np.nan)
    return seconds_of(gpu, type_, dict(type_.rates)["bf16"] * efficiency_of("matmul", type_), rows)
