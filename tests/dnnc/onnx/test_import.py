"""What the import keeps of an ONNX model: one feature per test."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dnnc.onnx import import_model
from dnnc.onnx.model import require_bound
from dnnc.onnx.weights import read_resource
from ir.core.attributes import AttrKind, Dense
from ir.core.diagnostics import DiagnosticSink, InvalidInput, Severity, UsageError
from ir.core.module import External, Inline
from ir.core.ops import Location
from ir.core.types import DType, MapType, OptionalType, SeqType, TensorType
from tests.dnnc.onnx.models import load, model, op, save, unknown_shapes


def _warnings(sink: DiagnosticSink) -> list[str]:
    return [d.message for d in sink.diagnostics if d.severity is Severity.WARNING]


def test_names_types_and_attributes_are_kept(tmp_path: Path) -> None:
    weights = ",".join("1" * 32)
    module = load(
        model(f"g (float[2,8] x) => (float[2,4] y) <float[8,4] w = {{{weights}}}> {{\n y = MatMul(x, w)\n}}"), tmp_path
    )
    func = module.entry
    assert (module.name, func.name) == ("@m", "@main")
    assert [(v.name, str(v.type)) for v in func.args] == [("%x", "tensor<2x8xf32>")]
    assert [(v.name, str(v.type)) for v in func.results] == [("%y", "tensor<2x4xf32>")]
    assert func.ops[0].operands == ("%x", "@w")
    assert dict(module.attributes)["opset.onnx"].value == 20
    assert dict(module.attributes)["ir_version"].value == 10


def test_attribute_kinds_survive(tmp_path: Path) -> None:
    node = helper.make_node(
        "Custom", ["x"], ["y"], domain="my", i=1, f=1.0, s="é", ints=[1, 2], floats=[1.0], strings=["a", "b"]
    )
    node.attribute.append(onnx.AttributeProto(name="empty", type=onnx.AttributeProto.INTS))
    node.attribute.append(onnx.AttributeProto(name="raw", type=onnx.AttributeProto.STRING, s=b"\xff"))
    node.attribute.append(helper.make_attribute("t", numpy_helper.from_array(np.arange(3, dtype=np.int8))))
    node.attribute.append(helper.make_attribute("tp", helper.make_tensor_type_proto(1, [2, "n"])))
    x = helper.make_tensor_value_info("x", 1, [1])
    proto = helper.make_model(helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", 1, [1])]))
    proto.opset_import.add(domain="my", version=3)
    found = dict(load(proto, tmp_path).entry.ops[0].attributes)
    assert {name: a.kind for name, a in found.items()} == {
        "i": AttrKind.INT,
        "f": AttrKind.FLOAT,
        "s": AttrKind.STRING,
        "ints": AttrKind.INTS,
        "floats": AttrKind.FLOATS,
        "strings": AttrKind.STRINGS,
        "empty": AttrKind.INTS,
        "raw": AttrKind.BYTES,
        "t": AttrKind.TENSOR,
        "tp": AttrKind.TYPE,
    }
    assert found["empty"].value == ()
    assert found["t"].value == Dense(TensorType(DType.I8, (3,)), b"\x00\x01\x02")
    assert found["tp"].value == TensorType(DType.F32, (2, "n"))


def test_large_weights_stay_in_the_file_and_small_ones_are_inline(tmp_path: Path) -> None:
    big, small = np.arange(512, dtype=np.float32), np.array([2, -1])
    proto = model("g (float[512] x) => (float[2,256] y) {\n a = Add(x, big)\n y = Reshape(a, sh)\n}")
    proto.graph.initializer.extend([numpy_helper.from_array(big, "big"), numpy_helper.from_array(small, "sh")])
    module = load(proto, tmp_path)
    data = module.resources["@big"].data
    assert isinstance(data, External)
    assert (data.file, data.length) == ("m.onnx", 2048)
    np.testing.assert_array_equal(read_resource(module.resources["@big"], tmp_path), big)
    assert module.resources["@sh"].data == Inline(small.tobytes())


def test_external_data_is_left_on_disk(tmp_path: Path) -> None:
    array = np.arange(1000, dtype=np.float32)
    proto = model("g (float[1000] x) => (float[1000] y) {\n y = Add(x, w)\n}")
    proto.graph.initializer.append(numpy_helper.from_array(array, "w"))
    (tmp_path / "sub").mkdir()
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="sub/w.bin", size_threshold=0)
    imported = import_model(tmp_path / "m.onnx", dims={}, sink=DiagnosticSink())
    resource = imported.module.resources["@w"]
    assert resource.data == External("sub/w.bin", 0, 4000)
    np.testing.assert_array_equal(read_resource(resource, imported.files), array)


def test_gigabytes_of_external_weights_are_not_touched(tmp_path: Path) -> None:
    proto = model("g (float[1,25000] x) => (y) {\n y = MatMul(x, w)\n}")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[25000, 25000], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.data")
    proto.graph.initializer.append(tensor)
    path = save(proto, tmp_path)
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(2_500_000_000)
    import_model(path, dims={}, sink=DiagnosticSink())
    tracemalloc.start()
    module = import_model(path, dims={}, sink=DiagnosticSink()).module
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert module.resources["@w"].type.nbytes == 2_500_000_000  # type: ignore[union-attr]
    assert str(op(module, "%y").results[0].type) == "tensor<1x25000xf32>"


def test_large_constants_become_resources(tmp_path: Path) -> None:
    array = np.arange(512, dtype=np.float32)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(array)),
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.float32(1))),
        helper.make_node("Add", ["c", "one"], ["y"]),
    ]
    proto = helper.make_model(helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 1, [512])]))
    proto.opset_import[0].version = 20
    module = load(proto, tmp_path)
    assert [o.name for o in module.entry.ops] == ["onnx.Constant", "onnx.Add"]
    assert op(module, "%y").operands == ("@c", "%one")
    np.testing.assert_array_equal(read_resource(module.resources["@c"], tmp_path), array)


def test_large_tensor_attributes_of_other_operators_are_read(tmp_path: Path) -> None:
    array = np.arange(512, dtype=np.float32)
    node = helper.make_node("Custom", [], ["y"], domain="my", table=numpy_helper.from_array(array))
    proto = helper.make_model(helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, [1])]))
    proto.opset_import.add(domain="my", version=1)
    assert op(load(proto, tmp_path), "%y").get("table").data == array.tobytes()


def test_functions_are_inlined_with_their_path(tmp_path: Path) -> None:
    body = """g (float[4] x) => (float[4] y) {
      a = f.outer <alpha = 0.5> (x)
      y = Neg(a)
    }
    <domain: "f", opset_import: ["" : 20, "f" : 1]>
    outer <alpha> (u) => (v) { t = inner <slope: float = @alpha> (u)  v = Relu(t) }
    <domain: "f", opset_import: ["" : 20]>
    inner <slope> (u) => (v) { v = LeakyRelu <alpha: float = @slope> (u) }
    """
    head = '<ir_version: 10, opset_import: ["": 20, "f": 1]>\n'
    proto = model(body.replace("= inner <", "= f.inner <"), head)
    proto.graph.node[0].name = "call"
    ops = load(proto, tmp_path).entry.ops
    assert [o.name for o in ops] == ["onnx.LeakyRelu", "onnx.Relu", "onnx.Neg"]
    assert ops[0].get("alpha") == 0.5
    assert ops[1].location.path == "main/call:outer"
    assert ops[0].location.path.startswith("main/call:outer/")
    assert ops[0].location.path.endswith(":inner")
    assert ops[2].location.path == "main"
    assert ops[1].results[0].name == "%a"
    assert ops[0].results[0].name == "%call/t"


def test_function_defaults_pass_through_and_absent_inputs(tmp_path: Path) -> None:
    body = """g (float[4] x) => (float[4] y, float[4] z) {
      y, z = f.fn (x)
    }
    <domain: "f", opset_import: ["" : 20]>
    fn <alpha: float = 0.25> (u, low) => (v, u) { w = Clip(u, low)  v = LeakyRelu <alpha: float = @alpha> (w) }
    """
    ops = load(model(body, '<ir_version: 10, opset_import: ["": 20, "f": 1]>\n'), tmp_path).entry.ops
    assert [(o.name, o.operands) for o in ops] == [
        ("onnx.Clip", ("%x", "")),
        ("onnx.LeakyRelu", (ops[0].id,)),
        ("onnx.Identity", ("%x",)),
    ]
    assert ops[1].get("alpha") == 0.25


def test_functions_of_another_opset_are_converted(tmp_path: Path) -> None:
    """Each call with its own attributes and names, its path kept; functions of the model's opset stay as they are."""
    body = """g (float[2,3] x) => (float y) {
      a = f.total <kept = 1> (x)
      b = f.total <kept = 1> (a)
      c = f.total (b)
      y = f.same (c)
    }
    <domain: "f", opset_import: ["" : 12]>
    total <kept: int = 0> (u) => (v) { w = f.same (u)  v = ReduceSum <axes = [0, 1], keepdims: int = @kept> (w) }
    <domain: "f", opset_import: ["" : 12]>
    same (u) => (v) { v = Relu(u) }
    """
    ops = load(model(body, '<ir_version: 10, opset_import: ["": 20, "f": 1]>\n'), tmp_path).entry.ops
    sums = [o for o in ops if o.name == "onnx.ReduceSum"]
    assert [o.get("keepdims", 1) for o in sums] == [1, 1, 0]
    assert [o.location.path for o in sums] == ["main/a:total", "main/b:total", "main/c:total"]
    assert [o.results[0].name for o in sums] == ["%a", "%b", "%c"]
    assert [o.name for o in ops].count("onnx.Relu") == 4
    assert len({o.id for o in ops}) == len(ops)
    values = [next(o for o in ops if o.id == sum_.operands[1]).get("value") for sum_ in sums]
    assert [np.frombuffer(value.data, np.int64).tolist() for value in values] == [[0, 1]] * 3


