"""A device's process as the starter sees it: starts it, and turns its error or its exit status into a failure."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dnnc.engines.hosts.answers import Answers
from dnnc.engines.hosts.faults import HostGone, NotConnected
from dnnc.engines.onnxruntime.engine import Process
from dnnc.engines.onnxruntime.errors import (
    Lost,
    RuntimeFailure,
    StageStopped,
    failure_for,
    machine_hint,
    memory_limit,
    refusal,
)
from dnnc.engines.onnxruntime.faults import ModelNotLoaded, ModelNotRunnable, StageEnded, StageFailed
from dnnc.engines.onnxruntime.rows import LOADING, MEETING, RECEIVING, RUNNING, SENDING, STARTING, WAITING
from dnnc.engines.onnxruntime.transport.edges import config_text
from dnnc.onnx.ort import plain_words
from ir.core.diagnostics import DnncError, InvalidInput
from ir.system.child import module_command, module_environment

DOING = {
    STARTING: "starting",
    LOADING: "loading its model",
    RECEIVING: "waiting for microbatch {}",
    WAITING: "waiting for a free slot for microbatch {}",
    RUNNING: "running microbatch {}",
    SENDING: "sending microbatch {}",
    MEETING: "exchanging parts of microbatch {} with the other members",
}
ENDLESS = 1 << 62
"""A number that no microbatch and no count of events reaches."""
HOST_GONE = 1 << 16
"""The exit status, which no process has, of one whose host has gone."""
_NOT_CONNECTED = "ConnectionError: "
"""How the error of a process begins that did not reach others; the endpoints follow."""
_TAIL_LINES, _TAIL_CHARACTERS = 12, 500
"""Of the standard error of a process: last lines that are kept, and last characters of each."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MODULE = "dnnc.engines.onnxruntime.worker"
KILLED = "the system kills a process so when memory runs out: use more, or smaller, stages"


@dataclass(slots=True)
class DeviceProcess:
    """The process of a device. ``number``: its position among all; ``members``: by stage, which member of the mesh it is, -1
    for a stage without mesh; ``tail``: the last lines of its standard error, ``line``: the begin
    of the next one; ``error``: the error that it reported;
    ``so_far``: events of the run that it has told already; ``host``: the other host that it runs on, empty for this one;
    ``clock``: seconds to add to its times to have those of this host; ``wrong``: that it, or its host, answered what it cannot
    have meant."""

    number: int
    device: str
    members: Mapping[int, int]
    popen: Process
    control: int
    answers: deque[dict[str, Any]] = field(default_factory=deque)
    so_far: list[Any] = field(default_factory=list)
    buffered: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    line: bytes = b""
    ready: bool = False
    error: dict[str, Any] | None = None
    closed: bool = False
    host: str = ""
    clock: float = 0.0
    wrong: InvalidInput | None = None

    @property
    def last_words(self) -> str:
        """The last lines of standard error as a note, without the colours of onnxruntime's log."""
        every = [*self.tail, *([self.line.decode(errors="replace")] if self.line else [])]
        return last_words([_COLOUR.sub("", line) for line in every[-_TAIL_LINES:]])

    def label(self, stage: int) -> str:
        """Names the process in messages about one of its stages."""
        member = f" member {self.members[stage]}" if self.members[stage] >= 0 else ""
        return f"stage {stage}{member} on {self.device}" + (f" of host {self.host}" if self.host else "")


def events_told(said: Answers, process: DeviceProcess, found: Any) -> list[Any]:
    """The events that a process told. Raises InvalidInput."""
    events = said.items(found, "events", most=ENDLESS)
    if not process.host:  # of this program
        return events
    for event in events:
        action, stage, microbatch, start, end, title, channels = said.items(event, "an event", 7)
        if said.integer(stage, "an event", 0, ENDLESS) not in process.members:
            raise said.refuse("an event", stage, "a stage of the process")
        said.integer(microbatch, "an event", -1, ENDLESS)
        said.text(action, "the action of an event")
        said.text(title, "the title of an event")
        for time_ in (start, end):
            said.real(time_, "the time of an event")
        for channel in said.items(channels, "channels of an event"):
            if channel is not None:
                said.integer(channel, "a channel", 0, ENDLESS)
    return events


def is_not_connected(error: Mapping[str, Any]) -> bool:
    """Whether a process reported that it did not reach others: these may have ended first."""
    return str(error["error"]).startswith(_NOT_CONNECTED)


def reported_failure(process: DeviceProcess, stage: int, error: str, microbatch: int) -> DnncError:
    """The error that a process reported: InvalidInput for a model that onnxruntime refuses, else RuntimeFailure."""
    if reason := "" if process.ready else refusal(error):
        return InvalidInput(ModelNotRunnable(reason), where=process.label(stage))
    if not process.ready and error.startswith(_NOT_CONNECTED):
        return StageStopped(NotConnected(tuple(error.removeprefix(_NOT_CONNECTED).split(", "))), where=process.label(stage))
    reason, last, machine = plain_words(error), process.last_words, machine_hint(error)
    fault = StageFailed(microbatch, reason, last, machine) if process.ready else ModelNotLoaded(reason, last, machine)
    return failure_for(error)(fault, where=process.label(stage))


def raise_ended(process: DeviceProcess, stage: int, status: int, doing: str) -> NoReturn:
    """Raises the failure of a process that ended without reporting an error: ``Lost`` for what may have come from outside.
    ``doing``: what it was doing, in words."""
    if status == HOST_GONE:
        raise Lost(HostGone(process.host, doing), where=process.label(stage))
    machine = machine_ended(status, "\n".join(process.tail))
    signalled = -status in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU)
    lost = signalled or status == -signal.SIGKILL
    failure = Lost if lost else StageStopped if signalled or machine else RuntimeFailure
    raise failure(StageEnded(ending(status), doing, process.last_words, machine), where=process.label(stage))


def machine_ended(status: int, stderr: str) -> str:
    """What to do if this machine is the reason why a process ended; else empty. A crash may be for lack of memory, because
    libraries handle that badly, so it counts where a memory limit is set."""
    if status == -signal.SIGKILL:
        return KILLED
    crashed = -status in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
    return machine_hint(stderr) or (memory_limit() if crashed else "")


def ending(status: int | None) -> str:
    """An exit status in words."""
    if status is not None and status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with status {status}"


def keep_last(process: DeviceProcess, data: bytes) -> None:
    """Keeps the last lines of what a process wrote to its standard error, and of each its last characters."""
    *lines, process.line = (process.line + data).replace(b"\r", b"\n").split(b"\n")
    process.line = process.line[-_TAIL_CHARACTERS:]
    process.tail.extend(line.decode(errors="replace")[-_TAIL_CHARACTERS:] for line in lines if line.strip())


def last_words(lines: Iterable[str]) -> str:
    """Lines of standard error as a note; empty where there are none."""
    indented = [f"\n    {line}" for line in lines if line]
    return "".join(["its last lines on standard error:", *indented]) if indented else ""


class LocalProcesses:
    """The launcher of this host: each process is a child of this one, and ends with it."""

    def start(self, config: Mapping[str, Any], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        """Starts a process and writes its configuration to its standard input."""
        process = subprocess.Popen(
            module_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=module_environment({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}),
            pass_fds=tuple(descriptors),
        )
        assert process.stdin is not None
        try:
            process.stdin.write(config_text(config))
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, which shows on its control pipe
        return process
