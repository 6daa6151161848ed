"""Rules of matrix products: each factor's gradient is a product of the other factor and the gradient of the result."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase

from ir.core.types import DType, TensorType
from ir.ops.operators import einsum_terms
from passes.differentiate.rules.moves import padded, slice_of
from passes.differentiate.site import Rule, Site, broadcast

Gradients = Sequence[str | None]


def product(site: Site, one: str, other: str) -> str:
    """MatMul of two tensors of rank 2 or above."""
    left, right = site.shape_of(one), site.shape_of(other)
    shape = (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
    return site.emit("onnx.MatMul", (one, other), TensorType(site.type_of(one).dtype, shape))


def flipped(site: Site, name: str) -> str:
    """The matrices transposed."""
    rank = len(site.shape_of(name))
    return site.transpose(name, (*range(rank - 2), rank - 1, rank - 2))


def matmul(site: Site) -> Gradients:
    """A B, batched and broadcast; a vector is a row on the left, a column on the right."""
    left, right = site.shape(0), site.shape(1)
    rows = (1, *left) if len(left) == 1 else left
    columns = (*right, 1) if len(right) == 1 else right
    given = site.reshape(site.given, (*broadcast(rows[:-2], columns[:-2]), rows[-2], columns[-1]))
    first = second = None
    if site.wants(0):
        other = flipped(site, site.reshape(site.operand(1), columns))
        first = site.reshape(site.summed_to(product(site, given, other), rows), left)
    if site.wants(1):
        second = site.reshape(_right(site, rows, columns, given), right)
    return first, second


def _right(site: Site, rows: tuple[int, ...], columns: tuple[int, ...], given: str) -> str:
    """The gradient of the right factor. A matrix for all batches on the left is one product of all rows at once."""
    one = site.reshape(site.operand(0), rows)
    if len(columns) == 2 and len(rows) > 2:
        axes = tuple(range(len(rows) - 1))
        return _contracted(site, one, given, axes)
    return site.summed_to(product(site, flipped(site, one), given), columns)


def _contracted(site: Site, one: str, given: str, axes: tuple[int, ...]) -> str:
    """``[.., m, k]`` and ``[.., m, n]`` to ``[k, n]``: the sum over all rows."""
    inner, outer = site.shape_of(one)[-1], site.shape_of(given)[-1]
    dtype = site.type_of(one).dtype
    letters = "abcdefgh"[: len(axes)]
    if len(axes) > len("abcdefgh") or not site.has_opset(12):
        return site.sum(product(site, flipped(site, one), given), axes[:-1])
    equation = f"{letters}x,{letters}y->xy"
    return site.emit("onnx.Einsum", (one, given), TensorType(dtype, (inner, outer)), equation=equation)


def gemm(site: Site) -> Gradients:
    """alpha A' B' + beta C."""
    alpha, beta = site.op.get("alpha", 1.0), site.op.get("beta", 1.0)
    given = site.given
    scaled = given if alpha == 1.0 or not (site.wants(0) or site.wants(1)) else site.mul(given, alpha)
    turned = (bool(site.op.get("transA", 0)), bool(site.op.get("transB", 0)))
    gradients: list[str | None] = [None, None, None]
    if site.wants(0):
        gradients[0] = _gemm(site, scaled, site.operand(1), 0, not turned[1], swap=turned[0])
    if site.wants(1):
        gradients[1] = _gemm(site, scaled, site.operand(0), 1, not turned[0], swap=turned[1])
    if site.wants(2):
        third = site.summed(given, 2)
        gradients[2] = third if beta == 1.0 else site.mul(third, beta)
    return gradients


def _gemm(site: Site, given: str, other: str, number: int, turn: bool, *, swap: bool) -> str:
    """The gradient of factor ``number``: given times the other one on its side, or both the other way round if it is stored
    transposed (``swap``). ``turn``: whether the other factor is stored as it is multiplied, and so is transposed here."""
    type_ = TensorType(site.type_of(given).dtype, site.shape(number))
    other_first = (number == 1) != swap
    operands = (other, given) if other_first else (given, other)
    turn = turn != swap
    turns = {"transA": int(turn), "transB": int(swap)} if other_first else {"transA": int(swap), "transB": int(turn)}
    return site.emit("onnx.Gemm", operands, type_, **{key: value for key, value in turns.items() if value})


def einsum(site: Site) -> Gradients:
    """Each operand's gradient is the equation turned round: torch's own backward pass is made of such products too."""
    terms, result = _terms(site)
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        sizes |= {letter: size for letter, size in zip(term, site.shape(i), strict=True) if size != 1 or letter not in sizes}
    return [_einsum(site, terms, result, sizes, i) if site.wants(i) else None for i in range(len(terms))]


def _terms(site: Site) -> tuple[list[str], str]:
    """The letters of each operand's dimensions and of the result's. Dots become letters that the equation lacks, the same for
    the dimensions that broadcast to each other: those with the same place from the last."""
    equation = str(site.op.get("equation"))
    terms, result = einsum_terms(equation, [len(site.shape(i)) for i in range(len(site.op.operands))])
    dots = "".join(sorted({letter for term in terms for letter in term if not letter.isalpha()}, reverse=True))
    free = "".join(letter for letter in ascii_uppercase + ascii_lowercase if letter not in equation)
    if len(dots) > len(free):
        raise site.fault("its equation has more dimensions than letters")
    named = str.maketrans(dots, free[: len(dots)])
    return [term.translate(named) for term in terms], result.translate(named)


def _einsum(site: Site, terms: Sequence[str], result: str, sizes: dict[str, int], number: int) -> str:
    """Along letters that nothing else has in full the gradient is the same; it is summed over those that were broadcast; it is
    zero but on the diagonal of dimensions of one letter."""
    others = [(term, site.operand(i)) for i, term in enumerate(terms) if i != number]
    own = dict(zip(terms[number], site.shape(number), strict=True))
    varying = set(result)
    for i, term in enumerate(terms):
        if i != number:
            varying |= {x for x, size in zip(term, site.shape(i), strict=True) if size == sizes[x]}
    kept = "".join(x for x, size in own.items() if size == sizes[x] and x in varying)
    dtype = site.type(number).dtype
    equation = ",".join([result, *(term for term, _ in others)]) + f"->{kept}"
    operands = (site.given, *(name for _, name in others))
    found = site.given
    if equation != f"{kept}->{kept}":
        found = site.emit("onnx.Einsum", operands, TensorType(dtype, tuple(own[x] for x in kept)), equation=equation)
    if kept == terms[number]:
        return found
    found = site.reshape(found, [size if x in kept else 1 for x, size in own.items()])
    return _diagonal(site, site.expand(found, list(own.values())), terms[number])


def _diagonal(site: Site, name: str, term: str) -> str:
    """A tensor with a dimension for each letter of ``term``, as one with a dimension for each place in it, 0 off diagonals."""
    shape, dtype = dict(zip(dict.fromkeys(term), site.shape_of(name), strict=True)), site.type_of(name).dtype
    name = site.reshape(name, [shape[x] if term.index(x) == place else 1 for place, x in enumerate(term)])
    for place, x in enumerate(term):
        if (first := term.index(x)) < place:
            square = (shape[x], shape[x])
            ones = site.emit("onnx.EyeLike", (site.expand(site.scalar(0.0, dtype), square),), TensorType(dtype, square))
            name = site.mul(name, site.reshape(ones, [shape[x] if i in (first, place) else 1 for i in range(len(term))]))
    return name


def fourier(site: Site) -> Gradients:
    """DFT over L numbers, y = F x with F[j, k] = exp(-2 pi i j k / L), or the inverse, y = conj(F) x / L. The gradient of the
    real and imaginary parts of x is F^H g: L times the inverse of g, or the transform of g by L. Frequencies that ``onesided``
    leaves out have none; in the inverse of one half of them, each but the first and, of an even L, the last counts twice."""
    shape, rank = site.shape(0), len(site.shape(0))
    (axis,) = site.integers(2, "axis") or ((-2,) if site.has_opset(20) else (1,))
    axis %= rank
    inverse, half = bool(site.op.get("inverse", 0)), bool(site.op.get("onesided", 0))
    (length,) = site.integers(1) or (2 * (shape[axis] - 1) if inverse and half else shape[axis],)
    if inverse and half:
        return [_half(site, axis, length)]
    made = site.shape_of(site.given)[axis]
    found = _transformed(site, resized(site, site.given, axis, made, length), axis, length, inverse=not inverse)
    found = slice_of(site, site.mul(found, 1 / length if inverse else float(length)), rank - 1, 0, shape[-1])
    return [resized(site, found, axis, length, shape[axis])]


def _half(site: Site, axis: int, length: int) -> str:
    """The gradient of half of the frequencies, of which ``length`` real numbers are made."""
    count = site.shape(0)[axis]
    if count != length // 2 + 1:
        raise site.fault(f"{count} frequencies are not the half of {length}, so the gradient is not known")
    found = _transformed(site, site.given, axis, count, onesided=True)
    twice = [1 / length if k in (0, length - k) else 2 / length for k in range(count)]
    weights = (count, *(1 for _ in site.shape(0)[axis + 1 :]))
    return site.mul(found, site.program.constant(site.type(0).dtype, weights, twice))


def _transformed(site: Site, name: str, axis: int, count: int, *, inverse: bool = False, onesided: bool = False) -> str:
    """The DFT of a tensor along ``axis``: ``count`` complex numbers."""
    shape = site.shape_of(name)
    type_ = TensorType(site.type_of(name).dtype, (*shape[:axis], count, *shape[axis + 1 : -1], 2))
    fields = {"inverse": int(inverse), "onesided": int(onesided)}
    if not site.has_opset(20):
        return site.emit("onnx.DFT", (name,), type_, axis=axis, **fields)
    return site.emit("onnx.DFT", (name, "", site.program.constant(DType.I64, (), [axis])), type_, **fields)


def resized(site: Site, name: str, axis: int, before: int, after: int) -> str:
    """Cut, or filled with zeros, from ``before`` to ``after`` elements along ``axis``."""
    if after <= before:
        return slice_of(site, name, axis, 0, after)
    rank = len(site.shape_of(name))
    return padded(site, name, [0] * rank, [after - before if i == axis else 0 for i in range(rank)])


RULES: dict[str, Rule] = {"onnx.DFT": fourier, "onnx.Einsum": einsum, "onnx.Gemm": gemm, "onnx.MatMul": matmul}
