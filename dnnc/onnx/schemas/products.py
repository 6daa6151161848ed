"""Result types of ONNX Runtime's own matrix products, convolutions, pools and recurrences."""

from __future__ import annotations

from collections.abc import Sequence

from dnnc.onnx.schemas.node import Node, Rule, Shape, UnknownError, broadcast, ranked
from dnnc.onnx.types import ELEMENT_NUMBERS
from ir.core.types import Dim, DType


def _matmul(first: Shape, second: Shape) -> Shape:
    if not first or not second:
        raise UnknownError("a product of scalars")
    rows = first[:-1][-1:]
    columns = second[-1:] if len(second) > 1 else ()
    return (*broadcast(first[:-2], second[:-2]), *rows, *columns)


def _product(first: int, second: int) -> Rule:
    """A matrix product of the operands of these numbers."""
    return lambda node: [_matmul(node.shape(first), node.shape(second))]


def _transposed(shape: Shape, rows_first: int, transpose: int) -> Shape:
    """The shape of an operand of FusedMatMul after its transpositions. ``rows_first``: its rows are dimension 0, before the
    batch dimensions; ``transpose``: the matrices are transposed."""
    if len(shape) > 1 and rows_first:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 and transpose else shape


def _fused_matmul(node: Node) -> list[Shape]:
    first, second = (
        _transposed(node.shape(i), node.number(f"transBatch{side}", 0), node.number(f"trans{side}", 0))
        for i, side in enumerate("AB")
    )
    return [_matmul(first, second)]


def _gemm(second: int) -> Rule:
    """A' B', where B is operand ``second``, and A', B' are transposed if ``transA``, ``transB``."""

    def rule(node: Node) -> list[Shape]:
        a, b = ranked(node.shape(0), 2), ranked(node.shape(second), 2)
        return [(a[1] if node.number("transA", 0) else a[0], b[0] if node.number("transB", 0) else b[1])]

    return rule


def _qgemm(node: Node) -> Sequence[Shape]:
    """QGemm(A, scale, zero, B, scale, zero, C, scale, zero): the result has the element type of the last zero point, else
    f32."""
    node.set_element(0, node.element(8) if node.present(8) else ELEMENT_NUMBERS[DType.F32])
    return _gemm(3)(node)


def _matmul_integer16(node: Node) -> list[Shape]:
    signed = ELEMENT_NUMBERS[DType.I16] in (node.element(0), node.element(1))
    node.set_element(0, ELEMENT_NUMBERS[DType.I32 if signed else DType.U32])
    return [_matmul(node.shape(0), node.shape(1))]


def _packed_weight(node: Node) -> Sequence[Shape]:
    """MatMulNBits and similar: A [.., K] times a packed weight of N rows."""
    return [(*node.shape(0)[:-1], node.number("N"))]


def _packed_weights(*keys: str) -> Rule:
    """A product with each of several packed weights, whose numbers of rows are the attributes ``keys``. The last result has
    the shape of operand 0, the other factor."""
    return lambda node: [*((*node.shape(0)[:-1], node.number(key)) for key in keys), node.shape(0)]


def _matmul_fpq4(node: Node) -> list[Shape]:
    return [(*node.shape(0)[:-1], node.numbers(2)[1])]


def _windows(node: Node, sizes: Shape, kernel: Sequence[Dim]) -> Shape:
    """Spatial lengths of the result of a convolution or pool of spatial lengths ``sizes``."""
    count = len(sizes)
    strides, dilations = node.listed("strides") or (1,) * count, node.listed("dilations") or (1,) * count
    pads, auto = node.listed("pads") or (0,) * (2 * count), node.text("auto_pad", "NOTSET")
    lengths: list[Dim] = []
    for i, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(width, int):
            lengths.append(None)
            continue
        reach = dilations[i] * (width - 1) + 1
        if auto.startswith("SAME"):
            lengths.append(-(-size // strides[i]))
            continue
        room = size - reach + (pads[i] + pads[count + i] if auto == "NOTSET" else 0)
        lengths.append((-(-room // strides[i]) if node.number("ceil_mode", 0) else room // strides[i]) + 1)
    return tuple(lengths)


def _conv(weight: int, *, last: bool | None = None) -> Rule:
    """A convolution whose weight is operand ``weight``, [M, C / group, kernel..]. ``last``: whether data and weight have
    channels last; None: data as the attribute ``channels_last`` says, weight with channels first."""

    def rule(node: Node) -> list[Shape]:
        x, w = node.shape(0), node.shape(weight)
        kernel = node.listed("kernel_shape")
        if last or (last is None and node.number("channels_last", 0)):
            return [(x[0], *_windows(node, x[1:-1], kernel or (w[1:-1] if last else w[2:])), w[0])]
        return [(x[0], w[0], *_windows(node, x[2:], kernel or w[2:]))]

    return rule


def _pool(*, last: bool | None = None) -> Rule:
    """A pool with windows of ``kernel_shape``. ``last``: whether channels are last; None: as attribute ``channels_last``
    says."""

    def rule(node: Node) -> list[Shape]:
        x, kernel = node.shape(0), node.listed("kernel_shape")
        if last or (last is None and node.number("channels_last", 0)):
            return [(x[0], *_windows(node, x[1:-1], kernel), x[-1])]
        return [(*x[:2], *_windows(node, x[2:], kernel))]

    return rule


def _global_pool(node: Node) -> list[Shape]:
    x = node.shape(0)
    ones = (1,) * (len(x) - 2)
    return [(x[0], *ones, x[-1]) if node.number("channels_last", 0) else (*x[:2], *ones)]


def _lstm(node: Node) -> list[Shape]:
    """DynamicQuantizeLSTM(X [T, B, I], W [D, I, 4 H], R [D, H, 4 H], ..): all states [T, D, B, H], and the last of each."""
    steps, batch, _ = ranked(node.shape(0), 3)
    directions, hidden, _ = ranked(node.shape(2), 3)
    return [(steps, directions, batch, hidden), (directions, batch, hidden), (directions, batch, hidden)]


RULES: dict[str, Rule] = {
    **{f"com.microsoft.{name}": _packed_weight for name in ("MatMulBnb4", "MatMulNBits", "MatMulNBitsQLoRA", "MatMulPacked")},
    **{f"com.microsoft.{name}": _product(0, 1) for name in ("DynamicQuantizeMatMul", "GemmFastGelu", "MatMulIntegerToFloat")},
    **{f"com.microsoft.{name}": _fused_matmul for name in ("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul")},
    "com.microsoft.DynamicQuantizeLSTM": _lstm,
    "com.microsoft.FusedConv": _conv(1, last=False),
    "com.microsoft.FusedGemm": _gemm(1),
    "com.microsoft.MatMulFpQ4": _matmul_fpq4,
    "com.microsoft.MatMulInteger16": _matmul_integer16,
    "com.microsoft.MatMulNBitsMlp": _packed_weights("N"),
    "com.microsoft.MatMulNBitsQkv": _packed_weights("Nq", "Nkv", "Nkv"),
    "com.microsoft.MaxpoolWithMask": _pool(last=False),
    "com.microsoft.NhwcConv": _conv(1, last=True),
    "com.microsoft.NhwcFusedConv": _conv(1, last=True),
    "com.microsoft.NhwcMaxPool": _pool(last=True),
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearAveragePool": _pool(),
    "com.microsoft.QLinearConv": _conv(3),
    "com.microsoft.QLinearGlobalAveragePool": _global_pool,
}
"""``DOMAIN.OPERATOR`` -> the rule of its result types."""
