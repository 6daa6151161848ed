"""Faults of ``from_torch`` and ``into_torch``: why a module of PyTorch has no model, and weights no module. Codes 15.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoOnnxscript(Fault, code="E1501"):
    """The exporter of PyTorch needs the package onnxscript, which is not installed."""

    message = "from_torch needs onnxscript"
    hint = "pip install 'dnnc[train]'"


class NotExported(Fault, code="E1502"):
    """The exporter of PyTorch raised an error: forward does what it cannot trace, or fails by itself."""

    message = "torch.onnx cannot export {module}: {reason}{place}"
    hint = "{advice}"
    module: str
    reason: str
    place: str
    advice: str


class CumulativeAverage(Fault, code="E1503"):
    """A batch normalisation averages over all batches since the start, so it needs their number."""

    message = "batch normalisation with momentum=None counts its batches, and no operator of ONNX keeps that count"
    hint = "give it a momentum, such as 0.1, or {infer}"
    infer: str


class DrawsRandom(Fault, code="E1504"):
    """Forward draws random numbers; the model would draw others, or the same at each call."""

    message = "{operator} draws random numbers, which a model file cannot keep as PyTorch draws them"
    hint = "{advice}, or, where it draws in training alone, call .eval() first"
    operator: str
    advice: str


class ChangesWeight(Fault, code="E1505"):
    """Forward writes to a weight or a buffer of the module; a model file has no such state but the averages of batch norm."""

    message = "forward changes '{name}' from batch to batch, which a model file cannot keep"
    hint = "{advice}, or, where it changes in training alone, call .eval() first"
    name: str
    advice: str


class NotTraced(Fault, code="E1506"):
    """Forward computes a tensor outside of PyTorch, so the exporter saw no operators for it."""

    message = "forward computes the tensor '{name}' from its arguments in a way that PyTorch cannot trace"
    hint = "compute it with functions of torch, not by way of numpy or lists"
    name: str


class OtherModel(Fault, code="E1508"):
    """The exported model computed other values or gradients than the module, on the arguments that were given."""

    message = "the exported model is not the module: {difference}"
    hint = "{advice}"
    difference: str
    advice: str


class DrawsElsewhere(Fault, code="E1509"):
    """Forward calls a random generator of Python or numpy, which no exporter sees."""

    message = "forward draws random numbers of {generators}: the model would hold one draw as a constant"
    hint = "{advice}"
    generators: str
    advice: str


class DropsGroups(Fault, code="E1510"):
    """A dropout that drops whole channels, rows or signs."""

    message = "{function} drops other things than single elements, which no operator of ONNX does"
    hint = "put torch.nn.Dropout in its place, or leave dropouts out (dropout=False)"
    function: str


class ChangesRows(Fault, code="E1511"):
    """``max_norm`` of a bag of embeddings rescales rows of its table whenever they are read."""

    message = "embedding_bag with max_norm changes the rows that it reads, which a model file cannot keep"
    hint = "leave max_norm out, or scale the table once before the export"


class FormRefused(Fault, code="E1518"):
    """A form of a layer or a loss that operators of ONNX do not have."""

    message = "{form} cannot be exported: {reason}"
    hint = "{advice}"
    form: str
    reason: str
    advice: str


class WeightUnknown(Fault, code="E1512"):
    """The weights are of another module: one of them has no parameter of its name."""

    message = "it holds a weight '{weight}', which the module lacks"
    hint = "{advice}"
    weight: str
    advice: str


class WeightShape(Fault, code="E1513"):
    """The weights are of another module: one of them has another shape than the parameter of its name."""

    message = "its weight '{weight}' has the shape {shape}, that of the module {expected}"
    hint = "{advice}"
    weight: str
    shape: str
    expected: str
    advice: str


class NoWeight(Fault, code="E1514"):
    """The weights are of another module: none has the name of a parameter."""

    message = "it holds no weight of the module"
    hint = "{advice}"
    advice: str


class ForwardFails(Fault, code="E1515"):
    """PyTorch itself raised an error when forward was called: the arguments do not suit the module."""

    message = "forward of {module} fails in PyTorch: {reason}{place}"
    hint = "correct the arguments or forward: module(*inputs) raises the same error"
    module: str
    reason: str
    place: str


class NoAverages(Fault, code="E1516"):
    """The moving averages of weights are asked for, and the checkpoint has none."""

    message = "it holds no moving averages of weights"
    hint = "compile with --ema DECAY for a plan that keeps them"


class OptimizerRefused(Fault, code="E1517"):
    """An optimizer of PyTorch updates weights by a rule that no plan has, or has made steps already."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str


class NotArguments(Fault, code="E1519"):
    """The example arguments of a module are a tensor, a sequence of arguments, or a mapping from their names."""

    message = (
        "found example arguments of type {kind}; expected a tensor, a sequence of arguments, or a mapping from their names"
    )
    kind: str


class OtherArguments(Fault, code="E1520"):
    """The example arguments of a module are not those of its forward: too many, too few, or of another name."""

    message = "its forward has other arguments: {reason}"
    reason: str
