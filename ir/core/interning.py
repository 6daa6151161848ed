"""``Interned``: numbers of immutable objects, by which long keys of equal ops and types become short ones."""

from __future__ import annotations

from collections.abc import Hashable


class Interned:
    """Numbers from 0 on for sequences of immutable objects; equal sequences have equal numbers. A sequence of the very objects
    that were asked for before is found by their identities, so that what many ops share is hashed once."""

    def __init__(self) -> None:
        self._by_value: dict[Hashable, int] = {}
        self._by_identity: dict[tuple[int, ...], tuple[int, tuple[Hashable, ...]]] = {}

    def number(self, *parts: Hashable) -> int:
        """The number of ``parts``."""
        key = tuple(map(id, parts))
        known = self._by_identity.get(key)
        if known is None:  # the parts are held: no other objects get their identities meanwhile
            known = self._by_identity[key] = self._by_value.setdefault(parts, len(self._by_value)), parts
        return known[0]


__all__ = ["Interned"]