def test_functions_that_cannot_be_converted_are_refused(tmp_path: Path) -> None:
    body = """g (float[2] x) => (float[2] y) { y = f.fn (x) }
    <domain: "f", opset_import: ["" : 20, "ai.onnx.ml" : 3]>
    fn (u) => (v) { v = ai.onnx.ml.TreeEnsembleRegressor (u) }
    """
    head = '<ir_version: 10, opset_import: ["": 20, "f": 1, "ai.onnx.ml": 5]>\n'
    with pytest.raises(InvalidInput, match=r"operators of 'ai\.onnx\.ml' from another version"):
        load(model(body, head), tmp_path)


def test_recursive_functions_are_refused(tmp_path: Path) -> None:
    body = """g (float[4] x) => (float[4] y) { y = f.a (x) }
    <domain: "f", opset_import: ["" : 20, "f" : 1]> a (u) => (v) { v = f.b (u) }
    <domain: "f", opset_import: ["" : 20, "f" : 1]> b (u) => (v) { v = f.a (u) }
    """
    with pytest.raises(InvalidInput, match="a -> b -> a"):
        load(model(body, '<ir_version: 10, opset_import: ["": 20, "f": 1]>\n'), tmp_path)


IF = """g (bool c, float[2] x) => (float[2] y) {
  before = Relu(x)
  y = If (c) <
    then_branch = t () => (float[2] o) { s = Neg(before)  o = Add(s, x) },
    else_branch = e () => (float[2] o) { s = Abs(before)  o = Add(s, k) }>
}"""


