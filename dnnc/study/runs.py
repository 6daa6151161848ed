"""Files of measured runs: a CSV with a row for each run of a build. ``dnnc run`` and ``dnnc train`` append rows with
``--runs``, ``dnnc calibrate`` fits the numbers of machines to them.

Columns: ``build``, the folder (relative to the folder of the CSV); ``plan``, the beginning of the SHA-256 digest of its
``plan.ir``, to detect that the folder holds a later plan (may be empty); ``seconds``, in the unit of the plan's value: per
microbatch once the pipeline is full, for latency per sample, for training per step. Other columns are ignored.

To compute a plan's seconds on changed machines, its decisions are replayed as for an edited plan (``passes.partition.replay``),
``place`` computes their costs, and ``schedule`` follows the rows that the plan states.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path

from dnnc.build.build import PROGRAM, read_program
from dnnc.build.snapshot import Snapshot
from dnnc.data.faults import NoFolderForOutput
from dnnc.study.faults import (
    BuildMissing,
    BuildNameNotText,
    BuildNotAPath,
    BuildNotNamed,
    BuildWithoutMachines,
    ColumnMissing,
    NotCsv,
    PlanChanged,
    PlanWithoutTime,
    RunsNotAFile,
    RunsNotWritten,
    WrongSeconds,
)
from ir.core.diagnostics import Diagnostic, DiagnosticSink, InvalidInput
from ir.core.limits import LIMITS
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from ir.system.files import read_input_text
from passes.framework.base import Pass

COLUMNS = ("build", "plan", "seconds")
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run. ``build``: absolute path, which identifies the plan; ``where``: line of the file, for messages."""

    build: Path
    plan: str
    seconds: float
    where: str


@dataclass(frozen=True, slots=True)
class StatedPlan:
    """The plan of a build, and passes that compute its seconds on other machines. ``value``: seconds that the build states."""

    build: Path
    digest: str
    topology: Topology
    value: float
    _module: Module
    _steps: tuple[Pass, ...]

    def require(self, row: MeasuredRun) -> None:
        """Raises InvalidInput if the row is of another plan."""
        if row.plan and row.plan.lower()[:_DIGITS] != self.digest:
            raise InvalidInput(PlanChanged(str(row.build)), where=row.where)

    def seconds_on(self, topology: Topology) -> float:
        """Value of the plan on machines with the same names and other numbers. Raises DnncError."""
        from dnnc.compile.context import pass_context, with_topology
        from passes.framework.manager import PassManager

        module = with_topology(self._module, topology)
        plan = PassManager(self._steps, verify=False, expanded=True).run(module, pass_context(DiagnosticSink())).first(Plan)
        assert plan is not None
        return plan.value


def read_rows(path: Path) -> list[MeasuredRun]:
    """The rows of a file. Raises InvalidInput with every faulty line."""
    text = read_input_text(path, "a CSV of measured runs", LIMITS.document_bytes)
    reader = csv.reader(
        io.StringIO(text, newline=""), strict=True
    )  # without strict, an open quote would swallow the rows after it
    rows: list[MeasuredRun] = []
    faults: list[Diagnostic] = []
    line = 0
    try:
        names = [name.strip() for name in next(reader, [])]
        if missing := [name for name in ("build", "seconds") if names.count(name) != 1]:
            raise InvalidInput(ColumnMissing(missing[0]), where=f"{path}:1")
        line = reader.line_num
        for cells in reader:
            line = reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            fields = dict(zip(names, (cell.strip() for cell in cells), strict=False))
            where = f"{path}:{line}"
            seconds, build = _seconds(fields.get("seconds", "")), _folder(path, fields.get("build", ""))
            if not fields.get("build"):
                faults.append(BuildNotNamed().at(where))
            elif build is None:
                faults.append(BuildNotAPath(fields["build"]).at(where))
            elif seconds is None:
                faults.append(WrongSeconds(fields.get("seconds", "")).at(where))
            else:
                rows.append(MeasuredRun(build, fields.get("plan", ""), seconds, where))
    except csv.Error as error:
        raise InvalidInput(NotCsv(str(error)), where=f"{path}:{line + 1}") from None  # the first line of the row
    if faults:
        raise InvalidInput(faults)
    return rows


