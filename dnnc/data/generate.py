"""Random inputs that a model accepts: indices stay inside their tables, masks keep something.

The values of an integer input follow from its use. Demands are propagated backwards through the program: from operands that are
indices, masks or shapes, through ops that only move or convert values, to the arguments. An input without a demand gets small
integers. Floats are normal(0, 1); integers of at most 8 bits use their whole range. The generator is numpy's Philox, keyed by
the seed, so equal seeds give equal inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from dnnc.build.build import Build, ValueInfo
from dnnc.data.faults import NoRandomValue
from dnnc.onnx.elements import Array, user_dtype
from ir.core.diagnostics import InvalidInput
from ir.core.module import Inline, Module, Resource, Splat
from ir.core.ops import Op, all_ops
from ir.core.types import DType, TensorType, Type
from ir.ops.operators import SELECTS, has
from ir.system.host import local_memory
from passes.meshes.reshard_ops import without_reshards

SYMBOL_SIZE = 2
"""Size given to a dimension that the plan left symbolic, without a range."""
DEFAULT_LIMIT = 10
"""Integers that nothing constrains stay below this."""
DRAWN_AHEAD = 1 / 16
"""The most random microbatches to draw before a run, as a share of the machine's memory. Beyond, each is drawn when it is fed,
which may take longer than a fast device takes to compute it."""
_KEEP = 0.75
"""Share of the elements of a random mask that are 1; the first of each row always is."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Conditions on an integer value. ``limit``: 0 <= value < limit; ``mask``: 0 or 1; ``one``: 1, since it is a size, or
    a mask that keeps everything; ``exact``: this number."""

    limit: int | None = None
    mask: bool = False
    one: bool = False
    exact: int | None = None

    def __or__(self, other: Demand) -> Demand:
        limits = [d.limit for d in (self, other) if d.limit is not None]
        exact = other.exact if self.exact is None else self.exact
        return Demand(min(limits, default=None), self.mask or other.mask, self.one or other.one, exact)


_UNCHANGED = {"Cast": (0,), "CastLike": (0,), "Clip": (0,), "Pad": (0,), "Trilu": (0,), "Where": (1, 2)}
"""Operands whose values an op returns unchanged, by op. Not listed: the data of ops that select; all of Concat, Max and Min."""
_SIZES = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Range": (1, 2),
    "Reshape": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
_MASKS = {"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor", "ReduceSum", "CumSum"}
"""Ops whose integer operands are masks, unless they are indices too."""


def random_inputs(build: Build, *, seed: int = 0, module: Module | None = None) -> dict[str, Any]:
    """One microbatch for the model of ``build``. ``module``: its plan.ir when that was read already. Raises InvalidInput."""
    return RandomMicrobatches(build, 1, seed=seed, module=module)[0]


class RandomMicrobatches(Sequence[dict[str, Any]]):
    """``count`` microbatches for the model of ``build``, drawn when they are asked for: number i is ``random_inputs`` of
    ``seed + i``. Asking raises InvalidInput."""

    def __init__(self, build: Build, count: int, *, seed: int = 0, module: Module | None = None) -> None:
        self._ports = build.inputs
        self._demands = input_demands(module or build.program())
        self._seeds = range(seed, seed + count)

    def __len__(self) -> int:
        return len(self._seeds)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return random_microbatch(self._ports, self._demands, self._seeds[index])


def drawn_ahead(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """All microbatches drawn now, so that a run's pace is that of the stages alone, where they fit into ``DRAWN_AHEAD``."""
    size = sum(getattr(value, "nbytes", 0) for value in items[0].values()) if len(items) else 0
    return tuple(items) if size * len(items) <= DRAWN_AHEAD * local_memory() else items


def random_microbatch(ports: Iterable[ValueInfo], demands: Mapping[str, Demand], seed: int) -> dict[str, Any]:
    """A value for each port, drawn from ``seed``, that obeys the demands on it. Raises InvalidInput."""
    sizes: dict[str, int] = {}
    generator = np.random.Generator(np.random.Philox(seed))
    return {port.name: _value(port, demands.get(port.name, Demand()), sizes, generator) for port in ports}


