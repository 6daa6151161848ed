"""Completion in bash, which breaks words that belong together.

Bash breaks words at ``:`` and ``=`` too (``COMP_WORDBREAKS``): it passes ``zoo:gp`` as ``zoo``, ``:``, ``gp``, and replaces
only the last piece by the answer. So the pieces are joined before completion, and the part before the last piece is removed
from each answer. Other shells pass whole words."""

from __future__ import annotations

import io
from collections.abc import Callable, MutableMapping
from contextlib import redirect_stdout

VARIABLE = "_DNNC_COMPLETE"
"""The environment variable by which a shell asks."""

_BREAKS = frozenset((":", "="))


def complete(environment: MutableMapping[str, str], answer: Callable[[], object]) -> str:
    """The completions for the shell; ``answer`` prints those of the words in ``environment``."""
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
    whole: list[str] = []
    place, prefix, open_ = 0, "", False
    for index, word in enumerate(words):
        is_break = bool(word) and set(word) <= _BREAKS
        if whole and ((is_break and index > 1) or (open_ and word)):
            before = whole.pop()
        else:
            before = ""
        whole.append(before + word)
        open_ = is_break
        if index == current:
            place, prefix = len(whole) - 1, whole[-1] if is_break else before
    return whole, place, prefix
