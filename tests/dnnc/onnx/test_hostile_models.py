"""Models that ask for more than any machine has, or that are not what they say: refused with their place, within bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnc.cli import main
from dnnc.compile.load import load_model
from dnnc.onnx import import_model
from dnnc.onnx.importer.attribute_values import value_faults
from dnnc.onnx.importer.evaluate import OnnxEvaluator, evaluate_node
from dnnc.onnx.importer.model_file import parse_text
from dnnc.onnx.importer.wellformed import check_form
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.limits import Limits
from tests.dnnc.onnx.models import HEAD, model, save

pytestmark = pytest.mark.usefixtures("inference_in_a_child")

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]


def refused(path: Path, limits: Limits | None = None) -> str:
    """What the import says of the model: one error, with a place."""
    with pytest.raises(InvalidInput) as raised:
        import_model(path, dims={}, sink=DiagnosticSink(), **({} if limits is None else {"limits": limits}))
    (fault,) = raised.value.diagnostics
    assert fault.where.startswith(str(path))
    return str(fault)


def simple(*nodes: onnx.NodeProto, x: tuple[int, list[object]] = (1, [4]), **values: np.ndarray) -> onnx.ModelProto:
    """A model of these nodes from ``x`` to ``y``; ``values`` are its initializers."""
    inputs = [helper.make_tensor_value_info("x", *x)]
    outputs = [onnx.ValueInfoProto(name="y")]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in values.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=10)


RELU = helper.make_node("Relu", ["x"], ["y"])


def info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, 1, [4])


def doubling(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the former twice."""
    functions = []
    for level in range(levels):
        op, domain = ("Relu", "") if not level else (f"f{level - 1}", "f")
        calls = [helper.make_node(op, [a], [b], domain=domain) for a, b in (("p", "q"), ("q", "r"))]
        functions.append(helper.make_function("f", f"f{level}", ["p"], ["r"], calls, OPSETS))
    proto = simple(helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="f"))
    proto.functions.extend(functions)
    proto.opset_import.append(OPSETS[1])
    return proto


def chain(length: int) -> onnx.ModelProto:
    """Functions of which each calls the next."""
    proto = simple(helper.make_node("f0", ["x"], ["y"], domain="f"))
    for index in range(length):
        last = index == length - 1
        call = helper.make_node("Relu" if last else f"f{index + 1}", ["p"], ["r"], domain="" if last else "f")
        proto.functions.append(helper.make_function("f", f"f{index}", ["p"], ["r"], [call], OPSETS))
    proto.opset_import.append(OPSETS[1])
    return proto


def branch(node: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph([node], "branch", [], [onnx.ValueInfoProto(name=node.output[0])])


def choice(node: onnx.NodeProto, result: str) -> onnx.NodeProto:
    """An If of which one branch is the node."""
    other = helper.make_node("Abs", ["x"], [f"{result}.else"])
    return helper.make_node("If", ["c"], [result], then_branch=branch(node), else_branch=branch(other))


def test_doubling_functions_end_at_the_limit_and_the_limit_can_be_raised(tmp_path: Path) -> None:
    path = save(doubling(14), tmp_path)
    assert f"expand to {2**14} nodes; at most 10000" in refused(path)
    few = save(doubling(5), tmp_path, "few.onnx")
    module = import_model(few, dims={}, sink=DiagnosticSink()).module
    assert len(module.entry.ops) == 32
    limits = Limits(inlined_nodes=1)
    assert len(import_model(few, dims={}, sink=DiagnosticSink(), limits=limits).module.entry.ops) == 32  # it states 11 nodes
    nine = save(doubling(9), tmp_path, "nine.onnx")
    assert "expand to 512 nodes; at most 190" in refused(nine, limits)


def test_the_command_raises_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save(doubling(14), tmp_path))
    assert main(["import", path]) == 3
    assert "--limit inlined-nodes=NUMBER" in capsys.readouterr().err
    for wrong in ("inlined-nodes=-1", "inlined-nodes=" + "9" * 400, "nodes=3", "inlined-nodes"):
        assert main(["import", path, "--limit", wrong]) == 2
        assert "error" in capsys.readouterr().err
    assert main(["import", str(save(doubling(3), tmp_path)), "--limit", "inlined-nodes=8"]) == 0


