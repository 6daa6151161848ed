"""Samples that must be the same each time they are asked for: digests of them, and a source that is held to those.

A person's function is called anew by each process that reads its samples, and again where earlier ones are wanted again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
        if ":" in self.source and self.digests.setdefault(number, found := _digest([arrays])) != found:
            raise other_samples("it gave other samples when it was called again", self.source)
        return arrays

    def array(self, number: int, name: str) -> Any:
        return self.microbatch(number)[name]


def samples_digest(data: Data, numbers: Iterable[int]) -> str:
    """The SHA-256, in hexadecimal digits, of the microbatches of these numbers."""
    return _digest(data.microbatch(number) for number in numbers)


def other_samples(message: str, source: str) -> InvalidInput:
    """What to raise where a source gave other samples for the same step."""
    drawn = "the same arrays each time: draw them from the seed that the function is called with"
    return InvalidInput(message, where=source, hint=drawn if ":" in source else "copy the file of one host")


def _digest(microbatches: Iterable[Mapping[str, Any]]) -> str:
    found = hashlib.sha256()
    for arrays in microbatches:
        for name, array in sorted(arrays.items()):
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(array.tobytes())
    return found.hexdigest()


__all__ = ["Repeated", "other_samples", "samples_digest"]
