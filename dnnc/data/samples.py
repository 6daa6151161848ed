"""The microbatches of training, by number: microbatch k depends on the source and the seed, not on the plan.

The sources are ``synthetic``, a pool of random microbatches that repeats, so that a model can learn them; an ``.npz`` file with
the samples of each input, or a folder of such files, shuffled in each epoch; and ``module:function``, an importable function
that takes the seed and yields a dict of arrays per microbatch. ``microbatches:FOLDER`` has microbatch k as ``k.npz``. Two
inputs are not in the source: the seed of dropouts (an argument that only ``grad.mask`` reads), drawn from the seed and k; and
the number of labels that count (``passes.training.losses``), over the microbatches of the step.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dnnc.build.build import ValueInfo
from dnnc.data.entries import same_width
from dnnc.data.faults import (
    FunctionEnded,
    FunctionRaised,
    MicrobatchLacks,
    ModuleNotFound,
    NoFilesInFolder,
    NoNumberOfSamples,
    NoSuchFunction,
    NotAModuleName,
    NotFinite,
    ReturnedNoMicrobatches,
    SampleArrayMissing,
    SamplesOfWrongElements,
    SamplesOfWrongShape,
    UnequalSamples,
    UnknownSource,
    YieldedNoArray,
    YieldedNoDict,
    YieldedWrongArray,
)
from dnnc.data.generate import Demand, input_demands, random_microbatch
from dnnc.data.npz import Header, read_npz
from dnnc.data.ranges import Range, index_ranges
from dnnc.onnx.elements import user_dtype
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Module
from ir.ops.grads import MASK
from passes.costs.learning import IGNORED, StepLoss
from passes.graph.graph import reads

POOL = 16
"""Number of random microbatches, which repeat."""
SYNTHETIC = "synthetic"
MICROBATCHES = "microbatches:"
"""Begin of a source that is a folder of microbatches, which ``Build.train`` writes of an iterable."""
_FAULTS = (Exception, SystemExit)
"""Exceptions of the user's function that become errors. Uncaught, they would end one rank, for which the others would wait."""


class Data(Protocol):
    """A source of microbatches."""

    def microbatch(self, number: int) -> Mapping[str, Any]:
        """The array of each input of the model, by name. Raises InvalidInput for an array that does not fit the model."""
        ...

    def array(self, number: int, name: str) -> Any:
        """One array of ``microbatch(number)``."""
        ...


def open_data(source: str, module: Module, seed: int, microbatches: int = 1) -> Data:
    """The microbatches of ``source`` for the inputs of the model, with ``microbatches`` per step. Raises UsageError,
    InvalidInput."""
    seeds, loss = _seeds(module), StepLoss.of(module.entry) or StepLoss("")
    ports = data_inputs(module)
    data: Data
    if source == SYNTHETIC:
        data = _Synthetic(ports, input_demands(module), seed)
    elif source.startswith(MICROBATCHES):
        data = _Files(ports, index_ranges(module), Path(source.removeprefix(MICROBATCHES)))
    elif source.endswith(".npz") or os.path.isdir(source):
        data = _Samples(ports, _samples(Path(source), ports, index_ranges(module)), seed)
    elif ":" in source:
        data = _Function(ports, index_ranges(module), source, seed, microbatches)
    else:
        raise UsageError(UnknownSource(), where=f"--data {source}")
    if loss.counted:
        (counted,) = (value.type for value in module.entry.args if value.name[1:] == loss.counted)
        data = _Counted(data, loss, user_dtype(ValueInfo.of(loss.counted, counted).dtype), microbatches)
    return _Seeded(data, tuple(name[1:] for name in seeds), seed) if seeds else data


def data_inputs(module: Module) -> list[ValueInfo]:
    """The inputs whose arrays the source has."""
    seeds, loss = _seeds(module), StepLoss.of(module.entry) or StepLoss("")
    args = [value for value in module.entry.args if value.name not in seeds and value.name[1:] != loss.counted]
    return [ValueInfo.of(value.name[1:], value.type) for value in args]


def _seeds(module: Module) -> list[str]:
    """Arguments of the entry function that only ``grad.mask`` reads."""
    masks = {name for op in module.entry.ops if op.name == MASK for name in op.operands}
    others = {name for op in module.entry.ops if op.name != MASK for name in reads(op)}
    return [value.name for value in module.entry.args if value.name in masks - others]


@dataclass(frozen=True)
class _Seeded:
    """Adds a seed of 63 bits for its dropouts to each microbatch of ``data``, as each of ``names``."""

    data: Data
    names: tuple[str, ...]
    seed: int

    def microbatch(self, number: int) -> Mapping[str, Any]:
        (drawn,) = np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)
        return {**self.data.microbatch(number), **{name: np.asarray(drawn >> 1, np.int64) for name in self.names}}

    def array(self, number: int, name: str) -> Any:
        return self.data.array(number, name)


