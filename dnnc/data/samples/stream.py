"""Batches that come one after another, from a function or an object of a person's: a dict of arrays by input, or a tuple of
them in the order of the inputs, as many samples as a microbatch takes, or as a step.

Each reader reads all of them: what is in a batch is only known when it is there.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dnnc.data.faults import FunctionEnded, FunctionRaised, MicrobatchLacks, YieldedNoDict, YieldedWrongArray
from dnnc.data.samples.arrays import Inputs, a_value, as_array, empty, fitting, rows_of
from dnnc.data.samples.order import USE, Batches
from ir.core.diagnostics import InvalidInput

FAULTS = (Exception, SystemExit)
"""Exceptions of a person's code that become errors. Uncaught, they would end one rank, for which the others would wait."""
_END = object()
_OF_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")
"""How a loader of PyTorch begins the message of what one of its workers raised."""
_FRAME = re.compile(r'  File "(.+)", line (\d+)')
_NOT_THEIRS = (*{sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}, str(Path(__file__).parents[2]), "<")
"""Where code lies that is not a person's: libraries, Python's own, dnnc's."""
Arrays = dict[str, Any]


@dataclass
class Stream:
    """``opened``: called with the number of an epoch, gives its batches; None where there are no more epochs. ``usable``:
    raises InvalidInput where a batch of so few samples cannot be used. ``recent``: the microbatches of the last two steps,
    since a step may read one twice. To read an earlier one, all is read again."""

    inputs: Inputs
    batches: Batches
    source: str
    opened: Callable[[int], Iterable[Any] | None]
    usable: Callable[[int], None] = lambda left: None
    yielded: int = 0
    recent: dict[int, Arrays] = field(default_factory=dict)
    steps: Iterator[list[Arrays]] | None = None
    identity: None = None

    def microbatch(self, number: int) -> Mapping[str, Any]:
        if self.steps is None or number < self.yielded - len(self.recent):
            self.steps, self.yielded = self._steps(), 0
            self.recent.clear()
        while self.yielded <= number:
            for microbatch in next(self.steps):
                self.recent[self.yielded] = microbatch
                self.yielded += 1
            for old in [one for one in self.recent if one < self.yielded - 2 * self.batches.microbatches]:
                del self.recent[old]
        return self.recent[number]

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]

    def verify(self, rank: int, ranks: int) -> None:
        """Each microbatch is verified when it is read."""

    def _steps(self) -> Iterator[list[Arrays]]:
        """The microbatches of each step. Raises InvalidInput where they end, and for what does not fit the model."""
        read, epoch, each = 0, 0, self.batches.microbatches
        while (opened := self._guarded(partial(self.opened, epoch))) is not None:
            items, step, before = iter(opened), list[Arrays](), read
            while (item := self._next(items)) is not _END:
                found = self._microbatches(item, read, items)
                read, step = read + len(found), step + found
                while len(step) >= each:
                    yield step[:each]
                    step = step[each:]
            if step and self.batches.last == USE:
                self.usable(len(step) * self.batches.units)
                yield [*step, *(self._left_out(step[0], 0) for _ in range(each - len(step)))]
            if read == before:
                break
            epoch += 1
        raise InvalidInput(FunctionEnded(read), where=self.source)

    def _next(self, items: Iterator[Any]) -> Any:
        return self._guarded(lambda: next(items, _END))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FAULTS as error:
            raise raised(error, self.source) from error

    def _microbatches(self, item: Any, number: int, items: Iterator[Any]) -> list[Arrays]:
        """The microbatches of a batch, the first of which has a number. One that is too small is the last of ``items``."""
        arrays = named_arrays(item, self.inputs, self.source)
        units = self._units(arrays)
        count, rest = divmod(units, self.batches.units)
        if rest or count not in (1, self.batches.microbatches):
            smaller = 0 < units < self.batches.samples
            if not self.batches.any_size and not (smaller and self._next(items) is _END):
                self._refuse(arrays)
        each = self.batches.units
        parts = [arrays] if (count, rest) == (1, 0) else [self._filled(arrays, one * each, units) for one in range(count)]
        if rest and self.batches.last == USE:
            self.usable(units)
            parts.append(self._filled(arrays, count * each, units))
        for place, part in enumerate(parts):
            for name, array in part.items():
                self.inputs.check(name, array, self.source, partial(_row, number + place))
        return parts

    def _units(self, arrays: Arrays) -> int:
        """The number of samples in a batch. Raises InvalidInput for arrays that do not fit, or each other."""
        counts = set()
        for port in self.inputs.ports:
            array, shape = arrays[port.name], tuple(port.shape or ())
            if array.ndim != len(shape) or array.shape[1:] != shape[1:] or str(array.dtype) != port.dtype:
                self._refuse(arrays)
            if shape:
                count, rest = divmod(len(array), self.inputs.each(port))
                counts.add(-1 if rest else count)
        if len(counts) > 1 or -1 in counts:
            self._refuse(arrays)
        return counts.pop() if counts else self.batches.units

    def _refuse(self, arrays: Arrays) -> Any:
        """Raises InvalidInput for the first array that differs whatever its number of rows, else for the first of neither a
        microbatch nor a step, else for the first that is no microbatch."""
        step = self.batches.microbatches
        of_step = any(port.shape and [*arrays[port.name].shape[:1]] == [rows_of(port) * step] for port in self.inputs.ports)
        for counts, expected in (((), 1), ((1, step), step if of_step else 1), ((1,), 1)):
            for port in self.inputs.ports:
                array, shape = arrays[port.name], [*(port.shape or ())]
                if shape:
                    fits = array.ndim == len(shape) and (not counts or len(array) in [rows_of(port) * n for n in counts])
                    shape[0] = len(array) if fits else rows_of(port) * expected
                if [*array.shape] != shape or str(array.dtype) != port.dtype:
                    fault = YieldedWrongArray(port.name, f"{array.dtype}{list(array.shape)}", f"{port.dtype}{shape}")
                    raise InvalidInput(fault, where=self.source)

    def _filled(self, arrays: Arrays, first: int, units: int) -> Arrays:
        """A microbatch of the samples from ``first`` on, filled up with ones that do not count."""
        part = empty(self.inputs.ports)
        for port in self.inputs.ports:
            each = self.inputs.each(port) if port.shape else 0
            rows = arrays[port.name][first * each :][: self.batches.units * each] if port.shape else arrays[port.name]
            part[port.name][: len(rows) if port.shape else ...] = rows
            if port.shape:
                part[port.name][len(rows) :] = rows[:1]
        return self._left_out(part, min(self.batches.units, units - first))

    def _left_out(self, arrays: Arrays, counting: int) -> Arrays:
        """A microbatch of which only the first ``counting`` samples count."""
        if counting == self.batches.units:
            return arrays
        labels = arrays[self.inputs.labels].copy()
        labels[counting * self.inputs.each(self.inputs.port(self.inputs.labels)) :] = self.inputs.ignored
        return {**arrays, self.inputs.labels: labels}


