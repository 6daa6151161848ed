"""Samples that are asked for by number, as PyTorch's map-style datasets have them, alone or behind a ``DataLoader``.

Each reader asks for the samples of the rows that it uses. A dataset is shuffled by the seed in each epoch; a loader's sampler
says the order, with the random numbers of Python, numpy and torch seeded for each epoch. They are seeded for each sample too,
by its number and the epoch, so augmentations are the same on each rank, and after a stop. PyTorch is never imported here: who
gives such an object has."""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dnnc.build.build import ValueInfo
from dnnc.data.faults import NoSamples, OtherBatch, TooFewSamples, YieldedWrongArray
from dnnc.data.samples.arrays import Inputs, empty
from dnnc.data.samples.order import Batches, Order, shuffled
from dnnc.data.samples.stream import FAULTS, named_arrays, raised
from ir.core.diagnostics import InvalidInput

_END = object()
_PROBES = 4
"""Samples by which a dataset is told from another."""


def is_dataset(value: Any) -> bool:
    """Whether samples are asked for by number; a list is one of microbatches."""
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(value, torch.IterableDataset):
        return False  # it inherits __getitem__, which raises
    by_number = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return by_number and not isinstance(value, list | tuple | str | bytes | Mapping) and not hasattr(value, "dtype")


def is_loader(value: Any) -> bool:
    """Whether it deals samples of a map-style dataset in batches, as ``torch.utils.data.DataLoader`` does."""
    return getattr(value, "batch_sampler", None) is not None and is_dataset(getattr(value, "dataset", None))


