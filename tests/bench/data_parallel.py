"""Data parallel training on two ranks against PyTorch's own: ``python -m tests.bench.data_parallel [--steps N] [--mbit RATE]``.

A transformer of 19 million weights (77 MB of gradients) is trained on synthetic sequences by two one-thread ranks over gloo:

- overlapped: the programs of ``dnnc compile --strategy data``; sums of gradients begin in the backward pass;
- behind: the same program, but each sum begins when the update asks for it;
- DDP: ``torch.nn.parallel.DistributedDataParallel`` with the same optimizer on as many samples.

They run by turns; samples a second are the median over the steps but the first three of each run, of all rounds. The ranks
share a loopback of ``--mbit`` megabits a second (``tc``, in a network namespace of its own, where the user may make one).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from tests.bench.machine import header
from tests.dnnc.sealing import refresh

STEP = re.compile(r"step (\d+)  loss (\S+)  (\S+) samples/s")
WARM, SAMPLES, LENGTH, WORDS, WIDTH, LAYERS = 3, 4, 128, 512, 512, 6
BEHIND = '''

class _Behind:
    """What the functions call ``comm``, with sums that begin in the update."""

    def __init__(self, comm):
        self.comm, self.waiting, self.place = comm, [], comm.place

    def add(self, *given, **fields):
        self.waiting.append((given, fields))

    def __getattr__(self, name):
        return getattr(self.comm, name)


_backward, _update, _all = backward, update, {}


def backward(weights, inputs, saved, comm):
    return _backward(weights, inputs, saved, _all.setdefault(id(comm), _Behind(comm)))


def update(weights, gradients, step, comm):
    for behind in _all.values():
        for given, fields in behind.waiting:
            behind.comm.add(*given, **fields)
        behind.waiting.clear()
    return _update(weights, gradients, step, comm)
'''
"""What makes a stage's file sum behind its backward pass."""


class Layer(nn.Module):
    """Attention and a network of two products behind it, each of what layer normalisation leaves (Xiong et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mixed(self.norms[0](x)).reshape(x.shape[0], LENGTH, 3, 8, WIDTH // 8).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) / (WIDTH // 8) ** 0.5, -1)
        x = x + self.out((scores @ parts[2]).transpose(1, 2).reshape(x.shape))
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))


class Words(nn.Module):
    """The scores of each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.layers(self.words(words)))
        return scores.reshape(-1, WORDS)


def command(*arguments: str) -> str:
    """What a command of Python's prints to its standard output."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def built(folder: Path) -> tuple[Path, Path]:
    """The builds that sum beside the backward pass, and behind it."""
    import dnnc

    torch.manual_seed(0)
    dnnc.from_torch(Words(), (torch.randint(WORDS, (2 * SAMPLES, LENGTH)),), folder / "words.onnx")
    found = folder / "overlapped", folder / "behind"
    asked = ["--objective", "training", "--mesh", "2", "--strategy", "data", "--loss", "cross-entropy:view_6"]
    for build in found:
        command("-m", "dnnc", "compile", str(folder / "words.onnx"), "-t", "preset:cpu-2", "-o", str(build), *asked)
    for path in (found[1] / "stages").glob("*.py"):
        path.write_text(path.read_text(encoding="utf-8") + BEHIND, encoding="utf-8")
        refresh(found[1], str(path.relative_to(found[1])))
    return found


def paces(text: str) -> list[float]:
    """Samples a second of the steps behind the first."""
    return [float(match[3]) for match in STEP.finditer(text) if int(match[1]) >= WARM]


def ddp(steps: int) -> None:
    """One rank of PyTorch's data parallel training; the first prints each step as ``dnnc train`` does."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Words(), gradient_as_bucket_view=True)
    optimizer, loss_of = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    for step in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(torch.randint(WORDS, (SAMPLES, LENGTH))), torch.randint(WORDS, (SAMPLES * LENGTH,)))
        loss.backward()
        optimizer.step()
        total = float(loss.detach())
        if dist.get_rank() == 0:
            print(f"step {step}  loss {total}  {2 * SAMPLES / (time.perf_counter() - start)} samples/s", flush=True)
    dist.destroy_process_group()


def measured(folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """Samples a second of each."""
    one, other = built(folder)
    found: dict[str, list[float]] = {"overlapped": [], "behind": [], "DDP": []}
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(rounds):
        for name, build in (("overlapped", one), ("behind", other)):
            found[name] += paces(command(*launched, "-m", "dnnc.engines.torch.rank", str(build), "--steps", str(steps)))
        found["DDP"] += paces(command(*launched, "-m", "tests.bench.data_parallel", "--ddp", "--steps", str(steps)))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def narrowed(mbit: int) -> list[str]:
    """The words before a command that run it where the loopback passes on so many megabits a second."""
    limit = f"tc qdisc add dev lo root tbf rate {mbit}mbit burst 256kb latency 400ms"
    return ["unshare", "--map-root-user", "--net", "sh", "-c", f'ip link set lo up && {limit} && exec "$@"', "sh"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mbit", type=int, action="append", help="repeatable; 0: the loopback as it is")
    parser.add_argument("--ddp", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ddp:
        return ddp(options.steps)
    if options.here:
        with tempfile.TemporaryDirectory() as folder:
            return print(json.dumps(measured(Path(folder), options.steps, options.rounds)))
    print(header())
    print("loopback        overlapped    behind       DDP   over behind   over DDP")
    for mbit in options.mbit or (800, 2400):
        inside = ["-m", "tests.bench.data_parallel", "--here", "--steps", str(options.steps), "--rounds", str(options.rounds)]
        words = [*(narrowed(mbit) if mbit else ()), sys.executable, *inside]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        over = [found["overlapped"] / found[name] for name in ("behind", "DDP")]
        name = f"{mbit} Mbit/s" if mbit else "as it is"
        print(f"{name:14s}" + "".join(f"{value:10.2f}" for value in found.values()) + f"{over[0]:13.2f}x{over[1]:10.2f}x")
    return None


if __name__ == "__main__":
    main()
