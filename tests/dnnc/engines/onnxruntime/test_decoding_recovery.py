"""Stages that are killed while they generate: answers are those of whole sequences, or all have the documented error."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from dnnc.build.build import Build
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder, Group
from dnnc.engines.onnxruntime.errors import RuntimeFailure, StageStopped
from ir.core.diagnostics import Diagnostic, ExitCode, UsageError
from tests.dnnc.engines.onnxruntime.decoding_builds import Sizes, decoder_build, drawn
from tests.dnnc.engines.onnxruntime.processes import gone, nothing_left

SIZES = Sizes(context=40, chunk=5)
REQUESTS = [
    Request((1, 2, 3), 20),
    Request((4,), 30, 1.5, 0, 0.9, 3),
    Request((5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 25, 0.8, 5, 1.0, 11),
    Request((3,) * 38),
    Request((9, 8, 7, 6, 5), None, 2.0, 0, 1.0, -1),
    Request((28,), 12, 0.7, 8, 0.7, 0),
]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


class Disturbed(Decoder):
    """A decoder that does something after some steps, in its own thread, so that the next step is not fed yet or under way.
    ``told``: codes of warnings."""

    def __init__(self, build: Build, acts: dict[int, Callable[[Disturbed], object]], **options: Any) -> None:
        super().__init__(build, **options)
        self.acts, self.steps, self.told = acts, 0, list[str]()
        self.tell(self._note)

    def _note(self, diagnostic: Diagnostic) -> None:
        self.told.append(diagnostic.code)

    def _take_tokens(self, group: Group, tokens: list[int]) -> None:
        super()._take_tokens(group, tokens)
        self.steps += 1
        if self.steps in self.acts:
            self.acts.pop(self.steps)(self)


def kill(stage: int) -> Callable[[Disturbed], object]:
    return lambda decoder: os.kill(decoder.processes[stage], signal.SIGKILL)


@pytest.mark.parametrize("sizes", [SIZES, pytest.param(Sizes(context=40, chunk=1, batch=4, groups=1), marks=pytest.mark.slow)])
def test_answers_go_on_where_stages_are_killed(tmp_path: Path, sizes: Sizes) -> None:
    """At three steps of a run: while prompts are read, while answers come, and while caches are computed again; prompts and
    answers of unlike lengths, greedy and drawn, up to the longest context."""
    choice = random.Random(3)
    acts = {step: kill(choice.randrange(2)) for step in (2, 13, 15)}
    with Disturbed(decoder_build(tmp_path, sizes), dict(acts)) as decoder:
        answers = [decoder.ask(request) for request in REQUESTS]
        for request, answer in zip(REQUESTS, answers, strict=True):
            most = sizes.context - len(request.ids)
            assert list(answer) == drawn(request, min(request.max_tokens or most, most), sizes.context)
        assert decoder.told == ["W0639"] * 3
        assert not decoder.acts


@pytest.mark.slow
def test_a_stage_that_is_killed_again_and_again_ends_the_answers(tmp_path: Path) -> None:
    acts = dict.fromkeys(range(4, 100), kill(1))
    with Disturbed(decoder_build(tmp_path, SIZES), acts) as decoder:
        answers = [decoder.ask(request) for request in REQUESTS]
        errors = []
        for answer in answers:
            with pytest.raises(StageStopped, match=r"stage 1 on cpu1: .*was killed by SIGKILL") as raised:
                list(answer)
            errors.append(raised.value)
        assert {error.exit_code for error in errors} == {ExitCode.INVALID_INPUT}
        assert decoder.told == ["W0639"] * 3
        processes = decoder.processes
    assert gone(processes)


class Idle(Decoder):
    """A decoder that tells when it has started its stages again."""

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self.resumed = SimpleQueue[tuple[int, ...]]()

    def _resume(self) -> None:
        super()._resume()
        self.resumed.put(self.processes)


@pytest.mark.slow
def test_losses_while_nothing_is_asked_are_far_apart(tmp_path: Path) -> None:
    """No answer shows that all is well again, and yet a loss long after another one ends nothing."""
    with Idle(decoder_build(tmp_path, SIZES)) as decoder:
        decoder._pipeline.recovery.seconds = 1e-6
        processes = decoder.processes
        for number in range(3):
            os.kill(processes[number % 2], signal.SIGKILL)
            processes = decoder.resumed.get(timeout=60)
        assert list(decoder.ask(REQUESTS[0])) == drawn(REQUESTS[0], 20, SIZES.context)


@pytest.mark.slow
def test_a_crash_is_not_tried_again(tmp_path: Path) -> None:
    crash = {3: lambda decoder: os.kill(decoder.processes[0], signal.SIGSEGV)}
    with Disturbed(decoder_build(tmp_path, SIZES), crash) as decoder:
        with pytest.raises(RuntimeFailure, match=r"stage 0 on cpu0: .*was killed by SIGSEGV"):
            list(decoder.ask(REQUESTS[0]))
        assert decoder.told == []


class Closed(Disturbed):
    """A decoder that is closed when it begins to start its stages again."""

    def _note(self, diagnostic: Diagnostic) -> None:
        self.close()


def test_a_decoder_that_is_closed_starts_nothing_again(tmp_path: Path) -> None:
    with Closed(decoder_build(tmp_path, SIZES), {3: kill(0)}) as decoder:
        answer = decoder.ask(REQUESTS[0])
        with pytest.raises(UsageError, match="closed"):
            list(answer)