def test_branches_capture_and_never_share_names(tmp_path: Path) -> None:
    proto = model(IF)
    proto.graph.node[1].attribute[1].g.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "k"))
    proto.graph.node[1].name = "choose"
    module = load(proto, tmp_path)
    regions = dict(op(module, "%y").regions)
    assert list(regions) == ["else_branch", "then_branch"]
    assert regions["then_branch"].ops[0].operands == ("%before",)
    assert regions["else_branch"].ops[1].operands[1] == "@k"
    assert (regions["then_branch"].results, regions["else_branch"].results) == (("%o",), ("%o_1",))
    names = [v.name for region in regions.values() for o in region.ops for v in o.results]
    assert len(names) == len(set(names))
    assert regions["then_branch"].ops[0].location.path == "main/choose/then_branch"
    assert str(regions["then_branch"].ops[0].results[0].type) == "tensor<2xf32>"


def test_loop_arguments_are_region_arguments(tmp_path: Path) -> None:
    body = """g (int64 n, float[2] x) => (float[2] last, float[k,2] all) {
      last, all = Loop (n, , x) <body = b (int64 i, bool go, float[2] v) => (bool go_on, float[2] w, float[2] scan)
        { go_on = Identity(go)  w = Add(v, x)  scan = Neg(w) }>
    }"""
    region = dict(op(load(model(body), tmp_path), "%last").regions)["body"]
    assert [a.name for a in region.args] == ["%i", "%go", "%v"]
    assert region.results == ("%go_on", "%w", "%scan")
    assert region.ops[1].operands == ("%v", "%x")


