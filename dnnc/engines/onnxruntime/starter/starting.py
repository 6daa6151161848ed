"""Starts the processes of a run, one for each device, and makes the starter's ends of the links to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnnc.build.build import Build
from dnnc.engines.onnxruntime.engine import Launcher
from dnnc.engines.onnxruntime.starter.host import HostProcesses
from dnnc.engines.onnxruntime.starter.processes import DeviceProcess, LocalProcesses
from dnnc.engines.onnxruntime.starter.roles import roles
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Receiver, Sender
from dnnc.engines.onnxruntime.transport.turns import Turns
from dnnc.engines.onnxruntime.transport.wiring import Place, links, stage_places
from dnnc.onnx.elements import Array


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run. ``threads``: cores (and onnxruntime threads) of each device, 0 for as many as its type has. ``timeout``:
    seconds that a stage may spend on one microbatch, or on loading (there at least a minute); None for no limit. ``pin``: bind
    devices to cores when there are enough for all. ``optimize``: onnxruntime's graph optimisations."""

    threads: int = 0
    timeout: float | None = 600.0
    pin: bool = True
    optimize: bool = True


@dataclass(frozen=True, slots=True)
class StarterEnd:
    """The starter's end of a link to ``place``. ``turns``: the microbatches that it carries."""

    side: Any
    turns: Turns
    place: Place


class Processes:
    """The running devices of a build, and the starter's ends of what it shares with them. ``status``: a row for each process,
    which it writes. ``wait``: seconds that hosts have to come back after a loss; of this one none."""

    wait = 0.0

    def __init__(self, build: Build, options: RunOptions, launcher: Launcher | None = None) -> None:
        self.build = build
        self.options = options
        self.feeds: list[StarterEnd] = []
        self.sinks: list[StarterEnd] = []
        self._host = HostProcesses(launcher or LocalProcesses(), str(build.folder))

    @property
    def every(self) -> list[DeviceProcess]:
        return self._host.every

    @property
    def status(self) -> Array:
        return self._host.status

    def start(self) -> None:
        """Starts all; they load their programs from then on. Raises InvalidInput where the system does not give the memory."""
        build, options = self.build, self.options
        every, wires = stage_places(build), links(build)
        for number, link in enumerate(wires):
            if FEEDER not in (link.source, link.target):
                continue
            sender, receiver = self._host.link(number, link.sent)
            if link.source == FEEDER:
                self.feeds.append(StarterEnd(Sender(link.sent, sender), link.turns, every[link.target]))
            else:
                self.sinks.append(StarterEnd(Receiver(link.received, receiver), link.turns, every[link.source]))
        used = {d for end in (*self.feeds, *self.sinks) for d in (end.side.descriptors.read, end.side.descriptors.write)}
        self._host.start(roles(build, wires, options.threads, options.optimize), build.files, pin=options.pin, kept=used)

    def back(self, until: float, stopped: Callable[[], bool]) -> None:
        """Waits until all hosts are there: they are."""

    def close(self) -> None:
        """Ends every process and closes everything; may be called again."""
        self._host.close()
        for port in (*self.feeds, *self.sinks):
            port.side.close()
        self.feeds, self.sinks = [], []
