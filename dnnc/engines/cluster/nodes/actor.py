"""What runs on a node of a cluster: the agent of a host, and what is asked about the node before.

Ray makes an actor of ``NodeAgent`` (``ray_cluster``). When the actor has ended, in whatever way, nothing but the cache is left
on the node: the processes of devices end with their agent, and the agent ends with the starter.
"""

from __future__ import annotations

import platform
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dnnc.engines.cluster.agent import Agent
from dnnc.engines.cluster.files.cache import default_folder
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.hosts.answers import Answers
from ir.core.diagnostics import InvalidInput
from ir.system.host import local_cores, local_memory

PACKAGES = ("dnnc", "onnxruntime", "numpy", "pyzmq")
"""Their versions decide whether hosts compute the same and understand each other."""
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node answers that it has (``NodeAgent.facts``). ``memory``: bytes; ``disk``: bytes that are free for files."""

    versions: dict[str, str]
    cores: int
    memory: int
    providers: tuple[str, ...]
    disk: int

    @classmethod
    def read(cls, answer: Any, host: str, where: str) -> Facts:
        """Raises InvalidInput where a field is not what it should be."""
        answers = Answers(host, where)
        facts = answers.table(answer, "facts")
        versions = answers.table(facts.get("versions"), "versions").items()
        found = {name: answers.text(text, f"version of {name}") for name, text in versions}
        cores, memory, disk = (
            answers.integer(facts.get(name), name, least, most)
            for name, least, most in (("cores", 1, 1 << 20), ("memory", 0, _MOST_BYTES), ("disk", 0, _MOST_BYTES))
        )
        providers = [answers.text(name, "a provider") for name in answers.items(facts.get("providers"), "providers")]
        return cls(found, cores, memory, tuple(providers), disk)


class NodeAgent:
    """One per host and run."""

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._relay: Relay | None = None

    def versions(self) -> dict[str, str]:
        """Versions of Python and of the packages by which hosts must agree."""
        return versions()

    def facts(self) -> dict[str, Any]:
        """What this node has: cores, bytes of memory, execution providers, bytes that are free for files of builds."""
        from dnnc.onnx.ort import load_onnxruntime

        folder = default_folder()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return {
            "versions": versions(),
            "cores": local_cores(),
            "memory": local_memory(),
            "providers": list(load_onnxruntime().get_available_providers()),
            "disk": shutil.disk_usage(folder).free,
            "folder": str(default_folder()),
        }

    def clock(self) -> float:
        """Seconds since 1970 by the clock of this node."""
        return time.time()

    def launch(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Starts the agent; returns what its relay offers, or what was refused."""
        try:
            self._agent = Agent(settings)
        except InvalidInput as error:
            return {"refused": [diagnostic.to_json() for diagnostic in error.diagnostics]}
        threading.Thread(target=self._agent.serve, name="dnnc-agent", daemon=True).start()
        return {"offer": self._agent.relay.offer}

    def listen(self, address: str, ports: tuple[int, int]) -> dict[str, Any]:
        """Opens a port to try whether others reach it; returns what is offered, or what was refused."""
        self.close()
        try:
            self._relay = Relay(address, ports)
        except InvalidInput as error:
            return {"refused": [diagnostic.to_json() for diagnostic in error.diagnostics]}
        return {"offer": self._relay.offer}

    def reach(self, peers: Mapping[str, Any], seconds: float) -> list[str]:
        """Connects to other nodes that listen; returns the endpoints that were not reached."""
        assert self._relay is not None
        try:
            self._relay.meet(peers, seconds)
        except ConnectionError as error:
            return str(error).split(", ")
        return []

    def close(self) -> None:
        """Ends what was started here."""
        for one in (self._agent, self._relay):
            if one is not None:
                one.close()


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Of Python and ``packages`` here, empty for a package that is not installed under this name; and the order of bytes of
    numbers, which hosts send each other as they lie in memory."""
    found = {"python": platform.python_version(), "byte order": sys.byteorder}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # onnxruntime-gpu and the like
            found[name] = ""
    return found