def test_inner_names_may_hide_outer_ones(tmp_path: Path) -> None:
    # A loop body that calls its argument like an outer value: the two must not meet.
    body = """g (int64 n, float[2] x) => (float[2] y) {
      a = Neg(x)
      b = Loop (n, , a) <body = b (int64 i, bool go, float[2] a) => (bool go, float[2] w) { w = Abs(a) }>
      y = Add(a, b)
    }"""
    module = load(model(body), tmp_path)
    region = dict(op(module, "%b").regions)["body"]
    assert region.args[2].name == "%a_1"
    assert region.ops[0].operands == ("%a_1",)
    assert op(module, "%y").operands == ("%a", "%b")


def test_sparse_initializers_become_dense(tmp_path: Path) -> None:
    proto = model("g (float[2,3] x) => (float[2,3] y) {\n y = Add(x, s)\n}")
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "s")
    sparse = proto.graph.sparse_initializer.add(dims=[2, 3])
    sparse.values.CopyFrom(values)
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([[0, 1], [1, 2]])))
    module = load(proto, tmp_path)
    dense = read_resource(module.resources["@s"], tmp_path)
    np.testing.assert_array_equal(dense, [[0, 5, 0], [0, 0, 7]])


def test_optional_sequence_and_map_types(tmp_path: Path) -> None:
    body = """<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>
    g (seq(float[2]) s, optional(float[2]) o, float[2,3] x) => (float[2] a, bool b, seq(map(int64, float)) z) {
      zero = Constant <value_int = 0> ()
      a = SequenceAt(s, zero)
      b = OptionalHasElement(o)
      z = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2, 3]> (x)
    }"""
    module = load(model(body, ""), tmp_path)
    f32 = TensorType(DType.F32, (2,))
    assert [a.type for a in module.entry.args[:2]] == [SeqType(f32), OptionalType(f32)]
    assert op(module, "%z").name == "onnx.ai.onnx.ml.ZipMap"
    assert module.entry.results[2].type == SeqType(MapType(DType.I64, TensorType(DType.F32, ())))


