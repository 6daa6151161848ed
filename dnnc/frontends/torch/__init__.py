"""From a PyTorch module to a model file that compiles, and from trained weights back into the module.

``from_torch`` exports by ``torch.onnx.export`` and leaves the graph as the exporter wrote it: its optimiser would merge
batch normalisation into convolutions and fold transposes into weights, and the weights would no longer be those of the module.

Invariants of the file: a parameter that requires a gradient is an initializer under its name in ``state_dict``, of tied ones
under one of their names; the running averages of batch normalisation are initializers too. Everything else that the
module holds, other buffers, tensors that are plain attributes and parameters that require no gradient, is an
``onnx.Constant``: training does not change it. No other value is called like a weight: where ``forward`` has an argument of
such a name, the input of the model is called otherwise (``x_1``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir
import torch

from ir.diagnostics import InvalidInput, UsageError
from ir.grads import STATE
from ir.names import unique

IN_ONE_FILE = 1 << 30
"""Bytes of weights from which these lie in a file of their own beside the model: protobuf ends at 2 GiB."""
_RUNNING = ("running_mean", "running_var")
_STATES = frozenset(state for states in STATE.values() for state in states)
_OTHER = "is it of another module?"


def from_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    path: str | Path = "model.onnx",
    *,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    dropout: bool = False,
) -> Path:
    """Write ``module`` as the ONNX file ``path``, which ``dnnc compile`` reads; returns the path.

    ``example_inputs``: the arguments of ``module.forward``, or the only one, of the sizes of one microbatch.
    ``dynamic_shapes`` names dimensions that ``dnnc compile --dim`` binds later, as ``torch.export`` spells it. The module is
    exported as it infers and is left in the mode in which it was; ``dnnc compile --objective training`` brings batch
    normalisation back. With ``dropout`` each ``torch.nn.Dropout`` stays in the model: it drops nothing but with ``dnnc compile
    --dropout on``. What drops elements otherwise (``Dropout2d``, the weights of ``MultiheadAttention``) does not stay.

    Raises UsageError where a package of the extra ``train`` is missing, InvalidInput where the module cannot be exported."""
    target = Path(path)
    with _inferring(module, dropout):
        inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
        program = _exported(module, inputs, dynamic_shapes)
    model = program.model
    _tell_apart(model)
    _fix(model, _trained_names(module))
    _quiet(model)
    model.producer_name = model.producer_name or "pytorch"
    _write(model, target)
    return target


def into_torch(module: torch.nn.Module, checkpoint: str | Path) -> tuple[str, ...]:
    """Load the weights of a checkpoint that ``dnnc train`` wrote into ``module``, whose model ``from_torch`` exported.

    What training did not change keeps what it holds: buffers, frozen weights, those that the loss does not depend on. Returns
    the names of the parameters and running averages among them. Raises InvalidInput, and leaves the module as it was, for a
    weight that the module lacks, one of another shape, and a file that is no checkpoint."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    where = str(checkpoint)
    try:
        stored = load_file(where)
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"it cannot be read as safetensors: {error}", where=where) from error
    wanted = module.state_dict(keep_vars=True)
    for source in sorted(stored):
        weight, _, state = source.rpartition(".")
        if source not in wanted and not (weight in wanted and state in _STATES):
            raise InvalidInput(f"it holds a weight '{source}', which the module lacks", where=where, hint=_OTHER)
    tied = _aliases(wanted)
    found: dict[str, torch.Tensor] = {}
    for name, value in wanted.items():
        source = next((alias for alias in tied[value.data_ptr(), value.shape] if alias in stored), "")
        if not source:
            continue
        if stored[source].shape != value.shape:
            sizes = f"{tuple(stored[source].shape)}, that of the module {tuple(value.shape)}"
            raise InvalidInput(f"its weight '{source}' has the shape {sizes}", where=where, hint=_OTHER)
        found[name] = stored[source]
    if not found:
        raise InvalidInput("it holds no weight of the module", where=where, hint=_OTHER)
    with torch.no_grad():
        for name, value in found.items():
            wanted[name].copy_(value)
    return tuple(name for name, value in wanted.items() if name not in found and not _is_fixed(name, value))


