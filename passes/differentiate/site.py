"""One op of the forward program, as its rule of differentiation sees it, and the ops that the rule adds.

A rule is ``Callable[[Site], Sequence[str | None]]``: it emits ops and returns the name of the gradient of each operand of
``site.op``: ``ZERO`` where the operand changes no result, None where nobody needs the gradient or where the rule does not know
it: such an op is differentiated through its body, or refused. What it gets:

- ``site.op``; ``site.operand(i)``, ``site.result(i)``: names; ``site.type(i)``, ``site.shape(i)`` of operand i, or of result j
  as ``-1 - j``; ``site.numbers(i)``: the elements of a small constant operand, None where they are not known.
- ``site.given``: name of the gradient of the first result, of the result's type. A rule of ``EVERY_RESULT`` takes
  ``site.gradient(j)`` of each result j, None where nothing reads that result; at least one is there.
- ``site.wants(i)``: whether anybody needs the gradient of operand i; a rule leaves out the others.
- ``site.emit("onnx.Mul", (a, b), type, key = value)``: adds an op, gives the name of its result; ``site.multi`` for several
  results. ``site.scalar(0.5, dtype)`` and ``site.ints((1, 2))`` are constants. ``site.add``, ``sub``, ``mul``, ``div``,
  ``unary`` work by broadcasting and find the type themselves. ``site.summed(name, i)`` reduces over what operand i was
  broadcast along.

Emitted types are those of whole tensors, without layouts; phase, stage and layout are decided afterwards. A gradient has the
type of its value. All shapes are numbers: ``site.shape`` raises InvalidInput for a dimension that has none.

A rule may read a result that the forward op does not name: ``site.result(i, type)`` then names it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ir.core.attributes import Attribute, AttrKind, Dense, attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Inline, Module, Resource, ResourceData, Splat
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import ONNX_TYPES, DType, TensorType, Type, without_layout
from ir.layout_rules import Numbers, Surroundings, numbers_of, resource_numbers
from ir.text.dense import dense_data
from passes.differentiate.faults import NoGradient
from passes.graph.graph import describe

ZERO = ""
"""What a rule returns for an operand that changes no result: its gradient is zero, wherever it has one."""


@dataclass(slots=True)
class Added:
    """An op that a rule emitted, while names are not settled: its results are called as ``Program.temporary`` gives."""

    op: Op
    source: Op
    """The forward op that it is of."""
    stages: tuple[int, ...]
    phase: str = ""
    """``I`` or ``W`` as soon as it is known."""


@dataclass(slots=True)
class Program:
    """What all rules of one run share: types and constants of the forward program, and the ops and resources added to it."""

    around: Surroundings
    taken: set[str]
    symbols: set[str]
    added: list[Added] = field(default_factory=list)
    constants: dict[tuple[TensorType, bytes], Resource] = field(default_factory=dict)
    others: list[Resource] = field(default_factory=list)
    """Constants of the definitions of composite ops."""
    named: dict[tuple[str, int], Value] = field(default_factory=dict)
    """Results that rules asked for and the forward op (by its id) does not name, by their number."""
    stages: tuple[int, ...] = ()
    """Those of the op whose rule runs; empty in a program without stages."""
    count: int = 0

    def temporary(self) -> str:
        """A name that only this run sees."""
        self.count += 1
        return f"%\x00{self.count}"

    def constant(self, dtype: DType, shape: tuple[int, ...], values: Sequence[float]) -> str:
        """A resource that holds ``values``; equal ones are one."""
        type_ = TensorType(dtype, shape)
        whole = dtype.is_integer
        texts = [str(int(v)) if whole else ("true" if v else "false") if dtype is DType.BOOL else str(float(v)) for v in values]
        data = dense_data(dtype, texts)
        assert isinstance(data, bytes)
        found = self.constants.get((type_, data))
        if found is None:
            text = "x".join(texts).replace("-", "m") or "none"
            base = f"@const.{dtype.value}.{text}" if len(text) <= 24 else f"@const.{dtype.value}.{len(self.constants)}"
            stored: ResourceData = Inline(data)
            if not shape and dtype.is_float and math.isfinite(values[0]):
                stored = Splat(float(values[0]))
            found = self.constants[type_, data] = Resource(unique(base, self.symbols), type_, stored)
            self.around.types[found.name] = type_
            numbers = numbers_of(Dense(type_, data))
            if numbers is not None:
                self.around.numbers[found.name] = numbers
        return found.name

    def imported(self, module: Module) -> dict[str, str]:
        """The new names of the resources of a module whose ops are added."""
        names = {}
        known = {(resource.type, resource.data): resource.name for resource in self.others}
        for resource in module.of_type(Resource):
            if (resource.type, resource.data) in known:
                names[resource.name] = known[resource.type, resource.data]
                continue
            name = names[resource.name] = unique(f"@const.{resource.name[1:]}", self.symbols)
            self.around.types[name] = resource.type
            numbers = resource_numbers(resource)
            if numbers is not None:
                self.around.numbers[name] = numbers
            self.others.append(replace(resource, name=name))
        return names


class Site:
    """See the module's docstring."""

    def __init__(self, program: Program, op: Op, gradients: Mapping[str, str], wanted: Sequence[bool]) -> None:
        self.program, self.op, self.wanted = program, op, tuple(wanted)
        self._gradients = gradients

    # -- reading -------------------------------------------------------------------------------------------------------

    def operand(self, number: int) -> str:
        """Its name; empty where it is absent."""
        return self.op.operands[number] if number < len(self.op.operands) else ""

    def present(self, number: int) -> bool:
        return bool(self.operand(number))

    def result(self, number: int = 0, type_: Type | None = None) -> str:
        """Its name. One that the op leaves out, or has not named, is named now and has ``type_``."""
        if number < len(self.op.results) and self.op.results[number].name:
            return self.op.results[number].name
        key = self.op.id, number
        found = self.program.named.get(key)
        if found is None:
            assert type_ is not None, f"result {number} of {self.op.name} needs a type"
            found = self.program.named[key] = Value(unique(f"{self.op.id}.{number}", self.program.taken), type_)
            self.program.around.types[found.name] = type_
        return found.name

    def gradient(self, number: int = 0) -> str | None:
        """The name of the gradient of a result."""
        name = self.op.results[number].name if number < len(self.op.results) else ""
        return self._gradients.get(name)

    @property
    def given(self) -> str:
        """The gradient of the first result, the only one of most ops that has a gradient."""
        found = self.gradient(0)
        assert found is not None, f"a rule of the first result of {self.op.name} runs for another"
        return found

    def wants(self, number: int) -> bool:
        return number < len(self.wanted) and self.wanted[number]

    def type_of(self, name: str) -> TensorType:
        """Of any value or resource, without its layout."""
        type_ = without_layout(self.program.around.types[name])
        if not isinstance(type_, TensorType):
            raise self.fault(f"{name} is {type_}, not a tensor")
        return type_

    def type(self, number: int) -> TensorType:
        """Of operand ``number``, or of result j as ``-1 - j``."""
        if number >= 0:
            return self.type_of(self.operand(number))
        type_ = without_layout(self.op.results[-1 - number].type)
        if not isinstance(type_, TensorType):
            raise self.fault(f"result {-1 - number} is {type_}, not a tensor")
        return type_

    def shape(self, number: int) -> tuple[int, ...]:
        """Of operand ``number``, or of result j as ``-1 - j``. Raises InvalidInput where a dimension is no number."""
        name = self.operand(number) if number >= 0 else self.op.results[-1 - number].name
        return self._lengths(name or f"result {-1 - number}", self.type(number))

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Of any value. Raises InvalidInput where a dimension is no number."""
        return self._lengths(name, self.type_of(name))

    def _lengths(self, name: str, type_: TensorType) -> tuple[int, ...]:
        shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
        if type_.shape is None or len(shape) != len(type_.shape):
            hint = (
                "bind the dimensions of inputs: canonicalize{dims=[NAME=NUMBER]}, or --dim NAME=NUMBER; where a size depends "
                "on values, freeze the weights before it: --frozen GLOB"
            )
            raise self.fault(f"the gradient needs the shape of {name}, which is {type_}", hint)
        return shape

    def numbers(self, number: int) -> Numbers | None:
        return self.program.around.numbers.get(self.operand(number))

    def integers(self, number: int, key: str = "") -> tuple[int, ...] | None:
        """Attribute ``key`` or, without one, the elements of a constant operand; None where neither is given. Raises
        InvalidInput for an operand that is no constant."""
        listed = self.op.get(key) if key else None
        if listed is not None:
            return tuple(int(item) for item in listed) if isinstance(listed, tuple) else (int(listed),)
        if not self.present(number):
            return None
        elements = self.numbers(number)
        if elements is None:
            raise self.fault(f"its operand {self.operand(number)} is no constant, so its gradient is not known")
        return tuple(int(item) for item in elements)

    def axes(self, number: int, rank: int, key: str = "axes") -> tuple[int, ...] | None:
        """``integers``, as dimensions counted from 0, ascending."""
        listed = self.integers(number, key)
        return None if listed is None else tuple(sorted({axis % rank for axis in listed}))

    def has_opset(self, version: int) -> bool:
        """Whether the module's ops are of this opset of ONNX or a later one."""
        return (self.program.around.opsets or {}).get("onnx", version) >= version

    def fault(self, message: str, hint: str = "") -> InvalidInput:
        """The fault of an op that cannot be differentiated."""
        return InvalidInput(NoGradient(f"{self.op.name}: {message}", hint), where=describe(self.op))

    # -- adding --------------------------------------------------------------------------------------------------------

    def emit(self, name: str, operands: Sequence[str], type_: Type, /, **attrs: Any) -> str:
        """Adds an op with one result; its name."""
        return self.multi(name, operands, (type_,), **attrs)[0]

    def multi(self, name: str, operands: Sequence[str], types: Sequence[Type | None], /, **attrs: Any) -> tuple[str, ...]:
        """Adds an op with a result per type (None: one that nobody wants); their names. Attributes of None are left out."""
        results = []
        for type_ in types:
            value = Value("") if type_ is None else Value(self.program.temporary(), type_)
            if type_ is not None:
                self.program.around.types[value.name] = type_
            results.append(value)
        kept = attributes({key: _listed(item) for key, item in attrs.items() if item is not None})
        op = Op(name, tuple(operands), tuple(results), kept, location=self.op.location)
        self.program.added.append(Added(op, self.op, self.program.stages))
        return tuple(value.name for value in results)

    def scalar(self, value: float, dtype: DType) -> str:
        """A constant without dimensions."""
        return self.program.constant(dtype, (), [value])

    def ints(self, values: Sequence[int]) -> str:
        """A constant of one dimension: axes, a shape."""
        return self.program.constant(DType.I64, (len(values),), list(values))

    def unary(self, name: str, operand: str, /, **attrs: Any) -> str:
        """An op element by element."""
        return self.emit(f"onnx.{name}", (operand,), self.type_of(operand), **attrs)

    def binary(self, name: str, one: str | float, other: str | float, dtype: DType | None = None) -> str:
        """An op of two operands that broadcast; numbers become constants of the other's type. ``dtype``: of its result, where
        it is not theirs."""
        known = self.type_of(one if isinstance(one, str) else str(other))
        names = [item if isinstance(item, str) else self.scalar(item, known.dtype) for item in (one, other)]
        shape = broadcast(self.shape_of(names[0]), self.shape_of(names[1]))
        return self.emit(f"onnx.{name}", names, TensorType(dtype or known.dtype, shape))

    def add(self, one: str | float, other: str | float) -> str:
        return self.binary("Add", one, other)

    def sub(self, one: str | float, other: str | float) -> str:
        return self.binary("Sub", one, other)

    def mul(self, one: str | float, other: str | float) -> str:
        return self.binary("Mul", one, other)

    def div(self, one: str | float, other: str | float) -> str:
        return self.binary("Div", one, other)

    def compare(self, name: str, one: str | float, other: str | float) -> str:
        """Greater, Less, Equal, And..: a tensor of truths."""
        return self.binary(name, one, other, DType.BOOL)

    def where(self, condition: str, one: str | float, other: str | float) -> str:
        """The elements of ``one`` where the condition holds, else those of ``other``."""
        known = self.type_of(one if isinstance(one, str) else str(other))
        names = [item if isinstance(item, str) else self.scalar(item, known.dtype) for item in (one, other)]
        shape = broadcast(self.shape_of(condition), broadcast(self.shape_of(names[0]), self.shape_of(names[1])))
        return self.emit("onnx.Where", (condition, *names), TensorType(known.dtype, shape))

    def cast(self, name: str, dtype: DType) -> str:
        """The value in another element type; itself where it has that one."""
        type_ = self.type_of(name)
        if type_.dtype is dtype:
            return name
        return self.emit("onnx.Cast", (name,), TensorType(dtype, type_.shape), to=ONNX_TYPES[dtype])

    def total(self, names: Sequence[str]) -> str:
        """The sum of values of one type; itself of one alone."""
        if len(names) == 1:
            return names[0]
        return self.emit("onnx.Add" if len(names) == 2 else "onnx.Sum", names, self.type_of(names[0]))

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """The value in another shape; itself where it has that one."""
        if self.shape_of(name) == tuple(shape):
            return name
        # Not -1 nor 0: every dimension is said, so that layout rules see it.
        operands = (name, self.ints(shape))
        return self.emit("onnx.Reshape", operands, TensorType(self.type_of(name).dtype, tuple(shape)), allowzero=_zeros(shape))

    def transpose(self, name: str, perm: Sequence[int]) -> str:
        """Dimension i of the result is dimension ``perm[i]`` of ``name``."""
        if tuple(perm) == tuple(range(len(perm))):
            return name
        shape = self.shape_of(name)
        return self.emit(
            "onnx.Transpose", (name,), TensorType(self.type_of(name).dtype, tuple(shape[i] for i in perm)), perm=perm
        )

    def sum(self, name: str, axes: Sequence[int], *, keep: bool = False) -> str:
        """The sum along ``axes``."""
        if not axes:
            return name
        shape = self.shape_of(name)
        kept = tuple(1 if i in axes else dim for i, dim in enumerate(shape) if keep or i not in axes)
        type_ = TensorType(self.type_of(name).dtype, kept)
        if not self.has_opset(AXES_OPERAND):
            return self.emit("onnx.ReduceSum", (name,), type_, axes=tuple(axes), keepdims=int(keep))
        return self.emit("onnx.ReduceSum", (name, self.ints(tuple(axes))), type_, keepdims=int(keep))

    def expand(self, name: str, shape: Sequence[int]) -> str:
        """The value broadcast to ``shape``."""
        if self.shape_of(name) == tuple(shape):
            return name
        return self.emit("onnx.Expand", (name, self.ints(shape)), TensorType(self.type_of(name).dtype, tuple(shape)))

    def summed(self, name: str, number: int) -> str:
        """A gradient in a shape to which operand ``number`` was broadcast, reduced to that operand's shape."""
        return self.summed_to(name, self.shape(number))

    def summed_to(self, name: str, shape: tuple[int, ...]) -> str:
        """A gradient reduced to ``shape``, which broadcasts to its own."""
        wide = self.shape_of(name)
        if wide == shape:
            return name
        extra = len(wide) - len(shape)
        leading = tuple(range(extra))
        stretched = tuple(i + extra for i, dim in enumerate(shape) if dim != wide[i + extra])
        if not stretched:
            return self.sum(name, leading)
        return self.reshape(self.sum(self.sum(name, stretched, keep=True), leading), shape)


def broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which both broadcast."""
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    return tuple(a if b == 1 else b for a, b in pairs)


def _listed(item: Any) -> Any:
    if isinstance(item, list | tuple):
        return Attribute(AttrKind.INTS, tuple(item)) if all(isinstance(part, int) for part in item) else tuple(item)
    return item


def _zeros(shape: Sequence[int]) -> int | None:
    return 1 if 0 in shape else None


AXES_OPERAND = 13
"""The opset from which the axes of ReduceSum are an operand."""

Rule: TypeAlias = Callable[[Site], Sequence[str | None]]
