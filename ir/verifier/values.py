"""INV07, INV08 and INV09 on a single type, attribute dictionary or set of facets, as far as they need nothing else to judge it.

``type_faults`` is INV07, ``attribute_faults`` INV08, ``facet_faults`` INV09 (``ir.verifier``). Each returns a message for each
fault, an empty list where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ir.core.attributes import Attribute, Attributes, AttrKind, Dense
from ir.core.facets import (
    IN_TRAINING,
    PHASES,
    SYNCS,
    BackwardTime,
    Color,
    Cost,
    Direction,
    Facets,
    Group,
    InTraining,
    Measured,
    OptimizerState,
    Phase,
    StageSet,
    Sync,
    Time,
    Transfer,
    is_shape,
)
from ir.core.module import Mesh
from ir.core.ops import Op
from ir.core.ranges import COUNTED, MOST_BYTES, MOST_MEMORY, MOST_SECONDS, is_bytes, is_seconds
from ir.core.types import (
    REDUCTIONS,
    BytesType,
    DType,
    Layout,
    MapType,
    OptionalType,
    Partial,
    SeqType,
    Shard,
    TensorType,
    Type,
    UnknownType,
)
from ir.text.dense import storage_fault

MAX_NESTING = 64
"""The most levels of sequences, optionals and maps in a type."""
MOST_DIMENSIONS = 64
"""The most dimensions of a tensor: as many as numpy and onnxruntime take."""


def type_faults(type_: Type, meshes: Mapping[str, Mesh] | None) -> list[str]:
    """What is wrong with ``type_``. ``meshes``: the module's, by name; None: layouts are not checked."""
    for _ in range(MAX_NESTING):
        if isinstance(type_, SeqType | OptionalType):
            type_ = type_.element
        elif isinstance(type_, MapType):
            if not (type_.key.is_integer or type_.key is DType.STRING):
                return [f"the keys of a map are integers or texts, not {type_.key.value}"]
            type_ = type_.value
        elif isinstance(type_, TensorType):
            return _tensor_faults(type_, meshes)
        elif isinstance(type_, BytesType):
            sound = is_bytes(type_.size)
            return [] if sound else [f"{type_} is no size of a message: expected 0 to {MOST_BYTES - 1} bytes"]
        else:
            return [] if isinstance(type_, UnknownType) else [f"{type_!r} is not a type"]
    return [f"a type is nested more than {MAX_NESTING} deep"]


def _tensor_faults(type_: TensorType, meshes: Mapping[str, Mesh] | None) -> list[str]:
    shape = type_.shape or ()
    faults = [f"dimension {dim} of {type_} is negative" for dim in shape if isinstance(dim, int) and dim < 0]
    if len(shape) > MOST_DIMENSIONS:
        return [f"a tensor has {len(shape)} dimensions, expected at most {MOST_DIMENSIONS}"]
    # Of an unknown dimension not more is known than that it may be 1.
    known = [dim for dim in shape if isinstance(dim, int) and dim]
    if not faults and math.prod(known) * max(type_.dtype.bits, 8) >= 8 * MOST_BYTES:
        return [f"{type_} is larger than any tensor: expected fewer than {MOST_BYTES} bytes"]
    return faults + (_layout_faults(type_, type_.layout, meshes) if type_.layout and meshes is not None else [])


def _layout_faults(type_: TensorType, layout: Layout, meshes: Mapping[str, Mesh]) -> list[str]:
    mesh = meshes.get(layout.mesh)
    if mesh is None:
        return [f"{type_} lies on {layout.mesh}, which is not a mesh of the module"]
    faults = []
    if len(layout.placements) != len(mesh.axes):
        faults.append(f"{type_} has {len(layout.placements)} placements for the {len(mesh.axes)} axes of {mesh.name}")
    rank = None if type_.shape is None else len(type_.shape)
    for placement in layout.placements:
        if isinstance(placement, Shard) and (placement.dim < 0 or (rank is not None and placement.dim >= rank)):
            faults.append(f"{type_} shards dimension {placement.dim}, but its rank is {'unknown' if rank is None else rank}")
        if isinstance(placement, Partial) and placement.reduction not in REDUCTIONS:
            faults.append(
                f"{type_} has a partial placement reduced by '{placement.reduction}'; expected {' or '.join(REDUCTIONS)}"
            )
    return faults


def compatible(one: Type, other: Type) -> bool:
    """Whether a value of one type may be used where the other is declared: what both know (unknown types, shapes and dimensions
    aside) is equal, layouts included."""
    if one == other or isinstance(one, UnknownType) or isinstance(other, UnknownType):
        return True
    if isinstance(one, SeqType) and isinstance(other, SeqType):
        return compatible(one.element, other.element)
    if isinstance(one, OptionalType) and isinstance(other, OptionalType):
        return compatible(one.element, other.element)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return one.key is other.key and compatible(one.value, other.value)
    if not (isinstance(one, TensorType) and isinstance(other, TensorType)):
        return False
    if one.dtype is not other.dtype or one.sparse != other.sparse or one.layout != other.layout:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = zip(one.shape, other.shape, strict=False)
    return len(one.shape) == len(other.shape) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in pairs
    )


