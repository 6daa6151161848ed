"""Faults of the pass ``training``: what a model or an option lacks to make a training step. Codes 35.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class OldBatchNormalization(Fault, code="E3501"):
    """Before opset 14, batch normalisation of ONNX has no form that returns its new running averages."""

    message = "batch normalisation of opset {opset} cannot train"
    hint = "export the model with opset 14 or later, or freeze its statistics: batchnorm=frozen"
    opset: int


class AveragesNoWeights(Fault, code="E3502"):
    """Running averages are updated by each step, so they must be stored in the model."""

    message = "the running averages of a batch normalisation are no weights"
    hint = "freeze its statistics: batchnorm=frozen"


class NothingTrains(Fault, code="E3503"):
    """The model has no floating-point weights to train, or the options freeze all of them."""

    message = "{reason}"
    hint = "does the loss depend on floating-point initializers? --trainable and --frozen choose among them"
    reason: str


class EpsilonIsZero(Fault, code="W3504"):
    """The optimizer divides by a square root plus epsilon, and in 16 bits this epsilon is 0."""

    message = "{optimizer}'s epsilon is 0 in f16: a weight whose gradient is 0 becomes NaN ({weights})"
    hint = "export the model in f32, or use sgd or momentum"
    optimizer: str
    weights: str


class GlobMatchesNothing(Fault, code="E3505"):
    """A pattern of --trainable, --frozen or --group names no weight that can be trained."""

    message = "'{pattern}' matches {matches}"
    hint = "weights are called {weights}"
    pattern: str
    matches: str
    weights: str


class SharedVectors(Fault, code="W3506"):
    """Several ops read one weight of one dimension, which so trains as one. Few models mean that; exporters store equal tensors
    once, such as the zeros and ones that biases and scales begin with."""

    message = "several ops read one vector, which trains as one weight: {weights}"
    hint = (
        "if an exporter stored equal biases or scales once, export them apart: dnnc.from_torch, or optimize=False in torch.onnx"
    )
    weights: str


class MaskIsRead(Fault, code="E3510"):
    """A training step draws the mask of a dropout itself; here an op reads the mask that the model's own dropout returns."""

    message = "the mask of this dropout is read"
    hint = "train without it: dropout=off"


class NoDropout(Fault, code="W3511"):
    """Dropout is asked for, and nothing in the model drops."""

    message = "dropout is on, and the model has no Dropout that drops anything"
    hint = "exporters drop them; dnnc.from_torch(.., dropout=True) keeps those of single elements"


class RatioNoConstant(Fault, code="E3512"):
    """The ratio of a dropout is computed."""

    message = "its ratio {value} is no constant"
    hint = "train without it: dropout=off"
    value: str


class RatioOutOfRange(Fault, code="E3513"):
    """A dropout drops a share of its elements that is at least 0 and below 1."""

    message = "its ratio is {ratio:g}, not at least 0 and below 1"
    ratio: float


class DropsInside(Fault, code="E3514"):
    """An operator drops elements inside itself, where no mask can be put."""

    message = "{what} cannot train"
    hint = "train without it: dropout=off"
    what: str


class NoLoss(Fault, code="E3520"):
    """A training step minimises a loss, and none is named."""

    message = "a training step needs a loss"
    hint = "give {forms}"
    forms: str


class UnknownLoss(Fault, code="E3521"):
    """The text is none of the forms of a loss."""

    message = "'{text}' is no loss"
    hint = "give {forms}"
    text: str
    forms: str


class NoOutput(Fault, code="E3522"):
    """The loss is of an output that the model does not have."""

    message = "the model has no output '{name}'"
    hint = "outputs are {outputs}"
    name: str
    outputs: str


class OutputNotNamed(Fault, code="E3523"):
    """The model has several outputs, and the loss must say of which it is."""

    message = "the model has {count} outputs, and none is named"
    hint = "outputs are {outputs}"
    count: int
    outputs: str


class LossOfOutput(Fault, code="E3524"):
    """The loss cannot be of a value of this type."""

    message = "{output} is {type}"
    hint = "{expected}"
    output: str
    type: str
    expected: str


class UnknownClasses(Fault, code="E3525"):
    """Cross entropy needs the number of classes, which is an open dimension."""

    message = "the number of classes, the last dimension of {output}, {type}, is not known"
    hint = "bind it: --dim NAME=NUMBER"
    output: str
    type: str


class CrossEntropyOpset(Fault, code="E3526"):
    """The operator of cross entropy came with opset 12, and the model is of an older one."""

    message = "SoftmaxCrossEntropyLoss is of opset 12"
    hint = "export the model with opset 12 or later, or use mse"


class UnknownRank(Fault, code="E3527"):
    """The number of dimensions of the output that the loss is of is not known."""

    message = "the rank of {output} is not known"
    hint = "export the model with the shapes of its outputs"
    output: str


class PaddedTable(Fault, code="E3528"):
    """A table whose padding row gets no gradient is read by indices whose number of dimensions is not known."""

    message = "a table with a padding row is read by indices of unknown rank"
