"""Faults of the pass ``differentiate``. Codes 36.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoGradientArrives(Fault, code="E3602"):
    """The loss depends on none of the weights that are to be trained, or only over ops whose gradient is zero."""

    message = "no gradient of {loss} reaches a trained weight"
    hint = "does the loss depend on the weights?"
    loss: str


class WeightNotTrained(Fault, code="W3603"):
    """The loss does not depend on this weight; it keeps its value."""

    message = "no gradient of {loss} reaches {weight}: it is not trained"
    loss: str
    weight: str


class SyncOfMesh(Fault, code="W3604"):
    """A way to sum gradients that only members of a mesh have is asked of replicas of a stage."""

    message = "replicas of a stage each update all of its weights, with sums by all-reduce: {methods} is of a mesh"
    hint = "--mesh splits the batch over members: --strategy data"
    methods: str


class UnknownOptimizer(Fault, code="E3605"):
    """A weight is marked with an optimizer that dnnc does not have."""

    message = "unknown optimizer '{optimizer}'"
    hint = "known: {known}"
    optimizer: str
    known: tuple[str, ...]


class NotOfOptimizer(Fault, code="E3606"):
    """A number is given that the optimizer does not use."""

    message = "{optimizers} has no '{number}'"
    optimizers: str
    number: str


class BackwardTwice(Fault, code="E3607"):
    """The program was differentiated before."""

    message = "the program has ops of a backward pass already"
    hint = "run 'differentiate' once"


class NotOneLoss(Fault, code="E3608"):
    """A program that is differentiated returns its loss and nothing else."""

    message = "the entry function returns {results} values, not one loss"
    hint = "run 'training' first: it adds the loss"
    results: int


class LossNoScalar(Fault, code="E3609"):
    """The loss is one float."""

    message = "the loss {loss} is {type}, not a scalar of floats"
    hint = "run 'training' first: it adds the loss"
    loss: str
    type: str


class NoGradient(Fault, code="E3610"):
    """This form of an operator has no gradient rule, or the rule needs a type or a constant that is not known."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str


class NoBody(Fault, code="E3611"):
    """A gradient passes an operator that has no rule and cannot be written as simpler ones."""

    message = "a gradient passes {op}, which {reason}"
    hint = "freeze the weights before it (--frozen), or export the model with simpler operators"
    op: str
    reason: str


class WrongRecipe(Fault, code="E3612"):
    """An attribute of the entry function says what no update can do: a norm, a schedule, or a decay out of range."""

    message = "{reason}"
    hint = "the pass 'training' writes these attributes"
    reason: str