def test_custom_operators_pass_with_one_warning_each(tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["": 20, "com.acme": 1]>\n'
    body = (
        "g (float[2] x) => (float[2] y) {\n a = com.acme.Odd(x)\n b = com.acme.Odd(a)\n c = com.acme.Even(b)\n y = Relu(c)\n}"
    )
    sink = DiagnosticSink()
    module = load(model(body, head), tmp_path, sink=sink)
    assert [o.name for o in module.entry.ops] == ["onnx.com.acme.Odd"] * 2 + ["onnx.com.acme.Even", "onnx.Relu"]
    found = [message for message in _warnings(sink) if "standard domain" in message]
    assert len(found) == 2
    assert any("com.acme.Odd (2 nodes)" in message for message in found)
    assert dict(module.attributes)["opset.com.acme"].value == 1


def test_quantised_operators_are_ordinary(tmp_path: Path) -> None:
    body = """g (float[4] x) => (float[4] y) <float s = {0.5}, uint8 z = {3}> {
      q = QuantizeLinear(x, s, z)
      y = DequantizeLinear(q, s, z)
    }"""
    module = load(model(body), tmp_path)
    assert str(op(module, "%q").results[0].type) == "tensor<4xu8>"


def test_empty_and_duplicate_node_names_stay_locations(tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) {\n a = Relu(x)\n b = Neg(a)\n y = Abs(b)\n}")
    proto.graph.node[0].name = proto.graph.node[1].name = "same"
    ops = load(proto, tmp_path).entry.ops
    assert [o.location for o in ops] == [Location("main", "same"), Location("main", "same"), Location("main", "")]
    assert [o.id for o in ops] == ["%a", "%b", "%y"]


def test_empty_outputs_are_named_or_dropped(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h", ""], hidden_size=2),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [3, 1, 4]), ("w", [1, 8, 4]), ("r", [1, 8, 2]))]
    proto = helper.make_model(helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", 1, [1, 1, 2])]))
    proto.opset_import[0].version = 20
    results = load(proto, tmp_path).entry.ops[0].results
    assert [v.name for v in results] == ["%h.unused0", "%h"]
    assert str(results[0].type) == "tensor<3x1x1x2xf32>"


def test_unused_inputs_and_absent_operands_stay(tmp_path: Path) -> None:
    module = load(model("g (float[2] x, float[3] spare, float hi) => (float[2] y) {\n y = Clip(x, , hi)\n}"), tmp_path)
    assert [a.name for a in module.entry.args] == ["%x", "%spare", "%hi"]
    assert module.entry.ops[0].operands == ("%x", "", "%hi")


def test_initializers_that_are_inputs_are_resources(tmp_path: Path) -> None:
    body = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> {\n y = Add(x, w)\n}"
    proto = model(body)
    if "w" not in {v.name for v in proto.graph.input}:
        proto.graph.input.add(name="w", type=helper.make_tensor_type_proto(1, [2]))
    for version, warned in ((3, 0), (10, 1)):
        proto.ir_version = version
        sink = DiagnosticSink()
        module = load(proto, tmp_path, sink=sink)
        assert [a.name for a in module.entry.args] == ["%x"]
        assert op(module, "%y").operands == ("%x", "@w")
        assert len([m for m in _warnings(sink) if "become constants" in m]) == warned


def test_a_resource_called_main_moves_the_function(tmp_path: Path) -> None:
    module = load(model("g (float[2] x) => (float[2] y) <float[2] main = {1, 2}> {\n y = Add(x, main)\n}"), tmp_path)
    assert module.entry.name == "@main_1"
    assert op(module, "%y").operands == ("%x", "@main")


def test_outputs_may_be_inputs_or_initializers(tmp_path: Path) -> None:
    module = load(model("g (float[2] x) => (float[2] x, float[1] w) <float[1] w = {1}> {}"), tmp_path)
    assert [v.name for v in module.entry.results] == ["%x", "@w"]
    assert module.entry.ops == ()


def test_strings_and_small_element_types(tmp_path: Path) -> None:
    body = "g (string[2] x, int4[3] q, float8e4m3fn[2] f) => (string[2] a, int4[3] b, float8e4m3fn[2] c) {}"
    proto = model(body, '<ir_version: 13, opset_import: ["": 24]>')
    for node in (
        helper.make_node("StringConcat", ["x", "s"], ["a"]),
        helper.make_node("Identity", ["k"], ["b"]),
        helper.make_node("Identity", ["f"], ["c"]),
    ):
        proto.graph.node.append(node)
    proto.graph.initializer.append(onnx.TensorProto(name="s", data_type=8, dims=[2], string_data=[b"\xff\x00", "é".encode()]))
    proto.graph.initializer.append(onnx.TensorProto(name="k", data_type=22, dims=[3], int32_data=[0x21, 0x0F]))
    module = load(proto, tmp_path)
    assert module.resources["@s"].data == Inline((b"\xff\x00", "é".encode()))
    assert module.resources["@k"].data == Inline(b"\x21\x0f")
    np.testing.assert_array_equal(read_resource(module.resources["@k"], tmp_path).astype(int), [1, 2, -1])
    assert [str(a.type) for a in module.entry.args] == ["tensor<2xstring>", "tensor<3xi4>", "tensor<2xf8e4m3fn>"]


@pytest.mark.parametrize("form", ["name_scopes", "namespace"])
def test_the_exporters_scope_is_the_location(tmp_path: Path, form: str) -> None:
    proto = model("g (float[2] x) => (float[2] y) {\n y = Relu(x)\n}")
    if form == "name_scopes":
        proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'enc', 'enc.act', 'relu']")
    else:
        proto.graph.node[0].metadata_props.add(key="namespace", value=": Net/enc: Enc/enc.act: ReLU/relu: aten.relu.default")
    assert load(proto, tmp_path).entry.ops[0].location == Location("main", "", "enc.act")


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) {\n y = Neg(b)\n c = Abs(x)\n b = Add(a, c)\n a = Relu(x)\n}")
    assert [o.id for o in load(proto, tmp_path).entry.ops] == ["%c", "%a", "%b", "%y"]


def test_training_information_is_ignored_with_a_warning(tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) {\n y = Relu(x)\n}")
    proto.training_info.add().algorithm.name = "sgd"
    sink = DiagnosticSink()
    assert len(load(proto, tmp_path, sink=sink).entry.ops) == 1
    assert any("training" in message for message in _warnings(sink))


def test_a_repeated_output_is_kept_once(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    module = load(model("g (float[2] x) => (float[2] y, float[2] y) {\n y = Relu(x)\n}"), tmp_path, sink=sink)
    assert [v.name for v in module.entry.results] == ["%y"]
    assert any("listed twice" in message for message in _warnings(sink))


DYNAMIC = """g (int64[batch, seq] ids, float[b2, 4] x) => (float[batch, n] y) <float[10, 4] table> {
  e = Gather(table, ids)
  s = Shape(ids)
  one = Constant <value_ints = [1]> ()
  zero = Constant <value_ints = [0]> ()
  len = Gather(s, one)
  lens = Squeeze(len, zero)
  z = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  pos = Range(z, lens, step)
  p = Cast <to = 1> (pos)
  pe = Unsqueeze(p, one)
  t = Mul(e, pe)
  m = ReduceMean <keepdims = 0> (t, one)
  y = Add(m, x)
}"""


def _dynamic() -> onnx.ModelProto:
    proto = model(DYNAMIC.replace(" <float[10, 4] table>", ""))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((10, 4), np.float32), "table"))
    return proto


