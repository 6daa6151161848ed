"""Samples in files: an ``.npz``, an ``.npy`` of the one input of a model, or a folder of shards, whose samples count as one
list.

A shard is an ``.npz``, or an ``.npy`` for each input, called as the input, with the name of the shard before or behind it:
``x.npy``; ``0001/x.npy``; ``x-0001.npy``, ``0001.x.npy``. The first dimension of an array counts samples; an input without
dimensions is the same in every microbatch. Each reader maps the files and reads the rows that it uses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.build.build import ValueInfo
from dnnc.data.entries import same_width
from dnnc.data.faults import (
    NoFilesInFolder,
    SampleArrayMissing,
    SamplesOfOneInput,
    SamplesOfWrongElements,
    SamplesOfWrongShape,
    TooFewSamples,
    UnequalSamples,
)
from dnnc.data.npz import Header
from dnnc.data.samples.arrays import Inputs, empty, fitting, rows_of
from dnnc.data.samples.columns import Column, column_of_npy, columns_of_npz
from dnnc.data.samples.order import Batches, Order, shuffled
from dnnc.onnx.elements import user_dtype
from ir.core.diagnostics import InvalidInput

VERIFIED = 1 << 30
"""Bytes of all samples up to which they are verified before the first step, each array by one of the ranks. More take long: of
these each rank verifies the rows that it reads, when it reads them."""


@dataclass
class Samples:
    """``shards``: the arrays of each, by input."""

    inputs: Inputs
    batches: Batches
    seed: int
    shards: list[dict[str, Column]]
    where: str
    order: Order = field(init=False)

    @classmethod
    def open(cls, path: Path, inputs: Inputs, batches: Batches, seed: int) -> Samples:
        """Raises InvalidInput for files that do not fit the model. No sample is read."""
        return cls(inputs, batches, seed, _shards(path, inputs), str(path))

    def __post_init__(self) -> None:
        count = self.count
        self.order = Order(self.batches, lambda epoch: shuffled(self.seed, epoch, count), count)
        if self.dimensioned and not self.batches.in_epoch(count):
            units, microbatches = self.batches.units, self.batches.microbatches
            raise InvalidInput(TooFewSamples(count, self.batches.samples, units, microbatches), where=self.where)

    @cached_property
    def dimensioned(self) -> list[ValueInfo]:
        return [port for port in self.inputs.ports if port.shape]

    @cached_property
    def starts(self) -> Any:
        """The first sample of each shard, and the number of all."""
        return np.cumsum([0, *map(self._length, self.shards)])

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    def _length(self, shard: Mapping[str, Column]) -> int:
        return min((shard[port.name].header.shape[0] // self.inputs.each(port) for port in self.dimensioned), default=0)

    @cached_property
    def identity(self) -> bytes:
        """A digest of what tells these samples from others, the same on each host."""
        digest = hashlib.sha256()
        for shard in self.shards:
            for name, column in sorted(shard.items()):
                digest.update(name.encode() + column.identity())
        return digest.digest()

    def microbatch(self, number: int) -> Mapping[str, Any]:
        arrays = empty(self.inputs.wanted)
        for port in self.inputs.wanted:
            self._fill(arrays[port.name], port, number, *self.inputs.part(port) if port.shape else (0, 0))
        return arrays

    def array(self, number: int, name: str) -> Any:
        """All rows of an input, whatever the reader uses."""
        port = self.inputs.port(name)
        (array,) = empty([port]).values()
        self._fill(array, port, number, 0, rows_of(port) if port.shape else 0)
        return array

    def _fill(self, array: Any, port: ValueInfo, number: int, first: int, count: int) -> None:
        """Writes the rows of a microbatch from ``first`` on to their places in the array."""
        if not port.shape:
            column = self.shards[0][port.name]
            array[...] = fitting(port, column.array())
            self.inputs.check(port.name, array, column.where, str, f"array '{port.name}'")
            return
        each = self.inputs.each(port)
        drawn, counting = self.order.samples(number)
        rows = (drawn[:, None] * each + np.arange(each)).ravel()[first : first + count]
        places = np.searchsorted(self.starts * each, rows, "right") - 1
        target = array[first : first + count]
        for place in np.unique(places):
            at = np.flatnonzero(places == place)
            column, numbers = self.shards[place][port.name], rows[at] - int(self.starts[place]) * each
            target[at] = self._checked(port, column, fitting(port, column.array()[numbers]), numbers)
        if port.name == self.inputs.labels:
            target[max(0, counting * each - first) :] = self.inputs.ignored

    def _checked(self, port: ValueInfo, column: Column, array: Any, numbers: Any) -> Any:
        each = self.inputs.each(port)
        self.inputs.check(
            port.name, array, column.where, lambda at: f" in sample {numbers[at] // each}", f"array '{port.name}'"
        )
        return array

    def verify(self, rank: int, ranks: int) -> None:
        """Reads this rank's share of the arrays, each whole, where all are not too many bytes. Raises InvalidInput."""
        columns = [(port, shard[port.name]) for shard in self.shards for port in self.inputs.ports]
        if sum(column.nbytes for _, column in columns) <= VERIFIED:
            for port, column in columns[rank::ranks]:
                column.verify(partial(self._piece, port, column))

    def _piece(self, port: ValueInfo, column: Column, piece: Any, first: int) -> None:
        self._checked(port, column, fitting(port, piece), range(first, first + len(piece)) if piece.ndim else ())


