"""Weights whose gradient is a product of factors: X^T dY, of what the samples were and of the gradients of what was made of them.

Where samples are split along an axis of a mesh, each member has its rows of both factors, and the gradient is the sum of their
products. Instead of the sum of products ``[d_in, d_out]``, members can gather the rows of the factors, ``[B, d_in]`` and
``[B, d_out]``, and each multiply all of them (sufficient factor broadcasting: Xie et al., UAI 2016; TAG, Zhang et al. 2023).

The gradient of a bias has one factor, dY; that of a table from which rows are gathered, the indices and dY. An op whose
gradients are made by one kernel, such as a normalisation, has none: its kernel would make the gradient of its input whole too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ir.module import Func
from ir.ops import Op
from passes.model.graph import reads
from passes.model.learning import of_weights

_FACTORS: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "onnx.Add": {0: (), 1: ()},
    "onnx.Conv": {1: (0,), 2: ()},
    "onnx.Gather": {0: (1,)},
    "onnx.Gemm": {0: (1,), 1: (0,), 2: ()},
    "onnx.MatMul": {0: (1,), 1: (0,)},
}
"""Of each operand whose gradient is a product the operands that are factors of it, beside the gradient of the result."""


def factors(op: Op, operand: int) -> tuple[int, ...] | None:
    """Numbers of the operands that the gradient of one operand is made of, beside the gradient of the first result; None where
    that gradient is no product, or is made with others."""
    return _FACTORS.get(op.name, {}).get(operand)


def factored(
    func: Func, weights: Collection[str], axes_of: Callable[[Op, int], Collection[int]]
) -> dict[str, frozenset[int]]:
    """The axes of the mesh along which the gradient of each weight can be multiplied whole, and of what is made of weights
    alone, such as a transposed one; a name without such an axis is left out.

    ``axes_of(op, i)``: axes along which members hold terms of the gradient of operand i."""
    alone = of_weights(func, weights)
    origins: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in weights}
    found: dict[str, frozenset[int]] = {}
    for op in func.ops:
        if not any(name in origins for name in reads(op)):
            continue
        made = frozenset().union(*(origins.get(name, frozenset()) for name in reads(op)))
        if any(value.name in alone for value in op.results):
            origins.update((value.name, made) for value in op.results if value.name in alone)
            continue
        for name in reads(op):
            numbers = [number for number, operand in enumerate(op.operands) if operand == name]
            for weight in origins.get(name, ()):
                here = [frozenset(axes_of(op, i)) if factors(op, i) is not None else frozenset() for i in numbers]
                found[weight] = frozenset.intersection(*([found[weight]] if weight in found else []), *(here or [frozenset()]))
    axes = {
        name: frozenset.intersection(*(found.get(weight, frozenset()) for weight in made)) for name, made in origins.items()
    }
    return {name: some for name, some in axes.items() if some}


__all__ = ["factored", "factors"]
