"""Files ``.npz`` of named arrays: written as a whole, and read without trust in who wrote them.

The entry of array N is called ``N.npy``. Where there is also an array called ``N.npy``, the entry of N is called N and has a
comment that says so: ``numpy.load`` then finds both by their names.

Invariants of reading: before any data is unpacked, the header of every entry was read and compared with the entry's size, and
``wanted`` accepted the names, element types and shapes; the unpacked data has the size that its header declares; a small file
cannot unpack to gigabytes (``LIMITS.unpacked_ratio``); no pickle is read.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from dnnc.data.faults import (
    SAVE,
    ArrayEncrypted,
    ArrayNameRefused,
    ArraysTooLarge,
    ArrayTwice,
    BareArray,
    EntryNotAnArray,
    NotNpy,
    NotNpz,
    PythonObjects,
    WrongEntrySize,
)
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.system.files import open_input
from ir.system.scratch import whole_file

Arrays: TypeAlias = dict[str, Any]
"""Arrays by name."""
_SUFFIX = ".npy"
_ALONE = b"dnnc: no suffix"
"""The comment of an entry that has the name of its array, without a suffix."""
_HEAD = 1 << 14
"""Bytes in which the header of an array ends; numpy reads none above ten thousand."""
_LONGEST = (1 << 16) - 1
"""Bytes of the name of an archive's entry."""
_DAMAGED = (
    *(OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, RecursionError, OverflowError),
    *(struct.error, zipfile.BadZipFile, zlib.error, SyntaxError),
)
"""What ``zipfile`` and numpy raise for damaged bytes."""
_FLOAT8 = (b"'<f1'", b"'|V1'", 1)
"""numpy writes float8_e5m2 of ml_dtypes under a name that it does not read."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an entry declares of its array: ``order`` of its elements in memory; ``start``: where its data begins."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"] = "C"
    start: int = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)


def read_npz(path: Path, wanted: Callable[[Mapping[str, Header]], None] = lambda headers: None) -> Arrays:
    """Arrays by name. ``wanted`` is called with all headers before any array is read, and raises an error to refuse them.

    Raises InvalidInput for a file that is missing, is no ``.npz``, is damaged, holds pickled objects or unpacks to far more
    than it is."""
    with open_input(path, "an .npz of named arrays", hint=SAVE) as file:
        if file.read(6) == b"\x93NUMPY" and _parses(file):
            raise InvalidInput(BareArray(), where=str(path))
        return read_arrays(file, str(path), wanted)


def read_arrays(
    file: BinaryIO, where: str, wanted: Callable[[Mapping[str, Header]], None] = lambda headers: None, only: str = ""
) -> Arrays:
    """As ``read_npz``, of an open file that messages call ``where``. ``only``: the one array to read, empty for all."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive, where)
            headers = {name: _header(archive, entry, where) for name, entry in entries.items()}
            wanted(headers)
            _check_size(headers, entries, file, where)
            return {name: _array(archive, entry, headers[name]) for name, entry in entries.items() if only in ("", name)}
    except _DAMAGED as error:
        raise InvalidInput(NotNpz(), where=where) from error


@dataclass(frozen=True, slots=True)
class Stored:
    """An array of an archive. ``offset``: of its first element in the file, None where it is compressed; ``crc``: the CRC-32 of
    its ``size`` bytes, its header among them."""

    header: Header
    offset: int | None
    crc: int
    size: int


def stored_arrays(file: BinaryIO, where: str, wanted: Callable[[Mapping[str, Header]], None]) -> dict[str, Stored]:
    """Where the arrays of an archive are, by name; no data is read. ``wanted`` and errors: as of ``read_npz``."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive, where)
            headers = {name: _header(archive, entry, where) for name, entry in entries.items()}
            wanted(headers)
            _check_size(headers, entries, file, where)
            return {name: _stored(file, entry, headers[name]) for name, entry in entries.items()}
    except _DAMAGED as error:
        raise InvalidInput(NotNpz(), where=where) from error


def _stored(file: BinaryIO, entry: zipfile.ZipInfo, header: Header) -> Stored:
    """Raises ValueError for an entry that is not where the archive says."""
    if entry.compress_type != zipfile.ZIP_STORED:
        return Stored(header, None, entry.CRC, entry.file_size)
    file.seek(entry.header_offset)
    name, extra = struct.unpack("<26xHH", file.read(30))  # of the local header, which may differ from the central one
    offset = entry.header_offset + 30 + name + extra
    if offset + entry.file_size > file.seek(0, io.SEEK_END):
        raise ValueError(offset)
    return Stored(header, offset + header.start, entry.CRC, entry.file_size)


def header_of_npy(file: BinaryIO, where: str) -> Header:
    """The header of an ``.npy``, whose size agrees with it. Raises InvalidInput."""
    try:
        header = _read_header(file.read(_HEAD))
    except _DAMAGED as error:
        raise InvalidInput(NotNpy(), where=where) from error
    if header.dtype.hasobject:
        raise InvalidInput(PythonObjects(), where=where)
    if header.start + math.prod(header.shape) * header.dtype.itemsize != file.seek(0, io.SEEK_END):
        raise InvalidInput(NotNpy(), where=where)
    return header


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes the arrays to ``path``: all of them, or nothing. Raises InvalidInput where the folder cannot be written, and as
    ``write_arrays`` does."""
    with whole_file(path) as file:
        write_arrays(file, arrays, str(path))


