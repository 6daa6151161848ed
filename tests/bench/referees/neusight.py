"""Inference and training steps of transformers on one GPU, in f32 by PyTorch, kernel by kernel: ``passes.costs.op_time`` with
the shipped preset, where there is one of the GPU, and with numbers fitted to other GPUs alone.

What is fitted: efficiency of products and of memory, overhead of a kernel, and what the host takes to start one in training.
``left out``: the means of what other GPUs of its kind reach, of the vendor and, since cards of 75 W do not hold their clock,
of such a power; the GPU's own are the rates and the bandwidth of its data sheet. ``own``: fitted to this GPU. Not looked at:
plans on several GPUs, fused models, and mixtures of experts.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import Cost
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import TensorType
from passes.costs.op_time import op_seconds, passes_seconds
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.cost import CostPass
from tests.bench.referees.fitting import Floats, least

MODELS = {
    "bert_large": "bert-base,layers=24,hidden=1024,heads=16",
    "gpt2_large": "gpt2,layers=36,hidden=1280,heads=20",
    "opt_13": "gpt2,layers=24,hidden=2048,heads=32,vocab=50272",
    "gpt3_xl": "gpt2,layers=24,hidden=3072,heads=24",  # 24 heads of 128, as published
    "gpt3_27": "gpt2,layers=32,hidden=2560,heads=32",
}
SHEETS = {
    "Tesla_P4": (5.5e12, 192e9, ""),
    "Tesla_P100-PCIE-16GB": (9.3e12, 732e9, "p100"),
    "Tesla_T4": (8.1e12, 300e9, "t4"),
    "Tesla_V100-PCIE-32GB": (14e12, 900e9, "v100"),
    "NVIDIA_A100-PCIE-40GB": (19.5e12, 1555e9, "a100"),
    "NVIDIA_A100_80GB_PCIe": (19.5e12, 1935e9, "a100"),
    "AMD_Instinct_MI100": (46.1e12, 1229e9, ""),
    "AMD_Instinct_MI210": (45.3e12, 1638e9, ""),
    "AMD_Instinct_MI250": (45.3e12, 1638e9, "mi250"),
}
"""Of vendors: dense f32 flop/s, bytes per second of memory; and the preset."""
START, TRUST = np.log([0.8, 0.8, 4e-6, 1e-5]), np.array([0.05, 0.3, 0.05, 0.05])
"""Where a fit begins, and how much it costs to go away from there: few rows tell few numbers apart."""


@dataclass(frozen=True)
class Row:
    """A measurement: ``ops`` that are alike once, with how many there are."""

    device: str
    trains: bool
    ops: tuple[tuple[Op, int], ...]
    seconds: float
    neusight: float


def judge(path: Path) -> Iterator[str]:
    with path.open() as file:
        table = [row for row in csv.DictReader(file) if not row["option"] and row["model"] in MODELS]
    rows = [
        Row(
            row["device"],
            row["mode"] == "train",
            ops_of(row["model"], int(row["batch"]), int(row["sequence_length"])),
            float(row["measured_ms"]) * 1e-3,
            float(row["neusight_ms"]) * 1e-3,
        )
        for row in table
    ]
    everything = []
    owns = {device: fitted([row for row in rows if row.device == device]) for device in sorted({row.device for row in rows})}
    for device, own in owns.items():
        mine = [row for row in rows if row.device == device]
        kin = np.mean([logs for other, logs in owns.items() if other != device and kind(other) == kind(device)], axis=0)
        line = (
            mean_error(mine, [predicted(row, type_of(device, np.log([0.7, 1.0, 3e-6, 1e-12]))) for row in mine]),
            mean_error(mine, [predicted(row, preset) for row in mine]) if (preset := preset_of(device)) else np.nan,
            mean_error(mine, [predicted(row, type_of(device, kin)) for row in mine]),
            mean_error(mine, [predicted(row, type_of(device, own)) for row in mine]),
            mean_error(mine, [row.neusight for row in mine]),
        )
        everything.append(line)
        matmul, memory, overhead, launch = np.exp(own)
        told = f"matmul {matmul:.2f}, memory {memory:.2f}, overhead {overhead * 1e6:.1f} us, launch {launch * 1e6:.0f} us"
        yield f"{device:22} {len(mine):3} rows: " + TOLD.format(*line).replace("nan%", "   -") + f"   {told}"
    yield f"{'mean':22} {len(rows):3} rows: " + TOLD.format(*np.nanmean(np.array(everything), axis=0))


def kind(device: str) -> str:
    return "AMD" if device.startswith("AMD") else "75 W" if device in ("Tesla_P4", "Tesla_T4") else "NVIDIA"


TOLD = "before {:6.1%}  preset {:6.1%}  left out {:6.1%}  own {:6.1%}  NeuSight {:6.1%}"


@lru_cache(maxsize=64)
def ops_of(model: str, batch: int, length: int) -> tuple[tuple[Op, int], ...]:
    spec = f"zoo:{MODELS[model]},batch={batch},seq={length},positions={max(length, 1024)},weights=declared"
    context = pass_context(DiagnosticSink())
    module = CostPass().run(CanonicalizePass().run(load_model(spec, {}, DiagnosticSink()).module, context), context)
    counts: Counter[object] = Counter()
    known: dict[object, Op] = {}
    for op in module.entry.ops:
        type_ = op.results[0].type
        alike = op.facet(Cost), type_.shape if isinstance(type_, TensorType) else None
        known.setdefault(alike, op)
        counts[alike] += 1
    return tuple((known[alike], count) for alike, count in counts.items())


def predicted(row: Row, type_: DeviceType) -> float:
    total = 0.0
    for op, count in row.ops:
        cost = op.facet(Cost)
        if row.trains and cost is not None:
            total += count * sum(passes_seconds(op, type_, cost.input_grad + cost.weight_grad))
        else:
            total += count * op_seconds(op, type_)
    return total


def type_of(device: str, logs: Floats) -> DeviceType:
    """Of the numbers of a data sheet, and of fitted ones."""
    rate, bandwidth, _ = SHEETS[device]
    matmul, memory, overhead, launch = (float(x) for x in np.exp(logs))
    efficiency = (("default", 0.5), ("matmul", matmul), ("memory", memory))
    return DeviceType("gpu", "gpu", (("f32", rate),), bandwidth, None, overhead, efficiency=efficiency, launch=launch)


def preset_of(device: str) -> DeviceType | None:
    """A shipped preset with the bandwidth and the rate of the card that was measured."""
    rate, bandwidth, name = SHEETS[device]
    if not name:
        return None
    topology = load_topology(f"preset:{name}", DiagnosticSink())
    type_ = topology.type(topology.devices[0].type)
    return replace(type_, rates=(("f32", rate),), memory_bandwidth=bandwidth)


def mean_error(rows: Sequence[Row], found: Sequence[float]) -> float:
    return float(np.mean([abs(seconds / row.seconds - 1) for row, seconds in zip(rows, found, strict=True)]))


def fitted(rows: Sequence[Row]) -> Floats:
    def residuals(logs: Floats) -> Floats:
        wrong = [np.log(predicted(row, type_of(row.device, logs)) / row.seconds) for row in rows]
        return np.concatenate([wrong, TRUST * (logs - START)])

    return least(residuals, START)[0]
