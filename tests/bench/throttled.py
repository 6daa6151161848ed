"""What plans for unequal devices gain in real runs: ``python -m tests.bench.throttled [MODEL=LOSS ..] [--check]``.

Four ranks of one thread stand for devices of unequal speeds: one of speed s computes a share s of the time and sleeps for the
rest (``dnnc train --slow``). The speeds sum to at most the cores of this machine, so that the ranks take no time from each
other; unless told they sum to 0.4, which leaves room for what else runs. Of each model, with equal steps:

- equal: data parallel in equal parts on all devices (``--mesh 4 --strategy data --shares equal``);
- found: the plan of ``dnnc compile --objective training`` without further options.

Both are trained by turns. Steps a second are those of the median step, the first ones of each turn left out. What the first
device does is fitted before (``dnnc calibrate``) to steps of the same models on one such rank and, in equal parts, on two; the
seconds of the others are predicted in proportion to their speeds. With ``--check`` the steps of both plans, and of one that
leaves two devices idle, are compared with the unsplit model too (``dnnc train --check``).

Ends with 1 where the found plan of a model is not ``TARGET`` times as fast as equal parts, or a step is not that of the unsplit
model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, train
from dnnc.machines.topology import load_topology, topology_to_toml
from dnnc.machines.topology.read import slowed
from ir.core.diagnostics import DiagnosticSink
from ir.core.topology import Device
from tests.bench.machine import cores, header, load

MODELS = (
    "zoo:mlp,layers=6,hidden=512,batch=320=mse:y",
    "zoo:bert-small,layers=2,hidden=128,seq=32,batch=20,vocab=500=cross-entropy:logits",
    "zoo:vgg19,image=32,width=8,hidden=128,classes=10,batch=20=cross-entropy:y",
)
SPEEDS = "0.2,0.1,0.06,0.04"
MICROBATCHES = 4
WARM = 5
"""Steps left out: synthetic microbatches are drawn in the first four."""
TARGET = 1.3
ONE = ("--stages", "1", "--replicas", "1", "--mesh", "none")
IDLE = ("--stages", "2", "--replicas", "1", "--mesh", "none")


def equal(devices: int) -> tuple[str, ...]:
    """Options of data parallelism in equal parts."""
    return ("--mesh", str(devices), "--strategy", "data", "--shares", "equal")


def dnnc(*arguments: str | Path) -> str:
    """What a command prints to standard output. Ends the bench where it fails."""
    words = [sys.executable, "-m", "dnnc", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"dnnc {' '.join(words[3:])}: {done.stderr}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the zoo and its loss."""

    spec: str
    loss: str

    def compile(self, topology: str | Path, out: Path, *options: str) -> Build:
        step = ("--objective", "training", "--loss", self.loss, "--microbatches", str(MICROBATCHES), *options)
        dnnc("compile", self.spec, "-t", topology, *step, "-q", "-o", out)
        return Build(out)

    @property
    def name(self) -> str:
        return self.spec.partition(",")[0].removeprefix("zoo:")


@dataclass(frozen=True, slots=True)
class Build:
    """A training build."""

    folder: Path

    def seconds(self, steps: int, slow: tuple[str, ...]) -> list[float]:
        """Of each step that counts."""
        found: list[float] = []
        options = TrainOptions(steps=WARM + steps, slow=slow)
        train(TrainingBuild.open(self.folder), options, lambda progressed: found.append(progressed.seconds))
        return found[WARM:]

    def predicted(self) -> float:
        return float(json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))["value"])

    def words(self) -> str:
        """Stages, devices and shares of the plan."""
        stages = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))["stages"]
        return "; ".join(_stage_words(stage) for stage in stages)


def _stage_words(stage: dict[str, object]) -> str:
    devices = stage["device"]
    names = [devices] if isinstance(devices, str) else list(devices)  # type: ignore[call-overload]
    mesh = stage.get("mesh")
    shares = mesh.get("shares", {}) if isinstance(mesh, dict) else {}
    parts = " x ".join(":".join(map(str, of_axis)) for of_axis in shares.values())
    return ",".join(names) + (f" in {parts}" if parts else "")


