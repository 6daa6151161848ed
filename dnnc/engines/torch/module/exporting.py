"""``exported``: a PyTorch module becomes a model in memory.

The module is exported in its present mode, so the model computes what the module computes in training, but for two things.
Batch normalisation is written in its form of inference; ``dnnc compile --objective training`` trains it. Dropouts are left out;
with ``dropout`` those that drop single elements are kept, and ``dnnc compile --dropout on`` applies them.

The metadata ``dnnc.training`` of a node says what PyTorch does in training where its operator does not say so. The importer
makes the facet ``training`` of it:

- ``frozen`` on a batch normalisation in the mode of inference, and on a Constant that was a parameter or a buffer;
- ``detached`` on an Identity: no gradient passes it;
- ``padding, row = N`` on a Gather: row N of its table gets no gradient.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir
import torch
from torch._subclasses import FakeTensor
from torch.export.graph_signature import ConstantArgument, OutputKind

from dnnc.engines.torch.module.faults import (
    ChangesWeight,
    CumulativeAverage,
    DrawsRandom,
    FormRefused,
    NoOnnxscript,
    NotExported,
    NotTraced,
)
from dnnc.engines.torch.module.places import causes, first_line, of_error, of_node, operator
from dnnc.engines.torch.module.rewriting import DRAWN, NOISE, Rewriting, guarded
from dnnc.onnx.importer.functions import TRAINING_KEY
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.facets import FROM_TORCH
from ir.core.names import unique
from ir.ops.optimizers import COUNTED

_NOISY = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
RUNNING = ("running_mean", "running_var")
_SCOPES = "pkg.torch.onnx.name_scopes"
FROZEN = "frozen"
_REPORT = "torch.onnx.export(module, inputs, dynamo=True) shows the whole report"
_INFER = "call .eval() on it first: its averages then stay as they are"


@dataclass(frozen=True)
class Exported:
    """``inputs[i]``: the place of the model's input ``i`` among the flat arguments of the module; ``outputs``: likewise of its
    outputs among the flat results."""

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
    """The model of a module. Raises InvalidInput for what cannot be exported or would train otherwise than in PyTorch, and
    UsageError where the exporter's package is missing."""
    _refuse_complex(module)
    program = _program(module, args, dict(kwargs), dynamic_shapes, dropout)
    _refuse_random(program.exported_program)
    _refuse_changes(program.exported_program)
    model, nodes = program.model, {node.name: node for node in program.exported_program.graph.nodes}
    _tell_apart(model)
    for node in model.graph:
        _state(node, nodes.get(_origin(node)))
    _unchain(model)
    _name_tied(model, module)
    _fix(model, _trained_names(module))
    _quiet(model)
    model.producer_name, model.producer_version = FROM_TORCH, f"pytorch {torch.__version__}"
    signature = program.exported_program.graph_signature
    given = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    made = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    outputs = tuple(i for i, arg in enumerate(made) if not isinstance(arg, ConstantArgument))
    _name_results(model, program.exported_program.call_spec.out_spec, outputs)
    return Exported(model, tuple(i for i, arg in enumerate(given) if not isinstance(arg, ConstantArgument)), outputs)


def _program(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, dropout: bool) -> Any:
    try:
        import onnxscript  # noqa: F401  (the exporter needs it, and says so only in a traceback)
    except ImportError as error:
        raise UsageError(NoOnnxscript()) from error
    args, kwargs = _named_last(module, args, kwargs)
    silent, rewriting = logging.root.manager.disable, Rewriting(dropout=dropout, exporting=True)
    with warnings.catch_warnings(), torch.enable_grad(), as_it_was(module):
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)  # torch logs each strategy that it tries, and packages that are not installed
        try:
            with (
                contextlib.redirect_stderr(io.StringIO()),
                guarded(),
                _no_cumulative(module),
                _kept_tables(),
                _unverified(),
                rewriting,
            ):
                return torch.onnx.export(
                    module, args, kwargs=kwargs, dynamo=True, optimize=False, verbose=False, dynamic_shapes=dynamic_shapes
                )
        except Exception as error:  # whatever a person's forward raises, and the exporter's own family
            where, what = of_error(error, module)
            *_, first = causes(error)
            if isinstance(first, InvalidInput):
                raise InvalidInput(replace(first.diagnostics[0], where=where)) from error
            place = f", in: {what}" if what else ""
            raise InvalidInput(
                NotExported(type(module).__name__, first_line(first), place, _cure(error)), where=where
            ) from error
        finally:
            logging.disable(silent)