def write_arrays(file: BinaryIO, arrays: Mapping[str, Any], where: str) -> None:
    """Writes the arrays to a file that messages call ``where``; equal arrays give equal bytes. Raises InvalidInput for a name
    that no archive has space for."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            alone = name + _SUFFIX in arrays
            if "\0" in name or len(name.encode()) + len(_SUFFIX) > _LONGEST:
                raise InvalidInput(ArrayNameRefused(name[:80]), where=where)
            entry = zipfile.ZipInfo(name if alone else name + _SUFFIX)
            entry.comment = _ALONE if alone else b""
            with archive.open(entry, "w", force_zip64=True) as data:
                np.lib.format.write_array(data, np.asanyarray(array), allow_pickle=False)


def _parses(file: BinaryIO) -> bool:
    """Whether the file is one array, by its header."""
    file.seek(0)
    try:
        _read_header(file.read(_HEAD))
    except _DAMAGED:
        return False
    return True


def _entries(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    """The entries by the names of their arrays."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename if entry.comment == _ALONE else entry.filename.removesuffix(_SUFFIX)
        if name == entry.filename and entry.comment != _ALONE:
            raise InvalidInput(EntryNotAnArray(name), where=where)
        if name in entries:
            raise InvalidInput(ArrayTwice(name), where=where)
        if entry.flag_bits & 1:
            raise InvalidInput(ArrayEncrypted(name), where=where)
        entries[name] = entry
    return entries


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, where: str) -> Header:
    """The header of the entry. Raises InvalidInput where the size of the entry does not agree with it."""
    with archive.open(entry) as data:
        header = _read_header(data.read(_HEAD))
    if header.dtype.hasobject:
        raise InvalidInput(PythonObjects(), where=where)
    declared = header.start + math.prod(header.shape) * header.dtype.itemsize
    if declared != entry.file_size:
        name, shape = entry.filename.removesuffix(".npy"), " x ".join(map(str, header.shape)) or "of a scalar"
        fault = WrongEntrySize(name, shape[:200], str(header.dtype)[:80], declared, entry.file_size)
        raise InvalidInput(fault, where=where)
    return header


def _read_header(head: bytes) -> Header:
    """The header at the start of an entry. Raises ValueError and what ``_DAMAGED`` names."""
    data = io.BytesIO(head.replace(*_FLOAT8))
    version = np.lib.format.read_magic(data)
    if version not in ((1, 0), (2, 0)):  # 3.0 is of arrays of fields alone, which no model takes
        raise ValueError(version)
    first = version == (1, 0)
    try:
        shape, fortran, dtype = (np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0)(data)
    except Exception as error:  # whatever Python's own tokenizer and parser raise: numpy lets it through
        raise ValueError from error
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(shape)
    return Header(dtype, tuple(shape), "F" if fortran else "C", data.tell())


def _check_size(headers: Mapping[str, Header], entries: Mapping[str, zipfile.ZipInfo], file: BinaryIO, where: str) -> None:
    """Raises InvalidInput where all arrays are far larger than the file that holds them."""
    size = file.seek(0, io.SEEK_END)
    unpacked = sum(entries[name].file_size for name in headers)
    most = max(LIMITS.unpacked_bytes, LIMITS.unpacked_ratio * size)
    if unpacked > most:
        raise InvalidInput(ArraysTooLarge(unpacked, size, most), where=where)


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, header: Header) -> Any:
    data: Any
    with archive.open(entry) as data:
        data.read(header.start)
        content = bytearray(entry.file_size - header.start)  # what is made of it may be written to
        data.readinto(content)
        data.read(1)  # the end: only there the sum of the entry is checked
    return np.ndarray(header.shape, header.dtype, content, order=header.order)