_PYTHON: dict[AttrKind, type[Any]] = {
    AttrKind.INT: int,
    AttrKind.FLOAT: float,
    AttrKind.STRING: str,
    AttrKind.BYTES: bytes,
    AttrKind.TENSOR: Dense,
    AttrKind.SYMBOL: str,
}
_ITEMS: dict[AttrKind, AttrKind] = {
    AttrKind.INTS: AttrKind.INT,
    AttrKind.FLOATS: AttrKind.FLOAT,
    AttrKind.STRINGS: AttrKind.STRING,
    AttrKind.TENSORS: AttrKind.TENSOR,
    AttrKind.TYPES: AttrKind.TYPE,
}


def attribute_faults(attributes: Attributes) -> list[str]:
    """What is wrong with a dictionary of attributes; whether the symbols that they name exist is not checked here."""
    faults = []
    previous = None
    for key, attribute in attributes:
        if previous is not None and key <= previous:
            faults.append(f"attribute '{key}' stands behind '{previous}'; attributes are sorted, each once")
        previous = key
        faults += [f"attribute '{key}' {fault}" for fault in _value_faults(attribute)]
    return faults


def _value_faults(attribute: Attribute) -> list[str]:
    item = _ITEMS.get(attribute.kind)
    if item is None:
        return _scalar_faults(attribute.kind, attribute.value)
    if not isinstance(attribute.value, tuple):
        return [f"is not a tuple, as kind {attribute.kind.value} needs"]
    return [fault for value in attribute.value for fault in _scalar_faults(item, value)][:1]


def _scalar_faults(kind: AttrKind, value: Any) -> list[str]:
    if kind is AttrKind.TYPE:
        return type_faults(value, None)[:1]
    if not isinstance(value, _PYTHON[kind]):
        return [f"is {value!r}, which is not of kind {kind.value}"]
    if kind is AttrKind.INT and not -(1 << 63) <= value < 1 << 63:
        return [f"is {value}, which does not fit in 64 bits"]
    if kind is AttrKind.SYMBOL and value[:1] != "@":
        return [f"is '{value}', which does not begin with @"]
    if kind is AttrKind.TENSOR:
        fault = "; ".join(type_faults(value.type, None)) or storage_fault(value.type, value.data)
        return [f"holds a tensor whose {fault}"] if fault else []
    return []


def facet_faults(facets: Facets, op: Op | None) -> list[str]:
    """What is wrong with the facets of ``op``, or of a resource (None). Whether a facet may be there at all is not checked."""
    faults = []
    previous = ""
    for facet in facets:
        if facet.keyword <= previous:
            faults.append(f"facet '{facet.keyword}' stands behind '{previous}'; facets are sorted, each once")
        previous = facet.keyword
        match facet:
            case Cost():
                forward = (facet.flops, facet.read, facet.write, facet.weight)
                counts = (*forward, facet.input_grad, facet.weight_grad, facet.saved, facet.scalar)
                if min(counts) < 0 or max(counts) >= COUNTED:
                    faults.append(f"a count of cost is not from 0 to {float(COUNTED):g}")
            case Time(seconds) | BackwardTime(seconds):
                names = [name for name, _ in seconds]
                if any(a >= b for a, b in pairwise(names)):
                    faults.append(f"the device types of {facet.keyword} are not sorted, each once")
                if not all(is_seconds(value) for _, value in seconds):
                    faults.append(f"{facet.keyword} is not from 0 to {MOST_SECONDS:g} seconds")
            case Transfer(seconds):
                if op is not None and len(seconds) != len(op.results):
                    faults.append(f"transfer has {len(seconds)} numbers for {len(op.results)} results")
                if not all(is_seconds(value) for value in seconds):
                    faults.append(f"transfer is not from 0 to {MOST_SECONDS:g} seconds")
            case Measured(shapes, runs):
                if op is not None and len(shapes) != len(op.results):
                    faults.append(f"measured has {len(shapes)} shapes for {len(op.results)} results")
                faults += [f"'{shape}' is no shape; expected 1x100x4, empty or ?" for shape in shapes if not is_shape(shape)]
                if not 0 <= runs < 1 << 62:
                    faults.append(f"measured has {runs} runs, expected 0 or more")
            case Direction(direction):
                if direction not in ("fw", "bw"):
                    faults.append(f"pass is fw or bw, not '{direction}'")
            case Phase(phase):
                if phase not in PHASES[1:]:
                    faults.append(f"phase is I, W or U, or is left out for F, not '{phase}'")
            case StageSet(stages):
                if not stages or stages[0] < 0 or any(a >= b for a, b in pairwise(stages)):
                    faults.append("the stages of an op are at least one number >= 0, ascending")
            case Color(number) | Group(number):
                if not 0 <= number < 1 << 62:
                    faults.append(f"{facet.keyword} is at least 0 and has at most 62 bits, not {number}")
            case Sync(method=method) if method not in SYNCS:
                faults.append(f"sync has no method '{method}'; it has {', '.join(SYNCS)}")
            case InTraining(rule, row):
                if rule not in IN_TRAINING or (rule == "padding") != (row >= 0):
                    faults.append(f"training is frozen, detached, or padding with a row >= 0, not '{rule}' with row {row}")
            case OptimizerState(learning_rate=rate, weight_decay=decay) if not all(
                value == -1 or 0 <= value < math.inf for value in (rate, decay)
            ):
                faults.append(f"learning_rate and weight_decay are finite and at least 0, not {rate:g} and {decay:g}")
            case Sync(bucket=number) | OptimizerState(size=number):
                if not 0 <= number < MOST_MEMORY:
                    faults.append(f"{facet.keyword} has the number {number}, expected 0 to {MOST_MEMORY - 1}")
    return faults