def _row(microbatch: int, row: int) -> str:
    return f" in row {row} of microbatch {microbatch}"


def named_arrays(item: Any, inputs: Inputs, where: str) -> Arrays:
    """What a person's code gave as arrays of the inputs. Raises InvalidInput."""
    if isinstance(item, list | tuple) and len(item) == len(inputs.ports):
        item = dict(zip((port.name for port in inputs.ports), item, strict=True))
    if not isinstance(item, Mapping):
        raise InvalidInput(YieldedNoDict(a_value(item), inputs.named()), where=where)
    arrays = {}
    for port in inputs.ports:
        if port.name not in item:
            raise InvalidInput(MicrobatchLacks(port.name), where=where)
        arrays[port.name] = fitting(port, as_array(port.name, item[port.name], where))
    return arrays


def raised(error: BaseException, where: str, when: str = "") -> InvalidInput:
    """The error of what a person's code raised."""
    if isinstance(error, InvalidInput):
        return error
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if _OF_WORKER.match(str(error)):  # the text of a worker's traceback, which names the exception last
        lines = str(error).strip().splitlines()
        reason = lines[-1]
        frames = [(match[1], int(match[2])) for line in lines if (match := _FRAME.match(line))]
    theirs = [(file, line) for file, line in frames if not any(file.startswith(folder) for folder in _NOT_THEIRS)]
    place = f"{Path(theirs[-1][0]).name}:{theirs[-1][1]}" if theirs else ""
    return InvalidInput(FunctionRaised(reason, when, place), where=where)
