"""Training: an inference model becomes the forward pass of a training step, whose one result is the loss.

Runs before ``canonicalize``, which makes resources of constants: only before it the model's own initializers can be told apart.
``losses`` writes the ops of the loss, ``dropout`` those of dropouts, ``groups`` reads parameter groups; this file decides what
is trained and how batch normalisation trains, and writes down what the update does (``ir.ops.recipe``).

- The entry function returns ``%loss``, a scalar, alone; ops and resources that only other results need are dropped. Labels or
  targets are further arguments.
- A resource is trained iff it has the facet ``optimizer``, whose ``size`` is the bytes of the optimizer's state. Trained are
  all floating-point initializers from which a path of floats leads to the loss, unless globs say otherwise: neither the running
  averages of batch normalisation and the weights of classes in a loss, nor what the model says is frozen, nor (but for
  models of ``from_torch``) numbers and tables that are called as exporters call theirs.
- BatchNormalization takes the statistics of its batch and names its new running averages, which ``differentiate`` keeps (of the
  variance the unbiased one, as in every framework that exports models); it stays as it is with ``batchnorm = frozen``, or where
  the model says it is frozen, unless ``batchnorm = train``.
- What the model says of gradients (facet ``training``) becomes ops (``stated``). Dropout drops nothing, or with
  ``dropout = on`` what the seed of the microbatch says, which is a further argument.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.facets import FROM_TORCH, SYNCS, OptimizerState, Sync, with_facet
from ir.core.module import Declared, Func, Module, Random, Resource, Symbol
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, Type, type_bytes
from ir.ops.grads import BATCH_NORMALIZATION, DETACH, UNBIASED
from ir.ops.loss_scale import LossScale
from ir.ops.opdefs import module_opsets
from ir.ops.operators import TRAINING_OPERAND
from ir.ops.optimizers import DEFAULTS, STATE, state_types
from ir.ops.rates import TABLE, RateSchedule
from ir.ops.recipe import Recipe
from passes.costs.learning import RECOMPUTE, RECOMPUTES
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import describe, listing, live_ops, reads, used_symbols
from passes.training.dropout import with_draws
from passes.training.faults import (
    AveragesNoWeights,
    EpsilonIsZero,
    GlobMatchesNothing,
    NothingTrains,
    OldBatchNormalization,
    SharedVectors,
)
from passes.training.groups import Group, numbers_of_group
from passes.training.losses import with_loss
from passes.training.stated import is_frozen, with_stated

_MADE_BY_EXPORTERS = re.compile(
    r"(val_|onnx::\w+_|_to_copy_?|scalar_tensor_default_?|constant_?)?\d*|.*(_output_|/Constant_?)\d*", re.IGNORECASE
)
"""Names that exporters of PyTorch give to numbers of the program's text."""
NOTHING_TRAINS = "the model has no weight to train"
_NONE = slice(0, 0)
_NEVER_TRAINED = {
    BATCH_NORMALIZATION: slice(3, 5),
    "onnx.NegativeLogLikelihoodLoss": slice(2, 3),
    "onnx.Resize": slice(1, 3),
    "onnx.SoftmaxCrossEntropyLoss": slice(2, 3),
    "onnx.Upsample": slice(1, 2),
}
"""Operands that are no parameters in torch: running averages, the weights of classes, regions and scales."""
_BUFFERS = re.compile(r".*\binv_freq")
"""Tables that PyTorch models keep beside their parameters: the frequencies of rotary embeddings."""


