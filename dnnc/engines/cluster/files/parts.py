"""Which bytes of a build's files the stages of a host need, how they are sent there, and how they are found there.

A *part* is a file of the build, or those ranges of a file of weights that the models of the host refer to. It is known by a
key: of a whole file its SHA-256 digest, else the digest of that and the ranges. A part of a file is stored at the same offsets,
with holes between, so the models read it as they would read the whole file.

A host that sees the build's file of weights under the same path (a shared file system) copies the part from there into its
cache; the starter tells the digest of the part, and bytes that have another one are received instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from dnnc.build.snapshot import Snapshot
from dnnc.engines.cluster.files.cache import LIMIT, Cache, Progress, default_folder
from dnnc.engines.hosts.faults import PartDamaged
from dnnc.engines.onnxruntime.starter.host import models_of
from dnnc.engines.onnxruntime.starter.roles import Role
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Edge, Receiver, Sender, ValueSpec
from dnnc.onnx.elements import BY_NAME
from ir.core.diagnostics import InvalidInput
from ir.system.digests import OpenFile, digest_ranges

Range = tuple[int, int]
"""First byte and number of bytes."""
_PIECE = 4 << 20
"""Bytes that are sent at once."""
_BYTE = BY_NAME["uint8"].number
PIECES = Edge(FEEDER, FEEDER, (ValueSpec("piece"),), 2, _PIECE + 4096)
"""The edge by which parts are sent to a host: pieces of each part, then the digest of these."""


_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Part:
    """``size``: bytes of the whole file; ``ranges``: ascending, those that are sent."""

    key: str
    size: int
    ranges: tuple[Range, ...]

    @property
    def whole(self) -> bool:
        return self.ranges == ((0, self.size),)

    @property
    def some(self) -> tuple[Range, ...] | None:
        """The ranges, where they are not the whole file."""
        return None if self.whole else self.ranges

    def to_json(self) -> list[Any]:
        return [self.key, self.size, self.ranges]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Part:
        key, size, ranges = data
        if not _KEY.fullmatch(key):  # it names a file of the cache
            raise ValueError(f"{key!r} is no key of a part")
        return cls(key, size, tuple((first, count) for first, count in ranges))


@dataclass(frozen=True, slots=True)
class Needed:
    """What a host needs. ``models``: the key of each stage model; ``weights``: of each stage model, the key of the part that a
    location in it stands for; ``parts``: all of them, once; ``sources``: the bytes or the open file of each; ``paths``: by
    key, where files of weights lie, as the starter sees it."""

    models: Mapping[str, str]
    weights: Mapping[str, Mapping[str, str]]
    parts: tuple[Part, ...]
    sources: Mapping[str, bytes | OpenFile]
    paths: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "models": self.models,
            "weights": self.weights,
            "parts": [part.to_json() for part in self.parts],
            "paths": self.paths,
        }


def needed(files: Snapshot, roles: Iterable[Role]) -> Needed:
    """What the processes with these roles need of a build. Raises InvalidInput for a model that is none."""

    models: dict[str, str] = {}
    parts: dict[str, Part] = {}
    sources: dict[str, bytes | OpenFile] = {}
    ranges: dict[int, set[Range]] = {}
    referred: dict[str, dict[str, OpenFile]] = {}
    for name in models_of(roles):
        data = files.read(name)
        key = hashlib.sha256(data).hexdigest()
        models[name], parts[key], sources[key] = key, Part(key, len(data), ((0, len(data)),)), data
        opened, referred[name] = files.files_for(name), {}
        for location, first, count in external_data(data):
            file = referred[name][location] = opened[location]
            size = file.stamp.size
            ranges.setdefault(file.descriptor, set()).add((first, size - first if count < 0 else count))
    weights: dict[str, dict[str, str]] = {name: {} for name in models}
    paths: dict[str, str] = {}
    for name, by_location in referred.items():
        for location, file in by_location.items():
            part = part_of(file, ranges[file.descriptor])
            parts[part.key], sources[part.key], weights[name][location] = part, file, part.key
            paths[part.key] = str((files.folder / name).absolute().parent / location)
    return Needed(models, weights, tuple(parts.values()), sources, paths)


def external_data(model: bytes) -> Iterator[tuple[str, int, int]]:
    """Location, first byte and number of bytes (-1 for all that follow) of each tensor of a model whose data is in a file."""
    import onnx

    def of_graph(graph: Any) -> Iterator[Any]:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            yield from of_node(node)

    def of_node(node: Any) -> Iterator[Any]:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from of_graph(graph)

    proto = onnx.load_model_from_string(model)
    tensors = [
        *of_graph(proto.graph),
        *(tensor for function in proto.functions for n in function.node for tensor in of_node(n)),
    ]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            yield entries["location"], int(entries.get("offset", 0)), int(entries.get("length", -1))


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges in ascending order; those that touch become one."""
    merged: list[Range] = []
    for first, count in sorted(ranges):
        if merged and first <= sum(merged[-1]):
            merged[-1] = merged[-1][0], max(sum(merged[-1]), first + count) - merged[-1][0]
        else:
            merged.append((first, count))
    return tuple(merged)


