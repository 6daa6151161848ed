"""What rank 0 tells and writes of a training, beside checkpoints: a line and a loss for each step when it is done, the measured
timeline of the last step at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dnnc.backend.write import TRACE
from dnnc.program.trace import TraceEvent, to_perfetto, with_timeline
from dnnc.program.training import Step, tensor_type
from dnnc.runtime.torch.trainer import Span
from ir.diagnostics import InvalidInput
from ir.scratch import whole_file

LOSSES = "losses.json"
_END = b"\n]\n"


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
        InvalidInput where the disk refuses."""
        path = folder / LOSSES
        kept = [json.dumps(entry) for entry in _entries(path) if entry["step"] <= done]
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
        entry = f"{',' * bool(self.count)}\n {json.dumps({'step': step, 'loss': loss})}".encode()
        try:
            os.pwrite(self.file, entry + _END, self.end)
        except OSError as error:
            raise _refused(self.path, error) from error
        self.end += len(entry)
        self.count += 1


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of losses; none of any other."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("step"), int) and "loss" in entry]


def _refused(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"it cannot be written: {error.strerror or error}", where=str(path))


def tell(step: Step, number: int, loss: float, seconds: float) -> None:
    """Print the line of a step, which ``dnnc train`` reads."""
    shapes = [tensor_type(value.type).shape for value in step.module.entry.args]
    sizes = [shape[0] for shape in shapes if shape and isinstance(shape[0], int)]
    samples = step.microbatches * (sizes[0] if sizes else 1)
    print(f"step {number}  loss {loss:.9g}  {samples / seconds:.4g} samples/s", flush=True)


def write_trace(step: Step, out: Path, folder: Path, spans: Sequence[Span], rank: int, world: int) -> None:
    """Rank 0 writes the timeline of a step on all ranks, beside the predicted one of the build in ``folder``. All ranks call
    this. Raises InvalidInput where the disk refuses."""
    mine = [
        (span.action.kind, span.action.stage, span.action.microbatch, span.action.channel, span.start, span.end)
        for span in spans
    ]
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, mine) if world > 1 else everyone.__setitem__(0, mine)
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
    try:
        trace = json.loads((folder / TRACE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a build is whole without it
        trace = to_perfetto({})
    with whole_file(out / TRACE) as file:
        file.write((json.dumps(with_timeline(trace, "measured", events)) + "\n").encode())


__all__ = ["LOSSES", "Losses", "tell", "write_trace"]
