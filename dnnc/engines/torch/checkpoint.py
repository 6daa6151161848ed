"""Checkpoints: one safetensors file of whole tensors by weight name, whatever plan they were trained by.

A build's ``weights.safetensors`` is the checkpoint of step 0. Optimizer state has names of its own (``fc.weight.exp_avg``). The
header says the step, the seed of the data, and the SHA-256 of these and of all tensors. A file appears under its name when it
is whole: it is written under another.

A ``Checkpoint`` is a file that was opened once, and is read through that descriptor alone. The format
(https://github.com/huggingface/safetensors): the length of a header as 8 bytes, little endian; the header, JSON that has type,
shape and place of each tensor by its name; the elements, without gaps.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from dnnc.engines.torch.faults import (
    CheckpointChanged,
    CheckpointDamaged,
    FileNotRead,
    FileNotWritten,
    NoElementType,
    NotSafetensors,
    PositionUnknown,
    WeightMissing,
    WeightOfOtherType,
)
from ir.core.diagnostics import InvalidInput
from ir.system.digests import OpenFile
from ir.system.files import open_input
from ir.system.scratch import PARTIAL, locked_folder, remove_dead, umask
from ir.system.signals import termination_raises
from ir.text.json_text import parse_json

INITIAL = "weights.safetensors"
_HEADER_BYTES = 100_000_000
"""Of the longest header, as the format has it."""
_CHUNK = 1 << 24
"""Bytes that are read at a time to verify a checkpoint."""
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""By their names in the format."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: steps that were done, and the seed of its data."""

    step: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor of this type and shape: start and length by dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]


def from_array(array: Any) -> torch.Tensor:
    """A tensor on the elements of a numpy array, of ``ml_dtypes`` too. Raises InvalidInput for a type that torch lacks."""
    if array.dtype.isbuiltin == 1:
        return torch.as_tensor(array)
    dtype = getattr(torch, array.dtype.name, None)
    if dtype is None:
        raise InvalidInput(NoElementType(array.dtype.name))
    return torch.as_tensor(array.view(f"u{array.dtype.itemsize}")).view(dtype)


def write_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], position: Position) -> None:
    """Write ``path`` whole or not at all; what a killed writer of another checkpoint left beside it goes. Raises InvalidInput
    where the disk refuses."""
    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_dead(path.parent.glob(f".*{path.suffix}.*{PARTIAL}"))
        with termination_raises(), locked_folder(path.parent, f".{path.name}.", PARTIAL) as folder:
            whole = folder / path.name  # safetensors writes it under a name of its own first
            digest = _digest_of(contiguous, position)
            header = {"step": str(position.step), "seed": str(position.seed), "sha256": digest}
            save_file(contiguous, str(whole), header)
            with whole.open("r+b") as file:
                _sort_metadata(file)
                os.fsync(file.fileno())
            whole.chmod(0o666 & ~umask())
            os.replace(whole, path)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise InvalidInput(FileNotWritten(reason), where=str(path)) from error


