"""What the Python door refuses. Codes E14."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NotAnOption(Fault, code="E1401"):
    """``dnnc.plan`` was given a keyword that it does not know."""

    message = "there is no option '{name}'"
    hint = "the options are {options}"
    name: str
    options: tuple[str, ...]


class NotAModel(Fault, code="E1402"):
    """``dnnc.plan`` takes a path, ``zoo:NAME``, an ``onnx.ModelProto`` or a ``torch.nn.Module``."""

    message = "found a value of type {kind}; expected a path, 'zoo:NAME', an onnx.ModelProto or a torch.nn.Module"
    kind: str


class ArgumentsMissing(Fault, code="E1403"):
    """A PyTorch module is exported by running it, which needs its arguments."""

    message = "a torch.nn.Module is exported with example arguments, and there are none"
    hint = "add args=(x, ...), tensors in the sizes of one microbatch"


class ArgumentsOfFile(Fault, code="E1404"):
    """Example arguments export a PyTorch module. Other models need none."""

    message = "args= is only for a torch.nn.Module"
    hint = "leave it out; sizes of dimensions are bound by dims="


class NotMachines(Fault, code="E1405"):
    """Machines are a path, ``preset:NAME`` or a Topology."""

    message = "found a value of type {kind}; expected a path, 'preset:NAME' or a Topology"
    kind: str


class UnknownOutput(Fault, code="E1406"):
    """The model has no output of this name."""

    message = "the model has no output '{name}'; it has {outputs}"
    name: str
    outputs: tuple[str, ...]


class NotOneMicrobatch(Fault, code="E1407"):
    """A session takes one microbatch at a time: each array has the shape of its input."""

    message = "array '{name}' has shape {shape}, the input has {expected}"
    hint = "a session takes one microbatch at a time; session.map runs many"
    name: str
    shape: str
    expected: str


class ForInference(Fault, code="E1408"):
    """The build is of inference, and is to be trained."""

    message = "the build is of inference, so it is not trained"
    hint = 'plan it with objective="training"'


class ForTraining(Fault, code="E1409"):
    """The build is of a training step, which has no session."""

    message = "the build is of a training step, so it starts no session"
    hint = "build.train(data, steps=N) trains it"


class DataNotReadable(Fault, code="E1410"):
    """Training data are a path, ``module:function``, a mapping of arrays, or an iterable of microbatches."""

    message = "found a value of type {kind}; expected a path, a mapping of arrays by input, or an iterable of such mappings"
    kind: str


class TooFewMicrobatches(Fault, code="E1411"):
    """The iterable of training data ended before the steps that were asked for."""

    message = "the data ended after {count} microbatches; {steps} steps need {needed}"
    hint = "ask for fewer steps, or give more data"
    count: int
    steps: int
    needed: int


class NoTimeline(Fault, code="E1412"):
    """--trace takes a timeline that 'dnnc run --trace' or 'dnnc train' wrote. The file is something else."""

    message = "found no measured timeline: {reason}"
    hint = "'dnnc run DIR --trace' adds one to DIR/trace.json, 'dnnc train DIR --out OUT' writes OUT/trace.json"
    reason: str


class NoComparisons(Fault, code="E1413"):
    """--check takes what 'dnnc check --json' printed. The file is something else."""

    message = "found no comparisons of a check"
    hint = "write it with 'dnnc check DIR --json > FILE'"


class OptionOfWrongType(Fault, code="E1414"):
    """A keyword has a value of another type than it takes: those of ``dnnc.plan`` are in ``dnnc.PlanOptions``."""

    message = "{name} is {found}; expected {expected}"
    name: str
    found: str
    expected: str


class OptionOutOfBounds(Fault, code="E1415"):
    """``dnnc.plan`` was given a number that is too small or too large."""

    message = "{name} is {found}; expected a whole number from {least} to {most}"
    name: str
    found: str
    least: int
    most: int


class NotSizes(Fault, code="E1416"):
    """The range of sizes of a dimension has no size, a negative one, or leaves some out."""

    message = "the sizes of dimension '{name}' are {found}; expected a range of at least one size from 0 on, in steps of 1"
    hint = "range(1, 513) takes 1 to 512"
    name: str
    found: str


class NumberOutOfRange(Fault, code="E1417"):
    """A function other than ``dnnc.plan`` was given a number that is too small or too large."""

    message = "{name} is {found}; expected {expected}"
    name: str
    found: str
    expected: str


class NotFeeds(Fault, code="E1418"):
    """What a session takes for one microbatch is a mapping of arrays by input name."""

    message = "found a value of type {kind}; expected a mapping of arrays by input name"
    kind: str


class StepsAreCompared(Fault, code="E1419"):
    """A check of a build for training was given what a check of inference takes. It compares steps, on ``data``."""

    message = "of a build for training the steps are compared"
    hint = "leave it out; steps, data and seed say on what"
