"""What is refused in the weights of a model and in dimensions without a number. Codes E02.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

_INSIDE = "weights must lie in the model's folder or below; move them there and correct the model's external_data location"
_TRUNCATED = "it is truncated or of another model: copy or export it again"
_BESIDE = "put it beside the model, or use --plan-only, which reads no weights"


class UnboundDimension(Fault, code="E0201"):
    """A dimension of an input has a name and no number, and what was asked for needs numbers."""

    message = "dimension '{name}' ({place}) has no number; one is needed here{others}"
    hint = "{advice}"
    name: str
    place: str
    flags: str = ""
    """Options that bind every dimension, in the last of several faults."""
    more: int = 0

    @property
    def others(self) -> str:
        return f" (and {self.more} more dimensions)" if self.more else ""

    @property
    def advice(self) -> str:
        if not self.flags:
            return f"add --dim {self.name}=NUMBER"
        return f"for example: {self.flags} (name=other makes two dimensions the same)"


class WeightPathNotRelative(Fault, code="E0203"):
    """The model names a weight file by an absolute or empty path. A path must be relative to the model's folder."""

    message = "the weight file path '{file}' {problem}; a path inside the model's folder was expected"
    hint = _INSIDE
    file: str

    @property
    def problem(self) -> str:
        return "is absolute" if self.file else "is empty"


class WeightPathLeadsNowhere(Fault, code="E0204"):
    """The operating system refuses the path of a weight file: it is too long, or its links form a circle."""

    message = "the weight file path '{file}' leads nowhere: {reason}"
    hint = _INSIDE
    file: str
    reason: str


class WeightPathLeavesFolder(Fault, code="E0205"):
    """A weight file lies outside the model's folder. A model must not read other files of the user."""

    message = "the weight file path '{file}' leaves the model's folder"
    hint = _INSIDE
    file: str


class WeightFileChanged(Fault, code="E0206"):
    """Somebody wrote to a file of the model during the import."""

    message = "the file was changed while it was read"
    hint = "read it again as it is now"


class WeightFileMissing(Fault, code="E0207"):
    """The model names a weight file that does not exist."""

    message = "the weight file '{file}' is missing; {name} and others are in it"
    hint = _BESIDE
    file: str
    name: str


class WeightFileNotOpened(Fault, code="E0208"):
    """The operating system does not open a weight file: mostly its permissions forbid it."""

    message = "the weight file '{file}' cannot be opened; {name} and others are in it"
    hint = _BESIDE
    file: str
    name: str


class WeightFileNotRegular(Fault, code="E0209"):
    """The path of a weight file leads to a folder or a device."""

    message = "the weight file '{file}' is no regular file; {name} and others are in it"
    hint = _BESIDE
    file: str
    name: str


class WeightFileTooShort(Fault, code="E0210"):
    """A weight file ends before the data that the model reads from it."""

    message = "the weight file '{file}' has {size} bytes; {name} ends at byte {end}"
    hint = _TRUNCATED
    file: str
    size: int
    name: str
    end: int


class WeightWithoutStaticType(Fault, code="E0211"):
    """A weight is no tensor, or a dimension of it has no number."""

    message = "{name} has no static tensor type: {type}"
    name: str
    type: str


class WeightOfWrongSize(Fault, code="E0212"):
    """The bytes of a weight are more or fewer than its type needs."""

    message = "{name} is {type}, which needs {needed} bytes; {given} are given"
    name: str
    type: str
    needed: int
    given: int


class InlineWeightInvalid(Fault, code="E0213"):
    """The data that the program holds for a weight does not fit the type of the weight."""

    message = "{reason}"
    reason: str


class WeightWithoutData(Fault, code="E0214"):
    """A weight has a type and no data, as those of large models of the zoo."""

    message = "{name} is declared without data"
    hint = "the program can be planned (--plan-only) but not run"
    name: str


class UnknownDistribution(Fault, code="E0215"):
    """A program asks for random weights of a distribution that dnnc does not draw."""

    message = "distribution '{distribution}' is not known; 'normal' or 'uniform' was expected"
    distribution: str
