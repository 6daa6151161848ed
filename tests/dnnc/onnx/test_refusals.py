"""Models that cannot run are refused at import, at their node; those that onnxruntime runs are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from dnnc.cli import main
from dnnc.onnx import import_model
from dnnc.onnx.importer.attribute_values import value_faults
from dnnc.onnx.ort import load_onnxruntime
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from tests.dnnc.onnx.models import save
from tests.dnnc.onnx.test_hostile_models import branch, refused, simple

pytestmark = pytest.mark.usefixtures("inference_in_a_child")

W = np.zeros((4, 4, 3, 3), np.float32)


def node(op: str, inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), ["y"], name="n", **attributes)


def image(*nodes: onnx.NodeProto, **values: Any) -> onnx.ModelProto:
    return simple(*nodes, x=(1, [1, 4, 8, 8]), **values)


def loads(path: Path) -> bool:
    """Whether onnxruntime takes the whole model."""
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception:
        return False
    return True


def reshape(*sizes: int) -> onnx.ModelProto:
    """A Reshape to these sizes and the last one of its operand, which other nodes join: no inference of the node alone has
    them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=-1),
        helper.make_node("Concat", ["k", "s"], ["t"], axis=0),
        node("Reshape", "x t"),
    ]
    return image(*nodes, k=np.array(sizes))


def loop() -> onnx.ModelProto:
    """A Loop whose state changes its type."""
    inputs = [
        helper.make_tensor_value_info("it", 7, []),
        helper.make_tensor_value_info("c", 9, []),
        onnx.ValueInfoProto(name="s"),
    ]
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Cast", ["s"], ["t"], to=7)]
    body = helper.make_graph(nodes, "body", inputs, [onnx.ValueInfoProto(name=name) for name in "dt"])
    return simple(helper.make_node("Loop", ["m", "", "x"], ["y"], name="n", body=body), m=np.int64(2))


def choice(first: onnx.NodeProto, second: onnx.NodeProto, **values: Any) -> onnx.ModelProto:
    node = helper.make_node("If", ["c"], ["y"], name="n", then_branch=branch(first), else_branch=branch(second))
    proto = simple(node, **values)
    proto.graph.input.append(helper.make_tensor_value_info("c", 9, []))
    return proto


CASTS = [helper.make_node("Cast", ["x"], [name], to=to) for name, to in (("a", 1), ("b", 7))]


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (
            image(node("MatMul", "x w"), w=np.zeros((5, 5), np.float32)),
            "node 'n' (MatMul): error[E1649]: MatMul cannot run: Incompat",
        ),
        (
            image(node("Slice", "x s e a"), s=[0], e=[1], a=[9]),
            "(Slice): error[E1649]: Slice cannot run: Unexpected axis value: 9.",
        ),
        (image(node("Concat", "x x", axis=7)), "(Concat): error[E1649]: Concat cannot run: axis must be in"),
        (
            image(node("Conv", "x w", pads=[0, 0]), w=W),
            "(Conv): error[E1649]: Conv cannot run: Attribute pads has incorrect size",
        ),
        (choice(*CASTS), "(If): error[E1649]: If cannot run: Mismatched tensor element type: inferred="),
        (loop(), "(Loop): error[E1649]: Loop cannot run: Input element type of 7 does not match"),
        (
            image(node("Conv", "x w", strides=[0, 1]), w=W),
            "(Conv): error[E1646]: found strides = [0, 1], expected whole numbers from 1",
        ),
        (image(node("Conv", "x w", group=0), w=W), "(Conv): error[E1646]: found group = 0"),
        (image(node("Split", "x", num_outputs=1 << 62)), "(Split): error[E1646]: found num_outputs = 4611686018427387904"),
        (
            image(node("Reshape", "x k"), k=[17, 8]),
            "node 'n' (Reshape): error[E1649]: Reshape cannot run: 'x' has the shape [1, 4, 8, 8], 256 elements; its target "
            "[17, 8] has 136",
        ),
        (image(node("Reshape", "x k"), k=[0, 0, 3]), "(Reshape): error[E1649]: Reshape cannot run: 'x' has"),
        (image(node("Reshape", "x k", allowzero=1), k=[0, 256]), "its target [0, 256] has 0"),
        (reshape(17, 8), "its target [17, 8, 8] has 1088"),
        (reshape(-1, 3), "256 elements, no multiple of the 24 that its target [-1, 3, 8] states"),
        (reshape(0, -1, 9), "256 elements, no multiple of the 72 that its target [1, -1, 9, 8] states"),
    ],
    ids=[
        *("matmul", "slice", "concat", "pads", "if", "loop", "strides", "group", "split"),
        *("reshape", "reshape-copies", "reshape-empty", "reshape-computed", "reshape-open", "reshape-copies-open"),
    ],
)
def test_what_cannot_run(tmp_path: Path, proto: onnx.ModelProto, words: str) -> None:
    assert words in refused(save(proto, tmp_path))