def _folder(path: Path, text: str) -> Path | None:
    """The folder of a build that a file at ``path`` names; None if the text is no path."""
    try:
        return (path.parent / text).resolve()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, a circle of links, a NUL
        return None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def require_appendable(path: Path) -> None:
    """Raises InvalidInput if no row can be appended; called before the run."""
    if path.exists() and not path.is_file():
        raise InvalidInput(RunsNotAFile(), where=str(path))
    if not path.absolute().parent.is_dir():
        raise InvalidInput(NoFolderForOutput(str(path.parent)), where=str(path))
    if path.exists() and _columns(path)[0]:
        read_rows(path)


def append_row(path: Path, build: Snapshot, seconds: float) -> None:
    """Appends a row for a measured build, with the columns of the file, or ``COLUMNS`` in a new file. Raises InvalidInput."""
    folder = os.path.relpath(build.folder.absolute(), path.absolute().parent)
    cells = folder, digest(build.text(PROGRAM)), f"{seconds:.6g}"
    fields = dict(zip(COLUMNS, cells, strict=True))
    names, whole = _columns(path) if path.exists() else ([], True)
    row = io.StringIO()
    if not whole:
        row.write("\n")
    writer = csv.writer(row, lineterminator="\n")
    if not names:
        writer.writerow(COLUMNS)
    writer.writerow([fields.get(name, "") for name in names or COLUMNS])
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(row.getvalue())  # in one write, so that concurrent runs do not mix their rows
    except UnicodeEncodeError:
        raise InvalidInput(BuildNameNotText(), where=str(build.folder)) from None
    except OSError as error:
        raise InvalidInput(RunsNotWritten(str(error.strerror or error)), where=str(path)) from None


def _columns(path: Path) -> tuple[list[str], bool]:
    """The columns of a file, and whether its last line ends with a newline. Raises InvalidInput."""
    text = read_input_text(path, "a CSV of measured runs", LIMITS.document_bytes)
    try:
        first = next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error as error:
        raise InvalidInput(NotCsv(str(error)), where=f"{path}:1") from None
    return [name.strip() for name in first], not text or text.endswith(("\n", "\r"))


def read_stated(row: MeasuredRun) -> StatedPlan:
    """The plan of a row's build. Raises InvalidInput if there is no build, no plan, or another plan than was measured."""
    from dnnc.build.plan_json import plan_to_json
    from dnnc.build.plan_reader import replay_from_json
    from ir import print_symbol
    from ir.core.module import Program, Schedule, Stage
    from passes.graph.folding import expand
    from passes.meshes.undecided import undecided, undifferentiated
    from passes.partition.place import PlacePass
    from passes.programs.schedule import SchedulePass
    from passes.timeline.families import DEFAULT

    if not row.build.is_dir():
        raise InvalidInput(BuildMissing(str(row.build)), where=row.where)
    files = Snapshot.open(row.build, only=(PROGRAM,))
    text, where, written = files.text(PROGRAM), files.where(PROGRAM), read_program(files)
    module = expand(written.without(Stage, Program))
    plan, topology = module.first(Plan), module.first(Topology)
    if plan is None or topology is None:
        raise InvalidInput(BuildWithoutMachines(), where=where)
    if not 0 < plan.value < math.inf:
        raise InvalidInput(PlanWithoutTime(str(row.build), plan.value), where=row.where)
    module = undifferentiated(module)
    decisions = replay_from_json(plan_to_json(module), where)
    steps: list[Pass] = [decisions, PlacePass()]
    schedule = module.first(Schedule) if plan.in_steps else None
    used = [device for stage in plan.stages for device in stage.devices]
    plain = schedule is None or (schedule.kind == DEFAULT and len(set(used)) == len(used))
    if schedule is not None and not plain:  # plans already assume plain 1F1B
        steps.append(SchedulePass(schedule.kind, print_symbol(schedule), where))
    stated = StatedPlan(row.build, digest(text), topology, plan.value, undecided(module.without(Schedule)), tuple(steps))
    stated.require(row)
    return stated


def digest(text: str) -> str:
    """The digest in the column ``plan``."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
