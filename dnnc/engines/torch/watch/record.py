"""What rank 0 reports and writes besides checkpoints: the loss of each step, and at the end the measured timeline of the last
step."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dnnc.build.timeline import predicted
from dnnc.build.trace import TraceEvent, to_perfetto
from dnnc.build.training import Step
from dnnc.data.faults import RanksReadOtherSamples
from dnnc.data.repeated import Digested, Identified
from dnnc.engines.onnxruntime.write.build import TRACE
from dnnc.engines.torch.faults import FileNotWritten, LossNotFinite
from dnnc.engines.torch.launch.telling import Progressed
from dnnc.engines.torch.trainer import Span
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.system.files import read_input_text
from ir.system.scratch import whole_file
from passes.costs.learning import samples_of

LOSSES = "losses.json"
_END = b"\n]\n"
_TAG = 1 << 30
"""Of all messages of this file; tags of channels are smaller."""
_PART = struct.Struct("=d32sdq")
"""The layout of a message from a rank to rank 0: ``_Part``."""
_NO_DIGEST = bytes(32)
_AHEAD = 64
"""How many losses a rank may have sent that rank 0 has not received, besides the ``Curve.behind`` that rank 0 holds back."""


@dataclass(slots=True)
class Losses:
    """``losses.json``: a list of ``{"step": 1, "loss": 0.5}``, which is valid JSON whenever the process ends; of a loss that is
    scaled also ``loss_scale`` and ``skipped`` (``Progressed``).

    ``file``: its descriptor; ``end``: offset of the next entry; ``count``: entries so far."""

    path: Path
    file: int
    end: int
    count: int

    @classmethod
    def open(cls, folder: Path, done: int) -> Losses:
        """Opens the file of a training that continues after step ``done``; entries up to that step stay. Raises InvalidInput
        where the file cannot be written, or the name belongs to something that is no regular file."""
        path = folder / LOSSES
        earlier = [_entry(**entry) for entry in _entries(path) if entry["step"] <= done]
        text = "[" + ",".join(f"\n {entry}" for entry in earlier)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(text.encode() + _END)
            return cls(path, os.open(path, os.O_WRONLY | os.O_CLOEXEC), len(text), len(earlier))
        except OSError as error:
            raise _refused(path, error) from error

    def add(self, step: int, loss: float, **scaling: float) -> None:
        """Appends the loss of a step. Raises InvalidInput where the file cannot be written."""
        entry = f"{',' * bool(self.count)}\n {_entry(step, loss, **scaling)}".encode()
        try:
            os.pwrite(self.file, entry + _END, self.end)
        except OSError as error:
            raise _refused(self.path, error) from error
        self.end += len(entry)
        self.count += 1


def _entry(step: int, loss: Any, **more: Any) -> str:
    """The JSON of an entry. A loss that is not finite is null, since JSON has no such numbers."""
    finite = isinstance(loss, int | float) and math.isfinite(loss)
    known = {key: more[key] for key in ("loss_scale", "skipped") if key in more}
    return json.dumps({"step": step, "loss": loss if finite else None, **known})


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of losses; empty where there is no file, or it holds something else. Raises InvalidInput for what
    is no regular file, cannot be read, or is no text."""
    if not path.exists():
        return []
    text = read_input_text(path, "losses of a training", LIMITS.document_bytes)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    entries = document if isinstance(document, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("step"), int) and "loss" in entry]


def _refused(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path))