def _named_last(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, the last by its name where it is a dict: ``torch.onnx.export`` takes such a one for named arguments."""
    if kwargs or not args or not isinstance(args[-1], dict):
        return args, kwargs
    names = list(inspect.signature(module.forward).parameters.values())[: len(args)]
    if len(names) < len(args) or names[-1].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return args, kwargs
    return args[:-1], {names[-1].name: args[-1]}


_TABLES: dict[tuple[int, bool], Any] = {}


@contextlib.contextmanager
def _kept_tables() -> Iterator[None]:
    """Torch reads its table of ONNX functions from their source text for each export, which takes more than half the time of
    exporting a small module. The table of each opset is kept; it has operators of torchvision only where that is imported."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    own = ONNXRegistry.__dict__["from_torchlib"]
    made = ONNXRegistry.from_torchlib

    def kept(opset_version: int) -> Any:
        key = opset_version, "torchvision" in sys.modules
        if key not in _TABLES:
            _TABLES[key] = made(opset_version=opset_version)
        return _TABLES[key]

    ONNXRegistry.from_torchlib = staticmethod(kept)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = own  # type: ignore[method-assign]


@contextlib.contextmanager
def _unverified() -> Iterator[None]:
    """Inside, torch does not branch on elements by itself: ``nn.Transformer``, which compares masks with a causal one to choose
    a faster kernel, goes by the argument ``is_causal`` alone, and ``torch.distributions`` do not verify their arguments."""
    from torch.distributions import Distribution
    from torch.nn.modules import transformer

    own, verifies = transformer._detect_is_causal_mask, Distribution._validate_args
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = own
        Distribution.set_default_validate_args(verifies)


def _cure(error: Exception) -> str:
    text = f"{error} {error.__cause__}"
    if "data-dependent" in text or "GuardOnDataDependent" in text or "control flow" in text:
        return "a branch or a size may not depend on the elements of a tensor: torch.where chooses by elements"
    if "No ONNX function" in text or "No decompositions" in text:
        return f"write it with other operators; {_REPORT}"
    return _REPORT


@contextlib.contextmanager
def as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Restore the modes and buffers of the module and the state of torch's generator on leaving."""
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
            raise InvalidInput(CumulativeAverage(_INFER))

    kind = torch.nn.modules.batchnorm._BatchNorm
    cumulative = [part for part in module.modules() if isinstance(part, kind) and part.momentum is None]
    hooks = [part.register_forward_pre_hook(refuse) for part in cumulative]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_complex(module: torch.nn.Module) -> None:
    """Raises InvalidInput for a parameter of complex numbers."""
    for name, value in module.named_parameters():
        if value.is_complex():
            advice = "keep its real and its imaginary part in a parameter [.., 2]: torch.view_as_complex joins them in forward"
            raise InvalidInput(FormRefused(f"the complex parameter '{name}'", "ONNX has weights of real numbers alone", advice))


def _refuse_random(program: Any) -> None:
    """Raises InvalidInput for an operator that draws random numbers, but for dropouts of single elements."""
    for node in program.graph.nodes:
        target = node.target
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
            continue
        schema = target._schema.arguments
        given = {argument.name: argument.default_value for argument in schema}
        given |= dict(zip(given, node.args, strict=False)) | dict(node.kwargs)
        drops = given.get("dropout_p", given.get("dropout"))
        infers = any(given.get(word) is False for word in ("train", "training"))
        if operator(node) in ("native_dropout", "dropout", *NOISE) or drops == 0 or infers:
            continue
        advice = "leave dropouts out (dropout=False)" if drops else "let the random numbers be an argument of forward"
        raise InvalidInput(DrawsRandom(operator(node), advice), where=of_node(node))


def _refuse_changes(program: Any) -> None:
    """Raises InvalidInput for a weight or buffer that forward changes, but for the running averages of batch normalisation."""
    for spec in program.graph_signature.output_specs:
        name = str(spec.target or "")
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, OutputKind.USER_INPUT_MUTATION):
            continue
        if name.rpartition(".")[2] not in (*RUNNING, COUNTED):
            maker = next((node for node in program.graph.nodes if node.name == getattr(spec.arg, "name", "")), None)
            where = of_node(maker) if maker is not None else ""
            weight = spec.kind is OutputKind.PARAMETER_MUTATION
            advice = (
                "leave out what changes it, such as max_norm of an Embedding" if weight else "compute it outside of forward"
            )
            raise InvalidInput(ChangesWeight(name, advice), where=where)


# -- what is kept -------------------------------------------------------------------------------------------------------


def _origin(node: onnx_ir.Node) -> str:
    """The name of the node of the exported program that became this ONNX node."""
    return node.metadata_props.get(_SCOPES, "").rpartition(", ")[2].strip("'[]")


def _state(node: onnx_ir.Node, source: torch.fx.Node | None) -> None:
    """Write to the metadata of ``node`` what PyTorch does in training with ``source``, of which the node was made."""
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
    """Whether this entry of a ``state_dict`` does not change in training."""
    if name.rpartition(".")[2] in RUNNING:
        return False
    return not (isinstance(value, torch.nn.Parameter) and value.requires_grad)


