"""Faults of the pass ``cost``. Codes 38.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoFormula(Fault, code="W3801"):
    """The shapes of an op are not those that its cost formula expects; its time is that of reading and writing its tensors."""

    message = "the types of {op} do not fit its cost formula; it is counted by its bytes only"
    op: str


class TooMuchWork(Fault, code="E3802"):
    """A count of the whole model is larger than any machine could work off, as a wrong dimension makes it."""

    message = "{count} of all ops is {value:.3g}, {share:.3g} of it {op}'s; at most {most:.3g} can be planned"
    hint = "is a dimension, or an attribute of this op, larger than meant?"
    count: str
    value: float
    share: float
    op: str
    most: float


class UnboundDimension(Fault, code="E3803"):
    """The model leaves a dimension of an input open, and costs depend on it."""

    message = "dimension '{dimension}' of input {input} has no number, and the size of {value} depends on it"
    hint = "bind it: --dim {dimension}=NUMBER"
    dimension: str
    input: str
    value: str


class UnknownSizes(Fault, code="W3804"):
    """Sizes depend on data and cannot be known from the model alone; the plan counts one number for each of them."""

    message = "{sizes}{reason}: counted as {each} each, so the plan may be far off"
    hint = "{advice}"
    sizes: str
    reason: str
    each: int
    advice: str
