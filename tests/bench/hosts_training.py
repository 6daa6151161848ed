"""Training between two hosts beside plain torch.distributed: ``python -m tests.bench.hosts --train [--gigabit]``.

A network of equal products is trained by two ranks over gloo, one on each host and core: in two stages, and data parallel. Each
is predicted with the measured topology, runs by ``dnnc train --cluster``, and by torch.distributed alone: the stages with
``send`` and ``recv`` in the order of 1F1B, data parallel by ``DistributedDataParallel``. Seconds are medians of steps.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dnnc.engines.torch.launch.training import TrainingBuild
from tests.bench.cluster import dnnc
from tests.dnnc.engines.cluster.rays import RayCluster, ray_cluster

STEP = re.compile(r"step (\d+)  loss \S+  (\S+) samples/s")
WARM, STEPS = 3, 16
LAYERS, MICROBATCHES = 8, 8
WIDTHS = {"narrow": (512, 256), "wide": (1024, 256)}
"""Of each network the width of its products, and the samples of a microbatch: little and much to exchange."""
PLANS = {
    "two stages": ("--mesh", "none", "--replicas", "1", "--stages", "2"),
    "data": ("--mesh", "2", "--strategy", "data"),
}
BUFFERS = {"1 MB": 1 << 20, "16 MB": 1 << 24}
PORT = 25998


def network(width: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())))


def training(before: Mapping[str, Sequence[str]], addresses: Mapping[str, str], interfaces: Mapping[str, str]) -> None:
    """Prints what gloo takes for a buffer, and seconds of a step as they are predicted, of dnnc, and of torch alone.
    ``before``: what the command of a host begins with; ``interfaces``: the network of each host that joins it to the other."""
    for name, size in BUFFERS.items():
        print(
            f"gloo, send and recv of {name}: {plain(before, addresses, interfaces, 'buffer', str(size)) * 1e6:.0f} us",
            flush=True,
        )
    first = next(iter(before))
    with ray_cluster(list(before), before=before, addresses=addresses) as cluster, tempfile.TemporaryDirectory() as folder:
        inside = list(before[first])[: list(before[first]).index("taskset")]
        machines = f"{folder}/machines.toml"
        dnnc(cluster, inside, "topology", "measure", "-o", machines, "--devices", "1", "--cluster", cluster.address)
        titles = f"{'predicted':>12}{'dnnc':>12}{'torch':>12}{'predicted/dnnc':>16}{'torch/dnnc':>12}"
        print(f"{'network':8}{'plan':12}{titles}", flush=True)
        for name, (width, samples) in WIDTHS.items():
            for plan, options in PLANS.items():
                build = f"{folder}/{name}-{plan.replace(' ', '-')}"
                predicted = compiled(cluster, inside, width, samples, machines, build, options)
                took = trained(cluster, inside, build, samples)
                alone = plain(before, addresses, interfaces, plan, str(width), str(samples))
                texts = "".join(f"{seconds * 1e3:9.1f} ms" for seconds in (predicted, took, alone))
                print(f"{name:8}{plan:12}{texts}{predicted / took:16.2f}{alone / took:12.2f}", flush=True)


def compiled(
    cluster: RayCluster, inside: Sequence[str], width: int, samples: int, machines: str, build: str, options: Sequence[str]
) -> float:
    """Compiles the network; returns the predicted seconds of a step."""
    import dnnc as door

    model = f"{build}.onnx"
    rows = samples * (2 if "data" in options else 1)
    door.from_torch(network(width), (torch.zeros(rows, width),), model)
    asked = ["--objective", "training", "--loss", f"mse:{output_of(model)}", "--optimizer", "sgd"]
    asked += ["--microbatches", "1" if "data" in options else str(MICROBATCHES), "--no-report", "-q"]
    dnnc(cluster, inside, "compile", model, "-t", machines, "-o", build, *asked, *options)
    return TrainingBuild.open(Path(build)).predicted


def output_of(model: str) -> str:
    import onnx

    return str(onnx.load(model, load_external_data=False).graph.output[0].name)


def trained(cluster: RayCluster, inside: Sequence[str], build: str, samples: int) -> float:
    """Seconds of a step of ``dnnc train``."""
    text = dnnc(cluster, inside, "train", build, "--steps", str(WARM + STEPS), "--cluster", cluster.address)
    of_step = samples * (2 if build.endswith("data") else MICROBATCHES)
    return statistics.median(of_step / float(match[2]) for match in STEP.finditer(text) if int(match[1]) > WARM)


# Without dnnc


def plain(
    before: Mapping[str, Sequence[str]], addresses: Mapping[str, str], interfaces: Mapping[str, str], *what: str
) -> float:
    """Seconds of what two processes of torch.distributed do, one on each host; the second one tells."""
    first = addresses[next(iter(before))]
    ranks = []
    for rank, (host, words) in enumerate(before.items()):
        environment = os.environ | {"GLOO_SOCKET_IFNAME": interfaces[host], "MASTER_ADDR": first, "MASTER_PORT": str(PORT)}
        environment |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        command = [*words, sys.executable, "-m", "tests.bench.hosts_training", *what]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        ranks.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    texts = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"torch.distributed alone: {' '.join(what)}: {texts}")
    return float(texts[1][0])


def alone() -> None:
    """A rank of ``plain``: prints the median seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("sizes", type=int, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, kinds = dist.get_rank(), {"buffer": buffers, "two stages": stages, "data": data_parallel}
    step = kinds[arguments.what](*arguments.sizes)
    seconds = []
    for number in range(WARM + STEPS):
        dist.barrier()
        start = time.perf_counter()
        step()
        if number >= WARM:
            seconds.append(time.perf_counter() - start)
    if rank:
        print(statistics.median(seconds))
    dist.destroy_process_group()


def buffers(size: int) -> Callable[[], None]:
    """Rank 0 sends a buffer, rank 1 has it at the end."""
    buffer = torch.zeros(size, dtype=torch.uint8)

    def step() -> None:
        if dist.get_rank() == 0:
            dist.send(buffer, 1)
        else:
            dist.recv(buffer, 0)

    return step


def data_parallel(width: int, samples: int) -> Callable[[], None]:
    model = nn.parallel.DistributedDataParallel(network(width), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters())
    x, target = torch.randn(samples, width), torch.randn(samples, width)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()

    return step


def stages(width: int, samples: int) -> Callable[[], None]:
    """Half of the network on each rank, in the order of 1F1B: the first rank is a microbatch ahead."""
    half = network(width)[LAYERS * dist.get_rank() : LAYERS * (dist.get_rank() + 1)]
    optimizer = torch.optim.SGD(half.parameters())
    x, target = torch.randn(samples, width), torch.randn(samples, width)
    gradient, received = torch.empty(samples, width), torch.empty(samples, width)

    def first() -> None:
        ahead: list[tuple[torch.Tensor, Any]] = []

        def backward() -> None:
            output, sent = ahead.pop(0)
            dist.recv(gradient, 1)
            output.backward(gradient)
            sent.wait()

        for number in range(MICROBATCHES):
            output = half(x)
            ahead.append((output, dist.isend(output.detach(), 1)))
            if number:
                backward()
        backward()

    def second() -> None:
        sent: list[Any] = []
        for _ in range(MICROBATCHES):
            dist.recv(received, 0)
            x = received.clone().requires_grad_()
            nn.functional.mse_loss(half(x), target).backward()
            sent.append((x.grad, dist.isend(x.grad, 0)))
        for _, work in sent:
            work.wait()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (second if dist.get_rank() else first)()
        optimizer.step()

    return step


if __name__ == "__main__":
    alone()
