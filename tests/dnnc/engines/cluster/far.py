"""Runs of builds on hosts that are agents on this machine, with real sockets between them."""

from __future__ import annotations

from pathlib import Path

from dnnc.build.build import Build
from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.cluster.starting import FarProcesses, Hosts
from dnnc.engines.hosts.options import WAIT_SECONDS
from dnnc.engines.onnxruntime import RunOptions

HERE = "127.0.0.1"


def on_hosts(
    build: Build,
    hosts: dict[str, str],
    cache: Path,
    options: RunOptions | None = None,
    wait: float = WAIT_SECONDS,
    agents: LocalAgents | None = None,
) -> FarProcesses:
    """The processes of a build whose devices are on these hosts."""
    addresses = dict.fromkeys(hosts.values(), HERE)
    settings = Hosts(hosts, addresses, HERE, cache=str(cache), wait=wait)
    return FarProcesses(build, options or RunOptions(), settings, agents or LocalAgents())