def _shards(path: Path, inputs: Inputs) -> list[dict[str, Column]]:
    """The arrays of each shard, in the order of the shards' names."""
    if path.is_dir():
        found: dict[str, list[tuple[Path, str]]] = {}
        for file, shard, name in sample_paths(path, [port.name for port in inputs.ports]):
            found.setdefault(shard, []).append((file, name))
        if not found:
            first = inputs.ports[0].name if inputs.ports else "x"
            raise InvalidInput(NoFilesInFolder(f"{first}.npy, {first}-0001.npy, 0001/{first}.npy"), where=str(path))
        return [_shard(path / shard, files, inputs) for shard, files in sorted(found.items())]
    if path.suffix == ".npy":
        if len(inputs.ports) != 1:
            raise InvalidInput(SamplesOfOneInput(inputs.named()), where=str(path))
        return [_shard(path, [(path, inputs.ports[0].name)], inputs)]
    return [_shard(path, [(path, "")], inputs)]


def sample_paths(folder: Path, names: list[str]) -> list[tuple[Path, str, str]]:
    """The files of samples in a folder, each with the name of its shard and, of an ``.npy``, of its input."""
    found = [(path, path.name, "") for path in sorted(folder.glob("*.npz"))]
    for path in sorted(folder.rglob("*.npy")) if names else ():
        within = path.relative_to(folder).as_posix().removesuffix(".npy")
        for name in sorted(names, key=lambda name: (-len(name), name)):
            before = re.fullmatch(rf"(?:(.+)[/._-])?{re.escape(name)}(?:[._-](.+))?", within)
            if before is not None:
                found.append((path, ".".join(filter(None, before.groups())), name))
                break
    return found


def _shard(where: Path, files: list[tuple[Path, str]], inputs: Inputs) -> dict[str, Column]:
    """The arrays of a shard: of one ``.npz``, or an ``.npy`` each. Raises InvalidInput for those that do not fit the model."""
    wanted = {port.name for port in inputs.ports}
    columns: dict[str, Column] = {}
    for path, name in files:
        if name:
            columns[name] = column_of_npy(path, name)
        else:
            found = columns_of_npz(path, partial(_check_headers, str(path), inputs))
            columns |= {key: column for key, column in found.items() if key in wanted}
    if any(name for _, name in files):
        _check_headers(str(where), inputs, {name: column.header for name, column in columns.items()}, columns)
    return columns


def _check_headers(
    where: str, inputs: Inputs, headers: Mapping[str, Header], columns: Mapping[str, Column] | None = None
) -> None:
    """Raises InvalidInput for arrays that do not fit the model. ``columns``: the files of those that have one of their own."""
    files = {name: column.where for name, column in (columns or {}).items()}
    for port in inputs.ports:
        if port.name not in headers:
            raise InvalidInput(SampleArrayMissing(port.name, tuple(port.name for port in inputs.ports)), where=where)
        header, shape, file = headers[port.name], tuple(port.shape or ()), files.get(port.name, where)
        if header.shape[1:] != shape[1:] or header.ndim != len(shape) or (shape and not header.shape[0]):
            wanted = f"[{', '.join(['samples', *map(str, shape[1:])])}]" if shape else "no dimensions"
            raise InvalidInput(SamplesOfWrongShape(port.name, str(list(header.shape)), wanted), where=file)
        if header.dtype != user_dtype(port.dtype) and not same_width(port.dtype, header.dtype):
            raise InvalidInput(SamplesOfWrongElements(port.name, str(header.dtype), port.dtype), where=file)
    lengths = {port.name: Fraction(headers[port.name].shape[0], rows_of(port)) for port in inputs.ports if port.shape}
    if len(set(lengths.values())) > 1:
        counts = tuple(f"{name} {headers[name].shape[0]}" for name in lengths)
        raise InvalidInput(UnequalSamples(counts), where=where)