@dataclass
class _Counted:
    """Adds ``loss.counted`` to each microbatch of ``data``: the mean number of labels that count in a microbatch of its step.
    ``mean`` is that of ``step``, the last step that was counted."""

    data: Data
    loss: StepLoss
    dtype: Any
    microbatches: int
    step: int = -1
    mean: Any = None

    def microbatch(self, number: int) -> Mapping[str, Any]:
        step = number // self.microbatches
        if step != self.step:
            every = range(step * self.microbatches, (step + 1) * self.microbatches)
            total = sum(int(np.count_nonzero(self.array(one, self.loss.labels) != IGNORED)) for one in every)
            self.step, self.mean = step, np.asarray(max(total, 1) / self.microbatches, self.dtype)
        return {**self.data.microbatch(number), self.loss.counted: self.mean}

    def array(self, number: int, name: str) -> Any:
        return self.data.array(number, name)


@dataclass(frozen=True)
class _Synthetic:
    ports: list[ValueInfo]
    demands: Mapping[str, Demand]
    seed: int
    drawn: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def microbatch(self, number: int) -> Mapping[str, Any]:
        place = number % POOL
        if place not in self.drawn:
            self.drawn[place] = random_microbatch(self.ports, self.demands, self.seed * POOL + place)
        return self.drawn[place]

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]