def _exported(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any) -> Any:
    try:
        import onnxscript  # noqa: F401  (the exporter needs it, and says so only in a traceback)
    except ImportError as error:
        raise UsageError("from_torch needs onnxscript", hint="pip install 'dnnc[train]'") from error
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.setLevel(logging.ERROR)  # it tells of packages that the module may not even use
            return torch.onnx.export(module, inputs, dynamo=True, optimize=False, verbose=False, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # whatever a person's forward raises, and the exporter's own family
        reason = str(error.__cause__ or error).strip().splitlines()
        message = f"torch.onnx cannot export {type(module).__name__}: {reason[0] if reason else type(error).__name__}"
        raise InvalidInput(message, hint="torch.onnx.export(module, inputs, dynamo=True) shows the whole report") from error
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _inferring(module: torch.nn.Module, dropout: bool) -> Iterator[None]:
    """Every part of the module in the mode of inference, but for its dropouts where ``dropout`` keeps them; and back as it was
    afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    kept = [(part, part.inplace) for part in module.modules() if dropout and isinstance(part, torch.nn.Dropout)]
    module.eval()
    for drop, _ in kept:
        drop.training, drop.inplace = True, False  # one in place would be exported as random numbers
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for drop, inplace in kept:
            drop.inplace = inplace


def _is_fixed(name: str, value: torch.Tensor) -> bool:
    """Whether training leaves this entry of a ``state_dict`` alone."""
    if name.rpartition(".")[2] in _RUNNING:
        return False
    return not (isinstance(value, torch.nn.Parameter) and value.requires_grad)


def _trained_names(module: torch.nn.Module) -> set[str]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name for name, value in named if not _is_fixed(name, value)}


def _aliases(values: Mapping[str, torch.Tensor]) -> dict[tuple[int, torch.Size], list[str]]:
    """The names of each tensor: tied weights have several."""
    found: dict[tuple[int, torch.Size], list[str]] = {}
    for name, value in values.items():
        found.setdefault((value.data_ptr(), value.shape), []).append(name)
    return found


def _tell_apart(model: onnx_ir.Model) -> None:
    """Give inputs and results of nodes that are called like an initializer names of their own: a file has names alone."""
    graph = model.graph
    results = [value for node in onnx_ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    values = [(value, value.name or "") for value in (*graph.inputs, *results)]
    taken = {name for _, name in values} | set(graph.initializers)
    for value, name in values:
        if name in graph.initializers and value is not graph.initializers[name]:
            value.name = unique(name, taken)


def _fix(model: onnx_ir.Model, trained: set[str]) -> None:
    """Make constants of all initializers but those of these names."""
    graph = model.graph
    for name in [name for name in graph.initializers if name not in trained]:
        value = graph.initializers.pop(name)
        if value.const_value is None:
            continue
        node = onnx_ir.node("Constant", [], {"value": value.const_value}, name=f"{name}/Constant")
        node.outputs[0].name = name
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        value.replace_all_uses_with(node.outputs[0])
        graph.insert_before(graph[0], node)


def _quiet(model: onnx_ir.Model) -> None:
    """Make every Dropout one that drops nothing: that they train was said to keep them."""
    for node in model.graph.all_nodes():
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)


def _write(model: onnx_ir.Model, target: Path) -> None:
    """The file, whole or not at all; large weights in ``NAME.data`` beside it, which appears first."""
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    beside = f"{target.name}.data" if weights >= IN_ONE_FILE else None
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            onnx_ir.save(model, Path(folder, target.name), external_data=beside)
            for name in filter(None, (beside, target.name)):
                os.replace(Path(folder, name), target.parent / name)
    except OSError as error:
        raise InvalidInput(f"it cannot be written: {error.strerror or error}", where=str(target)) from error


__all__ = ["from_torch", "into_torch"]