@pytest.mark.parametrize("length", [65, 3000])
def test_a_chain_of_functions(tmp_path: Path, length: int) -> None:
    assert "more than 64 deep" in refused(save(chain(length), tmp_path))


def test_a_chain_of_functions_as_deep_as_is_supported(tmp_path: Path) -> None:
    module = import_model(save(chain(64), tmp_path), dims={}, sink=DiagnosticSink()).module
    assert [op.name for op in module.entry.ops] == ["onnx.Relu"]


def test_functions_whose_names_grow(tmp_path: Path) -> None:
    proto = doubling(9)
    for function in proto.functions:
        for node in function.node:
            node.name = "n" * 1000
    path = save(proto, tmp_path)
    assert f"expand to more than {1 << 20} bytes" in refused(path, Limits(inlined_bytes=1 << 20))


@pytest.mark.parametrize("opset", [20, 12], ids=["as it stands", "converted"])
def test_functions_whose_constants_are_copied_by_every_call(tmp_path: Path, opset: int) -> None:
    """A text of half a megabyte in a function that is called a thousand times; ReduceSum is another operator before 13."""
    body = [
        helper.make_node("Constant", [], ["text"], value_string="a" * (1 << 19)),
        helper.make_node("ReduceSum", ["p"], ["r"]),
    ]
    calls = [helper.make_node("f0", ["x"], [f"y{number}"], domain="f") for number in range(1000)]
    proto = simple(*calls, helper.make_node("Relu", ["y999"], ["y"]))
    proto.functions.append(helper.make_function("f", "f0", ["p"], ["r"], body, [helper.make_opsetid("", opset)]))
    proto.opset_import.append(OPSETS[1])
    assert f"expand to more than {256 << 20} bytes" in refused(save(proto, tmp_path))


def test_calls_of_a_function_share_its_large_constants(tmp_path: Path) -> None:
    body = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones((64, 64), np.float32))),
        helper.make_node("MatMul", ["p", "c"], ["q"]),
        helper.make_node("ReduceSum", ["q"], ["r"], axes=[0], keepdims=1),
    ]
    calls = [helper.make_node("f0", [f"x{n}" if n else "x"], [f"x{n + 1}"], domain="f") for n in range(50)]
    for opset in (20, 12):
        reduce = body[:2] if opset == 20 else body
        proto = simple(*calls, helper.make_node("Relu", ["x50"], ["y"]), x=(1, [1, 64]))
        result = reduce[-1].output[0]
        proto.functions.append(helper.make_function("f", "f0", ["p"], [result], reduce, [helper.make_opsetid("", opset)]))
        proto.opset_import.append(OPSETS[1])
        module = import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink()).module
        assert len(module.resources) == 1
        assert sum(op.name == "onnx.MatMul" for op in module.entry.ops) == 50


def test_branches_in_branches(tmp_path: Path) -> None:
    """As they stand in the file, and as calls make them."""
    node = helper.make_node("Relu", ["x"], ["z"])
    for level in range(31):
        node = choice(node, f"z{level}")
    proto = simple(node, helper.make_node("Relu", ["z30"], ["y"]), c=np.array(True))
    assert "nested 31 deep" in refused(save(proto, tmp_path))
    calls = chain(40)
    for function in calls.functions:
        call = helper.make_node(function.node[0].op_type, ["x"], ["z"], domain=function.node[0].domain)
        del function.node[:]
        function.node.extend([helper.make_node("Cast", ["x"], ["c"], to=9), choice(call, "r")])
        function.input[:] = ["x"]
    assert "nested 40 deep" in refused(save(calls, tmp_path))


