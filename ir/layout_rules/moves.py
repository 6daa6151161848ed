"""Layout rules of ops that only move elements, or make them without operands to split.

A dimension whose elements stay in order is a parallel factor; one along which elements are joined, cut, padded or reordered is
whole. An op that only moves elements commutes with sums and maxima of terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.core.types import Dim
from ir.layout_rules.adapt import Adapt, AsReshape, FixedResult, LocalEntry, LocalShape
from ir.layout_rules.draft import BOTH, Draft, Draw, Place, UnfitError


def reshape(draft: Draft) -> None:
    """Reshape and Flatten. Both shapes are cut into the smallest groups of dimensions with the same elements. Each group has
    one factor, along its outermost dimensions m and n, of size gcd(m, n), and the other dimensions are whole: 64 to 4x16 gives
    size 4 (units 16 and 1), 6x4 to 4x6 size 2. All is whole if a dimension is no number."""
    adapt: tuple[Adapt, ...] = (LocalShape(1),) if draft.present(1) else ()
    if draft.get("shape") is not None:
        raise UnfitError("the shape is an attribute")
    draft.passes((0,), reductions=BOTH)
    if not all(isinstance(dim, int) for tensor in (0, -1) for dim in draft.shape(tensor)):
        return
    for number, (places, size) in enumerate(aligned(draft.numbers(0), draft.numbers(-1))):
        draft.tie(f"d{number}", (0, places[0]), (-1, places[1]), size=size, adapt=adapt)


def aligned(source: Sequence[int], target: Sequence[int]) -> list[tuple[tuple[int, int], int]]:
    """For each group of ``reshape``: its outermost dimensions longer than 1, in the source and the target, and the greatest
    common divisor of their lengths. Raises UnfitError if the shapes have different numbers of elements."""
    if math.prod(source) != math.prod(target):
        raise UnfitError(f"{source} and {target} have different numbers of elements")
    if not math.prod(source):
        return []
    left = [(dim, length) for dim, length in enumerate(source) if length != 1]
    right = [(dim, length) for dim, length in enumerate(target) if length != 1]
    groups = []
    i = j = 0
    while i < len(left):
        places, size = (left[i][0], right[j][0]), math.gcd(left[i][1], right[j][1])
        one, other = left[i][1], right[j][1]
        i, j = i + 1, j + 1
        while one != other:
            if one < other:
                one, i = one * left[i][1], i + 1
            else:
                other, j = other * right[j][1], j + 1
        groups.append((places, size))
    return groups


def rank_change(draft: Draft) -> None:
    """Squeeze and Unsqueeze: each dimension of a length other than 1 is parallel."""
    source, target = (_beyond_one(draft.shape(tensor)) for tensor in (0, -1))
    if [length for _, length in source] != [length for _, length in target]:
        raise UnfitError("not the same dimensions")
    named = bool(draft.get("axes")) or (draft.present(1) and draft.shape(1) != (0,))
    adapt: tuple[Adapt, ...] = () if named else (AsReshape(),)
    for (one, _), (other, _) in zip(source, target, strict=True):
        draft.tie(f"d{one}", (0, one), (-1, other), adapt=adapt)
    draft.passes((0,), reductions=BOTH)


def _beyond_one(shape: Sequence[Dim]) -> list[tuple[int, Dim]]:
    return [(dim, length) for dim, length in enumerate(shape) if length != 1]


def transpose(draft: Draft) -> None:
    """Transpose: dimension ``perm[i]`` becomes ``i``; without ``perm``, the order is reversed."""
    rank = draft.rank(0)
    perm = tuple(draft.get("perm") or reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise UnfitError(f"perm {perm} of rank {rank}")
    for dim, source in enumerate(perm):
        draft.tie(f"d{source}", (0, source), (-1, dim))
    draft.passes((0,), reductions=BOTH)


def concat(draft: Draft) -> None:
    """Concat: the axis is whole; all operands may be terms together."""
    operands = range(len(draft.operands))
    axis = draft.axis("axis", 1)
    draft.tie_same((*operands, -1), whole=(axis,))
    draft.passes(tuple(operands), reductions=BOTH)


def split(draft: Draft) -> None:
    """Split: the axis is whole."""
    draft.tie_same((0, *range(-1, -1 - len(draft.results), -1)), whole=(draft.axis("axis", 0),))
    draft.passes((0,), reductions=BOTH)


def slice_(draft: Draft) -> None:
    """Slice: a dimension whose length does not change, with step 1, is parallel (an end beyond a shard means its end); others
    are whole. Unknown steps have no rule, since they may reverse a dimension."""
    steps = draft.constant(4) if draft.present(4) else ()
    if steps is None:
        raise UnfitError("steps are not known")
    whole: tuple[int, ...] = ()
    if any(step != 1 for step in steps):
        axes = draft.axes(3, draft.rank(0))
        if axes is None:
            raise UnfitError("axes are not known")
        whole = axes or tuple(range(len(steps)))
    source, target = draft.shape(0), draft.shape(-1)
    cut = [dim for dim, (one, other) in enumerate(zip(source, target, strict=True)) if one != other]
    draft.tie_same((0, -1), whole=(*whole, *cut))
    draft.passes((0,), reductions=BOTH)


def expand(draft: Draft) -> None:
    """Expand: every dimension of the result is parallel; the operand lacks those that are repeated."""
    rank = draft.rank(-1)
    for dim in range(rank):
        places: list[Place] = [(0, dim - rank)] if draft.rank(0) >= rank - dim else []
        draft.tie(f"d{dim}", *places, (-1, dim), adapt=(LocalShape(1),))
    draft.passes((0,), reductions=BOTH)


def tile(draft: Draft) -> None:
    """Tile: a dimension repeated once is parallel; one of length 1 is a factor of the result alone, if the repeats are known;
    others are whole, since each copy has all of the operand."""
    if draft.opset < 6:
        raise UnfitError("tiles one axis")
    repeats = draft.constant(1)
    for dim, (before, after) in enumerate(zip(draft.numbers(0), draft.numbers(-1), strict=True)):
        if before == after:
            draft.tie(f"d{dim}", (0, dim), (-1, dim))
        elif before == 1 and repeats is not None:
            draft.tie(f"d{dim}", (-1, dim), adapt=(LocalEntry(1, dim),))
    draft.passes((0,), reductions=BOTH)


def pad(draft: Draft) -> None:
    """Pad: a padded dimension is whole. Terms pass if the border is copied, or filled with zero: another constant would count
    once per term."""
    pads = draft.get("pads") or draft.constant(1)
    rank = draft.rank(0)
    axes = draft.axes(3, rank)
    if pads is None or axes is None:
        raise UnfitError("pads are not known")
    listed = draft.constant(3) if draft.present(3) else range(rank)
    if listed is None or len(pads) != 2 * len(listed):
        raise UnfitError("pads are not two per axis")
    changed = [draft.dim(int(axis), rank) for i, axis in enumerate(listed) if pads[i] or pads[i + len(listed)]]
    draft.tie_same((0, -1), whole=changed)
    value = draft.constant(2) if draft.present(2) else (draft.get("value", 0),)
    if draft.get("mode", "constant") != "constant":
        draft.passes((0,), reductions=BOTH)
    elif value is not None and not any(value):
        draft.passes((0,))


def depth_space(draft: Draft) -> None:
    """DepthToSpace and SpaceToDepth: samples are parallel."""
    draft.tie("batch", (0, 0), (-1, 0))
    draft.passes((0,), reductions=BOTH)


def trilu(draft: Draft) -> None:
    """Trilu: the last two dimensions are whole."""
    rank = draft.rank(0)
    draft.tie_same((0, -1), whole=(rank - 2, rank - 1))
    draft.passes((0,))


def resize(draft: Draft) -> None:
    """Resize(x, roi, scales, sizes): dimensions that it changes are whole."""
    rank = draft.rank(0)
    if draft.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise UnfitError("crops")
    if draft.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnfitError("keeps the aspect ratio")
    axes = draft.get("axes")
    listed = [draft.dim(axis, rank) for axis in (range(rank) if axes is None else axes)]
    by_sizes = draft.present(3)
    if by_sizes:
        changed = [dim for dim in listed if axes or draft.shape(0)[dim] != draft.shape(-1)[dim]]
    else:
        scales = draft.constant(2 if draft.opset >= 11 else 1)
        if scales is None:
            raise UnfitError("scales are not known")
        changed = [dim for dim, scale in zip(listed, scales, strict=True) if scale != 1]
    adapt = (LocalShape(3),) if by_sizes and not axes else ()
    draft.tie_same((0, -1), whole=changed, adapt=lambda dim: adapt)
    draft.no_gradient.update({1, 2})
    draft.passes((0,))


def constant(draft: Draft) -> None:
    """Constant, Range and EyeLike are replicated; a reader that needs a part slices the result."""


def constant_of_shape(draft: Draft) -> None:
    """ConstantOfShape: every dimension of the result is parallel."""
    for dim in range(draft.rank(-1)):
        draft.tie(f"d{dim}", (-1, dim), adapt=(LocalShape(0),))


def shape_of(draft: Draft) -> None:
    """Shape: every dimension may be split, and the result is the shape of the whole tensor."""
    shape = draft.numbers(0)
    start, end = draft.get("start", 0), draft.get("end")
    _fixed(draft, shape[start:end])


def size_of(draft: Draft) -> None:
    """Size: as Shape."""
    _fixed(draft, (math.prod(draft.numbers(0)),))


def _fixed(draft: Draft, values: tuple[int, ...]) -> None:
    for dim in range(draft.rank(0)):
        draft.tie(f"d{dim}", (0, dim), adapt=(FixedResult(values),))


RULES: dict[str, Draw] = {
    "onnx.Concat": concat,
    "onnx.Constant": constant,
    "onnx.ConstantOfShape": constant_of_shape,
    "onnx.DepthToSpace": depth_space,
    "onnx.Expand": expand,
    "onnx.EyeLike": constant,
    "onnx.Flatten": reshape,
    "onnx.Pad": pad,
    "onnx.Range": constant,
    "onnx.Reshape": reshape,
    "onnx.Resize": resize,
    "onnx.Shape": shape_of,
    "onnx.Size": size_of,
    "onnx.Slice": slice_,
    "onnx.SpaceToDepth": depth_space,
    "onnx.Split": split,
    "onnx.Squeeze": rank_change,
    "onnx.Tile": tile,
    "onnx.Transpose": transpose,
    "onnx.Trilu": trilu,
    "onnx.Unsqueeze": rank_change,
}
"""By the op's full name."""
