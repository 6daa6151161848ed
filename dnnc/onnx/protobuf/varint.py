"""Base-128 numbers, in which protobuf writes keys, lengths and integers (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from typing import Protocol, overload

_MOST_BYTES = 10


class Buffer(Protocol):
    """Anything indexed like bytes."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, key: int, /) -> int: ...

    @overload
    def __getitem__(self, key: slice, /) -> bytes: ...


class VarintError(ValueError):
    """The bytes are no base-128 number. ``at``: its offset; ``truncated``: the data ends inside it, else it has too many
    bytes."""

    def __init__(self, at: int, truncated: bool) -> None:
        super().__init__(f"a number that {'ends nowhere' if truncated else f'has more than {_MOST_BYTES} bytes'} at byte {at}")
        self.at = at
        self.truncated = truncated


def read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """The number at offset ``at`` and the offset of its end. Raises VarintError where it does not end before ``end``."""
    value = shift = 0
    start = at
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 7 * _MOST_BYTES:
            raise VarintError(start, truncated=False)
    raise VarintError(start, truncated=True)


def varint(value: int) -> bytes:
    """``value`` (>= 0) as a base-128 number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
