"""The loss of a training step as ordinary ops, which split by samples like any others.

A step's loss is that of its whole batch, whatever the microbatches, replicas and members of meshes that it is dealt to: the sum
over all of them, divided by the number of what counts in all of them. Steps take the mean over microbatches of losses and
gradients, so a microbatch divides its sum by the mean number per microbatch of the step. That number follows from the data
alone: no device has to wait for another to know it, in any order of the microbatches.

``cross-entropy:OUT``: OUT holds logits ``[.., classes]``, the new input ``labels`` integers ``[..]`` (classes are
dimension 1 in torch). Labels of -100 do not count. The new input ``loss.counted`` is how many labels do, the mean over the
microbatches of the step, and one in all of them at least: a batch without any has the loss 0 and gradients of 0, where torch's
are NaN. ``mse:OUT``: the mean of the squared distance to the new input ``target``, of OUT's type: every element counts, and
microbatches have equal numbers. ``output:NAME``: a scalar that the model computes itself; of a step the mean over its
microbatches.

The attribute ``loss`` of the entry function says which it is (``passes.costs.learning.StepLoss``).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Func, Inline, Module, Resource, Symbol
from ir.core.names import unique
from ir.core.ops import Location, Op, Value
from ir.core.types import Dim, DType, TensorType, Type
from ir.ops.opdefs import module_opsets
from ir.text.dense import dense_data
from passes.costs.learning import CROSS_ENTROPY, IGNORED, LOSS
from passes.graph.graph import listing
from passes.training.faults import (
    CrossEntropyOpset,
    LossOfOutput,
    NoLoss,
    NoOutput,
    OutputNotNamed,
    UnknownClasses,
    UnknownLoss,
    UnknownRank,
)

_ONNX_FLOAT, _WHERE = 1, Location("main", "loss", "")
_FORMS = "cross-entropy:OUTPUT, mse:OUTPUT or output:NAME"


def with_loss(module: Module, loss: str) -> Module:
    """The module whose entry returns the loss that the text names, alone. Raises UsageError for another text or an output that
    the model lacks, InvalidInput for one of a type that the loss cannot take."""
    kind, colon, name = loss.partition(":")
    builders = {CROSS_ENTROPY: _Loss.cross_entropy, "mse": _Loss.squares, "output": _Loss.own}
    if kind not in builders or not colon:
        raise UsageError(UnknownLoss(loss, _FORMS) if loss else NoLoss(_FORMS), where="--loss")
    output = _output(module.entry, name)
    builder = _Loss(module, output)
    return builder.finished(kind, builders[kind](builder))


def _output(func: Func, name: str) -> Value:
    """The result of this name, or the only one where none is named. Raises UsageError."""
    outputs = {value.name.lstrip("%@"): value for value in func.results}
    if not name and len(outputs) == 1:
        return next(iter(outputs.values()))
    found = outputs.get(name.lstrip("%"))
    if found is None:
        close = difflib.get_close_matches(name, outputs, n=1)
        known = listing(outputs) + (f"; did you mean '{close[0]}'?" if close else "")
        raise UsageError(NoOutput(name, known) if name else OutputNotNamed(len(outputs), known), where="--loss")
    return found


@dataclass(slots=True)
class _Loss:
    """Ops, arguments and resources while they are added to the entry of ``module``."""

    module: Module
    output: Value
    ops: list[Op]
    args: list[Value]
    resources: list[Resource]
    names: set[str]
    symbols: set[str]

    def __init__(self, module: Module, output: Value) -> None:
        func = module.entry
        self.module, self.output = module, output
        self.ops, self.args, self.resources = [], [], []
        # A result that was called %loss makes way: the loss of the step has this name where it can.
        self.names = {value.name for op in func.ops for value in op.results} | {arg.name for arg in func.args}
        self.symbols = {symbol.name for symbol in module.symbols}

    # -- losses --------------------------------------------------------------------------------------------------------

    def cross_entropy(self) -> str:
        type_ = self.tensor()
        shape = self.shape(type_)
        if not type_.dtype.is_float or not shape:
            raise self.misfit("logits are floats, and classes are their last dimension")
        if not isinstance(shape[-1], int):
            raise InvalidInput(UnknownClasses(self.output.name, str(type_)), where="--loss")
        if module_opsets(self.module).get("onnx", 0) < 12:
            raise InvalidInput(CrossEntropyOpset(), where="--loss")
        labels = self.argument("labels", TensorType(DType.I64, shape[:-1]))
        rows: Dim = product(shape[:-1])
        logits = self.floats(self.output.name, type_)
        dtype = self.type_of(logits).dtype
        if len(shape) != 2:
            logits = self.reshaped(logits, TensorType(dtype, (rows, shape[-1])), (-1, shape[-1]))
            labels = self.reshaped(labels, TensorType(DType.I64, (rows,)), (-1,))
        kind, vector = "onnx.SoftmaxCrossEntropyLoss", TensorType(dtype, (rows,))
        each = self.op(kind, (logits, labels), vector, "loss.each", reduction="none", ignore_index=IGNORED)
        total = self.op("onnx.ReduceSum", (each,), TensorType(dtype, ()), "loss.sum", keepdims=0)
        counted = self.argument("loss.counted", TensorType(dtype, ()))
        return self.op("onnx.Div", (total, counted), TensorType(dtype, ()), "loss")

    def squares(self) -> str:
        type_ = self.tensor()
        if not type_.dtype.is_float:
            raise self.misfit("the squared distance is of floats")
        target = self.argument("target", type_)
        difference = self.op("onnx.Sub", (self.output.name, target), type_, "loss.difference")
        difference = self.floats(difference, type_)
        wide = self.type_of(difference)
        squares = self.op("onnx.Mul", (difference, difference), wide, "loss.squares")
        return self.op("onnx.ReduceMean", (squares,), TensorType(wide.dtype, ()), "loss", keepdims=0)

    def own(self) -> str:
        type_ = self.tensor()
        if not type_.dtype.is_float or any(dim != 1 for dim in self.shape(type_)):
            raise self.misfit("a loss is one float")
        name = self.floats(self.output.name, type_)
        return self.reshaped(name, TensorType(self.type_of(name).dtype, ()), ()) if type_.shape else name

    # -- parts ---------------------------------------------------------------------------------------------------------

    def tensor(self) -> TensorType:
        type_ = self.output.type
        if not isinstance(type_, TensorType):
            raise self.misfit("a loss is of a tensor")
        return type_

    def shape(self, type_: TensorType) -> tuple[Dim, ...]:
        if type_.shape is None:
            raise InvalidInput(UnknownRank(self.output.name), where="--loss")
        return type_.shape

    def misfit(self, expected: str) -> InvalidInput:
        return InvalidInput(LossOfOutput(self.output.name, str(self.output.type), expected), where="--loss")

    def type_of(self, name: str) -> TensorType:
        made = next((value.type for op in self.ops for value in op.results if value.name == name), self.output.type)
        assert isinstance(made, TensorType)
        return made

    def floats(self, name: str, type_: TensorType) -> str:
        """The value in f32, if it is narrower."""
        if type_.dtype in (DType.F32, DType.F64):
            return name
        return self.op("onnx.Cast", (name,), TensorType(DType.F32, type_.shape), "loss.wide", to=_ONNX_FLOAT)

    def reshaped(self, name: str, type_: TensorType, shape: Sequence[int]) -> str:
        base = f"{name[1:]}.rows" if shape else "loss"
        return self.op("onnx.Reshape", (name, self.constant(f"{base}.shape", (len(shape),), shape)), type_, base)

    def constant(self, name: str, shape: tuple[int, ...], values: Sequence[int]) -> str:
        data = dense_data(DType.I64, [str(value) for value in values])
        assert isinstance(data, bytes)
        resource = Resource(unique(f"@{name}", self.symbols), TensorType(DType.I64, shape), Inline(data))
        self.resources.append(resource)
        return resource.name

    def argument(self, name: str, type_: Type) -> str:
        value = Value(unique(f"%{name}", self.names), type_)
        self.args.append(value)
        return value.name

    def op(self, kind: str, operands: tuple[str, ...], type_: Type, name: str, **fields: int | str) -> str:
        result = Value(unique(f"%{name}", self.names), type_)
        self.ops.append(Op(kind, operands, (result,), attributes(fields), location=_WHERE))
        return result.name

    def finished(self, kind: str, loss: str) -> Module:
        """The module with the entry that returns ``loss`` alone."""
        func = self.module.entry
        type_ = next((value.type for op in self.ops for value in op.results if value.name == loss), self.output.type)
        told = attributes(**{LOSS: [kind, *(arg.name[1:] for arg in self.args)]})
        after = replace(
            func,
            args=(*func.args, *self.args),
            ops=(*func.ops, *self.ops),
            results=(Value(loss, type_),),
            attributes=tuple(sorted({**dict(func.attributes), **dict(told)}.items())),
        )
        symbols: list[Symbol] = [after if symbol is func else symbol for symbol in self.module.symbols]
        last = max((i for i, symbol in enumerate(symbols) if isinstance(symbol, Resource)), default=-1)
        symbols[last + 1 : last + 1] = self.resources
        return replace(self.module, symbols=tuple(symbols))


def product(dims: Sequence[Dim]) -> Dim:
    """A number, or arithmetic over symbols; None where a dimension is not known."""
    numbers = math.prod(dim for dim in dims if isinstance(dim, int))
    symbols = [dim if dim.isidentifier() else f"({dim})" for dim in dims if isinstance(dim, str)]
    if any(dim is None for dim in dims):
        return None
    if not symbols:
        return numbers
    return "*".join([str(numbers)] * (numbers != 1) + symbols)
