"""What is refused in the types and shapes of values, and where shape inference ends. Codes E17.., W17.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class StatedTypeWrong(Fault, code="E1701"):
    """The model states an element type, or a kind of type, for a value that its operator does not make."""

    message = "the model states {stated} for '{value}', which is {actual}"
    hint = "onnxruntime refuses such a model; export it again"
    value: str
    stated: str
    actual: str


class DefaultOfAnotherType(Fault, code="E1702"):
    """The default of an input is not of the type that the model states for the input."""

    message = "the model states {stated} for input '{name}', whose default is {actual}"
    hint = "onnxruntime refuses such a model; export it again"
    name: str
    stated: str
    actual: str


class StatedShapesIgnored(Fault, code="W1703"):
    """The model states shapes that shape inference disproves. The inferred shapes are used."""

    message = "the model's own shape annotations contradict inference and are ignored: {contradictions}{others}"
    contradictions: str
    more: int

    @property
    def others(self) -> str:
        return f", and {self.more} more" if self.more else ""


class InferenceFailedAtNode(Fault, code="W1704"):
    """onnx cannot infer the result types of a node; the others are inferred without it."""

    message = "shape inference failed at a node: {reason}"
    reason: str


class InferenceOutOfMemory(Fault, code="E1705"):
    """Shape inference of the model would need more memory than its limit."""

    message = "shape inference would take more than {most} bytes of memory"
    hint = "does a shape come from a tensor of very many elements? --limit inference-bytes=NUMBER allows more"
    most: int


class InferenceTooSlow(Fault, code="E1706"):
    """Shape inference of the model took longer than its limit."""

    message = "shape inference took more than {seconds} s"
    hint = "real models take a few seconds; --limit inference-seconds=NUMBER allows more"
    seconds: float


class InferenceCrashed(Fault, code="E1707"):
    """onnx's shape inference crashed on the model."""

    message = "onnx's shape inference of this model was ended by {reason}"
    hint = "are its graphs or types nested very deep? If not, please report it to onnx"
    reason: str


class TooManyDimensions(Fault, code="E1708"):
    """A value has more dimensions than arrays of numpy can have."""

    message = "the shape of '{value}' has {rank} dimensions or more; at most {most} are supported"
    value: str
    rank: int
    most: int


class ValueTooLarge(Fault, code="E1709"):
    """A value has more bytes than any machine."""

    message = "the shape of '{value}' is {shape}; a value has fewer than {most} bytes"
    value: str
    shape: str
    most: int


class ElementTypeRefused(Fault, code="E1710"):
    """An operator does not take inputs of this element type; onnxruntime would refuse the model too."""

    message = "input '{value}' of {operator} has the element type {element}, expected {expected}"
    value: str
    operator: str
    element: str
    expected: str


class DimensionRefused(Fault, code="E1711"):
    """An operator of the model takes no input of the size that a dimension was bound to."""

    message = "no input of this size passes through the model: {reason}"
    hint = "give another number"
    reason: str


class DimensionsContradict(Fault, code="E1712"):
    """The numbers of several dimensions do not fit each other: an operator demands, for example, past + seq = total."""

    message = "these dimensions contradict each other: {reason}"
    hint = "in a decoder with a cache, the length of its attention mask is that of the cache and the new tokens together"
    reason: str


class UnknownRanks(Fault, code="W1713"):
    """Not even the number of dimensions of some values is known before a run."""

    message = "{count} no known rank: {names}"
    hint = "{advice}"
    names: str
    number: int
    flags: str

    @property
    def count(self) -> str:
        return "1 value has" if self.number == 1 else f"{self.number} values have"

    @property
    def advice(self) -> str:
        if self.flags:
            return f"bind the symbolic dimensions, for example: {self.flags}"
        return "sizes that depend on data or on unknown operators are not known before running"
