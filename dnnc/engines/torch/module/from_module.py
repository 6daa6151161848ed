"""From a PyTorch module to a model file that compiles, compared with the module before it is there."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch.utils._pytree import tree_flatten, tree_map

from dnnc.engines.torch.module.agreement import case_of, disagreement
from dnnc.engines.torch.module.exporting import as_it_was, exported
from dnnc.engines.torch.module.places import custom_functions, described
from dnnc.engines.torch.module.randomness import refuse_draws, restored
from dnnc.engines.torch.module.rewriting import Rewriting
from ir.core.diagnostics import InvalidInput, UsageError

IN_ONE_FILE = 1 << 30
"""Bytes of weights from which these lie in a file of their own beside the model: protobuf ends at 2 GiB."""
_TRIED = 24
"""Parts of a module that are compared alone, at most, to find the one that is exported otherwise."""


def from_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    path: str | Path = "model.onnx",
    *,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    dropout: bool = False,
) -> Path:
    """Write ``module`` as the ONNX file ``path``, which ``dnnc compile`` reads; returns the path.

    ``example_inputs``: the arguments of ``module.forward``, or the only one, of the sizes of one microbatch; a mapping has them
    by their names. ``dynamic_shapes`` names dimensions that ``dnnc compile --dim`` binds later, as ``torch.export`` spells it.
    The module is exported in the mode in which it is and left so: ``dnnc compile --objective training`` trains it as PyTorch
    does. What is in the mode of inference, requires no gradient or is detached stays so; without ``--objective training`` batch
    normalisation and dropouts infer. Dropouts are left out; with ``dropout`` those that drop single elements stay in the model:
    they drop nothing but with ``dnnc compile --dropout on``.

    Before the file is there, it is compared with the module on the given and on random arguments: what it infers, and the
    gradients and running averages of a step.

    Raises UsageError where a package of the extra ``train`` is missing, InvalidInput where the module cannot be exported, or
    the model would infer or train otherwise than the module."""
    target = Path(path)
    one = isinstance(example_inputs, torch.Tensor)
    kwargs = _in_order(module, example_inputs) if isinstance(example_inputs, Mapping) else {}
    args = (example_inputs,) if one else () if isinstance(example_inputs, Mapping) else tuple(example_inputs)
    with restored():
        made = exported(module, args, kwargs, dynamic_shapes=dynamic_shapes, dropout=dropout)
        refuse_draws(module, lambda: _called(module, args, kwargs))  # behind the export, which refuses what changes weights
        try:
            with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
                files = _write(made.model, Path(folder, target.name))
                if told := disagreement(case_of(module, made, args, kwargs), Path(folder, target.name)):
                    raise _refusal(module, args, kwargs, told)
                for name in files:
                    os.replace(Path(folder, name), target.parent / name)
        except OSError as error:
            raise InvalidInput(f"it cannot be written: {error.strerror or error}", where=str(target)) from error
    return target


def _in_order(module: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the order of ``forward``, in which the exporter has them."""
    order = [name for name in inspect.signature(module.forward).parameters if name in named]
    return {name: named[name] for name in (*order, *(name for name in named if name not in order))}


def _write(model: onnx_ir.Model, file: Path) -> list[str]:
    """Writes the model; the names of its files. Large weights lie in ``NAME.data``, which is to appear first."""
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    beside = f"{file.name}.data" if weights >= IN_ONE_FILE else None
    onnx_ir.save(model, file, external_data=beside)
    return [*filter(None, (beside,)), file.name]


# -- which part it is ---------------------------------------------------------------------------------------------------


def _refusal(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], told: str) -> InvalidInput:
    path, part, args, kwargs, told = _innermost(module, args, kwargs, told)
    made = _called(part, args, kwargs)
    functions = custom_functions(one for one in tree_flatten(made)[0] if isinstance(one, torch.Tensor))
    where = ", ".join([described(part, path), *functions])
    if functions:
        hint = "write it with operators whose gradients are PyTorch's own"
    elif part.training and "as it infers" in told:
        hint = "let forward not ask self.training, or call .eval() on it first"
    else:
        hint = "write it with other operators, without hooks"
    hint += "; for a model that only infers, module.eval().requires_grad_(False) first"
    return InvalidInput(f"the exported model is another: {told}", where=where, hint=hint)


def _called(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """The result of the module on copies of the arguments, which forward may change in place."""
    with as_it_was(module), torch.enable_grad():
        return module(*_detached(args), **_detached(kwargs))


def _innermost(module: torch.nn.Module, args: Any, kwargs: Any, told: str) -> tuple[str, torch.nn.Module, Any, Any, str]:
    """The smallest part of the module that by itself is exported otherwise, its path, and how."""
    path, tried, part = "", 0, module
    while True:
        for name, child, given, named in _calls(part, args, kwargs):
            if tried >= _TRIED:
                continue
            tried += 1
            if found := _alone(child, given, named):
                path, part, args, kwargs, told = f"{path}.{name}".strip("."), child, given, named, found
                break
        else:
            return path, part, args, kwargs, told


def _calls(module: torch.nn.Module, args: Any, kwargs: Any) -> Iterator[tuple[str, torch.nn.Module, Any, Any]]:
    """The first call of each part one below ``module``, in order."""
    found: dict[str, tuple[str, torch.nn.Module, Any, Any]] = {}
    hooks = []

    def noted(name: str) -> Any:
        def note(part: torch.nn.Module, given: Any, named: Any) -> None:
            found.setdefault(name, (name, part, _detached(given), _detached(named)))

        return note

    for name, child in _below(module):
        hooks.append(child.register_forward_pre_hook(noted(name), with_kwargs=True))
    try:
        with as_it_was(module), Rewriting(dropout=False, exporting=False):
            module(*_detached(args), **_detached(kwargs))
    finally:
        for hook in hooks:
            hook.remove()
    yield from found.values()


def _below(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The children; of lists and dictionaries of modules, which are never called, theirs."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from ((f"{name}.{inner}", one) for inner, one in _below(child))
        else:
            yield name, child


def _detached(value: Any) -> Any:
    return tree_map(lambda one: one.detach().clone() if isinstance(one, torch.Tensor) else one, value)


def _alone(child: torch.nn.Module, args: Any, kwargs: Any) -> str:
    """How a part by itself is exported otherwise; empty where it is not, or where it cannot be told."""
    if not any(isinstance(one, torch.Tensor) for one in tree_flatten((args, kwargs))[0]):
        return ""
    try:
        made = exported(child, args, kwargs)
        with tempfile.TemporaryDirectory(prefix="dnnc-") as folder:
            file = Path(folder, "part.onnx")
            _write(made.model, file)
            return disagreement(case_of(child, made, args, kwargs, of_inputs=True), file)
    except (InvalidInput, UsageError):
        return ""


__all__ = ["from_torch"]
