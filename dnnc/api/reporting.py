"""The page of a build: ``Build.report``, and ``dnnc report``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.api.faults import NoComparisons, NoTimeline
from ir.core.diagnostics import InvalidInput

if TYPE_CHECKING:
    from dnnc.build.trace import TraceEvent
    from ir.core.module import Module

_COMPARED = {"stage", "device", "tensor", "alone", "chained", "allowed_chained", "verdict"}
"""What a comparison of a check has."""
INFINITE = 1e9
"""Stands for an infinite difference in node data."""


def planned(folder: Path) -> Module:
    """The module of a build, or of a plan alone, scheduled. Raises InvalidInput."""
    from dnnc.build.build import PROGRAM
    from dnnc.build.snapshot import Snapshot
    from dnnc.workloads.scheduled import written_plan

    return written_plan(Snapshot.open(folder, only=(PROGRAM,)))


def measured(folder: Path, trace: Path | None) -> list[TraceEvent]:
    """The measured timeline of a trace file; without one, that of the build, or none where it has none. Raises InvalidInput for
    a file that has none."""
    from dnnc.build.trace import from_perfetto
    from dnnc.engines.onnxruntime.write.build import TRACE
    from ir.core.limits import LIMITS
    from ir.system.files import read_input_text
    from ir.text.json_text import parse_json

    path = trace or folder / TRACE
    if trace is None and not path.exists():
        return []
    data = parse_json(read_input_text(path, "a timeline of 'dnnc run --trace'", LIMITS.text_bytes), str(path))
    try:
        events = from_perfetto(data, "measured")
    except ValueError as error:
        raise InvalidInput(NoTimeline(str(error)), where=str(path)) from None
    if trace is not None and not events:
        raise InvalidInput(NoTimeline("it has the predicted one alone"), where=str(path))
    return events


def checked(path: Path | None) -> dict[str, Any] | None:
    """What ``dnnc check --json`` printed into a file; None without one. Raises InvalidInput for anything else."""
    from ir.core.limits import LIMITS
    from ir.system.files import read_input_text
    from ir.text.json_text import parse_json

    if path is None:
        return None
    data = parse_json(read_input_text(path, "the output of 'dnnc check --json'", LIMITS.text_bytes), str(path))
    if not (isinstance(data, dict) and data.get("schema") == "dnnc.check/1" and isinstance(data.get("verdict"), str)):
        raise InvalidInput(NoComparisons(), where=str(path))
    rows = data.get("comparisons")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= _COMPARED for row in rows):
        raise InvalidInput(NoComparisons(), where=str(path))
    return dict(data)


def write_page(folder: Path, out: Path | None, trace: Path | None, check: Path | None = None) -> Path:
    """Writes the page of a build to ``out``, or into the build, and node data for Model Explorer into a folder beside it that
    ends in ``.nodes``. Returns the page's path. ``trace``: as of ``measured``; ``check``: as of ``checked``. Raises
    InvalidInput."""
    from dnnc.engines.onnxruntime.write.build import REPORT
    from dnnc.report.page import node_data, page
    from ir.system.scratch import whole_file

    target = out or folder / REPORT
    module, found = planned(folder), checked(check)
    text = page(module, measured(folder, trace), found)
    with whole_file(target) as file:
        file.write(text.encode())
    nodes = target.with_name(f"{target.stem}.nodes")
    nodes.mkdir(exist_ok=True)
    (nodes / "error.json").unlink(missing_ok=True)  # of an earlier check
    for name, data in node_data(module, _errors(found)).items():
        with whole_file(nodes / f"{name}.json") as file:
            file.write(f"{json.dumps(data, indent=1)}\n".encode())
    return target


def _errors(found: Mapping[str, Any] | None) -> dict[str, float]:
    """The difference of each compared tensor, chained where that is known."""
    rows = found["comparisons"] if found is not None else ()
    differences = {str(row["tensor"]): row["alone"] if row["chained"] is None else row["chained"] for row in rows}
    numbers = {tensor: INFINITE if value == "inf" else value for tensor, value in differences.items()}
    return {
        tensor: float(value) for tensor, value in numbers.items() if isinstance(value, int | float) and abs(value) <= INFINITE
    }
