"""Ops as statements of Python for torch: what the programs of a training plan are written in.

``statement`` writes one op, from one table per family. A program begins with ``prelude``, which imports torch and holds the few
functions that its ops need beside torch's own; nothing else is imported. What is made from nothing (``Range``, constants) lies
on ``device``, a name that the program has.

Statements of forward ops are differentiable by torch's autograd: the oracle of a training step is the unsplit forward program
under it.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from dnnc.engines.torch.statements import kernels, movement, pointwise, products, reductions, training
from dnnc.engines.torch.statements.call import DTYPES, NEWEST, Call, Emitter
from dnnc.engines.torch.statements.faults import OpNotWritten
from ir.core.ops import Op
from ir.core.types import Type
from ir.layout_rules import Numbers
from ir.ops.grads import ASSIGN
from ir.system.surroundings import load_torch_elsewhere

load_torch_elsewhere()

EMITTERS: dict[str, Emitter] = {
    **pointwise.EMITTERS,
    **movement.EMITTERS,
    **reductions.EMITTERS,
    **products.EMITTERS,
    **training.EMITTERS,
    **kernels.EMITTERS,
}
"""By the op's full name: the Python expression of its results."""

HELPERS: Mapping[str, tuple[str, ...]] = {
    "onnx.Attention": ("attention", "attention_results"),
    "onnx.BatchNormalization": ("batch_norm_train",),
    "onnx.LRN": ("local_response",),
    "onnx.LayerNormalization": ("layer_norm",),
    "onnx.RotaryEmbedding": ("rotary",),
    "grad.adam": ("adam",),
    "grad.adamw": ("adam", "adamw"),
    "grad.mask": ("dropout_mask",),
    "grad.momentum": ("momentum",),
    "grad.sgd": ("sgd",),
    **kernels.HELPERS,
}
"""The functions of ``helpers`` that an op calls."""

_IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor\n"


def statement(
    op: Op,
    operands: Sequence[str | None],
    results: Sequence[str],
    types: Mapping[str, Type],
    constants: Mapping[str, Numbers] | None = None,
    opset: int = NEWEST,
) -> str:
    """Python that computes ``op``: one line most often.

    ``operands``, ``results``: what they are called in Python, None or empty for an absent one; an operand may be any primary
    expression (``weights["w"]``). ``types``: of the operands, by name in the IR, without layouts (results state theirs).
    ``constants``: elements of small constant operands, by name in the IR (``ir.layout_rules.Surroundings`` gathers both). An op
    with axes, pads or bounds as an operand needs them.

    Raises InvalidInput, with the op's location, for what torch has no function for."""
    call = Call(op, tuple(name or None for name in operands), types, constants or {}, opset)
    if op.name == ASSIGN:
        return f"{call.arg(0)}.copy_({call.arg(1)})"  # nothing where an optimizer worked in place
    emitter = EMITTERS.get(op.name)
    if emitter is None:
        raise call.fault(OpNotWritten(op.name))
    names = [name or "_" for name in results]
    return f"{', '.join(names)} = {emitter(call)}"


def dead_after(ops: Sequence[Op], kept: Container[str]) -> list[list[str]]:
    """Of each op, the values that it is the last to read or make, but for those ``kept``."""
    last: dict[str, int] = {}
    for i, op in enumerate(ops):
        last.update((name, i) for name in (*op.operands, *(value.name for value in op.results)) if name[:1] == "%")
    found: list[list[str]] = [[] for _ in ops]
    for name, end in last.items():
        if name not in kept:
            found[end].append(name)
    return found


def prelude(ops: Iterable[Op]) -> str:
    """The head of a program that holds ``ops``: imports, and the functions that they call."""
    wanted = {name for op in ops for name in HELPERS.get(op.name, ())}
    return "\n\n".join([_IMPORTS, *(text for name, text in _functions().items() if name in wanted)])


@cache
def _functions() -> dict[str, str]:
    """The text of each function of ``helpers``, which is not imported: programs are written where torch need not be."""
    source = Path(__file__).with_name("helpers.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: f"{ast.get_source_segment(source, node)}\n" for node in functions}


def identifier(name: str, taken: set[str]) -> str:
    """A Python name for the value ``name`` of the IR (``%layer.0/y`` is ``layer_0_y``), none of ``taken``, to which it is
    added."""
    base = re.sub(r"\W", "_", name.lstrip("%@"), flags=re.ASCII).strip("_") or "v"
    if base[0].isdigit() or base in _RESERVED:
        base = f"v_{base}"
    found, count = base, 1
    while found in taken:
        count += 1
        found = f"{base}_{count}"
    taken.add(found)
    return found


_RESERVED = frozenset(
    {
        *keyword.kwlist,
        *("F", "Tensor", "bool", "bytearray", "bytes", "comm", "device", "float", "int", "range", "torch"),
        *(name for names in HELPERS.values() for name in names),
    }
)
"""Names that a program has for something else."""

__all__ = ["DTYPES", "EMITTERS", "HELPERS", "dead_after", "identifier", "prelude", "statement"]
