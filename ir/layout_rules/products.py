"""Layout rules of ops that sum products along inner dimensions: matrix products, Einsum, convolutions, pooling, recurrence.

An inner dimension is a factor of kind sum. If it is split, one member has the bias, so that it is added once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.layout_rules.adapt import LocalAttribute, ScaleResult
from ir.layout_rules.draft import Draft, Draw, Place, UnfitError
from ir.layout_rules.rule import Kind
from ir.ops.operators import einsum_terms


def matmul(draft: Draft) -> None:
    """``[.., M, K] x [.., K, N]`` with broadcast batch dimensions; a vector lacks M, or N."""
    _product(draft, _matrix(draft.rank(0), "m"), _matrix(draft.rank(1), "n", swapped=True))


def fused_matmul(draft: Draft) -> None:
    """com.microsoft.FusedMatMul: operands may be transposed; the product is scaled."""
    if draft.get("transBatchA", 0) or draft.get("transBatchB", 0):
        raise UnfitError("transposes batch dimensions")
    first = _matrix(draft.rank(0), "m", swapped=bool(draft.get("transA", 0)))
    _product(draft, first, _matrix(draft.rank(1), "n", swapped=not draft.get("transB", 0)))


def _matrix(rank: int, outer: str, *, swapped: bool = False) -> list[str]:
    """The labels of an operand, whose summed dimension is ``k``; batch dimensions are numbered from the last one."""
    if rank < 1:
        raise UnfitError("a product of scalars")
    last = ["k"] if rank == 1 else ["k", outer] if swapped else [outer, "k"]
    return [f"b{i}" for i in reversed(range(rank - len(last)))] + last


def _product(draft: Draft, first: list[str], second: list[str]) -> None:
    batches = max(first, second, key=len)
    result = [label for label in batches if label.startswith("b")]
    result += [label for label in ("m", "n") if label in first + second]
    draft.tie_labels({0: first, 1: second, -1: result}, {"k": Kind.SUM})
    draft.passes((0,), (1,))


def gemm(draft: Draft) -> None:
    """``alpha A' B' + beta C``, C broadcast to the result."""
    if draft.get("broadcast") is not None or (draft.opset < 7 and draft.rank(2) != 2):
        raise UnfitError("broadcasts as before opset 7")
    first = ["k", "m"] if draft.get("transA", 0) else ["m", "k"]
    second = ["n", "k"] if draft.get("transB", 0) else ["k", "n"]
    bias = ["m", "n"][2 - draft.rank(2) :] if draft.present(2) else []
    draft.tie_labels({0: first, 1: second, 2: bias, -1: ["m", "n"]}, {"k": Kind.SUM}, partial=(2,))
    draft.passes((0, 2), (1, 2))


def fused_gemm(draft: Draft) -> None:
    """com.microsoft.FusedGemm: an activation follows, so the inner dimension is whole: f(a + b) is not f(a) + f(b)."""
    first = ["", "m"] if draft.get("transA", 0) else ["m", ""]
    second = ["n", ""] if draft.get("transB", 0) else ["", "n"]
    bias = ["m", "n"][2 - draft.rank(2) :] if draft.present(2) else []
    draft.tie_labels({0: first, 1: second, 2: bias, -1: ["m", "n"]})


def einsum(draft: Draft) -> None:
    """A factor per letter: a sum if the output lacks it, whole if an operand has it twice."""
    try:
        terms, result = einsum_terms(str(draft.get("equation", "")), [draft.rank(i) for i in range(len(draft.operands))])
    except ValueError as error:
        raise UnfitError(str(error)) from error
    repeated = {letter for term in [*terms, result] for letter in term if term.count(letter) > 1}
    labels = {i: [letter if letter not in repeated else "" for letter in term] for i, term in enumerate([*terms, result])}
    kinds = {letter: Kind.SUM for term in terms for letter in term if letter not in result}
    draft.tie_labels({**{i: labels[i] for i in range(len(terms))}, -1: labels[len(terms)]}, kinds)
    draft.passes(*((i,) for i in range(len(terms))))


def conv(draft: Draft) -> None:
    """``X [N, C, ..], W [M, C / group, kernel..], B [M]`` to ``[N, M, ..]``. With groups, C and M are split between groups
    only."""
    draft.tie("batch", (0, 0), (-1, 0))
    group = int(draft.get("group", 1))
    if group > 1:
        draft.tie("group", (0, 1), (1, 0), (2, 0), (-1, 1), size=group, adapt=(LocalAttribute("group"),))
    else:
        draft.tie("out", (1, 0), (2, 0), (-1, 1))
        draft.tie("in", (0, 1), (1, 1), kind=Kind.SUM, partial=(2,))
    patches(draft, draft.numbers(1)[2:], (0,), -1)
    draft.passes((0, 2), (1, 2))


def fused_conv(draft: Draft) -> None:
    """com.microsoft.FusedConv: Conv, an addend Z of the shape of the result, and an activation, so C is whole."""
    draft.tie("batch", (0, 0), (3, 0), (-1, 0))
    group = int(draft.get("group", 1))
    if group > 1:
        draft.tie("group", (0, 1), (1, 0), (2, 0), (3, 1), (-1, 1), size=group, adapt=(LocalAttribute("group"),))
    else:
        draft.tie("out", (1, 0), (2, 0), (3, 1), (-1, 1))
    if not draft.present(3):
        patches(draft, draft.numbers(1)[2:], (0,), -1)


def conv_transpose(draft: Draft) -> None:
    """``X [N, C, ..], W [C, M / group, kernel..], B [M]`` to ``[N, M, ..]``."""
    draft.tie("batch", (0, 0), (-1, 0))
    group = int(draft.get("group", 1))
    if group > 1:
        draft.tie("group", (0, 1), (1, 0), (2, 0), (-1, 1), size=group, adapt=(LocalAttribute("group"),))
    else:
        draft.tie("out", (1, 1), (2, 0), (-1, 1))
        draft.tie("in", (0, 1), (1, 0), kind=Kind.SUM, partial=(2,))
    draft.passes((0, 2), (1, 2))


def patches(draft: Draft, kernel: Sequence[int], sources: tuple[int, ...], target: int, kind: Kind = Kind.PARALLEL) -> None:
    """Adds a factor of ``kind`` for each spatial dimension whose windows neither overlap nor leave gaps (patches, 1x1): its
    units are the windows, along ``sources``, which have one shape, and ``target``, which has one element per window. Other
    spatial dimensions are whole: a shard would need its neighbours' borders."""
    if draft.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or draft.get("ceil_mode", 0):
        return
    count = len(kernel)
    strides = tuple(draft.get("strides") or (1,) * count)
    dilations = tuple(draft.get("dilations") or (1,) * count)
    pads = tuple(draft.get("pads") or (0,) * (2 * count))
    lengths, counts = draft.numbers(sources[0]), draft.numbers(target)
    for i, width in enumerate(kernel):
        windows = counts[2 + i]
        apart = strides[i] == width and dilations[i] == 1 and pads[i] == pads[count + i] == 0
        if apart and lengths[2 + i] == windows * width:
            places: list[Place] = [(tensor, 2 + i) for tensor in (*sources, target)]
            draft.tie(f"patch{i}", *places, kind=kind, size=windows)


