"""A function as an ONNX model in which every node has a name of its own: a profile of a run can be read back op by op."""

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
    """The entry function as an ONNX model, and the op behind each name of a node, those in regions included. Weights in files
    stay there; others are read from ``source``. Raises InvalidInput for a weight without data."""
    ops: dict[str, Op] = {}

    def labelled(body: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(map(label, body))

    def label(op: Op) -> Op:
        name = f"n{len(ops)}"
        ops[name] = op
        regions = tuple((key, replace(region, ops=labelled(region.ops))) for key, region in op.regions)
        return replace(op, regions=regions, location=Location("", name, ""))

    def tensor(resource: Resource) -> onnx_ir.TensorProtocol:
        return reference_tensor(resource) if isinstance(resource.data, External) else read_tensor(resource, source)

    entry = module.entry
    func = replace(entry, ops=labelled(entry.ops))
    proto = onnx_ir.to_proto(export_func(module.replace(entry, func), func, tensors=tensor))
    forget_shapes(proto)
    return proto.SerializeToString(), ops


__all__ = ["labelled_model"]