def _sort_metadata(file: BinaryIO) -> None:
    """Writes the header anew with its metadata in order: safetensors writes them in another order each time, and equal tensors
    are to give equal bytes."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) <= length:
        file.seek(8)
        file.write(text.ljust(length))
        file.flush()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of a checkpoint. ``offset``: of its first byte in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, box: tuple[tuple[int, int], ...]) -> tuple[int, int]:
        """First byte and number of bytes of the rows that a part lies in; of all where there is no box."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        start, count = box[0] if box else (0, self.shape[0] if self.shape else 1)
        return self.offset + start * row, count * row


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is open. ``where``: its name in messages; ``position``: where its training stands; ``digest``: what its
    header says of its contents, None where it says nothing, as those of earlier versions and of others."""

    file: OpenFile
    where: str
    position: Position
    digest: str | None
    _entries: Mapping[str, _Entry]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Raises InvalidInput for a file that is no checkpoint."""
        return cls.of(OpenFile(open_input(path, "a checkpoint", hint="checkpoints are called stepN.safetensors")), str(path))

    @classmethod
    def of(cls, file: OpenFile, where: str) -> Checkpoint:
        """The checkpoint in an open file. Raises InvalidInput for what is none."""
        start, header = _header(file, where)
        metadata = header.pop("__metadata__", {})
        metadata = metadata if isinstance(metadata, dict) else {}
        entries = _entries(header, start, file.stamp.size, where)
        return cls(file, where, _position(metadata, where), metadata.get("sha256"), entries)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that it holds."""
        return tuple(self._entries)

    def parts(self, wanted: Mapping[str, Part], optional: Iterable[str] = ()) -> dict[str, torch.Tensor]:
        """A part of each tensor; nothing else is read. What is ``optional`` may be missing. Raises InvalidInput for a tensor
        that is missing, or of another type or shape."""
        optional = set(optional)
        tensors: dict[str, torch.Tensor] = {}
        for name, part in wanted.items():
            entry = self._entries.get(name)
            if entry is None:
                if name in optional:
                    continue
                raise InvalidInput(WeightMissing(name), where=self.where)
            if (entry.dtype, entry.shape) != (part.dtype, part.shape):
                types = _words(entry.dtype, entry.shape), _words(part.dtype, part.shape)
                raise InvalidInput(WeightOfOtherType(name, *types), where=self.where)
            tensors[name] = self._read(entry, part.box)
        return tensors

    def ranges(self, wanted: Mapping[str, tuple[tuple[int, int], ...]]) -> list[tuple[int, int]]:
        """First byte and number of bytes of all that ``parts`` reads for these parts of tensors, start and length by dimension;
        the header is among them."""
        found = [(0, min((entry.offset for entry in self._entries.values()), default=self.file.stamp.size))]
        for name, box in wanted.items():
            if (entry := self._entries.get(name)) is not None:
                found.append(entry.rows(box))
        return found

    def verify(self) -> None:
        """Read all of it. Raises InvalidInput where it is not what was written."""
        if self.digest is not None and self._differs():
            raise InvalidInput(CheckpointDamaged(), where=self.where)

    def contents(self) -> str:
        """The SHA-256 of its contents: what the header says (``verify`` holds it against them), or else what they give. Raises
        InvalidInput."""
        return self._computed_digest() if self.digest is None else self.digest

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor. Raises InvalidInput."""
        return {name: self._read(entry, ()) for name, entry in self._entries.items()}

    def confirm(self) -> None:
        """Raises InvalidInput where the file was written to since it was opened. To be asked once it has been read."""
        of_tensors = self.digest is not None and self.file.known is None  # some of these are holes where a host has its part
        if self.file.was_written(self._differs if of_tensors else None):
            raise InvalidInput(CheckpointChanged(), where=self.where)

    def _differs(self) -> bool:
        """Whether the contents differ from their digest."""
        return self._computed_digest() != self.digest

    def _computed_digest(self) -> str:
        """The SHA-256 of the tensors in the file."""
        digest = _digest(self.position)
        for name, entry in sorted(self._entries.items()):
            digest.update(_described(name, entry.dtype, entry.shape))
            for chunk in self._chunks(entry):
                digest.update(chunk)
        return digest.hexdigest()

    def _read(self, entry: _Entry, box: tuple[tuple[int, int], ...]) -> torch.Tensor:
        """A part of a tensor, all of it where there is no box. Of its first dimension no more is read than the part has."""
        first, size = entry.rows(box)
        count = box[0][1] if box else entry.shape[0] if entry.shape else 1
        data = torch.empty(size, dtype=torch.uint8)
        self._fill(data.numpy().data, first)
        rows = data.view(entry.dtype).reshape((count, *entry.shape[1:]) if entry.shape else ())
        part = rows
        for dim, (start, length) in enumerate(box[1:], 1):
            part = part.narrow(dim, start, length)
        return part if part.numel() == rows.numel() else part.clone(memory_format=torch.contiguous_format)

    def _chunks(self, entry: _Entry) -> Iterator[memoryview]:
        """The bytes of a tensor, piece by piece."""
        for start in range(0, entry.nbytes, _CHUNK):
            buffer = memoryview(bytearray(min(_CHUNK, entry.nbytes - start)))
            self._fill(buffer, entry.offset + start)
            yield buffer

    def _fill(self, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self.file.descriptor, [buffer[done:]], offset + done)
            except OSError as error:
                raise InvalidInput(FileNotRead(error.strerror or str(error)), where=self.where) from error
            if not count:
                raise InvalidInput(CheckpointChanged(), where=self.where)
            done += count


