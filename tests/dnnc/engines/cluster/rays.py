"""A Ray cluster of raylets on this machine, which share its address and differ in their resources."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from dnnc.engines.cluster.nodes.ray_cluster import answers_at
from tests.dnnc.engines.onnxruntime.processes import LASTING, descendants, running


@dataclass
class RayCluster:
    """``address`` of its head; ``environment`` of those who may use it; ``before`` and ``addresses``: as of ``ray_cluster``;
    ``nodes``: processes by host; ``started``: hosts that were started ever, the first one with the head; ``ports``: of Ray on
    each node, the same when it is started again, so that Ray has two nodes there for a while."""

    address: str
    environment: dict[str, str]
    folder: Path
    port: int
    before: Mapping[str, Sequence[str]]
    addresses: Mapping[str, str]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    def running(self, words: str) -> list[int]:
        """The ids of the processes on the nodes whose command line contains ``words``."""
        return [process for node in self.nodes.values() for process in running(words, descendants(node.pid))]

    def start(self, *hosts: str) -> None:
        """Starts nodes, the first one as the head where there is none, and the others at once; ends those that were there."""
        for host in hosts:
            self.end(host)
        for host in hosts:
            self._launch(host)
            if not self.address:  # the others need no more of the head than that it listens
                own = self._awaited(host, r"Local node IP: (\S+)")
                self.address = f"{own}:{self.port}"
                while not answers_at(own, self.port) and self.nodes[host].poll() is None:
                    time.sleep(0.1)
        for host in hosts:
            self._awaited(host, "(Ray runtime started)")

    def _launch(self, host: str) -> None:
        where = ["--head", f"--port={self.port}"] if not self.address else [f"--address={self.address}"]
        own = [f"--node-ip-address={self.addresses[host]}"] if host in self.addresses else []
        arguments = [
            *(*self.before.get(host, ()), sys.executable, "-P", "-m", "ray.scripts.scripts", "start"),
            *(*where, *own, "--block", "--num-cpus=8", f"--node-manager-port={self.ports.setdefault(host, free_port())}"),
            *("--num-gpus=0", f'--resources={{"host:{host}": 1}}', "--object-store-memory=80000000"),
            *("--no-monitor", "--include-log-monitor=false"),  # a second of a processor each
            *(["--include-dashboard=false", f"--temp-dir={self.folder}"] if not self.address else []),
        ]
        with open(self._log(host), "wb") as log:
            node = subprocess.Popen(arguments, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.nodes[host] = node
        LASTING.add(node.pid)
        self.started += [host] * (host not in self.started)

    def _log(self, host: str) -> Path:
        return self.folder / f"{host}.log"

    def _awaited(self, host: str, pattern: str) -> str:
        """The group of a pattern in the log of a node that starts, once the node has written it."""
        deadline = time.monotonic() + 150
        while (match := re.search(pattern, log := self._log(host).read_text(errors="replace"))) is None:
            if self.nodes[host].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log[-2000:])
            time.sleep(0.1)
        return match[1]

    def mend(self) -> None:
        """Starts the nodes that have ended, or whose raylet has; all of them where one is the head."""
        lost = [host for host in self.started if not self._lives(host)]
        if self.started[0] in lost:
            lost = self.started
            for host in lost:
                self.end(host)
            self.address = ""
        self.start(*lost)

    def _lives(self, host: str) -> bool:
        node = self.nodes.get(host)
        return node is not None and node.poll() is None and any(map(_is_raylet, descendants(node.pid)))

    def raylet(self, host: str) -> int:
        """The process of a node that stands for it in the cluster."""
        return next(one for one in descendants(self.nodes[host].pid) if _is_raylet(one))

    def end(self, host: str) -> None:
        """Ends a node at once, if there is one."""
        if host not in self.nodes:
            return
        for process in descendants(self.nodes[host].pid):
            _kill(process)
        _kill(self.nodes[host].pid)
        node = self.nodes.pop(host)
        node.wait()
        LASTING.discard(node.pid)


@contextmanager
def ray_cluster(
    hosts: Sequence[str],
    *,
    token: bool = True,
    before: Mapping[str, Sequence[str]] = MappingProxyType({}),
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RayCluster]:
    """A cluster with a node for each host, the first of them the head. ``before``: what the command of a node begins with, such
    as ``ip netns exec NAME``; ``addresses``: of nodes that have one of their own."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dnr", dir="/tmp"))  # sockets have short paths
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        port = free_port()
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_prestart_worker_first_driver": "0",  # workers that no actor of these tests uses
            "XDG_CACHE_HOME": str(folder),
            "TMPDIR": str(folder),  # what is left there was left by this cluster, not by other tests
            "RAY_raylet_start_wait_time_s": "120",  # on a busy machine
            "RAY_AUTH_MODE": "token" if token else "disabled",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        if not token:
            del environment["RAY_AUTH_TOKEN"]
        cluster = RayCluster("", environment, folder, port, before, addresses)
        for host in hosts:
            stack.callback(cluster.end, host)
        cluster.start(*hosts)
        yield cluster


def free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def _is_raylet(process: int) -> bool:
    """Whether a process runs Ray's program of a node; not where it has ended."""
    try:
        return os.readlink(f"/proc/{process}/exe").endswith("/raylet")
    except OSError:
        return False


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
