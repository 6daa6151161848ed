"""Faults in the name and the options of a zoo model. Codes E05."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class UnknownModel(Fault, code="E0501"):
    """The zoo has no model of this name."""

    message = "unknown zoo model '{model}'; {expected}"
    hint = "`dnnc zoo list` prints models and options"
    model: str
    closest: tuple[str, ...]
    models: tuple[str, ...]

    @property
    def expected(self) -> str:
        if self.closest:
            return f"did you mean {' or '.join(map(repr, self.closest))}?"
        return f"expected one of: {', '.join(self.models)}"


class UnknownOption(Fault, code="E0502"):
    """A zoo model has no option of this name."""

    message = "unknown option '{option}' of zoo:{model}; {suggestion}its options, with defaults: {options}"
    option: str
    model: str
    closest: str
    options: tuple[str, ...]

    @property
    def suggestion(self) -> str:
        return f"did you mean '{self.closest}'? " if self.closest else ""


class OptionWithoutValue(Fault, code="E0503"):
    """An option of a zoo model has no value."""

    message = "option '{option}' has no value; its options, with defaults: {options}"
    option: str
    options: tuple[str, ...]


class OptionTwice(Fault, code="E0504"):
    """An option of a zoo model is given twice."""

    message = "option '{option}' is given twice"
    option: str


class NoSuchChoice(Fault, code="E0505"):
    """The value of an option is not one of its choices."""

    message = "found '{value}' for {option}, expected one of: {choices}"
    option: str
    value: str
    choices: tuple[str, ...]


class NotInRange(Fault, code="E0506"):
    """The value of an option is no whole number in its range."""

    message = "found '{value}' for {option}, expected a whole number from {least} to {most}"
    option: str
    value: str
    least: int
    most: int


class NoMultiple(Fault, code="E0507"):
    """One dimension of a model must be a multiple of another."""

    message = "{option}={value} is no multiple of {divisor}; {fit} would fit"
    option: str
    value: int
    divisor: str
    """``OPTION=NUMBER``, or a number."""
    fit: str


class OddHeads(Fault, code="E0508"):
    """Rotary embedding rotates pairs of elements, so the width of a head, hidden / heads, must be even."""

    message = "heads are {width} wide, hidden={hidden} over heads={heads}; an even width was expected"
    width: int
    hidden: int
    heads: int


class SequenceTooLong(Fault, code="E0509"):
    """A learned position embedding has fewer positions than the sequence has tokens, or the cache has positions."""

    message = "{option}={length} is longer than positions={positions}; add positions={length}"
    option: str
    length: int
    positions: int


class TooFewExperts(Fault, code="E0510"):
    """A token cannot choose more experts (top) than a layer has."""

    message = "top={top} is more than experts={experts}"
    top: int
    experts: int


class ImageTooSmall(Fault, code="E0511"):
    """Inception has convolutions without padding, which leave no pixel of so small an image."""

    message = "image={image} is too small; image={least} would do"
    image: int
    least: int


class OddWidth(Fault, code="E0512"):
    """A position is encoded by as many sines as cosines, so the hidden width must be even, and at least 4."""

    message = "hidden={hidden}; an even width from 4 on was expected"
    hidden: int


class OddFrames(Fault, code="E0513"):
    """Whisper's second convolution halves the number of frames, so it must be even."""

    message = "frames={frames}; an even number was expected"
    frames: int


class CacheTooShort(Fault, code="E0514"):
    """A cache must hold the tokens of the step and, where they are appended to it (cache=concat), one before them."""

    message = "context={context} is too short for {option}={length}; context={least} would do"
    context: int
    option: str
    length: int
    least: int


class PackedByCapacity(Fault, code="E0515"):
    """The operator of experts with 4-bit weights drops no token."""

    message = "weights=int4 and routing=capacity exclude each other; leave one out"
