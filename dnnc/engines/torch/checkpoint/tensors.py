"""One safetensors file of tensors, or of parts of tensors, by weight name: written tensor by tensor, read in parts.

The format (https://github.com/huggingface/safetensors): the length of a header as 8 bytes, little endian; the header, JSON that
has type, shape and place of each tensor by its name; the elements, without gaps. The header's metadata say the step, the seed
of the data, of which tensors the file has a part alone (``parts``: shape of the whole, start by dimension), and the SHA-256 of
all these and of the elements.

Invariants: neither reading nor writing holds more than one tensor beside those of the caller; equal tensors give equal bytes;
a file has its name once it is whole; an open file is read through its descriptor alone. torch, which takes seconds to
import, is imported only where elements are read or written: who starts ranks opens and verifies checkpoints without it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dnnc.engines.torch.faults import (
    CheckpointChanged,
    FileNotRead,
    FileNotWritten,
    NoElementType,
    NotSafetensors,
    PositionUnknown,
)
from ir.core.diagnostics import InvalidInput
from ir.core.types import DType
from ir.system.digests import OpenFile
from ir.system.scratch import PARTIAL
from ir.text.json_text import parse_json

if TYPE_CHECKING:
    import torch

Box = tuple[tuple[int, int], ...]
"""Start and length by dimension."""
_HEADER_BYTES = 100_000_000
"""Of the longest header, as the format has it."""
_CHUNK = 1 << 24
"""Bytes that are read at a time to verify a checkpoint."""
_DTYPES = {
    "BOOL": DType.BOOL,
    "U8": DType.U8,
    "I8": DType.I8,
    "I16": DType.I16,
    "U16": DType.U16,
    "I32": DType.I32,
    "U32": DType.U32,
    "I64": DType.I64,
    "U64": DType.U64,
    "F8_E4M3": DType.F8E4M3FN,
    "F8_E5M2": DType.F8E5M2,
    "F16": DType.F16,
    "BF16": DType.BF16,
    "F32": DType.F32,
    "F64": DType.F64,
    "C64": DType.C64,
}
"""By their names in the format."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: steps that were done, and the seed of its data."""

    step: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor of this type and shape. Raises InvalidInput for a type that the format lacks."""

    dtype: DType
    shape: tuple[int, ...]
    box: Box

    def __post_init__(self) -> None:
        if self.dtype not in _NAMES:
            raise InvalidInput(NoElementType(self.dtype.value))

    @classmethod
    def whole(cls, dtype: DType, shape: Iterable[int]) -> Part:
        sizes = tuple(shape)
        return cls(dtype, sizes, tuple((0, size) for size in sizes))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(length for _, length in self.box)

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.bits // 8

    def described(self, name: str) -> bytes:
        """What a digest has of it."""
        more = [] if self.sizes == self.shape else [[*self.shape], [start for start, _ in self.box]]
        return json.dumps([name, f"torch.{self.dtype.numpy_name}", [*self.sizes], *more]).encode()


def from_array(array: Any) -> torch.Tensor:
    """A tensor on the elements of a numpy array, of ``ml_dtypes`` too. Raises InvalidInput for a type that torch lacks."""
    import torch

    if array.dtype.isbuiltin == 1:
        return torch.as_tensor(array)
    dtype = getattr(torch, array.dtype.name, None)
    if dtype is None:
        raise InvalidInput(NoElementType(array.dtype.name))
    return torch.as_tensor(array.view(f"u{array.dtype.itemsize}")).view(dtype)


def write_tensors(
    path: Path,
    parts: Mapping[str, Part],
    read: Callable[[str], torch.Tensor],
    position: Position,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Write ``path`` whole or not at all. ``parts``: what it holds; ``read`` gives the elements of one, which are dropped once
    they are written; ``progress`` gets the fraction. Raises InvalidInput where the disk refuses."""
    places, end = dict[str, tuple[int, int]](), 0
    for name in sorted(parts, key=lambda name: (-parts[name].dtype.bits, name)):  # so each is aligned to its elements
        places[name], end = (end, end + parts[name].nbytes), end + parts[name].nbytes
    digest, partial, done = _digest(position), path.with_name(f".{path.name}{PARTIAL}"), 0
    start = len(_header_of(parts, places, position, "0" * 64))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for name, part in sorted(parts.items()):
                elements = _bytes_of(read(name), part)
                digest.update(part.described(name))
                digest.update(elements)
                file.seek(start + places[name][0])
                file.write(elements)
                done += part.nbytes
                progress(done / max(end, 1))
            file.seek(0)
            file.write(_header_of(parts, places, position, digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _bytes_of(tensor: torch.Tensor, part: Part) -> memoryview:
    """The elements of a tensor, in order."""
    import torch

    from dnnc.engines.torch.exchange import torch_dtype

    if (tensor.dtype, tuple(tensor.shape)) != (torch_dtype(part.dtype), part.sizes):
        raise ValueError(f"a tensor is {tensor.dtype}{list(tensor.shape)}, not as stated: {part}")
    if not tensor.numel():  # of NumPy's, torch takes over strides of 0, which cannot be viewed as bytes
        return memoryview(b"")
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data


def _header_of(parts: Mapping[str, Part], places: Mapping[str, tuple[int, int]], position: Position, digest: str) -> bytes:
    """The first bytes of a file, whose number does not depend on the digest."""
    metadata = {"seed": str(position.seed), "sha256": digest, "step": str(position.step)}
    cut = {name: [[*part.shape], [start for start, _ in part.box]] for name, part in parts.items() if part.sizes != part.shape}
    if cut:
        metadata = {"parts": json.dumps(cut, sort_keys=True), **metadata}
    header: dict[str, Any] = {"__metadata__": metadata}
    for name, place in places.items():
        part = parts[name]
        header[name] = {"dtype": _NAMES[part.dtype], "shape": [*part.sizes], "data_offsets": [*place]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file. ``offset``: of its first byte there."""

    part: Part
    offset: int

    def rows(self, box: Box) -> tuple[int, int]:
        """First byte and number of bytes of the rows that a box of the part lies in."""
        row = math.prod(self.part.sizes[1:]) * self.part.dtype.bits // 8
        start, count = box[0] if box else (0, 1)
        return self.offset + start * row, count * row


@dataclass(frozen=True)
class TensorFile:
    """A file that is open. ``where``: its name in messages; ``position``: where its training stands; ``digest``: what its
    header says of its contents, None where it says nothing, as those of earlier versions and of others."""

    file: OpenFile
    where: str
    position: Position
    digest: str | None
    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, file: OpenFile, where: str) -> TensorFile:
        """Raises InvalidInput for what is no safetensors file."""
        start, header = _header(file, where)
        metadata = header.pop("__metadata__", {})
        metadata = metadata if isinstance(metadata, dict) else {}
        entries = _cut(_entries(header, start, file.stamp.size, where), metadata.get("parts"), where)
        return cls(file, where, _position(metadata, where), metadata.get("sha256"), entries)

    @property
    def header_bytes(self) -> int:
        return min((entry.offset for entry in self.entries.values()), default=self.file.stamp.size)

    def was_written(self) -> bool:
        """Whether the file was written to since it was opened."""
        of_tensors = self.digest is not None and self.file.known is None  # some of these are holes where a host has its part
        return self.file.was_written(self.differs if of_tensors else None)

    def differs(self) -> bool:
        """Whether the contents differ from their digest."""
        return self.computed_digest() != self.digest

    def computed_digest(self) -> str:
        """The SHA-256 of the tensors in the file."""
        digest = _digest(self.position)
        for name, entry in sorted(self.entries.items()):
            digest.update(entry.part.described(name))
            for chunk in self._chunks(entry):
                digest.update(chunk)
        return digest.hexdigest()

    def read(self, name: str, box: Box) -> torch.Tensor:
        """A box of the part of a tensor that is here. Of its first dimension no more is read than the box has."""
        import torch

        from dnnc.engines.torch.exchange import torch_dtype

        entry = self.entries[name]
        first, size = entry.rows(box)
        data = torch.empty(size, dtype=torch.uint8)
        self._fill(data.numpy().data, first)
        rows = data.view(torch_dtype(entry.part.dtype)).reshape((box[0][1], *entry.part.sizes[1:]) if box else ())
        found = rows
        for dim, (start, length) in enumerate(box[1:], 1):
            found = found.narrow(dim, start, length)
        return found if found.numel() == rows.numel() else found.clone(memory_format=torch.contiguous_format)

    def _chunks(self, entry: Entry) -> Iterator[memoryview]:
        """The bytes of a tensor, piece by piece."""
        for start in range(0, entry.part.nbytes, _CHUNK):
            buffer = memoryview(bytearray(min(_CHUNK, entry.part.nbytes - start)))
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


def _digest(position: Position) -> hashlib._Hash:
    return hashlib.sha256(json.dumps([position.step, position.seed]).encode())


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


def _entries(header: Mapping[str, Any], start: int, size: int, where: str) -> dict[str, Entry]:
    """The tensors of a header, by name, in their order in the file, which they fill. Raises InvalidInput."""
    entries: dict[str, Entry] = {}
    ends: dict[str, int] = {}
    for name, value in header.items():
        fields = value if isinstance(value, dict) else {}
        dtype, shape = _DTYPES.get(str(fields.get("dtype"))), _sizes(fields.get("shape"))
        place = _sizes(fields.get("data_offsets"))
        if dtype is None or shape is None or place is None or len(place) != 2:
            _refuse(where, f"its header does not say type, shape and place of '{name}'")
        entries[name], ends[name] = Entry(Part.whole(dtype, shape), start + place[0]), start + place[1]
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].offset, ends[item[0]])))
    end = start
    for name, entry in entries.items():
        if entry.offset != end or ends[name] != end + entry.part.nbytes:
            _refuse(where, f"the place of '{name}' is not that of its elements")
        end = ends[name]
    if end != size:
        _refuse(where, f"it has {size} bytes, its header tells of {end}")
    return entries


def _cut(entries: Mapping[str, Entry], text: Any, where: str) -> dict[str, Entry]:
    """The entries, those that ``parts`` of the metadata lists as parts of larger tensors. Raises InvalidInput."""
    listed = parse_json(text, where) if isinstance(text, str) else {}
    cut = dict(entries)
    for name, value in listed.items() if isinstance(listed, dict) else ():
        fields = value if isinstance(value, list) and len(value) == 2 else [None, None]
        whole, starts = map(_sizes, fields)
        part = entries[name].part if name in entries else None
        if part is None or whole is None or starts is None or not len(whole) == len(starts) == len(part.sizes):
            _refuse(where, f"its header does not say of what '{name}' is a part")
        box = tuple(zip(starts, part.sizes, strict=True))
        if any(start + length > size for (start, length), size in zip(box, whole, strict=True)):
            _refuse(where, f"the part of '{name}' is not inside the whole")
        cut[name] = replace(entries[name], part=Part(part.dtype, whole, box))
    return cut


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
