"""The cache of compiled kernels: one of an older version of the package is no fault, and is not used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from passes.solvers.kernels import numba, part

KERNEL = """
from typing import NamedTuple
from passes.solvers.kernels import compiled

class Before(NamedTuple):
    number: int

@compiled
def add(given):
    return given.number + 1

answer = add(Before(1))
"""


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], int]:
    """Writes modules, the text of each by its name, and imports the last one anew with a cache of its own: its ``answer``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported(texts: dict[str, str]) -> int:
        for name, text in texts.items():
            file = tmp_path / f"{name}.py"
            if not file.exists() or file.read_text() != text:  # what did not change keeps its time
                file.write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        found: int = importlib.import_module(list(texts)[-1]).answer
        return found

    return imported


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels are not compiled")
def test_a_cache_that_names_what_is_no_more_is_made_anew(answer: Callable[[dict[str, str]], int], tmp_path: Path) -> None:
    """The index of a kernel's cache holds the types of its arguments: a tuple that had been renamed ended the process."""
    for text in (KERNEL, KERNEL.replace("Before", "Behind")):
        assert answer({"kernel_of_a_test": text}) == 2
    assert list((tmp_path / "cache").rglob("*.nbi"))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels are not compiled")
def test_what_another_file_brings_into_a_kernel_is_not_kept(answer: Callable[[dict[str, str]], int]) -> None:
    """A kernel is compiled with those that it calls and with the numbers that it names."""
    caller = "from other_of_a_test import ADDED, more\nfrom passes.solvers.kernels import compiled\n\n"
    caller += "@compiled\ndef add(number):\n    return more(number) + ADDED\n\nanswer = add(1)\n"
    other = (
        "from passes.solvers.kernels import {how}\nADDED = {added}\n\n@{how}\ndef more(number):\n    return number + {number}\n"
    )
    for how, added, number in (("compiled", 1, 1), ("inlined", 5, 7), ("inlined", 5, 9)):
        texts = {"other_of_a_test": other.format(how=how, added=added, number=number), "caller_of_a_test": caller}
        assert answer(texts) == 1 + number + added


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels are not compiled")
def test_a_part_of_kernels_has_no_call_from_python() -> None:
    """Also once a kernel has compiled it: there is no code that would read the arguments."""

    @part
    def half(number: float) -> float:
        return number / 2.0

    def quarter(number: float) -> float:
        return half(half(number))

    jit = numba.njit(quarter)
    for _ in range(2):
        with pytest.raises(TypeError, match="half is a part of kernels"):
            half(1.0)
        assert jit(1.0) == 0.25
