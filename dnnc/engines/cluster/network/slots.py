"""The relay's side of an end of an edge: its memory, the far ends of its pipes, and what a message about it must fit.

A message that does not fit is refused before anything is read or written by its numbers (``Unfit``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dnnc.engines.onnxruntime.transport.codec import ALIGNMENT
from dnnc.engines.onnxruntime.transport.edges import LENGTH, Edge
from dnnc.onnx.elements import Array


class Unfit(ValueError):
    """A message of another process is none that this one can have been sent."""


@dataclass(slots=True)
class Slots:
    """The same memory as that of the end, and the far ends of its pipes. ``peer``: the process at the other end of the link;
    ``incoming``: whether values come from there. ``left``: bytes of the value that streams out just now which are still to be
    sent; ``begun``: by slot and number, bytes of a value that came in pieces."""

    peer: str
    incoming: bool
    edge: Edge
    memory: Array
    read: int
    write: int
    left: int = 0
    begun: dict[tuple[int, int], int] = field(default_factory=dict)

    def place(self, slot: int, number: int) -> tuple[int, int]:
        """Where the place of a value begins and its bytes."""
        size = self.edge.values[number].size
        first = slot * self.edge.slot_bytes + self.edge.offsets[number]
        return first, self.edge.room(number) if size is None else size

    def outgoing(self, slot: int, number: int, more: int) -> Array:
        """The bytes of a value, of its parts in use, or of a piece of it, that are to be sent. ``more``: the token's last
        word."""
        first, size = self.place(slot, number)
        value = self.edge.values[number]
        if value.size is not None:
            size = value.in_use(more)
        else:
            if not self.left:
                (total,) = LENGTH.unpack(self.memory[first : first + LENGTH.size].tobytes())
                self.left = ALIGNMENT + total
            size = min(size, self.left)
            self.left = self.left - size if more else 0
        return self.memory[first : first + size]

    def target(self, slot: int, number: int, begin: int = 0) -> Array:
        """Where a value, or a piece of it that begins at this byte, is received. Raises Unfit where there is no such place."""
        if not self.incoming or slot >= self.edge.ring or number >= len(self.edge.values):
            raise Unfit(f"value {number} of slot {slot}")
        first, size = self.place(slot, number)
        if begin >= max(1, size):
            raise Unfit(f"byte {begin} of value {number}, which has {size}")
        return self.memory[first + begin : first + size]

    def check_handed(self, slot: int, first: int, count: int, more: int) -> None:
        """Raises Unfit where these are not the words of a token that hands over values."""
        values = self.edge.values
        within = self.incoming and slot < self.edge.ring and count > 0 and first + count <= max(1, len(values))
        handed = values[first : first + count]
        streams = count == 1 and len(handed) == 1 and handed[0].size is None
        most = 1 if streams else max((value.parts for value in handed if value.parts > 1), default=0)
        if not within or more > most:
            raise Unfit(f"{count} values of slot {slot} from number {first} on")

    def check_freed(self, slot: int, *others: int) -> None:
        """Raises Unfit where these are not the words of a token that gives a slot back."""
        if self.incoming or slot >= self.edge.ring or any(others):
            raise Unfit(f"slot {slot} given back")

    def numbers(self, first: int, count: int) -> range:
        """The values that a token counts; an edge without values counts one that is none."""
        return range(first, min(first + count, len(self.edge.values)))