def _pool(*, linear: bool) -> Draw:
    """For pooling by windows: samples and channels are parallel. ``linear``: terms of a sum pass, else those of a maximum."""

    def draw(draft: Draft) -> None:
        if len(draft.results) > 1:  # MaxPool's indices count through the whole tensor
            raise UnfitError("gives indices")
        draft.tie("batch", (0, 0), (-1, 0))
        draft.tie("channel", (0, 1), (-1, 1))
        patches(draft, draft.get("kernel_shape"), (0,), -1)
        draft.passes(*([(0,)] if linear else []))
        if not linear:
            draft.passes((0,), reductions=("max",))

    return draw


def global_average(draft: Draft) -> None:
    """GlobalAveragePool: the mean over the positions of each sample and channel."""
    draft.tie("batch", (0, 0), (-1, 0))
    draft.tie("channel", (0, 1), (-1, 1))
    for dim in range(2, draft.rank(0)):
        draft.tie(f"place{dim - 2}", (0, dim), kind=Kind.SUM, adapt=(ScaleResult(),))
    draft.passes((0,))


def global_max(draft: Draft) -> None:
    """GlobalMaxPool: the maximum over the positions of each sample and channel."""
    draft.tie("batch", (0, 0), (-1, 0))
    draft.tie("channel", (0, 1), (-1, 1))
    for dim in range(2, draft.rank(0)):
        draft.tie(f"place{dim - 2}", (0, dim), kind=Kind.MAX)
    draft.passes((0,), reductions=("max",))


def recurrent(draft: Draft) -> None:
    """RNN, GRU, LSTM(X [T, B, I], W, R, bias, lengths [B], initial h [D, B, H], initial c, peepholes): samples are parallel."""
    if draft.get("layout", 0):
        raise UnfitError("batch first")
    draft.tie("batch", (0, 1), (4, 0), (5, 1), (6, 1), (-1, 2), (-2, 1), (-3, 1))


RULES: dict[str, Draw] = {
    "onnx.AveragePool": _pool(linear=True),
    "onnx.Conv": conv,
    "onnx.ConvTranspose": conv_transpose,
    "onnx.Einsum": einsum,
    "onnx.GRU": recurrent,
    "onnx.Gemm": gemm,
    "onnx.GlobalAveragePool": global_average,
    "onnx.GlobalMaxPool": global_max,
    "onnx.LSTM": recurrent,
    "onnx.MatMul": matmul,
    "onnx.MaxPool": _pool(linear=False),
    "onnx.RNN": recurrent,
    "onnx.com.microsoft.FusedConv": fused_conv,
    "onnx.com.microsoft.FusedGemm": fused_gemm,
    "onnx.com.microsoft.FusedMatMul": fused_matmul,
}
"""By the op's full name."""
