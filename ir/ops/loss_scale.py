"""The scale of a loss whose gradients are computed in half precision, as ``torch.amp.GradScaler`` moves it.

Gradients of a loss are often smaller than a number of 16 bits can be. So the backward pass begins with the scale in place of 1,
and the update divides the gradients by it. Where their norm is no finite number, the scale was too large: no weight changes,
and the scale is multiplied by ``backoff``. After ``interval`` steps in a row whose gradients were finite it is multiplied by
``growth``, unless it would be infinite then.

The text of a scale, ``init=1024,interval=100``, has the numbers that differ from the defaults, which are PyTorch's; ``dynamic``
has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ir.core.attributes import AttrKind, decimal
from ir.core.ops import Op
from ir.core.types import DType, TensorType, Type
from ir.ops.grad_kernels import alike, tensor
from ir.ops.opdefs import PURE, AttrDef, OpDef

LOSS_SCALE = "grad.loss_scale"
SCALE, STEPS, SKIPPED = "loss_scale", "loss_scale.steps", "loss_scale.skipped"
"""The resources that a step keeps: the scale, the steps since it changed, and the steps that were skipped."""
DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class LossScale:
    """See the module's docstring. ``init``: the scale of the first step."""

    init: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    @classmethod
    def parse(cls, text: str) -> LossScale:
        """The scale that ``text`` spells. Raises ValueError with what was expected."""
        names = [field.name for field in fields(cls)]
        numbers: dict[str, float] = {}
        for item in text.split(",") if text != DYNAMIC else ():
            key, equals, value = (part.strip() for part in item.partition("="))
            if key not in names or not equals:
                raise ValueError(f"a loss scale is {DYNAMIC}, or {', '.join(f'{name}=NUMBER' for name in names)}, not '{item}'")
            if key in numbers:
                raise ValueError(f"{key} is given twice")
            try:
                numbers[key] = int(value) if key == "interval" else float(value)
            except ValueError:
                what = "an integer" if key == "interval" else "a number"
                raise ValueError(f"{key} is {what}, not '{value}'") from None
        scale = cls(**numbers)  # type: ignore[arg-type]
        if fault := scale.fault():
            raise ValueError(fault)
        return scale

    def fault(self) -> str:
        """Why the numbers are none of a scale; empty where they are."""
        if not 0 < self.init < math.inf:
            return f"init is a finite number of more than 0, not {self.init:g}"
        if not 1 < self.growth < math.inf:
            return f"growth is a finite number of more than 1, not {self.growth:g}"
        if not 0 < self.backoff < 1:
            return f"backoff is more than 0 and less than 1, not {self.backoff:g}"
        return "" if self.interval >= 1 else f"interval is at least 1 step, not {self.interval}"

    @property
    def text(self) -> str:
        """Parses back."""
        numbers = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return ",".join(f"{name}={value!r}" for name, value, default in numbers if value != default) or DYNAMIC

    def attributes(self) -> dict[str, float]:
        """Those of the op; the scale of the first step is what its resource holds."""
        return {"backoff": float(self.backoff), "growth": float(self.growth), "interval": self.interval}


def moved_by(op: Op) -> tuple[float, float, int]:
    """The factors ``growth`` and ``backoff`` as they were written, and the ``interval``."""
    return decimal(op.get("growth")), decimal(op.get("backoff")), int(op.get("interval"))


def _moves(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    yield from alike(op, types, (0,), (0,))
    number, flag = TensorType(DType.I64, ()), TensorType(DType.BOOL, ())
    for place in (0, 3):
        found = tensor(types[place])
        if found is not None and (found.shape != () or not found.dtype.is_float):
            yield f"{op.name} takes a scalar of floats, not {op.operands[place]} of {found}"
    for place in (1, 2):
        if tensor(types[place]) not in (None, number):
            yield f"{op.name} counts steps as {number}, not {op.operands[place]} of {types[place]}"
    for value, wanted in zip(op.results[1:], (number, number, flag), strict=True):
        if tensor(value.type) != wanted:
            yield f"{op.name} gives {wanted}, not {value.type}"


def _numbers(op: Op) -> Iterable[str]:
    growth, backoff, interval = moved_by(op)
    if fault := LossScale(growth=growth, backoff=backoff, interval=interval).fault():
        yield f"{op.name}: {fault}"


LOSS_SCALE_OP = OpDef(
    LOSS_SCALE,
    (4, 4),
    (4, 4),
    (
        ("backoff", AttrDef(AttrKind.FLOAT, True)),
        ("growth", AttrDef(AttrKind.FLOAT, True)),
        ("interval", AttrDef(AttrKind.INT, True)),
    ),
    traits=frozenset({PURE}),
    check=_numbers,
    typed=_moves,
    doc="The scale of the loss behind a step (`ir/ops/loss_scale.py`): operands are the scale, the steps since it changed, the "
    "skipped steps, and the sum of squares of all gradients. Results are what the first three become, and whether the sum is "
    "finite, so that the step is taken.",
)
"""The op that is defined here."""