def part_of(file: OpenFile, wanted: Iterable[Range]) -> Part:
    """Those ranges of a file."""
    ranges, size, digest = _merged(wanted), file.stamp.size, file.known_digest().removeprefix("sha256:")
    if ranges == ((0, size),):
        return Part(digest, size, ranges)
    return Part(hashlib.sha256(f"{digest} {ranges}".encode()).hexdigest(), size, ranges)


# Sending


_DIGEST = 32
_DAMAGED = bytes(_DIGEST)
"""The digest that is stated of a part whose file was written to, so that the receiver does not keep it."""


def send_parts(sender: Sender, wanted: Needed, keys: Iterable[str]) -> int:
    """Sends the parts of these ``keys``, each of which is one of ``wanted``; returns how many bytes that were. Raises EOFError
    when the receiver has gone. The receiver finds a part damaged whose file was written to since its digest was known, or ends
    too early."""
    by_key, sent = {part.key: part for part in wanted.parts}, 0
    for key in keys:
        source, digest, whole = wanted.sources[key], hashlib.sha256(), True
        for length, piece in _pieces(by_key[key], source):
            whole &= len(piece) == length
            digest.update(piece)
            sent += length
            _send(sender, piece.ljust(length, b"\0"))
        written = isinstance(source, OpenFile) and source.was_written()
        _send(sender, digest.digest() if whole and not written else _DAMAGED)
    return sent


def send_digests(sender: Sender, wanted: Needed, keys: Iterable[str]) -> None:
    """Sends the digests of the bytes of these parts of files, each of which a host sees too. Raises as ``send_parts``."""
    by_key = {part.key: part for part in wanted.parts}
    for key in keys:
        source = wanted.sources[key]
        assert isinstance(source, OpenFile)
        digest = bytes.fromhex(digest_ranges(source.file, by_key[key].ranges).removeprefix("sha256:"))
        _send(sender, _DAMAGED if source.was_written() else digest)


def _pieces(part: Part, source: bytes | OpenFile) -> Iterator[tuple[int, bytes]]:
    """The bytes of each piece that are there, and how many there should be."""
    for first, count in part.ranges:
        for start in range(first, first + count, _PIECE):
            length = min(_PIECE, first + count - start)
            if isinstance(source, bytes):
                yield length, source[start : start + length]
            else:
                yield length, os.pread(source.descriptor, length, start)


def _send(sender: Sender, data: bytes) -> None:
    array = np.frombuffer(data, np.uint8)
    for _ in sender.send_microbatch({"piece": Raw(_BYTE, array.shape, array)}):
        sender.read_tokens()


# Receiving


def cached_parts(
    listed: Iterable[Sequence[Any]],
    settings: Mapping[str, Any],
    receiver: Receiver,
    want: Callable[[list[str]], None],
    progress: Progress = lambda fraction: None,
    paths: Mapping[str, str] = MappingProxyType({}),
    see: Callable[[list[str]], None] = lambda keys: None,
) -> dict[str, OpenFile]:
    """The open files of the ``listed`` parts in this host's cache, by key. Of those that it lacks, ``see`` is told which have a
    file here, by ``paths``, and then gets their digests; ``want`` asks for the others, which it receives. ``progress`` is
    called while a file is hashed. ``settings``: ``cache`` and ``cache_bytes``, empty and 0 for the defaults. Raises as
    ``receive_parts``."""
    parts = {part.key: part for part in map(Part.from_json, listed)}
    folder = Path(settings["cache"]) if settings["cache"] else default_folder()
    cache = Cache(folder, int(settings["cache_bytes"]) or LIMIT)
    entries = {key: entry for key, part in parts.items() if (entry := cache.find(key, part.some, progress)) is not None}
    if paths:
        seen = {key: file for key in paths.keys() - entries.keys() if (file := _seen(paths[key], parts[key].size))}
        see(sorted(seen))
        digests = {key: _digest(receiver) for key in sorted(seen)}
        for key, digest in digests.items():
            with seen[key] as file, suppress(InvalidInput, OSError):  # it is received then, or what the disk refuses is told
                pieces = _read_pieces(file, parts[key], digest, progress)
                entries[key] = cache.add(key, partial(_fill, pieces, parts[key]), parts[key].some)
    wanted = [part for key, part in parts.items() if key not in entries]
    want([part.key for part in wanted])
    entries |= receive_parts(receiver, wanted, cache)
    cache.make_room(parts)
    return entries


