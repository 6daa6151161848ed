"""A request for tokens and its answer, which arrives token by token in the thread, or the asyncio task, that asked."""

from __future__ import annotations

import asyncio
import math
import operator
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from dnnc.build.decoding import Decoding
from dnnc.engines.onnxruntime.decoding.faults import PromptEmpty, PromptTooLong, SamplingOutOfRange, TokenOutOfRange
from dnnc.engines.onnxruntime.decoding.given import given_arrays
from dnnc.onnx.elements import Array
from ir.core.diagnostics import Fault, InvalidInput, UsageError

STOP, LENGTH, CONTEXT, CLOSED = "stop", "length", "context", "closed"
"""Why an answer ended: a token of ``stop``, ``max_tokens``, the longest context, or ``Answer.close``."""
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. ``ids``: the prompt; ``max_tokens``: of the answer, None for what the context holds; ``stop``: tokens
    that end the answer and are no part of it; ``given``: as ``given.given_arrays`` returns it. How tokens are drawn:
    ``sampling.next_token``."""

    ids: tuple[int, ...]
    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: frozenset[int] = frozenset()
    given: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        decoding: Decoding,
        ids: Iterable[int],
        max_tokens: int | None,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
        stop: Iterable[int] | int | None,
        states: Mapping[str, Any] | None = None,
        *,
        where: str = "ids",
    ) -> Request:
        """``stop``: None for the tokens that end a text of the model. ``where``: what faults call the prompt. Raises
        InvalidInput for a prompt that is empty or too long, and for tokens of prompt or ``stop`` that the model does not know;
        UsageError for numbers out of range; and as ``given_arrays``."""
        max_tokens = None if max_tokens is None else _whole("max_tokens", max_tokens)
        top_k, seed = _whole("top_k", top_k), _whole("seed", seed)
        temperature, top_p = _number("temperature", temperature), _number("top_p", top_p)
        tokens = tuple(_whole("ids", token) for token in _each("ids", ids))
        stated = [] if stop is None else [stop] if hasattr(stop, "__index__") else stop
        ends = tuple(_whole("stop", token) for token in _each("stop", stated))
        for good, name, value, expected in (
            (max_tokens is None or max_tokens >= 1, "max_tokens", max_tokens, "1 or more"),
            (math.isfinite(temperature) and temperature >= 0, "temperature", temperature, "0 or more"),
            (0 <= top_k <= _MOST, "top_k", top_k, "0 or more"),
            (0 < top_p <= 1, "top_p", top_p, "a number above 0, at most 1"),
            (-_MOST <= seed <= _MOST, "seed", seed, "an integer of 64 bits"),
        ):
            if not good:
                raise UsageError(SamplingOutOfRange(name, str(value), expected))
        for place, ids_there in ((where, tokens), ("--stop", ends)):
            if wrong := [token for token in ids_there if not 0 <= token < decoding.vocabulary]:
                raise InvalidInput(TokenOutOfRange(wrong[0], decoding.vocabulary - 1), where=place)
        fault: Fault | None = None
        if not tokens:
            fault = PromptEmpty()
        elif len(tokens) >= decoding.context:
            fault = PromptTooLong(len(tokens), decoding.context, decoding.context - 1)
        if fault is not None:
            raise InvalidInput(fault, where=where)
        ending = frozenset(decoding.stop if stop is None else ends)
        return cls(tokens, max_tokens, temperature, top_k, top_p, seed, ending, given_arrays(decoding, states or {}))


def _each(name: str, values: Any) -> Iterable[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(SamplingOutOfRange(name, repr(values)[:40], "token ids"))
    return values


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(SamplingOutOfRange(name, repr(value)[:40], "a whole number")) from None


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(SamplingOutOfRange(name, repr(value)[:40], "a number")) from None


class Answer(Iterator[int], AsyncIterator[int]):
    """The tokens of an answer as they come: an iterator, and one of asyncio. ``reason``: why it ended, empty until then;
    ``logits``: float32 ``[vocabulary]`` for each token that was drawn, where the decoder was asked for them.

    The decoder draws tokens one by one (``drawn``) and hands them over in bundles (``hand_over``): each bundle wakes the thread
    that asked."""

    def __init__(self, request: Request, leave: Callable[[Answer], None]) -> None:
        """``leave`` is called, from any thread, when nobody wants more tokens."""
        self.request = request
        self.reason = ""
        self.logits: list[Array] = []
        self._leave = leave
        self.drawn: list[int] = []
        self._queue: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        self._bundle: deque[int] = deque()
        self._wake: Callable[[], object] | None = None
        self._ended = False

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> int:
        while not self._bundle:
            if self._ended:
                raise StopIteration
            self._take(self._queue.get())
        return self._bundle.popleft()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> int:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(came.set)
        try:
            while not self._bundle:
                if self._ended:
                    raise StopAsyncIteration
                while self._queue.empty():
                    await came.wait()
                    came.clear()
                self._take(self._queue.get())
        finally:
            self._wake = None
        return self._bundle.popleft()

    def close(self) -> None:
        """Asks for no more tokens: the answer's place is free for another after the step under way."""
        if not self._ended:
            self._leave(self)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take(self, item: list[int] | BaseException | None) -> None:
        if isinstance(item, list):
            self._bundle += item
            return
        self._ended = True
        if item is not None:
            raise item

    # From the thread of the decoder

    def hand_over(self) -> None:
        """Hands over what was drawn since the last time."""
        if self.drawn:
            self._tell(self.drawn)
            self.drawn = []

    def end(self, reason: str) -> None:
        self.hand_over()
        self.reason = reason
        self._tell(None)

    def fail(self, error: BaseException) -> None:
        self.hand_over()
        self._tell(error)

    def _tell(self, item: list[int] | BaseException | None) -> None:
        self._queue.put(item)
        wake = self._wake
        if wake is not None:
            try:
                wake()
            except RuntimeError:  # its loop was closed meanwhile
                self._wake = None