@pytest.mark.parametrize(
    ("put", "place"),
    [
        (lambda m: m.graph.node[0], "graph.node[0].op_type"),
        (lambda m: m.graph.input[0].type.tensor_type.shape.dim[0], "graph.input[0].type.tensor_type.shape.dim[0].dim_param"),
        (lambda m: m.opset_import[0], "opset_import[0].domain"),
        (lambda m: m.graph.node[0].attribute.add(), "graph.node[0].attribute[0].name"),
        (lambda m: m.metadata_props.add(), "metadata_props[0].value"),
        (lambda m: m, "producer_name"),
    ],
)
def test_a_text_that_is_not_utf8(tmp_path: Path, put: object, place: str) -> None:
    proto = simple(RELU)
    assert callable(put)
    setattr(put(proto), place.rpartition(".")[2], "QQQQ")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"QQQQ", b"\xff\x80Q\xfe"))
    message = refused(path)
    assert f"{path}: {place}: error[E1610]: found the bytes b'\\xff\\x80Q\\xfe', expected UTF-8 text" in message


def test_output_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(simple(helper.make_node("Relu", ["x"], ["QQ"])).SerializeToString().replace(b"QQ", b"\xf9\xfa"))
    assert "graph.node[0].output[0]" in refused(path)


@pytest.mark.parametrize("version", [1 << 31, 1 << 62, -(1 << 62), 1 << 40])
def test_versions_beyond_31_bits(tmp_path: Path, version: int) -> None:
    proto = simple(RELU)
    proto.opset_import.add(domain="ai.onnx.ml", version=version)
    assert f"opset {version} of domain 'ai.onnx.ml' does not exist" in refused(save(proto, tmp_path))
    proto = doubling(2)
    proto.functions[1].opset_import[0].version = version
    assert f"opset {version}" in refused(save(proto, tmp_path))
    proto = simple(RELU)
    proto.ir_version = version
    assert f"IR version {version}" in refused(save(proto, tmp_path))


def test_an_attribute_that_stands_twice(tmp_path: Path) -> None:
    proto = simple(helper.make_node("Flatten", ["x"], ["y"], axis=0))
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    assert "has the attribute 'axis' twice" in refused(save(proto, tmp_path))


@pytest.mark.parametrize("equation", ["a-b,ab->a", "a.b,b->a", "ab,....->a", "a\u202eb,...->a", "......,ab", "a...b...,ab"])
def test_an_equation_that_onnx_never_comes_to_the_end_of(tmp_path: Path, equation: str) -> None:
    """Inference holds Python's lock meanwhile: not even a request to end would end it."""
    node = helper.make_node("Einsum", ["x", "x"], ["y"], name="n", equation=equation)
    message = refused(save(simple(node), tmp_path))
    assert "node 'n' (Einsum): error[E1646]: found the equation '" in message


@pytest.mark.parametrize("equation", ["i,i->i", "i , i", "...i,i...->...", "ab...,bC->a...C", "->", ""])
def test_equations_that_pass(equation: str) -> None:
    assert not value_faults("Einsum", 2, {"equation": equation})


@pytest.mark.parametrize("count", [0, -1, 3, 1 << 40, -(1 << 63)])
def test_a_scan_over_more_inputs_than_it_has(tmp_path: Path, count: int) -> None:
    body = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "body", [info("a")], [info("b")])
    node = helper.make_node("Scan", ["x"], ["y"], name="n", body=body, num_scan_inputs=count)
    assert f"node 'n' (Scan): error[E1646]: found num_scan_inputs = {count}, expected 1 to" in refused(
        save(simple(node), tmp_path)
    )


def test_what_the_parser_of_onnx_text_says_is_text() -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_text(HEAD + "g (float[2] x) => (float[2] y) { y = Relu(x", "m.onnxtxt")
    message = str(raised.value)
    assert message.startswith("m.onnxtxt: error[E1609]: not valid ONNX text: [ParseError at position")
    assert "\n  Expected character ) not found." in message


def test_the_same_values_in_ir_text(tmp_path: Path) -> None:
    path = tmp_path / "m.ir"
    path.write_text(
        "module @m {opset.onnx = 20} {\n  func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>) {\n"
        '    %y = onnx.Einsum(%x) {equation = "a.b->a"} : tensor<4xf32>\n  }\n}\n'
    )
    with pytest.raises(InvalidInput, match=r"found the equation 'a\.b->a'"):
        load_model(str(path), {}, DiagnosticSink())