def input_demands(module: Module) -> dict[str, Demand]:
    """Demands on the arguments of the entry function, by ONNX name."""
    types = {value.name: value.type for value in module.entry.args}
    types |= {resource.name: resource.type for resource in module.of_type(Resource)}
    ops = list(all_ops(without_reshards(module.entry).func.ops))
    for op in ops:
        types |= {value.name: value.type for value in op.results}
    resources = module.resources
    demands: dict[str, Demand] = {}
    for op in reversed(ops):
        wanted = Demand()
        for value in op.results:
            wanted |= demands.get(value.name, Demand())
        for index, operand in enumerate(op.operands):
            demand = _demand(op, index, wanted, types, resources)
            if operand and demand != Demand():
                demands[operand] = demands.get(operand, Demand()) | demand
    return {value.name[1:]: demands[value.name] for value in module.entry.args if value.name in demands}


def _demand(op: Op, index: int, wanted: Demand, types: Mapping[str, Type], resources: Mapping[str, Resource]) -> Demand:
    """The demand of ``op`` on its operand number ``index``, given the demand ``wanted`` on its results."""
    name = op.name.removeprefix("onnx.")
    demand = Demand()
    table = table_size(op, index, types)
    if table is not None:
        demand |= Demand(limit=table)
    if name == "com.microsoft.GroupQueryAttention" and index in (5, 6):
        demand |= Demand(exact=_positions(op, index))
    if (name, index) in _LENGTHS:
        demand |= Demand(exact=_length(_shape(op, _LENGTHS[name, index], types)))
    if name == "ReduceSum" and wanted.exact is not None:
        demand |= Demand(one=True)  # as many places as there are
    if index in _SIZES.get(name, ()):
        demand |= Demand(one=True)
    if name in _MASKS or (name == "Where" and index == 0):
        demand |= Demand(mask=True)
    if name == "Cast" and _to_float_or_bool(op):
        demand |= Demand(mask=True)
    if index in ((0,) if has(op, SELECTS) else _UNCHANGED.get(name, ())) or name in ("Concat", "Max", "Min"):
        demand |= wanted
    elif name in ("Add", "Sub") and wanted.exact is not None and len(op.operands) == 2:
        other = _constant(resources.get(op.operands[1 - index]))
        if other is not None and (name == "Add" or index == 0):
            demand |= Demand(exact=wanted.exact - other if name == "Add" else wanted.exact + other)
    elif name in ("Add", "Sub") and wanted.limit is not None and len(op.operands) == 2:
        other = _constant(resources.get(op.operands[1 - index]))
        if other is None:
            demand |= Demand(limit=max(1, wanted.limit // 2))
        elif name == "Add":
            demand |= Demand(limit=max(1, wanted.limit - max(0, other)))
        elif index == 0:
            demand |= Demand(limit=max(1, wanted.limit + other))
    return demand


def _positions(op: Op, index: int) -> int | None:
    """The value of GroupQueryAttention's operand 5, the last position of each sample, or 6, the number of positions. The cache
    that the op returns has that length."""
    cache = op.results[1].type if len(op.results) > 1 else None
    length = cache.shape[2] if isinstance(cache, TensorType) and cache.shape is not None and len(cache.shape) == 4 else None
    return length - (index == 5) if isinstance(length, int) else None


_LENGTHS = {("com.microsoft.GroupQueryAttention", 16): 0, ("Attention", 6): 1}
"""Operands that say how many positions of a sample are no padding, and the tensor that has the positions."""


def _length(shape: tuple[int | str | None, ...] | None) -> int | None:
    """The number of positions of ``[batch, positions, width]`` or ``[batch, heads, positions, width]``."""
    length = shape[-2] if shape is not None and len(shape) > 2 else None
    return length if isinstance(length, int) else None


def _to_float_or_bool(op: Op) -> bool:
    result = op.results[0].type
    return isinstance(result, TensorType) and (result.dtype.is_float or result.dtype is DType.BOOL)


def table_size(op: Op, index: int, types: Mapping[str, Type]) -> int | None:
    """Size of the axis that operand ``index`` of ``op`` indexes, when it does; the number of classes where it holds labels."""
    name = op.name.removeprefix("onnx.")

    def axis_size(operand: int, axis: int) -> int | None:
        shape = _shape(op, operand, types)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        return size if isinstance(size, int) else None

    match name, index:
        case ("Gather" | "GatherElements" | "ScatterElements" | "Scatter", 1):
            return axis_size(0, op.get("axis", 0))
        case ("SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss", 1):
            return axis_size(0, 1)
        case ("com.microsoft.GatherBlockQuantized", 1):
            return axis_size(0, op.get("gather_axis", 0))
        case ("com.microsoft.TorchEmbedding", 1):
            return axis_size(0, 0)
        case ("TensorScatter", 2):
            axis = op.get("axis", -2)
            room, rows = axis_size(0, axis), axis_size(1, axis)
            if room is None or rows is None or op.get("mode", "linear") == "circular":
                return room
            return max(1, room - rows + 1)
        case ("GatherND" | "ScatterND" | "com.microsoft.GatherND", 1):
            data, indices = _shape(op, 0, types), _shape(op, 1, types)
            if data is None or indices is None or not indices or not isinstance(indices[-1], int):
                return None
            skipped = op.get("batch_dims", 0)
            return min((d for d in data[skipped : skipped + indices[-1]] if isinstance(d, int)), default=None)
        case ("com.microsoft.EmbedLayerNormalization", 0):
            return axis_size(2, 0)
        case ("com.microsoft.EmbedLayerNormalization", 1):
            return axis_size(4, 0)
        case ("com.microsoft.EmbedLayerNormalization", 8):
            return axis_size(3, 0)
        case ("com.microsoft.CropAndResize", 2):
            return axis_size(0, 0)
        case ("com.microsoft.GroupQueryAttention", 9):
            return axis_size(7, 0)
        case ("com.microsoft.RotaryEmbedding", 1):
            return axis_size(2, 0)
        case ("RotaryEmbedding", 3):
            return axis_size(1, 0)
        case ("ai.onnx.ml.ArrayFeatureExtractor", 1):
            return axis_size(0, -1)
    return None


def _shape(op: Op, operand: int, types: Mapping[str, Type]) -> tuple[int | str | None, ...] | None:
    type_ = types.get(op.operands[operand]) if operand < len(op.operands) else None
    return type_.shape if isinstance(type_, TensorType) else None


def _constant(resource: Resource | None) -> int | None:
    """Largest element of a small integer constant, None when ``resource`` is none."""
    if resource is None or not isinstance(resource.type, TensorType) or not resource.type.dtype.is_integer:
        return None
    if isinstance(resource.data, Splat):
        return int(resource.data.value)
    if isinstance(resource.data, Inline) and isinstance(resource.data.data, bytes) and resource.type.dtype.bits >= 8:
        values = np.frombuffer(resource.data.data, np.dtype(resource.type.dtype.numpy_name))
        return int(values.max()) if values.size else None
    return None


def _value(port: ValueInfo, demand: Demand, sizes: dict[str, int], generator: np.random.Generator) -> Any:
    if not port.dtype:
        if port.type.startswith("optional"):
            return None
        raise InvalidInput(NoRandomValue(port.name, port.type))
    largest = {name: most for name, _, most in port.ranges}
    shape = tuple(
        dim if isinstance(dim, int) else sizes.setdefault(dim, largest.get(dim, SYMBOL_SIZE)) if dim else SYMBOL_SIZE
        for dim in port.shape or ()
    )
    if port.dtype == "string":
        words: Array = np.array([f"word{i}" for i in generator.integers(0, DEFAULT_LIMIT, int(np.prod(shape)))], object)
        return words.reshape(shape)
    dtype = user_dtype(port.dtype)
    if port.dtype.startswith(("float", "bfloat")):
        return generator.standard_normal(shape).astype(np.float32 if dtype.itemsize < 8 else dtype).astype(dtype)
    if port.dtype.startswith("complex"):
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    return _integers(port, demand, shape, generator).astype(dtype)


def _integers(port: ValueInfo, demand: Demand, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    name, narrow = port.name.lower(), user_dtype(port.dtype).itemsize == 1
    if demand.exact is not None or demand.one:
        return np.full(shape, 1 if demand.exact is None else demand.exact, np.int64)
    if port.dtype == "bool" or (demand.limit is None and ("mask" in name or (demand.mask and not narrow))):
        mask = (generator.random(shape) < _KEEP).astype(np.int64)
        if shape and shape[-1]:
            mask[..., 0] = 1
        return mask if shape else np.ones((), np.int64)
    if demand.limit is not None and "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]) % demand.limit, shape).copy()
    if demand.limit is not None:
        high = max(1, demand.limit)
        return generator.integers(0, min(high, _maximum(port.dtype) + 1), shape)
    if narrow:
        low = 0 if port.dtype.startswith("u") else -_maximum(port.dtype) - 1
        return generator.integers(low, _maximum(port.dtype) + 1, shape)
    return generator.integers(0, DEFAULT_LIMIT, shape)


def _maximum(dtype: str) -> int:
    """Largest value of an integer type."""
    bits = int(dtype.lstrip("uint"))
    return (1 << (bits if dtype.startswith("u") else bits - 1)) - 1
