"""The batch of a training step in one piece: what the unsplit model computes where there are no microbatches.

The forward program says the sizes of one microbatch. For the batch the first dimension of everything that is made of inputs is
as many times as long as there are microbatches. Not every model means that: sizes may be written into it, samples may lie along
another dimension, or depend on each other. So the loss of each sample is compared, once, with what the microbatches give one by
one; where they differ, or the model does not run so, there is a reason in words in place of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dnnc.build.training import Step, tensor_type
from dnnc.data.samples import Data
from dnnc.engines.torch.checkpoint import from_array
from dnnc.engines.torch.statements.run import compiled
from ir.core.module import Func
from ir.core.ops import Op, Value
from ir.core.types import TensorType, type_bytes
from ir.ops.grads import BATCH_NORMALIZATION, DRAWS
from passes.costs.learning import CROSS_ENTROPY, IGNORED, StepLoss

MOST = 4 << 30
"""Bytes of values that a batch in one piece may have: autograd keeps most of them."""
_SAME = 1e-4
"""The difference of losses of samples, over their range, that rounding alone explains."""
_REDUCING = frozenset({"onnx.Div", "onnx.ReduceMean", "onnx.ReduceSum", "onnx.Reshape", "onnx.Squeeze"})
"""What leads from the losses of samples to that of the batch."""
CPU = torch.device("cpu")

Tensors = Mapping[str, torch.Tensor]
Run = Callable[[Tensors, Any], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class SampleLosses:
    """The losses of samples, of which the loss of a step is the sum over all microbatches, divided by how many count. Neither
    the ops of the plan that do this nor the number that ranks are given for it are asked.

    ``func``: the forward program, which returns the losses of samples alone; of a loss that is the model's own that of a
    microbatch, as if of one sample. ``known``: whether it is of samples."""

    func: Func
    loss: StepLoss
    known: bool

    @classmethod
    def of(cls, step: Step, forward: Func) -> SampleLosses:
        loss = StepLoss.of(step.module.entry)
        func = _of_samples(forward, loss) if loss.kind in (CROSS_ENTROPY, "mse") else None
        return cls(func or forward, loss, func is not None)

    def labels(self, data: Data, microbatches: Iterable[int]) -> int:
        """How many labels count in these microbatches, at least one; 0 of a loss of which all samples count."""
        if not self.known or not self.loss.counted:
            return 0
        labels = (from_array(data.array(number, self.loss.labels)) for number in microbatches)
        return max(1, sum(int((array != IGNORED).sum()) for array in labels))

    @staticmethod
    def share(each: torch.Tensor, count: int) -> torch.Tensor:
        """What these losses add to that of a step in which so many count."""
        return each.sum() / count


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """The unsplit forward program for all microbatches of a step at once."""

    step: Step
    data: Data
    run: Run
    each: SampleLosses

    @classmethod
    def of(cls, step: Step, each: SampleLosses, data: Data, weights: Tensors) -> tuple[WholeBatch | None, str]:
        """The batch of steps, or None and why it cannot be taken in one piece. ``weights`` are those before the first step."""
        if reason := _why_not(step, each):
            return None, reason
        batch = cls(step, data, compiled(step.module, _longer(each.func, step.microbatches)), each)
        alone = compiled(step.module, each.func)
        with torch.no_grad():
            parts = [alone({**weights, **_inputs(data.microbatch(number))}, CPU)[0] for number in range(step.microbatches)]
            try:
                found = batch.run({**weights, **batch.inputs(0)}, CPU)[0]
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                said = str(error).strip().partition("\n")[0]
                return None, f"the model does not run on a batch of another size: {said}"
        if not _alike(torch.cat(parts), found):
            return None, "the model computes other losses of the samples of a batch in one piece"
        return batch, ""

    def inputs(self, number: int) -> dict[str, torch.Tensor]:
        """Of step ``number``, counted from 0: the microbatches one after another."""
        parts = [_inputs(self.data.microbatch(one)) for one in self.numbers(number)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name[1:] != self.each.loss.counted}

    def numbers(self, number: int) -> range:
        """The microbatches of step ``number``."""
        return range(number * self.step.microbatches, (number + 1) * self.step.microbatches)

    def loss_of(self, weights: Tensors, number: int) -> torch.Tensor:
        """The loss of step ``number`` with these weights."""
        each = self.run({**weights, **self.inputs(number)}, CPU)[0]
        return self.each.share(each, self.each.labels(self.data, self.numbers(number)) or each.numel())


def _inputs(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {f"%{name}": from_array(array) for name, array in arrays.items()}


def _why_not(step: Step, each: SampleLosses) -> str:
    """What the plan or the model already says against a batch in one piece; empty for nothing."""
    forward, loss = each.func, each.loss
    if step.schedule.periodic:
        return "weights change while the microbatches of a step are under way"
    if any(op.name == BATCH_NORMALIZATION and op.get("training_mode", 0) for op in forward.ops):
        return "batch normalisation takes the statistics of each microbatch"
    if any(op.name in DRAWS for op in forward.ops):
        return "dropout and noise draw other numbers for each microbatch"
    if loss.kind not in (CROSS_ENTROPY, "mse"):
        return "the loss is the model's own: of a step it is the mean over the microbatches"
    if not each.known:
        return "the loss is of one number, not of samples"
    without = next((arg.name[1:] for arg in forward.args if not tensor_type(arg.type).shape), None)
    if without is not None:
        return f"input '{without}' has no dimension along which samples lie"
    size = step.microbatches * sum(type_bytes(value.type) or 0 for op in forward.ops for value in op.results)
    return f"it would take {size / 2**30:.1f} GiB" if size > MOST else ""


def _of_samples(forward: Func, loss: StepLoss) -> Func | None:
    """The program up to the value whose sum or mean is the loss, which it returns; None where that is a scalar itself."""
    maker: dict[str, tuple[Op, Value]] = {value.name: (op, value) for op in forward.ops for value in op.results}
    name, reducing = forward.results[0].name, list[Op]()
    while name in maker:
        op, value = maker[name]
        if tensor_type(value.type).shape:
            args = tuple(arg for arg in forward.args if arg.name[1:] != loss.counted)
            return replace(forward, args=args, ops=tuple(op for op in forward.ops if op not in reducing), results=(value,))
        if op.name not in _REDUCING:
            return None
        reducing.append(op)
        name = op.operands[0]
    return None


def _longer(func: Func, times: int) -> Func:
    """The function with the first dimension of all that is made of its arguments so many times as long."""
    carried = {arg.name for arg in func.args}
    ops = []
    for op in func.ops:
        if not carried.isdisjoint(op.operands):
            carried.update(value.name for value in op.results)
            op = replace(op, results=_stretched(op.results, times))
        ops.append(op)
    results = tuple(_stretched((value,), times)[0] if value.name in carried else value for value in func.results)
    return replace(func, args=_stretched(func.args, times), ops=tuple(ops), results=results)


def _stretched(values: Sequence[Value], times: int) -> tuple[Value, ...]:
    found = []
    for value in values:
        type_ = value.type
        if isinstance(type_, TensorType) and type_.shape and isinstance(type_.shape[0], int):
            value = replace(value, type=replace(type_, shape=(type_.shape[0] * times, *type_.shape[1:])))
        found.append(value)
    return tuple(found)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return False
    scale = float(one.max() - one.min()) or float(one.abs().max()) or 1.0
    return float((one - other).abs().max()) <= _SAME * scale
