"""What the update of a training step does beside the optimizers: attributes of the entry function, which ``training`` writes
and ``differentiate`` turns into ops.

- ``clip_norm``: the most that the norm of all gradients together may be (``torch.nn.utils.clip_grad_norm_``);
- ``rate``: the schedule of the learning rate, as text (``ir.ops.rates``), and ``rates``, the values of a ``table``;
- ``ema``: the decay of the moving average of each weight that trains;
- ``loss_scale``: how the loss is scaled, as text (``ir.ops.loss_scale``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.core.attributes import Attributes, attributes, decimal
from ir.core.module import Func
from ir.ops.loss_scale import LossScale
from ir.ops.rates import TABLE, RateSchedule, table_of, values_of

KEYS = ("clip_norm", "ema", "loss_scale", "rate", "rates")


@dataclass(frozen=True, slots=True)
class Recipe:
    """``clip_norm``, ``ema``, ``loss_scale``: None where nothing is clipped, averaged or scaled."""

    clip_norm: float | None = None
    schedule: RateSchedule = field(default_factory=RateSchedule)
    ema: float | None = None
    loss_scale: LossScale | None = None

    @classmethod
    def of(cls, func: Func) -> Recipe:
        """Raises ValueError for attributes that say none."""
        found = {key: attribute.value for key, attribute in func.attributes if key in KEYS}
        for key in ("clip_norm", "ema"):
            if key in found and not isinstance(found[key], float):
                raise ValueError(f"{key} is a number, not {found[key]!r}")
        clip_norm, ema = (decimal(found[key]) if key in found else None for key in ("clip_norm", "ema"))
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is more than 0, not {clip_norm:g}")
        if ema is not None and not 0 <= ema <= 1:
            raise ValueError(f"ema is a decay of 0 to 1, not {ema:g}")
        loss_scale = LossScale.parse(str(found["loss_scale"])) if "loss_scale" in found else None
        text = str(found.get("rate", "constant"))
        if text != TABLE:
            return cls(clip_norm, RateSchedule.parse(text), ema, loss_scale)
        schedule = RateSchedule(TABLE, values=values_of(found.get("rates")))
        if fault := schedule.fault():
            raise ValueError(fault)
        return cls(clip_norm, schedule, ema, loss_scale)

    def attributes(self) -> Attributes:
        """Those of the function."""
        fields: dict[str, object] = {}
        if self.clip_norm is not None:
            fields["clip_norm"] = float(self.clip_norm)
        if self.ema is not None:
            fields["ema"] = float(self.ema)
        if self.loss_scale is not None:
            fields["loss_scale"] = self.loss_scale.text
        if self.schedule.changes:
            fields["rate"] = self.schedule.text
        if self.schedule.kind == TABLE:
            fields["rates"] = table_of(self.schedule.values)
        return attributes(fields)
