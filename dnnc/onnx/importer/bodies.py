"""The ops that define a composite operator of ONNX, by its schema: LayerNormalization as means, differences and quotients."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx.inliner import inline_selected_functions

from dnnc.onnx.attributes import attribute_proto
from dnnc.onnx.importer.evaluate import OnnxEvaluator
from dnnc.onnx.importer.read import import_proto
from dnnc.onnx.opdefs import DIALECTS, operator_of
from dnnc.onnx.types import ELEMENT_NUMBERS
from ir.core.diagnostics import DnncError
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.types import TensorType, Type
from passes.framework.base import PassContext
from passes.prepare.canonicalize import CanonicalizePass


class OnnxBodies:
    """The ``FunctionBodies`` of ``passes.framework.base`` for ONNX operators."""

    def __call__(self, op: Op, operands: Sequence[Type | None], opsets: dict[str, int]) -> Module | None:
        """Raises nothing: an operator without a definition, or one whose definition cannot be inlined, has none."""
        if op.dialect != "onnx" or op.regions:
            return None
        domain, op_type = operator_of(op.name)
        try:
            model = _model_of(op, operands, opsets)
            inlined = inline_selected_functions(model, [(domain, op_type)], inline_schema_functions=True)
            if any(node.op_type == op_type and node.domain == domain for node in inlined.graph.node):
                return None
            module = import_proto(inlined, where=op.name)
            context = PassContext(evaluate=OnnxEvaluator(), dialects=DIALECTS)
            return CanonicalizePass().run(module, context)
        except (DnncError, KeyError, TypeError, ValueError, RuntimeError):
            # onnx raises what it likes for an op that its schema does not take; that op then has no definition
            return None


def _model_of(op: Op, operands: Sequence[Type | None], opsets: dict[str, int]) -> onnx.ModelProto:
    """A model of the op alone: inputs ``i0``, ``i1``.., outputs ``o0``.."""
    domain, op_type = operator_of(op.name)
    inputs = [_info(f"i{i}", type_) for i, (name, type_) in enumerate(zip(op.operands, operands, strict=True)) if name]
    outputs = [_info(f"o{i}", value.type) for i, value in enumerate(op.results) if value.name]
    node = onnx.NodeProto(op_type=op_type, domain=domain, name=op_type)
    node.input.extend(f"i{i}" if name else "" for i, name in enumerate(op.operands))
    node.output.extend(f"o{i}" if value.name else "" for i, value in enumerate(op.results))
    node.attribute.extend(attribute_proto(key, attribute) for key, attribute in op.attributes)
    versions = [onnx.helper.make_opsetid("" if name == "onnx" else name, version) for name, version in opsets.items()]
    return onnx.helper.make_model(onnx.helper.make_graph([node], "body", inputs, outputs), opset_imports=versions)


def _info(name: str, type_: Type | None) -> onnx.ValueInfoProto:
    if not isinstance(type_, TensorType):
        raise TypeError(f"{name} is no tensor")
    return onnx.helper.make_tensor_value_info(name, ELEMENT_NUMBERS[type_.dtype], type_.shape)