def _digest_of(tensors: Mapping[str, torch.Tensor], position: Position) -> str:
    """The SHA-256 of a checkpoint of these tensors, which are contiguous."""
    digest = _digest(position)
    for name, tensor in sorted(tensors.items()):
        digest.update(_described(name, tensor.dtype, tuple(tensor.shape)))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(position: Position) -> hashlib._Hash:
    return hashlib.sha256(json.dumps([position.step, position.seed]).encode())


def _described(name: str, dtype: torch.dtype, shape: Iterable[int]) -> bytes:
    return json.dumps([name, str(dtype), [*shape]]).encode()


def _header(file: OpenFile, where: str) -> tuple[int, dict[str, Any]]:
    """Where the elements begin, and what the header says. Raises InvalidInput."""
    size = file.stamp.size
    length = int.from_bytes(os.pread(file.descriptor, 8, 0), "little")
    if size < 8 or length > min(size - 8, _HEADER_BYTES):
        _refuse(where, f"its header would have {length} bytes" if size >= 8 else f"it has {size} bytes")
    data = os.pread(file.descriptor, length, 8)
    try:
        header = parse_json(data.decode(), where)
    except (UnicodeDecodeError, InvalidInput):
        _refuse(where, "its header is no JSON")
    if not isinstance(header, dict):
        _refuse(where, "its header is no JSON object")
    return 8 + length, header


def _entries(header: Mapping[str, Any], start: int, size: int, where: str) -> dict[str, _Entry]:
    """The tensors of a header, by name, in their order in the file, which they fill. Raises InvalidInput."""
    entries: dict[str, _Entry] = {}
    ends: dict[str, int] = {}
    for name, value in header.items():
        fields = value if isinstance(value, dict) else {}
        dtype, shape = _DTYPES.get(str(fields.get("dtype"))), _sizes(fields.get("shape"))
        place = _sizes(fields.get("data_offsets"))
        if dtype is None or shape is None or place is None or len(place) != 2:
            _refuse(where, f"its header does not say type, shape and place of '{name}'")
        entries[name], ends[name] = _Entry(dtype, shape, start + place[0]), start + place[1]
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].offset, ends[item[0]])))
    end = start
    for name, entry in entries.items():
        if entry.offset != end or ends[name] != end + entry.nbytes:
            _refuse(where, f"the place of '{name}' is not that of its elements")
        end = ends[name]
    if end != size:
        _refuse(where, f"it has {size} bytes, its header tells of {end}")
    return entries


def _sizes(numbers: Any) -> tuple[int, ...] | None:
    """None for what is no list of sizes."""
    good = isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
    return tuple(numbers) if good else None


def _refuse(where: str, reason: str) -> NoReturn:
    raise InvalidInput(NotSafetensors(reason), where=where)


def _position(header: Mapping[str, Any], where: str) -> Position:
    said = str(header.get("step", "0")), str(header.get("seed", "0"))
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in said):
        raise InvalidInput(PositionUnknown(), where=where)
    return Position(int(said[0]), int(said[1]))


def _words(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


__all__ = ["INITIAL", "Checkpoint", "Part", "Position", "from_array", "write_checkpoint"]
