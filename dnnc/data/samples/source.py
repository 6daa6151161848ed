"""The sources of microbatches by name, and the two inputs that no source has: the seed of dropouts (an argument that only
``grad.mask`` reads), drawn from the seed of the data and the number of the microbatch; and the number of labels that count
(``StepLoss``), over the microbatches of the step.

Sources are ``synthetic``, a pool of random microbatches that repeats, so that a model can learn them; files of samples
(``shards``); ``module:function``, an importable function that is called with the seed and gives a dataset, a loader or batches
(``datasets``, ``stream``); and ``microbatches:FOLDER``, the data of a Python program (``given``).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dnnc.build.build import ValueInfo
from dnnc.data.faults import (
    LastBatchNotUsed,
    LastBatchOfLoader,
    ModuleNotFound,
    NoSuchFunction,
    NotAModuleName,
    ReturnedNoMicrobatches,
    UnknownSource,
)
from dnnc.data.generate import Demand, input_demands, random_microbatch
from dnnc.data.ranges import index_ranges
from dnnc.data.samples.arrays import Inputs, Part, a_value
from dnnc.data.samples.datasets import Dataset, drawn_apart, few_cores, is_dataset, is_loader
from dnnc.data.samples.given import MICROBATCHES, GivenMicrobatches
from dnnc.data.samples.order import DROP, USE, Batches
from dnnc.data.samples.shards import Samples
from dnnc.data.samples.stream import FAULTS, Stream, raised
from dnnc.onnx.elements import user_dtype
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.facets import FORWARD, phase_of
from ir.core.module import Module
from ir.ops.grads import ASSIGN, DRAWS
from passes.costs.learning import IGNORED, StepLoss
from passes.graph.graph import reads

POOL = 16
"""Number of random microbatches, which repeat."""
SYNTHETIC = "synthetic"


class Microbatches(Protocol):
    """Microbatches by number."""

    def microbatch(self, number: int) -> Mapping[str, Any]:
        """The array of each input that the reader uses, by name, with zeros in rows that it does not use. Raises InvalidInput
        for an array that does not fit the model."""
        ...


class Data(Microbatches, Protocol):
    """A source of microbatches."""

    @property
    def identity(self) -> bytes | None:
        """A digest by which two readers see whether they read the same samples; None where only what was read shows it."""
        ...

    def array(self, number: int, name: str) -> Any:
        """All rows of one array of a microbatch."""
        ...

    def verify(self, rank: int, ranks: int) -> None:
        """Reads this rank's share of all samples, where that does not take long. Raises InvalidInput for those that do not fit
        the model."""
        ...


def open_data(
    source: str,
    module: Module,
    seed: int,
    microbatches: int = 1,
    *,
    last: str = "",
    parts: Mapping[str, Part | None] | None = None,
) -> Data:
    """The microbatches of ``source`` for the inputs of the model, with ``microbatches`` per step. ``last``: whether the last
    batch of an epoch that the samples do not fill is left out (``drop``) or used (``use``); empty: left out, or as a loader
    says. ``parts``: the rows that the reader uses of each input, as ``Inputs`` has them. Raises UsageError, InvalidInput."""
    return with_numbers(opened_source(source, module, seed, microbatches, last, parts), module, seed, microbatches, parts)


def with_numbers(data: Data, module: Module, seed: int, microbatches: int, parts: Mapping[str, Part | None] | None) -> Data:
    """Adds the inputs that a source does not have: the seeds of dropouts, and the number of labels that count."""
    seeds, loss = _seeds(module), StepLoss.of(module.entry)
    alike = isinstance(data, Stream)  # all readers are compared by all that they read
    if loss.counted and (parts is None or loss.counted in parts or alike):
        (counted,) = (value.type for value in module.entry.args if value.name[1:] == loss.counted)
        data = _Counted(data, loss, user_dtype(ValueInfo.of(loss.counted, counted).dtype), microbatches)
    return _Seeded(data, tuple(name[1:] for name in seeds), seed) if seeds else data


def given_data(
    value: Iterable[Any], module: Module, seed: int, microbatches: int, last: str, first: int
) -> Callable[[int], Mapping[str, Any]]:
    """Gives the microbatches of an object of a Python program by number. A dataset or a loader has epochs, and begins with
    number 0; another iterable is read once, begins with ``first``, and draws from the caller's random numbers. Raises
    InvalidInput."""
    inputs = inputs_of(module, None)
    if _has_epochs(value):
        return _of_object(value, inputs, module, seed, microbatches, last, "data").microbatch
    batches = _batches(inputs, microbatches, last)
    usable = partial(_require_usable, module, batches, where="data")
    stream = Stream(inputs, batches, "data", lambda epoch: None if epoch else value, usable)
    return lambda number: stream.microbatch(number - first)


def _has_epochs(value: Any) -> bool:
    torch = sys.modules.get("torch.utils.data")
    return (
        is_loader(value)
        or is_dataset(value)
        or (torch is not None and isinstance(value, torch.IterableDataset | torch.DataLoader))
    )


def _of_object(
    value: Any, inputs: Inputs, module: Module, seed: int, microbatches: int, last: str, where: str, *, once: bool = False
) -> Data:
    """The data of a dataset, a loader, or another iterable that is read anew in each epoch, or ``once``."""
    batches = replace(_batches(inputs, microbatches, _last(value, last, where, once=once)), any_size=once)
    if is_loader(value) or is_dataset(value):
        dataset = Dataset.of(value, inputs, batches, where, seed)
        if not once:
            _require_usable(module, batches, dataset.order.count, where)
        return dataset
    if once and not StepLoss.of(module.entry).labels:
        batches = replace(batches, last=DROP)

    def opened(epoch: int) -> Iterable[Any] | None:
        if epoch and once:
            return None
        return drawn_apart(value, seed, epoch)

    return Stream(inputs, batches, where, opened, partial(_require_usable, module, batches, where=where))


def opened_source(
    source: str,
    module: Module,
    seed: int,
    microbatches: int,
    last: str,
    parts: Mapping[str, Part | None] | None,
    *,
    once: bool = False,
    flag: str = "--data",
) -> Data:
    """``once``: for one pass, whose last batch may be smaller whatever the loss is; ``flag``: the option that names the
    source."""
    inputs = inputs_of(module, parts)
    if source == SYNTHETIC:
        return _Synthetic(list(inputs.ports), input_demands(module), seed)
    if source.startswith(MICROBATCHES):
        return GivenMicrobatches(inputs, Path(source.removeprefix(MICROBATCHES)))
    if source.endswith((".npz", ".npy")) or os.path.isdir(source):
        batches = _batches(inputs, microbatches, last)
        samples = Samples.open(Path(source), inputs, batches, seed)
        if not once:
            _require_usable(module, batches, samples.count, source)
        return samples
    if ":" not in source:
        raise UsageError(UnknownSource(), where=f"{flag} {source}")
    given = _called(source, seed, flag)
    if _has_epochs(given) or iter(given) is not given:
        return _of_object(given, inputs, module, seed, microbatches, last, source, once=once)
    loss = StepLoss.of(module.entry)
    batches = replace(_batches(inputs, microbatches, last if loss.labels or not once else DROP), any_size=once)
    first = [given]
    return Stream(
        inputs,
        batches,
        source,
        lambda epoch: None if epoch else first.pop() if first else _called(source, seed, flag),
        partial(_require_usable, module, batches, where=source),
    )


def inputs_of(module: Module, parts: Mapping[str, Part | None] | None) -> Inputs:
    loss = StepLoss.of(module.entry)
    return Inputs(tuple(data_inputs(module)), index_ranges(module), parts, loss.labels, IGNORED)


def _batches(inputs: Inputs, microbatches: int, last: str) -> Batches:
    return Batches(inputs.units, microbatches, last or DROP)


def _last(given: Any, last: str, where: str, *, once: bool) -> str:
    """What becomes of the last batch: as was said, or as a loader says. Raises InvalidInput for a loader that leaves the last
    batch out, where it was said to be used; ``once``: of an evaluation, for which nothing is said."""
    if last == USE and not once and getattr(given, "drop_last", False) is True:
        raise InvalidInput(LastBatchOfLoader(), where=where)
    return last or (USE if getattr(given, "drop_last", True) is False else DROP)


def _require_usable(module: Module, batches: Batches, samples: int, where: str) -> None:
    """Raises InvalidInput where a last batch is to be used that programs of the module cannot leave samples out of."""
    left = samples % batches.samples
    if batches.last != USE or not left:
        return
    reason = ""
    if not StepLoss.of(module.entry).labels:
        reason = "the loss counts every sample (a cross entropy leaves out those whose label is -100)"
    elif any(op.name == ASSIGN and phase_of(op.facets) == FORWARD for op in module.entry.ops):
        reason = "batch normalisation takes the statistics of all samples of a microbatch"
    if reason:
        raise InvalidInput(LastBatchNotUsed(left, batches.samples, reason), where=where)


def data_inputs(module: Module) -> list[ValueInfo]:
    """The inputs whose arrays the source has."""
    seeds, loss = _seeds(module), StepLoss.of(module.entry)
    args = [value for value in module.entry.args if value.name not in seeds and value.name[1:] != loss.counted]
    return [ValueInfo.of(value.name[1:], value.type) for value in args]


def _seeds(module: Module) -> list[str]:
    """Arguments of the entry function that only draws of random numbers read."""
    masks = {name for op in module.entry.ops if op.name in DRAWS for name in op.operands}
    others = {name for op in module.entry.ops if op.name not in DRAWS for name in reads(op)}
    return [value.name for value in module.entry.args if value.name in masks - others]


@dataclass
class _Added:
    """Data with more inputs."""

    data: Data

    @property
    def identity(self) -> bytes | None:
        return self.data.identity

    def array(self, number: int, name: str) -> Any:
        return self.data.array(number, name)

    def verify(self, rank: int, ranks: int) -> None:
        self.data.verify(rank, ranks)


@dataclass
class _Seeded(_Added):
    """Adds a seed of 63 bits for its dropouts to each microbatch of ``data``, as each of ``names``."""

    names: tuple[str, ...]
    seed: int

    def microbatch(self, number: int) -> Mapping[str, Any]:
        (drawn,) = np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)
        return {**self.data.microbatch(number), **{name: np.asarray(drawn >> 1, np.int64) for name in self.names}}


@dataclass
class _Counted(_Added):
    """Adds ``loss.counted`` to each microbatch of ``data``: the mean number of labels that count in a microbatch of its step.
    ``means``: that of the last step that was counted, by its number."""

    loss: StepLoss
    dtype: Any
    microbatches: int
    means: dict[int, Any] = field(default_factory=dict)

    def microbatch(self, number: int) -> Mapping[str, Any]:
        arrays, step = self.data.microbatch(number), number // self.microbatches
        if step not in self.means:
            every = range(step * self.microbatches, (step + 1) * self.microbatches)
            total = sum(int(np.count_nonzero(self.array(one, self.loss.labels) != IGNORED)) for one in every)
            self.means.clear()
            self.means[step] = np.asarray(max(total, 1) / self.microbatches, self.dtype)
        return {**arrays, self.loss.counted: self.means[step]}


@dataclass(frozen=True)
class _Synthetic:
    ports: list[ValueInfo]
    demands: Mapping[str, Demand]
    seed: int
    drawn: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    identity: bytes = SYNTHETIC.encode()

    def microbatch(self, number: int) -> Mapping[str, Any]:
        place = number % POOL
        if place not in self.drawn:
            self.drawn[place] = random_microbatch(self.ports, self.demands, self.seed * POOL + place)
        return self.drawn[place]

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]

    def verify(self, rank: int, ranks: int) -> None:
        """They are made to fit."""


def _called(source: str, seed: int, flag: str) -> Any:
    """What a person's function returns. Raises UsageError where there is no such function."""
    where = f"{flag} {source}"
    name, _, attribute = source.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(ModuleNotFound(str(error)), where=where) from None
        raise raised(error, source, "when it was imported") from error  # what the module imports is missing
    except FAULTS as error:
        if not name.strip(".") or name.startswith("."):
            raise UsageError(NotAModuleName(name), where=where) from None
        raise raised(error, source, "when it was imported") from error
    function = getattr(module, attribute, None)
    if not callable(function) and not (is_dataset(function) or is_loader(function)):
        raise UsageError(NoSuchFunction(name, attribute), where=where)
    if not callable(function):
        return function
    try:
        with few_cores():
            given = function(seed)
    except FAULTS as error:
        raise raised(error, source) from error
    if not (isinstance(given, Iterable) or is_dataset(given)) or isinstance(given, Mapping):
        raise InvalidInput(ReturnedNoMicrobatches(a_value(given)), where=source)
    return given
