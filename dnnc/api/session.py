"""``Session``: a running build, one process per device, which is used as an ``onnxruntime.InferenceSession`` is.

Any thread may call it. Each call is one microbatch; several are in flight at a time, as many as ``in_flight`` says, and calls
wait beyond that. What is wrong with a call is raised by that call, and the session goes on: arrays that are not those of the
model, and values for which a program raises an error. If a device ends, the session has ended: every call raises why.

A session of a language model whose states stay in its devices takes no microbatches: it generates tokens (``generate``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnc.api.faults import NotFeeds, NotOneMicrobatch, UnknownOutput
from dnnc.api.terms import python_terms, translate, warn
from dnnc.build.build import Build as BuildFiles
from dnnc.build.build import ValueInfo
from dnnc.data.faults import InputUnreadable
from dnnc.data.inputs import check_inputs, split_microbatches
from dnnc.engines.onnxruntime.decoding.answers import Answer, Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder
from dnnc.engines.onnxruntime.decoding.faults import GeneratesTokens, NoDecoding
from dnnc.engines.onnxruntime.decoding.wiring import decoding_build
from dnnc.engines.onnxruntime.run import processes_on
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.engines.onnxruntime.starter.stream import Stream
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user
from ir.core.diagnostics import InvalidInput, UsageError

if TYPE_CHECKING:
    from dnnc.engines.hosts.options import ClusterOptions

Feeds = Mapping[str, Any]
Outputs = list[Any]


_ONNX_NAMES = {"float32": "float", "float64": "double"}
"""Names of element types that are not numpy's."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the model, as ``onnxruntime.NodeArg``: ``type`` is ONNX's, ``tensor(float)`` (of sequences, maps
    and optionals the IR's); ``shape`` has a number or a name for each dimension, None where it is unknown."""

    name: str
    type: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, port: ValueInfo) -> Argument:
        element = _ONNX_NAMES.get(port.dtype, port.dtype.replace("float8_", "float8"))
        return cls(port.name, f"tensor({element})" if element else port.type, list(port.shape or ()))


