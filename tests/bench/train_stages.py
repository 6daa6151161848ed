"""ResNet-20 as a PyTorch module, and ``dnnc train`` run and its passes measured: parts of ``tests.bench.train_whole``."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from dnnc.workloads.scheduled import scheduled
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Schedule
from ir.ops.rows import unrolled
from passes.timeline.simulate import makespan
from passes.timeline.workload import workload

STEP = re.compile(r"step (\d+)  loss (\S+)  (\S+) samples/s")


class Block(nn.Module):
    """Two convolutions and what goes around them (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        one, two = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.residual = nn.Sequential(one, nn.BatchNorm2d(outputs), nn.ReLU(), two, nn.BatchNorm2d(outputs))
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(x) + self.around(x))


def model() -> nn.Sequential:
    """ResNet-20 for images of 32x32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for inputs, outputs, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def command(*arguments: str) -> str:
    """What ``dnnc`` prints to its standard output."""
    done = subprocess.run([sys.executable, "-m", "dnnc", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"dnnc {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def trained(build: Path, steps: int, data: str = "synthetic") -> tuple[list[float], list[float]]:
    """Losses, and samples a second, of each step."""
    told = command("train", str(build), "--steps", str(steps), "--data", data)
    found = [match.groups() for match in STEP.finditer(told)]
    return [float(loss) for _, loss, _ in found], [float(pace) for _, _, pace in found]


def on_one(folder: Path, build: Path, asked: list[str]) -> Path:
    """The stages of a build on one device, which works on them by turns."""
    plan = json.loads((build / "plan.json").read_text(encoding="utf-8"))
    for stage in plan["stages"]:
        stage["device"] = "cpu0"
    (folder / "on_one.json").write_text(json.dumps(plan), encoding="utf-8")
    out = folder / "stages_on_one"
    command(
        "compile", str(folder / "cnn.onnx"), "-t", "preset:cpu-1", "-o", str(out), "--plan", str(folder / "on_one.json"), *asked
    )
    return out


def measured(build: Path, steps: int, out: Path, data: str = "synthetic") -> dict[tuple[str, int], float]:
    """Seconds of each pass of each stage on one rank: medians over the microbatches of the last step."""
    command("train", str(build), "--steps", str(steps), "--out", str(out), "--data", data)
    trace = json.loads((out / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    (track,) = {event["pid"] for event in trace if event["ph"] == "M" and event["args"].get("name") == "measured"}
    found: dict[tuple[str, int], list[float]] = {}
    for event in trace:
        if event["ph"] == "X" and event["pid"] == track and event["name"][0] in "FBU":
            found.setdefault((event["name"][0], event["args"]["stage"]), []).append(event["dur"] / 1e6)
    return {key: statistics.median(seconds) for key, seconds in found.items()}


def predicted(build: Path, seconds: dict[tuple[str, int], float]) -> float:
    """Seconds of a step of a build whose passes take these."""
    module = scheduled(build, "", DiagnosticSink())
    schedule, load = module.first(Schedule), workload(module)
    assert schedule is not None
    stages = range(len(load.compute))
    load = replace(
        load,
        compute=tuple(seconds["F", stage] for stage in stages),
        backward=tuple(seconds["B", stage] for stage in stages),
        sync=tuple(seconds.get(("U", stage), 0.0) for stage in stages),
    )
    return makespan(load, unrolled(schedule, load.flow, schedule.microbatches))
