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

import math
import time
from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from dnnc.build.build import Build
from dnnc.build.decoding import Decoding
from dnnc.engines.onnxruntime.decoding.answers import CLOSED, CONTEXT, LENGTH, STOP, Answer, Request
from dnnc.engines.onnxruntime.decoding.given import given_bytes
from dnnc.engines.onnxruntime.decoding.wire import (
    CONTROL,
    COUNT,
    GIVEN,
    IDLE,
    KIND,
    LOGITS,
    POSITION,
    PROMPT,
    RESET,
    ROW,
    SEED,
    STEP,
    TOKENS,
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

_MOST_LOSSES, _AGAIN_SECONDS = 3, 60.0
"""On this host, a decoder goes on after so many losses within these seconds, and draws its next token within them."""
_BUNDLE_SECONDS = 0.02
"""Drawn tokens wait for others this long before they are handed over: to wake the threads that asked takes tens of us."""


@dataclass(slots=True)
class Place:
    """Sequence ``number`` of a group. ``kept``: the tokens of its sequence; ``cached``: how many of them its caches have, of
    the steps under way too; ``most``: how many there are when its answer ends."""

    number: int
    answer: Answer | None = None
    kept: list[int] = field(default_factory=list)
    cached: int = 0
    most: int = 0


@dataclass(slots=True)
class Group:
    """``table``, ``ids``: what its last step was fed (``wire``). ``taken``: how many places have an answer. ``goes_on``:
    whether the next step is one of a token for each of them, which its last step draws. ``busy``: whether a step of it is under
    way; ``drawing``: places whose next token it draws, with the answers it is of; ``feeds``: links to the processes that serve
    it; ``drawn_by``: the link (its ``id``) by which its tokens come back."""

    number: int
    places: list[Place]
    table: Array
    ids: Array
    taken: int = 0
    goes_on: bool = False
    busy: bool = False
    drawing: list[tuple[Place, Answer]] = field(default_factory=list)
    feeds: list[FeedQueue] = field(default_factory=list)
    drawn_by: int = 0

    @classmethod
    def empty(cls, number: int, batch: int) -> Group:
        table = np.array([(STEP, number, *IDLE[2:]), *[IDLE] * batch], np.int64)
        return cls(number, [Place(sequence) for sequence in range(batch)], table, np.zeros(batch, np.int64))

    def seat(self, answer: Answer, context: int) -> None:
        """Gives an answer a free place, of which there is one."""
        place, asked = next(place for place in self.places if place.answer is None), answer.request
        place.answer, place.kept, place.cached = answer, list(asked.ids), 0
        place.most = context if asked.max_tokens is None else min(context, len(asked.ids) + asked.max_tokens)
        how = asked.seed, 0, asked.top_k, float_bits(asked.temperature), float_bits(asked.top_p)
        self.table[1 + place.number, SEED:] = how
        self.taken, self.goes_on = self.taken + 1, False

    def leave(self, place: Place) -> None:
        """Frees a place."""
        place.answer = None
        self.taken, self.goes_on = self.taken - 1, False
        self.table[1 + place.number] = IDLE

    def forget(self) -> None:
        """Notes that no step is under way and that the caches are empty."""
        self.busy = self.goes_on = False
        for place in self.places:
            place.cached = 0

    def fill(self, decoding: Decoding) -> list[Mapping[str, Array]]:
        """Makes the table and the ids of the next step. Returns what sequences that begin with it are given."""
        active = [place for place in self.places if place.answer is not None]
        length = decoding.chunk if any(len(place.kept) - place.cached > 1 for place in active) else 1
        self.table[0, KIND], self.ids = PROMPT if length > 1 else STEP, np.zeros(decoding.batch * length, np.int64)
        self.drawing = []
        given: list[Mapping[str, Array]] = []
        for place in active:
            assert place.answer is not None
            begin, asked = min(place.cached, decoding.context - length), place.answer.request
            tokens = place.kept[begin : begin + length]
            self.ids[place.number * length :][: len(tokens)] = tokens
            if place.cached == 0:
                given.append(asked.given)
            row = self.table[1 + place.number]
            row[POSITION], row[ROW], row[RESET], row[COUNT] = begin, -1, place.cached == 0, len(place.kept) - len(asked.ids)
            place.cached = begin + len(tokens)
            if place.cached == len(place.kept):
                row[ROW] = len(tokens) - 1
                self.drawing.append((place, place.answer))
        self.goes_on = length == 1 and not given and len(self.drawing) == len(active)
        return given

    def go_on(self) -> None:
        """Makes the table and the ids of the next step where each place ``goes_on``. Number by number: a step begins with cold
        caches, in which the first call of any numpy function on arrays takes tens of us."""
        table, ids = self.table, self.ids
        for place, answer in self.drawing:
            row, kept = 1 + place.number, place.kept
            ids[place.number], table[row, POSITION] = kept[-1], place.cached
            table[row, COUNT] = len(kept) - len(answer.request.ids)
            place.cached += 1


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
        self._groups = [Group.empty(group, self.decoding.batch) for group in range(self.decoding.groups)]
        self._waiting: deque[Answer] = deque()
        self._left: SimpleQueue[Answer] = SimpleQueue()
        self._finished: list[tuple[Answer, str]] = []
        self._drawn, self._handed_over = False, 0.0
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
            group.forget()
            group.feeds = [feed for feed in self._feeds if self._serves(feed.end, group)]
            group.drawn_by = next(id(sink) for sink in draw if self._serves(sink, group))

    def _serves(self, end: StarterEnd, group: Group) -> bool:
        """Whether the place at the other end works on the steps of a group: all members of a mesh do."""
        stage = self._pipeline.build.stages[end.place.stage]
        return bool(stage.members) or stage.serves[group.number] == end.place.position

    def _round(self) -> None:
        self._seat()
        try:
            for group in self._groups:
                if not group.busy and group.taken:
                    self._feed(group)
        finally:
            self._deliver()
        self._pipeline.busy = any(group.busy for group in self._groups)
        for sink in self._pipeline.wait(_BUNDLE_SECONDS if self._drawn else math.inf):
            self._collect(sink)

    def _resume(self) -> None:
        """Goes on by the tokens that places keep, of which the caches have none now; with no answer under way, all is well."""
        if not self._waiting and not any(group.taken for group in self._groups):
            self._pipeline.recovery.answered()

    def _fail(self, error: BaseException) -> None:
        self._deliver()
        seated = [place.answer for group in self._groups for place in group.places if place.answer is not None]
        for answer in (*seated, *self._waiting, *drained(self._inbox)):
            answer.fail(copy(error))

    def _seat(self) -> None:
        """Ends answers that nobody wants, and gives free places to requests, in the order in which they came: in the group with
        the most of them, so that groups are equally full."""
        if not self._inbox.empty():
            self._waiting += drained(self._inbox)
        for answer in drained(self._left) if not self._left.empty() else ():
            if answer in self._waiting:
                self._waiting.remove(answer)
                self._finished.append((answer, CLOSED))
            for group in self._groups:
                for place in group.places:
                    if place.answer is answer:
                        self._end(group, place, CLOSED)
        while self._waiting:
            group = min(self._groups, key=lambda group: group.taken)
            if group.taken == len(group.places):
                return
            group.seat(self._waiting.popleft(), self.decoding.context)

    def _feed(self, group: Group) -> None:
        """Feeds a step of a group."""
        given: list[Mapping[str, Array]] = []
        if group.goes_on:
            group.go_on()
        else:
            given = group.fill(self.decoding)
        if not any(other.busy for other in self._groups):
            self._pipeline.begin()
        group.busy = True
        self._under_way[group.drawn_by].append(group)
        values = {CONTROL: group.table, self.decoding.ids: group.ids}
        for stage, states in self._given.items():
            values[f"{GIVEN}.{stage}"] = given_bytes(states, given)
        for feed in group.feeds:
            if not self._pipeline.feed_at_once(feed.end, values):
                feed.queue.append({name: _kept(array) for name, array in values.items()})
                self._pipeline.feed(feed.end, feed)

    def _deliver(self) -> None:
        """Hands tokens over to those who asked, in bundles, and tells of ends at once: after the next steps are fed, since that
        may let other threads run."""
        for answer, reason in self._finished:
            answer.end(reason)
        self._finished.clear()
        if self._drawn and (now := time.monotonic()) >= self._handed_over + _BUNDLE_SECONDS:
            self._drawn, self._handed_over = False, now
            for group in self._groups:
                for place in group.places:
                    if place.answer is not None:
                        place.answer.hand_over()

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
            token = tokens[place.number]
            if token in answer.request.stop:
                self._end(group, place, STOP)
                continue
            place.kept.append(token)
            answer.drawn.append(token)
            self._drawn = True
            if len(place.kept) >= place.most:
                drawn, asked = len(place.kept) - len(answer.request.ids), answer.request.max_tokens
                self._end(group, place, LENGTH if drawn == asked else CONTEXT)

    def _end(self, group: Group, place: Place, reason: str) -> None:
        assert place.answer is not None
        self._finished.append((place.answer, reason))
        group.leave(place)


def _kept(array: Array) -> Raw:
    """A copy of what is fed, to be sent once there is a free slot: its array is that of the next step, too."""
    return Raw(BY_NAME[array.dtype.name].number, array.shape, array.copy())
