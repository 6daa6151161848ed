"""A PyTorch module as a model in memory, with what PyTorch does in training where no operator of ONNX says so.

The module is exported in the mode in which it is, so that what it does in training stands in the model, but for two things:
batch normalisation is written as it infers, and dropouts drop nothing (``dropout``: each that drops single elements stays, as
one that drops nothing but with ``dnnc compile --dropout on``). ``dnnc compile --objective training`` brings both back.

Metadata ``dnnc.training`` of a node is what stands in the facet ``training`` of the IR: ``frozen`` on a batch
normalisation in the mode of inference and on the Constant of what does not train, ``detached`` on an Identity, ``padding, row =
N`` on a Gather.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir
import torch
from torch._subclasses import FakeTensor
from torch.export.graph_signature import ConstantArgument, OutputKind

from dnnc.engines.torch.module.places import causes, of_error, of_node, operator
from dnnc.engines.torch.module.rewriting import Rewriting, guarded
from dnnc.onnx.importer.functions import TRAINING_KEY
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.names import unique
from passes.training import FROM_TORCH

RUNNING = ("running_mean", "running_var")
_COUNTED = "num_batches_tracked"
_SCOPES = "pkg.torch.onnx.name_scopes"
FROZEN = "frozen"
_REPORT = "torch.onnx.export(module, inputs, dynamo=True) shows the whole report"
_INFER = "call .eval() on it first: it then stays as it infers"


@dataclass(frozen=True)
class Exported:
    """A model, and of its inputs and outputs which of the flat arguments and results of the module they are."""

    model: onnx_ir.Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any = None,
    dropout: bool = False,
) -> Exported:
    """Raises InvalidInput for what cannot be exported, and for what would not train as it does in PyTorch; UsageError where the
    exporter needs a package that is missing."""
    program = _program(module, args, dict(kwargs), dynamic_shapes, dropout)
    _refuse_random(program.exported_program)
    _refuse_changes(program.exported_program)
    model, nodes = program.model, {node.name: node for node in program.exported_program.graph.nodes}
    _tell_apart(model)
    for node in model.graph:
        _state(node, nodes.get(_origin(node)))
    _unchain(model)
    _fix(model, _trained_names(module))
    _quiet(model)
    model.producer_name, model.producer_version = FROM_TORCH, f"pytorch {torch.__version__}"
    signature = program.exported_program.graph_signature
    given = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    made = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    return Exported(
        model,
        tuple(i for i, arg in enumerate(given) if not isinstance(arg, ConstantArgument)),
        tuple(i for i, arg in enumerate(made) if not isinstance(arg, ConstantArgument)),
    )


def _program(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, dropout: bool) -> Any:
    try:
        import onnxscript  # noqa: F401  (the exporter needs it, and says so only in a traceback)
    except ImportError as error:
        raise UsageError("from_torch needs onnxscript", hint="pip install 'dnnc[train]'") from error
    silent, rewriting = logging.root.manager.disable, Rewriting(dropout=dropout, exporting=True)
    with warnings.catch_warnings(), torch.enable_grad(), as_it_was(module):
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)  # torch tells of packages that the module may not even use, and what it tried
        try:
            with contextlib.redirect_stderr(io.StringIO()), guarded(), _no_cumulative(module), rewriting:
                return torch.onnx.export(
                    module, args, kwargs=kwargs, dynamo=True, optimize=False, verbose=False, dynamic_shapes=dynamic_shapes
                )
        except Exception as error:  # whatever a person's forward raises, and the exporter's own family
            where, what = of_error(error, module)
            *_, first = causes(error)
            if isinstance(first, InvalidInput):
                told = first.diagnostics[0]
                raise InvalidInput(told.message, where=where, hint=told.hint) from error
            reason = (str(first) or type(first).__name__).strip().splitlines()[0]
            message = f"torch.onnx cannot export {type(module).__name__}: {reason}{f', in: {what}' if what else ''}"
            raise InvalidInput(message, where=where, hint=_cure(error)) from error
        finally:
            logging.disable(silent)


def _cure(error: Exception) -> str:
    text = f"{error} {error.__cause__}"
    if "data-dependent" in text or "GuardOnDataDependent" in text or "control flow" in text:
        return "a branch or a size may not depend on the elements of a tensor: torch.where chooses by elements"
    if "No ONNX function" in text or "No decompositions" in text:
        return f"write it with other operators; {_REPORT}"
    return _REPORT


@contextlib.contextmanager
def as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Modes and buffers of the module, and torch's random numbers, are afterwards what they were before."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


# -- what cannot be kept ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _no_cumulative(module: torch.nn.Module) -> Iterator[None]:
    """Inside, a call of a batch normalisation in training whose momentum is None raises InvalidInput."""

    def refuse(part: torch.nn.Module, args: Any) -> None:
        if part.training and part.track_running_stats:
            message = "batch normalisation with momentum=None counts its batches, and no operator of ONNX keeps that count"
            raise InvalidInput(message, hint=f"give it a momentum, such as 0.1, or {_INFER}")

    kind = torch.nn.modules.batchnorm._BatchNorm
    cumulative = [part for part in module.modules() if isinstance(part, kind) and part.momentum is None]
    hooks = [part.register_forward_pre_hook(refuse) for part in cumulative]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_random(program: Any) -> None:
    """Raises InvalidInput for an operator that draws random numbers and is no dropout of single elements."""
    for node in program.graph.nodes:
        target = node.target
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
            continue
        schema = target._schema.arguments
        given = {argument.name: argument.default_value for argument in schema}
        given |= dict(zip(given, node.args, strict=False)) | dict(node.kwargs)
        drops = given.get("dropout_p", given.get("dropout"))
        infers = any(given.get(word) is False for word in ("train", "training"))
        if operator(node) in ("native_dropout", "dropout") or drops == 0 or infers:
            continue
        message = f"{operator(node)} draws random numbers, which a model file cannot keep as PyTorch draws them"
        hint = f"leave dropouts out (dropout=False) or put torch.nn.Dropout in its place; {_INFER}"
        raise InvalidInput(message, where=of_node(node), hint=hint)


def _refuse_changes(program: Any) -> None:
    """Raises InvalidInput for a buffer that forward changes and that is no running average."""
    for spec in program.graph_signature.output_specs:
        name = str(spec.target or "")
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, OutputKind.USER_INPUT_MUTATION):
            continue
        if name.rpartition(".")[2] not in (*RUNNING, _COUNTED):
            maker = next((node for node in program.graph.nodes if node.name == getattr(spec.arg, "name", "")), None)
            message = f"forward changes '{name}' from batch to batch, which a model file cannot keep"
            where = of_node(maker) if maker is not None else ""
            raise InvalidInput(message, where=where, hint=f"keep it outside of the module, or {_INFER}")


# -- what is kept -------------------------------------------------------------------------------------------------------


def _origin(node: onnx_ir.Node) -> str:
    """The name of the exported program's node that an ONNX node was made of."""
    return node.metadata_props.get(_SCOPES, "").rpartition(", ")[2].strip("'[]")


