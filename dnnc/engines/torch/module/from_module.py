"""``from_torch``: exports a PyTorch module, compares the model with the module, and only then writes the file."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from dnnc.engines.torch.faults import FileNotWritten
from dnnc.engines.torch.module.agreement import CANNOT_TRAIN, IN_INFERENCE, Difference, case_of, disagreement
from dnnc.engines.torch.module.exporting import as_it_was, exported, without_noise
from dnnc.engines.torch.module.faults import NotArguments, OtherArguments, OtherModel
from dnnc.engines.torch.module.places import custom_functions, described
from dnnc.engines.torch.module.randomness import refuse_draws, restored
from dnnc.engines.torch.module.rewriting import Rewriting
from dnnc.onnx.importer.model_file import save_model
from ir.core.diagnostics import DnncError, InvalidInput, UsageError

_TRIED = 24
"""To find the part that is exported otherwise, at most so many parts of a module are compared alone."""


AGREES = Difference()


def from_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    path: str | Path = "model.onnx",
    *,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    dropout: bool = False,
) -> Path:
    """Write ``module`` as the ONNX file ``path``, which ``dnnc compile`` reads; returns the path.

    ``example_inputs``: the arguments of ``module.forward``, in the sizes of one microbatch: a sequence of them, a mapping from
    their names, or the tensor alone where there is one. ``dynamic_shapes`` names dimensions that ``dnnc compile --dim`` binds
    later; it is that of ``torch.export``.

    The module is exported in its present mode, which does not change. ``dnnc compile --objective training`` trains the model
    as PyTorch trains the module: parts in the mode of inference stay in it, and what requires no gradient or is detached is
    not trained. Without ``--objective training`` the model infers. Noise (uniform, normal, exponential and Bernoulli numbers
    of torch, ``gumbel_softmax``) is drawn anew in each run, and in training by the seed of ``dnnc train``. The model has no
    dropouts. With ``dropout`` it has those that drop single elements, and ``dnnc compile --dropout on`` applies them.

    The model is compared with the module on the given arguments and on random ones: the results of inference, and the gradients
    and running averages of a training step. The file appears only if they agree.

    Raises UsageError for arguments of another kind and where a package of the extra ``train`` is missing, and InvalidInput
    where the module cannot be exported or the model computes or trains otherwise than the module."""
    if not isinstance(example_inputs, torch.Tensor | Sequence | Mapping):
        raise UsageError(NotArguments(type(example_inputs).__name__), where=type(module).__name__)
    target = Path(path)
    one = isinstance(example_inputs, torch.Tensor)
    kwargs = _in_order(module, example_inputs) if isinstance(example_inputs, Mapping) else {}
    args = (example_inputs,) if one else () if isinstance(example_inputs, Mapping) else tuple(example_inputs)
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(OtherArguments(str(error)), where=type(module).__name__) from None
    with restored():
        made = exported(module, args, kwargs, dynamic_shapes=dynamic_shapes, dropout=dropout)
        refuse_draws(module, lambda: _called(module, args, kwargs))  # behind the export, which refuses what changes weights
        try:
            with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
                files = save_model(made.model, Path(folder, target.name))
                quiet = without_noise(made.model)
                compared = Path(folder, target.name if quiet is made.model else f"quiet.{target.name}")
                if quiet is not made.model:
                    save_model(quiet, compared)
                try:
                    told = disagreement(case_of(module, made, args, kwargs), compared)
                except DnncError as error:  # of the importer, for a file that will not be there
                    raise _of_module(error, compared, module) from error
                if told != AGREES:
                    raise _refusal(module, args, kwargs, told)
                for name in files:
                    os.replace(Path(folder, name), target.parent / name)
        except OSError as error:
            raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(target)) from error
    return target


def _of_module(error: DnncError, file: Path, module: torch.nn.Module) -> DnncError:
    """``error`` with the module in place of the file that its model was written to."""
    name = described(module, "")
    return type(error)([replace(one, where=one.where.replace(str(file), name)) for one in error.diagnostics])


def _in_order(module: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
    """The named arguments in the order of ``forward``: the exporter makes the model's inputs in that order."""
    order = [name for name in inspect.signature(module.forward).parameters if name in named]
    return {name: named[name] for name in (*order, *(name for name in named if name not in order))}


