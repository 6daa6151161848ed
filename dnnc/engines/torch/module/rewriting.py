"""Calls of torch that are replaced while a module is exported: dropouts, and what the exporter would lose or get wrong.

``Rewriting`` is a mode of torch: inside it each call of a function of torch comes here first. Both the export and the run of
the module that the model is compared with (``dnnc.engines.torch.module.agreement``) use it. ``guarded`` records where a
person's code turns gradients off, such as by ``no_grad``. Torch itself cannot say so: the exporter traces with gradients off.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from dnnc.engines.torch.module.faults import DropsGroups, FormRefused
from dnnc.engines.torch.module.noise import DRAWS
from dnnc.engines.torch.module.places import is_persons
from dnnc.engines.torch.module.simpler import SIMPLER, bagged, smoothed, takes_bags
from ir.core.diagnostics import InvalidInput

_ELEMENTS = ("dropout", "dropout_")
_DROPOUTS = (
    *_ELEMENTS,
    *("alpha_dropout", "alpha_dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"),
    *("feature_alpha_dropout_", "feature_dropout", "feature_dropout_"),
)
NOISE = ("randn", "randn_like", "rand", "rand_like")
"""Functions of torch that draw noise, which a model keeps."""
DRAWN = 0.5
"""What stands for each number of noise where module and model are compared."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_AT = 4
"""Where ``dropout_p`` stands among the arguments of ``scaled_dot_product_attention``."""


class Rewriting(TorchFunctionMode):
    """``dropout``: keep dropouts; without it all drop nothing, also those inside attention and recurrent layers. ``exporting``:
    write label smoothing, shares of classes, bags of embeddings, distances and the like in simpler operators, detach
    ``Tensor.data`` and what is computed under ``no_grad``, and make no dropout in place. Without it all noise is ``DRAWN``."""

    def __init__(self, *, dropout: bool, exporting: bool) -> None:
        super().__init__()
        self.dropout, self.exporting = dropout, exporting

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        found = self._called(func, tuple(args), dict(kwargs or {}))
        if self.exporting and _SWITCHES and not _SWITCHES[-1]:
            return tree_map(_detached, found)
        return found

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if self.exporting and func == _DATA:
            return args[0].detach()  # the exporter would take it for a constant
        if not self.exporting and name in NOISE:
            return torch.full_like(func(*args, **kwargs), DRAWN)
        if name in DRAWS:
            return DRAWS[name](_kept if self.exporting else _stated, *args, **kwargs)
        if not self.dropout:
            if name in _DROPOUTS:
                return args[0] if args else kwargs["input"]
            if func is functional.multi_head_attention_forward:
                args, kwargs = _with(func, args, kwargs, "training", False)
            elif func is functional.scaled_dot_product_attention:
                args, kwargs = (*args[:_AT], *((0.0,) if len(args) > _AT else ()), *args[_AT + 1 :]), {**kwargs}
                kwargs.pop("dropout_p", None)
            elif name in _RECURRENT:  # its probability is the one number of floats among the arguments
                args = tuple(0.0 if isinstance(one, float) else one for one in args)
        elif self.exporting and name in _DROPOUTS and name not in _ELEMENTS and _drops(func, args, kwargs):
            raise InvalidInput(DropsGroups(name))
        elif self.exporting and func is functional.dropout:
            args, kwargs = _with(func, args, kwargs, "inplace", False)  # one in place is exported as random numbers
        if self.exporting and func is functional.cross_entropy:
            given = inspect.signature(func).bind(*args, **kwargs)
            given.apply_defaults()
            if given.arguments["label_smoothing"] or given.arguments["target"].is_floating_point():
                return smoothed(**given.arguments)
        if self.exporting and func is functional.embedding_bag:
            given = inspect.signature(func).bind(*args, **kwargs)
            given.apply_defaults()
            if takes_bags(**given.arguments):
                return bagged(**given.arguments)
        if self.exporting and name == "_pack_padded_sequence":
            raise InvalidInput(
                FormRefused(
                    "a packed sequence", "its size depends on the lengths", "run the layer on padded sequences, and mask"
                )
            )
        if self.exporting and name == "lstm" and args[1][0].shape[-1] != args[1][1].shape[-1]:
            reason, advice = "no operator of ONNX has projected states", "leave proj_size out, with a Linear behind the layer"
            raise InvalidInput(FormRefused("an LSTM with proj_size", reason, advice))
        if self.exporting and func is torch.autograd.grad:
            reason, advice = "a model file has no gradients of gradients", "write the derivative with operators of torch"
            raise InvalidInput(FormRefused("torch.autograd.grad in forward", reason, advice))
        if self.exporting and name in SIMPLER:
            return SIMPLER[name](*args, **kwargs)
        return func(*args, **kwargs)


def _kept(draw: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return draw(like)


def _stated(draw: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, DRAWN)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Inside, ``Rewriting`` knows where a person's code enters ``no_grad``, ``inference_mode``, ``enable_grad`` or
    ``set_grad_enabled``. Torch's own code is not regarded: checkpoints turn gradients off and compute again with them."""
    kinds = (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled)
    own = [(kind, {name: getattr(kind, name) for name in ("__enter__", "__exit__")}) for kind in kinds]
    try:
        for kind, before in own:
            _put(kind, {"__enter__": _entered(kind, before["__enter__"]), "__exit__": _left(before["__exit__"])})
        yield
    finally:
        for kind, before in own:
            _put(kind, before)
        _SWITCHES.clear()


def _put(kind: type, methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(kind, name, method)


_SWITCHES: list[bool] = []
"""For each such context that a person's code is in, the innermost last: whether it turns gradients on."""
_ENTERED: set[int] = set()


def _entered(kind: Any, enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def entered(self: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_filename.endswith("_contextlib.py") and frame.f_back:  # a decorated function
            frame = frame.f_back
        if is_persons(frame.f_code.co_filename):
            on = kind is torch.enable_grad or (kind is torch.set_grad_enabled and self.mode)
            _SWITCHES.append(bool(on if kind is not torch.inference_mode else not self.mode))
            _ENTERED.add(id(self))
        return enter(self)

    return entered


def _left(leave: Callable[..., Any]) -> Callable[..., Any]:
    def left(self: Any, *error: Any) -> Any:
        if id(self) in _ENTERED:
            _ENTERED.discard(id(self))
            _SWITCHES.pop()
        return leave(self, *error)

    return left


def _drops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a dropout, whose arguments are ``(input, p, training)``, may drop anything."""
    given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
    if not given.get("training", func is not functional.alpha_dropout and func is not functional.feature_alpha_dropout):
        return False
    return bool(given.get("p", 0.5))


def _with(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = inspect.signature(func).bind(*args, **kwargs)
    given.arguments[key] = value
    return given.args, given.kwargs


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
