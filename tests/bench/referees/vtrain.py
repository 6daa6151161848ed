"""Training steps of GPT on A100s, Megatron's plans: ``dnnc compile --strategy megatron`` of each, with the shipped preset.

A seeded sample of the rows, for each takes five compiles. Of several hosts the steps recompute each stage, without which most
of these plans would not fit; the table does not say. ``before``: as if the host needed no time to start kernels; 5-fold and 20
rows: ``launch``, the one number that is fitted to these tables, from the other rows.
"""

from __future__ import annotations

import csv
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dnnc.compile.driver import compile_model
from dnnc.compile.options import CompileOptions
from dnnc.compile.training import TrainingOptions
from dnnc.machines.presets import find_preset
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Plan
from tests.bench.referees.fitting import TOLD, Floats

ROWS = {"vtrain_single": 40, "vtrain_multi": 10}
"""How many are looked at."""
GRID = (0.0, 30.0, 60.0, 90.0)
"""Microseconds of ``launch`` at which a step is predicted; between them it is interpolated."""


def judge(path: Path) -> Iterator[str]:
    with path.open() as file:
        table = list(csv.DictReader(file))
    random.Random(0).shuffle(table)
    measured, predicted, shipped = [], [], []
    for row in table[: ROWS[path.stem]]:
        recompute = "none" if path.stem == "vtrain_single" else "stage"
        try:
            predicted.append([step(row, launch, recompute) for launch in GRID])
        except Infeasible as error:
            yield f"left out, for it does not fit: {dict(row)}: {error}".partition("\n")[0]
            continue
        shipped.append(step(row, None, recompute))
        measured.append(float(row["iteration_time_ms"]) * 1e-3)
    seconds, grid = np.array(measured), np.array(predicted)
    folds = np.concatenate([held_out(grid, seconds, np.arange(len(seconds)) % 5 != fold) for fold in range(5)])
    some = np.arange(len(seconds)) < min(20, len(seconds) // 2)
    few = held_out(grid, seconds, some)
    errors = [np.abs(found / seconds - 1).mean() for found in (grid[:, 0], np.array(shipped))]
    least, most = np.percentile(np.array(shipped) / seconds, [0, 100])
    yield TOLD.format(f"a100 {len(seconds):5} rows", *errors, folds.mean(), few.mean()) + (
        f"   launch {best_launch(grid, seconds):.0f} us; predicted over measured {least:.2f} to {most:.2f}"
    )


def held_out(grid: Floats, seconds: Floats, known: NDArray[np.bool_]) -> Floats:
    """Errors of the rows that are not ``known``, with the launch that fits those best."""
    launch = best_launch(grid[known], seconds[known])
    return np.abs(at(grid[~known], launch) / seconds[~known] - 1)


def best_launch(grid: Floats, seconds: Floats) -> float:
    return float(min(np.arange(0.0, 91.0), key=lambda launch: np.abs(at(grid, launch) / seconds - 1).mean()))


def at(grid: Floats, launch: float) -> Floats:
    return np.array([np.interp(launch, GRID, row) for row in grid])


def step(row: Mapping[str, str], launch: float | None, recompute: str) -> float:
    """Predicted seconds of a training step; ``launch`` in microseconds, None: the preset's."""
    with tempfile.TemporaryDirectory() as folder:
        return planned(row, launch, recompute, Path(folder)).value


def planned(row: Mapping[str, str], launch: float | None, recompute: str, folder: Path) -> Plan:
    """The plan of a row; its build is ``folder``/build."""
    size = {key: int(row[key]) for key in row if key not in ("iteration_time_ms", "parameters_billion")}
    tensor, data, stages = (size[f"{kind}_parallelism"] for kind in ("tensor", "data", "pipeline"))
    batch = size["micro_batch"] * data
    model = (
        f"zoo:gpt2,qkv=separate,vocab=51200,dtype=f16,batch={batch},hidden={size['hidden_size']},heads={size['attention_heads']},"
        f"layers={size['layers']},seq={size['sequence_length']},positions={size['sequence_length']}"
    )
    axes = [n for n in (data, tensor) if n > 1]
    options = CompileOptions(
        model,
        topology(folder, size["gpus"], launch),
        folder / "build",
        stages=stages,
        mesh="x".join(map(str, axes)) or "none",
        strategy=("megatron" if tensor > 1 else "data") if axes else "",
        replicas=None if axes else 1,
        plan_only=True,
        objective="training",
        microbatches=size["global_batch"] // batch,
        training=TrainingOptions(loss="cross-entropy:logits", recompute=recompute),
    )
    plan = compile_model(options, sink=DiagnosticSink()).module.first(Plan)
    assert plan is not None
    return plan


def topology(folder: Path, gpus: int, launch: float | None) -> str:
    """The preset of so many GPUs, eight to a host, perhaps with another launch."""
    hosts, each = max(1, gpus // 8), min(gpus, 8)
    name = f"{hosts}xa100x{each}" if hosts > 1 else f"a100x{each}"
    if launch is None:
        return f"preset:{name}"
    lines = find_preset(f"a100x{each}").text.splitlines()
    host = folder / "host.toml"
    changed = [f'launch = "{launch} us"' if line.startswith("launch = ") else line for line in lines]
    host.write_text("\n".join(changed))
    if hosts == 1:
        return str(host)
    cluster = folder / "cluster.toml"
    cluster.write_text(find_preset(name).text.replace(f"preset:a100x{each}", host.name))
    return str(cluster)
