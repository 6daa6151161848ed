"""Whole training steps of ``dnnc train`` against plain PyTorch: ``python -m tests.bench.train_step --whole [NAME ..]``.

Modules of PyTorch (``training_models``) with Adam, each compiled for one one-thread worker; for two, as replicas of the whole
model that take half of a step's samples each; and for two in two stages, 8 microbatches a step. By turns ``dnnc train`` runs
these, and a process of PyTorch does as many steps on the same samples: the module under autograd with ``torch.optim.Adam``, the
whole batch at once, on one thread and on two. What else a machine does makes steps slower, never faster, so the pace of each is
the upper quartile of the paces of its steps, of all turns, without the first three steps of a turn.

- one device over PyTorch on one thread: at least 0.95;
- two replicas over one device: at least 1.6;
- two stages over what their bubble allows: at least 0.85. That is the step in which the simulator has the passes of both
  stages, whose seconds are measured where one rank runs both by turns;
- the memory that the plan predicts of a rank over the peak of its process's own memory, without pages of files, above what it
  holds before the weights: within 10 %, or within 16 MB. This is the peak on a device with as much memory as the plan needs;
  where there is more (``rank.has_room``), ranks keep freed memory, and that peak is printed behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.machine import header

ONE, REPLICAS, STAGES, ALONE = "one device", "two replicas", "two stages", "two stages on one device"
TORCH = {"PyTorch, 1 thread": 1, "PyTorch, 2 threads": 2}
TARGETS = {ONE: 0.95, REPLICAS: 1.6, STAGES: 0.85}
NEAR, APART, WARM = 0.1, 16e6, 3
SPLIT = {ONE: (1, 1, 1), REPLICAS: (2, 1, 2), STAGES: (8, 2, 1)}
"""Microbatches of a step, stages, replicas."""


def compiled(name: str, folder: Path) -> dict[str, Path]:
    """Builds of a model by plan, and ``samples.npz`` of four steps in the folder."""
    import numpy as np
    import torch

    import dnnc
    from tests.bench.train_stages import command, on_one
    from tests.bench.training_models import MODELS

    model, path = MODELS[name], folder / "cnn.onnx"
    inputs, labels = model.samples(4 * model.batch)
    torch.manual_seed(0)
    example = (torch.from_numpy(inputs[: model.batch]),)
    dnnc.from_torch(model.module(), example, path, dynamic_shapes=({0: torch.export.Dim("batch")},))
    program = dnnc.plan(str(path), dims={"batch": 1}, machines="preset:cpu-1")
    (input_name,), (output,) = (
        [value.name[1:] for value in values] for values in (program.module.entry.args, _results(program))
    )
    np.savez(folder / "samples.npz", **{input_name: inputs, "labels": labels})
    builds = {}
    for plan, (microbatches, stages, replicas) in SPLIT.items():
        builds[plan] = folder / plan.replace(" ", "-")
        asked = ["--loss", f"cross-entropy:{output}", "--dim", f"batch={model.batch // microbatches}"]
        restricted = [
            "--stages",
            str(stages),
            "--replicas",
            str(replicas),
            "--mesh",
            "none",
            "--microbatches",
            str(microbatches),
        ]
        topology = ["-t", f"preset:cpu-{stages * replicas}", "--objective", "training"]
        command("compile", str(path), *topology, *asked, *restricted, "-o", str(builds[plan]))
        if plan == STAGES:
            builds[ALONE] = on_one(folder, builds[plan], asked)
    return builds


def _results(plan: Any) -> Any:
    return plan.module.entry.results


class Torch:
    """A process that trains the module with PyTorch when asked."""

    def __init__(self, name: str, samples: Path, threads: int) -> None:
        asked = [sys.executable, "-m", "tests.bench.train_whole", "--torch", name, str(samples), str(threads)]
        self.process = subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def paces(self, steps: int) -> tuple[list[float], float]:
        """Samples a second of each step, and the bytes of its own memory at most, above those before the module."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        found, peak = json.loads(self.process.stdout.readline())
        return found, peak

    def end(self) -> None:
        self.process.communicate("")


def train_with_torch(name: str, samples: Path, threads: int) -> None:
    """Reads numbers of steps, and prints paces and the peak for each."""
    import numpy as np
    import torch
    from torch.nn import functional

    from tests.bench.training_models import MODELS

    torch.set_num_threads(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    model, arrays = MODELS[name], [torch.from_numpy(array) for array in np.load(samples).values()]
    inputs, labels = arrays
    before = _resident()
    torch.manual_seed(0)
    module = model.module()
    optimizer = torch.optim.Adam(module.parameters())
    number = 0
    for line in sys.stdin:
        paces = []
        for _ in range(int(line)):
            start = time.perf_counter()
            rows = slice(number % 4 * model.batch, (number % 4 + 1) * model.batch)
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(inputs[rows]).flatten(0, -2), labels[rows].flatten())
            loss.backward()
            optimizer.step()
            float(loss.detach())
            paces.append(model.batch / (time.perf_counter() - start))
            number += 1
        print(json.dumps([paces, _peak() - before]), flush=True)


def _resident() -> int:
    """Bytes of this process's own memory, without pages of files, such as its libraries' code; the peak begins anew. Kernels of
    products keep buffers from their first calls on, some 7 MB whatever the model: they are the process's, too."""
    import torch

    rows, weights, gradients = torch.ones(128, 256), torch.ones(8192, 256), torch.ones(128, 8192)
    for _ in range(2):
        torch.mm(rows, weights.t()), torch.mm(gradients, weights), torch.mm(rows.t(), gradients)
    del rows, weights, gradients
    Path("/proc/self/clear_refs").write_text("5")
    return _status("RssAnon")


