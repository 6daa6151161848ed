"""Reports of a rank to the process that started it: what it does now, each step that is done, and why it ends.

Steps and faults go through a pipe of the rank's own, so nothing that a data function or a library prints is taken for a report.
What a rank does now stands in memory that all ranks of the host share, so no report needs a disk. A rank that somebody started
by hand prints steps to standard output and faults to standard error.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dnnc.engines.torch.launch.job import Job
from ir.core.diagnostics import Diagnostic

STARTING = "starting"
"""What a rank does until it has met the others."""
DONE = "done"
"""What a rank does once it has done its part."""
_SIZE = 120
"""Bytes that say what a rank does."""
_LAST = 1 << 24
"""The offset, behind the texts of all ranks, of the step after which all ranks are to end."""
_NOTICE = 0.2
"""Seconds within which every rank reads that step."""
_IN_STEP = re.compile(r" in step (\d+)$")


@dataclass(frozen=True, slots=True)
class Progressed:
    """A step as rank 0 tells of it. ``pace``: samples a second; ``seconds``: that it took; ``samples``: the digest of
    all samples up to its end, empty where it was not asked for. ``loss_scale``: behind the step, and how many steps were
    ``skipped`` so far, None where the loss has no scale. ``metrics``: of the evaluation behind it, if there is one;
    ``best``: it is better than all before; ``stops``: training ends with it, earlier than was asked for."""

    step: int
    loss: float
    pace: float
    seconds: float
    samples: str = ""
    loss_scale: float | None = None
    skipped: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: bool = False
    stops: bool = False

    @property
    def scaling(self) -> str:
        """The scale of the loss, for a line about the step; empty where it has none."""
        return "" if self.loss_scale is None else f"  loss scale {self.loss_scale:g}, {self.skipped} skipped"


class Telling:
    """The rank's side. ``job``: None for a rank that somebody started by hand."""

    def __init__(self, job: Job | None) -> None:
        self.job = job

    def doing(self, words: str) -> None:
        """What the rank does from now on; it takes a microsecond."""
        if self.job is not None:
            os.pwrite(self.job.marks, words[:_SIZE].ljust(_SIZE).encode("ascii", "replace"), self.job.local_rank * _SIZE)

    def step(self, done: Progressed) -> None:
        """A step is done."""
        if self.job is not None:
            self._tell({"step": asdict(done)})
        else:
            words = f"step {done.step}  loss {done.loss:.9g}  {done.pace:.4g} samples/s  {done.seconds:.6g} s{done.scaling}"
            print(words, *(f"  {name} {value:.6g}" for name, value in done.metrics.items()), flush=True)

    def last(self) -> int:
        """The step with which the rank was asked to end; 0 where it was not."""
        return int.from_bytes(os.pread(self.job.marks, 8, _LAST), "little") if self.job is not None else 0

    def failed(self, code: int, diagnostics: Sequence[Diagnostic], *, lost: bool = False) -> None:
        """Why the rank ends. ``code``: the exit code that this means for the whole; ``lost``: another did not answer."""
        if self.job is None:
            for diagnostic in diagnostics:
                print(f"rank {os.environ.get('RANK', '0')}: {diagnostic}", file=sys.stderr, flush=True)
            return
        texts = [one.to_json() for one in diagnostics]
        report = {"rank": self.job.rank, "code": int(code), "lost": lost, "time": time.time(), "diagnostics": texts}
        self._tell({"failed": report})

    def _tell(self, message: Mapping[str, Any]) -> None:
        if self.job is None:
            raise ValueError("nobody listens: this rank was started by hand")
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self.job.tells, line) :]


class Listening:
    """The starter's side, for the ranks of one host. ``steps``: reported and not yet taken; ``failures``: reports of
    ``Telling.failed``."""

    def __init__(self, marks: int) -> None:
        self.marks = marks
        self.steps: list[Progressed] = []
        self.failures: list[Mapping[str, Any]] = []
        self._rests: dict[int, bytes] = {}

    def hear(self, descriptor: int) -> bool:
        """Read the reports of a rank; False where it has ended."""
        data = os.read(descriptor, 1 << 16)
        *lines, self._rests[descriptor] = (self._rests.get(descriptor, b"") + data).split(b"\n")
        for message in map(json.loads, lines):
            if "step" in message:
                self.steps.append(Progressed(**message["step"]))
            else:
                self.failures.append(message["failed"])
        return bool(data)

    def doing(self, places: int) -> dict[int, str]:
        """What each of ``places`` ranks does, by place; ranks that have not begun to report are left out."""
        data = os.pread(self.marks, places * _SIZE, 0).ljust(places * _SIZE, b"\0")
        words = (data[place * _SIZE : (place + 1) * _SIZE].decode("ascii").strip("\0 ") for place in range(places))
        return {place: text for place, text in enumerate(words) if text}

    def ask_to_end(self, doing: Mapping[int, str], pace: float) -> bool:
        """Ask the ranks to end after a step that none of them will have finished when it reads this. ``doing``: what they do;
        ``pace``: seconds of a step. Returns whether they are training already."""
        steps = [int(found[1]) for words in doing.values() if (found := _IN_STEP.search(words))]
        if steps:
            last = max(steps) + 1 + math.ceil(_NOTICE / max(pace, 1e-3))
            os.pwrite(self.marks, last.to_bytes(8, "little"), _LAST)
        return bool(steps)
