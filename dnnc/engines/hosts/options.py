"""Which cluster a build runs on, and what is stated of it. Imports no third party: the command line reads options with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from dnnc.engines.hosts.faults import NotAHostAndNode, NotPorts, NotWithCluster, OnlyWithCluster, PackageMissing
from ir.core.diagnostics import InvalidInput, UsageError

PORTS = (26000, 26999)
"""First and last port that processes listen on by default."""
PORTS_TEXT = f"{PORTS[0]}-{PORTS[1]}"
WAIT_SECONDS = 60.0
"""How long a run waits for a lost host by default."""
MOST_PORT = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """``address``: HOST:PORT of Ray's head; ``hosts``: nodes by the names of hosts, as ``--host`` states them; ``ports``: first
    and last of those that processes listen on; ``wait``: seconds that a lost host has to come back, 0 to end the run."""

    address: str
    hosts: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, int] = PORTS
    wait: float = WAIT_SECONDS


def stated_cluster(
    address: str, hosts: Mapping[str, str], ports: str, wait: float = WAIT_SECONDS, *, emulate: bool = False
) -> ClusterOptions | None:
    """What is stated of a cluster, with ``ports`` as FIRST-LAST; None without an ``address``. Raises UsageError where something
    is stated of no cluster, and where the hosts of one would be emulated here (``emulate``)."""
    if not address:
        given = {"--host": bool(hosts), "--ports": ports != PORTS_TEXT, "--wait": wait != WAIT_SECONDS}
        if first := next((option for option, is_given in given.items() if is_given), ""):
            raise UsageError(OnlyWithCluster(), where=first)
        return None
    if emulate:
        raise UsageError(NotWithCluster(("--emulate",)), where="--cluster")
    return ClusterOptions(address, hosts, port_range(ports), wait)


def require_packages() -> None:
    """Raises InvalidInput where a package is missing that runs on several hosts need."""
    for module, package in (("ray", "ray"), ("zmq", "pyzmq")):
        if find_spec(module) is None:
            raise InvalidInput(PackageMissing(package), where="--cluster")


def stated_hosts(texts: Iterable[str]) -> dict[str, str]:
    """Nodes by the names of hosts, from texts NAME=NODE. Raises UsageError."""
    hosts: dict[str, str] = {}
    for text in texts:
        name, _, node = text.partition("=")
        if not name or not node or name in hosts:
            raise UsageError(NotAHostAndNode(text), where=f"--host {text}")
        hosts[name] = node
    return hosts


def port_range(text: str) -> tuple[int, int]:
    """First and last port of a text FIRST-LAST. Raises UsageError."""
    first, _, last = text.partition("-")
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
        raise UsageError(NotPorts(text), where=f"--ports {text}")
    if not 0 < int(first) <= int(last) <= MOST_PORT:
        raise UsageError(NotPorts(text), where=f"--ports {text}")
    return int(first), int(last)