def _peak() -> int:
    """The most bytes of the process's own memory: kernels read their pages of libraries once and keep them, some 25 MB."""
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def train_as_rank(arguments: list[str]) -> None:
    """A rank of ``dnnc train``, and the bytes of its own memory at most, above those before it has weights."""
    from dnnc.engines.torch import rank

    before, load, room = [0], rank.load_weights, bool(os.environ["ROOM"])
    rank.has_room = lambda step, number: room

    def loads(*given: Any) -> Any:
        before[0] = _resident()
        return load(*given)

    rank.load_weights = loads
    code = rank.main(arguments)
    Path(os.environ["PEAK"] + os.environ["RANK"]).write_text(str(_peak() - before[0]), encoding="utf-8")
    sys.exit(code)


def peaks(build: Path, samples: Path, steps: int, *, room: bool = False) -> list[int]:
    """The peak of each rank of a build; ``room``: of ranks that keep freed memory."""
    from dnnc.engines.torch.launch.starting import rank_environment

    world = len(planned(build))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    joined = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "PEAK": str(build / "peak")}
    joined.update(OMP_NUM_THREADS="1", ROOM="1" * room)
    asked = [
        sys.executable,
        "-m",
        "tests.bench.train_whole",
        "--rank",
        str(build),
        "--steps",
        str(steps),
        "--data",
        str(samples),
    ]
    ranks = [
        subprocess.Popen(asked, env=rank_environment({**joined, "RANK": str(rank)}), stdout=subprocess.DEVNULL)
        for rank in range(world)
    ]
    if any([process.wait() for process in ranks]):
        raise SystemExit(f"a rank of {build} failed")
    return [int((build / f"peak{rank}").read_text(encoding="utf-8")) for rank in range(world)]


def planned(build: Path) -> list[int]:
    """The bytes of each rank as the plan of a build predicts them."""
    plan = json.loads((build / "plan.json").read_text(encoding="utf-8"))
    devices = [(stage, stage["device"]) for stage in plan["stages"]]
    return [sum(stage["memory"].values()) for stage, names in devices for _ in ([names] if isinstance(names, str) else names)]


def quick(paces: list[float]) -> float:
    """The upper quartile; of one value, that value."""
    return statistics.quantiles(paces, n=4, method="inclusive")[2] if len(paces) > 1 else paces[0]


def compare(name: str, steps: int, rounds: int) -> bool:
    """Prints the table of a model; whether all targets are met."""
    from tests.bench.train_stages import measured, predicted, trained
    from tests.bench.training_models import MODELS

    batch = MODELS[name].batch
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        samples = folder / "samples.npz"
        builds = compiled(name, folder)
        torches = {plan: Torch(name, samples, threads) for plan, threads in TORCH.items()}
        paces: dict[str, list[float]] = {plan: [] for plan in (ONE, *TORCH, REPLICAS, STAGES, ALONE)}
        memory: dict[str, list[int]] = {}
        for number in range(rounds):
            for plan, process in torches.items():
                found, peak = process.paces(steps)
                paces[plan] += found[WARM:]
                memory[plan] = [round(peak)]
            for plan in SPLIT:
                paces[plan] += trained(builds[plan], steps, str(samples))[1][WARM:]
            alone = measured(builds[ALONE], WARM + 2, folder / f"out{number}", str(samples))
            paces[ALONE].append(batch / predicted(builds[STAGES], alone))
        for process in torches.values():
            process.end()
        memory.update({plan: peaks(builds[plan], samples, WARM) for plan in SPLIT})
        roomy = {plan: peaks(builds[plan], samples, WARM, room=True) for plan in SPLIT}
        foreseen = {plan: planned(builds[plan]) for plan in SPLIT}
    beside = {ONE: "PyTorch, 1 thread", REPLICAS: ONE, STAGES: ALONE}
    print(f"{name:20}   step ms  samples/s   ratio  target  peak MB of each rank (planned over it)")
    good = True
    for plan in (*TORCH, ONE, REPLICAS, STAGES):
        pace = quick(paces[plan])
        line = f"  {plan:18} {1e3 * batch / pace:9.1f}  {pace:9.1f}"
        if plan in beside:
            ratio = pace / quick(paces[beside[plan]])
            over = [about / peak for about, peak in zip(foreseen[plan], memory[plan], strict=True)]
            apart = [abs(about - peak) <= APART for about, peak in zip(foreseen[plan], memory[plan], strict=True)]
            good &= ratio >= TARGETS[plan] and all(few or abs(one - 1) <= NEAR for few, one in zip(apart, over, strict=True))
            held = ", ".join(f"{peak / 1e6:.0f} ({one:.2f})" for peak, one in zip(memory[plan], over, strict=True))
            most = ", ".join(f"{peak / 1e6:.0f}" for peak in roomy[plan])
            line += f"  {ratio:6.2f}  {TARGETS[plan]:6.2f}  {held}; with room {most}"
        else:
            line += f"{'':17} {memory[plan][0] / 1e6:.0f}"
        print(line, flush=True)
    allowed = quick(paces[ALONE]) / quick(paces[ONE])
    print(f"  the bubble of two stages allows {allowed:.2f} times one device", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        name, samples, threads = options.torch
        return train_with_torch(name, Path(samples), int(threads))
    return train_as_rank(options.rank)


def whole(names: list[str], steps: int, rounds: int) -> None:
    """Compares models, and ends the process: with 0 where all targets are met."""
    print(header(), flush=True)
    good = [compare(name, steps, rounds) for name in names]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
