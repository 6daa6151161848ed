"""Ops and types that dnnc does not write as PyTorch. Codes E47."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class OpNotWritten(Fault, code="E4701"):
    """dnnc has no statement of PyTorch for this op, so no training program can hold it."""

    message = "{op}: dnnc cannot write this op as PyTorch, so it cannot be trained"
    op: str


class NotATensor(Fault, code="E4702"):
    """An op reads or makes a sequence, an optional or a sparse value; programs for PyTorch hold tensors only."""

    message = "{op}: {type} is no tensor; programs for torch hold tensors only"
    op: str
    type: str


class ShapeNeeded(Fault, code="E4703"):
    """A dimension of a tensor is a symbol or unknown, where a statement of PyTorch needs the number."""

    message = "{op}: a program for torch needs the shape of {type}"
    hint = "bind symbolic dimensions by --dim NAME=NUMBER"
    op: str
    type: str


class RankNeeded(Fault, code="E4704"):
    """The number of dimensions of a tensor is unknown, where a statement of PyTorch depends on it."""

    message = "{op}: a program for torch needs the rank of its operands and results"
    op: str


class AttributeNotWritten(Fault, code="E4705"):
    """PyTorch has no counterpart of an op with this value of an attribute."""

    message = "{op}: {attribute} '{value}' is not written for torch; expected one of: {expected}"
    op: str
    attribute: str
    value: str
    expected: tuple[str, ...]


class TooManyDimensions(Fault, code="E4706"):
    """PyTorch has convolutions and pools of 1 to 3 spatial dimensions."""

    message = "{op}: torch has it for 1 to 3 spatial dimensions, not for {dimensions}"
    op: str
    dimensions: int


class PadsNotWritten(Fault, code="E4707"):
    """A transposed convolution has pads that PyTorch's arguments cannot express."""

    message = "{op}: torch has no transposed convolution with these pads: its result is longer by {longer}"
    op: str
    longer: str


class DilationsNotWritten(Fault, code="E4708"):
    """PyTorch has no average pool, and no pool of p-norms, with dilations."""

    message = "{op}: torch has no average pool with dilations"
    op: str


class IndicesNotWritten(Fault, code="E4709"):
    """The model uses the indices of the maxima of a max pool, which dnnc does not write for PyTorch."""

    message = "{op}: the indices of its maxima are not written for torch"
    hint = "export the model without return_indices"
    op: str


class MomentsNotWritten(Fault, code="E4710"):
    """The model uses the mean or deviation that a normalisation computed, which PyTorch's functions do not return."""

    message = "{op}: the model uses its mean or its deviation, which torch does not return"
    op: str


class AttentionNotWritten(Fault, code="E4711"):
    """An attention uses a soft cap, lengths of padding, or its scores as a result."""

    message = "{op}: soft caps, lengths of padding and scores as results are not written for torch"
    op: str


class ConstantNeeded(Fault, code="E4712"):
    """An operand that decides shapes or axes is computed, and a statement of PyTorch needs its value."""

    message = "{op}: its operand {operand} is no constant, so its form is not known"
    op: str
    operand: str


class ResizeNotWritten(Fault, code="E4713"):
    """PyTorch does not resize with this mode and these coordinates, or has no gradient of it."""

    message = "{op}: torch has no resizing of mode {mode} with coordinates {coordinates} to {shape}, or no gradient of it"
    op: str
    mode: str
    coordinates: str
    shape: str


class DropoutInTraining(Fault, code="E4714"):
    """A dropout is still an op of its own, and draws its mask; training programs read a mask instead."""

    message = "{op}: a dropout that draws its own mask is not written for torch"
    hint = "dnnc opt --passes training makes its mask an op of its own"
    op: str


class ComputedSlice(Fault, code="E4715"):
    """A slice begins where another op says, and its axes are computed too, or it leaves elements out."""

    message = "{op}: its starts are computed, so torch needs constant axes and steps of 1"
    op: str


class ConstantNotWritten(Fault, code="E4716"):
    """A constant has an element type that PyTorch does not hold."""

    message = "{op}: torch holds no constant of {type}"
    op: str
    type: str
