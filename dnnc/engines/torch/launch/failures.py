"""Chooses the one reason why training ended, from the reports of ranks and their exit statuses.

The reason is the first of these that exists: the earliest report of a rank's own error; the first rank that ended without a
report, by a signal or in the middle of its work; a rank that stood still while others waited for it. A rank is *lost* when it
ended because another did not answer. Of ranks that saw NaN, one that names the op comes before those that got it from others.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnnc.engines.onnxruntime.errors import Interrupted, RuntimeFailure, StageStopped, machine_hint
from dnnc.engines.onnxruntime.faults import StageEnded
from dnnc.engines.onnxruntime.starter.processes import ending, last_words, machine_ended
from dnnc.engines.torch.faults import ResultNotFinite
from dnnc.engines.torch.launch.faults import HostLost, RankFailed, RankLost, RanksSilent, RankStalled
from dnnc.engines.torch.launch.telling import DONE, STARTING
from ir.core.diagnostics import Diagnostic, DnncError, ExitCode, InvalidInput, UsageError


def is_lost(error: Exception) -> bool:
    """Whether an error of a rank says that another did not answer, as torch.distributed words it."""
    words = str(error)
    if machine_hint(words):  # this rank's own
        return False
    return type(error).__name__.startswith("Dist") or any(word in words for word in ("gloo", "Connection", "NCCL"))


def is_owned(report: Mapping[str, Any]) -> bool:
    """Whether a report says why training ends: that of a rank which is not lost, and did not see NaN that others made."""
    return not report["lost"] and all(one.get("code") != ResultNotFinite.code for one in report["diagnostics"])


def said_by(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first of the reports."""
    return min(reports, key=lambda one: (one["time"], one["rank"]), default=None)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of ranks when training ended without success. ``labels``: what to call each rank. ``ends``: rank and exit
    status of those that ended by themselves, in their order; ``said``: the last lines of standard error;
    ``apart``: there are ranks on other hosts, of which nothing is known here."""

    labels: Sequence[str]
    reports: Sequence[Mapping[str, Any]]
    doing: Mapping[int, str]
    ends: Mapping[int, int]
    said: Sequence[str] = field(default=())
    apart: bool = False

    def reason(self, seconds: float) -> DnncError:
        """The error to raise; ``seconds``: how long ranks waited for each other."""
        own = said_by([one for one in self.reports if is_owned(one)]) or said_by(
            [one for one in self.reports if not one["lost"]]
        )
        if own is not None:
            return self._own(own)
        reported = {one["rank"] for one in self.reports}
        for rank, status in self.ends.items():
            if rank not in reported and (status or self.doing.get(rank) != DONE):
                return self._ended(rank, status)
        silent = [rank for rank in sorted(self.doing) if rank not in reported and rank not in self.ends]
        lost = said_by(self.reports)
        if silent and not (self.apart and lost):  # else it may itself have waited for the other host
            return self.hangs(silent, seconds)
        if lost is None:
            return StageStopped(RanksSilent(last_words(self.said)), where="dnnc train")
        doing = self._doing(lost["rank"])
        return StageStopped(HostLost(doing) if self.apart else RankLost(doing), where=self._at(lost["rank"]))

    def hangs(self, ranks: Sequence[int], seconds: float) -> DnncError:
        """The error of a rank that does not go on: the first of these that does not itself wait for another."""
        rank = min(ranks, key=lambda one: (self.doing.get(one, "").startswith("recv"), one))
        return StageStopped(RankStalled(seconds, self._doing(rank)), where=self._at(rank))

    def _own(self, said: Mapping[str, Any]) -> DnncError:
        """The error that a rank reported. Faults of usage and of input are the same on all ranks, so they name none."""
        code = said["code"]
        diagnostics = [Diagnostic.from_json(one) for one in said["diagnostics"]]
        if code in (ExitCode.USAGE, ExitCode.INVALID_INPUT):
            return (UsageError if code == ExitCode.USAGE else InvalidInput)(diagnostics)
        first = diagnostics[0]
        machine = machine_hint(first.message)
        failure = StageStopped if machine else RuntimeFailure
        failure = Interrupted if code == ExitCode.INTERRUPTED else failure
        fault = RankFailed(first.message, first.where, self._doing(said["rank"]), machine or first.hint)
        return failure(fault, where=self._at(said["rank"]))

    def _ended(self, rank: int, status: int) -> DnncError:
        """The error of a rank that ended without a report. Of one that a signal ended while it started, no program of the build
        had run: then the machine is to blame, with libraries that crash as they are loaded."""
        machine = machine_ended(status, "\n".join(self.said))
        starting = status < 0 and self._doing(rank) == STARTING
        outside = machine or starting or -status in (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
        failure = StageStopped if outside else RuntimeFailure
        failure = Interrupted if -status == signal.SIGINT else failure
        fault = StageEnded(ending(status), self._doing(rank), last_words(self.said), machine)
        return failure(fault, where=self._at(rank))

    def _at(self, rank: int) -> str:
        return self.labels[rank] if rank < len(self.labels) else f"rank {rank}"

    def _doing(self, rank: int) -> str:
        return self.doing.get(rank) or STARTING
