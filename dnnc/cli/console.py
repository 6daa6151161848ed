"""The output of a command: data to standard output, remarks to standard error, a progress bar on a terminal only.

``put`` and ``put_json`` write data; ``talk`` and ``show_warnings`` write remarks, which ``--quiet`` silences.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ir.core.diagnostics import Diagnostic, Severity, visible, visible_json
from ir.system.scratch import whole_file

if TYPE_CHECKING:
    from dnnc.check.proof import ProofReport

PROGRESS_AFTER = 1.0
"""Seconds of work before the bar appears."""

_LOG = logging.getLogger("dnnc.steps")

_objects: list[str] = []
"""The commands whose JSON objects this process has written."""


def put(text: str) -> None:
    """Writes data to standard output, with a newline at its end and control characters escaped (``visible``)."""
    text = visible(text, lines=True)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def put_json(command: str, fields: dict[str, Any], version: int = 1) -> None:
    """One JSON object with the schema of ``command``, in its ``version``. JSON has no infinity: it is written as null. A
    command that fails after it has written its own object writes no second one."""
    if command == "error" and _objects:
        return
    _objects.append(command)
    data = finite({"schema": f"dnnc.{command}/{version}", **fields})
    put(visible_json(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)))


def finite(value: Any) -> Any:
    """The value with infinities and NaNs replaced by None, tuples by lists, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_whole(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all. Raises InvalidInput when the system refuses."""
    with whole_file(path) as file:
        file.write(text.encode())


def talk(text: str, quiet: bool = False) -> None:
    """Writes a remark to standard error."""
    if not quiet:
        sys.stdout.flush()
        text = visible(text, lines=True)
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()


def show_warnings(diagnostics: Iterable[Diagnostic], quiet: bool = False) -> None:
    """Writes warnings and notes to standard error, those of one text once, with their number. Errors are written by
    ``dnnc.cli.entry``, where they end the command."""
    alike: dict[tuple[Severity, str, str | None], list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        if diagnostic.severity is not Severity.ERROR:
            alike.setdefault((diagnostic.severity, diagnostic.message, diagnostic.hint), []).append(diagnostic)
    for (_, message, _), (first, *others) in alike.items():
        talk(str(replace(first, message=f"{message} (and {len(others)} more such)") if others else first), quiet)


class _Display:
    """A line of progress that appears once the work has taken ``PROGRESS_AFTER`` seconds; calls may come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._label = ""
        self._fraction: float | None = None
        self._since = time.monotonic()
        self._stopped = False
        self._bar: Any = None
        self._task: Any = None
        self._known = False
        self._timer = threading.Timer(PROGRESS_AFTER, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        with self._lock:
            if self._stopped:
                return
            layout = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            # Lines of standard output appear above the bar where both are the terminal; elsewhere they go where they should.
            here = sys.stdout.isatty()
            self._bar = Progress(*layout, console=Console(stderr=True), transient=True, redirect_stdout=here)
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
            self._update()

    def _update(self) -> None:
        known = self._fraction is not None
        if known != self._known:  # rich cannot make the total of a task unknown again
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task("", total=1.0 if known else None)
            self._known = known
        self._bar.update(self._task, description=self._label or "working", completed=self._fraction or 0.0)

    def report(self, label: str, fraction: float | None) -> None:
        """Shows the current step, and the fraction of it that is done (0 to 1, None if unknown)."""
        with self._lock:
            self._label, self._fraction = visible(label), fraction
            if self._bar is not None:
                self._update()

    def stop(self) -> None:
        """Removes the line."""
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._bar is not None:
                self._bar.stop()


Report = Callable[[str, float | None], None]
"""Called with the current step, and the fraction of it that is done (0 to 1, None if unknown)."""


@contextmanager
def progress(wanted: bool = True) -> Iterator[Report]:
    """A callback for each step of the work. Standard error shows a bar if it is a terminal, ``wanted`` holds and the work takes
    over a second; the logger ``dnnc.steps`` is told each new label."""
    display = _Display() if wanted and sys.stderr.isatty() else None
    last = ""

    def report(label: str, fraction: float | None) -> None:
        nonlocal last
        if label != last:
            last = label
            _LOG.debug("%s", label)
        if display is not None:
            display.report(label, fraction)

    try:
        yield report
    finally:
        if display is not None:
            display.stop()


def print_proof(report: ProofReport) -> None:
    """A line for each stage, then what is shown, and what it takes on trust."""
    from dnnc.report import Table, columns, print_table

    print_table(
        Table(columns("stage <device <verdict"), tuple((str(s.index), ",".join(s.devices), str(s)) for s in report.stages))
    )
    if report.proven:
        put("\nproven: for all inputs, the programs compute the model of plan.ir; taken on trust:")
        for trusted in report.trusted:
            put(f"- {trusted}")
