"""Finds the op that made the first NaN or infinity of a training step.

After each phase of a microbatch its results are looked at: values that leave the stage whole, of large gradients the first row
and column, which a NaN on its way back reaches in every product. Where one is not finite, the phases of this microbatch run
again, watched line by line (``sys.settrace``): from the result the search goes back over operands that are not finite to an op
whose operands are. Minus infinity is no fault where a mask has it, so results of the forward pass may hold it, and the search
goes on to an op that made it only where that op computes (a logarithm, a quotient).

A phase that runs again computes no collective, since other members do not join. It gets the results of the small ones, such as
the sum of a loss, which were kept; at another it ends. Then the first op before it that made one is told, or, where there is
none, what was seen: the member whose op it was tells more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from dnnc.engines.torch.faults import OpNotFinite, ResultNotFinite
from dnnc.engines.torch.write.stage_file import variables_of
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module, Program
from ir.core.ops import Op
from ir.ops.opdefs import is_collective

_SMALL = 1 << 14
"""Elements up to which a gradient is looked at whole."""
_COMPUTE = frozenset(f"onnx.{name}" for name in ("Log", "Div", "Reciprocal", "Pow", "ReduceLogSum", "LogSoftmax"))
"""Ops that can make minus infinity of finite numbers (the logarithm of 0). Where another op of the forward pass holds minus
infinity, a mask put it there."""


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite."""
    if not tensor.dtype.is_floating_point or not tensor.numel():
        return True
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


def looks_finite(tensor: torch.Tensor) -> bool:
    """Whether the elements of a gradient that are looked at are finite."""
    if tensor.dim() < 2 or tensor.numel() <= _SMALL:
        return is_finite(tensor)
    return is_finite(tensor[0]) and is_finite(tensor[:, 0])


def word(tensor: torch.Tensor) -> str:
    """``NaN``, ``infinity`` or ``-infinity``, whichever is first in a tensor, in this order; empty for finite ones."""
    if is_finite(tensor):
        return ""
    if bool(torch.isnan(tensor).any()):
        return "NaN"
    return "infinity" if bool((tensor == math.inf).any()) else "-infinity"


class _Stopped(Exception):
    """A phase that runs again came to a collective."""


class _Alone:
    """What a phase that runs again calls ``comm``. ``heard``: results of its collectives, by channel."""

    def __init__(self, place: int, heard: Mapping[int, torch.Tensor]) -> None:
        self.place, self.heard = place, heard

    def add(self, *terms: Any, **fields: Any) -> None:
        """Sums of gradients are not made."""

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        def collective(operand: Any, channel: int, *more: Any, **named: Any) -> torch.Tensor:
            if channel not in self.heard:
                raise _Stopped
            return self.heard[channel].clone()

        return collective


@dataclass
class Search:
    """A microbatch of a stage of which a result is not finite. ``phases``: the functions that ran, in order, and what each
    received, and the results of its collectives; ``found``: what each value was seen to hold, by its name in the IR."""

    module: Module
    program: Program
    place: int
    stage: int
    step: int
    microbatch: int
    phases: Sequence[tuple[Callable[..., Any], Mapping[str, torch.Tensor], Mapping[int, torch.Tensor]]]
    weights: Mapping[str, torch.Tensor]
    found: dict[str, str] = field(default_factory=dict)

    def refuse(self, results: Sequence[str]) -> NoReturn:
        """Raises InvalidInput that names the op. ``results``: those that were seen not to be finite."""
        self._run()
        origin = next((origin for name in results if (origin := self._origin(f"%{name}")) is not None), None)
        self._raise(origin or self._first(), results)

    def refuse_computed(self, results: Sequence[str]) -> None:
        """Raises InvalidInput where minus infinity in one of these results comes from an op that computes, not from a mask."""
        self._run()
        for name in results:
            if (computed := self._computed(f"%{name}")) is not None:
                self._raise((self.makers[computed], computed), results)

    def _raise(self, origin: tuple[Op, str] | None, results: Sequence[str]) -> NoReturn:
        where = f"step {self.step}"
        if origin is None:
            name = f"%{next(iter(results), '')}"
            maker = self.makers.get(name)
            word = self.found.get(name) or "NaN"
            raise InvalidInput(ResultNotFinite(name[1:], self.stage, word, maker.name if maker else "an op"), where=where)
        op, name = origin
        place = "/".join(filter(None, (op.location.path, op.location.node.lstrip("/"))))
        of = "finite numbers" if not any(self.found.get(one) for one in op.operands if one) else "-infinity"
        made = OpNotFinite(op.name, self.found[name], of, name[1:], self.stage, self.microbatch, place)
        raise InvalidInput(made, where=where)

    @property
    def makers(self) -> Mapping[str, Op]:
        """The op that makes each value of the program."""
        return {value.name: op for op in self.program.ops for value in op.results}

    def _run(self) -> None:
        """Runs the phases again, up to a collective."""
        variables = {variable: name for name, variable in variables_of(self.module, self.program).items()}
        saved: dict[str, torch.Tensor] = {}
        with suppress(_Stopped):
            for function, inputs, heard in self.phases:
                _, _, saved = self._watched(function, inputs, heard, saved, variables)

    def _watched(
        self,
        function: Callable[..., Any],
        inputs: Mapping[str, torch.Tensor],
        heard: Mapping[int, torch.Tensor],
        saved: dict[str, torch.Tensor],
        variables: Mapping[str, str],
    ) -> Any:
        """Runs a function, and sees what each of its variables holds."""
        code, seen = getattr(function, "__code__", None), dict[str, int]()

        def look(frame: Any, event: str, argument: Any) -> Any:
            for variable, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor) and seen.get(variable) != id(value):
                    seen[variable] = id(value)
                    self.found[variables.get(variable, "")] = word(value)
            return look

        before = sys.gettrace()
        sys.settrace(lambda frame, event, argument: look if frame.f_code is code else None)
        try:
            with torch.no_grad():
                return function(self.weights, inputs, saved, _Alone(self.place, heard))
        finally:
            sys.settrace(before)

    def _origin(self, name: str) -> tuple[Op, str] | None:
        """The op behind a value that is not finite, whose operands are, and its result; None where it is of no op, or of a
        collective, whose other operands other members know."""
        makers, visited = self.makers, set[str]()
        while self.found.get(name) and name in makers and name not in visited:
            visited.add(name)
            operands = [one for one in makers[name].operands if self.found.get(one)]
            behind = [one for kind in ("NaN", "infinity") for one in operands if self.found[one] == kind]
            computed = next((one for operand in operands if (one := self._computed(operand)) is not None), None)
            if not behind:
                name = computed or name
                return None if is_collective(makers[name]) else (makers[name], name)
            name = behind[0]
        return None

    def _computed(self, name: str) -> str | None:
        """The value that first held the minus infinity of this one, where an op computed it; None where a mask has it."""
        makers, waiting, visited = self.makers, [name], set[str]()
        while waiting:
            one = waiting.pop()
            if one in visited or self.found.get(one) != "-infinity" or one not in makers:
                continue
            visited.add(one)
            if makers[one].name in _COMPUTE and not any(self.found.get(operand) for operand in makers[one].operands):
                return one
            waiting += makers[one].operands
        return None

    def _first(self) -> tuple[Op, str] | None:
        """The first op that made NaN or infinity of finite operands, of those that were seen and are no collectives."""
        for name, op in self.makers.items():
            made = self.found.get(name) in ("NaN", "infinity") or self._computed(name) == name
            if made and not is_collective(op) and not any(self.found.get(one) for one in op.operands if one):
                return op, name
        return None
