"""A running session: as an InferenceSession, from many threads, and after bad requests."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnc
from dnnc.onnx.ort import load_onnxruntime
from tests.dnnc.api.models import batch, build_of, equal, lookup


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dnnc.Session]:
    with build_of(tmp_path_factory.mktemp("session"), cuts=["p"]).start() as session:
        yield session


@pytest.fixture(scope="module")
def whole() -> Any:
    return load_onnxruntime().InferenceSession(lookup().SerializeToString())


def test_it_is_used_as_a_session_of_onnxruntime(session: dnnc.Session, whole: Any) -> None:
    equal(session.run(None, batch()), whole.run(None, batch()))
    equal(session.run(["z"], batch(1)), whole.run(["z"], batch(1)))
    assert [(one.name, one.type, one.shape) for one in session.get_inputs()] == [
        ("tokens", "tensor(int64)", [2, 4]),
        ("bias", "tensor(float)", [2, 4, 8]),
    ]
    assert [one.name for one in session.get_outputs()] == [one.name for one in whole.get_outputs()]


def test_many_are_in_flight_and_come_in_order(session: dnnc.Session, whole: Any) -> None:
    taken = []

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for seed in range(40):
            taken.append(seed)
            yield batch(seed)

    for seed, outputs in enumerate(session.map(batches())):
        equal(outputs, whole.run(None, batch(seed)))
        assert len(taken) <= seed + 1 + session.in_flight
    assert len(taken) == 40


def test_arrays_may_be_changed_once_they_are_submitted(session: dnnc.Session, whole: Any) -> None:
    own = batch()
    futures = []
    for seed in range(12):
        for name, array in batch(seed).items():
            own[name][:] = array
        futures.append(session.submit(own))
    for seed, future in enumerate(futures):
        equal(future.result(), whole.run(None, batch(seed)))


def test_four_threads_get_their_own_answers(session: dnnc.Session, whole: Any) -> None:
    expected = {seed: whole.run(None, batch(seed)) for seed in range(8)}
    wrong: list[int] = []

    def ask(thread: int) -> None:
        for number in range(50):
            seed = (thread * 3 + number) % 8
            outputs = session.run(None, batch(seed))
            if not all(np.allclose(one, other, atol=1e-6) for one, other in zip(outputs, expected[seed], strict=True)):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("asynchronous", [False, True])
def test_other_tasks_run_meanwhile(session: dnnc.Session, whole: Any, asynchronous: bool) -> None:
    async def batches() -> AsyncIterator[dict[str, np.ndarray]]:
        for seed in range(30):
            await asyncio.sleep(0)
            yield batch(seed)

    async def main() -> int:
        seed = 0
        async for outputs in session.amap(batches() if asynchronous else map(batch, range(30))):
            equal(outputs, whole.run(None, batch(seed)))
            seed += 1
        return seed

    assert asyncio.run(main()) == 30


@pytest.mark.parametrize(
    ("feeds", "code", "words"),
    [
        ({}, "E0416", "'tokens' is missing"),
        ({**batch(), "q": np.zeros(1)}, "E0415", "no input 'q'"),
        ({**batch(), "bias": np.zeros((2, 4, 8))}, "E0417", "float64"),
        ({**batch(), "bias": np.zeros((2, 4, 7), np.float32)}, "E0418", "2 x 4 x 7"),
        ({name: np.stack([array] * 3) for name, array in batch().items()}, "E1407", "one microbatch at a time"),
        (None, "E1418", "found a value of type NoneType; expected a mapping of arrays by input name"),
        ([1], "E1418", "found a value of type list"),
    ],
)
def test_wrong_arrays_are_the_errors_of_their_caller(
    session: dnnc.Session, whole: Any, feeds: Any, code: str, words: str
) -> None:
    with pytest.raises(dnnc.InvalidInput) as error:
        session.run(None, feeds)
    assert error.value.diagnostics[0].code == code
    assert words in str(error.value)
    equal(session.run(None, batch()), whole.run(None, batch()))


def test_what_numpy_makes_no_array_of_is_refused(session: dnnc.Session) -> None:
    with pytest.raises(dnnc.InvalidInput, match=r"E0419.*'bias'.*inhomogeneous"):
        session.run(None, {**batch(), "bias": [[1.0], [1.0, 2.0]]})


def test_arrays_of_another_byte_order_are_taken(session: dnnc.Session, whole: Any) -> None:
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in batch().items()}
    equal(session.run(None, swapped), whole.run(None, batch()))


def test_a_future_has_its_error_in_terms_of_python(session: dnnc.Session) -> None:
    error = session.submit(batch(token=99)).exception()
    assert isinstance(error, dnnc.RuntimeFailure)
    assert "build.check(inputs)" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.diagnostics) == (type(error), str(error), error.diagnostics)


def test_an_unknown_output_is_refused(session: dnnc.Session) -> None:
    assert len(session.run([], batch())) == 2  # as onnxruntime: all
    with pytest.raises(dnnc.UsageError, match=r"E1406.*no output 'q'; it has y, z"):
        session.run(["q"], batch())


def test_what_is_wrong_with_one_of_many_is_raised_in_its_turn(session: dnnc.Session) -> None:
    outputs = session.map([batch(0), batch(1, token=-77), {}, batch(3)])
    assert len(next(outputs)) == 2
    with pytest.raises(dnnc.RuntimeFailure, match="microbatch"):
        next(outputs)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_results_come_before_what_their_source_raises(session: dnnc.Session, asynchronous: bool) -> None:
    def batches() -> Iterator[dict[str, np.ndarray]]:
        yield from (batch(seed) for seed in range(7))
        raise ValueError("no eighth")

    outputs: list[Any] = []

    async def ask() -> None:
        async for output in session.amap(batches()):
            outputs.append(output)

    def each() -> None:
        for output in session.map(batches()):
            outputs.append(output)

    with pytest.raises(ValueError, match="no eighth"):
        asyncio.run(ask()) if asynchronous else each()
    assert len(outputs) == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": -1}, "E1417.*timeout is -1; expected a number of seconds above 0"),
        ({"timeout": 0}, "E1417.*timeout is 0;"),
        ({"timeout": float("nan")}, "E1417.*timeout is nan;"),
        ({"in_flight": "2"}, "E1414.*in_flight is '2'; expected int"),
        ({"in_flight": 1.5}, "E1414.*in_flight is 1.5; expected int"),
        ({"in_flight": -3}, "E1417.*in_flight is -3; expected a whole number from 0"),
        ({"threads": -1}, "E1417.*threads is -1"),
    ],
)
def test_numbers_out_of_range_start_nothing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(dnnc.UsageError, match=words):
        dnnc.Build(Path("absent")).start(**options)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("check", {"samples": 0}, "E1417.*samples is 0; expected a whole number from 1 to 1048576"),
        ("check", {"seed": -1}, "E1417.*seed is -1; expected a whole number from 0 to 9223372036854775807"),
        ("check", {"steps": 0}, "E1417.*steps is 0; expected a whole number from 1"),
        ("check", {"threads": -1}, "E1417.*threads is -1; expected a whole number from 0 to 1024"),
        ("check", {"tolerance": "a"}, "E1414.*tolerance is 'a'; expected float"),
        ("check", {"tolerance": float("nan")}, "E1417.*tolerance is nan; expected a finite number from 0$"),
        ("check", {"tolerance": -1}, "E1417.*tolerance is -1;"),
        ("check", {"wait": float("nan")}, "E1417.*wait is nan; expected a finite number from 0 to 1000000"),
        ("train", {"seed": -1}, "E1417.*seed is -1;"),
        ("train", {"seed": 1 << 63}, "E1417.*seed is 9223372036854775808;"),
        ("train", {"threads": -1}, "E1417.*threads is -1;"),
        ("train", {"every": -1}, "E1417.*every is -1;"),
        ("train", {"eval_every": -1}, "E1417.*eval_every is -1;"),
        ("train", {"retries": 1.5}, "E1414.*retries is 1.5; expected int"),
        ("train", {"last_batch": "x"}, "E1414.*last_batch is 'x'; expected 'drop' or 'use'"),
    ],
)
def test_keywords_out_of_range_are_refused_first(method: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(dnnc.UsageError, match=words):
        getattr(dnnc.Build(Path("absent")), method)(**options)


def test_a_cluster_is_measured_by_numbers_in_range() -> None:
    with pytest.raises(dnnc.UsageError, match=r"E1417.*seed is -1"):
        dnnc.measure_cluster("127.0.0.1:1", seed=-1)


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_training_has_a_step(steps: Any) -> None:
    with pytest.raises(dnnc.UsageError, match=rf"steps is {steps}; expected"):
        dnnc.Build(Path("absent")).train(steps=steps)
