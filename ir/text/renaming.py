"""Renamings derive the names in a copy from those in the original (``h.0`` -> ``h.7``), so that no list of names is needed.

A renaming is a list of pairs of prefixes: a text that begins with the first prefix of a pair gets the second instead; of
several matching pairs the longest prefix counts. ``h.1`` is no prefix of ``h.10``, because a number counts as a whole. A text
without a common prefix is a pair of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Renaming:
    """``pairs``: from, to, from, to.. ``renamed(text)`` is what ``text`` is called in the copy."""

    def __init__(self, pairs: Sequence[str] = ()) -> None:
        self.pairs = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self._lengths = sorted({len(text) for text in self.pairs}, reverse=True)

    def add(self, before: str, after: str) -> None:
        self.pairs[before] = after
        self._lengths = sorted({*self._lengths, len(before)}, reverse=True)

    def renamed(self, text: str) -> str:
        for length in self._lengths:
            if (after := self.pairs.get(text[:length])) is not None and length <= len(text) and not _cut(text, length):
                return after + text[length:]
        return text

    def name(self, name: str) -> str:
        """As ``renamed``, of a name with its sigil; the absent name stays absent."""
        return name[:1] + self.renamed(name[1:])

    def flat(self) -> tuple[str, ...]:
        """The pairs as the constructor takes them, sorted."""
        return tuple(text for pair in sorted(self.pairs.items()) for text in pair)


def renaming(texts: Iterable[tuple[str, str]]) -> Renaming | None:
    """A renaming that gives the second of each pair of ``texts`` for the first; None where there is none: a text that becomes
    two, or an empty one. Beginnings that end in a number are tried before whole texts."""
    wanted: dict[str, str] = {}
    pairs = Renaming()
    for before, after in texts:
        if wanted.setdefault(before, after) != after or (before != after and not (before and after)):
            return None
        if pairs.renamed(before) != after:
            begins = _beginnings(before, after)
            pairs.add(*(begins if begins and begins[0] not in pairs.pairs else (before, after)))
    # A beginning that was found late, or a whole text, may be one of a text that was right before.
    while wrong := [(before, after) for before, after in wanted.items() if pairs.renamed(before) != after]:
        for before, after in wrong:
            pairs.add(before, after)
    return pairs


def _beginnings(before: str, after: str) -> tuple[str, str] | None:
    """The beginnings that end in the first number by which two texts differ, where they differ by nothing else."""
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    while start and _is_digit(before[start - 1]):
        start -= 1
    one, other = _number_end(before, start), _number_end(after, start)
    if one == start or other == start or before[one:] != after[other:]:
        return None
    return before[:one], after[:other]


def _number_end(text: str, start: int) -> int:
    while start < len(text) and _is_digit(text[start]):
        start += 1
    return start


def _cut(text: str, length: int) -> bool:
    """Whether a number would be cut behind ``length`` characters."""
    return 0 < length < len(text) and _is_digit(text[length]) and _is_digit(text[length - 1])


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"
