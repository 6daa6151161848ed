"""The page of a build: ``Build.report``, and ``dnnc report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dnnc.api.faults import NoTimeline
from ir.core.diagnostics import InvalidInput

if TYPE_CHECKING:
    from dnnc.build.trace import TraceEvent
    from ir.core.module import Module


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


def write_page(folder: Path, out: Path | None, trace: Path | None) -> Path:
    """Writes the page of a build to ``out``, or into the build; returns its path. Raises InvalidInput."""
    from dnnc.engines.onnxruntime.write.build import REPORT
    from dnnc.report.page import page
    from ir.system.scratch import whole_file

    target = out or folder / REPORT
    text = page(planned(folder), measured(folder, trace))
    with whole_file(target) as file:
        file.write(text.encode())
    return target


__all__ = ["measured", "planned", "write_page"]
