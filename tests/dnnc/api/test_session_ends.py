"""Errors of programs, dead processes and closed sessions: who is told what, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dnnc
from dnnc.engines.onnxruntime.transport.edges import Sender
from dnnc.onnx.ort import load_onnxruntime
from tests.dnnc.api.models import batch, build_of, equal, lookup
from tests.dnnc.engines.onnxruntime.processes import nothing_left
from tests.slow_cases import slow_but

PLANS: dict[str, dict[str, Any]] = {
    "stages": {"cuts": ["p"]},
    "mesh": {"mesh": "2", "strategy": "data"},
    "replicas": {"stages": 1},
}


@pytest.mark.parametrize("kind", slow_but(PLANS, "mesh"))
def test_a_token_out_of_range_fails_its_own_request(tmp_path: Path, kind: str) -> None:
    whole = load_onnxruntime().InferenceSession(lookup().SerializeToString())
    with nothing_left(), build_of(tmp_path, **PLANS[kind]).start() as session:
        processes = session.processes
        futures = [session.submit(batch(seed, token=99 if seed % 3 == 1 else None)) for seed in range(20)]
        for seed, future in enumerate(futures):
            if seed % 3 == 1:
                with pytest.raises(dnnc.RuntimeFailure, match=r"stage 0.*\n?.*(out of bounds|out of data bounds)"):
                    future.result()
            else:
                equal(future.result(), whole.run(None, batch(seed)))
        assert session.processes == processes


@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_dead_process_ends_the_session_and_says_so(tmp_path: Path, stage: int) -> None:
    with nothing_left(), build_of(tmp_path, cuts=["p"]).start() as session:
        session.run(None, batch())
        os.kill(session.processes[stage], signal.SIGKILL)
        with pytest.raises(dnnc.RuntimeFailure, match=rf"stage {stage} on cpu{stage}.*SIGKILL"):
            list(session.map(map(batch, range(100))))
        with pytest.raises(dnnc.RuntimeFailure, match=rf"stage {stage} on cpu{stage}.*SIGKILL"):
            session.submit(batch())


def test_an_error_in_the_middle_of_a_feed_keeps_no_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_left(), build_of(tmp_path, cuts=["p"]).start() as session:
        session.run(None, batch())

        def killed_meanwhile(*_: Any) -> None:
            os.kill(session.processes[0], signal.SIGKILL)
            raise EOFError

        monkeypatch.setattr(Sender, "send", killed_meanwhile)
        with pytest.raises(dnnc.RuntimeFailure, match=r"stage 0 on cpu0.*SIGKILL"):
            session.run(None, batch())


def test_requests_under_way_fail_when_the_session_is_closed(tmp_path: Path) -> None:
    with nothing_left():
        session = build_of(tmp_path, cuts=["p"]).start(in_flight=3)
        os.kill(session.processes[0], signal.SIGSTOP)
        futures = [session.submit(batch(seed)) for seed in range(3)]
        with ThreadPoolExecutor() as pool:
            blocked = pool.submit(session.submit, batch())  # there is no room for a fourth
            session.close()
            with pytest.raises(dnnc.UsageError, match="E0633"):
                blocked.result()
        for future in futures:
            with pytest.raises(dnnc.UsageError, match=r"E0633.*the session is closed"):
                future.result()
        session.close()
