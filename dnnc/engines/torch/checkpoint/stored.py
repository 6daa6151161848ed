"""A checkpoint that is read: files of parts of tensors, opened once, from which any part of any tensor is put together.

So it does not matter by which plan it was trained: a rank reads the boxes that it holds, and of each file nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dnnc.build.transaction import put_in_place, refuse_foreign
from dnnc.engines.torch.checkpoint.tensors import Box, Entry, Part, Position, TensorFile
from dnnc.engines.torch.faults import (
    CheckpointChanged,
    CheckpointDamaged,
    FileNotWritten,
    IndexDamaged,
    NotAllOfWeight,
    PartOfOtherCheckpoint,
    PartsDiffer,
    WeightMissing,
    WeightOfOtherType,
)
from ir.core.diagnostics import InvalidInput
from ir.system.digests import OpenFile
from ir.system.files import open_input, read_input
from ir.text.json_text import parse_json

if TYPE_CHECKING:
    import torch

INITIAL = "weights.safetensors"
INDEX = "index.json"
_INDEX_BYTES = 1 << 24
_FORMAT = 1
_FILE = re.compile(r"rank[0-9]{1,9}\.safetensors")
_SHOWN = 5
"""Of many checkpoints in a folder the last ones are named."""
_HINT = "checkpoints are folders stepN, or files stepN.safetensors of earlier versions"


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder looks like a whole checkpoint."""
    return (folder / INDEX).is_file()


def _inside(folder: Path) -> str:
    """Which checkpoints a folder holds, as a hint; empty where it holds none."""
    try:
        names = sorted((path.name for path in folder.iterdir() if is_checkpoint(path)), key=lambda name: (len(name), name))
    except OSError:
        return ""
    return f"it holds the checkpoints {', '.join(names[-_SHOWN:])}: {folder / names[-1]} is one" if names else ""


