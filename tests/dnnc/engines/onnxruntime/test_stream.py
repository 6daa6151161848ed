"""A build that takes microbatches one by one: failures and outputs that arrive together, several failures of one microbatch,
callbacks, and what is asked of a stream that has ended."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.engines.onnxruntime import Pipeline, RuntimeFailure
from dnnc.engines.onnxruntime.starter.pipeline import Failed
from dnnc.engines.onnxruntime.starter.stream import Stream
from dnnc.engines.onnxruntime.transport.codec import from_user
from ir.core.diagnostics import UsageError
from tests.dnnc.engines.onnxruntime.builds import make_build
from tests.dnnc.engines.onnxruntime.processes import nothing_left

LOOKUP = "g (int64[1] i, float[4] table) => (float[1] y) { y = Gather(table, i) }"
DIVIDES = (
    "g (int64[1] i, int64[4] table) => (int64[1] h) { h = Gather(table, i) }",
    "g (int64[1] h, int64[1] i) => (int64[1] y) { y = Div(i, h) }",
)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def lookup(index: int, dtype: Any = np.float32) -> dict[str, Any]:
    return {"i": np.array([index]), "table": np.arange(1, 5).astype(dtype)}


def raw(values: dict[str, Any]) -> dict[str, Any]:
    return {name: from_user(value) for name, value in values.items()}


def outputs_first(pipeline: Pipeline) -> None:
    """Lets the selector see control pipes a moment later than tokens, as where both come between two looks at it."""
    select = pipeline._selector.select

    def late(timeout: float | None = None) -> Any:
        events = select(timeout)
        outputs = [event for event in events if event[0].data[0] == "data"]
        return outputs or events

    pipeline._selector.select = late  # type: ignore[method-assign]


def test_a_failure_is_known_with_the_outputs_of_its_microbatch(tmp_path: Path) -> None:
    with Stream(make_build(tmp_path, LOOKUP)) as stream:
        outputs_first(stream._pipeline)
        for _ in range(5):
            failed = stream.submit(raw(lookup(77)))
            assert failed is not None
            with pytest.raises(RuntimeFailure, match="out of data bounds"):
                failed.result()


def test_a_run_of_a_pipeline_fails_with_its_last_microbatch(tmp_path: Path) -> None:
    with Pipeline(make_build(tmp_path, LOOKUP)) as pipeline:
        outputs_first(pipeline)
        with pytest.raises(RuntimeFailure, match=r"microbatch 1.*out of data bounds"):
            pipeline.run([lookup(1), lookup(77)], events=False)


def test_the_stage_that_failed_first_is_named(tmp_path: Path) -> None:
    """The second stage divides by the zeros that the first one hands on in place of its output."""
    with Stream(make_build(tmp_path, *DIVIDES)) as stream:
        futures = [stream.submit(raw(lookup(77 if number % 2 else 3, np.int64))) for number in range(8)]
        for number, future in enumerate(futures):
            assert future is not None
            if number % 2:
                with pytest.raises(RuntimeFailure, match=r"stage 0.*out of data bounds"):
                    future.result()
            else:
                np.testing.assert_array_equal(future.result()["y"], [0])


def test_a_failure_that_no_output_needs_may_come_late(tmp_path: Path) -> None:
    with Stream(make_build(tmp_path, LOOKUP)) as stream:
        (process,) = stream._pipeline._all.every
        for number in range(2):
            future = stream.submit(raw(lookup(number)))
            assert future is not None
            np.testing.assert_array_equal(future.result()["y"], [number + 1])
            stream._pipeline.failures.append(Failed(number, 0, process, "late"))


def test_a_callback_that_asks_is_refused_and_one_that_closes_is_not_waited_for(tmp_path: Path) -> None:
    with Stream(make_build(tmp_path, LOOKUP), in_flight=1) as stream:
        refused: Future[str] = Future()

        def ask(_: object) -> None:
            try:
                stream.submit(raw(lookup(0)))
            except UsageError as error:
                refused.set_result(error.diagnostics[0].code)
            stream.close()

        os.kill(stream.processes[0], signal.SIGSTOP)
        future = stream.submit(raw(lookup(0)))
        assert future is not None
        future.add_done_callback(ask)
        os.kill(stream.processes[0], signal.SIGCONT)
        wait([refused])
        assert refused.result() == "E0634"


def test_each_call_of_an_ended_stream_raises_an_error_of_its_own(tmp_path: Path) -> None:
    with Stream(make_build(tmp_path, LOOKUP)) as stream:
        os.kill(stream.processes[0], signal.SIGKILL)
        stream._thread.join()
        errors = []
        for _ in range(3):
            with pytest.raises(RuntimeFailure, match="SIGKILL") as raised:
                stream.submit(raw(lookup(0)))
            errors.append(raised.value)
        assert len({id(error) for error in errors}) == 3
        assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1


def test_a_negative_number_in_flight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E0635"):
        Stream(make_build(tmp_path, LOOKUP), in_flight=-1)