def seed_all(*numbers: int) -> None:
    """Seeds the random numbers of Python, numpy and torch."""
    entropy = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    random.seed(int(entropy[0]))
    np.random.seed(int(entropy[1]) & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(int(entropy[0]) >> 1)


def _states() -> tuple[Any, ...]:
    """Of the random numbers of Python, numpy and torch."""
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None


def _restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seeds the random numbers of Python, numpy and torch, and puts back what they were."""
    before = _states()
    try:
        seed_all(*numbers)
        yield
    finally:
        _restore(before)


def drawn_apart(value: Iterable[Any], *numbers: int) -> Iterator[Any]:
    """The items of an iterable, which draws from random numbers that are seeded once. Between two items they are put back to
    what they were."""
    with seeded(*numbers):
        items = iter(value)
        own = _states()
    while True:
        before = _states()
        try:
            _restore(own)
            item = next(items, _END)
            own = _states()
        finally:
            _restore(before)
        if item is _END:
            return
        yield item


@contextmanager
def few_cores() -> Iterator[None]:
    """Silences PyTorch where a loader has more workers than a rank has cores: they are bound to those of its device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


@dataclass
class Seeded:
    """A dataset whose samples are drawn with seeds of their own: ``(number, epoch)`` asks for one."""

    dataset: Any
    seed: int

    def __getitem__(self, key: tuple[int, int]) -> Any:
        number, epoch = key
        if type(self.dataset).__name__ == "TensorDataset":  # draws nothing, and is read faster than it is seeded
            return self.dataset[number]
        with seeded(self.seed, epoch, number):
            return self.dataset[number]

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass
class Dataset:
    """``collate``: makes arrays of rows of a list of samples; None: they are stacked. ``workers``: reads microbatches ahead in
    other processes; ``running``: such a reading, whose next microbatch is ``upcoming``. ``recent``: whole microbatches of the
    steps that were read last."""

    inputs: Inputs
    batches: Batches
    source: str
    dataset: Any
    order: Order
    seed: int
    collate: Callable[[Sequence[Any]], Any] | None = None
    workers: Callable[[Iterator[list[tuple[int, int]]]], Iterator[Any]] | None = None
    recent: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    upcoming: int = -1
    running: Iterator[Any] | None = None

    @classmethod
    def of(cls, given: Any, inputs: Inputs, batches: Batches, source: str, seed: int) -> Dataset:
        """Of a dataset or a loader. Raises InvalidInput for one without samples, or of other batches."""
        if not is_loader(given):
            count = len(given)
            order = Order(batches, lambda epoch: shuffled(seed, epoch, count), count)
            return cls(inputs, batches, source, given, _filling(order, source), seed)
        size = getattr(given, "batch_size", None)
        if size not in (None, batches.units, batches.samples) and not batches.any_size:
            raise InvalidInput(OtherBatch(size, batches.samples, batches.microbatches, batches.units), where=source)
        first = _dealt(given, seed, 0, source)
        order = Order(batches, lambda epoch: first if not epoch else _dealt(given, seed, epoch, source), len(first))
        workers = _workers(given, seed) if getattr(given, "num_workers", 0) else None
        return cls(inputs, batches, source, given.dataset, _filling(order, source), seed, given.collate_fn, workers)

    @property
    def identity(self) -> bytes:
        """A digest of a few samples, and of the order of the first epoch."""
        digest = hashlib.sha256(str(len(self.dataset)).encode())
        samples, _ = self.order.samples(0)
        digest.update(np.asarray(samples, np.int64).tobytes())
        for number in sorted({int(one) for one in np.linspace(0, len(self.dataset) - 1, _PROBES)}):
            for name, array in sorted(self._arrays([(number, 0)]).items()):
                digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return digest.digest()

    def verify(self, rank: int, ranks: int) -> None:
        """Each sample is verified when it is read."""

    def microbatch(self, number: int) -> Mapping[str, Any]:
        wanted = self.inputs.wanted
        first, last = self._used(wanted)
        if (first, last) == (0, self.batches.units):
            whole = self._whole(number)
            return {port.name: whole[port.name] for port in wanted}
        drawn, counting = self._keys(number)
        read = self._read(drawn[first:last], number, self._arrays)
        arrays = empty(wanted)
        for port in wanted:
            each = self.inputs.each(port) if port.shape else 0
            arrays[port.name][first * each : last * each if port.shape else None] = read[port.name]
        return self._counted(arrays, counting)

    def array(self, number: int, name: str) -> Any:
        return self._whole(number)[name]

    def _whole(self, number: int) -> Mapping[str, Any]:
        """All rows of a microbatch, kept for the step."""
        if number not in self.recent:
            for old in [one for one in self.recent if abs(one - number) >= 2 * self.batches.microbatches]:
                del self.recent[old]
            drawn, counting = self._keys(number)
            read = self._ahead(number) if self.workers is not None else self._arrays(drawn)
            self.recent[number] = self._counted(self._read(drawn, number, lambda keys: read), counting)
        return self.recent[number]

    def _ahead(self, number: int) -> Mapping[str, Any]:
        """A microbatch from the workers, which read those behind it meanwhile."""
        assert self.workers is not None
        if self.running is None or number != self.upcoming:
            self.upcoming = number
            self.running = self.workers(self._keys(one)[0] for one in _from(number))
        self.upcoming += 1
        try:
            return self._as_rows(next(self.running), self.batches.units)
        except FAULTS as error:
            raise raised(error, self.source) from error

    def _keys(self, number: int) -> tuple[list[tuple[int, int]], int]:
        """The samples of a microbatch, each with its epoch, and how many count."""
        drawn, counting = self.order.samples(number)
        return [(int(one), self.order.epoch) for one in drawn], counting

    def _used(self, wanted: Sequence[ValueInfo]) -> tuple[int, int]:
        """First and last sample of a microbatch of which any row is used."""
        ends = []
        for port in wanted:
            if port.shape:
                (first, count), each = self.inputs.part(port), self.inputs.each(port)
                ends.append((first // each, -(-(first + count) // each)))
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else (0, self.batches.units)

    def _read(self, keys: list[tuple[int, int]], number: int, read: Callable[[Any], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Arrays of these samples, verified."""
        arrays = read(keys)
        for port in self.inputs.ports:
            each = self.inputs.each(port) if port.shape else 1
            self.inputs.check(port.name, arrays[port.name], self.source, partial(_sample, keys, each))
        return arrays

    def _arrays(self, keys: Sequence[tuple[int, int]]) -> Mapping[str, Any]:
        """The arrays of these samples, one behind the other, each of which is asked for once."""
        alone = list(dict.fromkeys(keys))
        if len(alone) == len(keys):
            return self._asked(alone)
        arrays, places = self._asked(alone), np.array([alone.index(key) for key in keys])
        for port in self.inputs.ports:
            if port.shape:
                each = self.inputs.each(port)
                arrays[port.name] = arrays[port.name][(places[:, None] * each + np.arange(each)).ravel()]
        return arrays

    def _asked(self, keys: Sequence[tuple[int, int]]) -> dict[str, Any]:
        try:
            if self.collate is not None:
                samples = [self._sample(key) for key in keys]
                return self._as_rows(self.collate(samples), len(keys))
            each = [self._fitting(named_arrays(self._sample(key), self.inputs, self.source), key) for key in keys]
            stacked = {
                port.name: np.stack([one[port.name] for one in each]) if port.shape else each[0][port.name]
                for port in self.inputs.ports
            }
            return self._as_rows(stacked, len(keys))
        except FAULTS as error:
            raise raised(error, self.source) from error

    def _sample(self, key: tuple[int, int]) -> Any:
        try:
            return Seeded(self.dataset, self.seed)[key]
        except FAULTS as error:
            raise raised(error, self.source, f"when sample {key[0]} was read") from error

    def _fitting(self, sample: dict[str, Any], key: tuple[int, int]) -> dict[str, Any]:
        """The arrays of a sample. Raises InvalidInput for one of another shape than rows of its input."""
        for port in self.inputs.ports:
            rows, shape = tuple(port.shape or ())[1:], sample[port.name].shape
            if port.shape and self.inputs.each(port) == 1 and shape != rows:
                found = f"{sample[port.name].dtype}{list(shape)} in sample {key[0]}"
                raise InvalidInput(YieldedWrongArray(port.name, found, f"{port.dtype}{list(rows)}"), where=self.source)
        return sample

    def _as_rows(self, item: Any, count: int) -> dict[str, Any]:
        """The arrays of so many samples. Raises InvalidInput for what does not fit the model."""
        arrays = named_arrays(item, self.inputs, self.source)
        for port in self.inputs.ports:
            array = arrays[port.name]
            shape = tuple(port.shape or ())
            if shape:
                each = self.inputs.each(port)
                shape = (count * each, *shape[1:])
                if each > 1 and array.shape == (count, each, *shape[1:]):
                    array = arrays[port.name] = array.reshape(shape)
            if array.shape != shape or str(array.dtype) != port.dtype:
                fault = YieldedWrongArray(port.name, f"{array.dtype}{list(array.shape)}", f"{port.dtype}{list(shape)}")
                raise InvalidInput(fault, where=self.source)
        return arrays

    def _counted(self, arrays: Mapping[str, Any], counting: int) -> Mapping[str, Any]:
        """The arrays, where labels of samples that do not count are not counted."""
        labels = self.inputs.labels
        if labels in arrays and counting < self.batches.units:
            arrays[labels][counting * self.inputs.each(self.inputs.port(labels)) :] = self.inputs.ignored
        return arrays


def _sample(keys: Sequence[tuple[int, int]], each: int, row: int) -> str:
    return f" in sample {keys[row // each][0]}"


def _from(number: int) -> Iterator[int]:
    while True:
        yield number
        number += 1


def _filling(order: Order, where: str) -> Order:
    """Raises InvalidInput where the samples do not fill a batch."""
    batches = order.batches
    if not order.count:
        raise InvalidInput(NoSamples(), where=where)
    if not batches.in_epoch(order.count):
        fault = TooFewSamples(order.count, batches.samples, batches.units, batches.microbatches)
        raise InvalidInput(fault, where=where)
    return order


def _dealt(loader: Any, seed: int, epoch: int, where: str) -> Any:
    """The samples of an epoch in the order in which a loader deals them."""
    sampler = getattr(loader, "sampler", None)
    generators = {id(one): one for one in (getattr(loader, "generator", None), getattr(sampler, "generator", None)) if one}
    states = [(one, one.get_state()) for one in generators.values()]
    try:
        with seeded(seed, epoch):
            for one in generators.values():
                one.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]) >> 1)
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            return np.array([int(number) for batch in loader.batch_sampler for number in batch], np.int64)
    except FAULTS as error:
        raise raised(error, where) from error
    finally:
        for one, state in states:
            one.set_state(state)


def _workers(loader: Any, seed: int) -> Callable[[Iterator[list[tuple[int, int]]]], Iterator[Any]]:
    """Reads batches of samples in as many processes as a loader has, in order."""

    def read(keys: Iterator[list[tuple[int, int]]]) -> Iterator[Any]:
        with few_cores():
            ahead = sys.modules["torch.utils.data"].DataLoader(
                Seeded(loader.dataset, seed),
                batch_sampler=keys,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                prefetch_factor=loader.prefetch_factor,
            )
            return iter(ahead)

    return read
