"""Autocast: products compute in a narrow element type, weights and the optimizer's state stay as they are.

Each op gets the element type that PyTorch's autocast gives its operator on CPUs (``ir/README.md``, *Mixed precision*), by
casts: ``onnx.Cast`` before what must be of another type. So everything after this pass sees mixed precision as types: costs and
bytes, rates of devices, transfers, gradients (those of a cast are cast back, so gradients of weights are as wide as the
weights), and the proof.

Invariants: arguments, results and resources keep their names and types; only float32 becomes narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import OptimizerState
from ir.core.module import Module, Resource
from ir.core.names import unique
from ir.core.ops import Op, Value, all_reads
from ir.core.topology import Topology
from ir.core.types import ONNX_TYPES, DType, TensorType, Type
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import listing, renamed
from passes.prepare.faults import NoRate

NARROW = frozenset(f"onnx.{name}" for name in ("Attention", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "Gemm", "MatMul"))
"""Operators that compute in the narrow type, whatever their operands are."""
WIDE = frozenset(
    f"onnx.{name}"
    for name in (
        "DFT",
        "GRU",
        "GridSample",
        "LSTM",
        "NegativeLogLikelihoodLoss",
        "RNN",
        "ReduceProd",
        "SoftmaxCrossEntropyLoss",
    )
)
"""Operators that compute in float32. PyTorch's ``LSTM`` and ``RNN`` are narrow; here each step of theirs would round."""
BY_FIRST = frozenset(
    f"onnx.{name}"
    for name in ("GroupNormalization", "InstanceNormalization", "LayerNormalization", "PRelu", "RMSNormalization")
)
"""Operators that compute in the type of their first operand."""
FIRST_ALONE = frozenset({"onnx.BatchNormalization", "onnx.Resize"})
"""The same, whose other operands keep their types: running averages stay as wide as they are."""
STATED = frozenset({"onnx.Cast", "onnx.CastLike"})
"""Operators that say themselves what they make."""
DTYPES = {"bf16": DType.BF16, "f16": DType.F16}


