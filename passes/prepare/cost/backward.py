"""Cost of the ops of ``grad`` in a microbatch: masks of dropouts, what is detached, and the backward kernels, of which it is
what the facts ``input_grad`` and ``weight_grad`` of the forward op say, counted on the op that does it."""

from __future__ import annotations

import math

from ir.ops.grads import DETACH, DRAWS
from passes.prepare.cost.contractions import attention_gradient, conv_kind
from passes.prepare.cost.facts import TRANSCENDENTAL as T
from passes.prepare.cost.facts import Formula, OpFacts, Work
from passes.prepare.cost.pointwise import CROSS_ENTROPY, generated, interpolated, sampled


def _per_element(kind: str, flops: int, of: int = 0) -> Formula:
    """``flops`` per element of operand ``of``."""
    return lambda facts: Work(kind, flops * facts.size(of))


def conv_input(facts: OpFacts) -> Work:
    """``dY [N, M, ..], W [M, C / group, kernel..]``."""
    weight = facts.shape(1)
    return Work(conv_kind(facts, weight), 2 * facts.size(0) * math.prod(weight[1:]))


def conv_weight(facts: OpFacts) -> Work:
    """``dY [N, M, ..], X`` to ``dW [M, C / group, kernel..]``."""
    weight = facts.shape(-1)
    return Work(conv_kind(facts, weight), 2 * facts.size(0) * math.prod(weight[1:]))


def pool(facts: OpFacts) -> Work:
    """One addition per element of each window."""
    return Work("pool", facts.size(0) * math.prod(facts.ints("kernel_shape")))


def batch_norm(facts: OpFacts) -> Work:
    """``dY, X, scale`` to dX and, where they are wanted, dscale and dbias."""
    results = facts.op.results
    wanted = [bool(value.name) for value in results] + [False] * (3 - len(results))
    return Work("norm", facts.size(0) * (5 * wanted[0] + 3 * any(wanted[1:])))


def resize(facts: OpFacts) -> Work:
    """As many additions as the interpolation has products, at least one per element of dY."""
    return Work("pool", max(interpolated(facts, facts.shape(-1), facts.shape(0)), facts.size(0)))


FORMULAS: dict[str, Formula] = {
    "grad.Attention": attention_gradient,
    "grad.AveragePool": pool,
    "grad.BatchNormalization": batch_norm,
    "grad.Col2Im": _per_element("move", 0),
    "grad.ConvInput": conv_input,
    "grad.ConvWeight": conv_weight,
    "grad.Gelu": _per_element("elementwise", T + 8),
    "grad.GridSample": lambda facts: Work("pool", 2 * sampled(facts, 0, 2)),
    "grad.GroupNormalizationInput": _per_element("norm", 9),
    "grad.GroupNormalizationWeight": _per_element("norm", 3),
    "grad.LayerNormalizationInput": _per_element("norm", 9),
    "grad.LayerNormalizationWeight": _per_element("norm", 3),
    "grad.LogSoftmax": _per_element("softmax", 4),
    "grad.MaxPool": pool,
    "grad.NegativeLogLikelihoodLoss": _per_element("softmax", 1, -1),
    "grad.RMSNormalizationInput": _per_element("norm", 7),
    "grad.RMSNormalizationWeight": _per_element("norm", 2),
    "grad.Relu": _per_element("elementwise", 1),
    "grad.Resize": resize,
    "grad.Softmax": _per_element("softmax", 4),
    DETACH: _per_element("view", 0),
    **dict.fromkeys(DRAWS, generated(T)),
    "grad.SoftmaxCrossEntropyLoss": _per_element("softmax", CROSS_ENTROPY, 1),
}
"""By the op's full name."""
