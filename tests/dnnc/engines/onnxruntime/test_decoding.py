"""Answers of several requests at once, over two processes whose caches stay: against the same model in numpy on whole
sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.api.session import Session
from dnnc.build.decoding import Decoding
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder
from dnnc.engines.onnxruntime.decoding.states import Binding, Bound, Stateful, host_buffers
from dnnc.engines.onnxruntime.decoding.wire import CONTROL, IDLE, RESET, STEP
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.engines.onnxruntime.transport.codec import Raw
from ir.core.diagnostics import DnncError, UsageError
from tests.dnnc.engines.onnxruntime.builds import make_build, scheduled
from tests.dnnc.engines.onnxruntime.decoding_builds import VOCABULARY, Sizes, decoder_build, drawn, greedy
from tests.dnnc.engines.onnxruntime.processes import nothing_left

PROMPTS = ([1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12], [3] * 15, [9, 8, 7, 6, 5], [28], [0, 1])
CONTEXT = Sizes().context


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(decoder_build(tmp_path), RunOptions()) as session:
        yield session


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(),
        Sizes(batch=1, groups=8, chunk=5),
        *(pytest.param(one, marks=pytest.mark.slow) for one in (Sizes(chunk=1), Sizes(batch=3, groups=1, chunk=16))),
    ],
)
def test_answers_that_begin_and_end_at_different_times(tmp_path: Path, sizes: Sizes) -> None:
    """More requests than places, prompts of one and several chunks, answers of unlike lengths."""
    with Decoder(decoder_build(tmp_path, sizes)) as decoder:
        asked = [Request(tuple(prompt), 3 + number) for number, prompt in enumerate(PROMPTS)]
        for request, answer in [(request, decoder.ask(request)) for request in asked]:
            count = min(request.max_tokens or 0, CONTEXT - len(request.ids))
            assert list(answer) == greedy(request.ids, count, CONTEXT)
            assert answer.reason == ("length" if count == request.max_tokens else "context")


def test_the_longest_context_is_reached(session: Session) -> None:
    answer = session.generate([2, 7])
    assert list(answer) == greedy([2, 7], CONTEXT - 2, CONTEXT)
    assert answer.reason == "context"
    assert list(answer) == []


def test_a_token_of_stop_ends_the_answer(session: Session) -> None:
    whole = greedy([2, 7], 8, CONTEXT)
    answer = session.generate([2, 7], stop=[whole[4]])
    assert list(answer) == whole[: whole.index(whole[4])]
    assert answer.reason == "stop"


def test_numbers_of_numpy_are_numbers(session: Session) -> None:
    tokens = greedy([1, 2], 5, CONTEXT)
    answer = session.generate(np.array([1, 2]), max_tokens=np.int32(5), seed=np.int64(1), stop=np.int64(tokens[-1]))
    assert list(answer) == tokens[: tokens.index(tokens[-1])]


def test_a_drawn_answer_depends_on_its_request_alone(session: Session) -> None:
    """The same requests alone, and among others in another order: each answer is that of whole sequences."""
    requests = [
        Request((1, 2, 3), 6, 0.8, 5, 1.0, 11),
        Request((1, 2, 3), 6, 0.8, 5, 1.0, 12),
        Request((4,), 7, 1.5, 0, 0.9, 3),
        Request((6, 6, 6, 6, 6, 6), 5, 2.0, 0, 1.0, -1),
        Request((6, 6), 5, 2.0, 8, 0.7, 0),
    ]

    def ask(request: Request) -> list[int]:
        told = {name: getattr(request, name) for name in ("max_tokens", "temperature", "top_k", "top_p", "seed")}
        return list(session.generate(request.ids, **told))

    alone = [ask(request) for request in requests]
    with ThreadPoolExecutor(len(requests)) as threads:
        together = list(threads.map(ask, reversed(requests)))[::-1]
    assert alone == together == [drawn(request, request.max_tokens or 0, CONTEXT) for request in requests]
    assert alone[0] != alone[1]


def test_an_answer_that_is_closed_gives_its_place_to_another(tmp_path: Path) -> None:
    with Session(decoder_build(tmp_path, Sizes(batch=1, groups=1)), RunOptions()) as session:
        first, second = session.generate([1, 2, 3]), session.generate([4, 5])
        assert next(first) == greedy([1, 2, 3], 1, CONTEXT)[0]
        first.close()
        assert list(second) == greedy([4, 5], CONTEXT - 2, CONTEXT)
        list(first)
        assert first.reason == "closed"


def test_answers_in_asyncio(session: Session) -> None:
    async def tokens(ids: Sequence[int]) -> list[int]:
        return [token async for token in session.generate(ids, max_tokens=5)]

    async def both() -> list[list[int]]:
        return await asyncio.gather(tokens([1, 2, 3]), tokens([4]))

    assert asyncio.run(both()) == [greedy([1, 2, 3], 5, CONTEXT), greedy([4], 5, CONTEXT)]


REFUSED: tuple[tuple[Any, dict[str, Any], str], ...] = (
    ([1] * 16, {}, "the prompt has 16 tokens; the context of 16 holds 15"),
    ([], {}, "the prompt has no tokens"),
    ([1, VOCABULARY], {}, "token 29 is none of the model's, which are 0 to 28"),
    ([-1], {}, "token -1"),
    ([1], {"top_p": 0.0}, "top_p is 0.0"),
    ([1], {"temperature": float("nan")}, "temperature is nan"),
    ([1], {"max_tokens": 0}, "max_tokens is 0"),
    ([1], {"max_tokens": 2.5}, "max_tokens is 2.5; a whole number expected"),
    ([1], {"top_k": 2.5}, "top_k is 2.5; a whole number expected"),
    ([1], {"seed": "a"}, "seed is 'a'; a whole number expected"),
    ([1], {"temperature": None}, "temperature is None; a number expected"),
    ([1], {"stop": "ab"}, "stop is 'ab'; token ids expected"),
    ([1], {"stop": [2, VOCABULARY]}, "^stop: .*: token 29 is none of the model's, which are 0 to 28"),
    ([1], {"stop": -1}, "^stop: .*: token -1"),
    ("ab", {}, "ids is 'ab'; token ids expected"),
    ([1.5], {}, "ids is 1.5; a whole number expected"),
    (np.array([[1, 2]]), {}, "ids is array.*; a whole number expected"),
)
"""Tokens and options of a request, and what is said of them."""


def test_requests_that_are_refused(session: Session) -> None:
    for ids, options, words in REFUSED:
        with pytest.raises(DnncError, match=words):
            session.generate(ids, **options)
        assert list(session.generate([1, 2], max_tokens=1)) == greedy([1, 2], 1, CONTEXT)


def test_a_session_that_generates_takes_no_microbatches(session: Session) -> None:
    with pytest.raises(UsageError, match="generates tokens"):
        session.run(None, {})


def test_a_build_without_states_generates_nothing(tmp_path: Path) -> None:
    plain = "g (float[1] x) => (float[1] y) { y = Neg(x) }"
    with Session(make_build(tmp_path, plain), RunOptions()) as session, pytest.raises(UsageError, match="no caches"):
        session.generate([1])


@pytest.mark.parametrize(
    ("devices", "serving", "sizes"),
    [
        pytest.param((("a",), ("b", "c")), {}, Sizes(), marks=pytest.mark.slow),
        ((("a", "b"), ("c", "d")), {0: (0, 1, 1, 1), 1: (1, 0, 0, 1)}, Sizes(batch=1, groups=4)),
        pytest.param((("a", "b"), ("b",)), {0: (0, 1, 0)}, Sizes(groups=3, chunk=1), marks=pytest.mark.slow),
    ],
    ids=["a replica for each group", "unlike shares", "a device of two stages"],
)
def test_replicas_serve_groups(tmp_path: Path, devices: Any, serving: Any, sizes: Sizes) -> None:
    """Requests that begin and end at different times, over stages whose replicas have the states of their groups alone."""
    build = decoder_build(tmp_path, sizes)
    assert build.decoding is not None
    stages = tuple(replace(stage, devices=on) for stage, on in zip(build.stages, devices, strict=True))
    build = scheduled(replace(build, stages=stages, decoding=replace(build.decoding, serving=serving)))
    with Decoder(build) as decoder:
        asked = [Request(tuple(prompt), 3 + number) for number, prompt in enumerate(PROMPTS)]
        for request, answer in [(request, decoder.ask(request)) for request in asked]:
            count = min(request.max_tokens or 0, CONTEXT - len(request.ids))
            assert list(answer) == greedy(request.ids, count, CONTEXT)


@pytest.mark.parametrize(
    ("serving", "words"),
    [
        ({"1": [0, 0]}, r"the 2 replicas of stage 1 serve groups \[0, 0\]; one of them expected for each of 2 groups"),
        ({"1": [0, 1, 0]}, r"serve groups \[0, 1, 0\]"),
        ({"0": [1, 0]}, "the 1 replicas of stage 0 serve groups"),
        ({"7": [0, 0]}, "names stage 7 of 2"),
        ({"1": [0, "b"]}, "an integer from 0 on expected"),
    ],
)
def test_groups_that_are_not_shared_by_replicas(tmp_path: Path, serving: Any, words: str) -> None:
    decoding = decoder_build(tmp_path).decoding
    assert decoding is not None
    assert Decoding.from_json(decoding.to_json()) == decoding
    with pytest.raises(ValueError, match=words):
        Decoding.from_json({**decoding.to_json(), "serving": serving}).require_served([1, 2])


def test_a_closed_session_fails_its_answers(tmp_path: Path) -> None:
    with Session(decoder_build(tmp_path), RunOptions()) as session:
        answer = session.generate([1])
        next(answer)
    with pytest.raises(UsageError, match="closed"):
        list(answer)
    with pytest.raises(UsageError, match="closed"):
        session.generate([1])


class Kept(Stateful):
    """States alone, which run nothing."""

    def buffers(self, state: Mapping[str, Any]) -> list[Any]:
        made = host_buffers(state)
        for buffer in made:
            buffer.view(np.float32)[:] = 1
        return made

    def bound(self, binding: Binding, kind: int, group: int) -> Bound:
        return Bound(lambda: None, [], None)


@pytest.mark.parametrize(
    ("shape", "sequences", "left"),
    [
        ((1, 2), [0, 1], [1, 1]),  # of sequence 1 alone, which is not the one that begins
        ((1, 2), [0, 0], [0, 0]),
        ((2, 2), [1, 0], [0, 1, 0, 1]),
        ((2, 2), None, [0, 0, 0, 0]),
    ],
    ids=["another's", "its own", "along the second dimension", "of one sequence"],
)
def test_a_sequence_begins_anew_where_its_part_is(shape: tuple[int, int], sequences: Any, left: list[int]) -> None:
    state = {"name": "h", "result": "n", "dtype": "f32", "shape": shape, "axis": None, "sequences": sequences}
    kept = Kept({"states": [state], "served": [3], "batch": 2, "position": "p", "logits": ""})
    table = np.array([(STEP, 3, *IDLE[2:]), IDLE, IDLE], np.int64)
    table[1, RESET] = 1
    kept.run_bound(kept.bind({CONTROL: Raw(7, table.shape, table)}, {}))
    assert kept.held(3)["n"].view(np.float32).tolist() == left