@dataclass(slots=True)
class Curve:
    """Collects the loss of each step on rank 0: every rank sends the sum over the microbatches whose loss it computes, and rank
    0 reports and writes the mean. In a stream (no flush between steps) the last stage is ``behind`` steps late, so rank 0 waits
    that many steps before it receives.

    Ranks that read samples also send the digest of all samples so far: each runs the data function of ``source``, or reads its
    host's file, by itself, and all must have got the same. ``digested``: computes the digest; None if digests need not be
    compared.

    ``losses``: on rank 0, the file to write, if any; ``report``: called with each step; ``finite``: whether a loss that is not
    finite ends the training; ``others``: the ranks that send to rank 0; ``parts``: on rank 0, its own parts of steps not yet
    reported, with their seconds; ``sent``: on other ranks, messages on their way."""

    step: Step
    rank: int
    source: str
    digested: Digested | Identified | None
    losses: Losses | None
    report: Callable[[Progressed], None]
    _: KW_ONLY
    finite: bool
    behind: int = field(init=False)
    others: tuple[int, ...] = field(init=False)
    parts: deque[tuple[int, _Part, float]] = field(default_factory=deque)
    sent: deque[tuple[torch.Tensor, Any]] = field(default_factory=deque)
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.behind = -(-len(self.step.stages) // self.step.microbatches) if self.step.schedule.periodic else 0
        ranks = range(1, len(self.step.devices))
        with_samples = {rank for rank in ranks if self.digested is not None and _reads_samples(self.step, rank)}
        decides = next((rank for rank in range(len(self.step.devices)) if _decides_scale(self.step, rank)), 0)
        telling = {decides, *with_samples}
        self.others = tuple(rank for rank in ranks if rank in telling or _computes_loss(self.step, rank))

    def add(self, number: int, loss: float, scaling: tuple[float, int] | None = None) -> None:
        """Adds this rank's loss of step ``number``, counted from 0: the sum over its microbatches. ``scaling``: the scale of
        the loss and the skipped steps, on ranks that decide on them."""
        if self.rank and self.rank not in self.others:
            return
        part = _Part(loss, _NO_DIGEST, *(scaling or ()))
        if self.digested is not None and _reads_samples(self.step, self.rank):
            part = part._replace(digest=self.digested.through(number))
        if self.rank == 0:
            now = time.perf_counter()
            self.parts.append((number, part, now - self.began))
            self.began = now
            self._report_all_but(self.behind)
        else:
            tensor = part.packed()
            self.sent.append((tensor, dist.isend(tensor, 0, tag=_TAG)))
            self._wait_for_all_but(_AHEAD + self.behind)

    def settle(self) -> None:
        """Reports all steps that were added."""
        self._report_all_but(0)
        self._wait_for_all_but(0)

    def _report_all_but(self, count: int) -> None:
        """Rank 0: receives and reports the oldest steps, until ``count`` are left."""
        while len(self.parts) > count:
            number, own_part, seconds = self.parts.popleft()
            parts = [own_part, *map(_receive, self.others)]
            digests = {part.digest for part in parts} - {_NO_DIGEST}
            if len(digests) > 1:
                raise InvalidInput(RanksReadOtherSamples(self.source, number + 1), where=self.source)
            loss = sum(part.loss for part in parts) / self.step.microbatches
            if self.finite and not math.isfinite(loss):
                raise InvalidInput(LossNotFinite(f"{loss:g}"), where=f"step {number + 1}")
            samples = self.step.microbatches * samples_of(self.step.module.entry)
            digest = next(iter(digests), b"").hex()
            scaling: dict[str, Any] = next((part.scaling for part in parts if part.scaling), {})
            self.report(Progressed(number + 1, loss, samples / seconds, seconds, digest, **scaling))
            if self.losses is not None:
                self.losses.add(number + 1, loss, **scaling)

    def _wait_for_all_but(self, count: int) -> None:
        """Other ranks: wait until at most ``count`` messages are on their way."""
        while len(self.sent) > count:
            self.sent.popleft()[1].wait()


class _Part(NamedTuple):
    """A rank's part of a step. ``loss``: the sum over its microbatches; ``digest``: of all its samples so far, zeros if
    none; ``scale``, ``skipped``: of the scale of the loss, -1 steps on a rank that does not decide on it."""

    loss: float
    digest: bytes
    scale: float = 0.0
    skipped: int = -1

    @property
    def scaling(self) -> dict[str, Any]:
        """The fields of ``Progressed`` that this rank decides on."""
        return {"loss_scale": self.scale, "skipped": self.skipped} if self.skipped >= 0 else {}

    def packed(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(_PART.pack(*self)), dtype=torch.uint8)


def _receive(rank: int) -> _Part:
    tensor = torch.empty(_PART.size, dtype=torch.uint8)
    dist.recv(tensor, rank, tag=_TAG)
    return _Part(*_PART.unpack(bytes(tensor.tolist())))


def _reads_samples(step: Step, rank: int) -> bool:
    return any(step.program(stage, rank)[0].args for stage in step.stages_of(rank))


def _decides_scale(step: Step, rank: int) -> bool:
    """Whether a rank decides on the scale of the loss."""
    return bool(step.loss_scale) and step.loss_scale[2] in step.held(rank)


def _computes_loss(step: Step, rank: int) -> bool:
    """Whether a rank adds the loss of some microbatch: it is the first of the ranks that compute one of a stage with
    results."""
    return any(
        step.program(stage, rank)[0].results
        and any(step.takers(stage, number)[0] == rank for number in range(step.microbatches))
        for stage in step.stages_of(rank)
    )


def write_trace(step: Step, out: Path, spans: Iterable[Span], rank: int, world: int) -> None:
    """Writes, on rank 0, the measured timeline of all ranks beside the plan's predicted one. All ranks must call this.
    ``spans``: this rank's actions of the last steps. Raises InvalidInput where the file cannot be written."""
    own_actions = [
        (span.action.kind, span.action.stage, span.action.microbatch, span.action.channel, span.start, span.end)
        for span in spans
    ]
    actions = _gathered(own_actions, rank, world)
    if rank:
        return
    events = [
        TraceEvent(
            step.devices[r],
            f"{kind} {stage}" + ("" if number is None else f".{number}"),
            kind,
            start,
            end,
            (("stage", stage), ("microbatch", number or 0)),
        )
        for r, row in enumerate(actions)
        for kind, stage, number, channel, start, end in row
    ]
    trace = to_perfetto({"predicted": predicted(step.module), "measured": events})
    with whole_file(out / TRACE) as file:
        file.write((json.dumps(trace) + "\n").encode())


def _gathered(items: list[Any], rank: int, world: int) -> list[Any]:
    """On rank 0, the lists of all ranks, else empty. Sent as JSON: ``torch.distributed`` would unpickle what it receives."""
    text = torch.frombuffer(bytearray(json.dumps(items).encode()), dtype=torch.uint8)
    if rank:
        dist.send(torch.tensor([text.numel()]), 0, tag=_TAG)
        dist.send(text, 0, tag=_TAG)
        return []
    gathered = [items]
    for other in range(1, world):
        size = torch.empty(1, dtype=torch.int64)
        dist.recv(size, other, tag=_TAG)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(text, other, tag=_TAG)
        gathered.append(json.loads(text.numpy().tobytes()))
    return gathered