@dataclass(frozen=True)
class AutocastPass(Pass):
    """Compute products in a narrow element type, by casts.

    ``dtype``: ``bf16`` or ``f16``.
    """

    name: ClassVar[str] = "autocast"
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {' or '.join(DTYPES)}, not '{self.dtype}'")

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for a type of devices that states no rate of the element type."""
        topology = module.first(Topology)
        for name in dict.fromkeys(device.type for device in topology.devices) if topology is not None else ():
            rates = dict(topology.type(name).rates) if topology is not None else {}
            if rates and self.dtype not in rates:
                raise InvalidInput(NoRate(name, self.dtype, listing(sorted(rates))), where=f"--dtype {self.dtype}")
        func = module.entry
        writer = _Writer(DTYPES[self.dtype], module.resources)
        writer.types.update((arg.name, arg.type) for arg in func.args)
        writer.taken.update(value.name for op in func.ops for value in op.results)
        writer.taken.update(writer.types)
        results = {value.name: value.type for value in func.results}
        for op in func.ops:
            writer.write(op, results)
        context.count(self.name, narrow=writer.narrowed, casts=len(writer.ops) - len(func.ops))
        return module.replace(func, replace(func, ops=tuple(writer.ops)))


@dataclass(slots=True)
class _Writer:
    """The ops so far. ``types``: of every name; ``made``: the op that makes each value; ``casts``: values in another type, by
    name and type. ``narrowed``: ops that compute in the narrow type."""

    narrow: DType
    resources: Mapping[str, Resource]
    ops: list[Op] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    made: dict[str, Op] = field(default_factory=dict)
    casts: dict[tuple[str, DType], str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    narrowed: int = 0

    def __post_init__(self) -> None:
        self.types.update((name, resource.type) for name, resource in self.resources.items())

    def write(self, op: Op, results: Mapping[str, Type]) -> None:
        """Adds an op in its type, behind the casts of what it reads."""
        if op.regions:
            wide_names = {name: self.cast(name, DType.F32, op) for name in all_reads(op) if self.is_(name, self.narrow)}
            self.add(*renamed((op,), wide_names))
            return
        floats = [i for i, name in enumerate(op.operands) if self.is_(name, DType.F32) or self.is_(name, self.narrow)]
        if op.name in FIRST_ALONE:
            floats = floats[:1] if floats[:1] == [0] else []
        if op.name in STATED or not floats:
            self.add(op)
            return
        to = self.type_of(op, floats)
        operands = list(op.operands)
        for i in floats:
            operands[i] = self.cast(operands[i], to, op)
        op = replace(op, operands=tuple(operands))
        if to is not self.narrow:
            self.add(op)
            return
        self.narrowed += 1
        count = 1 if op.name in BY_FIRST | FIRST_ALONE else len(op.results)
        made = [*(self.narrow_value(value) for value in op.results[:count]), *op.results[count:]]
        back: list[tuple[Value, Value]] = []
        for i, (value, before) in enumerate(zip(made, op.results, strict=True)):
            if before.name in results and value.type != before.type:
                made[i] = replace(value, name=unique(f"{value.name}.{self.narrow.value}", self.taken))
                back.append((made[i], before))
        self.add(replace(op, results=tuple(made)))
        for value, wide in back:
            self.add(self.cast_op(value.name, wide, DType.F32, op))

    def type_of(self, op: Op, floats: Iterable[int]) -> DType:
        """The type in which an op computes: what its operator asks for, or the widest of its operands. As in PyTorch, a scalar
        widens nothing; nor does the bias of a product, which PyTorch's products take in."""
        if op.name in NARROW:
            return self.narrow
        if op.name in WIDE:
            return DType.F32
        names = [op.operands[i] for i in floats][: 1 if op.name in BY_FIRST else None]
        wide = [name for name in names if self.is_(name, DType.F32) and not self.is_scalar(name)]
        if op.name == "onnx.Add" and len(wide) == 1 and len(names) == 2:
            (other,) = (name for name in names if name != wide[0])
            maker = self.made.get(other)
            if maker is not None and maker.name in NARROW and self.is_bias(wide[0]):
                wide = []
        return DType.F32 if wide or not any(self.is_(name, self.narrow) for name in names) else self.narrow

    def is_bias(self, name: str) -> bool:
        """Whether a name is of a weight of one dimension."""
        type_ = self.types.get(name)
        return name in self.resources and isinstance(type_, TensorType) and type_.shape is not None and len(type_.shape) == 1

    def is_scalar(self, name: str) -> bool:
        """Whether a name is of a scalar, or of a constant of one dimension and one element that does not train: some exporters
        write scalars so."""
        type_, resource = self.types.get(name), self.resources.get(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            return False
        maker = self.made.get(name)
        constant = resource is not None or (maker is not None and maker.name == "onnx.Constant")
        trained = resource is not None and any(isinstance(facet, OptimizerState) for facet in resource.facets)
        return type_.shape == () or (constant and not trained and type_.shape == (1,))

    def is_(self, name: str, dtype: DType) -> bool:
        type_ = self.types.get(name)
        return isinstance(type_, TensorType) and type_.dtype is dtype

    def cast(self, name: str, to: DType, reader: Op) -> str:
        """The name of a value in this type. A weight is cast for each op that reads it: they may be in several stages."""
        if self.is_(name, to):
            return name
        known = self.casts.get((name, to))
        if known is not None and name not in self.resources:
            return known
        type_ = self.types[name]
        assert isinstance(type_, TensorType)
        value = Value(unique(f"%{name[1:]}.{to.value}", self.taken), replace(type_, dtype=to))
        self.add(self.cast_op(name, value, to, reader))
        self.casts[name, to] = value.name
        return value.name

    def cast_op(self, name: str, value: Value, to: DType, reader: Op) -> Op:
        fields = attributes(to=ONNX_TYPES[to])
        return Op("onnx.Cast", (name,), (value,), fields, location=reader.location)

    def narrow_value(self, value: Value) -> Value:
        type_ = value.type
        if not value.name or not isinstance(type_, TensorType) or type_.dtype is not DType.F32:
            return value
        return replace(value, type=replace(type_, dtype=self.narrow))

    def add(self, op: Op) -> None:
        """Adds an op as it is."""
        self.ops.append(op)
        for value in op.results:
            self.types[value.name] = value.type
            self.made[value.name] = op
