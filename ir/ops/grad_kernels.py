"""Kernels of the dialect ``grad``: backward passes that a runtime computes in one go.

The gradient of an input and that of the weights are ops of their own, where both exist: they belong to different phases of a
step, and under a batch that is split the former is split and the latter a term of a sum. Attributes are those of ONNX's
operator. What an op does not read stands in no operand: the shape of a pooled tensor is that of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ir.core.attributes import AttrKind
from ir.core.ops import Op
from ir.core.types import TensorType, Type, without_layout
from ir.ops.opdefs import PURE, Arity, AttrDef, OpDef


def tensor(type_: Type | None) -> TensorType | None:
    """The type as that of a whole tensor; None where it is none."""
    bare = None if type_ is None else without_layout(type_)
    return bare if isinstance(bare, TensorType) else None


def alike(op: Op, types: Sequence[Type | None], operands: Iterable[int], results: Iterable[int]) -> Iterable[str]:
    """One fault for each of these operands and results that has not the type of the first of them."""
    named = [(op.operands[i], tensor(types[i])) for i in operands]
    named += [(op.results[i].name, tensor(op.results[i].type)) for i in results]
    (first, wanted), *others = named
    for name, type_ in others:
        if wanted is not None and type_ is not None and not _equal(wanted, type_):
            yield f"{op.name} takes {name} of {type_} beside {first} of {wanted}; expected equal types"


def _equal(one: TensorType, other: TensorType) -> bool:
    return one.dtype is other.dtype and (one.shape is None or other.shape is None or _same(one.shape, other.shape))


def _same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(one, other, strict=True)
    )


_WINDOW = {
    "auto_pad": AttrKind.STRING,
    "dilations": AttrKind.INTS,
    "kernel_shape": AttrKind.INTS,
    "pads": AttrKind.INTS,
    "strides": AttrKind.INTS,
}
CONV_ATTRIBUTES = {**_WINDOW, "group": AttrKind.INT}
POOL_ATTRIBUTES = {**_WINDOW, "ceil_mode": AttrKind.INT, "count_include_pad": AttrKind.INT, "storage_order": AttrKind.INT}
GRID_ATTRIBUTES = {"align_corners": AttrKind.INT, "mode": AttrKind.STRING, "padding_mode": AttrKind.STRING}
RESIZE_ATTRIBUTES = {
    "coordinate_transformation_mode": AttrKind.STRING,
    "cubic_coeff_a": AttrKind.FLOAT,
    "mode": AttrKind.STRING,
    "nearest_mode": AttrKind.STRING,
}
_AXIS = {"axis": AttrKind.INT}
_NORM = {"epsilon": AttrKind.FLOAT}
_ROWS = {**_AXIS, **_NORM}
_GROUPS = {**_NORM, "num_groups": AttrKind.INT}
_IGNORE = {"ignore_index": AttrKind.INT}

Same = tuple[tuple[int, int], ...]
"""(operand, other): operand ``operand`` and ``other``, a result j as ``-1 - j``, have one type."""


def _typed(same: Same) -> Callable[[Op, Sequence[Type | None]], Iterable[str]]:
    def check(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
        for one, other in same:
            if other >= 0:
                yield from alike(op, types, (one, other), ())
            elif -other <= len(op.results) and op.results[-1 - other].name:
                yield from alike(op, types, (one,), (-1 - other,))

    return check


def _kernel(name: str, operands: Arity, results: Arity, keys: dict[str, AttrKind], same: Same, doc: str) -> OpDef:
    return OpDef(
        f"grad.{name}",
        operands,
        results,
        tuple((key, AttrDef(kind)) for key, kind in sorted(keys.items())),
        traits=frozenset({PURE}),
        typed=_typed(same),
        doc=doc,
    )


_RECURRENT = {"activations": AttrKind.STRINGS, "direction": AttrKind.STRING, "linear_before_reset": AttrKind.INT}
_ONE: Arity = (1, 1)
_TWO: Arity = (2, 2)
_SCALE_AND_BIAS = "The gradients of scale and bias"

KERNELS: tuple[OpDef, ...] = (
    _kernel("Attention", (4, 5), (3, 3), {"is_causal": AttrKind.INT, "scale": AttrKind.FLOAT, "q_num_heads": AttrKind.INT,
            "kv_num_heads": AttrKind.INT, "past": AttrKind.INT}, ((1, -1), (2, -2), (3, -3)),
            "The gradients of Q, K and V of Attention: of dY, Q, K, V and, where there is one, the mask. The first `past` keys "
            "and values were there before the queries: causal attention sees all of them."),
    _kernel("AveragePool", _ONE, _ONE, POOL_ATTRIBUTES, (), "The gradient of X of AveragePool: of dY."),
    _kernel("BatchNormalization", (3, 3), (1, 3), _NORM, ((0, 1), (1, -1), (2, -2), (2, -3)),
            "The gradients of X, scale and bias of BatchNormalization that trains: of dY, X and scale."),
    _kernel("Col2Im", _ONE, _ONE, {key: _WINDOW[key] for key in ("dilations", "kernel_shape", "pads", "strides")}, (),
            "The gradient of the windows of Col2Im, whose block is `kernel_shape`: of dY."),
    _kernel("ConvInput", _TWO, _ONE, CONV_ATTRIBUTES, (), "The gradient of X of Conv: of dY and W."),
    _kernel("ConvWeight", _TWO, _ONE, CONV_ATTRIBUTES, (), "The gradient of W of Conv: of dY and X."),
    *(_kernel(name, (10, 10), (1, 5), _RECURRENT, ((5, 5), (9, -3), (7, -4), (8, -5)),
            f"Back-propagation through time of {name}: of the gradients of Y, Y_h and Y_c, of X, W, R, B, initial h and c, and "
            "Y. It gives the gradients of the gates as products with X see them and as products with states do, the states "
            "before each step, and the gradients of the initial h and c.") for name in ("GRU", "LSTM", "RNN")),
    _kernel("Gelu", _TWO, _ONE, {"approximate": AttrKind.STRING}, ((0, 1), (1, -1)), "The gradient of X of Gelu: of dY and X."),
    _kernel("GridSample", (3, 3), (1, 2), GRID_ATTRIBUTES, ((1, -1), (2, -2)),
            "The gradients of X and of the grid of GridSample: of dY, X and the grid."),
    _kernel("GroupNormalizationInput", (3, 3), _ONE, _GROUPS, ((0, 1), (1, -1)),
            "The gradient of X of GroupNormalization: of dY, X and scale, one number per channel."),
    _kernel("GroupNormalizationWeight", _TWO, (1, 2), _GROUPS, ((0, 1),),
            f"{_SCALE_AND_BIAS} of GroupNormalization, per channel: of dY and X."),
    _kernel("LayerNormalizationInput", (4, 5), _ONE, _ROWS, ((0, 1), (1, -1), (2, 3)),
            "The gradient of X of LayerNormalization: of dY, X, its mean, the inverse of its deviation, and scale."),
    _kernel("LayerNormalizationWeight", (4, 4), (1, 2), _ROWS, ((0, 1), (2, 3)),
            f"{_SCALE_AND_BIAS} of LayerNormalization: of dY, X, its mean and the inverse of its deviation."),
    _kernel("LogSoftmax", _TWO, _ONE, _AXIS, ((0, 1), (1, -1)), "The gradient of X of LogSoftmax: of dY and Y."),
    _kernel("MaxPool", _TWO, _ONE, POOL_ATTRIBUTES, ((1, -1),), "The gradient of X of MaxPool: of dY and X."),
    _kernel("NegativeLogLikelihoodLoss", (2, 3), _ONE, _IGNORE, (),
            "The gradient of the input of NegativeLogLikelihoodLoss without a reduction: of dY, the labels and the weights."),
    _kernel("RMSNormalizationInput", (3, 3), _ONE, _ROWS, ((0, 1), (1, -1)),
            "The gradient of X of RMSNormalization: of dY, X and scale."),
    _kernel("RMSNormalizationWeight", _TWO, _ONE, _ROWS, ((0, 1),), "The gradient of scale of RMSNormalization: of dY and X."),
    _kernel("Relu", _TWO, _ONE, {}, ((0, 1), (1, -1)), "The gradient of X of Relu: of dY and Y."),
    _kernel("Resize", _ONE, _ONE, RESIZE_ATTRIBUTES, (), "The gradient of X of Resize: of dY."),
    _kernel("Softmax", _TWO, _ONE, _AXIS, ((0, 1), (1, -1)), "The gradient of X of Softmax: of dY and Y."),
    _kernel("SoftmaxCrossEntropyLoss", (3, 4), _ONE, _IGNORE, ((1, -1),),
            "The gradient of the scores of SoftmaxCrossEntropyLoss without a reduction: of dY, scores, labels and weights."),
)  # fmt: skip
