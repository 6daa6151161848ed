"""Completion in bash, whose words are not ours.

Bash breaks words at ``:`` and ``=`` too (``COMP_WORDBREAKS``): it hands over ``zoo:gp`` as ``zoo``, ``:``, ``gp``, and puts
what it is told in the place of the last piece alone. So the pieces are joined before anything is completed, and what stands
before the last piece is taken off each answer. Other shells hand over whole words.
"""

from __future__ import annotations

import io
from collections.abc import Callable, MutableMapping
from contextlib import redirect_stdout

VARIABLE = "_DNNC_COMPLETE"
"""The environment variable by which a shell asks."""

_BREAKS = frozenset((":", "="))


def complete(environment: MutableMapping[str, str], answer: Callable[[], object]) -> str:
    """What the shell is to be told; ``answer`` prints the completions of the words in ``environment``."""
    prefix = ""
    if environment[VARIABLE] == "complete_bash" and environment.get("COMP_CWORD", "").isdigit():
        words = environment.get("COMP_WORDS", "").split("\n")
        if len(words) > 1:  # one word per line, as the installed script sends them
            words, current, prefix = joined(words, int(environment["COMP_CWORD"]))
            environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(words), str(current)
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            answer()
    except SystemExit:
        pass
    return "".join(line.removeprefix(prefix) for line in out.getvalue().splitlines(keepends=True))


def joined(words: list[str], current: int) -> tuple[list[str], int, str]:
    """The words as they were typed, the index of the one being typed, and the part of it that stands before its last piece.

    A break and its neighbours are one word; an empty word behind a break is a new one, for bash sends none within a word."""
    found: list[str] = []
    place, prefix, open_ = 0, "", False
    for index, word in enumerate(words):
        is_break = bool(word) and set(word) <= _BREAKS
        if found and ((is_break and index > 1) or (open_ and word)):
            before = found.pop()
        else:
            before = ""
        found.append(before + word)
        open_ = is_break
        if index == current:
            place, prefix = len(found) - 1, found[-1] if is_break else before
    return found, place, prefix