def calibrated(models: list[Model], folder: Path, factor: float, steps: int) -> str:
    """Write ``core.toml``, this machine with what a core does in steps of the models that waits ``factor`` seconds for each one
    that it computes. Returns the last line of the fit."""
    rows = folder / "rows.csv"
    slow = [word for device in ("cpu0", "cpu1") for word in ("--slow", f"{device}={factor:g}")]
    for model in models:
        for devices, options in ((1, ONE), (2, equal(2))):
            build = model.compile("preset:cpu-2", folder / f"{model.name}-core-{devices}", *options)
            dnnc("train", build.folder, "--steps", str(WARM + steps), "--runs", rows, "-q", *slow)
    return dnnc("calibrate", "core", rows, "-o", folder / "core.toml").strip().splitlines()[-1]


def write_topology(folder: Path, speeds: list[float]) -> Path:
    """``unequal.toml``: a device of each speed, the first being the core in ``core.toml``."""
    core = load_topology(str(folder / "core.toml"), DiagnosticSink())
    types, devices = [], []
    for number, speed in enumerate(speeds):
        (type_,) = slowed(core, speeds[0] / speed).types
        types.append(replace(type_, name=f"core{number}", source=f"Calibrated; {speed:g} of a core."))
        devices.append(Device(f"cpu{number}", f"core{number}", core.hosts[0].name))
    links = tuple(replace(link, ends=(core.hosts[0].name, *(device.name for device in devices))) for link in core.links)
    topology = replace(core, name="unequal", types=tuple(types), devices=tuple(devices), links=links)
    path = folder / "unequal.toml"
    path.write_text(topology_to_toml(topology), encoding="utf-8")
    return path


def compare(model: Model, builds: dict[str, Build], slow: tuple[str, ...], steps: int, rounds: int) -> bool:
    """Train both plans by turns and print a line for each; whether the found plan reaches the target."""
    seconds: dict[str, list[float]] = {name: [] for name in builds}
    for _ in range(rounds):
        for name, build in builds.items():
            seconds[name] += build.seconds(steps, slow)
    pace = {name: 1 / statistics.median(of_steps) for name, of_steps in seconds.items()}
    foreseen = {name: 1 / build.predicted() for name, build in builds.items()}
    for name, build in builds.items():
        print(
            f"{model.name:12} {name:6} {foreseen[name]:10.2f} {pace[name]:10.2f} {foreseen[name] / pace[name]:8.2f}x"
            f" {foreseen[name] / foreseen['equal']:7.2f}x {pace[name] / pace['equal']:7.2f}x  {load():>5}  {build.words()}",
            flush=True,
        )
    return pace["found"] >= TARGET * pace["equal"]


def checked(model: Model, builds: dict[str, Build], slow: tuple[str, ...]) -> bool:
    """Compare three steps of each plan with the unsplit model and print a line for each; whether all are its steps."""
    passed = True
    for name, build in builds.items():
        command = [sys.executable, "-m", "dnnc", "train", str(build.folder), "--steps", "3", "--check"]
        command += [word for device in slow for word in ("--slow", device)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1]
        print(f"{model.name:12} {name:6} {build.words()}: {told}", flush=True)
        passed = passed and not done.returncode
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL=LOSS", help="two at least")
    parser.add_argument("--speeds", default=SPEEDS, help="of the devices, 1 being a core")
    parser.add_argument("--steps", type=int, default=10, help="that count in each turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each plan")
    parser.add_argument("--check", action="store_true", help="compare steps with the unsplit model too")
    options = parser.parse_args()
    speeds = [float(speed) for speed in options.speeds.split(",")]
    if sum(speeds) > cores():
        parser.error(f"--speeds sum to {sum(speeds):g}, this process may use {cores()} cores")
    if len(options.models) < 2:
        parser.error("name two models at least: the speed of a core is fitted to both")
    models = [Model(*text.rsplit("=", 1)) for text in options.models]
    slow = tuple(f"cpu{number}={1 / speed - 1:g}" for number, speed in enumerate(speeds))
    print(header())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        print("calibrated:", calibrated(models, folder, 1 / speeds[0] - 1, options.steps))
        topology = write_topology(folder, speeds)
        print(f"speeds: {options.speeds}; {MICROBATCHES} microbatches a step")
        print("model        plan    predicted   measured   quotient  gain as predicted, measured  load  devices and shares")
        reached = True
        for model in models:
            builds = {"equal": model.compile(topology, folder / f"{model.name}-equal", *equal(len(speeds)))}
            builds["found"] = model.compile(topology, folder / f"{model.name}-found")
            reached &= compare(model, builds, slow, options.steps, options.rounds)
            if options.check:
                builds["idle"] = model.compile(topology, folder / f"{model.name}-idle", *IDLE)
                reached &= checked(model, builds, slow)
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