class Session:
    """The running processes of a build. ``with build.start() as session``, or ``session.close()`` at the end."""

    def __init__(
        self, files: BuildFiles, options: RunOptions, in_flight: int = 0, cluster: ClusterOptions | None = None
    ) -> None:
        self._files = files
        self._names = [output.name for output in files.outputs]
        self._tensors = {port.name for port in files.inputs if port.dtype}
        self._exact = {
            port.name: (port.dtype, tuple(port.shape or ()))
            for port in files.inputs
            if port.dtype not in ("", "string") and port.shape is not None and all(isinstance(dim, int) for dim in port.shape)
        }
        with python_terms(), ExitStack() as stack:
            self._decoding = files.decoding if files.decoding is not None and files.decoding.generates else None
            run = decoding_build(files) if self._decoding is not None else files
            processes = stack.enter_context(processes_on(run, options, cluster, lambda diagnostic: warn([diagnostic])))
            self._running: Stream | Decoder
            if self._decoding is not None:
                self._running = stack.enter_context(Decoder(files, options, processes))
            else:
                self._running = stack.enter_context(Stream(files, options, in_flight, processes))
            self._stack = stack.pop_all()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes. Calls that are under way raise that the session is closed."""
        self._stack.close()

    @property
    def in_flight(self) -> int:
        """The most microbatches under way; of a language model, the most sequences."""
        if self._decoding is not None:
            return self._decoding.batch * self._decoding.groups
        return self._stream.in_flight

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the devices."""
        return self._running.processes

    @property
    def _stream(self) -> Stream:
        if isinstance(self._running, Stream):
            return self._running
        raise UsageError(GeneratesTokens(), where=str(self._files.folder))

    def get_inputs(self) -> list[Argument]:
        return list(map(Argument.of, self._files.inputs))

    def get_outputs(self) -> list[Argument]:
        return list(map(Argument.of, self._files.outputs))

    def generate(
        self,
        ids: Iterable[int],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Iterable[int] | int | None = None,
        states: Mapping[str, Any] | None = None,
    ) -> Answer:
        """The tokens that follow ``ids``, one by one as they come: an iterator, and with ``async for`` one of asyncio. Any
        thread may ask; several answers are generated together, and what waits for a place begins when another ends.

        Ends after ``max_tokens`` (None: no limit), before a token of ``stop`` (None: those of ``build.decoding.stop``, which a
        config beside the model said), or when prompt and answer fill the context of the build; ``answer.reason`` says which. An
        answer that nobody reads goes on, and keeps its place, until it ends: ``answer.close()``, or the end of ``with
        answer:``, asks for no more.

        With ``temperature`` 0 each token is the most likely one. Else it is drawn from the ``top_k`` most likely ones (0:
        all), of them from the fewest that have the probability ``top_p`` together, with random numbers of ``seed``: the same
        request has the same answer.

        ``states``: arrays by name of what the sequence is given where it begins, where the model reads such: keys and values
        that an encoder made, of one sequence, for no more positions than the build was compiled for.

        Raises InvalidInput for ids or ``stop`` that are not the model's, no ids, or too many for the context; UsageError for
        numbers out of range, and for a build that is of no language model. The iterator raises RuntimeFailure where a device
        ends."""
        with python_terms():
            if self._decoding is None or isinstance(self._running, Stream):
                raise UsageError(NoDecoding(), where=str(self._files.folder))
            request = Request.of(self._decoding, ids, max_tokens, temperature, top_k, top_p, seed, stop, states)
            return self._running.ask(request)

    def run(self, output_names: Sequence[str] | None, input_feed: Feeds) -> Outputs:
        """The outputs of these names, all for none, of one microbatch: arrays by input name, each in the shape of its input.

        Raises InvalidInput for arrays that are not those of the model, RuntimeFailure where a program raises an error."""
        wanted, stream = self._wanted(output_names), self._stream
        values = self._values(input_feed)
        with python_terms():
            future = stream.submit(values)
            assert future is not None
            outputs = future.result()
        return [outputs[name] for name in wanted]

    def submit(self, input_feed: Feeds, output_names: Sequence[str] | None = None) -> Future[Outputs]:
        """What ``run`` returns, to come. The arrays may be changed as soon as this returns. Raises InvalidInput at once; the
        future has what a program raises. A callback of the future must be short, for all others wait for it, and must not ask
        the session, which raises UsageError."""
        future: Future[Outputs] = self._submitted(input_feed, self._wanted(output_names))
        return future

    def map(self, microbatches: Iterable[Feeds], output_names: Sequence[str] | None = None) -> Iterator[Outputs]:
        """What ``run`` returns for each microbatch, in order, with ``in_flight`` of them under way. The next ones are taken
        while the first ones are computed. What is wrong with one, and what ``microbatches`` raises, is raised when its turn
        comes, and ends the iterator."""
        wanted = self._wanted(output_names)
        waiting: deque[Future[Outputs]] = deque()
        for microbatch in _taken(microbatches):
            if isinstance(microbatch, Exception):
                waiting.append(_failed(microbatch))
                break
            try:
                waiting.append(self._submitted(microbatch, wanted))
            except InvalidInput as error:
                waiting.append(_failed(error))
            while waiting and (waiting[0].done() or len(waiting) >= self.in_flight):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    async def amap(
        self, microbatches: Iterable[Feeds] | AsyncIterable[Feeds], output_names: Sequence[str] | None = None
    ) -> AsyncIterator[Outputs]:
        """``map`` for asyncio: other tasks run while this one waits."""
        wanted = self._wanted(output_names)
        waiting: deque[Future[Outputs]] = deque()
        async for microbatch in _asynchronous(microbatches):
            if isinstance(microbatch, Exception):
                waiting.append(_failed(microbatch))
                break
            try:
                future = self._submitted(microbatch, wanted, block=False)
                if future is None:  # as many as may be are under way
                    future = await asyncio.to_thread(self._submitted, microbatch, wanted)
                waiting.append(future)
            except InvalidInput as error:
                waiting.append(_failed(error))
            while waiting and (waiting[0].done() or len(waiting) >= self.in_flight):
                yield await asyncio.wrap_future(waiting.popleft())
        while waiting:
            yield await asyncio.wrap_future(waiting.popleft())

    def _wanted(self, output_names: Sequence[str] | None) -> Sequence[str]:
        if not output_names:
            return self._names
        for name in output_names:
            if name not in self._names:
                raise UsageError(UnknownOutput(name, tuple(self._names)), where="output_names")
        return output_names

    def _submitted(self, feeds: Feeds, wanted: Sequence[str], *, block: bool = True) -> Any:
        """The future of a microbatch whose arrays are copied first; None where it would have to wait and not ``block``."""
        stream = self._stream
        values = {name: _own(value) for name, value in self._values(feeds).items()}
        with python_terms():
            computed = stream.submit(values, block=block)
        if computed is None:
            return None
        future: Future[Outputs] = Future()
        future.set_running_or_notify_cancel()

        def done(of: Future[dict[str, Any]]) -> None:
            if (error := of.exception()) is not None:
                translate(error)
                future.set_exception(error)
            else:
                outputs = of.result()
                future.set_result([outputs[name] for name in wanted])

        computed.add_done_callback(done)
        return future

    def _values(self, feeds: Feeds) -> dict[str, Any]:
        """The arrays as they travel. Raises InvalidInput for those that are not the model's."""
        if not isinstance(feeds, Mapping):
            raise InvalidInput(NotFeeds(type(feeds).__name__), where="feeds")
        arrays = {name: _array(name, value) if name in self._tensors else value for name, value in feeds.items()}
        if len(feeds) == len(self._exact) == len(self._files.inputs) and all(
            self._exact.get(name) == (array.dtype.name, array.shape) for name, array in arrays.items()
        ):
            return {name: from_user(array) for name, array in arrays.items()}
        with python_terms():
            return self._checked(arrays)

    def _checked(self, feeds: Feeds) -> dict[str, Any]:
        """The same for inputs whose types do not tell all, and for arrays in which something is wrong."""
        check_inputs(self._files.inputs, feeds, None, "feeds", self._files.constants)
        for port in self._files.inputs:
            given = np.shape(feeds[port.name]) if port.dtype else ()
            if port.dtype and len(given) != len(port.shape or given):
                fault = NotOneMicrobatch(port.name, str(list(given)), f"{port.dtype}{list(port.shape or ())}")
                raise InvalidInput(fault, where="feeds")
        items = split_microbatches(self._files.inputs, feeds, where="feeds", constants=self._files.constants).items
        return {name: from_user(value) for name, value in items[0].items()}


def _array(name: str, value: Any) -> Any:
    """A value as an array in the byte order of this machine. Raises InvalidInput where numpy makes none of it."""
    try:
        array = np.asarray(value)
    except Exception as error:  # lists of unequal length, a tensor of PyTorch that requires its gradient
        raise InvalidInput(InputUnreadable(name, str(error)), where="feeds") from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _own(value: Any) -> Any:
    """A copy of a value as it travels."""
    if isinstance(value, Raw):
        return Raw(value.element, value.shape, value.data.copy())
    return [_own(item) for item in value] if isinstance(value, list) else value


def _failed(error: Exception) -> Future[Outputs]:
    future: Future[Outputs] = Future()
    future.set_exception(error)
    return future


def _taken(items: Iterable[Feeds]) -> Iterator[Feeds | Exception]:
    """The items, and what taking the next one raises."""
    try:
        yield from items
    except Exception as error:
        yield error


async def _asynchronous(items: Iterable[Feeds] | AsyncIterable[Feeds]) -> AsyncIterator[Feeds | Exception]:
    """``_taken`` for asyncio."""
    if isinstance(items, AsyncIterable):
        try:
            async for item in items:
                yield item
        except Exception as error:
            yield error
    else:
        for taken in _taken(items):
            yield taken
