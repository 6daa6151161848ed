"""Which op has which rule of differentiation: one file per family (``arithmetic``, ``unary``, ``moves``,
``indexing``, ``products``, ``recurrent``, ``reductions``, ``kernels``), one table.

To add a rule: a function from ``Site`` to the gradients of the operands (``passes.differentiate.site``) in the file of its
family, a line in that file's ``RULES``, and an instance in ``tests/passes/differentiate``, where every rule is compared with
central differences and with torch's autograd, by each operand of floats and of each result of floats.
"""

from __future__ import annotations

from passes.differentiate.rules import arithmetic, indexing, kernels, moves, products, recurrent, reductions, unary
from passes.differentiate.site import Rule

RULES: dict[str, Rule] = {
    **arithmetic.RULES,
    **indexing.RULES,
    **kernels.RULES,
    **moves.RULES,
    **products.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **unary.RULES,
}
"""By the op's full name."""
EVERY_RESULT = frozenset({"onnx.Attention", "onnx.LayerNormalization", "onnx.Split", *recurrent.RULES})
"""Ops whose rules take the gradients of all results. Every other rule takes that of the first result alone: where another one
has a gradient too, the op is differentiated through its body, or refused."""

__all__ = ["EVERY_RESULT", "RULES"]