def _trained_names(module: torch.nn.Module) -> set[str]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name for name, value in named if not is_fixed(name, value)}


def _name_results(model: onnx_ir.Model, spec: Any, places: Sequence[int]) -> None:
    """Give the outputs of a module that returns a dict of tensors its keys as names. ``places``: of each output among the flat
    results. An output keeps its own name where another value has the key, or where it is an input or a second output too."""
    if spec is None or spec.type is not dict or spec.num_leaves != spec.num_children:
        return
    graph, keys = model.graph, [str(key) for key in spec.context]
    taken = {value.name for value in graph.inputs} | {*graph.initializers}
    taken |= {value.name for node in graph.all_nodes() for value in node.outputs}
    for value, place in zip(graph.outputs, places, strict=True):
        if keys[place] not in taken and value.producer() is not None and list(graph.outputs).count(value) == 1:
            taken.add(keys[place])
            value.name = keys[place]


def _name_tied(model: onnx_ir.Model, module: torch.nn.Module) -> None:
    """Give each tied weight the first of its names, as ``named_parameters`` does; the exporter takes another."""
    initializers, first = model.graph.initializers, {id(value): name for name, value in module.named_parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (named := first[id(parameter)]) not in initializers and name in initializers:
            value = initializers.pop(name)
            value.name = named
            initializers[named] = value


def _tell_apart(model: onnx_ir.Model) -> None:
    """Rename inputs and results of nodes that have the name of an initializer: in a file a value is known by its name alone."""
    graph = model.graph
    results = [value for node in onnx_ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    values = [(value, value.name or "") for value in (*graph.inputs, *results)]
    taken = {name for _, name in values} | set(graph.initializers)
    for value, name in values:
        if name in graph.initializers and value is not graph.initializers[name]:
            value.name = unique(name, taken)


def _unchain(model: onnx_ir.Model) -> None:
    """Let each batch normalisation read its running averages, the initializers.

    Where a layer is called twice, the exporter lets the second call read the results of the first. The training step
    assigns these results to the averages before the second call, so the second call may read the averages."""
    for node in model.graph:
        for index in (3, 4) if node.op_type == "BatchNormalization" else ():
            while (value := node.inputs[index]) is not None and (maker := value.producer()) is not None:
                if maker.op_type != "Identity":
                    break
                node.replace_input_with(index, maker.inputs[0])


def _fix(model: onnx_ir.Model, trained: set[str]) -> None:
    """Make an ``onnx.Constant`` of each initializer whose name is not in ``trained``, and of a buffer that is called like a
    running average and that no batch normalisation reads."""
    graph = model.graph
    layers = [node for node in graph if node.op_type == "BatchNormalization"]
    averages = {value.name for node in layers for value in node.inputs[3:5] if value is not None}
    trained = {name for name in trained if name in averages or name.rpartition(".")[2] not in RUNNING}
    for name in [name for name in graph.initializers if name not in trained]:
        value = graph.initializers.pop(name)
        if value.const_value is None:
            continue
        if isinstance(value.const_value.raw, FakeTensor):
            raise InvalidInput(NotTraced(name))
        said = {TRAINING_KEY: FROZEN}
        node = onnx_ir.node("Constant", [], {"value": value.const_value}, name=f"{name}/Constant", metadata_props=said)
        node.outputs[0].name = name
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        value.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
        graph.insert_before(graph[0], node)


def without_noise(model: onnx_ir.Model) -> onnx_ir.Model:
    """A copy of the model in which ``DRAWN`` stands for each number of noise; the model itself where it draws none."""
    if not any(node.op_type in _NOISY for node in model.graph.all_nodes()):
        return model
    copy = onnx_ir.from_proto(onnx_ir.to_proto(model))
    for node in [node for node in copy.graph if node.op_type in _NOISY]:
        shape = [dim if isinstance(dim, int) else 1 for dim in node.outputs[0].shape or ()]
        kind = node.outputs[0].dtype or onnx_ir.DataType.FLOAT
        drawn = onnx_ir.tensor(np.full(shape, DRAWN, kind.numpy()))
        constant = onnx_ir.node("Constant", [], {"value": drawn}, name=f"{node.name}/drawn")
        constant.outputs[0].name, constant.outputs[0].type = f"{node.outputs[0].name}.drawn", node.outputs[0].type
        constant.outputs[0].shape = node.outputs[0].shape
        copy.graph.insert_before(node, constant)
        node.outputs[0].replace_all_uses_with(constant.outputs[0], replace_graph_outputs=True)
    return copy


def _quiet(model: onnx_ir.Model) -> None:
    """Remove from each Dropout the operand that makes it drop: it was there so that the exporter keeps the node."""
    for node in model.graph.all_nodes():
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)
