"""Watching a pipeline: which IR is printed where, and a table of the seconds of passes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnc.cli.faults import UnknownPassToPrint
from ir.core.diagnostics import UsageError
from ir.system.scratch import temporary_directory


@dataclass(frozen=True, slots=True)
class Tracing:
    """The printing options of ``compile`` and ``opt``, checked. ``before`` and ``after`` hold names of passes, or ``all``."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    on_change: bool = False
    folder: Path | None = None

    @classmethod
    def of(cls, before: Iterable[str] | None, after: Iterable[str] | None, on_change: bool, folder: Path | None) -> Tracing:
        """From the options as given. Raises UsageError for a name that is no pass."""
        from passes.framework.pipeline import near
        from passes.framework.registry import PASSES

        for option, names in (("--print-before", before), ("--print-after", after)):
            for name in names or ():
                if name != "all" and name not in PASSES:
                    raise UsageError(UnknownPassToPrint(name, near(name, (*PASSES, "all"))), where=option)
        return cls(tuple(before or ()), tuple(after or ()), on_change, folder)

    @property
    def to_stderr(self) -> bool:
        """Whether IR will appear on standard error, so that nothing else may be drawn there."""
        return self.folder is None and bool(self.before or self.after or self.on_change)

    def manager_options(self) -> dict[str, Any]:
        """Keywords of ``PassManager``: these options, and where a reproducer goes should a pass crash."""
        return {
            "print_before": self.before,
            "print_after": self.after,
            "print_on_change": self.on_change,
            "print_folder": self.folder,
            "reproducer": temporary_directory() / f"dnnc-crash-{os.getpid()}-{time.time_ns():x}.ir",
        }


_PARTS = frozenset(("search",))
"""Steps that are part of the step before them."""


def timing_text(seconds: Mapping[str, float]) -> str:
    """The seconds of each step, in order, with their share of ``total``; a part of the step above is indented."""
    from dnnc.report import Table, columns, percent_text, seconds_text, table_text

    total = seconds.get("total", 0.0) or sum(seconds.values())
    rows = tuple(
        (f"  {name}" if name in _PARTS else name, seconds_text(value), percent_text(value / total) if total else "-")
        for name, value in seconds.items()
    )
    return table_text(Table(columns("<step seconds share"), rows))