@dataclass(frozen=True)
class TrainingPass(Pass):
    """Add a loss and decide what is trained.

    ``loss``: ``cross-entropy:OUTPUT`` (classes are the last dimension; an input ``labels`` of integers, of the other
    dimensions, -100 is ignored), ``mse:OUTPUT`` (an input ``target``), or ``output:NAME``, a scalar of the model's own.
    ``optimizer``: ``sgd``, ``momentum``, ``adam``, ``adamw`` or ``adafactor``.
    ``clip_norm``: the most that the norm of all gradients together may be: they are scaled down to it
    (``torch.nn.utils.clip_grad_norm_``). ``rate``: the schedule of the learning rate, as text (``ir.ops.rates``), or ``rates``:
    its factor in each step. ``ema``: the decay of the moving average that is kept of each weight. ``loss_scale``: how the loss
    is scaled, as text (``ir.ops.loss_scale``); empty: it is not.
    ``groups``: parameter groups, each ``GLOB,learning-rate=NUMBER,weight-decay=NUMBER`` of one number or both; a weight is of
    the last one whose glob matches. ``no_decay``: weights of fewer than two dimensions, which are biases and the scales of
    normalisations, have no weight decay.
    ``trainable``, ``frozen``: globs of names of weights. ``batchnorm``: ``train``, ``frozen``, or each as the ``model`` says.
    ``dropout``: ``off``, or ``on``: elements are dropped at random, the same ones on any plan.
    ``sync``: how members of a mesh that hold the same weight agree on its gradient: ``all_reduce``, and each updates it whole;
    ``reduce_scatter``, and each updates a part, with its part of the optimizer's state (ZeRO-1: Rajbhandari et al., SC 2020);
    ``sfb``: members gather the factors of the gradient, where it is a product, and multiply them whole (sufficient factor
    broadcasting: Xie et al., UAI 2016); ``ps``: the sum goes through one member, the parameter server; ``auto``: of each weight
    the quickest of these but ``reduce_scatter``.
    ``recompute``: ``stage``: the forward ops of each stage run again for its gradients, so that it keeps only what it received.
    """

    name: ClassVar[str] = "training"
    loss: str = ""
    optimizer: str = "adam"
    clip_norm: float | None = None
    rate: str = ""
    rates: tuple[float, ...] = ()
    ema: float | None = None
    loss_scale: str = ""
    groups: tuple[str, ...] = ()
    no_decay: bool = False
    trainable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    batchnorm: str = "model"
    dropout: str = "off"
    sync: str = SYNCS[0]
    recompute: str = RECOMPUTES[0]

    def __post_init__(self) -> None:
        for what, value, allowed in (
            ("optimizer", self.optimizer, tuple(STATE)),
            ("batchnorm", self.batchnorm, ("model", "train", "frozen")),
            ("dropout", self.dropout, ("off", "on")),
            ("sync", self.sync, SYNCS),
            ("recompute", self.recompute, RECOMPUTES),
        ):
            if value not in allowed:
                raise ValueError(f"{what} is {' or '.join(allowed)}, not '{value}'")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip-norm is a finite number of more than 0, not {self.clip_norm:g}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(f"ema is a decay of at least 0 and less than 1, not {self.ema:g}")
        if fault := self.recipe.schedule.fault():
            raise ValueError(fault)
        for text in self.groups:
            Group.parse(text)

    @property
    def recipe(self) -> Recipe:
        """Raises ValueError for a schedule that is none."""
        schedule = RateSchedule(TABLE, values=self.rates) if self.rates else RateSchedule.parse(self.rate or "constant")
        loss_scale = LossScale.parse(self.loss_scale) if self.loss_scale else None
        return Recipe(self.clip_norm, schedule, self.ema, loss_scale)

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises UsageError for a loss or a glob that the model does not fit, InvalidInput for a model that cannot train."""
        module = with_loss(module, self.loss)
        module = with_stated(_without_unread(module))
        module = with_draws(module, context, masks=self.dropout == "on")
        func, opset = module.entry, module_opsets(module).get("onnx", 0)
        names = {value.name for op in func.ops for value in op.results} | {arg.name for arg in func.args}
        resources = module.resources
        ops = tuple(self._layer(op, opset, names, resources) for op in func.ops)
        fields = dict(func.attributes)
        if self.recompute != RECOMPUTES[0]:
            fields |= attributes(**{RECOMPUTE: self.recompute})
        fields |= self.recipe.attributes()
        module = module.replace(func, replace(func, ops=ops, attributes=tuple(sorted(fields.items()))))
        return self._marked(module, context)

    def _layer(self, op: Op, opset: int, names: set[str], resources: Mapping[str, Resource]) -> Op:
        """An op as it runs in training."""
        if op.name in TRAINING_OPERAND and len(op.operands) > TRAINING_OPERAND[op.name]:
            return replace(op, operands=op.operands[: TRAINING_OPERAND[op.name]])
        kept = self.batchnorm == "frozen" or (self.batchnorm == "model" and is_frozen(op.facets))
        if op.name != BATCH_NORMALIZATION or kept:
            return op
        if opset < 14:
            raise InvalidInput(OldBatchNormalization(opset), where=describe(op))
        if any(name[:1] != "@" for name in op.operands[3:5]):
            raise InvalidInput(AveragesNoWeights(), where=describe(op))
        fields = dict(op.attributes)
        if not op.get("training_mode", 0):
            fields |= attributes({"training_mode": 1, UNBIASED: 1})
        made = list(op.results[:1])
        for number, average in enumerate(op.operands[3:5], 1):
            known = op.results[number] if number < len(op.results) else Value("")
            made.append(known if known.name else Value(unique(f"%{average[1:]}.new", names), resources[average].type))
        return replace(op, results=tuple(made), attributes=tuple(sorted(fields.items())))

    # -- what is trained -----------------------------------------------------------------------------------------------

    def _marked(self, module: Module, context: PassContext) -> Module:
        """The module with the facet on what is trained."""
        reached = _reached(module.entry)
        untrained = {name for op in module.entry.ops for name in op.operands[_NEVER_TRAINED.get(op.name, _NONE)]}
        floats = [r for r in module.of_type(Resource) if isinstance(r.type, TensorType) and r.type.dtype.is_float]
        candidates = [r for r in floats if r.name in reached and r.name not in untrained]
        self._check_globs(floats, candidates)
        generated = any(isinstance(resource.data, Random | Declared) for resource in candidates)
        producers = (str(attribute.value) for key, attribute in module.attributes if key == "producer")
        guessed = not any(producer.startswith(FROM_TORCH) for producer in producers)
        chosen = {resource.name for resource in candidates if self._trains(resource, generated, guessed)}
        if not chosen:
            raise InvalidInput(NothingTrains(NOTHING_TRAINS), where=module.entry.name)
        narrow = [r.name for r in floats if r.name in chosen and isinstance(r.type, TensorType) and r.type.dtype is DType.F16]
        if narrow and "epsilon" in DEFAULTS[self.optimizer]:
            context.sink.warn(EpsilonIsZero(self.optimizer, listing(narrow)), where="--optimizer")
        read = Counter(name for op in module.entry.ops for name in set(op.operands))
        shared = [r.name for r in floats if r.name in chosen and read[r.name] > 1 and _is_vector(r.type)]
        if guessed and shared:
            context.sink.warn(SharedVectors(listing(shared)), where=module.name)
        symbols: list[Symbol] = [
            self._trained(symbol) if isinstance(symbol, Resource) and symbol.name in chosen else symbol
            for symbol in module.symbols
        ]
        context.count(self.name, trained=len(chosen), frozen=len(candidates) - len(chosen))
        return replace(module, symbols=tuple(symbols))

    def _trains(self, resource: Resource, generated: bool, guessed: bool) -> bool:
        """``generated``: whether the model's weights are random or declared. ``guessed``: whether a name tells of tables and
        numbers that an exporter made initializers."""
        name = resource.name[1:]
        if any(fnmatchcase(name, glob) for glob in self.frozen):
            return False
        if self.trainable:
            return any(fnmatchcase(name, glob) for glob in self.trainable)
        assert isinstance(resource.type, TensorType)
        if is_frozen(resource.facets) or (generated and not isinstance(resource.data, Random | Declared)):
            return False
        if not guessed:
            return True
        return not _BUFFERS.fullmatch(name) and (resource.type.elements != 1 or not _MADE_BY_EXPORTERS.fullmatch(name))

    def _check_globs(self, floats: Sequence[Resource], candidates: Sequence[Resource]) -> None:
        """Raises UsageError for a glob that matches no weight."""
        problems = []
        groups = tuple(Group.parse(text).glob for text in self.groups)
        for option, globs in (("trainable", self.trainable), ("frozen", self.frozen), ("group", groups)):
            for glob in globs:
                if any(fnmatchcase(resource.name[1:], glob) for resource in candidates):
                    continue
                others = [r.name[1:] for r in floats if fnmatchcase(r.name[1:], glob)]
                if others:
                    matches = f"{listing(others)}, through which no gradient passes"
                else:
                    matches = "no floating-point weight of the model"
                close = difflib.get_close_matches(glob, [r.name[1:] for r in candidates], n=3, cutoff=0.4)
                names = listing(close or [r.name[1:] for r in candidates])
                problems.append(GlobMatchesNothing(glob, matches, names).at(f"--{option}"))
        if problems:
            raise UsageError(problems)

    def _trained(self, resource: Resource) -> Resource:
        assert isinstance(resource.type, TensorType)
        size = sum(type_bytes(type_) or 0 for type_ in state_types(self.optimizer, resource.type).values())
        if self.ema is not None:
            size += type_bytes(resource.type) or 0
        numbers = numbers_of_group(resource, map(Group.parse, self.groups), no_decay=self.no_decay)
        facets = with_facet(resource.facets, OptimizerState(self.optimizer, size, **numbers))
        return replace(resource, facets=facets if self.sync == SYNCS[0] else with_facet(facets, Sync(self.sync)))


def _is_vector(type_: Type) -> bool:
    """Whether a weight is a bias, or a scale, of several elements."""
    return isinstance(type_, TensorType) and len(type_.shape or ()) == 1 and type_.elements != 1


def _reached(func: Func) -> set[str]:
    """Names from which a path of floats leads to the result."""
    steps = {
        value.name
        for op in func.ops
        for value in op.results
        if isinstance(value.type, TensorType) and not value.type.dtype.is_float
    }
    reached = {value.name for value in func.results}
    for op in reversed(func.ops):
        if op.name != DETACH and any(value.name in reached for value in op.results):
            reached.update(name for name in reads(op) if name not in steps)
    return reached


def _without_unread(module: Module) -> Module:
    """The module without what the loss does not need; arguments that nothing reads go as well."""
    func = module.entry
    results = {value.name for value in func.results}
    ops = live_ops(func.ops, results)
    read = results.union(*map(reads, ops))
    module = module.replace(func, replace(func, args=tuple(arg for arg in func.args if arg.name in read), ops=ops))
    used = used_symbols(module)
    return replace(module, symbols=tuple(s for s in module.symbols if not isinstance(s, Resource) or s.name in used))


__all__ = ["NOTHING_TRAINS", "TrainingPass", "with_stated"]
