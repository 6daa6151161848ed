"""Faults of ops and types that dnnc cannot write as PyTorch. Codes E47."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class OpNotWritten(Fault, code="E4701"):
    """dnnc cannot write this op as PyTorch, so no training program can contain it."""

    message = "{op}: dnnc cannot write this op as PyTorch, so it cannot be trained"
    op: str


class NotATensor(Fault, code="E4702"):
    """An op reads or computes a sequence, an optional or a sparse value; training programs hold tensors only."""

    message = "{op}: {type} is no tensor; training programs hold tensors only"
    op: str
    type: str


class ShapeNeeded(Fault, code="E4703"):
    """A dimension of a tensor is symbolic or unknown, and dnnc needs its number to write the op as PyTorch."""

    message = "{op}: dnnc needs every dimension of {type} as a number to write this op as PyTorch"
    hint = "bind symbolic dimensions by --dim NAME=NUMBER"
    op: str
    type: str


class RankNeeded(Fault, code="E4704"):
    """The rank of a tensor is unknown, and dnnc needs it to write the op as PyTorch."""

    message = "{op}: dnnc needs the rank of its operands and results to write this op as PyTorch"
    op: str


class AttributeNotWritten(Fault, code="E4705"):
    """PyTorch has no counterpart of an op with this value of an attribute."""

    message = "{op}: dnnc cannot write {attribute} '{value}' as PyTorch; expected one of: {expected}"
    op: str
    attribute: str
    value: str
    expected: tuple[str, ...]


class TooManyDimensions(Fault, code="E4706"):
    """A convolution or pool has other than 1 to 3 spatial dimensions, which PyTorch lacks."""

    message = "{op}: PyTorch has this op for 1 to 3 spatial dimensions, not for {dimensions}"
    op: str
    dimensions: int


class PadsNotWritten(Fault, code="E4707"):
    """A transposed convolution has pads that PyTorch's arguments cannot express."""

    message = "{op}: PyTorch cannot express these pads: output_padding would be {output_padding}"
    op: str
    output_padding: str


class MomentsNotWritten(Fault, code="E4710"):
    """The model uses the mean or the deviation that a normalisation computes, which PyTorch's function does not return."""

    message = "{op}: the model uses its mean or its deviation, which PyTorch does not return"
    op: str


class AttentionNotWritten(Fault, code="E4711"):
    """An attention has a soft cap, padding lengths, or its scores as a result, which dnnc cannot write as PyTorch."""

    message = "{op}: dnnc cannot write an attention with a soft cap, padding lengths or scores as a result as PyTorch"
    op: str


class ConstantNeeded(Fault, code="E4712"):
    """An operand that decides shapes or axes is computed, and dnnc needs its value to write the op as PyTorch."""

    message = "{op}: operand {operand} is no constant; dnnc needs its value to write this op as PyTorch"
    op: str
    operand: str


class ResizeNotWritten(Fault, code="E4713"):
    """PyTorch cannot resize with this mode and these coordinates, or has no gradient of it."""

    message = "{op}: PyTorch cannot resize with mode {mode} and coordinates {coordinates} to {shape}, or has no gradient of it"
    op: str
    mode: str
    coordinates: str
    shape: str


class DropoutInTraining(Fault, code="E4714"):
    """A dropout in training mode draws its own mask; training programs contain the mask as an op."""

    message = "{op}: dnnc cannot write a dropout that draws its own mask as PyTorch"
    hint = "dnnc opt --passes training makes its mask an op of its own"
    op: str


class ComputedSlice(Fault, code="E4715"):
    """The starts of a slice are computed, and its axes are not constant or its steps are not 1."""

    message = "{op}: its starts are computed, so dnnc needs constant axes and steps of 1 to write it as PyTorch"
    op: str


class FormNotWritten(Fault, code="E4717"):
    """An op has an operand that PyTorch's counterpart lacks: a recurrent layer with peepholes or lengths of sequences."""

    message = "{op}: PyTorch has no {what} of this op"
    op: str
    what: str


class ConstantNotWritten(Fault, code="E4716"):
    """A constant has an element type that PyTorch lacks."""

    message = "{op}: PyTorch has no constants of {type}"
    op: str
    type: str
