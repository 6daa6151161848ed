"""Digests of samples, which must be the same for each process and at each reading.

Each process calls a person's function anew, and calls it again to read earlier samples again. Of files and of datasets each
process reads its part alone, so their identities are compared (``Identified``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dnnc.data.faults import SamplesChanged
from dnnc.data.samples import Data
from ir.core.diagnostics import InvalidInput


@dataclass(frozen=True)
class Repeated:
    """The microbatches of ``data``, of the source that a person named. ``digests``: of those that were read, by number. Raises
    InvalidInput where one that is read again is another."""

    data: Data
    source: str
    digests: dict[int, str] = field(default_factory=dict)

    def microbatch(self, number: int) -> Mapping[str, Any]:
        arrays = self.data.microbatch(number)
        if ":" in self.source and self.digests.setdefault(number, digest := digest_of(arrays)) != digest:
            raise InvalidInput(SamplesChanged(self.source), where=self.source)
        return arrays

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]

    @property
    def identity(self) -> bytes | None:
        return self.data.identity

    def verify(self, rank: int, ranks: int) -> None:
        self.data.verify(rank, ranks)


@dataclass
class Digested:
    """The microbatches of ``data``, and a running SHA-256 of all of them, in order, from number ``upcoming`` on, which it then
    counts up. ``microbatches``: of a step; ``ends``: the digest at the end of each step that was read and not asked for."""

    data: Data
    microbatches: int
    upcoming: int
    ends: dict[int, bytes] = field(default_factory=dict)
    running: hashlib._Hash = field(default_factory=hashlib.sha256)

    def microbatch(self, number: int) -> Mapping[str, Any]:
        while self.upcoming < number:
            self._read()
        return self._read() if self.upcoming == number else self.data.microbatch(number)

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]

    @property
    def identity(self) -> bytes | None:
        return self.data.identity

    def verify(self, rank: int, ranks: int) -> None:
        self.data.verify(rank, ranks)

    def through(self, step: int) -> bytes:
        """The digest at the end of a step, counted from 0. Each is asked for once."""
        while self.upcoming < (step + 1) * self.microbatches:
            self._read()
        return self.ends.pop(step)

    def _read(self) -> Mapping[str, Any]:
        arrays = self.data.microbatch(self.upcoming)
        _add(self.running, arrays)
        self.upcoming += 1
        if not self.upcoming % self.microbatches:
            self.ends[self.upcoming // self.microbatches - 1] = self.running.digest()
        return arrays


@dataclass(frozen=True)
class Identified:
    """The digest of data whose identity is known before they are read: ``through`` as of ``Digested``."""

    identity: bytes

    def through(self, step: int) -> bytes:
        return hashlib.sha256(self.identity).digest()


def digest_of(arrays: Mapping[str, Any]) -> str:
    """The SHA-256 of these arrays, in hexadecimal."""
    digest = hashlib.sha256()
    _add(digest, arrays)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, arrays: Mapping[str, Any]) -> None:
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
