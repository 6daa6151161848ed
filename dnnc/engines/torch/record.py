"""What rank 0 tells and writes of a training, beside checkpoints: the loss of each step when it is done, the measured
timeline of the last step at the end."""

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
from dnnc.data.repeated import Digested
from dnnc.engines.onnxruntime.write.build import TRACE
from dnnc.engines.torch.faults import FileNotWritten, LossNotFinite
from dnnc.engines.torch.launch.telling import Progressed
from dnnc.engines.torch.trainer import Span
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.system.files import read_input_text
from ir.system.scratch import whole_file
from passes.model.learning import samples_of

LOSSES = "losses.json"
_END = b"\n]\n"
_TAG = 1 << 30
"""Of messages of losses; those of channels are less."""
_PART = struct.Struct("=d32s")
"""Of such a message."""
_NO_DIGEST = bytes(32)
_AHEAD = 64
"""Losses that a rank sends at most before rank 0 has them, beside those that rank 0 waits for."""


@dataclass(slots=True)
class Losses:
    """``losses.json``: a list of ``{"step": 1, "loss": 0.5}``. Whenever the process ends, what is there is valid JSON.

    ``file``: its descriptor; ``end``: where the next entry goes; ``count``: entries so far."""

    path: Path
    file: int
    end: int
    count: int

    @classmethod
    def open(cls, folder: Path, done: int) -> Losses:
        """The curve of a training that goes on after step ``done``: what the file has of the steps up to it stays. Raises
        InvalidInput where the disk refuses, or something else has the file's name."""
        path = folder / LOSSES
        kept = [_entry(one["step"], one["loss"]) for one in _entries(path) if one["step"] <= done]
        text = "[" + ",".join(f"\n {entry}" for entry in kept)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(text.encode() + _END)
            return cls(path, os.open(path, os.O_WRONLY | os.O_CLOEXEC), len(text), len(kept))
        except OSError as error:
            raise _refused(path, error) from error

    def add(self, step: int, loss: float) -> None:
        """Write the loss of a step. Raises InvalidInput where the disk refuses."""
        entry = f"{',' * bool(self.count)}\n {_entry(step, loss)}".encode()
        try:
            os.pwrite(self.file, entry + _END, self.end)
        except OSError as error:
            raise _refused(self.path, error) from error
        self.end += len(entry)
        self.count += 1