@pytest.mark.parametrize(
    "text",
    [
        '<ir_version: 18446744073709551616, opset_import: ["": 20]>\ng (float[2] x) => (float[2] y) { y = Relu(x) }',
        HEAD + f"g (float[{'9' * 400}] x) => (float[2] y) {{ y = Relu(x) }}",
        HEAD + f"g (float[2] x) => (float[2] y) {{ y = LeakyRelu<alpha = 1{'0' * 400}.0>(x) }}",
        HEAD + f"g ({'seq(' * 300}float{')' * 300} x) => (float[2] y) {{ y = Relu(x) }}",
        HEAD + "g (float[2] x) => (float[2] y) { y = " + "If (c) <t = a () => (float[2] z) { z = " * 200,
        HEAD + '# "\ng (float[2] x) => (float[2] y) { y = Relu(x) } ' + "(" * 5000,
        "",
    ],
)
def test_onnx_text_that_its_parser_does_not_survive(text: str) -> None:
    with pytest.raises(InvalidInput, match="not valid ONNX text") as raised:
        parse_text(text, "m.onnxtxt")
    assert raised.value.diagnostics[0].where == "m.onnxtxt"


def test_brackets_in_strings_and_arrows_are_none() -> None:
    nodes = "".join(f's{i} = Constant<value_string = "{"(" * 400}\\"{{">() ' for i in range(3))
    assert len(parse_text(HEAD + f"g (float[2] x) => (float[2] y) {{ {nodes} y = Relu(x) }}", "m.onnxtxt").graph.node) == 4


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (simple(RELU, x=(1, [1 << 62])), "the shape of 'x' is 4611686018427387904; a value has fewer than"),
        (simple(RELU, x=(1, [1 << 40, 0, 1 << 40])), "the shape of 'x' is 1099511627776x0x1099511627776"),
        (simple(RELU, x=(1, [2] * 1000)), "has 1000 dimensions or more; at most 64"),
        *(
            (
                simple(helper.make_node(op, ["x", "s"], ["y"]), x=(1, [1]), s=vector),
                "the shape of 'y' has 100000 dimensions or",
            )
            for op, vector in (("Unsqueeze", np.arange(100_000)), ("Reshape", np.ones(100_000, np.int64)))
        ),
        (
            simple(
                helper.make_node("OneHot", ["i", "d", "v"], ["y"]), i=np.zeros(9, np.int64), d=np.int64(1 << 60), v=[0.0, 1]
            ),
            "the shape of 'y' is",
        ),
        (
            simple(helper.make_node("Add", ["x", "w"], ["y"]), w=np.zeros(4, np.int64)),
            "input 'w' of Add has the element type int64, expected",
        ),
        (
            simple(
                helper.make_node("Range", ["a", "b", "c"], ["r"]),
                helper.make_node("Cast", ["r"], ["y"], to=1),
                **{"a": np.int64(0), "b": np.complex64(3 + 4j), "c": np.int64(1)},
            ),
            "input 'b' of Range has the element type complex64, expected",
        ),
    ],
)
def test_types_that_cannot_be(tmp_path: Path, proto: onnx.ModelProto, words: str) -> None:
    assert words in refused(save(proto, tmp_path))


@pytest.mark.parametrize("dims", [[1 << 62], [0, 1 << 62, 1 << 62], [2] * 70, [1 << 31, 1 << 31]])
def test_initializers_of_impossible_shapes(tmp_path: Path, dims: list[int]) -> None:
    proto = simple(helper.make_node("Add", ["x", "w"], ["y"]))
    proto.graph.initializer.append(TensorProto(name="w", data_type=1, dims=dims))
    assert "initializer 'w': its shape" in refused(save(proto, tmp_path))


def test_data_of_the_wrong_field(tmp_path: Path) -> None:
    proto = simple(helper.make_node("Add", ["x", "w"], ["y"]))
    proto.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.COMPLEX128, dims=[3], float_data=[1.0]))
    assert "initializer 'w': its data do not fit" in refused(save(proto, tmp_path))