@dataclass
class _Samples:
    """The first dimension of each array counts samples; an input without dimensions is the same in every microbatch.

    A microbatch has g units, where g is the greatest common divisor of the first dimensions of the inputs: for ``x [4, 8]`` and
    ``mask [2, 8]``, two units of 2 and 1 rows. Units are shuffled in each epoch; those left over in the last microbatch are
    dropped."""

    ports: list[ValueInfo]
    arrays: Mapping[str, Any]
    seed: int
    epoch: int = -1
    order: Any = None

    def microbatch(self, number: int) -> Mapping[str, Any]:
        return {port.name: self.array(number, port.name) for port in self.ports}

    def array(self, number: int, name: str) -> Any:
        dimensioned = [port for port in self.ports if port.shape]
        units = math.gcd(*map(_rows, dimensioned))
        total = min((len(self.arrays[port.name]) * units // _rows(port) for port in dimensioned), default=0)
        epoch, place = divmod(number, total // units if units else 1)
        if epoch != self.epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self.epoch, self.order = epoch, generator.permutation(total)
        port = next(port for port in self.ports if port.name == name)
        return self._drawn(port, self.order[place * units : (place + 1) * units], units)

    def _drawn(self, port: ValueInfo, drawn: Any, units: int) -> Any:
        array = self.arrays[port.name]
        if not port.shape:
            return array
        each = _rows(port) // units
        return array[(drawn[:, None] * each + np.arange(each)).ravel()]


def _rows(port: ValueInfo) -> int:
    """The first dimension of an input. Raises InvalidInput if it is no number above 0."""
    rows = port.shape[0] if port.shape else None
    if not isinstance(rows, int) or rows < 1:
        raise InvalidInput(NoNumberOfSamples(port.name, port.type))
    return rows


def _samples(path: Path, ports: list[ValueInfo], ranges: Mapping[str, Range]) -> dict[str, Any]:
    """The arrays of a file, or of all ``.npz`` files in a folder in the order of their names, one behind the other. The headers
    of a file are checked before its data is read."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise InvalidInput(NoFilesInFolder(), where=str(path))
    parts = [_of_file(file, ports, ranges) for file in files]
    if len(parts) == 1:
        return parts[0]
    return {
        port.name: np.concatenate([part[port.name] for part in parts]) if port.shape else parts[0][port.name] for port in ports
    }


def _of_file(path: Path, ports: list[ValueInfo], ranges: Mapping[str, Range]) -> dict[str, Any]:
    arrays = read_npz(path, lambda headers: _check_samples(path, ports, headers))
    for name, allowed in ranges.items():
        allowed.check(name, arrays[name], str(path))
    samples = {port.name: arrays[port.name].view(user_dtype(port.dtype)) for port in ports}  # bfloat16 comes back as raw bytes
    for name, array in samples.items():
        _require_numbers(array, f"array '{name}'", str(path), "sample")
    return samples


def _require_numbers(array: Any, what: str, where: str, unit: str) -> None:
    """Raises InvalidInput for NaN and infinity. Minus infinity is valid: attention masks contain it. ``unit``: what the first
    dimension counts, for the message."""
    if array.dtype.kind not in "fV":  # those of ml_dtypes are V
        return
    wrong = ~(array < np.inf)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        fault = NotFinite(what, f"{float(array[place]):g}", unit, int(place[0]) if place else -1)
        raise InvalidInput(fault, where=where)


def _check_samples(path: Path, ports: list[ValueInfo], headers: Mapping[str, Header]) -> None:
    for port in ports:
        if port.name not in headers:
            raise InvalidInput(SampleArrayMissing(port.name, tuple(port.name for port in ports)), where=str(path))
        header, shape = headers[port.name], tuple(port.shape or ())
        if header.shape[1:] != shape[1:] or header.ndim != len(shape) or (shape and header.shape[0] < _rows(port)):
            samples = ", ".join(["samples", *map(str, shape[1:])])
            wanted = f"[{samples}] with at least {shape[0]} samples" if shape else "no dimensions"
            raise InvalidInput(SamplesOfWrongShape(port.name, str(list(header.shape)), wanted), where=str(path))
        if header.dtype != user_dtype(port.dtype) and not same_width(port.dtype, header.dtype):
            raise InvalidInput(SamplesOfWrongElements(port.name, str(header.dtype), port.dtype), where=str(path))
    lengths = {port.name: Fraction(headers[port.name].shape[0], _rows(port)) for port in ports if port.shape}
    if len(set(lengths.values())) > 1:
        counts = tuple(f"{name} {headers[name].shape[0]}" for name in lengths)
        raise InvalidInput(UnequalSamples(counts), where=str(path))


@dataclass
class _Function:
    """``recent``: the last ``microbatches`` microbatches, since a step may read one twice. To read an earlier one, the function
    is called again."""

    ports: list[ValueInfo]
    ranges: Mapping[str, Range]
    source: str
    seed: int
    microbatches: int
    yielded: int = 0
    recent: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    stream: Iterator[Any] | None = None

    def microbatch(self, number: int) -> Mapping[str, Any]:
        if self.stream is None or number < self.yielded - len(self.recent):
            self.stream, self.yielded = self._begun(), 0
            self.recent.clear()
        while self.yielded <= number:
            try:
                arrays = next(self.stream)
            except StopIteration:
                raise InvalidInput(FunctionEnded(self.yielded), where=self.source) from None
            except _FAULTS as error:
                raise self._raised(error) from error
            self.recent[self.yielded] = _checked(arrays, self.ports, self.ranges, self.yielded, self.source)
            self.yielded += 1
            self.recent.pop(self.yielded - 1 - self.microbatches, None)
        return self.recent[number]

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]

    def _begun(self) -> Iterator[Any]:
        """The iterator that the function returns. Raises UsageError where there is no such function."""
        where = f"--data {self.source}"
        name, _, attribute = self.source.partition(":")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                raise UsageError(ModuleNotFound(str(error)), where=where) from None
            raise self._raised(error, "when it was imported") from error  # what the module imports is missing
        except _FAULTS as error:
            if not name.strip(".") or name.startswith("."):
                raise UsageError(NotAModuleName(name), where=where) from None
            raise self._raised(error, "when it was imported") from error
        function = getattr(module, attribute, None)
        if not callable(function):
            raise UsageError(NoSuchFunction(name, attribute), where=where)
        try:
            yielded = function(self.seed)
        except _FAULTS as error:
            raise self._raised(error) from error
        if not isinstance(yielded, Iterable) or isinstance(yielded, Mapping):
            raise InvalidInput(ReturnedNoMicrobatches(_a(yielded)), where=self.source)
        return iter(yielded)

    def _raised(self, error: BaseException, when: str = "") -> InvalidInput:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        return InvalidInput(FunctionRaised(said, when), where=self.source)


@dataclass(frozen=True)
class _Files:
    """A folder with a file for each microbatch."""

    ports: list[ValueInfo]
    ranges: Mapping[str, Range]
    folder: Path

    def microbatch(self, number: int) -> Mapping[str, Any]:
        return _checked(read_npz(self.folder / f"{number}.npz"), self.ports, self.ranges, number, "data")

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]


def _checked(
    arrays: Any, ports: Iterable[ValueInfo], ranges: Mapping[str, Range], number: int, where: str
) -> Mapping[str, Any]:
    """A microbatch that a person's code made, as arrays of the inputs. Raises InvalidInput for what does not fit the model."""
    if not isinstance(arrays, Mapping):
        raise InvalidInput(YieldedNoDict(_a(arrays)), where=where)
    microbatch = {}
    for port in ports:
        if port.name not in arrays:
            raise InvalidInput(MicrobatchLacks(port.name), where=where)
        try:
            array = np.array(arrays[port.name])  # a copy: functions fill their buffers anew, steps are read ahead
        except Exception as error:  # a tensor of PyTorch that requires its gradient, lists of unequal length
            raise InvalidInput(YieldedNoArray(port.name, str(error)), where=where) from error
        if array.dtype.kind == "V" and same_width(port.dtype, array.dtype):
            array = array.view(user_dtype(port.dtype))  # bfloat16 comes back from a file as raw bytes
        if array.shape != tuple(port.shape or ()) or str(array.dtype) != port.dtype:
            expected = f"{port.dtype}{list(port.shape or ())}"
            raise InvalidInput(YieldedWrongArray(port.name, f"{array.dtype}{list(array.shape)}", expected), where=where)
        if port.name in ranges:
            ranges[port.name].check(port.name, array, where)
        _require_numbers(array, f"'{port.name}' of microbatch {number}", where, "row")
        microbatch[port.name] = array
    return microbatch


def _a(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


__all__ = ["MICROBATCHES", "SYNTHETIC", "Data", "data_inputs", "open_data"]
