"""What a run on two hosts costs: ``python -m tests.bench.hosts [--microbatches 100] [--rounds 3] [--gigabit]``.

Two hosts are two network namespaces of this machine, joined by a virtual cable; that needs root. Without root they are two
agents on the loopback address, and the first line says so. The first of two stages fills a tensor of 4 KB, 1 MB or 16 MB, the
second reads one element of it. Printed for each size are, in seconds per tensor:

- *one host*: both stages in the pipeline of one host, through shared memory;
- *socket*: a plain TCP socket between the hosts, from one buffer into another; what the cable and the system allow;
- *plain, keys*: ZeroMQ between the hosts without and with the keys that runs have: the difference is encryption;
- *two hosts*: the run, and its part of the pace of the socket; bytes on the cable over those of the tensors.

``--measured`` measures the topology of two hosts by ``dnnc topology measure --cluster``, on a core each, and compares the pace
that plans of it predict with that of their runs; ``--train`` does so for training, beside torch.distributed alone
(``tests.bench.hosts_training``); ``--growth`` starts runs on 1 to 8 nodes and counts connections and messages
(``tests.bench.cluster``). Both need Ray.

``--gigabit`` limits the cable to 1 Gbit/s in each direction. The cores are shared by all processes, so without a limit figures
are those of a machine with so many cores.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zmq

from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.cluster.starting import FarProcesses, Hosts
from dnnc.engines.onnxruntime import Pipeline, RunOptions
from tests.bench.cluster import growth, predictions
from tests.bench.machine import header
from tests.dnnc.engines.onnxruntime.builds import make_build

SIZES = {"4 KB": 1 << 12, "1 MB": 1 << 20, "16 MB": 1 << 24}
SPACES = {"a": "dnnc-bench-a", "b": "dnnc-bench-b"}
ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}
CABLE = {"a": "dnncbencha", "b": "dnncbenchb"}
INSIDE = "DNNC_BENCH_INSIDE"
PORT = 25999
_PIECES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabit", action="store_true", help="limit the cable to 1 Gbit/s")
    parser.add_argument("--peer", nargs=4, metavar=("KIND", "ADDRESS", "SIZE", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("--measured", action="store_true", help="predicted beside measured pace of plans on a Ray cluster")
    parser.add_argument("--train", action="store_true", help="training beside its prediction and torch.distributed alone")
    parser.add_argument("--growth", action="store_true", help="what a run on 1, 2, 4 and 8 nodes costs")
    arguments = parser.parse_args()
    if arguments.peer:
        kind, address, size, count = arguments.peer
        send(kind, address, int(size), int(count))
    elif arguments.growth:
        print(header())
        growth()
    elif arguments.measured or arguments.train:
        print(header())
        cores = {host: [*entering(host), "taskset", "-c", str(core)] for core, host in enumerate(SPACES)}
        with namespaces(arguments.gigabit):
            if arguments.measured:
                predictions(cores, ADDRESSES)
            else:
                from tests.bench.hosts_training import training

                training(cores, ADDRESSES, CABLE)
    elif os.environ.get(INSIDE) or os.geteuid():
        measure(arguments, apart=bool(os.environ.get(INSIDE)))
    else:
        with namespaces(arguments.gigabit):
            command = [*entering("a"), sys.executable, "-m", "tests.bench.hosts", *sys.argv[1:]]
            subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=True)


def measure(arguments: argparse.Namespace, apart: bool) -> None:
    print(header())
    print(f"two hosts: {'network namespaces' if apart else 'agents on the loopback address (no root)'}", end="")
    print(", 1 Gbit/s" if arguments.gigabit and apart else ", no limit", flush=True)
    ways = ("one host", "socket", "plain", "keys", "two hosts")
    print(f"{'tensor':6}{''.join(f'{way:>11}' for way in ways)} of socket   bytes")
    addresses = ADDRESSES if apart else dict.fromkeys(ADDRESSES, "127.0.0.1")
    for title, size in SIZES.items():
        count = max(10, min(arguments.microbatches, (1 << 28) // size if arguments.gigabit else 1 << 30))
        rows = [one_size(size, count, addresses, apart) for _ in range(arguments.rounds)]
        row = {key: statistics.median(each[key] for each in rows) for key in rows[0]}
        texts = "".join(f"{row[key] * 1e6:8.0f} us" for key in ways)
        print(f"{title:6} {texts} {row['socket'] / row['two hosts']:8.2f} {row['bytes']:7.3f}", flush=True)


def one_size(size: int, count: int, addresses: Mapping[str, str], apart: bool) -> dict[str, float]:
    """Seconds per tensor of each way, and the bytes on the cable over those of the tensors (0 without a cable)."""
    figures = {kind: received(kind, size, count, addresses, apart) for kind in ("socket", "plain", "keys")}
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        build = make_build(
            Path(folder),
            f"g (float[1] x) => (float[{size // 4}] h) {{ n = Constant <value_ints = [{size // 4}]> () h = Expand(x, n) }}",
            f"g (float[{size // 4}] h) => (float[1] y) {{ a = Constant <value_ints = [0]> () "
            "b = Constant <value_ints = [1]> () y = Slice(h, a, b) }",
        )
        items = [{"x": np.ones(1, np.float32)}] * count
        with Pipeline(build) as pipeline:
            pipeline.run(items[:10])
            figures["one host"] = pipeline.run(items, events=False).seconds / count
        hosts = Hosts({"cpu0": "a", "cpu1": "b"}, addresses, addresses["a"], cache=f"{folder}/cache")
        agents = LocalAgents(before={host: entering(host) for host in SPACES} if apart else {})
        with Pipeline(build, processes=FarProcesses(build, RunOptions(pin=False), hosts, agents)) as pipeline:
            pipeline.run(items[:10])
            before = crossed() if apart else 0
            figures["two hosts"] = pipeline.run(items, events=False).seconds / count
            figures["bytes"] = ((crossed() if apart else 0) - before) / (size * count)
    return figures


def received(kind: str, size: int, count: int, addresses: Mapping[str, str], apart: bool) -> float:
    """Seconds per buffer of ``size`` bytes, ``count`` of which a process on host a sends to another on host b. The receiver
    prints the seconds; this process, on host a, only starts both."""
    far = entering("b") if apart else []
    command = [sys.executable, "-m", "tests.bench.hosts", "--peer"]
    environment = {key: value for key, value in os.environ.items() if key != INSIDE}
    settings = [addresses["b"], str(size), str(count)]
    with subprocess.Popen(
        [*far, *command, f"receive-{kind}", *settings], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        subprocess.run([*command, f"send-{kind}", *settings], check=True, env=environment)
        return float(process.stdout.readline())


def send(kind: str, address: str, size: int, count: int) -> None:
    """One side of ``received``, as a process of its own."""
    role, way = kind.split("-")
    buffer = memoryview(bytearray(size))
    if way == "socket":
        by_socket(role, address, buffer, count)
    else:
        by_zeromq(role, address, buffer, count, keys=way == "keys")


def by_socket(role: str, address: str, buffer: memoryview, count: int) -> None:
    if role == "send":
        with socket.create_connection((address, PORT)) as connection:
            for _ in range(count + 1):
                connection.sendall(buffer)
            connection.recv(1)
        return
    with socket.create_server((address, PORT)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
        with connection:
            for number in range(count + 1):
                if number == 1:
                    began = time.perf_counter()
                got = 0
                while got < len(buffer):
                    got += connection.recv_into(buffer[got:])
            print((time.perf_counter() - began) / count, flush=True)
            connection.send(b"\0")


def by_zeromq(role: str, address: str, buffer: memoryview, count: int, keys: bool) -> None:
    context = zmq.Context()
    link = context.socket(zmq.PUSH if role == "send" else zmq.PULL)
    link.sndhwm = link.rcvhwm = 4
    if keys:  # the same for each run of this bench; runs of builds make their own
        private = b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
        link.curve_secretkey, link.curve_publickey = private, zmq.curve_public(private)
        if role == "send":
            link.curve_serverkey = zmq.curve_public(private)
        else:
            link.curve_server = True
    if role == "send":
        link.connect(f"tcp://{address}:{PORT}")
        for _ in range(count + 1):
            link.send(buffer, copy=False)
        link.close(linger=-1)
        context.term()
        return
    link.bind(f"tcp://{address}:{PORT}")
    print("listening", flush=True)
    for number in range(count + 1):
        if number == 1:
            began = time.perf_counter()
        link.recv_into(buffer)
    print((time.perf_counter() - began) / count, flush=True)
    context.destroy(linger=0)


def crossed() -> int:
    """Bytes that this host's end of the cable has sent and received."""
    counters = Path("/sys/class/net", CABLE["a"], "statistics")
    return sum(int((counters / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def entering(host: str) -> list[str]:
    """What a command begins with to run on a host."""
    return ["ip", "netns", "exec", SPACES[host]]


@contextmanager
def namespaces(gigabit: bool) -> Iterator[None]:
    """Two namespaces and the cable between them; removed afterwards."""
    for space in SPACES.values():
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    try:
        for space in SPACES.values():
            subprocess.run(["ip", "netns", "add", space], check=True)
        ends = ["type", "veth", "peer", "name", CABLE["b"], "netns", SPACES["b"]]
        subprocess.run(["ip", "link", "add", CABLE["a"], "netns", SPACES["a"], *ends], check=True)
        for host, space in SPACES.items():
            here = ["ip", "-n", space]
            subprocess.run([*here, "addr", "add", f"{ADDRESSES[host]}/24", "dev", CABLE[host]], check=True)
            for device in (CABLE[host], "lo"):
                subprocess.run([*here, "link", "set", device, "up"], check=True)
            if gigabit:
                queue = ["tc", "-n", space]
                subprocess.run(
                    [*queue, "qdisc", "add", "dev", CABLE[host], "root", "handle", "1:", "htb", "default", "1"], check=True
                )
                limit = ["parent", "1:", "classid", "1:1", "htb", "rate", "1gbit"]
                subprocess.run([*queue, "class", "add", "dev", CABLE[host], *limit], check=True)
        yield
    finally:
        for space in SPACES.values():
            subprocess.run(["ip", "netns", "del", space], check=False)


if __name__ == "__main__":
    main()