def test_a_sparse_tensor_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    proto = simple(helper.make_node("Add", ["x", "s"], ["y"]))
    at = numpy_helper.from_array(np.array([7]), "i")
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(numpy_helper.from_array(np.ones(1, np.float32), "s"), at, [1 << 28])
    )
    path = save(proto, tmp_path)
    assert "--limit sparse-bytes=NUMBER allows more" in refused(path)
    proto.graph.sparse_initializer[0].dims[:] = [8]
    assert "at most 16 bytes" in refused(save(proto, tmp_path), Limits(sparse_bytes=16))


@pytest.mark.parametrize("scopes", ["[" * 5000, "5", "{}", '{"a": 1, "b": 2}', "[1]"])
def test_an_exporters_scopes_may_be_anything(tmp_path: Path, scopes: str) -> None:
    proto = simple(RELU)
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    module = import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink()).module
    assert module.entry.ops[0].location.scope == ""


@pytest.mark.parametrize("kind", ["fifo", "device", "link"])
def test_what_has_no_end_is_no_model_and_no_weight_file(tmp_path: Path, kind: str) -> None:
    special = tmp_path / "special.onnx"
    if kind == "fifo":
        os.mkfifo(special)
    else:
        special.symlink_to("/dev/zero" if kind == "device" else "special.onnx")
    assert "expected a model file" in refused(special) or kind == "link"
    text = special.with_suffix(".onnxtxt")
    special.rename(text)
    if kind != "link":
        assert "expected ONNX text" in refused(text)
    proto = simple(helper.make_node("Add", ["x", "w"], ["y"]))
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=text.name)
    assert "special.onnxtxt" in refused(save(proto, tmp_path))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "w", "offset": "9" * 400}, "must be numbers of bytes"),
        ({"location": "w", "offset": "1_0"}, "must be numbers of bytes"),
        ({"location": "w", "length": "-16"}, "must be numbers of bytes"),
        ({"location": "w", "offset": "9" * 17}, "has 16 bytes; @w ends at byte"),
        ({"location": "n" * 5000}, "weight file"),
        ({"location": "a\0b"}, "weight file"),
    ],
)
def test_external_data_that_cannot_be(tmp_path: Path, entries: dict[str, str], words: str) -> None:
    (tmp_path / "w").write_bytes(bytes(16))
    proto = simple(helper.make_node("Add", ["x", "w"], ["y"]))
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    assert words in refused(save(proto, tmp_path))


def test_thousands_of_misspelt_names_are_counted(tmp_path: Path) -> None:
    """Looking for the closest of all names, for each, would take minutes."""
    nodes = [helper.make_node("Add", [f"absent{index:05}", "x"], [f"value{index:05}"]) for index in range(3000)]
    proto = simple(*nodes, helper.make_node("Relu", ["value00001"], ["y"]))
    with pytest.raises(InvalidInput) as raised:
        import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink())
    assert "2980 more faults are not shown" in str(raised.value)


def test_errors_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(save(simple(helper.make_node("Bad", ["x"], ["y"])), tmp_path))]) == 3
    assert capsys.readouterr().err.count("has no operator Bad") == 1


def test_what_is_evaluated_is_bounded() -> None:
    """By values, by attributes, by the length of strings; operators whose extent is not known are not evaluated."""
    opsets = {"": 20}
    ones = np.ones(4, np.float32)
    assert evaluate_node(helper.make_node("Tile", ["x", "r"], ["y"]), [ones, np.array([1 << 40])], opsets) is None
    assert evaluate_node(helper.make_node("Split", ["x"], ["y"], num_outputs=1 << 31), [ones], opsets) is None
    kernel = np.ones((1, 1, 1, 1), np.float32)
    pads = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1 << 30] * 4)
    assert evaluate_node(pads, [kernel, kernel], opsets) is None
    assert evaluate_node(helper.make_node("HannWindow", ["x"], ["y"]), [np.int64(1 << 40)], opsets) is None
    texts = np.array([b"a" * (1 << 20), *[b""] * 99], dtype=object)
    assert evaluate_node(helper.make_node("Identity", ["x"], ["y"]), [texts], opsets) is None
    assert (
        evaluate_node(helper.make_node("Range", list("abc"), ["y"]), [np.int64(0), np.complex64(3j), np.int64(1)], opsets)
        is None
    )
    assert evaluate_node(helper.make_node("Neg", ["x"], ["y"]), [ones], opsets) is not None
    assert evaluate_node(helper.make_node("Neg", ["x"], ["y"]), [ones], opsets, limit=15) is None
    assert OnnxEvaluator().limit == Limits().folded_bytes


