"""The dialect ``grad``: the ops of a training step that are no operators of ONNX.

Two kinds of ops. The step's own (``accumulate``, the optimizers, ``step``, ``assign``, ``detach``, ``mask``) are defined here
first (the optimizers and what belongs to them in ``ir.ops.optimizers``).
*Kernels*, in CamelCase, are backward passes that a runtime computes in one go: each is named after the operator of ONNX and the
operand that it is the gradient of (``grad.ConvWeight``), and its operands begin with the gradients of the operator's results.

``grad.assign`` is the one op with an effect: ``EFFECT`` is among its traits, and whatever drops, merges or moves ops keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ir.core.attributes import AttrKind
from ir.core.ops import Op
from ir.core.types import DType, TensorType, Type
from ir.ops.grad_kernels import KERNELS, alike, tensor
from ir.ops.opdefs import CORE, EFFECT, PURE, AttrDef, Dialect, Dialects, OpDef
from ir.ops.optimizers import OPTIMIZER_OPS

ACCUMULATE = "grad.accumulate"
ASSIGN = "grad.assign"
DETACH = "grad.detach"
MASK = "grad.mask"
NORMAL, UNIFORM = "grad.normal", "grad.uniform"
DRAWS = frozenset({MASK, NORMAL, UNIFORM})
"""Ops that draw random numbers, which their number and the seed of the microbatch decide."""
STEP = "grad.step"
BATCH_NORMALIZATION = "onnx.BatchNormalization"
UNBIASED = "unbiased"
"""The attribute of a BatchNormalization that trains which says that its running variance averages unbiased variances, as in
PyTorch; ONNX's operator, which lacks it, averages biased ones."""


def _passes(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    yield from alike(op, types, (0,), (0,))


def _assigns(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    yield from alike(op, types, (0, 1), ())


def _counts(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    if tensor(op.results[0].type) != TensorType(DType.I64, ()):
        yield f"{op.name} gives tensor<i64>, not {op.results[0].type}"


def _positive(op: Op) -> Iterable[str]:
    if op.get("microbatches") < 1:
        yield f"a step has at least 1 microbatch, not {op.get('microbatches')}"


def _masks(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    if tensor(types[0]) not in (None, TensorType(DType.I64, ())):
        yield f"{op.name} takes its seed as tensor<i64>, not {op.operands[0]} of {types[0]}"
    mask = tensor(op.results[0].type)
    if mask is None or not mask.dtype.is_float:
        yield f"{op.name} gives a tensor of floats, not {op.results[0].type}"


def _drops(op: Op) -> Iterable[str]:
    if not 0 < op.get("ratio") < 1:
        yield f"a mask drops a ratio between 0 and 1 of the elements, not {op.get('ratio')}"
    yield from _numbered(op)


def _numbered(op: Op) -> Iterable[str]:
    if op.get("number") < 0:
        yield f"draws are numbered from 0, not {op.get('number')}"


_STEP_OPS = (
    OpDef(
        ACCUMULATE,
        (1, 1),
        (1, 1),
        (("microbatches", AttrDef(AttrKind.INT, True)),),
        check=_positive,
        typed=_passes,
        doc="The mean of a value of phase I or W over the microbatches of the step: the only op of phase U that reads one.",
    ),
    *OPTIMIZER_OPS,
    OpDef(STEP, (0, 0), (1, 1), typed=_counts, doc="The number of this step, from 1."),
    OpDef(
        ASSIGN,
        (2, 2),
        (0, 0),
        traits=frozenset({EFFECT}),
        typed=_assigns,
        doc="The first operand, a resource, holds the second one from now on: for the next step (phase U), or the next "
        "microbatch (phase F).",
    ),
    OpDef(
        DETACH,
        (1, 1),
        (1, 1),
        traits=frozenset({PURE}),
        typed=_passes,
        doc="Its operand, to whose gradient it adds nothing.",
    ),
    OpDef(
        MASK,
        (1, 1),
        (1, 1),
        (("number", AttrDef(AttrKind.INT, True)), ("ratio", AttrDef(AttrKind.FLOAT, True))),
        traits=frozenset({PURE}),
        check=_drops,
        typed=_masks,
        doc="What dropout `number` multiplies by: 0 for a random `ratio` of the elements, 1 / (1 - ratio) for the others. The "
        "operand is the seed of the microbatch; equal seeds, numbers, ratios and shapes give equal masks.",
    ),
    *(
        OpDef(
            name,
            (1, 1),
            (1, 1),
            (("number", AttrDef(AttrKind.INT, True)), *((key, AttrDef(AttrKind.FLOAT, True)) for key in keys)),
            traits=frozenset({PURE}),
            check=_numbered,
            typed=_masks,
            doc=f"Random numbers of draw `number`, {told}. The operand is the seed of the microbatch; equal seeds, numbers and "
            "shapes give equal draws.",
        )
        for name, keys, told in (
            (NORMAL, ("mean", "scale"), "normal of this mean and standard deviation"),
            (UNIFORM, ("high", "low"), "uniform from `low` to `high`"),
        )
    ),
)

GRAD_OPS: dict[str, OpDef] = {definition.name: definition for definition in (*_STEP_OPS, *KERNELS)}
"""The ops of the dialect, by name."""


def _lookup(name: str, opsets: Mapping[str, int]) -> OpDef:
    definition = GRAD_OPS.get(name)
    if definition is None:
        return OpDef(name, missing=f"the dialect grad has no op {name}; it has: {', '.join(sorted(GRAD_OPS))}")
    return definition


GRAD = Dialect("grad", _lookup)
DIALECTS: Dialects = (*CORE, GRAD)
"""The dialects that need nothing of ONNX: those of every module."""


def written_resources(ops: Iterable[Op]) -> set[str]:
    """Resources that change between runs, so that they are no constants: those that a ``grad.assign`` among ``ops`` writes, and
    the running averages of a batch normalisation that trains."""
    names: set[str] = set()
    for op in ops:
        if op.name == ASSIGN:
            names.update(op.operands[:1])
        elif op.name == BATCH_NORMALIZATION and op.get("training_mode", 0):
            names.update(op.operands[3:5])
    return names


def averages_in_order(ops: Iterable[Op]) -> tuple[Op, ...]:
    """The ops without a need for ``grad.assign``: a batch normalisation that trains by running averages which an earlier one
    among ``ops`` moved reads the results of that one in their place. So does a layer that a model calls twice."""
    new: dict[str, str] = {}
    made = []
    for op in ops:
        if op.name == BATCH_NORMALIZATION and op.get("training_mode", 0):
            averages = op.operands[3:5]
            op = replace(op, operands=(*op.operands[:3], *(new.get(name, name) for name in averages), *op.operands[5:]))
            new.update((name, value.name) for name, value in zip(averages, op.results[1:3], strict=False) if value.name)
        made.append(op)
    return tuple(made)