# -- which part it is ---------------------------------------------------------------------------------------------------


def _refusal(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], told: Difference) -> InvalidInput:
    """The error for a model that is not the module: it names the innermost part that is exported otherwise."""
    path, part, args, kwargs, told = _innermost(module, args, kwargs, told)
    made = _called(part, args, kwargs)
    functions = custom_functions(one for one in tree_flatten(made)[0] if isinstance(one, torch.Tensor))
    where = ", ".join([described(part, path), *functions])
    hint = _cure(part, args, kwargs, told, bool(functions))
    return InvalidInput(OtherModel(told.text, hint), where=where)


def _cure(part: torch.nn.Module, args: Any, kwargs: Any, told: Difference, functions: bool) -> str:
    """What a person can do. ``.eval()`` is proposed for a difference in inference only where it was tried, and helps."""
    if IN_INFERENCE in told.text:
        with as_it_was(part):
            helps = part.training and _alone(part.eval(), args, kwargs) == AGREES
        return "call .eval() on it first, or let forward not ask self.training" if helps else "write it with other operators"
    only_infers = "for a model that only infers, call module.eval().requires_grad_(False) first"
    if told.hint:
        return f"{told.hint}; {only_infers}"
    if getattr(part, "scale_grad_by_freq", False):
        return f"leave scale_grad_by_freq out; {only_infers}"
    if functions:
        return f"write it with operators of torch in place of the autograd.Function; {only_infers}"
    if part._backward_hooks or part._backward_pre_hooks:
        return f"remove its backward hooks; {only_infers}"
    if CANNOT_TRAIN in told.text:
        return f"does backward() run in PyTorch with these arguments? If not, mend forward; {only_infers}"
    return f"write it with other operators, without hooks that change gradients; {only_infers}"


def _called(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """The result of the module on copies of the arguments, which forward may change in place."""
    with as_it_was(module), torch.enable_grad():
        return module(*_detached(args), **_detached(kwargs))


def _innermost(
    module: torch.nn.Module, args: Any, kwargs: Any, told: Difference
) -> tuple[str, torch.nn.Module, Any, Any, Difference]:
    """The smallest part of the module that is exported otherwise when exported alone: its path, the part, its arguments, its
    named arguments, and how it differs. The whole module where no part is."""
    path, tried, part = "", 0, module
    while True:
        for name, child, given, named in _calls(part, args, kwargs):
            if tried >= _TRIED:
                continue
            tried += 1
            found = _alone(child, given, named)
            if found is not None and found != AGREES:
                path, part, args, kwargs, told = f"{path}.{name}".strip("."), child, given, named, found
                break
        else:
            return path, part, args, kwargs, told


def _calls(module: torch.nn.Module, args: Any, kwargs: Any) -> Iterator[tuple[str, torch.nn.Module, Any, Any]]:
    """The first call of each child of ``module``: its path, the child, its arguments and its named arguments."""
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
    """The children with their names. A list or dictionary of modules is never called, so its children stand in its place."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from ((f"{name}.{inner}", one) for inner, one in _below(child))
        else:
            yield name, child


def _detached(value: Any) -> Any:
    return tree_map(lambda one: one.detach().clone() if isinstance(one, torch.Tensor) else one, value)


def _alone(child: torch.nn.Module, args: Any, kwargs: Any) -> Difference | None:
    """How a part differs from its model when exported alone; None where it cannot be exported alone."""
    if not any(isinstance(one, torch.Tensor) for one in tree_flatten((args, kwargs))[0]):
        return None
    try:
        made = exported(child, args, kwargs)
        with tempfile.TemporaryDirectory(prefix="dnnc-") as folder:
            file = Path(folder, "part.onnx")
            save_model(without_noise(made.model), file)
            return disagreement(case_of(child, made, args, kwargs, of_inputs=True), file)
    except (InvalidInput, UsageError):
        return None
