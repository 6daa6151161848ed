"""Plans and runs on a Ray cluster of this machine: ``python -m tests.bench.hosts --measured`` and ``--growth``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dnnc.build.build import Build
from dnnc.data.generate import random_inputs
from dnnc.engines.hosts.options import ClusterOptions
from dnnc.engines.onnxruntime import Pipeline, RunOptions
from tests.dnnc.engines.cluster.rays import RayCluster, ray_cluster

MODELS = {
    "mlp": "zoo:mlp,layers=8,hidden=2048,batch=32",
    "wide mlp": "zoo:mlp,layers=4,hidden=2048,batch=512",
    "bert": "zoo:bert-base,layers=4,batch=4",
    "resnet50": "zoo:resnet50,batch=4",
    "vit": "zoo:vit-base,layers=4,batch=4",
}
COUNTS = (1, 2, 4, 8)
PORTS = (25000, 25899)
"""Of the runs that are counted: no other run listens on them."""
_TWO_STAGES = ("--mesh", "none", "--replicas", "1", "--stages", "2", "--no-report", "-q")


def predictions(before: Mapping[str, Sequence[str]], addresses: Mapping[str, str]) -> None:
    """Measures the topology of hosts, plans models in a stage on each, and prints predicted and measured seconds of a
    microbatch, and how much of a core its processes had while they computed (less than 1: something else was at work)."""
    first = next(iter(before))
    with ray_cluster(list(before), before=before, addresses=addresses) as cluster, tempfile.TemporaryDirectory() as folder:
        inside = list(before[first])[: list(before[first]).index("taskset")]
        machines = f"{folder}/machines.toml"
        measured = ("topology", "measure", "-o", machines, "--devices", "1", "--no-training")
        dnnc(cluster, inside, *measured, "--cluster", cluster.address)
        print(*(line for line in Path(machines).read_text().splitlines() if "ZeroMQ" in line or "latency" in line), sep="\n")
        print(f"{'model':10}{'predicted':>12}{'measured':>12}{'ratio':>8}{'cores':>7}  stages predicted, measured", flush=True)
        for name, model in MODELS.items():
            build = f"{folder}/{name.replace(' ', '-')}"
            dnnc(cluster, inside, "compile", model, "-t", machines, "-o", build, *_TWO_STAGES)
            counted = ["-m", "40", "--warmup", "1", "--json", "--cluster", cluster.address]
            found = json.loads(dnnc(cluster, inside, "run", build, *counted))
            seconds = found["seconds_per_microbatch"]
            stages = "; ".join(f"{one['predicted'] * 1e3:.2f}, {one['measured'] * 1e3:.2f}" for one in found["stages"])
            predicted, measured = seconds["predicted"], seconds["measured"]
            both = f"{predicted * 1e3:9.2f} ms{measured * 1e3:9.2f} ms{predicted / measured:8.2f}"
            print(f"{name:10}{both}{found['cores']:7.2f}  {stages}", flush=True)


def dnnc(cluster: RayCluster, before: Sequence[str], *arguments: str) -> str:
    """What a command prints."""
    command = [*before, sys.executable, "-P", "-m", "dnnc", *arguments]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def growth() -> None:
    """Prints what runs of a pipeline of one stage on each of N nodes cost."""
    hosts = [f"h{number}" for number in range(max(COUNTS))]
    with ray_cluster(hosts) as cluster, tempfile.TemporaryDirectory() as folder:
        print(f"{'hosts':>5}{'actors':>10}{'processes':>11}{'connections':>13}{'control':>9}{'per microbatch':>16}", flush=True)
        for count in COUNTS:
            build = _pipeline(Path(folder), hosts[:count])
            command = [sys.executable, "-m", "tests.bench.cluster", str(build), cluster.address]
            done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr)
            one = json.loads(done.stdout)
            print(
                f"{count:5}{one['actors']:8.2f} s{one['processes']:9.2f} s{one['connections']:13}{one['control']:9}"
                f"{one['per microbatch']:16.2f}",
                flush=True,
            )
    print("on paper, a pipeline of a process on each of N hosts; connections to measure the network, and its rounds:")
    print(f"{'hosts':>5}{'connections':>13}{'of starter':>12}{'of a host':>11}{'to measure':>12}{'rounds':>8}")
    for count in (*COUNTS, 64, 512):
        starter, host = 2 * count + (4 if count > 1 else 2), 6 if count > 1 else 4
        print(f"{count:5}{connections(count):13}{starter:12}{host:11}{count * (count - 1):12}{count - 1:8}")


def connections(hosts: int) -> int:
    """TCP connections of a run of a pipeline with a stage on each host: two (one each way) between the starter and each agent,
    between neighbours, and between the starter and both ends."""
    return 2 * hosts + 2 * (hosts - 1) + (4 if hosts > 1 else 2)


def _pipeline(folder: Path, hosts: Sequence[str]) -> Path:
    """A build with a stage on each of the hosts."""
    machines = folder / f"machines{len(hosts)}.toml"
    points = "\n".join(
        f'[[hosts]]\nname = "{host}"\n[[devices]]\nname = "{host}.cpu"\ntype = "cpu"\nhost = "{host}"' for host in hosts
    )
    ends = ", ".join(f'"{host}.cpu"' for host in hosts)
    link = f'\n[[links]]\nends = [{ends}]\nbandwidth = "1 GB/s"' if len(hosts) > 1 else ""
    machines.write_text(f'version = 1\n[types]\ncpu = "preset:cpu-1"\n{points}{link}\n')
    build = folder / f"build{len(hosts)}"
    stages = ["--mesh", "none", "--replicas", "1", "--stages", str(len(hosts)), "--no-report", "-q"]
    command = ["compile", "zoo:mlp,layers=16,hidden=64,batch=4", "-t", str(machines), "-o", str(build), *stages]
    subprocess.run([sys.executable, "-P", "-m", "dnnc", *command], check=True)
    return build


def one_run(folder: str, address: str) -> dict[str, Any]:
    """Seconds until the actors are there, and from then until the first microbatch is through; connections; messages of streams
    between the starter and the hosts, until then and per microbatch behind it."""
    from dnnc.engines.cluster.nodes.ray_cluster import on_cluster

    build = Build.open(folder)
    began = time.perf_counter()
    with on_cluster(build, RunOptions(), ClusterOptions(address, ports=PORTS)) as processes:
        there = time.perf_counter()
        with Pipeline(build, processes=processes) as pipeline:
            items = [random_inputs(build)]
            pipeline.run(items)
            through = time.perf_counter()
            relay: Any = processes._relay

            def messages(text: bool) -> int:
                return sum(
                    n for counts in (relay._sent, relay._received) for (is_text, _), n in counts.items() if is_text == text
                )

            control, values = messages(True), messages(False)
            pipeline.run(items * 100)
            return {
                "actors": there - began,
                "processes": through - there,
                "connections": _connections(),
                "control": control,
                "per microbatch": (messages(False) - values) / 100,
            }


def _connections() -> int:
    """Established connections to ports of ``PORTS``, by /proc/net/tcp."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "01" and PORTS[0] <= int(row[1].rpartition(":")[2], 16) <= PORTS[1] for row in rows)


if __name__ == "__main__":
    print(json.dumps(one_run(sys.argv[1], sys.argv[2])), flush=True)
