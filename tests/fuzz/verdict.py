"""How one run of the command ended, and what of it must not be.

A run fails by its exit code (1 is always a fault of dnnc), by an exception or a signal, by its time and memory, by what it says
(a message without its place, the same message twice, characters that a terminal obeys) and by what it leaves behind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ir.core.diagnostics import ExitCode, visible

CPU_LIMIT = 20.0
"""Seconds of CPU that a command may take."""
MEMORY_LIMIT = 2 << 30
"""Bytes that a command may add to what the process holds."""
TALK_LIMIT = 256 << 10
"""Characters of messages for one input."""

_ALLOWED = {code.value for code in ExitCode} - {ExitCode.INTERNAL.value}
_LOCATED = re.compile(r"(?m)^(?!\s)(?!error[:\[]).+?: error(\[\w+\])?: ")
_LOCATED_LINE = re.compile(r"(?m)^(?!\s).*?error(?:\[\w+\])?: .*$")
_BARE = re.compile(r"(?m)^error(\[\w+\])?: .*")
_FRAME = re.compile(r'\s+File ".*?/((?:dnnc|ir|passes|grammars)/(?!.*site-packages)[^"]*)", line (\d+), in (\S+)')
_OUTPUTS = ("-o", "--out", "--outputs", "--print-folder")


@dataclass(slots=True)
class Result:
    """How one run of the command ended. ``memory``: bytes added at the most; ``faults``: what must not be, empty when all is
    well; ``place``: where an internal error was raised."""

    case: str
    arguments: list[str] = field(default_factory=list)
    code: int = -1
    seconds: float = 0.0
    memory: int = 0
    stdout: str = ""
    stderr: str = ""
    place: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def signature(self) -> str:
        """Equal for failures that likely have one cause."""
        if not self.faults:
            return ""
        kind, _, detail = self.faults[0].partition(":")
        if kind.startswith("raw control"):
            return kind
        return f"{kind} | {self.place or masked(detail)}"


def faults_of(result: Result) -> list[str]:
    """What must not be, of exit code, time, memory and words."""
    found = []
    said = result.stderr
    if result.code not in _ALLOWED and not result.faults:
        found.append(f"exit {result.code}: {said[:300]}")
    if result.seconds > CPU_LIMIT:
        found.append(f"slow: {result.seconds:.1f} s of CPU")
    if result.memory > MEMORY_LIMIT:
        found.append(f"memory: {result.memory >> 20} MiB")
    if "Traceback (most recent call last)" in said + result.stdout:
        found.append("traceback")
    for name, text in (("stderr", said), ("stdout", result.stdout)):
        if (shown := visible(text, lines=True)) != text:
            at = next(i for i, (a, b) in enumerate(zip(text, shown, strict=False)) if a != b)
            found.append(f"raw control characters on {name}: {text[max(0, at - 60) : at + 20]!r}")
    if result.code in (2, 3, 4, 5) and not said.strip():
        found.append("no message")
    if result.code == ExitCode.INVALID_INPUT and (_BARE.search(said) or not _LOCATED.search(said)):
        found.append(f"no location: {said[:300]}")
    repeated = [line for line, count in Counter(_LOCATED_LINE.findall(said)).items() if count > 1]
    if repeated:
        found.append(f"said twice: {repeated[0][:300]}")
    if len(said) > TALK_LIMIT:
        found.append(f"talk: {len(said)} characters of messages")
    return found


def left_behind(arguments: list[str], code: int, folder: Path, before: set[Path], temporary: Path) -> list[str]:
    """Files and processes that the command should have taken away; outputs that a failed one should not have written."""
    outputs = {folder / value for option, value in pairwise(arguments) if option in _OUTPUTS}
    new = {path for path in folder.rglob("*") if path not in before}
    found = [path for path in new if not any(path == out or out in path.parents for out in outputs)]
    faults = [f"left behind: {path.relative_to(folder)}" for path in sorted(found)[:3]]
    if code != ExitCode.INTERNAL:
        faults += [f"left behind in the temporary folder: {path.name}" for path in sorted(temporary.iterdir())[:3]]
    if code in (2, 3, 4):
        faults += [f"written in spite of exit {code}: {out.name}" for out in sorted(outputs) if out in new]
    faults += [f"process left behind: {line[:200]}" for line in _children() if "resource_tracker" not in line]
    return faults


def _children() -> Iterator[str]:
    """The command lines of living children."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or "(ended)"


def crash_place(temporary: Path) -> str:
    """``TypeError in passes/prepare/cost/facts.py:12 of``: the error and the innermost frame of the project, from the crash
    report; of a pass that made invalid IR, what it says."""
    for path in temporary.glob("dnnc-crash-*.txt"):
        text = path.read_text(encoding="utf-8", errors="replace")
        first = text.partition("\nThe above exception")[0].rstrip().splitlines()
        frames = [line for line in first if _FRAME.match(line)]
        start = max((i for i, line in enumerate(first) if line.startswith("  ")), default=0)
        error = next(filter(None, first[start + 1 :]), "")
        if "InvariantError" in error or not frames:
            return masked(error)
        place = _FRAME.match(frames[-1])
        assert place is not None
        return f"{error.partition(':')[0]} in {place[1]}:{place[2]} {place[3]}"
    return ""


def masked(text: str) -> str:
    """The words of a message without its names, numbers and paths."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|@\S+|\d+|\S*/\S*", "_", text.strip().split("\n")[0])[:120]
