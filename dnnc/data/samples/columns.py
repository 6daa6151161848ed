"""Columns: an array of one input in one file of samples, mapped into memory, so that only the rows that are drawn are read.

An array of a compressed ``.npz`` cannot be mapped: it is unpacked whole when the first of its rows is drawn.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dnnc.data.faults import FileOfSamplesChanged, SamplesDamaged
from dnnc.data.npz import Header, header_of_npy, read_arrays, stored_arrays
from ir.core.diagnostics import InvalidInput
from ir.system.digests import Stamp
from ir.system.files import open_input

_PROBES = 64
"""Rows by which an ``.npy`` is told from another of its shape. It holds no checksum, and to read all of it takes long."""
_CHUNK = 1 << 22
"""Bytes that are verified at a time."""


@dataclass
class Column:
    """``crc``: of the bytes of its entry of an ``.npz``, None of an ``.npy``; ``head``: the bytes of that entry before the
    first element; ``load``: gives the array; ``stamp``: of the file when it was opened."""

    path: Path
    name: str
    header: Header
    load: Callable[[], Any]
    stamp: Stamp
    crc: int | None = None
    head: bytes = b""
    loaded: Any = field(default=None, repr=False)

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.header.shape, dtype=object)) * self.header.dtype.itemsize

    def array(self) -> Any:
        """Raises InvalidInput where the file is not what it was: a map of a file that was cut off ends the process."""
        try:
            status = os.stat(self.path)
        except OSError:
            raise InvalidInput(FileOfSamplesChanged(), where=self.where) from None
        if (status.st_size, status.st_mtime_ns) != (self.stamp.size, self.stamp.modified):
            raise InvalidInput(FileOfSamplesChanged(), where=self.where)
        if self.loaded is None:
            self.loaded = self.load()
        return self.loaded

    @property
    def summed(self) -> bool:
        """Whether the rows in their order are the bytes of the checksum, which nobody has verified."""
        return bool(self.head) and self.header.order == "C"

    def identity(self) -> bytes:
        """What tells it from another array: its checksum, or a few of its rows."""
        parts = [self.name, str(self.header.dtype), [*self.header.shape], self.crc]
        digest = hashlib.sha256(json.dumps(parts).encode())
        if self.crc is None:
            array = self.array()
            rows = np.unique(np.linspace(0, len(array) - 1, _PROBES).astype(np.int64)) if array.ndim and len(array) else ...
            digest.update(np.ascontiguousarray(array[rows]).tobytes())
        return digest.digest()

    def verify(self, check: Callable[[Any, int], None]) -> None:
        """Calls ``check`` with pieces of the array and the number of the first row of each. Raises InvalidInput where the bytes
        do not have their checksum."""
        array, crc = self.array(), zlib.crc32(self.head)
        for first, piece in self._pieces(array):
            if self.summed:
                crc = zlib.crc32(piece.tobytes(), crc)
            check(piece, first)
        if self.summed and crc != self.crc:
            raise InvalidInput(SamplesDamaged(self.name), where=self.where)

    def _pieces(self, array: Any) -> Iterator[tuple[int, Any]]:
        if not array.ndim:
            yield 0, array
            return
        each = max(1, _CHUNK * len(array) // max(1, self.nbytes))
        for first in range(0, len(array), each):
            yield first, np.ascontiguousarray(array[first : first + each])


def columns_of_npz(path: Path, wanted: Callable[[Mapping[str, Header]], None]) -> dict[str, Column]:
    """The arrays of an ``.npz``, by name. ``wanted`` is called with their headers, and raises an error to refuse them. Raises
    InvalidInput for what is no such file."""
    with open_input(path, "an .npz of named arrays") as file:
        stored = stored_arrays(file, str(path), wanted)
        stamp = Stamp.of(file.fileno())
        compressed = any(one.offset is None for one in stored.values())
        memory = None if compressed else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    columns = {}
    for name, one in stored.items():
        if memory is not None and one.offset is not None:
            array = np.ndarray(one.header.shape, one.header.dtype, memory, one.offset, order=one.header.order)
            head = memory[one.offset - one.header.start : one.offset]
            columns[name] = Column(path, name, one.header, partial(_itself, array), stamp, one.crc, head)
        else:
            columns[name] = Column(path, name, one.header, partial(_unpacked, path, name), stamp, one.crc)
    return columns


def column_of_npy(path: Path, name: str) -> Column:
    """The array of an ``.npy`` of the input ``name``. Raises InvalidInput for what is no such file."""
    with open_input(path, "an .npy") as file:
        header = header_of_npy(file, str(path))
        stamp = Stamp.of(file.fileno())
        array = _mapped(file, header)
    return Column(path, name, header, lambda: array, stamp)


def _itself(array: Any) -> Any:
    return array


def _mapped(file: BinaryIO, header: Header) -> Any:
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.ndarray(header.shape, header.dtype, memory, header.start, order=header.order)


def _unpacked(path: Path, name: str) -> Any:
    with open_input(path, "an .npz of named arrays") as file:
        return read_arrays(file, str(path), only=name)[name]