def test_a_model_in_the_second_syntax_is_taken_as_it_is() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    before = proto.SerializeToString()
    check_form(proto, "m")
    assert proto.SerializeToString() == before


def test_dimensions_whose_expressions_double(tmp_path: Path) -> None:
    """``(s + t) * s``, thirty times over: onnxruntime's inference would write out a polynomial of 2^30 terms."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"]), helper.make_node("Shape", ["w"], ["t"])]
    for level in range(30):
        nodes.append(helper.make_node("Add", [f"s{level}", "t"], [f"u{level}"]))
        nodes.append(helper.make_node("Mul", [f"u{level}", f"s{level}"], [f"s{level + 1}"]))
    proto = simple(*nodes, helper.make_node("Expand", ["o", "s30"], ["y"]), x=(1, ["a"]), o=np.ones(1, np.float32))
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, ["b"]))
    module = import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink()).module
    assert str(module.entry.results[0].type) in ("tensor<? x f32>", "tensor<*xf32>")


_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from dnnc.cli import main
codes = [main(["import", path, "-o", path + ".ir", "-q"]) for path in sys.argv[1:]]
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(*map(int, codes), int(peak) >> 10)
"""
"""``ru_maxrss`` would count what the process that started this one held."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is bounded where the system tells how much there is")
def test_inference_that_follows_values_stays_in_its_memory(tmp_path: Path) -> None:
    """Vectors of very many integers, which onnx follows one by one: made from shapes, and themselves a shape."""
    cast = [helper.make_node("Cast", ["v"], ["i"], to=7), helper.make_node("Cast", ["i"], ["y"], to=1)]
    shape = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "k"], ["n"])]
    large = 1 << 40
    models = {
        "filled": simple(*shape, helper.make_node("ConstantOfShape", ["n"], ["v"]), *cast, x=(1, [large, 4]), k=np.array([0])),
        "ranged": simple(
            *shape,
            helper.make_node("Range", ["z", "n", "o"], ["v"]),
            *cast,
            x=(1, [large, 4]),
            k=0,
            z=np.int64(0),
            o=np.int64(1),
        ),
        "shaped": simple(helper.make_node("ConstantOfShape", ["x"], ["y"]), x=(7, [large])),
    }
    paths = [str(save(proto, tmp_path, f"{name}.onnx")) for name, proto in models.items()]
    ran = subprocess.run([sys.executable, "-P", "-c", _CHILD, *paths], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    *codes, peak = map(int, ran.stdout.split())
    assert codes == [0, 0, 3], ran.stderr[-2000:]  # what is shaped so has 2**40 dimensions
    assert peak < 700


def test_a_load_test_computes_no_large_constants(tmp_path: Path) -> None:
    """onnxruntime would fold all of it when the model is opened: 2.6 GB from 400 bytes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["k"]),
        helper.make_node("Mul", ["k", "k"], ["k2"]),
        helper.make_node("Concat", ["k2", "k2"], ["y"], axis=0),
    ]
    values = {"zero": np.array(0), "one": np.array(1)}
    path = save(simple(*nodes, x=(TensorProto.INT64, [100_000_000]), **values), tmp_path)
    code = (
        "import re, sys; from pathlib import Path; from dnnc.engines.onnxruntime.write.load_test import load_test;"
        "load_test([Path(sys.argv[1])], lambda operator: '');"
        "print(re.search('VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text()).group(1))"
    )
    told = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60)
    assert int(told.stdout) < 1_000_000, "KiB"