def test_bound_dims_complete_every_shape(tmp_path: Path) -> None:
    module = load(_dynamic(), tmp_path, {"batch": 2, "seq": 5, "b2": "batch"})
    assert not unknown_shapes(module)
    assert str(op(module, "%pos").results[0].type) == "tensor<5xi64>"
    assert str(op(module, "%t").results[0].type) == "tensor<2x5x4xf32>"
    assert str(module.entry.results[0].type) == "tensor<2x4xf32>"


def test_names_that_onnx_invents_do_not_stay(tmp_path: Path) -> None:
    body = """g (float[n] x, float[9, 4] table) => (float[a, b] y) {
      s = Shape(x)
      zero = Constant <value_int = 0> ()
      length = Gather(s, zero)
      one = Constant <value_int = 1> ()
      pos = Range(zero, length, one)
      axis = Constant <value_ints = [0]> ()
      batch = Unsqueeze(pos, axis)
      rows = Gather(table, batch)
      y = Relu(rows)
    }""".replace("float[a, b] y", "y")
    module = load(model(body), tmp_path, {"n": 5})
    assert str(op(module, "%rows").results[0].type) == "tensor<1x5x4xf32>"
    assert not unknown_shapes(module)


def test_aliases_of_aliases(tmp_path: Path) -> None:
    module = load(_dynamic(), tmp_path, {"batch": "B", "b2": "batch", "B": 3, "seq": 2})
    assert [str(a.type) for a in module.entry.args] == ["tensor<3x2xi64>", "tensor<3x4xf32>"]


