"""Weights whose gradient is a product X^T dY: of an activation and of the gradient of what was made of it.

Where samples are split along an axis of a mesh, each member has its rows of both factors, and the gradient is the sum of their
products. Instead of the sum of products ``[d_in, d_out]``, members can gather the rows of the factors, ``[B, d_in]`` and
``[B, d_out]``, and each multiply all of them (sufficient factor broadcasting: Xie et al., UAI 2016; TAG, Zhang et al. 2023).

The gradient of a bias has one factor, dY; that of a table from which rows are gathered, the indices and dY. An op whose
gradients are made by one kernel, such as a normalisation, has none: its kernel would make the gradient of its input whole too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ir.core.facets import Time
from ir.core.module import Func
from ir.core.ops import Op
from passes.costs.learning import of_weights
from passes.graph.graph import reads

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


class Multiplied(NamedTuple):
    """That the gradient of a value, which is a weight or made of that ``weight`` alone, is a product along these ``axes``."""

    weight: str
    axes: frozenset[int]


def factored(func: Func, weights: Collection[str], axes_of: Callable[[Op, int], Collection[int]]) -> dict[str, Multiplied]:
    """Of each weight whose gradient can be multiplied whole, and of what is made of it alone (transposed, say), along which
    axes of the mesh. ``axes_of(op, i)``: axes along which members hold terms of the gradient of operand i."""
    alone = of_weights(func, weights)
    origins = {name: name for name in weights}
    axes: dict[str, frozenset[int]] = {}
    for op in func.ops:
        made_of = {origins[name] for name in reads(op) if name in origins}
        if any(value.name in alone for value in op.results):
            if len(made_of) > 1:
                axes.update(dict.fromkeys(made_of, frozenset()))
            else:
                origins.update((value.name, weight) for weight in made_of for value in op.results if value.name in alone)
            continue
        for name in (name for name in reads(op) if name in origins):
            numbers = [number for number, operand in enumerate(op.operands) if operand == name]
            able = numbers and op.facet(Time) is None and all(factors(op, number) is not None for number in numbers)
            for number in numbers if able else (-1,):
                here = frozenset(axes_of(op, number)) if able else frozenset()
                axes[origins[name]] = axes.get(origins[name], here) & here
    return {name: Multiplied(weight, axes[weight]) for name, weight in origins.items() if axes.get(weight)}