def _state(node: onnx_ir.Node, source: torch.fx.Node | None) -> None:
    """Write what PyTorch does with the node in training where its operator does not say it."""
    if source is None:
        return
    aten = str(source.target)
    if node.op_type == "Identity" and aten.startswith("aten.detach"):
        node.metadata_props[TRAINING_KEY] = "detached"
    elif node.op_type == "BatchNormalization" and not aten.startswith("aten._native_batch_norm_legit_functional"):
        node.metadata_props[TRAINING_KEY] = FROZEN
    elif node.op_type == "Gather" and aten.startswith("aten.embedding."):
        row = source.args[2] if len(source.args) > 2 else source.kwargs.get("padding_idx", -1)
        if isinstance(row, int) and row >= 0:
            node.metadata_props[TRAINING_KEY] = f"padding, row = {row}"


def is_fixed(name: str, value: torch.Tensor) -> bool:
    """Whether training leaves this entry of a ``state_dict`` alone."""
    if name.rpartition(".")[2] in RUNNING:
        return False
    return not (isinstance(value, torch.nn.Parameter) and value.requires_grad)


def _trained_names(module: torch.nn.Module) -> set[str]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name for name, value in named if not is_fixed(name, value)}


def _tell_apart(model: onnx_ir.Model) -> None:
    """Give inputs and results of nodes that are called like an initializer names of their own: a file has names alone."""
    graph = model.graph
    results = [value for node in onnx_ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    values = [(value, value.name or "") for value in (*graph.inputs, *results)]
    taken = {name for _, name in values} | set(graph.initializers)
    for value, name in values:
        if name in graph.initializers and value is not graph.initializers[name]:
            value.name = unique(name, taken)


def _unchain(model: onnx_ir.Model) -> None:
    """Let each batch normalisation read its running averages themselves.

    Of a module that is called twice, the exporter lets the second call read what the first made of them; training assigns
    these in between anyway."""
    for node in model.graph:
        for index in (3, 4) if node.op_type == "BatchNormalization" else ():
            while (value := node.inputs[index]) is not None and (maker := value.producer()) is not None:
                if maker.op_type != "Identity":
                    break
                node.replace_input_with(index, maker.inputs[0])


def _fix(model: onnx_ir.Model, trained: set[str]) -> None:
    """Make constants of all initializers but those of these names."""
    graph = model.graph
    for name in [name for name in graph.initializers if name not in trained]:
        value = graph.initializers.pop(name)
        if value.const_value is None:
            continue
        if isinstance(value.const_value.raw, FakeTensor):
            message = f"forward makes the tensor '{name}' of its arguments outside of what PyTorch traces"
            raise InvalidInput(message, hint="compute it with functions of torch, not by way of numpy or lists")
        said = {TRAINING_KEY: FROZEN}
        node = onnx_ir.node("Constant", [], {"value": value.const_value}, name=f"{name}/Constant", metadata_props=said)
        node.outputs[0].name = name
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        value.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
        graph.insert_before(graph[0], node)


def _quiet(model: onnx_ir.Model) -> None:
    """Make every Dropout one that drops nothing: that they train was said to keep them."""
    for node in model.graph.all_nodes():
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)


__all__ = ["RUNNING", "Exported", "as_it_was", "exported", "is_fixed"]
