"""Files of numbers about each step, for other programs: CSV, JSON lines, and the event files of TensorBoard.

A file of a training that goes on keeps its rows up to the step from which it goes on. Each row is in the file as soon as its
step is told."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dnnc.engines.torch.faults import FileNotWritten
from dnnc.engines.torch.launch.faults import LogOfUnknownKind, TensorBoardMissing
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.limits import LIMITS
from ir.system.files import read_input_text
from ir.system.scratch import whole_file

if TYPE_CHECKING:
    from dnnc.engines.torch.launch.telling import Progressed

COLUMNS = (
    *("step", "loss", "samples_per_second", "seconds", "loss_scale", "skipped"),
    *("eval_loss", "eval_accuracy", "eval_perplexity"),
)
KINDS = (".csv", ".jsonl")

Row = dict[str, Any]


def row_of(done: Progressed) -> Row:
    """What is known of a step, by column."""
    row: Row = {"step": done.step, "loss": done.loss, "samples_per_second": done.pace, "seconds": done.seconds}
    if done.loss_scale is not None:
        row |= {"loss_scale": done.loss_scale, "skipped": done.skipped}
    return row | {f"eval_{name}": value for name, value in done.metrics.items()}


@contextmanager
def opened_logs(files: Sequence[Path], tensorboard: Path | None, begin: int) -> Iterator[Callable[[Progressed], None]]:
    """What is to be called with each step that is done. ``begin``: the step after which training goes on. Raises UsageError for
    a file of an unknown kind, and where TensorBoard is not installed; InvalidInput where a file cannot be written."""
    for path in files:
        if path.suffix not in KINDS:
            raise UsageError(LogOfUnknownKind(), where=f"--log {path}")
    if tensorboard is not None and find_spec("tensorboard") is None:
        raise UsageError(TensorBoardMissing(), where="--tensorboard")
    with ExitStack() as stack:
        writers = [stack.enter_context(_file(path, begin)) for path in files]
        if tensorboard is not None:
            writers.append(stack.enter_context(_events(tensorboard, begin)))

        def add(done: Progressed) -> None:
            row = row_of(done)
            for write in writers:
                write(row)

        yield add


@contextmanager
def _file(path: Path, begin: int) -> Iterator[Callable[[Row], None]]:
    text, kept = (_as_csv, _csv_rows) if path.suffix == ".csv" else (_as_json, _json_rows)
    earlier = kept(path, begin) if begin and path.exists() else []
    head = ",".join(COLUMNS) + "\n" if path.suffix == ".csv" else ""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write((head + "".join(map(text, earlier))).encode())
            log = stack.enter_context(path.open("ab", buffering=0))
        except OSError as error:
            raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path)) from error
        yield lambda row: _append(log, path, text(row))


def _append(log: BinaryIO, path: Path, text: str) -> None:
    try:
        log.write(text.encode())
    except OSError as error:
        raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path)) from error


def _as_csv(row: Row) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([row.get(name, "") for name in COLUMNS])
    return line.getvalue()


def _as_json(row: Row) -> str:
    finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
    return json.dumps(finite) + "\n"


def _csv_rows(path: Path, begin: int) -> list[Row]:
    rows = csv.DictReader(io.StringIO(read_input_text(path, "a log of a training", LIMITS.document_bytes)))
    return [row for row in rows if (row.get("step") or "").isdecimal() and int(row["step"]) <= begin]


def _json_rows(path: Path, begin: int) -> list[Row]:
    rows = []
    for line in read_input_text(path, "a log of a training", LIMITS.document_bytes).splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and row["step"] <= begin:
            numbers = {key: math.nan if value is None else value for key, value in row.items()}
            rows.append({key: value for key, value in numbers.items() if isinstance(value, int | float)})
    return rows


@contextmanager
def _events(folder: Path, begin: int) -> Iterator[Callable[[Row], None]]:
    from torch.utils.tensorboard import SummaryWriter

    try:
        writer: Any = SummaryWriter(str(folder), purge_step=begin + 1 if begin else None)
    except OSError as error:
        raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(folder)) from error

    def write(row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name.replace("eval_", "eval/") if "eval" in name else f"train/{name}", value, row["step"])
        writer.flush()

    try:
        yield write
    finally:
        writer.close()
