"""Which cluster a build runs on, and what is stated of it. Imports no third party: the command line reads options with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from dnnc.engines.cluster.faults import NotAHostAndNode, NotPorts, PackageMissing
from ir.core.diagnostics import InvalidInput, UsageError

PORTS = (26000, 26999)
"""First and last port that processes listen on by default."""
WAIT_SECONDS = 60.0
"""How long a run waits for a lost host by default."""
_MOST_PORT = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """``address``: HOST:PORT of Ray's head; ``hosts``: nodes by the names of hosts, as ``--host`` states them; ``ports``: first
    and last of those that processes listen on; ``wait``: seconds that a lost host has to come back, 0 to end the run."""

    address: str
    hosts: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, int] = PORTS
    wait: float = WAIT_SECONDS


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
    if not 0 < int(first) <= int(last) <= _MOST_PORT:
        raise UsageError(NotPorts(text), where=f"--ports {text}")
    return int(first), int(last)


__all__ = ["PORTS", "WAIT_SECONDS", "ClusterOptions", "port_range", "require_packages", "stated_hosts"]
