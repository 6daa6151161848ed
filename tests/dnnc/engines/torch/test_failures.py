"""The one reason that a person is told, of what ranks say when training ends, and how they end."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from dnnc.engines.onnxruntime.errors import RuntimeFailure, StageStopped
from dnnc.engines.torch.faults import ResultNotFinite
from dnnc.engines.torch.launch.failures import Ended
from dnnc.engines.torch.launch.telling import STARTING
from ir.core.diagnostics import InvalidInput

LABELS = ("stage 0 on a", "stage 1 on b")


def said(rank: int, message: str, *, code: int = 1, lost: bool = False, time: float = 0.0, where: str = "") -> dict[str, Any]:
    told = {"severity": "error", "message": message, "where": where, "hint": ""}
    return {"rank": rank, "code": code, "lost": lost, "time": time, "diagnostics": [told]}


def ended(*reports: dict[str, Any], ends: dict[int, int] | None = None, words: tuple[str, ...] = ()) -> Ended:
    doing = {0: "recv of stage 0 of microbatch 1 in step 3", 1: "F of stage 1 in step 3"}
    return Ended(LABELS, reports, doing, ends or {}, words)


def test_a_rank_that_lost_another_is_not_the_reason() -> None:
    lost = said(0, "Connection closed by peer", lost=True, time=1.0)
    error = ended(lost, said(1, "ValueError: no", time=2.0, where="stages/stage1.py:7")).reason(5)
    assert type(error) is RuntimeFailure
    assert str(error) == "stage 1 on b: error[E4801]: ValueError: no (stages/stage1.py:7), while F of stage 1 in step 3"


def test_the_first_rank_that_says_what_went_wrong() -> None:
    error = ended(said(1, "second", time=2.0), said(0, "first", time=1.0)).reason(5)
    assert str(error).startswith("stage 0 on a: error[E4801]: first")


def test_a_rank_that_names_the_op_of_a_nan_is_the_reason() -> None:
    seen = said(0, "'%loss' of stage 0 holds NaN", code=3, time=1.0)
    seen["diagnostics"][0]["code"] = ResultNotFinite.code
    named = said(1, "onnx.Log made -infinity", code=3, time=2.0)
    assert str(ended(seen, named).reason(5)) == "error: onnx.Log made -infinity"
    assert str(ended(seen).reason(5)) == "error[E0747]: '%loss' of stage 0 holds NaN"


def test_faults_of_the_input_keep_their_place() -> None:
    error = ended(said(1, "it has no array 'x'", code=3, where="data.npz")).reason(5)
    assert type(error) is InvalidInput
    assert str(error) == "data.npz: error: it has no array 'x'"


def test_a_signal() -> None:
    ends = {0: 1, 1: -signal.SIGKILL}
    error = ended(said(0, "Connection closed by peer", lost=True), ends=ends).reason(5)
    assert type(error) is StageStopped
    assert str(error).startswith("stage 1 on b: error[E0628]: was killed by SIGKILL while F of stage 1 in step 3")


@pytest.mark.parametrize("doing", [{}, {1: STARTING}, {1: "F of stage 1 in step 3"}])
def test_a_crash_is_the_machines_until_a_program_of_the_build_has_run(doing: dict[int, str]) -> None:
    crashed = replace(ended(ends={1: -signal.SIGSEGV}), doing=doing)
    error = crashed.reason(5)
    assert type(error) is (RuntimeFailure if "F of" in doing.get(1, "") else StageStopped)
    assert f"was killed by SIGSEGV while {doing.get(1, STARTING)}" in str(error)


@pytest.mark.parametrize("status", [0, 7])
def test_a_rank_that_ended_in_the_middle_without_a_word(status: int) -> None:
    error = ended(said(0, "Connection closed by peer", lost=True), ends={0: 1, 1: status}, words=("bye",)).reason(5)
    assert type(error) is RuntimeFailure
    assert str(error).startswith(f"stage 1 on b: error[E0628]: ended with status {status} while F of stage 1 in step 3")
    assert "\n    bye\n" in str(error)


def test_a_rank_that_others_waited_for() -> None:
    error = ended(said(0, "Timed out waiting", lost=True), ends={0: 1}).reason(5)
    assert type(error) is StageStopped
    assert str(error).startswith("stage 1 on b: error[E4804]: it did not go on for 5 s, while F of stage 1 in step 3")


@pytest.mark.parametrize("apart", [False, True])
def test_a_rank_that_lost_one_of_another_host(apart: bool) -> None:
    """No other that waited is blamed for it, and what gloo says is no answer."""
    report = said(0, "RuntimeError: [gloo/transport/tcp/pair.cc:525] Connection closed by peer", lost=True)
    found = replace(ended(report, ends={0: 1}), apart=apart, doing={0: "F of stage 0"} if not apart else ended().doing)
    error = found.reason(5)
    assert type(error) is StageStopped
    lost = "error[E4803]: it lost a rank on another host" if apart else "error[E4802]: it lost another rank"
    assert str(error).startswith(f"stage 0 on a: {lost}, while ")
    assert "gloo" not in str(error)


def test_ranks_that_say_nothing_at_all() -> None:
    error = Ended(LABELS, [], {}, {}, ("bye",)).reason(5)
    assert type(error) is StageStopped
    assert "none says why" in str(error)


def test_memory_that_ran_out_is_no_fault_of_a_program() -> None:
    error = ended(said(1, "RuntimeError: DefaultCPUAllocator: can't allocate memory")).reason(5)
    assert type(error) is StageStopped
    assert "memory" in error.diagnostics[0].hint
