"""The loss and the metrics of the model on data of their own: a pass over all of them, in the mode of inference.

Rank 0 computes the unsplit model, while the others wait: batch normalisation uses its running averages, dropouts drop nothing.
Of a cross entropy the metrics are ``accuracy``, the fraction of labels that count whose class has the highest score, and
``perplexity``, exp(loss). The loss is the mean over all samples (over labels that count), so it does not depend on how samples
are dealt to microbatches. A loss that the model computes itself is the mean over whole microbatches; ``left_out`` is then the
number of samples behind the last of them, where there are any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dnnc.build.training import Step
from dnnc.data.samples import one_pass, verify_pass
from dnnc.engines.torch.check.batch import CPU, SampleLosses
from dnnc.engines.torch.checkpoint import from_array
from dnnc.engines.torch.faults import NothingEvaluated
from dnnc.engines.torch.statements.run import compiled
from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Func
from ir.core.ops import Op, Value
from ir.ops.grads import BATCH_NORMALIZATION, MASK
from passes.costs.learning import CROSS_ENTROPY, IGNORED

_ENTROPY = "onnx.SoftmaxCrossEntropyLoss"

Metrics = dict[str, float]
"""``loss``, and for a cross entropy ``accuracy`` and ``perplexity``; ``left_out``, samples that were not evaluated."""


@dataclass
class _Sums:
    loss: float = 0.0
    count: int = 0
    right: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class Evaluation:
    """``run``: the unsplit model, which returns the losses of samples and, where there are any, scores and labels; ``held``:
    tensors that training does not change."""

    step: Step
    source: str
    seed: int
    losses: SampleLosses
    scored: tuple[Value, ...]
    run: Callable[[Mapping[str, torch.Tensor], Any], tuple[torch.Tensor, ...]]
    held: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, step: Step, forward: Func, held: Mapping[str, torch.Tensor], source: str, seed: int) -> Evaluation:
        """Of the data ``source``, which are opened and verified now. ``forward``: the forward ops of the unsplit model. Raises
        UsageError, InvalidInput."""
        verify_pass(source, step.module, seed)
        losses = SampleLosses.of(step, in_inference(forward))
        scored = _scores(losses) if losses.loss.kind == CROSS_ENTROPY else ()
        func = replace(losses.func, results=(*losses.func.results, *scored))
        return cls(step, source, seed, losses, scored, compiled(step.module, func), held)

    def __call__(self, weights: Mapping[str, torch.Tensor], mark: Callable[[str], None]) -> Metrics:
        """``weights``: those that training changes, whole, by name. ``mark``: is told what is done. Raises InvalidInput for
        data that do not fit the model."""
        values = {**self.held, **{f"@{name}": tensor for name, tensor in weights.items()}}
        sums = _Sums()
        with torch.no_grad():
            for number, (arrays, counting) in enumerate(one_pass(self.source, self.step.module, self.seed)):
                mark(f"evaluating microbatch {number}")
                inputs = {f"%{name}": from_array(array) for name, array in arrays.items()}
                self._add(sums, self.run({**values, **inputs}, CPU), counting)
                if not self.losses.known and counting < 1.0:
                    sums.left_out += round(counting * len(next(iter(arrays.values()))))
        if not sums.count:
            raise InvalidInput(NothingEvaluated(), where=self.source)
        loss = sums.loss / sums.count
        if self.losses.loss.kind != CROSS_ENTROPY:
            return {"loss": loss, **({"left_out": float(sums.left_out)} if sums.left_out else {})}
        accuracy = {"accuracy": sums.right / sums.count} if self.scored else {}
        return {"loss": loss, **accuracy, "perplexity": math.exp(min(loss, 700.0))}

    def _add(self, sums: _Sums, results: tuple[torch.Tensor, ...], counting: float) -> None:
        """Adds a microbatch, of which the fraction ``counting`` counts."""
        each = results[0]
        if not self.losses.known:
            if counting == 1.0:
                sums.loss, sums.count = sums.loss + float(each), sums.count + 1
        elif not self.losses.loss.counted:
            rows = each[: round(counting * len(each))]
            sums.loss, sums.count = sums.loss + float(rows.double().sum()), sums.count + rows.numel()
        elif self.scored:
            scores, labels = results[1:]
            counts = labels != IGNORED
            sums.loss, sums.count = sums.loss + float(each.double().sum()), sums.count + int(counts.sum())
            sums.right += int(((scores.argmax(1) == labels) & counts).sum())


def in_inference(forward: Func) -> Func:
    """The forward ops as they infer: batch normalisation by its running averages, masks of dropouts that keep all."""
    ops, named = list[Op](), dict[str, str]()
    for op in forward.ops:
        op = replace(op, operands=tuple(named.get(name, name) for name in op.operands))
        if op.name == BATCH_NORMALIZATION and op.get("training_mode", 0):
            named.update((value.name, name) for value, name in zip(op.results[1:3], op.operands[3:5], strict=False))
            op = replace(op, results=op.results[:1], attributes=_with(op, training_mode=0))
        elif op.name == MASK:
            op = replace(op, attributes=_with(op, ratio=0.0))
        ops.append(op)
    return replace(forward, ops=tuple(ops))


def _with(op: Op, **changed: Any) -> Any:
    names = {name for name, _ in attributes(**changed)}
    return tuple(sorted([*(one for one in op.attributes if one[0] not in names), *attributes(**changed)]))


def _scores(losses: SampleLosses) -> tuple[Value, ...]:
    """The scores and the labels of the cross entropy; empty where no op has them."""
    op = next((op for op in losses.func.ops if op.name == _ENTROPY), None)
    values = {value.name: value for value in losses.func.args}
    values |= {value.name: value for one in losses.func.ops for value in one.results}
    return tuple(values[name] for name in op.operands[:2]) if op is not None and values.keys() >= {*op.operands[:2]} else ()


__all__ = ["Evaluation", "Metrics", "in_inference"]