def test_unbound_dims_are_named_with_the_flags_to_add(tmp_path: Path) -> None:
    module = load(_dynamic(), tmp_path, {"seq": 5})
    with pytest.raises(InvalidInput) as raised:
        require_bound(module, "m.onnx")
    text = str(raised.value)
    assert "'batch' (dimension 0 of %ids)" in text
    assert "'b2' (dimension 0 of %x)" in text
    assert "--dim batch=1 --dim b2=batch" in text
    assert "seq" not in text


def test_arithmetic_in_dims_is_evaluated(tmp_path: Path) -> None:
    proto = model("g (float[n, a, b, c] x) => (y) {\n y = Relu(x)\n}")
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[1].dim_param, dims[2].dim_param, dims[3].dim_param = "2*n + 1", "Min(4, n)", "n // 2"
    module = load(proto, tmp_path, {"n": 6})
    assert str(module.entry.args[0].type) == "tensor<6x13x4x3xf32>"


def test_nameless_dims_get_a_name_to_bind(tmp_path: Path) -> None:
    proto = model("g (float[?, 3] x) => (y) {\n y = Relu(x)\n}")
    module = load(proto, tmp_path)
    assert str(module.entry.args[0].type) == "tensor<x_dim0 x 3 x f32>"
    assert str(load(proto, tmp_path, {"x_dim0": 7}).entry.results[0].type) == "tensor<7x3xf32>"


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"bacth": 2}, "did you mean --dim batch=2"),
        ({"batch": -1}, "cannot be -1"),
        ({"batch": "seq", "seq": "batch"}, "defined by one another"),
    ],
)
def test_wrong_dims_are_usage_errors(tmp_path: Path, dims: dict[str, int | str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(_dynamic(), tmp_path, dims)


def test_annotations_that_contradict_inference_are_ignored(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    proto = model("g (float[2,3] x) => (float[2,3] y) <float[4,3] a> {\n a = Relu(x)\n y = Neg(a)\n}")
    module = load(proto, tmp_path, sink=sink)
    assert str(op(module, "%a").results[0].type) == "tensor<2x3xf32>"
    assert any("contradict" in message for message in _warnings(sink))


def test_shapes_that_depend_on_data_stay_unknown(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    module = load(model("g (float[4] x) => (int64[1, n] y) {\n y = NonZero(x)\n}"), tmp_path, sink=sink)
    assert unknown_shapes(module) == ["%y"]


def test_opset_beyond_the_runtime_is_imported(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    head = f'<ir_version: 14, opset_import: ["": {newest}]>\n'
    module = load(model("g (float[2] x) => (float[2] y) {\n y = Relu(x)\n}", head), tmp_path)
    assert dict(module.attributes)["opset.onnx"].value == newest


def test_onnx_text_is_a_model_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnxtxt"
    path.write_text('<ir_version: 10, opset_import: ["": 20]>\ng (float[2] x) => (float[2] y) { y = Relu(x) }')
    assert import_model(path, dims={}, sink=DiagnosticSink()).module.entry.ops[0].name == "onnx.Relu"


@pytest.mark.parametrize(
    ("name", "dims"),
    [("gpt2", {"s72": 2, "s70": 16}), ("bert", {"s72": 2, "s53": 16, "s43": "s72"})],
)
def test_exports_are_complete_without_their_annotations(
    shared_dir: Path, tmp_path: Path, name: str, dims: dict[str, int | str]
) -> None:
    # onnx alone leaves 21 to 48 values open, and the names it invents must not hide what folding finds out.
    path = shared_dir / "models" / f"{name}.onnx"
    annotated = import_model(path, dims=dims, sink=DiagnosticSink()).module
    proto = onnx.load(str(path))
    del proto.graph.value_info[:]
    bare = load(proto, tmp_path, dims)
    assert not unknown_shapes(bare)
    types = {value.name: value.type for o in annotated.entry.ops for value in o.results}
    assert {value.name: value.type for o in bare.entry.ops for value in o.results} == types
