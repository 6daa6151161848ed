"""Why training ended: what ranks say of it in one folder, how they ended, and the one reason that a person is told.

In the folder, which ``dnnc train`` makes, are:

- ``rankR.doing``: what rank R does now (``Marks``);
- ``rankR.json``: why rank R ended (``report``). A rank is *lost* when it ended because another did not answer.

The reason is, in this order: the first rank that says of itself what went wrong; the first that ended without a word, by a
signal or in the middle of its work; one that said nothing while others waited for it in vain.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnnc.runtime.errors import RuntimeFailure, StageStopped, machine_hint
from dnnc.runtime.processes import KILLED, ending
from ir.diagnostics import Diagnostic, DnncError, ExitCode, InvalidInput, UsageError

STARTING = "starting"
"""What a rank does until it has met the others."""
DONE = "done"
"""What a rank does once it has done its part."""
_SIZE = 120


class Marks:
    """What a rank does, in a file of fixed size that costs a microsecond to overwrite; nothing where no folder is named."""

    def __init__(self, folder: str | None, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(Path(folder, f"rank{rank}.doing"), flags, 0o600) if folder else None

    def __call__(self, doing: str) -> None:
        if self._file is not None:
            os.pwrite(self._file, doing[:_SIZE].ljust(_SIZE).encode("ascii", "replace"), 0)


def report(folder: str, rank: int, code: int, diagnostics: Sequence[Diagnostic], *, lost: bool = False) -> None:
    """Say why a rank ends. ``code``: the exit code that this means for the whole."""
    told = [{"message": one.message, "where": one.where, "hint": one.hint} for one in diagnostics]
    said = {"rank": rank, "code": int(code), "lost": lost, "time": time.time(), "diagnostics": told}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(said), encoding="utf-8")


def is_lost(error: Exception) -> bool:
    """Whether an error of a rank says that another did not answer, as torch.distributed words it."""
    words = str(error)
    return type(error).__name__.startswith("Dist") or any(word in words for word in ("gloo", "Connection", "NCCL"))


def said_by(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first of the reports."""
    return min(reports, key=lambda one: (one["time"], one["rank"]), default=None)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of ranks when training ended without success. ``labels``: what to call each rank. ``ends``: rank and exit
    status of those that ended by themselves, in their order; ``said``: the last lines of standard error."""

    labels: Sequence[str]
    reports: Sequence[Mapping[str, Any]]
    doing: Mapping[int, str]
    ends: Mapping[int, int]
    said: Sequence[str] = field(default=())

    @classmethod
    def read(cls, folder: Path, labels: Sequence[str], ends: Mapping[int, int], said: Sequence[str] = ()) -> Ended:
        """What is in the folder."""
        return cls(labels, reports(folder), doing(folder), ends, said)

    def reason(self, seconds: float) -> DnncError:
        """The error that tells a person why; ``seconds``: how long ranks waited for each other."""
        own = said_by([one for one in self.reports if not one["lost"]])
        if own is not None:
            return self._own(own)
        reported = {one["rank"] for one in self.reports}
        for rank, status in self.ends.items():
            if rank not in reported and (status or self.doing.get(rank) != DONE):
                return self._ended(rank, status)
        silent = [rank for rank in sorted(self.doing) if rank not in reported and rank not in self.ends]
        if silent:
            return self.hangs(silent, seconds)
        lost = said_by(self.reports)
        assert lost is not None
        hint = "did a rank on another host fail? Its 'dnnc train' says why"
        return RuntimeFailure(
            f"lost another rank: {lost['diagnostics'][0]['message']}", where=self._at(lost["rank"]), hint=hint
        )

    def hangs(self, ranks: Sequence[int], seconds: float) -> DnncError:
        """The error of a rank that does not go on: the first of these that does not itself wait for another."""
        rank = min(ranks, key=lambda one: (self.doing.get(one, "").startswith("recv"), one))
        hint = "a longer --timeout lets it take longer"
        return StageStopped(f"it did not go on for {seconds:g} s, {self._doing(rank)}", where=self._at(rank), hint=hint)

    def _own(self, said: Mapping[str, Any]) -> DnncError:
        """What a rank said of itself. Usage and input are faults of all ranks alike and need no rank."""
        code = said["code"]
        told = [Diagnostic(one["message"], where=one["where"], hint=one["hint"]) for one in said["diagnostics"]]
        if code in (ExitCode.USAGE, ExitCode.INVALID_INPUT):
            return (UsageError if code == ExitCode.USAGE else InvalidInput)(told)
        first = told[0]
        place = f" ({first.where})" if first.where else ""
        words = f"{first.message}{place}, {self._doing(said['rank'])}"
        hint = machine_hint(first.message) or first.hint
        failure = StageStopped if machine_hint(first.message) else RuntimeFailure
        return failure(words, where=self._at(said["rank"]), hint=hint)

    def _ended(self, rank: int, status: int) -> DnncError:
        """A rank that ended without a word."""
        machine = KILLED if status == -signal.SIGKILL else machine_hint("\n".join(self.said))
        outside = machine or -status in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU)
        failure = StageStopped if outside else RuntimeFailure
        hint = (machine or "see what it said last") + self._words()
        return failure(f"it {ending(status)} {self._doing(rank)}", where=self._at(rank), hint=hint)

    def _at(self, rank: int) -> str:
        return self.labels[rank] if rank < len(self.labels) else f"rank {rank}"

    def _doing(self, rank: int) -> str:
        return f"while {self.doing.get(rank) or STARTING}"

    def _words(self) -> str:
        return "".join(f"\n    {line}" for line in self.said)


def reports(folder: Path) -> list[Mapping[str, Any]]:
    """Why those ranks of this host ended that said so."""
    return [one for path in sorted(folder.glob("rank*.json")) if (one := _json(path)) is not None]


def doing(folder: Path) -> dict[int, str]:
    """What each rank of this host does."""
    found = {}
    for path in sorted(folder.glob("rank*.doing")):
        found[int(path.stem.removeprefix("rank"))] = path.read_text(encoding="ascii", errors="replace").strip()
    return found


def _json(path: Path) -> Any:
    """None for a file that is not there, or not whole because its writer was killed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


__all__ = ["DONE", "STARTING", "Ended", "Marks", "doing", "is_lost", "report", "reports"]
