"""The cases: one operator each, with the shapes that models of text, images, sound, detection and recommendation give it.

``x`` makes an operand that an operator before would compute, ``w`` one that the model holds. Most families come in two sizes:
one whose operands stay in a core's own cache (about 256 KiB), and one for which they do not (about 8 MiB).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Operand:
    """An array by its element type and shape. ``values``: "normal"; "positive"; "unit", between -1 and 1; or, for integers, a
    number: each element is drawn below it. Booleans come in runs, as in the masks of models. ``data`` states the array."""

    shape: tuple[int, ...]
    dtype: str = "f4"
    values: str | int = "normal"
    held: bool = False
    data: Any = None

    def array(self, generator: np.random.Generator) -> Any:
        if self.data is not None:
            return np.asarray(self.data, self.dtype)
        if self.dtype == "?":
            return (np.arange(np.prod(self.shape, dtype=int)) // 37 % 2 == 1).reshape(self.shape)
        if self.dtype[0] in "iu":
            return generator.integers(0, self.values if isinstance(self.values, int) else 2, self.shape).astype(self.dtype)
        drawn = generator.standard_normal(self.shape)
        if self.values == "positive":
            drawn = np.abs(drawn) + 0.1
        elif self.values == "unit":
            drawn = np.tanh(drawn)
        return (drawn * (0.05 if self.held and drawn.size > 1 else 1.0)).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """One operator on these operands (None: absent), with ``results`` results."""

    name: str
    op: str
    operands: tuple[Operand | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: int = 1
    domain: str = ""
    opset: int = 18


def x(*shape: int, dtype: str = "f4", values: str | int = "normal") -> Operand:
    return Operand(shape, dtype, values)


def w(*shape: int, dtype: str = "f4", values: str | int = "normal") -> Operand:
    return Operand(shape, dtype, values, held=True)


def const(data: Any, dtype: str = "i8") -> Operand:
    array = np.asarray(data, dtype)
    return Operand(array.shape, dtype, held=True, data=data)


def case(
    label: str, op: str, *operands: Operand | None, results: int = 1, domain: str = "", opset: int = 18, **attributes: Any
) -> Case:
    return Case(f"{op} {label}", op, operands, attributes, results, domain, opset)


def nothing() -> Case:
    """An operator that computes nearly nothing: its seconds are those of calling onnxruntime."""
    return case("", "Abs", x(4))


SIZES = {"small": (64, 1024), "large": (2048, 1024)}
"""Rows and columns of the operands of elementwise operators."""


def cases() -> list[Case]:
    return [*pointwise(), *broadcasts(), *convolutions(), *products(), *quantised(), *reductions(), *norms(), *moves(),
            *indexing(), *pools(), *recurrence(), *others()]  # fmt: skip


def pointwise() -> Iterator[Case]:
    for size, shape in SIZES.items():
        for op in ("Exp", "Erf", "Tanh", "Sigmoid", "Sin", "Cos", "Relu", "Neg", "Abs", "Floor", "Round", "Softplus", "Sign"):
            yield case(size, op, x(*shape))
        for op in ("Atan", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Reciprocal", "IsNaN", "Softsign", "Tan"):
            yield case(size, op, x(*shape))
        for op in ("Log", "Sqrt"):
            yield case(size, op, x(*shape, values="positive"))
        yield case(size, "Gelu", x(*shape), opset=20)
        yield case(f"tanh {size}", "Gelu", x(*shape), opset=20, approximate="tanh")
        yield case(size, "Gelu", x(*shape), domain=MICROSOFT)
        yield case(size, "FastGelu", x(*shape), domain=MICROSOFT)
        yield case(size, "QuickGelu", x(*shape), domain=MICROSOFT)
        yield case(size, "BiasGelu", x(*shape), w(shape[1]), domain=MICROSOFT)
        yield case(size, "Mish", x(*shape))
        yield case(size, "PRelu", x(*shape), w(1))
        yield case(size, "Clip", x(*shape), const(0.0, "f4"), const(6.0, "f4"))
        yield case(f"squares {size}", "Pow", x(*shape), const(2.0, "f4"))
        yield case(f"cubes {size}", "Pow", x(*shape), const(3.0, "f4"))
        yield case(f"to 0.7 {size}", "Pow", x(*shape, values="positive"), const(0.7, "f4"))
        yield case(f"of two {size}", "Pow", x(*shape, values="positive"), x(*shape))
        yield case(f"bool {size}", "Not", x(*shape, dtype="?"))
        yield case(f"of 3 {size}", "Sum", x(*shape), x(*shape), x(*shape))
        for to, number in (("i64", 7), ("f16", 10), ("bool", 9), ("f64", 11)):
            yield case(f"f32 to {to} {size}", "Cast", x(*shape), to=number)
        yield case(f"i64 to f32 {size}", "Cast", x(*shape, dtype="i8", values=9), to=1)
        yield case(f"i64 to i32 {size}", "Cast", x(*shape, dtype="i8", values=9), to=6)
        yield case(f"bool to f32 {size}", "Cast", x(*shape, dtype="?"), to=1)
        yield case(f"f16 to f32 {size}", "Cast", x(*shape, dtype="f2"), to=1)
        yield case(f"u8 to f32 {size}", "Cast", x(*shape, dtype="u1", values=255), to=1)


def broadcasts() -> Iterator[Case]:
    for size, (rows, columns) in SIZES.items():
        for op in ("Add", "Mul", "Sub", "Div", "Max", "Greater", "Equal"):
            yield case(f"same shape {size}", op, x(rows, columns), x(rows, columns))
        for op in ("Add", "Div", "Greater", "Max"):
            yield case(f"scalar {size}", op, x(rows, columns), const(0.5, "f4"))
            yield case(f"row {size}", op, x(rows, columns), x(1, columns))
            yield case(f"column {size}", op, x(rows, columns), x(rows, 1))
        batch = rows // 16
        yield case(f"middle {size}", "Add", x(batch, 16, columns), x(batch, 1, columns))
        yield case(f"outer {size}", "Add", x(rows, 1), x(1, columns))
        yield case(f"channels {size}", "Mul", x(1, columns, rows // 8, 8), x(1, columns, 1, 1))
        yield case(f"short rows {size}", "Add", x(rows * columns // 8, 8), x(1, 8))
        yield case(f"short columns {size}", "Mul", x(rows * columns // 8, 8), x(rows * columns // 8, 1))
        yield case(f"attention mask {size}", "Add", x(1, 16, rows // 16, columns), x(1, 1, rows // 16, columns))
        yield case(f"i64 {size}", "Add", x(rows, columns, dtype="i8", values=9), x(rows, columns, dtype="i8", values=9))
        yield case(f"i64 {size}", "Equal", x(rows, columns, dtype="i8", values=9), const(3))
        yield case(f"i64 scalar {size}", "Mod", x(rows, columns, dtype="i8", values=99), const(7))
        yield case(f"i64 scalar {size}", "Div", x(rows, columns, dtype="i8", values=99), const(7))
        yield case(f"same shape {size}", "And", x(rows, columns, dtype="?"), x(rows, columns, dtype="?"))
        yield case(f"row {size}", "Or", x(rows, columns, dtype="?"), x(1, columns, dtype="?"))
        yield case(f"f64 {size}", "Mul", x(rows, columns // 2, dtype="f8"), x(rows, columns // 2, dtype="f8"))
        yield case(f"f16 {size}", "Add", x(rows, columns, dtype="f2"), x(rows, columns, dtype="f2"))
        yield case(f"same shape {size}", "Where", x(rows, columns, dtype="?"), x(rows, columns), x(rows, columns))
        yield case(f"scalar {size}", "Where", x(rows, columns, dtype="?"), x(rows, columns), const(-1e9, "f4"))
        mask = x(1, 1, rows // 16, columns, dtype="?")
        yield case(f"attention mask {size}", "Where", mask, x(1, 16, rows // 16, columns), const(-1e9, "f4"))
        yield case(f"i64 {size}", "Where", x(rows, columns, dtype="?"), x(rows, columns, dtype="i8"), const(0))


def convolutions() -> Iterator[Case]:
    def conv(label: str, batch: int, channels: int, side: int, made: int, kernel: int, **attributes: Any) -> Case:
        pad = attributes.pop("pad", kernel // 2)
        group = attributes.get("group", 1)
        weight = w(made, channels // group, kernel, kernel)
        return case(label, "Conv", x(batch, channels, side, side), weight, w(made), pads=[pad] * 4, **attributes)

    yield conv("1x1 64 to 256, 56", 1, 64, 56, 256, 1)
    yield conv("1x1 1024 to 256, 14", 1, 1024, 14, 256, 1)
    yield conv("1x1 512 to 2048, 7", 1, 512, 7, 2048, 1)
    yield conv("3x3 64, 56", 1, 64, 56, 64, 3)
    yield conv("3x3 256, 14", 1, 256, 14, 256, 3)
    yield conv("3x3 512, 7", 1, 512, 7, 512, 3)
    yield conv("3x3 stride 2, 128, 56", 1, 128, 56, 128, 3, strides=[2, 2])
    yield conv("3x3 of 16, 80", 1, 16, 80, 16, 3)
    yield conv("3x3 of 8, 112", 1, 8, 112, 8, 3)
    yield conv("3x3 of 6 to 10, 80", 1, 6, 80, 10, 3)
    yield conv("7x7 stride 2 of 3 to 64, 224", 1, 3, 224, 64, 7, strides=[2, 2])
    yield conv("3x3 stride 2 of 3 to 16, 224", 1, 3, 224, 16, 3, strides=[2, 2])
    yield conv("16x16 patches of 3 to 768, 224", 1, 3, 224, 768, 16, pad=0, strides=[16, 16])
    yield conv("3x3 dilated by 2, 64, 56", 1, 64, 56, 64, 3, pad=2, dilations=[2, 2])
    yield conv("3x3 dilated by 6, 256, 28", 1, 256, 28, 256, 3, pad=6, dilations=[6, 6])
    yield conv("3x3 in 32 groups, 128, 56", 1, 128, 56, 128, 3, group=32)
    yield conv("3x3 in 4 groups, 64, 56", 1, 64, 56, 64, 3, group=4)
    yield conv("depthwise 3x3, 96, 56", 1, 96, 56, 96, 3, group=96)
    yield conv("depthwise 3x3 stride 2, 96, 112", 1, 96, 112, 96, 3, group=96, strides=[2, 2])
    yield conv("depthwise 5x5, 240, 28", 1, 240, 28, 240, 5, group=240)
    yield conv("depthwise 7x7, 96, 56", 1, 96, 56, 96, 7, group=96)
    yield conv("depthwise 3x3, 960, 7", 1, 960, 7, 960, 3, group=960)
    yield conv("1x1 of 8 samples, 64 to 64, 28", 8, 64, 28, 64, 1)
    yield case("3x39 of 8", "Conv", x(1, 8, 172, 264), w(8, 8, 3, 39), w(8), pads=[1, 19, 1, 19])
    yield case("5x5 stride 1x3 of 8 to 32", "Conv", x(1, 8, 172, 264), w(32, 8, 5, 5), w(32), strides=[1, 3], pads=[2, 1, 2, 1])
    yield case("7x7 of 1 to 32", "Conv", x(1, 1, 172, 264), w(32, 1, 7, 7), w(32), pads=[3, 3, 3, 3])
    yield case("7x3 of 32 to 1", "Conv", x(1, 32, 172, 88), w(1, 32, 7, 3), w(1), pads=[3, 1, 3, 1])
    yield case("5x1, 64, 28", "Conv", x(1, 64, 28, 28), w(64, 64, 5, 1), w(64), pads=[2, 0, 2, 0])
    yield case("sound 512, stride 256, 1 to 258", "Conv", x(1, 1, 16256), w(258, 1, 256), strides=[128])
    yield case("sound 1 to 72, long kernel", "Conv", x(1, 1, 22000), w(36, 1, 512), strides=[256])
    yield case("sound 1 to 1, long kernel", "Conv", x(1, 1, 43844), w(1, 1, 256), strides=[2], pads=[127, 127])
    yield case("sound 1 to 512, 10 stride 5", "Conv", x(1, 1, 16000), w(512, 1, 10), strides=[5])
    yield case("sound 512, 3 stride 2", "Conv", x(1, 512, 1600), w(512, 512, 3), strides=[2])
    yield case("sound 80 to 384, 3", "Conv", x(1, 80, 1000), w(384, 80, 3), w(384), pads=[1, 1])
    yield case("sound depthwise 31, 256", "Conv", x(1, 256, 400), w(256, 1, 31), w(256), pads=[15, 15], group=256)
    yield case("volume 3x3x3 of 16", "Conv", x(1, 16, 16, 32, 32), w(16, 16, 3, 3, 3), w(16), pads=[1] * 6)
    yield case("2x2 stride 2, 64 to 64, 28", "ConvTranspose", x(1, 64, 28, 28), w(64, 64, 2, 2), w(64), strides=[2, 2])
    yield case(
        "4x4 stride 2, 128 to 64, 28", "ConvTranspose", x(1, 128, 28, 28), w(128, 64, 4, 4), strides=[2, 2], pads=[1] * 4
    )
    yield case("2x2 stride 2, 24 to 1, 160", "ConvTranspose", x(1, 24, 160, 160), w(24, 1, 2, 2), w(1), strides=[2, 2])
    yield case("3x3, 256 to 256, 14", "ConvTranspose", x(1, 256, 14, 14), w(256, 256, 3, 3), pads=[1] * 4)


def products() -> Iterator[Case]:
    def matmul(m: int, k: int, n: int) -> Case:
        return case(f"{m}x{k} by {k}x{n}", "MatMul", x(1, m, k), w(k, n))

    for sizes in ((128, 768, 768), (128, 768, 3072), (384, 384, 384), (16, 1024, 1024), (4, 1024, 1024), (2, 1024, 1024)):
        yield matmul(*sizes)
    for sizes in (
        (1, 768, 768),
        (1, 768, 3072),
        (1, 3072, 768),
        (1, 768, 32000),
        (128, 64, 64),
        (1000, 32, 32),
        (4096, 16, 16),
    ):
        yield matmul(*sizes)
    for sizes in ((128, 768, 1), (4096, 256, 1), (4096, 1024, 1), (4096, 256, 2), (4096, 256, 4), (4096, 256, 8), (1, 4096, 1)):
        yield matmul(*sizes)
    for sizes in ((4096, 8, 256), (4096, 1, 256), (512, 512, 24), (512, 512, 40)):
        yield matmul(*sizes)
    yield case("one column of activations", "MatMul", x(16, 128, 128), x(16, 128, 1))
    yield case("scores of 12 heads, 128", "MatMul", x(1, 12, 128, 64), x(1, 12, 64, 128))
    yield case("values of 12 heads, 128", "MatMul", x(1, 12, 128, 128), x(1, 12, 128, 64))
    yield case("scores of one query, 12 heads, 512", "MatMul", x(1, 12, 1, 64), x(1, 12, 64, 512))
    yield case("values of one query, 12 heads, 512", "MatMul", x(1, 12, 1, 512), x(1, 12, 512, 64))
    yield case("windows of 49 by 32", "MatMul", x(64, 3, 49, 32), x(64, 3, 32, 49))
    yield case("tiny batches", "MatMul", x(4096, 4, 4), x(4096, 4, 4))
    yield case("f64", "MatMul", x(256, 256, dtype="f8"), w(256, 256, dtype="f8"))
    yield case("f16", "MatMul", x(256, 256, dtype="f2"), w(256, 256, dtype="f2"))
    yield case("1x2048 by 2048x1000", "Gemm", x(1, 2048), w(1000, 2048), w(1000), transB=1)
    yield case("128x768 by 768x768", "Gemm", x(128, 768), w(768, 768), w(768), transB=0)
    yield case("32x256 by 256x64", "Gemm", x(32, 256), w(64, 256), w(64), transB=1)
    yield case("4096x64 by 64x1", "Gemm", x(4096, 64), w(1, 64), w(1), transB=1)
    yield case("transposed A, 512", "Gemm", x(512, 512), w(512, 512), transA=1)
    yield case("bhqd,bhkd->bhqk", "Einsum", x(1, 12, 128, 64), x(1, 12, 128, 64), equation="bhqd,bhkd->bhqk")
    yield case("bhqk,bhkd->bqhd", "Einsum", x(1, 12, 128, 128), x(1, 12, 128, 64), equation="bhqk,bhkd->bqhd")
    yield case("i,j->ij", "Einsum", x(1024), x(64), equation="i,j->ij")
    yield case("scaled, 128", "FusedMatMul", x(1, 12, 128, 64), x(1, 12, 128, 64), domain=MICROSOFT, transB=1, alpha=0.125)
    query = x(1, 128, 768)
    yield case("12 heads, 128", "MultiHeadAttention", query, query, query, domain=MICROSOFT, num_heads=12)

    for samples, positions in ((1, 4096), (8, 1024)):
        token, own = x(samples, 1, 512), x(samples, 1, 256)
        caches = [x(samples, 4, positions, 64) for _ in range(2)]
        last, total = const([positions - 1] * samples, "i4"), const(positions, "i4")
        yield case(
            f"{samples} queries, {positions}", "GroupQueryAttention", token, own, own, *caches, last, total,
            domain=MICROSOFT, results=3, num_heads=8, kv_num_heads=4,
        )  # fmt: skip


def quantised() -> Iterator[Case]:
    zero, scale = const(128, "u1"), const(0.02, "f4")

    def integers(m: int, k: int, n: int) -> Case:
        operands = x(1, m, k, dtype="u1", values=255), w(k, n, dtype="i1", values=127), zero, const(0, "i1")
        return case(f"{m}x{k} by {k}x{n}", "MatMulInteger", *operands)

    for sizes in ((128, 768, 768), (128, 768, 3072), (1, 768, 3072), (16, 1024, 1024)):
        yield integers(*sizes)
    for size, shape in SIZES.items():
        yield case(size, "DynamicQuantizeLinear", x(*shape), results=3)
        yield case(size, "QuantizeLinear", x(*shape), scale, zero)
        yield case(size, "DequantizeLinear", x(*shape, dtype="u1", values=255), scale, zero)
        eight = x(*shape, dtype="u1", values=255)
        yield case(size, "QLinearAdd", eight, scale, zero, eight, scale, zero, scale, zero, domain=MICROSOFT)
        yield case(size, "QLinearSigmoid", eight, scale, zero, scale, zero, domain=MICROSOFT)

    def qconv(label: str, channels: int, side: int, made: int, kernel: int, group: int = 1) -> Case:
        image = x(1, channels, side, side, dtype="u1", values=255)
        weight = w(made, channels // group, kernel, kernel, dtype="i1", values=127)
        rest = const(0.01, "f4"), const(0, "i1"), scale, zero, w(made, dtype="i4", values=99)
        return case(label, "QLinearConv", image, scale, zero, weight, *rest, pads=[kernel // 2] * 4, group=group)

    yield qconv("1x1 64 to 256, 56", 64, 56, 256, 1)
    yield qconv("3x3 64, 56", 64, 56, 64, 3)
    yield qconv("3x3 256, 14", 256, 14, 256, 3)
    yield qconv("depthwise 3x3, 96, 56", 96, 56, 96, 3, 96)
    left, right = x(128, 768, dtype="u1", values=255), w(768, 768, dtype="i1", values=127)
    yield case("128x768 by 768x768", "QLinearMatMul", left, scale, zero, right, scale, const(0, "i1"), scale, zero)
    yield case("128x768 by 768x768", "DynamicQuantizeMatMul", x(128, 768), right, scale, const(0, "i1"), domain=MICROSOFT)
    packed = w(1024, 32, 16, dtype="u1", values=255), w(1024 * 32)
    for rows in (1, 8, 128):
        operands = x(1, rows, 1024), *packed
        for level, name in ((0, ""), (4, ", in 8 bits")):
            yield case(
                f"{rows} rows{name}", "MatMulNBits", *operands,
                domain=MICROSOFT, K=1024, N=1024, bits=4, block_size=32, accuracy_level=level,
            )  # fmt: skip


def reductions() -> Iterator[Case]:
    for size, (rows, columns) in SIZES.items():
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"):
            yield case(f"inner {size}", op, x(rows, columns), const([1]))
        for op in ("ReduceSum", "ReduceMean", "ReduceMax"):
            yield case(f"outer {size}", op, x(rows, columns), const([0]))
            yield case(f"middle {size}", op, x(rows // 16, 64, columns // 4), const([1]))
            yield case(f"short {size}", op, x(rows * columns // 8, 8), const([1]))
        yield case(f"image {size}", "ReduceMean", x(1, columns, rows // 8, 8), const([2, 3]))
        for op in ("ArgMax", "ArgMin"):
            yield case(f"inner {size}", op, x(rows, columns), axis=1)
        yield case(f"middle {size}", "ArgMax", x(rows // 16, 64, columns // 4), axis=1)
        yield case(f"inner {size}", "CumSum", x(rows, columns), const(1))
        yield case(f"outer {size}", "CumSum", x(rows, columns), const(0))
        yield case(f"i64 {size}", "CumSum", x(rows, columns, dtype="i8", values=2), const(1))
        yield case(f"i64 inner {size}", "ReduceSum", x(rows, columns, dtype="i8", values=2), const([1]))
        yield case(f"10 of 1024 {size}", "TopK", x(rows, columns), const([10]), results=2)
        yield case(f"300 of all {size}", "TopK", x(1, rows * columns), const([300]), results=2)
        yield case(f"all of 1024 {size}", "TopK", x(rows // 4, columns), const([columns]), results=2)
        yield case(f"inner {size}", "Softmax", x(rows, columns))
        yield case(f"short {size}", "Softmax", x(rows * columns // 64, 64))
        yield case(f"shorter {size}", "Softmax", x(rows * columns // 8, 8))
        yield case(f"middle {size}", "Softmax", x(rows // 16, 64, columns // 4), axis=1)
        yield case(f"inner {size}", "LogSoftmax", x(rows, columns))


def norms() -> Iterator[Case]:
    for size, (rows, columns) in SIZES.items():
        row = w(columns), w(columns)
        yield case(size, "LayerNormalization", x(rows, columns), *row)
        yield case(f"short {size}", "LayerNormalization", x(rows * columns // 64, 64), w(64), w(64))
        yield case(size, "SimplifiedLayerNormalization", x(rows, columns), w(columns), opset=18, axis=-1)
        yield case(size, "SkipLayerNormalization", x(1, rows, columns), x(1, rows, columns), *row, domain=MICROSOFT)
        images = x(1, 64, rows * columns // 64 // 16, 16)
        four = (w(64), w(64), w(64), w(64, values="positive"))
        yield case(size, "BatchNormalization", images, *four)
        yield case(size, "InstanceNormalization", images, w(64), w(64))
        yield case(size, "GroupNormalization", images, w(64), w(64), opset=21, num_groups=8)
        yield case(size, "LpNormalization", x(rows, columns))
        yield case(size, "LRN", images, size=5)
        yield case(size, "MeanVarianceNormalization", images)


def moves() -> Iterator[Case]:
    for size, (rows, columns) in SIZES.items():
        whole = x(rows, columns)
        images = x(1, 64, rows * columns // 64 // 16, 16)
        yield case(f"two of rows {size}", "Concat", whole, whole, axis=0)
        yield case(f"two of columns {size}", "Concat", whole, whole, axis=1)
        yield case(f"channels {size}", "Concat", images, images, axis=1)
        yield case(f"short {size}", "Concat", x(rows * columns // 4, 4), x(rows * columns // 4, 4), axis=1)
        yield case(f"rotary halves {size}", "Concat", x(rows, 16, 32), x(rows, 16, 32), axis=2)
        yield case(f"rows {size}", "Split", whole, results=2, axis=0, num_outputs=2)
        yield case(f"columns {size}", "Split", whole, results=3, axis=1, num_outputs=3)
        yield case(f"rows {size}", "Slice", whole, const([8]), const([rows]), const([0]))
        yield case(f"columns {size}", "Slice", whole, const([0]), const([columns // 2]), const([1]))
        yield case(f"last {size}", "Slice", whole, const([columns - 1]), const([columns]), const([1]))
        yield case(f"every second column {size}", "Slice", whole, const([0]), const([columns]), const([1]), const([2]))
        yield case(f"every second row {size}", "Slice", whole, const([0]), const([rows]), const([0]), const([2]))
        yield case(f"backwards {size}", "Slice", whole, const([-1]), const([-columns - 1]), const([1]), const([-1]))
        yield case(f"rows and columns {size}", "Transpose", whole, perm=[1, 0])
        yield case(f"heads {size}", "Transpose", x(1, rows, 16, columns // 16), perm=[0, 2, 1, 3])
        yield case(f"keys {size}", "Transpose", x(1, rows, 16, columns // 16), perm=[0, 2, 3, 1])
        yield case(f"NCHW to NHWC {size}", "Transpose", images, perm=[0, 2, 3, 1])
        yield case(f"NHWC to NCHW {size}", "Transpose", x(1, rows * columns // 64 // 16, 16, 64), perm=[0, 3, 1, 2])
        yield case(f"windows {size}", "Transpose", x(1, rows // 8, 8, columns // 64, 8, 8), perm=[0, 1, 3, 2, 4, 5])
        yield case(f"last two of short {size}", "Transpose", x(rows * columns // 64, 8, 8), perm=[0, 2, 1])
        yield case(f"heads f16 {size}", "Transpose", x(1, rows, 16, columns // 16, dtype="f2"), perm=[0, 2, 1, 3])
        yield case(f"rows {size}", "Expand", x(1, columns), const([rows, columns]))
        yield case(f"columns {size}", "Expand", x(rows, 1), const([rows, columns]))
        yield case(f"grouped heads {size}", "Expand", x(1, 4, 1, rows, columns // 16), const([1, 4, 4, rows, columns // 16]))
        yield case(f"rows {size}", "Tile", x(rows // 4, columns), const([4, 1]))
        yield case(f"columns {size}", "Tile", x(rows, columns // 4), const([1, 4]))
        yield case(f"constant {size}", "Pad", images, const([0, 0, 1, 1, 0, 0, 1, 1]))
        yield case(f"reflect {size}", "Pad", images, const([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
        yield case(f"edge {size}", "Pad", images, const([0, 0, 1, 1, 0, 0, 1, 1]), mode="edge")
        yield case(size, "DepthToSpace", images, blocksize=2)
        yield case(size, "SpaceToDepth", images, blocksize=2)
        yield case(f"upper {size}", "Trilu", whole, upper=1)
        yield case(
            f"of 64 {size}", "OneHot", x(rows * columns // 64, dtype="i8", values=64), const(64), const([0.0, 1.0], "f4")
        )
        yield case(size, "EyeLike", whole)


def indexing() -> Iterator[Case]:
    for size, (rows, columns) in SIZES.items():
        whole = x(rows, columns)
        yield case(f"rows of 768, {size}", "Gather", w(30000, 768), x(rows * columns // 1024, dtype="i8", values=30000))
        yield case(f"rows of 64, {size}", "Gather", w(10000, 64), x(rows * columns // 64, dtype="i8", values=10000))
        yield case(f"rows of activations {size}", "Gather", whole, x(rows, dtype="i8", values=rows))
        yield case(f"elements, {size}", "Gather", w(1000), x(rows * columns, dtype="i8", values=1000))
        yield case(f"columns {size}", "Gather", whole, x(columns // 2, dtype="i8", values=columns), axis=1)
        yield case(f"one column {size}", "Gather", whole, const(3), axis=1)
        yield case(f"one row {size}", "Gather", whole, const(3), axis=0)
        yield case(f"inner {size}", "GatherElements", whole, x(rows, columns // 4, dtype="i8", values=columns), axis=1)
        yield case(f"outer {size}", "GatherElements", whole, x(rows // 4, columns, dtype="i8", values=rows), axis=0)
        yield case(f"rows {size}", "GatherND", whole, x(rows, 1, dtype="i8", values=rows))
        yield case(f"elements {size}", "GatherND", whole, x(rows * columns // 16, 2, dtype="i8", values=min(rows, columns)))
        updates = x(rows // 4, columns)
        yield case(f"rows {size}", "ScatterND", whole, x(rows // 4, 1, dtype="i8", values=rows), updates)
        yield case(f"elements {size}", "ScatterND", whole, x(rows, 2, dtype="i8", values=min(rows, columns)), x(rows))
        index = x(rows // 4, columns, dtype="i8", values=rows)
        yield case(f"outer {size}", "ScatterElements", whole, index, updates, axis=0)
        yield case(f"outer sum {size}", "ScatterElements", whole, index, updates, axis=0, reduction="add")
        index = x(rows, columns // 4, dtype="i8", values=columns)
        yield case(f"inner sum {size}", "ScatterElements", whole, index, x(rows, columns // 4), axis=1, reduction="add")
        yield case(f"f32 {size}", "NonZero", whole)
        yield case(f"bool {size}", "NonZero", x(rows, columns, dtype="?"))
        yield case(f"rows {size}", "Compress", whole, x(rows, dtype="?"), axis=0)
    edges = x(12000, 128, dtype="i8", values=800)
    yield case("edges to nodes, sum", "ScatterElements", x(800, 128), edges, x(12000, 128), axis=0, reduction="add")
    yield case("boxes", "NonMaxSuppression", x(1, 1000, 4, values="positive"), x(1, 1, 1000), const([100]), const([0.5], "f4"))


def pools() -> Iterator[Case]:
    for size, side in {"small": 32, "large": 224}.items():
        image = x(1, 64, side, side)
        yield case(f"2x2 stride 2, {size}", "MaxPool", image, kernel_shape=[2, 2], strides=[2, 2])
        yield case(f"3x3 stride 2, {size}", "MaxPool", image, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        yield case(f"5x5, {size}", "MaxPool", image, kernel_shape=[5, 5], pads=[2] * 4)
        yield case(f"2x2 stride 2, {size}", "AveragePool", image, kernel_shape=[2, 2], strides=[2, 2])
        yield case(f"3x3, {size}", "AveragePool", image, kernel_shape=[3, 3], pads=[1] * 4)
        yield case(f"sound 2 stride 2, {size}", "MaxPool", x(1, 64, side * side), kernel_shape=[2], strides=[2])
        yield case(size, "GlobalAveragePool", image)
        yield case(size, "GlobalMaxPool", image)
        doubled, halved = const([1.0, 1.0, 2.0, 2.0], "f4"), const([1.0, 1.0, 0.5, 0.5], "f4")
        asymmetric: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        yield case(f"nearest twice {size}", "Resize", image, None, doubled, mode="nearest", **asymmetric)
        yield case(f"nearest half {size}", "Resize", image, None, halved, mode="nearest", **asymmetric)
        yield case(f"linear twice {size}", "Resize", image, None, doubled, mode="linear")
        yield case(f"linear half {size}", "Resize", image, None, halved, mode="linear")
        yield case(f"cubic twice {size}", "Resize", image, None, doubled, mode="cubic")
        grid = x(1, side, side, 2, values="unit")
        yield case(f"linear {size}", "GridSample", image, grid, opset=20)
        yield case(f"nearest {size}", "GridSample", image, grid, opset=20, mode="nearest")
    boxes = const(np.tile([0.0, 0.0, 60.0, 60.0], (100, 1)), "f4")
    yield case(
        "7x7 of 100 boxes", "RoiAlign", x(1, 64, 64, 64), boxes, const(np.zeros(100)), output_height=7, output_width=7,
        sampling_ratio=2,
    )  # fmt: skip


def recurrence() -> Iterator[Case]:
    def cell(op: str, gates: int, steps: int, batch: int, width: int, hidden: int, directions: int = 1) -> Case:
        weights = w(directions, gates * hidden, width), w(directions, gates * hidden, hidden), w(directions, 2 * gates * hidden)
        direction: dict[str, Any] = {"direction": "bidirectional"} if directions == 2 else {}
        label = f"{steps} steps of {batch}, {width} to {hidden}{', both ways' if directions == 2 else ''}"
        return case(label, op, x(steps, batch, width), *weights, hidden_size=hidden, **direction)

    yield cell("LSTM", 4, 1, 1, 128, 128)
    yield cell("LSTM", 4, 100, 1, 128, 128)
    yield cell("LSTM", 4, 80, 1, 256, 256, 2)
    yield cell("LSTM", 4, 32, 16, 256, 256)
    yield cell("GRU", 3, 200, 1, 400, 400)
    yield cell("GRU", 3, 100, 1, 64, 64)
    yield cell("GRU", 3, 32, 16, 256, 256)
    yield cell("RNN", 1, 100, 1, 128, 128)


def others() -> Iterator[Case]:
    for size, (rows, columns) in SIZES.items():
        yield case(size, "RotaryEmbedding", x(1, rows, columns), const(np.arange(rows)[None]), w(rows, 32), w(rows, 32),
                   domain=MICROSOFT, num_heads=16)  # fmt: skip
        yield case(size, "DFT", x(rows, columns, 1), onesided=1, axis=1, opset=17)
        yield case(size, "RandomNormalLike", x(rows, columns))
    yield case("frames of 512", "STFT", x(1, 16000), const(160), w(512, values="positive"), const(512), opset=17)
