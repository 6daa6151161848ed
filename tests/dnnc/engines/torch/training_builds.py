"""A small model compiled for training, and sources of data for it: an importable module, some of whose functions misbehave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dnnc.cli import main
from ir.core.types import DType

MODEL = "zoo:mlp,layers=3,hidden=32,batch=4"
TWO_STAGES = ("--stages", "2", "--replicas", "1", "--mesh", "none")
TWO_HOSTS = """version = 1
types.core = "preset:cpu-1"
hosts = [{name = "p"}, {name = "q"}]
devices = [DEVICES]
switches = ["s"]
links = [LINKS]
"""
SOURCE = """
import os, signal, time
import numpy as np

def good(seed):
    numbers = np.random.default_rng(seed)
    while True:
        yield {name: numbers.normal(size=shape).astype(np.float32) for name, shape in (("x", (4, 784)), ("target", (4, 10)))}

def _on_rank_1(seed, act):
    for number, microbatch in enumerate(good(seed)):
        if number == 9 and os.environ["RANK"] == "1":
            act()
        yield microbatch

def raises(seed):
    def act(): raise ArithmeticError("no more samples of this kind")
    yield from _on_rank_1(seed, act)

def hangs(seed):
    yield from _on_rank_1(seed, lambda: time.sleep(600))

def dies(seed):
    yield from _on_rank_1(seed, lambda: os.kill(os.getpid(), signal.SIGKILL))

def interrupts(seed):
    yield from _on_rank_1(seed, lambda: os.kill(os.getpid(), signal.SIGINT))

def leaves(seed):
    yield from _on_rank_1(seed, lambda: os._exit(7))

def leaves_quietly(seed):
    yield from _on_rank_1(seed, lambda: os._exit(0))

def prints(seed):
    for microbatch in good(seed):
        print("step 1  loss 5  1 samples/s  1 s\\n.", end="", flush=True)
        os.write(2, b"complains")
        yield microbatch

def places(seed):
    os.write(2, f"rank {os.environ['RANK']} on {sorted(os.sched_getaffinity(0))}\\n".encode())
    yield from good(seed)

def starts(seed):
    import subprocess
    subprocess.Popen(["sleep", os.environ["SLEEPS"]])
    tasks = ((open(f"/proc/self/task/{task}/comm").read(), int(task)) for task in os.listdir("/proc/self/task"))
    for name, task in tasks:
        of = "gloo" if "gloo" in name else "rank" if task == os.getpid() else ""
        if of:
            os.write(2, f"policy of {of}: {os.sched_getscheduler(task)}\\n".encode())
    yield from places(seed)

def slow(seed):
    for microbatch in good(seed):
        time.sleep(0.05)
        yield microbatch
"""


def compiled(out: Path, *options: str, model: str = MODEL, loss: str = "mse:y", topology: str = "preset:cpu-2") -> Path:
    """The build of a training step of 4 microbatches."""
    step = ("--objective", "training", "--loss", loss, "--microbatches", "4")
    arguments = ["compile", model, "-t", topology, *step, *(options or TWO_STAGES), "-q", "-o", str(out)]
    assert main(arguments) == 0
    return out


def two_hosts(folder: Path, devices: str) -> str:
    """The file of a topology of CPUs on hosts p and q, each named after its host: "p0 p1 q0"."""
    names = devices.split()
    each = ", ".join(f'{{name = "{name}", type = "core", host = "{name[0]}"}}' for name in names)
    links = ", ".join(f'{{ends = ["{name}", "s"], bandwidth = "20 GB/s", latency = "2 us"}}' for name in names)
    path = folder / "hosts.toml"
    path.write_text(TWO_HOSTS.replace("DEVICES", each).replace("LINKS", links))
    return str(path)


def weights(path: Path) -> dict[str, Any]:
    """All tensors of a checkpoint."""
    from dnnc.engines.torch.checkpoint import Checkpoint

    return Checkpoint.open(path).tensors()


def content(out: Path) -> dict[str, bytes]:
    """The losses, and all files of the last checkpoint."""
    last = max(out.glob("step*"), key=lambda path: int(path.name.removeprefix("step")))
    return {path.name: path.read_bytes() for path in (out / "losses.json", *sorted(last.iterdir()))}


def element_type(tensor: Any) -> DType:
    """Of a tensor of PyTorch."""
    return next(dtype for dtype in DType if str(tensor.dtype) == f"torch.{dtype.numpy_name}")


def write_checkpoint(path: Path, tensors: Mapping[str, Any], position: Any) -> None:
    """Write a checkpoint of one file."""
    from dnnc.engines.torch.checkpoint import Part, write_tensors

    parts = {name: Part.whole(element_type(tensor), tensor.shape) for name, tensor in tensors.items()}
    write_tensors(path, parts, tensors.__getitem__, position)


def write_source(folder: Path) -> Path:
    """Write the module ``misbehaving`` to ``folder``."""
    (folder / "misbehaving.py").write_text(SOURCE)
    return folder
