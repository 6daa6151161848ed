"""What a query sees of a cache in place: slots up to its own position.

From each cache on, ``applied`` follows what has its slots: layouts of it, the scores of a product with it, what Softmax makes
of these. Before each such Softmax, scores of slots that the query does not see become the lowest number, and the operator
``Attention`` gets a mask. Any other reader is refused: it might see them.

The model's own masks were made for past = context - s. What they compute from ``attention_mask`` and ``position_ids`` holds
for any position. A constant in them was computed from the length of the past, and four kinds hold in place. One that has the
same number in all slots that queries saw, such as a causal mask (0 there, -10000 behind), becomes that number everywhere, for
the mask that is added here hides the rest. One that depends on the distance from the key to the query alone, a relative bias,
or a window, is looked up by the distance from the slot to the position. The numbers 0, 1, .. of the slots stay. So does what
has no dimension of slots. All else is refused, and so is what was too large to be folded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ir.core.diagnostics import InvalidInput
from ir.core.module import Inline, Resource, Splat
from ir.core.names import unique
from ir.core.ops import Op, Value, all_reads
from ir.core.types import DType, TensorType, Type
from passes.prepare.states.faults import CacheNotInPlace, MaskTooLarge
from passes.prepare.states.writer import StepWriter

CACHE, SCORES, WEIGHTS = "cache", "scores", "weights"
BY_ELEMENT = frozenset(
    f"onnx.{name}"
    for name in (
        "Add", "And", "Cast", "CastLike", "Clip", "Div", "Dropout", "Equal", "Expand", "Greater", "GreaterOrEqual", "Identity",
        "IsNaN", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Reshape", "Squeeze", "Sub", "Sum", "Tanh",
        "Tile", "Transpose", "Unsqueeze", "Where",
    )
)  # fmt: skip
"""Ops whose results have the slots of what they read, as they were."""
NUMPY = {DType.F32: "<f4", DType.F64: "<f8", DType.F16: "<f2", DType.I64: "<i8", DType.I32: "<i4", DType.BOOL: "?"}
MOST = 1 << 24
"""Elements of a constant that is looked at."""


class Masks:
    """The masks of one decoder. ``sources``: its caches by the results that they become, both without ``%``. ``relative``:
    constants of one row that were seen to depend on distances alone; of several rows it shows here."""

    def __init__(
        self, decoder: StepWriter, resources: Mapping[str, Resource], sources: Mapping[str, str], relative: Sequence[str] = ()
    ) -> None:
        self.decoder, self.resources, self.sources, self.relative = decoder, resources, sources, relative
        self.by_distance: dict[str, str] = {}
        self.types: dict[str, Type] = {name: one.type for name, one in self.resources.items()}
        self.changed: dict[str, str] = {}

    def applied(self, ops: Sequence[Op]) -> list[Op]:
        """``ops``, whose caches are written in place, with what a query does not see masked. Raises InvalidInput where that
        cannot be shown."""
        source = {f"%{result}": name for result, name in self.sources.items()}
        tags = dict.fromkeys(source, CACHE)
        found: list[Op] = []
        masked: list[str] = []
        for op in ops:
            self.types.update((value.name, value.type) for value in op.results)
            read = [name for name in all_reads(op) if name in tags]
            if not read or op.results[0].name in tags:
                found.append(op)
                continue
            source.update((value.name, source[read[0]]) for value in op.results)
            if op.name == "onnx.Softmax" and tags[read[0]] == SCORES and self._over_slots(op):
                masked.append(op.operands[0])
                name = self._masked(op.operands[0], found)
                found.append(replace(op, operands=(name, *op.operands[1:])))
                tag = WEIGHTS
            elif op.name == "onnx.Attention" and self._reads_caches(op, tags):
                masked += [name for name in op.operands[3:4] if name]
                source.update((name, source[read[0]]) for name in op.operands[3:4] if name)
                found.append(self._attending(op, found))
                tag = ""
            else:
                found.append(op)
                tag = self._tag(op, [tags[name] for name in read], source[read[0]])
            if tag:
                tags.update((value.name, tag) for value in op.results)
        makers = {value.name: op for op in found for value in op.results}
        steady = self._steady(found)
        for name in masked:
            self._neutral(name, makers, tags, source[name], steady)
        return [replace(op, operands=tuple(self._constants(op, name) for name in op.operands)) for op in found]

    def _constants(self, op: Op, name: str) -> str:
        if name in self.by_distance and (
            op.name not in BY_ELEMENT or self._shape(op.results[0].name)[:1] != (self.decoder.batch,)
        ):
            self._refuse(self.resources[name], next(iter(self.sources.values())))
        return self.changed.get(name, name) if op.name in BY_ELEMENT else name

    def _over_slots(self, op: Op) -> bool:
        type_ = self.types.get(op.operands[0])
        if not isinstance(type_, TensorType) or type_.shape is None:
            return False
        shape, decoder = type_.shape, self.decoder
        last = op.get("axis", -1) in (-1, len(shape) - 1)
        return last and len(shape) >= 3 and (shape[0], *shape[-2:]) == (decoder.batch, decoder.step, decoder.context)

    def _reads_caches(self, op: Op, tags: Mapping[str, str]) -> bool:
        """Whether ``op``, an Attention, reads keys and values from caches and nothing else of them, sees any slot but what its
        mask hides, and returns no more than the mixed values."""
        own = [tags.get(name) for name in op.operands]
        causal = op.get("is_causal", 0) and not any(op.operands[6:7])  # without lengths it is counted from the first slot
        more = any(op.operands[4:6]) or any(value.name for value in op.results[1:])
        if own[1:3] != [CACHE, CACHE] or any(own[:1] + own[3:]) or causal or more:
            return False
        shapes = [self._shape(name) for name in (*op.operands[1:3], *op.operands[3:4])]
        decoder = self.decoder
        lengths = {(shape[0], shape[-2]) for shape in shapes[:2]}
        return lengths == {(decoder.batch, decoder.context)} and shapes[2][-1:] in ((), (1,), (decoder.context,))

    def _shape(self, name: str) -> tuple[Any, ...]:
        type_ = self.types.get(name)
        return type_.shape or () if isinstance(type_, TensorType) else ()

    def _attending(self, op: Op, found: list[Op]) -> Op:
        """``op``, an Attention, with a mask of what is not seen; adds the op that joins it to the op's own mask."""
        decoder, mask = self.decoder, op.operands[3] if len(op.operands) > 3 else ""
        seen = self._seen(4)
        if mask:
            own = self._shape(mask)
            type_ = self.types[mask]
            assert isinstance(type_, TensorType)
            shape = (decoder.batch, own[-3] if len(own) > 2 else 1, decoder.step, decoder.context)
            name = unique(f"%{mask[1:]}.seen", decoder.names)
            joined = Value(name, replace(type_, shape=shape))
            self.types[name] = joined.type
            if type_.dtype is DType.BOOL:
                found.append(Op("onnx.And", (mask, seen), (joined,)))
            else:
                found.append(Op("onnx.Where", (seen, mask, self._lowest(type_.dtype)), (joined,)))
            seen = name
        kept = tuple((key, value) for key, value in op.attributes if key != "is_causal")
        return replace(op, operands=(*op.operands[:3], seen), results=op.results[:1], attributes=kept)

    def _tag(self, op: Op, tags: Sequence[str], source: str) -> str:
        """What the results of ``op`` are; empty where they have no slots. Raises InvalidInput for a reader that may see what
        no query sees."""
        if op.name in BY_ELEMENT and len(set(tags)) == 1:
            return tags[0]
        if op.name in ("onnx.Gather", "onnx.Split") and tags == [CACHE]:
            shape = self._shape(op.operands[0])
            axis = op.get("axis", 0) % max(len(shape), 1)
            if axis and shape[axis : axis + 1] != (self.decoder.context,):
                return CACHE  # keys or values of a cache that holds both
        if op.name in ("onnx.MatMul", "onnx.com.microsoft.FusedMatMul") and len(tags) == 1 and tags[0] == CACHE:
            return SCORES
        if op.name == "onnx.MatMul" and sorted(tags) == [CACHE, WEIGHTS]:
            return ""
        reason = f"{op.id} ({op.name.removeprefix('onnx.')}) reads it, where dnnc cannot mask what is behind a sequence"
        raise InvalidInput(CacheNotInPlace(source, reason), where=op.location.node or op.id)

    def _masked(self, scores: str, found: list[Op]) -> str:
        """Adds the op that makes the scores of slots that are not seen the lowest number; its result."""
        type_ = self.types[scores]
        assert isinstance(type_, TensorType)
        name = unique(f"{scores}.seen", self.decoder.names)
        operands = self._seen(len(self._shape(scores))), scores, self._lowest(type_.dtype)
        found.append(Op("onnx.Where", operands, (Value(name, type_),)))
        return name

    def _seen(self, rank: int) -> str:
        """``[B, 1, .., s, context]``: whether a query sees a slot."""
        decoder = self.decoder
        shape = (decoder.batch, *[1] * (rank - 3), decoder.step, decoder.context)
        axes = decoder.constant(f"axes.{rank}", [*range(1, rank - 2), rank - 1])
        spread = decoder.op("onnx.Unsqueeze", f"places.{rank}", (decoder.places(), axes), (*shape[:-1], 1))
        return decoder.op("onnx.LessOrEqual", f"seen.{rank}", (decoder.slots(rank), spread), shape, DType.BOOL)

    def _lowest(self, dtype: DType) -> str:
        """The lowest number of a type, a constant."""
        lowest = np.array(-65504 if dtype is DType.F16 else np.finfo(np.float32).min, NUMPY.get(dtype, "<f4"))
        return self.decoder.resource(f"@decoding.lowest.{dtype.value}", TensorType(dtype, ()), lowest.tobytes())

    def _steady(self, ops: Sequence[Op]) -> set[str]:
        """The values that are the same in every step: ops make them of constants, and they were too large to be folded."""
        found = set[str]()
        for op in ops:
            if all(name in self.resources or name in found for name in all_reads(op)):
                found.update(value.name for value in op.results)
        return found

    def _neutral(self, scores: str, makers: dict[str, Op], tags: dict[str, str], source: str, steady: Collection[str]) -> None:
        """Looks at the constants of the masks that reach ``scores``. Raises InvalidInput for one that cannot be looked at."""
        wanted, done = [scores], set()
        while wanted:
            name = wanted.pop()
            if name in done:
                continue
            done.add(name)
            if name in self.resources:
                self._look(name, source)
            elif (op := makers.get(name)) is not None and name in steady and self.decoder.context in self._shape(name):
                fault = MaskTooLarge(source, op.id, op.name.removeprefix("onnx."))
                raise InvalidInput(fault, where=op.location.node or op.id)
            elif op is not None and op.name in BY_ELEMENT and tags.get(name) != CACHE:
                data = (
                    op.operands[:1]
                    if op.name in ("onnx.Reshape", "onnx.Expand", "onnx.Tile", "onnx.Unsqueeze")
                    else op.operands
                )
                wanted += [operand for operand in data if operand]

    def _look(self, name: str, source: str) -> None:
        """Replaces the constant ``name`` of a mask where it depends on the length of the past. Raises InvalidInput where it
        does in another way than by what no query sees."""
        resource, decoder = self.resources[name], self.decoder
        array = array_of(resource)
        shape = resource.type.shape if isinstance(resource.type, TensorType) else None
        if shape is None or not shape or shape[-1] != decoder.context:
            return
        if array is None:
            self._refuse(resource, source)
            return
        if np.issubdtype(array.dtype, np.integer) and np.array_equal(
            np.broadcast_to(np.arange(decoder.context), array.shape), array
        ):
            return
        rows = shape[-2] if len(shape) > 1 else 1
        if rows not in (1, decoder.step):
            self._refuse(resource, source)
        past = decoder.context - decoder.step
        last = past + np.arange(decoder.step) if rows == decoder.step else np.array([decoder.context - 1])
        seen = array[..., np.arange(decoder.context)[None, :] <= last[:, None]] if len(shape) > 1 else array
        if seen.size and not (seen == seen.flat[0]).all():
            if not self._is_relative(name, array, last):
                self._refuse(resource, source)
            self.changed[name] = self.by_distance[name] = self._by_distance(name, array)
            return
        if not (array == seen.flat[0]).all():
            data = np.full(array.shape, seen.flat[0], array.dtype).tobytes()
            assert isinstance(resource.type, TensorType)
            self.changed[name] = decoder.resource(f"{name}.seen", resource.type, data)

    def _is_relative(self, name: str, array: NDArray[Any], last: NDArray[Any]) -> bool:
        """Whether the numbers of all keys that queries see depend on their distance alone, in all sequences alike. ``last``:
        the position of each query, which is that of the last key that it sees."""
        alike = array.ndim < 4 or (array.ndim == 4 and bool((array == array[:1]).all()))
        if not alike or array.dtype.kind not in "fb":
            return False
        if len(last) == 1:
            return name in self.relative
        rows = [array[..., row, position::-1] for row, position in enumerate(last)] if array.ndim > 1 else []
        return bool(rows) and all(np.array_equal(row, rows[-1][..., : row.shape[-1]]) for row in rows)

    def _by_distance(self, name: str, array: NDArray[Any]) -> str:
        """``[B, .., s, context]``: for each query and slot the number of their distance; for slots behind the query, which it
        does not see, that of distance 0."""
        decoder, number = self.decoder, len(self.by_distance)
        type_ = self.resources[name].type
        assert isinstance(type_, TensorType)
        of_one = array[0] if array.ndim == 4 else array
        heads = int(np.prod(of_one.shape[:-2]))
        table = np.ascontiguousarray(of_one[..., -1, ::-1].reshape(heads, decoder.context).T)
        stored = decoder.resource(f"{name}.by_distance", TensorType(type_.dtype, table.shape), table.tobytes())
        grid = (decoder.batch, decoder.step, decoder.context)
        column = decoder.op(
            "onnx.Unsqueeze", "places.column", (decoder.places(), decoder.constant("axes.2", [2])), (*grid[:2], 1)
        )
        back = decoder.op("onnx.Sub", "back", (column, decoder.slots(3)), grid)
        distance = decoder.op("onnx.Max", "distance", (back, decoder.constant("zero", [0])), grid)
        found = decoder.op("onnx.Gather", f"biases.{number}", (stored, distance), (*grid, heads), type_.dtype, axis=0)
        shape = (grid[0], heads, *grid[1:])
        return decoder.op("onnx.Transpose", f"bias.{number}", (found,), shape, type_.dtype, perm=(0, 3, 1, 2))

    def _refuse(self, resource: Resource, source: str) -> None:
        if self.decoder.step > 1 and array_of(resource) is not None:
            reason = "of several queries at once, its biases do not follow from the distance of each query to each key alone"
        else:
            reason = (
                f"the constant {resource.name} differs between keys that a query sees, so it may depend on the length of the "
                "past"
            )
        raise InvalidInput(CacheNotInPlace(source, reason), where=resource.name)


def array_of(resource: Resource) -> NDArray[Any] | None:
    """The elements of a constant; None of a weight."""
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.dtype not in NUMPY or type_.elements is None or type_.elements > MOST:
        return None
    dims = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    if isinstance(resource.data, Splat):
        return np.full(dims, resource.data.value, NUMPY[type_.dtype])
    if isinstance(resource.data, Inline) and isinstance(resource.data.data, bytes):
        return np.frombuffer(resource.data.data, NUMPY[type_.dtype]).reshape(dims)
    return None
