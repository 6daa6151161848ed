"""All samples of a source once, for an evaluation, and an object of a Python program as files for many such passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.data.faults import FunctionEnded
from dnnc.data.npz import write_npz
from dnnc.data.samples.arrays import Inputs, Part
from dnnc.data.samples.datasets import is_dataset
from dnnc.data.samples.order import USE, Order
from dnnc.data.samples.shards import Samples
from dnnc.data.samples.source import POOL, Data, inputs_of, opened_source, with_numbers
from dnnc.data.samples.stream import FAULTS, Stream, named_arrays, raised
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module

SHARD = 1 << 26
"""Bytes of samples after which a file of ``write_samples`` ends."""


@dataclass
class Pass:
    """The microbatches of one pass, by number. Behind the samples of the last one stand some that only fill it up, whose labels
    do not count. ``order``: of samples that are known by number; ``streams``: batches come one after another, so that only the
    end tells how many there are; ``held``: those that were read of a stream and are used next."""

    data: Data
    order: Order | None
    streams: bool
    held: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, module: Module, seed: int, parts: Mapping[str, Part | None] | None = None) -> Pass:
        """``parts``: the rows that the reader uses of each input, as ``Inputs`` has them. Raises UsageError, InvalidInput."""
        data = _opened(source, module, seed, parts)
        added = with_numbers(data, module, seed, 1, parts)
        return cls(added, getattr(data, "order", None), isinstance(data, Stream))

    def coming(self, first: int, most: int) -> range:
        """The numbers of the next microbatches from ``first`` on, at most ``most``; of a stream, they are read. Raises
        InvalidInput for a stream without any."""
        if not self.streams:
            count = POOL if self.order is None else self.order.batches.in_epoch(self.order.count)
            return range(first, min(count, first + most))
        self.held.clear()
        for number in range(first, first + most):
            try:
                self.held[number] = self.data.microbatch(number)
            except InvalidInput as error:
                if error.diagnostics[0].code != FunctionEnded.code or not number:
                    raise
                break
        return range(first, first + len(self.held))

    def microbatch(self, number: int) -> Mapping[str, Any]:
        """Raises InvalidInput for samples that do not fit the model."""
        return self.held[number] if self.streams else self.data.microbatch(number)

    def counting(self, number: int) -> float:
        """The fraction of the samples of a microbatch that counts. In a stream all do, but those whose labels do not."""
        return 1.0 if self.order is None else self.order.samples(number)[1] / self.order.batches.units


def verify_pass(
    source: str, module: Module, seed: int, rank: int, ranks: int, parts: Mapping[str, Part | None] | None = None
) -> bytes | None:
    """Opens a source for passes: reads a rank's share of all samples in files, where that does not take long, and the first
    microbatch of another source. Returns its identity, as ``Data`` has it. Raises UsageError, InvalidInput."""
    data = _opened(source, module, seed, parts)
    data.verify(rank, ranks)
    if not isinstance(data, Samples):
        data.microbatch(0)
    return data.identity


def _opened(source: str, module: Module, seed: int, parts: Mapping[str, Part | None] | None) -> Data:
    return opened_source(source, module, seed, 1, USE, parts, once=True, flag="--eval-data")


def write_samples(value: Any, module: Module, folder: Path) -> None:
    """Writes the samples of a dataset, or of an iterable of batches, as files of ``SHARD`` bytes to a folder, which is a source
    of samples; no more of them are in memory at a time. Raises InvalidInput."""
    inputs, dataset = inputs_of(module, None), is_dataset(value)
    held, size, number = list[dict[str, Any]](), 0, 0
    for item in _items(value, inputs, dataset=dataset):
        held.append(item)
        size += sum(array.nbytes for array in item.values())
        if size >= SHARD and _whole(held, inputs, dataset=dataset):
            write_npz(folder / f"{number:09}.npz", _joined(held, inputs, dataset=dataset))
            held, size, number = [], 0, number + 1
    if held or not number:
        write_npz(folder / f"{number:09}.npz", _joined(held, inputs, dataset=dataset))


def _items(value: Any, inputs: Inputs, *, dataset: bool) -> Iterator[dict[str, Any]]:
    items = (value[number] for number in range(len(value))) if dataset else iter(value)
    for number in itertools.count():
        try:
            item = next(items)
        except StopIteration:
            return
        except FAULTS as error:
            raise raised(error, "eval_data", f"when sample {number} was read" if dataset else "") from error
        yield named_arrays(item, inputs, "eval_data")


def _whole(items: list[dict[str, Any]], inputs: Inputs, *, dataset: bool) -> bool:
    """Whether a file may end behind these: it holds whole samples, of which an input may have several rows."""
    rows = {port: sum(1 if dataset else len(item[port.name]) for item in items) for port in inputs.ports if port.shape}
    return all(count % inputs.each(port) == 0 for port, count in rows.items())


def _joined(items: list[dict[str, Any]], inputs: Inputs, *, dataset: bool) -> dict[str, Any]:
    """The arrays of a file. Raises InvalidInput for those that do not fit together."""
    join = np.stack if dataset else np.concatenate
    try:
        return {
            port.name: join([item[port.name] for item in items]) if port.shape else items[0][port.name] for port in inputs.ports
        }
    except FAULTS as error:
        raise raised(error, "eval_data") from error
