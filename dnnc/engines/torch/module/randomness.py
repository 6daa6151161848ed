"""Random numbers that ``forward`` draws from Python's or numpy's generators, which PyTorch does not see.

The export would hold one draw as a constant. ``refuse_draws`` calls the module once and compares the state of each generator of
the process before and after. Where a state changed, it calls the module again. A generator that ``forward`` seeds itself ends
both calls in the same state: its numbers are constants, and may be exported as such.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from dnnc.engines.torch.module.faults import DrawsElsewhere, ForwardFails
from dnnc.engines.torch.module.places import first_line, is_persons, of_error, of_frame
from ir.core.diagnostics import InvalidInput

_HINT = "put torch.nn.Dropout in its place, or, where forward draws in training alone, call .eval() first"

Generator = random.Random | np.random.BitGenerator


def refuse_draws(module: torch.nn.Module, call: Callable[[], object]) -> None:
    """Raise InvalidInput where ``call``, which calls ``module``, draws from a generator of Python or numpy that goes on from
    call to call. The error names the innermost module and the line. Raise it too where ``call`` raises an exception: the
    export computes without numbers, so it does not see that an index or an offset is wrong."""
    with restored() as before:
        try:
            call()
        except Exception as error:
            where, what = of_error(error, module)
            place = f", in: {what}" if what else ""
            raise InvalidInput(ForwardFails(type(module).__name__, first_line(error), place), where=where) from error
        middle = {one: _state(one) for one, state in before.items() if _state(one) != state}
        if not middle:
            return
        places = _Places(module, middle)
        with places.traced():
            call()
        moved = [one for one, state in middle.items() if _state(one) != state]
        if moved:
            kinds = sorted({"numpy" if isinstance(one, np.random.BitGenerator) else "Python's module random" for one in moved})
            raise InvalidInput(DrawsElsewhere(" and ".join(kinds), _HINT), where=places.drew)


@contextlib.contextmanager
def restored() -> Iterator[dict[Generator, Any]]:
    """The state of each generator of this process; each has it again afterwards."""
    kinds = (random.Random, np.random.BitGenerator)
    gc.unfreeze()  # what is frozen is not among the objects
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds) and not isinstance(one, random.SystemRandom)]
    held = [(one, one.state if isinstance(one, np.random.BitGenerator) else one.getstate()) for one in found]
    try:
        yield {one: _state(one) for one in found}
    finally:
        for one, state in held:
            if isinstance(one, np.random.BitGenerator):
                one.state = state
            else:
                one.setstate(state)


def _state(one: Generator) -> list[Any]:
    """The state in parts that ``==`` compares as a whole."""
    state = one.state if isinstance(one, np.random.BitGenerator) else one.getstate()
    return [part.tobytes() if isinstance(part, np.ndarray) else part for part in tree_flatten(state)[0]]


class _Places:
    """Finds the line that draws: compares the states whenever a line of a person's code begins or a function of it ends."""

    def __init__(self, root: torch.nn.Module, states: dict[Generator, list[Any]]) -> None:
        self.root, self.states = root, states
        self.at = self.drew = ""

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self.entered)
        try:
            yield
        finally:
            sys.settrace(before)

    def entered(self, frame: FrameType, event: str, argument: object) -> Any:
        return self.reached if is_persons(frame.f_code.co_filename) else None

    def reached(self, frame: FrameType, event: str, argument: object) -> Any:
        if self.drew:
            return None
        if self.at and any(_state(one) != state for one, state in self.states.items()):
            self.drew = self.at
        else:
            self.at = of_frame(frame if event != "return" else frame.f_back, self.root)
        return self.reached
