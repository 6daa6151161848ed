"""The schedule of a learning rate as an option says it: a text of ``ir.ops.rates``, or a function of the user's.

A function, ``module:function,steps=N``, is called once for each step with the number of steps done before, as ``LambdaLR`` of
PyTorch calls it. Its factors become a table of the program, so no step depends on the function's module any more.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from dnnc.compile.faults import RateFunctionFails, RateFunctionMissing, WrongUpdate
from ir.core.diagnostics import UsageError
from ir.ops.rates import KINDS, TABLE, RateSchedule

MOST_STEPS = 1 << 16
"""Steps of a table at most: the text of each stage has them all."""


def rate_schedule(text: str) -> RateSchedule:
    """Raises UsageError for a text that is no schedule, and for a function that gives no factors."""
    where = f"--learning-rate-schedule {text}"
    name, _, rest = text.partition(",")
    if ":" not in name:
        try:
            return RateSchedule.parse(text)
        except ValueError as error:
            is_kind = name.strip() in KINDS and name.strip() != TABLE
            hint = "" if is_kind else ", or module:function,steps=N"
            raise UsageError(WrongUpdate(f"{error}{hint}"), where=where) from None
    key, _, count = (part.strip() for part in rest.partition("="))
    if key != "steps" or not count.isdecimal() or not 1 <= int(count) <= MOST_STEPS:
        raise UsageError(WrongUpdate(f"a function takes steps=N, from 1 to {MOST_STEPS}, not '{rest}'"), where=where)
    function = _imported(name, where)
    return RateSchedule(TABLE, values=tuple(_factor(function, name, done, where) for done in range(int(count))))


def _imported(name: str, where: str) -> Callable[[int], Any]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's module raises
        raise UsageError(RateFunctionMissing(name, f"{type(error).__name__}: {error}".rstrip(": ")), where=where) from None
    if not callable(function):
        raise UsageError(RateFunctionMissing(name, "it is no function"), where=where)
    found: Callable[[int], Any] = function
    return found


def _factor(function: Callable[[int], Any], name: str, done: int, where: str) -> float:
    try:
        factor = function(done)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(RateFunctionFails(name, done + 1, reason), where=where) from None
    if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= float(factor) < math.inf:
        raise UsageError(RateFunctionFails(name, done + 1, f"it returned {factor!r}"), where=where)
    return float(factor)
