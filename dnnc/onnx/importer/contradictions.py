"""Dimensions that contradict each other: the import refuses them by name, so that no run has to fail.

A decoder states the lengths ``past``, ``seq`` and ``total`` as if they were free, but its ops demand ``past + seq = total``.
Shape inference of the bound model fails at such an op. A binding takes part in the contradiction if inference succeeds without
that binding.

Failures inside a branch do not count: the branch may never run with these shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from onnx import ModelProto, ValueInfoProto

from dnnc.onnx.importer.graphs import graphs
from dnnc.onnx.importer.inference.faults import DimensionRefused, DimensionsContradict
from dnnc.onnx.importer.inference.shapes import infer_shapes
from dnnc.onnx.importer.model_dims import bind_dims
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.limits import Limits

_BRANCH = re.compile(r"\(op_type:If\b")


class Ports:
    """The types of a model's inputs, to be kept while its dimensions have names."""

    def __init__(self, model: ModelProto) -> None:
        self.inputs = _copies(model.graph.input)

    def put_back(self, model: ModelProto) -> ModelProto:
        """A copy of the model with these types of inputs, and none of any other value: those are of the bindings."""
        copy = ModelProto()
        copy.CopyFrom(model)
        for graph in graphs(copy.graph):
            del graph.value_info[:]
        del copy.graph.input[:]
        copy.graph.input.extend(self.inputs)
        for value in copy.graph.output:
            value.ClearField("type")
        return copy


def _copies(values: Iterable[ValueInfoProto]) -> list[ValueInfoProto]:
    copies = []
    for value in values:
        copy = ValueInfoProto()
        copy.CopyFrom(value)
        copies.append(copy)
    return copies


def refuse_contradiction(
    model: ModelProto, ports: Ports, bindings: Mapping[str, int | str], where: str, limits: Limits
) -> None:
    """Raises UsageError where what inference finds wrong with the bound model comes from the bindings.

    ``ports``: of the model before ``bindings``, as names of dimensions."""

    def fault_of(some: Mapping[str, int | str]) -> str:
        copy = ports.put_back(model)
        try:
            bind_dims(copy, some)
        except UsageError:  # what is left is an alias of a name that only an omitted binding knows
            return "not bound"
        return infer_shapes(copy, where, DiagnosticSink(), limits)

    fault = fault_of(bindings) if bindings else ""
    if not fault or _BRANCH.search(fault) or fault_of({}):
        return
    guilty = [name for name in bindings if not fault_of({key: bindings[key] for key in bindings if key != name})]
    names = guilty or list(bindings)
    flags = " ".join(f"--dim {name}={bindings[name]}" for name in names)
    reason = DimensionRefused(fault) if len(names) == 1 else DimensionsContradict(fault)
    raise UsageError(reason, where=f"{where}: {flags}")
