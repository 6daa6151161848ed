"""Generates tokens for many requests at once: the starter's side of decoding.

The build has ``groups`` of ``batch`` *places*; a request takes a free one and keeps it until its answer ends. A step of a group
works on all its places; groups are in flight in turn, at most one step of each. One thread feeds steps and takes their tokens.

A place knows the tokens of its sequence, prompt and answer, and how many of them its caches have. While the caches of some
place lack more than one token, its group's steps are those of the prompt program: each place supplies up to ``chunk`` tokens
that its caches lack, so that an answer in the same group goes on by one token meanwhile. What lies behind a place's last
token in a chunk is overwritten before anyone sees it. A chunk begins early enough to end within the context: there it writes
some tokens again, with the same values.

Invariants:
1. at most one step of a group is under way, so caches are those of the tokens that a place counts as ``cached``; of a stage
   with replicas, one serves all steps of a group;
2. the tokens of an answer depend on its request alone: another request that leaves or joins the group changes no other place;
3. once ``close`` is called, or a device has ended for good, every answer that has not ended has an error. A device that was
   killed is started again (``recovery``), and caches are computed again from the tokens that places keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from dnnc.build.build import Build
from dnnc.engines.onnxruntime.decoding.answers import CLOSED, CONTEXT, LENGTH, STOP, Answer, Request
from dnnc.engines.onnxruntime.decoding.given import given_bytes
from dnnc.engines.onnxruntime.decoding.wire import (
    CONTROL,
    GIVEN,
    LOGITS,
    PROMPT,
    STEP,
    TOKENS,
    control_rows,
    float_bits,
)
from dnnc.engines.onnxruntime.decoding.wiring import decoding_build, require_decoding
from dnnc.engines.onnxruntime.starter.pipeline import Pipeline
from dnnc.engines.onnxruntime.starter.processes import ENDLESS
from dnnc.engines.onnxruntime.starter.recovery import Recovery
from dnnc.engines.onnxruntime.starter.served import FeedQueue, Served, drained
from dnnc.engines.onnxruntime.starter.starting import RunOptions, StarterEnd
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.onnx.elements import BY_NAME, Array

if TYPE_CHECKING:
    from dnnc.engines.cluster.starting import FarProcesses

_INT64, _UINT8 = BY_NAME["int64"].number, BY_NAME["uint8"].number
_MOST_LOSSES, _AGAIN_SECONDS = 3, 60.0
"""On this host, a decoder goes on after so many losses within these seconds, and draws its next token within them."""


@dataclass(slots=True)
class Place:
    """Sequence ``number`` of a group. ``kept``: the tokens of its sequence; ``cached``: how many of them its caches have, of
    the steps under way too; ``drawn``: tokens of its answer; ``reset``: another sequence was here before; ``how``: words of a
    table that say how its tokens are drawn."""

    number: int
    answer: Answer | None = None
    kept: list[int] = field(default_factory=list)
    cached: int = 0
    drawn: int = 0
    reset: bool = False
    how: tuple[int, ...] = ()

    def take(self, answer: Answer) -> None:
        self.answer, self.kept, self.cached, self.drawn, self.reset = answer, list(answer.request.ids), 0, 0, True
        asked = answer.request
        self.how = asked.seed, asked.top_k, float_bits(asked.temperature), float_bits(asked.top_p)


@dataclass(slots=True)
class Group:
    """``busy``: whether a step of it is under way; ``drawing``: places whose next token it draws, with the answers it is of;
    ``feeds``: links to the processes that serve it; ``drawn_by``: the link (its ``id``) by which its tokens come back."""

    number: int
    places: list[Place]
    busy: bool = False
    drawing: list[tuple[Place, Answer]] = field(default_factory=list)
    feeds: list[FeedQueue] = field(default_factory=list)
    drawn_by: int = 0

    @property
    def taken(self) -> int:
        return sum(place.answer is not None for place in self.places)


class Decoder(Served[Answer]):
    """``with Decoder(build) as decoder: list(decoder.ask(request))``."""

    def __init__(
        self, build: Build, options: RunOptions | None = None, processes: FarProcesses | None = None, logits: bool = False
    ) -> None:
        """``processes``: as of a ``Pipeline``, of ``decoding_build(build, logits)``; ``logits``: whether answers get those of
        their tokens. Raises as ``Pipeline``, and InvalidInput for a build that does not generate."""
        self.decoding = require_decoding(build)
        recovery = Recovery(_AGAIN_SECONDS, _MOST_LOSSES) if processes is None else None
        super().__init__(Pipeline(decoding_build(build, logits), options, processes, recovery), "dnnc-decoder")
        every = ((stage.index, self.decoding.of_stage(stage.index)) for stage in build.stages)
        given = {stage: [state for state in states if not state.result] for stage, states in every}
        self._given = {stage: states for stage, states in given.items() if states}
        batch = range(self.decoding.batch)
        self._groups = [Group(group, [Place(n) for n in batch]) for group in range(self.decoding.groups)]
        self._waiting: deque[Answer] = deque()
        self._left: SimpleQueue[Answer] = SimpleQueue()
        self._under_way: dict[int, deque[Group]] = {}

    def ask(self, request: Request) -> Answer:
        """The answer to a request, which waits for a free place. Raises what ended the decoder, UsageError where it is
        closed."""
        answer = Answer(request, self._leave)
        self._ask(answer)
        return answer

    def _leave(self, answer: Answer) -> None:
        with self._gate:
            if self._error is None:
                self._left.put(answer)
                self._wake()

    # The thread of the decoder

    def _begin(self) -> None:
        """Uses the processes, which have just started: their caches are empty."""
        super()._begin()
        draw = [sink for sink in self._pipeline.sinks if any(v.name == TOKENS for v in sink.side.edge.values)]
        self._under_way = {id(sink): deque() for sink in draw}
        self._pipeline.order(ENDLESS, False)
        for group in self._groups:
            group.busy = False
            group.feeds = [feed for feed in self._feeds if self._serves(feed.end, group)]
            group.drawn_by = next(id(sink) for sink in draw if self._serves(sink, group))
            for place in group.places:
                place.cached, place.reset = 0, True

    def _serves(self, end: StarterEnd, group: Group) -> bool:
        """Whether the place at the other end works on the steps of a group: all members of a mesh do."""
        stage = self._pipeline.build.stages[end.place.stage]
        return bool(stage.members) or stage.serves[group.number] == end.place.position

    def _round(self) -> None:
        self._seat()
        for group in self._groups:
            if not group.busy and group.taken:
                self._feed(group)
        self._pipeline.busy = any(group.busy for group in self._groups)
        for sink in self._pipeline.wait():
            self._collect(sink)

    def _resume(self) -> None:
        """Goes on by the tokens that places keep, of which the caches have none now; with no answer under way, all is well."""
        if not self._waiting and not any(group.taken for group in self._groups):
            self._pipeline.recovery.answered()

    def _fail(self, error: BaseException) -> None:
        seated = [place.answer for group in self._groups for place in group.places if place.answer is not None]
        for answer in (*seated, *self._waiting, *drained(self._inbox)):
            answer.fail(copy(error))

    def _seat(self) -> None:
        """Ends answers that nobody wants, and gives free places to requests, in the order in which they came: in the group with
        the most of them, so that groups are equally full."""
        self._waiting += drained(self._inbox)
        for answer in drained(self._left):
            if answer in self._waiting:
                self._waiting.remove(answer)
                answer.end(CLOSED)
            for group in self._groups:
                for place in group.places:
                    if place.answer is answer:
                        self._end(place, CLOSED)
        while self._waiting:
            group = min(self._groups, key=lambda group: group.taken)
            if group.taken == len(group.places):
                return
            next(place for place in group.places if place.answer is None).take(self._waiting.popleft())

    def _feed(self, group: Group) -> None:
        """Feeds a step of a group."""
        decoding, active = self.decoding, [place for place in group.places if place.answer is not None]
        length = decoding.chunk if any(len(place.kept) - place.cached > 1 for place in active) else 1
        rows = control_rows(decoding.batch, PROMPT if length > 1 else STEP, group.number)
        words = [0] * (decoding.batch * length)
        given: list[Mapping[str, Array]] = []
        group.drawing = []
        for place in active:
            assert place.answer is not None
            begin = min(place.cached, decoding.context - length)
            tokens = place.kept[begin : begin + length]
            words[place.number * length : place.number * length + len(tokens)] = tokens
            place.cached = begin + len(tokens)
            row = -1
            if place.cached == len(place.kept):
                row = len(tokens) - 1
                group.drawing.append((place, place.answer))
            seed, *how = place.how
            rows[1 + place.number] = (begin, row, int(place.reset), seed, place.drawn, *how)
            if place.reset:
                given.append(place.answer.request.given)
            place.reset = False
        if not any(other.busy for other in self._groups):
            self._pipeline.begin()
        group.busy = True
        self._under_way[group.drawn_by].append(group)
        table, ids = np.array(rows, np.int64), np.array(words, np.int64)
        values = {CONTROL: Raw(_INT64, table.shape, table), decoding.ids: Raw(_INT64, ids.shape, ids)}
        for stage, states in self._given.items():
            data = given_bytes(states, given)
            values[f"{GIVEN}.{stage}"] = Raw(_UINT8, data.shape, data)
        for feed in group.feeds:
            feed.queue.append(values)
            self._pipeline.feed(feed.end, feed)

    def _collect(self, sink: StarterEnd) -> None:
        """Takes the tokens of the steps that are done."""
        while sink.side.complete:
            slot = sink.side.take()
            if (steps := self._under_way.get(id(sink))) is not None:
                if self._pipeline.failures:
                    raise self._pipeline.failure_of(min(self._pipeline.failures, key=lambda one: (one.microbatch, one.stage)))
                group, values = steps.popleft(), sink.side.values(slot)
                if (logits := values.get(LOGITS)) is not None:
                    for place, answer in group.drawing:
                        answer.logits.append(logits.data[place.number].copy())
                self._take_tokens(group, values[TOKENS].data.tolist())
            sink.side.release(slot)

    def _take_tokens(self, group: Group, tokens: list[int]) -> None:
        group.busy = False
        if group.drawing:  # a step that only computes caches again is no progress
            self._pipeline.recovery.answered()
        for place, answer in group.drawing:
            if place.answer is not answer:  # it was closed meanwhile
                continue
            token, asked = tokens[place.number], answer.request
            if token in asked.stop:
                self._end(place, STOP)
                continue
            place.kept.append(token)
            place.drawn += 1
            answer.put(token)
            if asked.max_tokens is not None and place.drawn >= asked.max_tokens:
                self._end(place, LENGTH)
            elif len(place.kept) >= self.decoding.context:
                self._end(place, CONTEXT)

    def _end(self, place: Place, reason: str) -> None:
        answer, place.answer = place.answer, None
        if answer is not None:
            answer.end(reason)


__all__ = ["Decoder", "Group", "Place"]