def test_the_command_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unnamed = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = save(image(unnamed, w=np.zeros((5, 5), np.float32)), tmp_path)
    assert main(["import", str(path)]) == 3
    assert f"{path}: node #0 (MatMul, makes 'y'): error[E1649]: MatMul cannot run" in capsys.readouterr().err


def test_every_such_node_is_told(tmp_path: Path) -> None:
    """By one import, those whose inputs have a type."""
    nodes = [helper.make_node("MatMul", ["x", "w"], [name]) for name in "ab"]
    proto = image(*nodes, node("Add", "x x"), w=np.zeros((5, 5), np.float32))
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in "ab")
    with pytest.raises(InvalidInput) as raised:
        import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink())
    assert [fault.where.rpartition(": ")[2] for fault in raised.value.diagnostics] == [
        f"node #{index} (MatMul, makes '{name}')" for index, name in enumerate("ab")
    ]


def test_what_onnxruntime_runs_is_a_warning(tmp_path: Path) -> None:
    """A wrong shape of an output, and a branch of wrong shapes that no run need reach."""
    proto = image(node("Relu", "x"))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [3]))
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Add", ["r", "w"], ["b"])]
    other = choice(*nodes, w=np.zeros(3, np.float32), k=np.array([2, 2]))
    other.graph.node.insert(0, helper.make_node("Reshape", ["x", "k"], ["r"]))
    for model, said in ((proto, "tensor<3xf32> for 'y', which is"), (other, "shape inference failed")):
        sink = DiagnosticSink()
        path = save(model, tmp_path)
        import_model(path, dims={}, sink=sink)
        assert any(said in fault.message for fault in sink.diagnostics)
    assert loads(save(proto, tmp_path))


@pytest.mark.parametrize(
    ("shape", "target", "allowzero"),
    [((4, 0), (0, 7), 1), ((4, 0), (2, 0, 5), 1), ((4, 0), (0, 0), 0), ((4, 6), (0, -1, 3), 0), ((4, "n"), (17, 8), 0)],
)
def test_a_reshape_that_may_run_is_taken(
    tmp_path: Path, shape: tuple[int | str, ...], target: tuple[int, ...], allowzero: int
) -> None:
    proto = simple(node("Reshape", "x k", allowzero=allowzero), x=(1, list(shape)), k=np.array(target))
    import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink())


AXIS = st.integers(-4, 4)
SHAPE = st.lists(st.integers(1, 3), min_size=1, max_size=3)
NODES = st.one_of(
    st.builds(lambda axis: node("Concat", "x w", axis=axis), AXIS),
    st.builds(lambda axis: node("Softmax", "x", axis=axis), AXIS),
    st.builds(lambda axis: node("Gather", "x i", axis=axis), AXIS),
    st.builds(lambda perm: node("Transpose", "x", perm=perm), st.permutations(range(3))),
    st.sampled_from(["Add", "MatMul"]).map(lambda op: node(op, "x w")),
    st.builds(lambda axis: node("Flatten", "x", axis=axis), AXIS),
)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(NODES, SHAPE, SHAPE)
def test_only_what_onnxruntime_refuses_is_refused(
    tmp_path_factory: pytest.TempPathFactory, made: onnx.NodeProto, first: list[int], second: list[int]
) -> None:
    proto = simple(made, x=(1, list(first)), w=np.zeros(second, np.float32), i=np.array([0]))
    path = save(proto, tmp_path_factory.mktemp("m"))
    try:
        import_model(path, dims={}, sink=DiagnosticSink())
        fault = ""
    except InvalidInput as error:
        fault = str(error)
    assert not fault or ("cannot run" in fault and not loads(path))


@pytest.mark.parametrize("value", [0, -1, 1 << 40, [1, 0], (2, -1)])
@pytest.mark.parametrize("name", ["strides", "group", "num_heads", "hidden_size", "kv_num_heads"])
def test_counts_that_are_none(name: str, value: object) -> None:
    assert value_faults("Any", 1, {name: value})
    assert not value_faults("Any", 1, {name: 1, "axis": -1, "pads": [0, 0]})


def test_zero_that_says_no_number_is_given() -> None:
    assert not value_faults("RotaryEmbedding", 1, {"num_heads": 0})
    assert not value_faults("Attention", 1, {"kv_num_heads": 0})
    assert not value_faults("QuantizeLinear", 1, {"block_size": 0})