def _seen(path: str, size: int) -> BinaryIO | None:
    """The file of so many bytes at a path, open; None where there is no such file that this user can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == size:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def _digest(receiver: Receiver) -> bytes:
    """A digest that ``send_digests`` sends."""
    ((_, digest),) = received(receiver, Part("", 0, ()))
    return digest


def _read_pieces(file: BinaryIO, part: Part, digest: bytes, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """The pieces of a part of a file here with their offsets, then the digest that they should have, as ``received``."""
    done, size = 0, sum(count for _, count in part.ranges)
    for first, count in part.ranges:
        for start in range(first, first + count, _PIECE):
            data = os.pread(file.fileno(), min(_PIECE, first + count - start), start)
            done += len(data)
            yield start, data
            progress(done / size)
    yield -1, digest


def receive_parts(receiver: Receiver, parts: Sequence[Part], cache: Cache) -> dict[str, OpenFile]:
    """Receives parts into the cache; returns the open entries by key. Raises EOFError when the sender has gone, InvalidInput or
    OSError where the disk refuses, InvalidInput where the bytes are not those that were asked for; then too it has received all
    of them, so the sender need not know."""
    refused: InvalidInput | OSError | None = None
    entries: dict[str, OpenFile] = {}
    for part in parts:
        pieces = received(receiver, part)
        try:
            if refused is None:
                entries[part.key] = cache.add(part.key, partial(_fill, pieces, part), part.some)
        except (InvalidInput, OSError) as error:
            refused = error
        for _ in pieces:
            pass
    if refused is not None:
        raise refused
    return entries


def _fill(pieces: Iterator[tuple[int, bytes]], part: Part, file: BinaryIO) -> str:
    """Writes the pieces of a part to their places; returns their digest. Raises InvalidInput where they are not those that were
    asked for."""
    digest, stated = hashlib.sha256(), b""
    file.truncate(part.size)
    for offset, data in pieces:
        if offset < 0:
            stated = data
            continue
        digest.update(data)
        file.seek(offset)
        file.write(data)
    if digest.digest() != stated or (part.whole and digest.hexdigest() != part.key):
        raise InvalidInput(PartDamaged(part.key))
    return digest.hexdigest()


def received(receiver: Receiver, part: Part) -> Iterator[tuple[int, bytes]]:
    """The pieces of a part with their offsets, then the digest that the sender states of them, with offset -1. Raises
    ValueError for what are no bytes of it."""
    for first, count in (*part.ranges, (-1, 1)):
        at = first
        while at < first + count:
            while not receiver.complete:
                receiver.read_tokens()
            slot = receiver.take()
            data = _piece(receiver.values(slot)["piece"])
            receiver.release(slot)
            if not 0 < len(data) <= (first + count - at if first >= 0 else _DIGEST):
                raise ValueError(f"{len(data)} bytes of a part, of which {first + count - at} are left")
            yield at, data
            at += len(data) if first >= 0 else 1


def _piece(value: Any) -> bytes:
    if not isinstance(value, Raw):
        raise ValueError(f"a {type(value).__name__} in place of bytes of a part")
    return value.data.tobytes()


class PartFiles:
    """The files of the stages of a host, from its cache. ``parts``: the open entries by key."""

    def __init__(
        self, models: Mapping[str, str], weights: Mapping[str, Mapping[str, str]], parts: Mapping[str, OpenFile]
    ) -> None:
        self._models = models
        self._weights = weights
        self._parts = parts

    def read(self, name: str) -> bytes:
        file = self._parts[self._models[name]]
        return os.pread(file.descriptor, file.stamp.size, 0)

    def weights_for(self, model: str) -> dict[str, int]:
        return {location: self._parts[key].descriptor for location, key in self._weights[model].items()}