def file_of(rank: int) -> str:
    """The file of the parts of a rank in a checkpoint."""
    return f"rank{rank}.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is open. ``where``: its name in messages; ``files``: by their names in its folder, one without a name
    where it is a file itself; ``index``: the text of its index, if it has one; ``digest``: of its contents, None where it does
    not say."""

    where: str
    files: Mapping[str, TensorFile]
    index: str
    position: Position
    digest: str | None
    _pieces: Mapping[str, tuple[tuple[TensorFile, Entry], ...]]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Raises InvalidInput for what is no checkpoint, or not all of one."""
        if not path.is_dir():
            return cls.of({"": OpenFile(open_input(path, "a checkpoint", hint=_HINT))}, str(path))
        hint = _HINT if (path / INDEX).exists() else _inside(path) or _HINT
        index = read_input(path / INDEX, "the index of a checkpoint", _INDEX_BYTES, hint=hint).decode("utf-8", "replace")
        names = _listed(index, str(path / INDEX))[1]
        opened = {name: OpenFile(open_input(path / name, "a part of the checkpoint")) for name in names}
        return cls.of(opened, str(path), index)

    @classmethod
    def of(cls, opened: Mapping[str, OpenFile], where: str, index: str = "") -> Checkpoint:
        """The checkpoint in open files. Raises InvalidInput for what is none."""
        files = {name: TensorFile.of(file, str(Path(where, name))) for name, file in opened.items()}
        if index:
            position, digests = _listed(index, str(Path(where, INDEX)))
            for name, file in files.items():
                if (file.position, file.digest) != (position, digests[name]):
                    raise InvalidInput(PartOfOtherCheckpoint(INDEX), where=file.where)
            digest: str | None = hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()
        else:
            (only,) = files.values()
            position, digest = only.position, only.digest
        pieces: dict[str, tuple[tuple[TensorFile, Entry], ...]] = {}
        for file in files.values():
            for name, entry in file.entries.items():
                pieces[name] = (*pieces.get(name, ()), (file, entry))
                first = pieces[name][0][1].part
                if (first.dtype, first.shape) != (entry.part.dtype, entry.part.shape):
                    raise InvalidInput(PartsDiffer(name), where=file.where)
        return cls(where, files, index, position, digest, pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that it holds."""
        return tuple(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a weight that it holds."""
        return self._pieces[name][0][1].part.shape

    def parts(self, wanted: Mapping[str, Part], optional: Iterable[str] = ()) -> dict[str, torch.Tensor]:
        """A part of each tensor; nothing else is read. What is ``optional`` may be missing. Raises InvalidInput for a tensor
        that is missing, or of another type or shape."""
        optional = set(optional)
        tensors: dict[str, torch.Tensor] = {}
        for name, part in wanted.items():
            if name not in self._pieces:
                if name in optional:
                    continue
                raise InvalidInput(WeightMissing(name), where=self.where)
            stored = self._pieces[name][0][1].part
            if (stored.dtype, stored.shape) != (part.dtype, part.shape):
                types = _words(stored), _words(part)
                raise InvalidInput(WeightOfOtherType(name, *types), where=self.where)
            tensors[name] = self._read(name, part.box)
        return tensors

    def tensor(self, name: str) -> torch.Tensor:
        """All of a tensor that it holds. Raises InvalidInput."""
        part = self._pieces[name][0][1].part
        return self._read(name, Part.whole(part.dtype, part.shape).box)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor. Raises InvalidInput."""
        return {name: self.tensor(name) for name in self.names}

    def ranges(self, wanted: Mapping[str, Box]) -> dict[str, list[tuple[int, int]]]:
        """First byte and number of bytes of all that ``parts`` reads of each file for these parts of tensors; the headers are
        among them."""
        found = {name: [(0, file.header_bytes)] for name, file in self.files.items()}
        names = {id(file): name for name, file in self.files.items()}
        for name, box in wanted.items():
            for file, entry in self._pieces.get(name, ()):
                if (common := _common(box, entry.part.box)) is not None:
                    found[names[id(file)]].append(entry.rows(_within(common, entry.part.box)))
        return found

    def verify(self) -> None:
        """Read all of it. Raises InvalidInput where it is not what was written."""
        for file in self.files.values():
            if file.digest is not None and file.differs():
                raise InvalidInput(CheckpointDamaged(), where=file.where)

    def contents(self) -> str:
        """The SHA-256 of its contents: what it says itself (``verify`` holds it against them), or else what they give. Raises
        InvalidInput."""
        if self.digest is not None:
            return self.digest
        (only,) = self.files.values()
        return only.computed_digest()

    def confirm(self) -> None:
        """Raises InvalidInput where a file was written to since it was opened. To be asked once it has been read."""
        for file in self.files.values():
            if file.was_written():
                raise InvalidInput(CheckpointChanged(), where=file.where)

    def _read(self, name: str, box: Box) -> torch.Tensor:
        """A box of a tensor. Raises InvalidInput where files have no part of it."""
        pieces = self._pieces[name]
        for file, entry in pieces:
            if _common(box, entry.part.box) == box:
                return file.read(name, _within(box, entry.part.box))
        import torch

        from dnnc.engines.torch.exchange import torch_dtype

        found, left = torch.empty([length for _, length in box], dtype=torch_dtype(pieces[0][1].part.dtype)), [box]
        for file, entry in pieces:
            if (common := _common(box, entry.part.box)) is not None:
                place = tuple(slice(start, start + length) for start, length in _within(common, box))
                found[place] = file.read(name, _within(common, entry.part.box))
                left = [rest for one in left for rest in _without(one, common)]
        if left:
            raise InvalidInput(NotAllOfWeight(name), where=self.where)
        return found


def publish(folder: Path, names: Iterable[str], target: Path) -> None:
    """Make a checkpoint of a folder that holds these files of parts: write its index, and give it the name ``target``, whatever
    checkpoint has it now. Raises InvalidInput where the disk refuses, UsageError where something else has the name."""
    refuse_foreign(target, is_checkpoint)
    try:
        files = {name: TensorFile.of(OpenFile((folder / name).open("rb")), str(folder / name)) for name in sorted(names)}
        position = next(iter(files.values())).position
        document = {
            "format": _FORMAT,
            "step": position.step,
            "seed": position.seed,
            "files": {name: file.digest for name, file in files.items()},
        }
        with (folder / INDEX).open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        put_in_place(folder, target)
    except OSError as error:
        raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(target)) from error


def _listed(index: str, where: str) -> tuple[Position, dict[str, str]]:
    """Where training stands, and the digest of each file of an index. Raises InvalidInput."""
    try:
        document = parse_json(index, where)
    except InvalidInput:
        raise InvalidInput(IndexDamaged("it is no JSON"), where=where) from None
    fields = document if isinstance(document, dict) else {}
    if fields.get("format") != _FORMAT:
        raise InvalidInput(IndexDamaged(f"its format is not {_FORMAT}"), where=where)
    step, seed, files = (fields.get(name) for name in ("step", "seed", "files"))
    if not all(type(number) is int and number >= 0 for number in (step, seed)):
        raise InvalidInput(IndexDamaged("it does not say the step and the seed"), where=where)
    good = isinstance(files, dict) and all(_FILE.fullmatch(name) and isinstance(files[name], str) for name in files)
    if not good or not files:
        raise InvalidInput(IndexDamaged("it does not list the files of ranks with their digests"), where=where)
    assert isinstance(step, int)
    assert isinstance(seed, int)
    return Position(step, seed), files


def _common(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> Box | None:
    """The box of what two boxes share; None where that is nothing. A box without elements is shared with one around it."""
    found = []
    for (start, length), (other_start, other_length) in zip(one, other, strict=True):
        first, end = max(start, other_start), min(start + length, other_start + other_length)
        if end < first or (end == first and length and other_length):
            return None
        found.append((first, end - first))
    return tuple(found)


def _within(box: Box, around: Box) -> Box:
    """A box, counted from the beginning of one around it."""
    return tuple((start - first, length) for (start, length), (first, _) in zip(box, around, strict=True))


def _without(box: Box, taken: Box) -> Iterator[Box]:
    """Boxes that together are ``box`` without what it shares with ``taken``."""
    common = _common(box, taken)
    if common is None:
        yield box
        return
    before: Box = ()
    for dim, ((start, length), (first, count)) in enumerate(zip(box, common, strict=True)):
        for low, high in ((start, first), (first + count, start + length)):
            if low < high:
                yield (*before, (low, high - low), *box[dim + 1 :])
        before = (*before, (first, count))


def _words(part: Part) -> str:
    return f"{part.dtype.numpy_name}{list(part.shape)}"
