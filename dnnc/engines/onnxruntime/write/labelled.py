"""An ONNX model in which every node has a unique name, so that each line of a profile belongs to one op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir

from dnnc.engines.onnxruntime.write.branches import forget_shapes
from dnnc.engines.onnxruntime.write.export import export_func, read_tensor, reference_tensor
from dnnc.onnx.weights import WeightSource
from ir.core.module import External, Module, Resource
from ir.core.ops import Location, Op


def labelled_model(module: Module, source: WeightSource) -> tuple[bytes, dict[str, Op]]:
    """The entry function as a serialized ONNX model, and its ops (those in regions too) by the names of their nodes.

    Weights in files stay there; all others are put into the model, views read from ``source``. Raises InvalidInput for a weight
    without data."""
    ops: dict[str, Op] = {}

    def label_all(body: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(map(label, body))

    def label(op: Op) -> Op:
        name = f"n{len(ops)}"
        ops[name] = op
        regions = tuple((key, replace(region, ops=label_all(region.ops))) for key, region in op.regions)
        return replace(op, regions=regions, location=Location("", name, ""))

    def tensor(resource: Resource) -> onnx_ir.TensorProtocol:
        return reference_tensor(resource) if isinstance(resource.data, External) else read_tensor(resource, source)

    entry = module.entry
    func = replace(entry, ops=label_all(entry.ops))
    proto = onnx_ir.to_proto(export_func(module.replace(entry, func), func, tensors=tensor))
    forget_shapes(proto)
    return proto.SerializeToString(), ops
