"""Launches the agents of a run, each on its host, and passes on what their relays offer.

``LocalAgents`` starts them on this machine, as children: two hosts on one machine, to try a build for several hosts.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from dnnc.engines.hosts.answers import MOST_TEXT, Answers
from ir.core.diagnostics import InvalidInput
from ir.system.child import forks_wait, module_command, module_environment

_MODULE = "dnnc.engines.cluster.agent"


class Agents(Protocol):
    """Starts agents, and ends them."""

    def launch(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        """Starts the agent of the host that ``settings`` name; returns what its relay offers. Raises InvalidInput where the
        host refuses."""

    def back(self, until: float, stopped: Callable[[], bool]) -> Mapping[str, str]:
        """Waits, after ``close``, until agents can be launched on all hosts again; returns the addresses that hosts have now,
        where these may be others. Raises StageStopped that names a host where that is not so by ``until`` (of the monotonic
        clock), or once nobody wants to wait (``stopped``)."""

    def close(self) -> None:
        """Ends every agent; may be called again."""


class LocalAgents:
    """Agents as children of this process. ``before``: what the command of a host's agent begins with, such as ``ip netns exec
    NAME``, which runs it in a network of its own; ``module``: what runs there."""

    def __init__(self, before: Mapping[str, Sequence[str]] = MappingProxyType({}), module: str = _MODULE) -> None:
        self.before = before
        self.module = module
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def launch(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        with forks_wait():
            process = subprocess.Popen(
                [*self.before.get(settings["host"], ()), *module_command(self.module)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=module_environment(),
                text=True,
                start_new_session=True,  # a terminal interrupts the starter alone, which ends the agents
            )
        self.processes[settings["host"]] = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its output says too
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
        line = process.stdout.readline(MOST_TEXT)
        if not line:
            raise ConnectionError(f"the agent of host '{settings['host']}' ended")
        return offered(Answers(settings["host"]).line(line.encode()), settings)

    def back(self, until: float, stopped: Callable[[], bool]) -> Mapping[str, str]:
        return {}

    def close(self) -> None:
        for process in self.processes.values():
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = {}


def offered(answer: Any, settings: Mapping[str, Any]) -> tuple[str, str]:
    """What an agent with these ``settings`` (``host``, ``address``, ``ports``) offers. Raises InvalidInput where it refuses to
    start or answers anything else."""
    answers = Answers(settings["host"])
    answer = answers.table(answer, "an offer")
    if "refused" in answer:
        raise InvalidInput(answers.diagnostics(answer["refused"]))
    return answers.offer(answer.get("offer"), "offer", settings["address"], settings["ports"])
