"""Training in two stages on two ranks against one rank: ``python -m tests.bench.train_stages [--steps N] [--rounds N]
[--microbatches M] [--predictions]``.

A CNN of the shape of CIFAR's images (32x32, 10 classes) is exported from PyTorch and compiled for one one-thread worker and for
two, in two stages, with 16 microbatches of 16 images. ``dnnc train`` runs both on the same synthetic microbatches, by turns.
Samples a second are the median over the steps but the first three of each run; losses of equal steps are compared. Target: at
least 1.6 times. The two stages are trained without a flush too (``--schedule 2bw``), with weights that lack an update.

The step of two ranks is predicted too: the same stages run by turns on one rank, and the seconds of their passes there go
through the simulator. Target: within 20 %.

``--predictions`` compares the plan's own step with what is measured instead, on one rank and on two: as the model of costs
predicts it, and as a profile does that ``dnnc profile --objective training`` writes before each run. The seconds in which
devices compute are compared with the processor's too. Target with a profile: within 20 %.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import dnnc
from dnnc.workloads.scheduled import scheduled
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Schedule
from ir.ops.rows import unrolled
from passes.timeline.simulate import makespan
from passes.timeline.workload import workload
from tests.bench.machine import header

STEP = re.compile(r"step (\d+)  loss (\S+)  (\S+) samples/s")
WARM = 3
TARGET = 1.6
NEAR = 0.2
MICROBATCHES, SAMPLES = 16, 16
OLD = "2bw"
LOSS = "cross-entropy:linear"


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


def foreseen(build: Path, microbatches: int) -> tuple[float, float]:
    """Seconds of a step as the plan of a build says, and those in which its devices compute, added up."""
    plan = json.loads((build / "plan.json").read_text(encoding="utf-8"))
    return float(plan["value"]), microbatches * sum(stage["seconds"]["compute"] for stage in plan["stages"])


def took(build: Path, steps: int, samples: int) -> tuple[float, float]:
    """Seconds of a step on the clock, the median behind the first ones, and the processor's seconds of one, in which a busy
    neighbour hardly counts: what ``steps`` more than one take more, over their number."""
    used, paces = [], [0.0]
    for count in (1, 1 + steps):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _, paces = trained(build, count)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return samples / statistics.median(paces[WARM:]), (used[1] - used[0]) / steps


def predictions(folder: Path, options: argparse.Namespace) -> None:
    """Prints what plans predict of a step over what it takes, without and with a profile: medians of the rounds."""
    model, loss, training = str(folder / "cnn.onnx"), ["--loss", LOSS], ["--objective", "training"]
    for ranks in (1, 2):
        restricted = ["--stages", str(ranks), "--replicas", "1", "--mesh", "none", "--microbatches", str(options.microbatches)]
        found: dict[str, list[tuple[float, float]]] = {"the model of costs": [], "a profile": []}
        for number in range(options.rounds):
            profile = folder / f"{ranks}-{number}.json"
            common = [model, "-t", f"preset:cpu-{ranks}", *training, *loss]
            command("profile", *common, "-o", str(profile))
            for name, more in zip(found, ([], ["--profile", str(profile)]), strict=True):
                build = folder / f"{ranks}-{number}-{len(more)}"
                command("compile", *common, *restricted, *more, "-o", str(build))
                pairs = zip(
                    foreseen(build, options.microbatches),
                    took(build, options.steps, options.microbatches * SAMPLES),
                    strict=True,
                )
                clock, processor = (predicted / measured for predicted, measured in pairs)
                found[name].append((clock, processor))
        for name, ratios in found.items():
            clock, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
            print(f"{ranks} ranks, {name}: predicted over measured {clock:.2f}, over processor's {processor:.2f}", flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES)
    parser.add_argument("--predictions", action="store_true", help="of plans, without and with a profile")
    options = parser.parse_args()
    print(header())
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dnnc.from_torch(model(), (torch.randn(SAMPLES, 3, 32, 32),), folder / "cnn.onnx")
        if options.predictions:
            predictions(folder, options)
            return
        builds: dict[int | str, Path] = {}
        for key, count in ((1, 1), (2, 2), (OLD, 2)):
            builds[key] = folder / f"on{key}"
            restricted = [
                "--stages",
                str(count),
                "--replicas",
                "1",
                "--mesh",
                "none",
                "--microbatches",
                str(options.microbatches),
            ]
            asked = ["--loss", LOSS]
            training = ["--objective", "training", *asked, *restricted, *(["--schedule", OLD] if key == OLD else [])]
            told = command("compile", str(folder / "cnn.onnx"), "-t", f"preset:cpu-{count}", "-o", str(builds[key]), *training)
            print(next(line for line in told.splitlines() if line.startswith("training:")))
        losses: dict[int | str, list[float]] = {}
        paces: dict[int | str, list[float]] = {key: [] for key in builds}
        alone = on_one(folder, builds[2], asked)
        steps = []
        for number in range(options.rounds):
            steps.append(predicted(builds[2], measured(alone, WARM + 1, folder / f"out{number}")))
            for key, build in builds.items():
                losses[key], pace = trained(build, options.steps)
                paces[key] += pace[WARM:]
    apart = max(abs(one - two) / max(1.0, abs(one)) for one, two in zip(losses[1], losses[2], strict=True))
    one, two, old = (statistics.median(paces[key]) for key in builds)
    print(f"one rank   {one:8.1f} samples/s")
    print(f"two ranks  {two:8.1f} samples/s  {two / one:.2f}x (target: at least {TARGET}x)")
    print(f"no flush   {old:8.1f} samples/s  {old / one:.2f}x; its last loss is {losses[OLD][-1]:.4g}")
    took, foreseen = options.microbatches * SAMPLES / two, statistics.median(steps)
    print(
        f"a step     {took * 1e3:8.1f} ms, predicted from the stages' seconds on one rank {foreseen * 1e3:.1f} ms  "
        f"{took / foreseen:.2f}x (target: within {NEAR:.0%})"
    )
    print(f"losses of {options.steps} steps, from {losses[1][0]:.4g} to {losses[1][-1]:.4g}, differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