def _entry(step: int, loss: Any) -> str:
    """The JSON of an entry, where a loss that is no finite number is null: JSON has no other."""
    finite = isinstance(loss, int | float) and math.isfinite(loss)
    return json.dumps({"step": step, "loss": loss if finite else None})


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of losses; none of another document, or where there is none. Raises InvalidInput for what is no
    regular file, for one that cannot be read, and for one that is no text."""
    if not path.exists():
        return []
    text = read_input_text(path, "losses of a training", LIMITS.document_bytes)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("step"), int) and "loss" in entry]


def _refused(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path))


@dataclass(slots=True)
class Curve:
    """The losses of steps, of which each rank gives the sum over the microbatches that it computes. Rank 0 tells and writes the
    mean. Where there is no flush it lets ``behind`` steps pass first, for the last stage is as far behind.

    Ranks that read samples give the digest of those that they were given so far, too: each calls the function of ``source``, or
    reads its host's file, by itself. ``digested``: where that is read; None where nobody has to compare.

    ``losses``: the file of rank 0, where there is one; ``told`` hears of each step; ``finite``: whether a loss that is no
    finite number ends the training. ``others``: the ranks that rank 0 hears of; ``parts``: on rank 0 its own of steps that are
    not told yet, with the seconds that they took it; ``sent``: on others, what is on its way."""

    step: Step
    rank: int
    source: str
    digested: Digested | None
    losses: Losses | None
    told: Callable[[Progressed], None]
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
        compared = {rank for rank in ranks if self.digested is not None and _reads_samples(self.step, rank)}
        self.others = tuple(rank for rank in ranks if rank in compared or _computes(self.step, rank))

    def add(self, number: int, loss: float) -> None:
        """What this rank computes of step ``number``, counted from 0."""
        if self.rank and self.rank not in self.others:
            return
        part = _Part(loss, _NO_DIGEST)
        if self.digested is not None and _reads_samples(self.step, self.rank):
            part = part._replace(digest=self.digested.through(number))
        if self.rank == 0:
            now = time.perf_counter()
            self.parts.append((number, part, now - self.began))
            self.began = now
            self._tell(self.behind)
        else:
            tensor = part.packed()
            self.sent.append((tensor, dist.isend(tensor, 0, tag=_TAG)))
            self._send(_AHEAD + self.behind)

    def settle(self) -> None:
        """Tell of all steps."""
        self._tell(0)
        self._send(0)

    def _tell(self, left: int) -> None:
        while len(self.parts) > left:
            number, mine, seconds = self.parts.popleft()
            everyone = [mine, *map(_received, self.others)]
            digests = {part.digest for part in everyone} - {_NO_DIGEST}
            if len(digests) > 1:
                raise InvalidInput(RanksReadOtherSamples(self.source, number + 1), where=self.source)
            loss = sum(part.loss for part in everyone) / self.step.microbatches
            if self.finite and not math.isfinite(loss):
                raise InvalidInput(LossNotFinite(f"{loss:g}"), where=f"step {number + 1}")
            samples = self.step.microbatches * samples_of(self.step.module.entry)
            digest = next(iter(digests), b"").hex()
            self.told(Progressed(number + 1, loss, samples / seconds, seconds, digest))
            if self.losses is not None:
                self.losses.add(number + 1, loss)

    def _send(self, left: int) -> None:
        while len(self.sent) > left:
            self.sent.popleft()[1].wait()


class _Part(NamedTuple):
    """What a rank gives of a step. ``digest``: of the samples that it was given so far, of one that compares none zeros."""

    loss: float
    digest: bytes

    def packed(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(_PART.pack(*self)), dtype=torch.uint8)


def _received(rank: int) -> _Part:
    tensor = torch.empty(_PART.size, dtype=torch.uint8)
    dist.recv(tensor, rank, tag=_TAG)
    return _Part(*_PART.unpack(bytes(tensor.tolist())))


def _reads_samples(step: Step, rank: int) -> bool:
    return any(step.program(stage, rank)[0].args for stage in step.stages_of(rank))


def _computes(step: Step, rank: int) -> bool:
    """Whether a rank is the first to compute a result of the model, of some microbatches."""
    return any(
        step.program(stage, rank)[0].results
        and any(step.takers(stage, number)[0] == rank for number in range(step.microbatches))
        for stage in step.stages_of(rank)
    )


def write_trace(step: Step, out: Path, spans: Iterable[Span], rank: int, world: int) -> None:
    """Rank 0 writes the timeline of the last step, or steps, on all ranks, beside the predicted one of the plan. All ranks call
    this. Raises InvalidInput where the disk refuses."""
    mine = [
        (span.action.kind, span.action.stage, span.action.microbatch, span.action.channel, span.start, span.end)
        for span in spans
    ]
    everyone = _gathered(mine, rank, world)
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
        for r, row in enumerate(everyone)
        for kind, stage, number, channel, start, end in row
    ]
    trace = to_perfetto({"predicted": predicted(step.module), "measured": events})
    with whole_file(out / TRACE) as file:
        file.write((json.dumps(trace) + "\n").encode())


def _gathered(mine: list[Any], rank: int, world: int) -> list[Any]:
    """On rank 0 the lists of all ranks, as JSON has them: ``torch.distributed`` would unpickle what it receives."""
    text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
    if rank:
        dist.send(torch.tensor([text.numel()]), 0, tag=_TAG)
        dist.send(text, 0, tag=_TAG)
        return []
    everyone = [mine]
    for other in range(1, world):
        size = torch.empty(1, dtype=torch.int64)
        dist.recv(size, other, tag=_TAG)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(text, other, tag=_TAG)
        everyone.append(json.loads(text.numpy().tobytes()))
    return everyone


__all__ = ["LOSSES", "Curve", "Losses", "write_trace"]
