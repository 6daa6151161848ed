"""Writes ops of the IR as Python statements that call torch: the text of training programs.

``statement`` writes one op; the other modules have the emitters of one family of ops each: ``pointwise``, ``movement``,
``reductions``, ``recurrent``, .. (``windows``: what convolutions and pools share). ``run`` runs a function of the IR so. A
program begins with ``prelude``: it imports torch, and nothing else, and defines the functions of ``helpers``,
``update_helpers`` and ``recurrent_helpers`` that the program's ops call. Ops without tensor operands (``Range``, constants)
create their result on ``device``, a global of the program.

torch's autograd differentiates the statements of forward ops: ``dnnc train --check`` compares a training step with autograd
on the unsplit forward program.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from dnnc.engines.torch.statements import kernels, movement, pointwise, products, recurrent, reductions, training
from dnnc.engines.torch.statements.call import DTYPES, NEWEST, Call, Emitter
from dnnc.engines.torch.statements.faults import OpNotWritten
from ir.core.ops import Op
from ir.core.types import Type
from ir.layout_rules import Numbers
from ir.ops.grads import ASSIGN
from ir.ops.loss_scale import LOSS_SCALE
from ir.ops.optimizers import ADAFACTOR, ADAFACTOR_SQUARES
from ir.system.surroundings import load_torch_elsewhere

load_torch_elsewhere()

EMITTERS: dict[str, Emitter] = {
    **pointwise.EMITTERS,
    **movement.EMITTERS,
    **reductions.EMITTERS,
    **products.EMITTERS,
    **training.EMITTERS,
    **kernels.EMITTERS,
    **recurrent.EMITTERS,
}
"""Full name of an op -> its emitter, which writes the Python expression of the op's results."""

HELPERS: Mapping[str, tuple[str, ...]] = {
    "onnx.Attention": ("attention", "attention_results"),
    "onnx.BatchNormalization": ("batch_norm_train", "batch_norm_type"),
    "onnx.LRN": ("local_response",),
    "onnx.LayerNormalization": ("layer_norm",),
    "onnx.RotaryEmbedding": ("rotary",),
    ADAFACTOR: ("adafactor", "adafactor_squares", "adafactor_averages"),
    ADAFACTOR_SQUARES: ("adafactor_squares", "adafactor_averages"),
    "grad.adam": ("adam",),
    "grad.adamw": ("adam", "adamw"),
    "grad.ema": ("ema",),
    LOSS_SCALE: ("moved_loss_scale",),
    "grad.mask": ("dropout_mask", "generator_of"),
    "grad.momentum": ("momentum",),
    "grad.normal": ("generator_of",),
    "grad.rate": ("learning_rate_factor", "table_rate"),
    "grad.sgd": ("sgd",),
    "grad.uniform": ("generator_of",),
    **kernels.HELPERS,
    **recurrent.HELPERS,
}
"""Full name of an op -> the functions of the files of helpers that its statement calls, directly or through each other."""

_IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor\n"


def statement(
    op: Op,
    operands: Sequence[str | None],
    results: Sequence[str],
    types: Mapping[str, Type],
    constants: Mapping[str, Numbers] | None = None,
    opset: int = NEWEST,
) -> str:
    """Returns the Python statement that computes ``op``, usually one line.

    ``operands``, ``results``: their names in Python, None or empty where absent; an operand may be any primary expression
    (``weights["w"]``). ``types``: name in the IR -> type without layout, of each operand (results carry their own types).
    ``constants``: name in the IR -> elements, of small constant operands; ops whose axes, pads or bounds are operands need
    them. ``ir.layout_rules.Surroundings`` collects ``types`` and ``constants``.

    Raises InvalidInput, with the op's location, for an op or attribute that cannot be written for torch."""
    call = Call(op, tuple(name or None for name in operands), types, constants or {}, opset)
    if op.name == ASSIGN:
        return f"{call.arg(0)}.copy_({call.arg(1)})"  # a copy onto itself where the optimizer worked in place
    emitter = EMITTERS.get(op.name)
    if emitter is None:
        raise call.fault(OpNotWritten(op.name))
    names = [name or "_" for name in results]
    return f"{', '.join(names)} = {emitter(call)}"


def dead_after(ops: Sequence[Op], live_out: Container[str]) -> list[list[str]]:
    """For each op, the values that no later op reads, except those in ``live_out``, which are read after all ``ops``."""
    last_use: dict[str, int] = {}
    for i, op in enumerate(ops):
        last_use.update((name, i) for name in (*op.operands, *(value.name for value in op.results)) if name[:1] == "%")
    dead: list[list[str]] = [[] for _ in ops]
    for name, i in last_use.items():
        if name not in live_out:
            dead[i].append(name)
    return dead


def prelude(ops: Iterable[Op]) -> str:
    """The head of a program of ``ops``: its imports, and the helpers that the ops call."""
    called = {name for op in ops for name in HELPERS.get(op.name, ())}
    return "\n\n".join([_IMPORTS, *(text for name, text in _helper_sources().items() if name in called)])


@cache
def _helper_sources() -> dict[str, str]:
    """Name -> source text of each helper. Not imported: programs can be written without torch installed."""
    found = {}
    for file in ("helpers.py", "update_helpers.py", "recurrent_helpers.py"):
        source = Path(__file__).with_name(file).read_text(encoding="utf-8")
        lines = source.splitlines(keepends=True)
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        found.update({node.name: "".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions})
    return found


def identifier(name: str, taken: set[str]) -> str:
    """A Python name that is not in ``taken`` for the value ``name`` of the IR (``%layer.0/y`` becomes ``layer_0_y``). Adds the
    name to ``taken``."""
    base = re.sub(r"\W", "_", name.lstrip("%@"), flags=re.ASCII).strip("_") or "v"
    if base[0].isdigit() or base in _RESERVED:
        base = f"v_{base}"
    unique, count = base, 1
    while unique in taken:
        count += 1
        unique = f"{base}_{count}"
    taken.add(unique)
    return unique


_RESERVED = frozenset(
    {
        *keyword.kwlist,
        *("F", "Tensor", "bool", "bytearray", "bytes", "comm", "device", "float", "int", "range", "torch"),
        *(name for names in HELPERS.values() for name in names),
    }
)
"""Names that no value may have: Python keywords and the names that a program defines or uses itself."""

__all__ = ["DTYPES", "EMITTERS", "HELPERS", "dead_after", "identifier", "prelude", "statement"]
