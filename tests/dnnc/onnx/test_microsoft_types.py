"""ONNX Runtime's own operators: types that the import gives their results, against what ONNX Runtime makes, and their costs."""

from __future__ import annotations

import contextlib
from typing import Any

import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from dnnc.onnx.importer.read import import_proto
from dnnc.onnx.types import ELEMENT_TYPES
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import Cost
from ir.core.types import TensorType
from ir.layout_rules import rules
from passes import PassContext
from passes.prepare.cost import CostPass
from tests.dnnc.onnx.microsoft_cases import CASES, NodeCase


@pytest.mark.parametrize("case", CASES, ids=str)
def test_types_are_those_that_the_runtime_makes_and_a_formula_fits(case: NodeCase) -> None:
    """Its cost is by a formula of its own, and its weights are no more than what it reads."""
    model = case.model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made = session.run([name for name in case.outputs() if name], case.feeds())
    sink = DiagnosticSink()
    module = import_proto(model, where="m", sink=sink)
    expected = [TensorType(ELEMENT_TYPES[helper.np_dtype_to_tensor_dtype(array.dtype)], array.shape) for array in made]
    assert [value.type for value in module.entry.results] == expected
    (cost,) = (op.facet(Cost, Cost()) for op in CostPass().run(module, PassContext(sink=sink)).entry.ops)
    assert cost.kind != "default"
    weights = sum(array.nbytes for i in case.constants if (array := case.operands[i]) is not None)
    assert 0 <= cost.weight <= max(weights, cost.read)
    assert not sink.diagnostics


def node_model(op_type: str, domain: str = "", opset: int = 18, **attributes: Any) -> onnx.ModelProto:
    """A model of one node with one input and one result of unknown type."""
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain, **attributes)
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))]
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def warnings_of(model: onnx.ModelProto) -> list[str]:
    sink = DiagnosticSink()
    import_proto(model, where="m", sink=sink)
    return [diagnostic.message for diagnostic in sink.diagnostics]


def test_operators_without_a_rule_are_kept_with_a_warning() -> None:
    found = warnings_of(node_model("Crop", opset=8, border=[0, 0, 0, 0]))
    assert found[0] == "operator ai.onnx.Crop (1 node) has no rule here: kept as it is, its costs and types are guesses"
    assert warnings_of(node_model("SoonInvented", "com.microsoft"))[0].startswith(
        "operator com.microsoft.SoonInvented (1 node)"
    )


def test_operators_that_nobody_knows_are_refused() -> None:
    for model in (node_model("SimplifiedLayerNorm"), node_model("Affine", opset=10), node_model("FastGelu")):
        with pytest.raises(InvalidInput, match="no operator"):
            import_proto(model, where="m")


def test_operators_of_the_runtime_grow() -> None:
    """Operands and attributes that a newer ONNX Runtime knows are told, not refused; missing ones are refused."""
    found = warnings_of(node_model("Gelu", "com.microsoft", soon=1))
    assert found == ["Gelu has no attribute 'soon' in opset 1"]
    with pytest.raises(InvalidInput, match="needs the attribute 'K'"):
        import_proto(node_model("MatMulNBits", "com.microsoft", N=3, block_size=16), where="m")


@pytest.mark.slow
@settings(max_examples=60)
@given(case=st.sampled_from(CASES), data=st.data())
def test_rules_raise_nothing(case: NodeCase, data: st.DataObject) -> None:
    """Nodes that are none: other ranks, lengths and attributes. Import, cost and layout rules answer or refuse."""
    lengths = st.lists(st.sampled_from([0, 1, 2, 3, 7, 1 << 40]), max_size=5)
    model = case.model()
    for value in model.graph.input:
        if data.draw(st.booleans()):
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=length) for length in data.draw(lengths))
    for attribute in model.graph.node[0].attribute:
        if attribute.type == onnx.AttributeProto.INT and data.draw(st.booleans()):
            attribute.i = data.draw(st.sampled_from([0, -1, 3, 1 << 62, -(1 << 63)]))
        if attribute.type == onnx.AttributeProto.INTS and data.draw(st.booleans()):
            del attribute.ints[:]
            attribute.ints.extend(data.draw(st.lists(st.sampled_from([0, -1, 3, 1 << 62]), max_size=4)))
    with contextlib.suppress(InvalidInput):
        module = CostPass().run(import_proto(model, where="m"), PassContext())
        assert all(op.facet(Cost, Cost()).flops >= 0 for op in module.entry.ops)
        assert len(list(rules(module))) == 1
