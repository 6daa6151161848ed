"""A stage process as the starter sees it: how it is started, what it says, and how its end is told to a person."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dnnc.ort import plain_words
from dnnc.runtime.edges import config_text
from dnnc.runtime.errors import REFUSED_HINT, RuntimeFailure, StageStopped, failure_for, machine_hint, refusal
from dnnc.runtime.worker import LOADING, MEETING, RECEIVING, RUNNING, SENDING, STARTING, WAITING
from ir.child import module_command, module_environment
from ir.diagnostics import InvalidInput

DOING = {
    STARTING: "starting",
    LOADING: "loading its model",
    RECEIVING: "waiting for microbatch {}",
    WAITING: "waiting for a free slot for microbatch {}",
    RUNNING: "running microbatch {}",
    SENDING: "sending microbatch {}",
    MEETING: "exchanging parts of microbatch {} with the other members",
}
_TAIL_LINES = 12
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MODULE = "dnnc.runtime.worker"
KILLED = "the system kills a process so when memory runs out: use more, or smaller, stages"


@dataclass(slots=True)
class StageProcess:
    """The process of a stage, of one of its replicas or of a member of its mesh; ``number``: of the process, ``member``: in the
    mesh, -1 where the stage has none."""

    index: int
    number: int
    device: str
    member: int
    process: subprocess.Popen[bytes]
    control: int
    answers: deque[dict[str, Any]] = field(default_factory=deque)
    buffered: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ready: bool = False
    error: dict[str, Any] | None = None
    closed: bool = False

    @property
    def label(self) -> str:
        member = f" member {self.member}" if self.member >= 0 else ""
        return f"stage {self.index}{member} on {self.device}"


def raise_said(stage: StageProcess, error: str, microbatch: int) -> NoReturn:
    """Raises what a stage said: InvalidInput for a model that onnxruntime does not take, else RuntimeFailure."""
    if reason := "" if stage.ready else refusal(error):
        raise InvalidInput(f"its model cannot be run: {reason}", where=stage.label, hint=REFUSED_HINT)
    machine, failure, words = machine_hint(error), failure_for(error), plain_words(error)
    if stage.ready:
        hint = machine or "run 'dnnc check' on the build; is every input what the model accepts?"
        raise failure(f"failed at microbatch {microbatch}: {words}", where=stage.label, hint=hint + last_words(stage))
    raise failure(
        f"could not load its model: {words}", where=stage.label, hint=(machine or "compile it again") + last_words(stage)
    )


def raise_ended(stage: StageProcess, status: int, doing: str) -> NoReturn:
    """Raises what the end of a stage that said nothing means."""
    machine = KILLED if status == -signal.SIGKILL else machine_hint("\n".join(stage.tail))
    outside = machine or -status in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU)
    failure = StageStopped if outside else RuntimeFailure
    hint = (machine or "see what it said last") + last_words(stage)
    raise failure(f"{ending(status)} while {doing}", where=stage.label, hint=hint)


def ending(status: int | None) -> str:
    """An exit status in words."""
    if status is not None and status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with status {status}"


def last_words(stage: StageProcess) -> str:
    """What the process wrote to standard error last, without the colours of onnxruntime's log."""
    lines = (_COLOUR.sub("", line) for line in stage.tail)
    return "".join(f"\n    {line}" for line in lines if line)


def spawn(config: Mapping[str, Any], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a stage process and tells it its configuration."""
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
        pass  # it died already; its control pipe says so
    return process


__all__ = ["DOING", "StageProcess", "last_words", "raise_ended", "raise_said", "spawn"]
