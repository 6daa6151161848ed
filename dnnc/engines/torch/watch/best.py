"""The best evaluation so far: when its weights are kept, and when training stops early.

What was evaluated stands in ``evaluations.json`` beside the losses. A training that goes on reads it, so it keeps the same
weights and stops at the same step as one without a stop."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnnc.engines.torch.faults import FileNotWritten
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.system.files import read_input_text
from ir.system.scratch import whole_file

EVALUATIONS = "evaluations.json"
BEST = "best"


@dataclass
class Best:
    """``patience``: evaluations without a better loss after which training stops, 0 for never; ``folder``: where they are
    written, None for nowhere."""

    patience: int
    folder: Path | None
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, patience: int, folder: Path | None, done: int) -> Best:
        """Of a training that goes on after step ``done``; later evaluations in the file are forgotten. Raises InvalidInput."""
        return cls(patience, folder, [one for one in _entries(folder) if one["step"] <= done])

    @property
    def loss(self) -> float:
        return min((one["loss"] for one in self.evaluations if one["loss"] is not None), default=math.inf)

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether these are better than all before, which makes their weights the best. Raises InvalidInput where the file
        cannot be written."""
        better = metrics["loss"] < self.loss
        self.evaluations.append(
            {"step": step, **{name: value if math.isfinite(value) else None for name, value in metrics.items()}}
        )
        if self.folder is not None:
            path, text = self.folder / EVALUATIONS, ",".join(f"\n {json.dumps(one)}" for one in self.evaluations)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as file:
                    file.write(f"[{text}\n]\n".encode())
            except OSError as error:
                raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path)) from error
        return better

    @property
    def stops(self) -> bool:
        """Whether training stops now."""
        losses = [math.inf if one["loss"] is None else one["loss"] for one in self.evaluations]
        since = len(losses) - 1 - losses.index(min(losses)) if losses else 0
        return 0 < self.patience <= since


def _entries(folder: Path | None) -> list[dict[str, Any]]:
    """What was evaluated, by a file that this wrote; empty for none and for something else. Raises InvalidInput."""
    if folder is None or not (folder / EVALUATIONS).exists():
        return []
    try:
        document = json.loads(read_input_text(folder / EVALUATIONS, "evaluations of a training", LIMITS.document_bytes))
    except (ValueError, RecursionError):
        return []
    good = document if isinstance(document, list) else []
    return [one for one in good if isinstance(one, dict) and isinstance(one.get("step"), int) and _is_loss(one.get("loss", ""))]


def _is_loss(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
