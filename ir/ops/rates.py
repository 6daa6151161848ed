"""Schedules of a learning rate: the factor by which it is multiplied in each step.

A schedule has a text, ``cosine,steps=1000,warmup=100``: its kind, then numbers by name. With t the number of steps done before
and behind a ``warmup`` of W steps (t = 0 in step W), and T = ``steps`` - W, the factor of a step is

| kind | factor | in ``torch.optim.lr_scheduler`` |
|---|---|---|
| ``constant`` | 1 | ``ConstantLR(factor=1)`` |
| ``linear`` | 1 + (``end`` - 1) t / T | ``LinearLR(1, end, T)`` |
| ``cosine`` | ``end`` + (1 - ``end``) (1 + cos(pi t / T)) / 2 | ``CosineAnnealingLR(T, eta_min=end * rate)`` |
| ``step`` | ``factor`` to the power of floor(t / ``every``) | ``StepLR(every, factor)`` |
| ``table`` | ``values[t]`` | ``LambdaLR(values.__getitem__)`` |

``linear`` and ``cosine`` stay at ``end`` (default 0) behind ``steps``, a ``table`` at its last value. During the warm-up the
factor of step k, counted from 0, is ``start`` + (1 - ``start``) k / W, as of ``LinearLR(start, 1, W)`` in a ``SequentialLR``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ir.core.attributes import Attributes, Dense, attributes, decimal
from ir.core.ops import Op
from ir.core.types import DType, TensorType

CONSTANT, LINEAR, COSINE, STEPS, TABLE = "constant", "linear", "cosine", "step", "table"
_WARMUP = ("warmup", "start")
KINDS = {
    CONSTANT: _WARMUP,
    LINEAR: ("steps", "end", *_WARMUP),
    COSINE: ("steps", "end", *_WARMUP),
    STEPS: ("every", "factor", *_WARMUP),
    TABLE: (),
}
"""The numbers of each kind, in the order of its text."""
_WHOLE = ("warmup", "steps", "every")


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """See the module's docstring. ``values``: of a ``table``."""

    kind: str = CONSTANT
    warmup: int = 0
    start: float = 0.0
    steps: int = 0
    end: float = 0.0
    every: int = 0
    factor: float = 0.1
    values: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> RateSchedule:
        """The schedule that ``text`` spells. Raises ValueError with what was expected."""
        kind, *items = (part.strip() for part in text.split(","))
        if kind not in KINDS or kind == TABLE:
            known = [name for name in KINDS if name != TABLE]
            raise ValueError(f"a schedule is {', '.join(known[:-1])} or {known[-1]}, not '{kind}'")
        numbers: dict[str, Any] = {}
        for item in items:
            key, equals, value = (part.strip() for part in item.partition("="))
            if key not in KINDS[kind] or not equals:
                raise ValueError(f"{kind} takes {', '.join(f'{name}=NUMBER' for name in KINDS[kind])}, not '{item}'")
            if key in numbers:
                raise ValueError(f"{key} is given twice")
            try:
                numbers[key] = int(value) if key in _WHOLE else float(value)
            except ValueError:
                raise ValueError(f"{key} is {'an integer' if key in _WHOLE else 'a number'}, not '{value}'") from None
        schedule = cls(kind, **numbers)
        if fault := schedule.fault():
            raise ValueError(fault)
        return schedule

    def fault(self) -> str:
        """Why the numbers are none of a schedule; empty where they are."""
        if self.kind not in KINDS:
            return f"a schedule is {', '.join(KINDS)}, not '{self.kind}'"
        if self.warmup < 0:
            return f"warmup is at least 0 steps, not {self.warmup}"
        if self.kind in (LINEAR, COSINE) and self.steps <= self.warmup:
            least = "steps is at least 1" if not self.warmup else f"steps is more than warmup={self.warmup}, which it includes"
            return f"{least}, not {self.steps}"
        if self.kind == STEPS and self.every < 1:
            return f"every is at least 1 step, not {self.every}"
        for name in ("start", "end", "factor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                return f"{name} is a finite number of at least 0, not {value:g}"
        if self.kind == TABLE and not (self.values and all(math.isfinite(value) for value in self.values)):
            return "a table has at least one value, and all are finite"
        return ""

    @property
    def text(self) -> str:
        """Parses back, but for the values of a ``table``."""
        default = RateSchedule()
        numbers = [(name, getattr(self, name)) for name in KINDS[self.kind]]
        return ",".join([self.kind, *(f"{name}={value!r}" for name, value in numbers if value != getattr(default, name))])

    @property
    def changes(self) -> bool:
        """Whether any factor differs from 1."""
        return self.kind != CONSTANT or self.warmup > 0

    def at(self, done: int) -> float:
        """The factor of the step before which ``done`` steps were done."""
        if done < self.warmup:
            return self.start + (1.0 - self.start) * done / self.warmup
        since = done - self.warmup
        passed = min(1.0, since / max(1, self.steps - self.warmup))
        match self.kind:
            case "linear":
                return 1.0 + (self.end - 1.0) * passed
            case "cosine":
                return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * passed)) / 2.0
            case "step":
                return float(self.factor ** (since // self.every))
            case "table":
                return self.values[min(since, len(self.values) - 1)]
        return 1.0

    # -- as attributes of an op or a function --------------------------------------------------------------------------

    def attributes(self) -> Attributes:
        """Those of ``grad.rate``."""
        if self.kind == TABLE:
            return attributes(kind=self.kind, values=table_of(self.values))
        return attributes(kind=self.kind, **{name: getattr(self, name) for name in KINDS[self.kind]})

    @classmethod
    def of(cls, op: Op) -> RateSchedule:
        """The schedule of a ``grad.rate``, its numbers as they were written."""
        kind = op.get("kind")
        if kind == TABLE:
            return cls(TABLE, values=values_of(op.get("values")))
        numbers: dict[str, Any] = {name: op.get(name, getattr(cls(), name)) for name in KINDS.get(kind, ())}
        numbers = {name: value if name in _WHOLE else decimal(value) for name, value in numbers.items()}
        return cls(kind, **numbers)


def table_of(values: Sequence[float]) -> Dense:
    """Factors as a constant tensor of f64."""
    return Dense(TensorType(DType.F64, (len(values),)), struct.pack(f"<{len(values)}d", *values))


def values_of(dense: object) -> tuple[float, ...]:
    """The factors of such a tensor; none of anything else."""
    if not isinstance(dense, Dense) or dense.type.dtype is not DType.F64 or not isinstance(dense.data, bytes):
        return ()
    return struct.unpack(f"<{len(dense.data) // 8}d", dense.data)
