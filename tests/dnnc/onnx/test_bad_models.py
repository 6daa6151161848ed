"""Bad models: each fault is named with its place, plainly, as InvalidInput; never a traceback, never a hang."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.compile.load import load_model
from dnnc.onnx import import_model
from ir.core.diagnostics import DiagnosticSink, InvalidInput, Severity
from tests.dnnc.onnx.models import HEAD, model, save

pytestmark = pytest.mark.usefixtures("inference_in_a_child")


def _refused(path: Path) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        import_model(path, dims={}, sink=DiagnosticSink())
    assert all(d.where for d in raised.value.diagnostics)
    assert path.name in str(raised.value)
    return raised.value


def _whole(tmp_path: Path) -> Path:
    proto = model("g (float[512] x) => (float[512] y) {\n y = Add(x, w)\n}")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(512, np.float32), "w"))
    return save(proto, tmp_path)


def test_truncated_file(tmp_path: Path) -> None:
    path = _whole(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    error = _refused(path)
    assert "ends too early" in str(error)
    assert "truncated" in error.diagnostics[0].hint


@pytest.mark.parametrize(
    ("number", "words"), [(0, "graph input 'x' states no element type"), (77, "has element type 77, which is not one of ONNX")]
)
def test_input_without_an_element_type(tmp_path: Path, number: int, words: str) -> None:
    proto = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.elem_type = number
    assert words in str(_refused(save(proto, tmp_path)))


def test_an_endless_range_is_not_written_out(tmp_path: Path) -> None:
    body = """g (float[4] x) => (float[4] y) <int64 a = {0}, int64 b = {1000000000000}, int64 d = {1}> {
        r = Range(a, b, d)  f = Cast<to = 1>(r)  s = ReduceSum<keepdims = 0>(f)  y = Add(x, s) }"""
    module = import_model(save(model(body), tmp_path), dims={}, sink=DiagnosticSink()).module
    assert str(module.entry.ops[0].results[0].type) == "tensor<1000000000000xi64>"


def test_no_outputs(tmp_path: Path) -> None:
    proto = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    del proto.graph.output[:]
    assert "the model has no outputs" in str(_refused(save(proto, tmp_path)))


def test_an_opset_that_never_was(tmp_path: Path) -> None:
    proto = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    proto.opset_import[0].version = -1
    assert "opset -1 does not exist" in str(_refused(save(proto, tmp_path)))


def test_functions_that_double(tmp_path: Path) -> None:
    """Each of 60 functions calls the former twice."""
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("f", 1)]
    functions = []
    for level in range(60):
        op, domain = ("Relu", "") if not level else (f"f{level - 1}", "f")
        calls = [onnx.helper.make_node(op, [a], [b], domain=domain) for a, b in (("p", "q"), ("q", "r"))]
        functions.append(onnx.helper.make_function("f", f"f{level}", ["p"], ["r"], calls, opsets))
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("f59", ["x"], ["y"], domain="f")], "g", [x], [y])
    proto = onnx.helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)
    assert f"expand to {2**60} nodes" in str(_refused(save(proto, tmp_path)))


@pytest.mark.parametrize(
    ("indices", "dims", "words"),
    [
        ([0, -1], [4, 4], "index -1 is negative"),
        ([0, 99], [4, 4], "99 is out of bounds"),
        ([0, 1], [2**20, 2**20], "does not fit"),
    ],
)
def test_sparse_initializers(tmp_path: Path, indices: list[int], dims: list[int], words: str) -> None:
    proto = model("g (float[4,4] x) => (float[4,4] y) { y = Add(x, s) }")
    values = numpy_helper.from_array(np.ones(2, np.float32), "s")
    at = numpy_helper.from_array(np.array(indices, np.int64), "i")
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, at, dims))
    assert words in str(_refused(save(proto, tmp_path)))


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    assert "empty" in str(_refused(path))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello, this is a text\n" * 20, "text"),
        (b'{"graph": []}', "text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG image"),
        (b"PK\x03\x04" + bytes(100), "ZIP archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"\x89HDF\r\n" + bytes(50), "HDF5"),
        (bytes(4096), "not an ONNX model"),
        (b"\x08\x0a" + b"\xff" * 4000, "not an ONNX model"),
    ],
)
def test_other_files(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert words in str(_refused(path))


def test_random_noise(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.onnx", random.Random(1)
    for _ in range(200):
        path.write_bytes(rng.randbytes(rng.randrange(1, 400)))
        _refused(path)


@pytest.mark.parametrize(
    "head", [b"", b"\x3a\x80\x80\x80\x80\x04", b"\x32\xf0\xff\xff\xff\x03"], ids=["zeros", "graph", "text"]
)
def test_a_gigabyte_of_noise_fails_in_little_memory(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.write(head)
        file.truncate((1 << 30) + 6)
    tracemalloc.start()
    _refused(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    _whole(tmp_path)
    error = _refused(tmp_path)
    assert "a folder" in str(error)
    assert "m.onnx" in error.diagnostics[0].hint


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in str(_refused(tmp_path / "absent.onnx"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = _whole(tmp_path)
    path.chmod(0)
    assert "Permission denied" in str(_refused(path))


def test_no_permission_is_told_whoever_runs_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _whole(tmp_path)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert "Permission denied" in str(_refused(path))


def _graph_fault(body: str, tmp_path: Path, head: str = HEAD) -> str:
    return str(_refused(save(model(body, head), tmp_path)))


def test_cycle(tmp_path: Path) -> None:
    text = _graph_fault("g (float[2] x) => (float[2] y) {\n a = Add(x, c)\n b = Neg(a)\n c = Abs(b)\n y = Relu(x)\n}", tmp_path)
    assert "cycle: node #0 (Add, makes 'a') -> node #1 (Neg, makes 'b') -> node #2 (Abs, makes 'c') -> node #0" in text


def test_dangling_input(tmp_path: Path) -> None:
    proto = model("g (float[2] hidden) => (float[2] y) {\n y = Add(hidden, hiden)\n}")
    proto.graph.node[0].name = "add"
    text = str(_refused(save(proto, tmp_path)))
    assert "m.onnx: node 'add' (Add)" in text
    assert "'hiden' is made by no node" in text
    assert "did you mean 'hidden'?" in text


def test_dangling_input_inside_a_branch(tmp_path: Path) -> None:
    body = """g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <then_branch = t () => (float[2] o) { o = Neg(nothing) }, else_branch = e () => (float[2] o) { o = Neg(x) }>
    }"""
    text = _graph_fault(body, tmp_path)
    assert "then_branch" in text
    assert "'nothing'" in text


def test_dangling_output(tmp_path: Path) -> None:
    assert "graph output 'z' is made by no node" in _graph_fault("g (float[2] x) => (float[2] z) {\n y = Relu(x)\n}", tmp_path)


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    text = _graph_fault("g (float[2] x) => (float[2] y) {\n a = Relu(p)\n b = Relu(q)\n y = Reluu(x)\n}", tmp_path)
    assert "'p'" in text
    assert "'q'" in text
    assert "no operator Reluu" in text


@pytest.mark.parametrize(
    ("line", "head", "words"),
    [
        ("y = Reluu(x)", HEAD, "did you mean Relu?"),
        ("y = Gelu(x)", HEAD.replace("20", "18"), "it came with opset 20"),
        ("y = Add(x)", HEAD, "Add has 1 inputs, 2 were expected"),
        ("y = Relu(x, x)", HEAD, "Relu has 2 inputs, 1 were expected"),
        ("y = Cast(x)", HEAD, "Cast needs the attribute 'to'"),
        ("y = LeakyRelu <alfa = 1.0> (x)", HEAD, "did you mean 'alpha'?"),
        ("y = f.Op(x)", HEAD, "domain 'f', which the model does not import"),
        ("y = Relu(x)", HEAD.replace("20", "99"), "newer than the installed onnx"),
        ("y = Upsample(x)", HEAD.replace("20", "6"), "older than the oldest supported"),
    ],
)
def test_operators_that_are_not(tmp_path: Path, line: str, head: str, words: str) -> None:
    assert words in _graph_fault("g (float[2] x) => (float[2] y) {\n " + line + "\n}", tmp_path, head)


def test_missing_opset_import(tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) {\n y = Relu(x)\n}")
    del proto.opset_import[:]
    assert "imports no opset" in str(_refused(save(proto, tmp_path)))


def test_values_defined_twice(tmp_path: Path) -> None:
    text = _graph_fault("g (float[2] x) => (float[2] y) {\n y = Relu(x)\n y = Neg(x)\n}", tmp_path)
    assert "'y' is defined twice: by node #0 (Relu, makes 'y') and by node #1 (Neg, makes 'y')" in text


def test_input_redefined_by_a_node(tmp_path: Path) -> None:
    assert "'x' is defined twice: by a graph input" in _graph_fault(
        "g (float[2] x) => (float[2] x) {\n x = Relu(x)\n}", tmp_path
    )


def _with_data(tmp_path: Path, **entries: str) -> onnx.ModelProto:
    proto = model("g (float[4] x) => (float[4] y) {\n y = Add(x, w)\n}")
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def test_missing_weight_file(tmp_path: Path) -> None:
    text = str(_refused(save(_with_data(tmp_path, location="w.data"), tmp_path)))
    assert "the weight file 'w.data' is missing" in text


def test_short_weight_file(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(20))
    text = str(_refused(save(_with_data(tmp_path, location="w.data", offset="8"), tmp_path)))
    assert "'w.data' has 20 bytes; @w ends at byte 24" in text


def test_missing_weights_may_be_allowed(tmp_path: Path) -> None:
    sink = DiagnosticSink()
    path = save(_with_data(tmp_path, location="w.data"), tmp_path)
    module = load_model(str(path), {}, sink, allow_missing_weights=True).module
    assert str(module.entry.results[0].type) == "tensor<4xf32>"
    assert [d.severity for d in sink.diagnostics] == [Severity.WARNING]


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.data", "sub/../../w.data", "C:\\w.data", "..\\w.data", ""], ids=repr)
def test_weights_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.data").write_bytes(bytes(16))
    text = str(_refused(save(_with_data(folder, location=location), folder)))
    assert "initializer 'w'" in text
    assert "folder" in text


@pytest.mark.parametrize("link", ["file", "folder"])
def test_weights_behind_a_link_that_leaves_the_folder(tmp_path: Path, link: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "w.data").write_bytes(bytes(16))
    location = "w.data" if link == "file" else "sub/w.data"
    (folder / location.split("/")[0]).symlink_to(tmp_path / "out" / "w.data" if link == "file" else tmp_path / "out")
    assert "leaves the model's folder" in str(_refused(save(_with_data(folder, location=location), folder)))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "w.data", "length": "12"}, "needs 16 bytes, 12 are given"),
        ({"location": "w.data", "offset": "-4"}, "must be numbers of bytes, found '-4'"),
        ({"location": "w.data", "offset": "four"}, "must be numbers"),
    ],
)
def test_wrong_external_entries(tmp_path: Path, entries: dict[str, str], words: str) -> None:
    (tmp_path / "w.data").write_bytes(bytes(64))
    assert words in str(_refused(save(_with_data(tmp_path, **entries), tmp_path)))


@pytest.mark.parametrize("count", [3, 600])
def test_initializer_of_the_wrong_length(tmp_path: Path, count: int) -> None:
    proto = model("g (float[x] x) => (float[x] y) {\n y = Add(x, w)\n}")
    proto.graph.initializer.append(onnx.TensorProto(name="w", data_type=1, dims=[count + 1], raw_data=bytes(4 * count)))
    text = str(_refused(save(proto, tmp_path)))
    assert f"initializer 'w': tensor<{count + 1}xf32> needs {4 * count + 4} bytes, {4 * count} are given" in text


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (onnx.TensorProto(name="w", data_type=99, dims=[1], raw_data=b"0"), "element type 99"),
        (onnx.TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"0000"), "negative dimension"),
        (onnx.TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a"]), "needs 2 strings, 1 are given"),
    ],
)
def test_broken_initializers(tmp_path: Path, tensor: onnx.TensorProto, words: str) -> None:
    proto = model("g (float[2] x) => (y) {\n y = Identity(w)\n}")
    proto.graph.initializer.append(tensor)
    assert words in str(_refused(save(proto, tmp_path)))


def test_sparse_indices_outside_the_shape(tmp_path: Path) -> None:
    proto = model("g (float[4] x) => (float[4] y) {\n y = Add(x, s)\n}")
    sparse = proto.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([5], np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([4])))
    assert "sparse initializer 's': its sparse indices do not fit" in str(_refused(save(proto, tmp_path)))


def test_impossible_shapes_are_refused_with_the_operator(tmp_path: Path) -> None:
    path = save(model("g (float[2,3] x, float[4,5] w) => (y) {\n y = MatMul(x, w)\n}"), tmp_path)
    assert "node #0 (MatMul, makes 'y'): error[E1649]: MatMul cannot run: Incompatible dimensions" in str(_refused(path))


def test_not_onnx_text(tmp_path: Path) -> None:
    path = tmp_path / "m.onnxtxt"
    path.write_text("this is no model")
    assert "not valid ONNX text" in str(_refused(path))


def test_ir_text_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "m.ir"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="binary data"):
        load_model(str(path), {}, DiagnosticSink())
    with pytest.raises(InvalidInput, match="no such file"):
        load_model(str(tmp_path / "absent.ir"), {}, DiagnosticSink())


def test_sparse_strings_are_told(tmp_path: Path) -> None:
    values = onnx.helper.make_tensor("w", onnx.TensorProto.STRING, [2], [b"a", b"b"])
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [2], [0, 2])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [4])],
        sparse_initializer=[onnx.helper.make_sparse_tensor(values, indices, [4])],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match="sparse initializer 'w': sparse strings have no value for what is left out"):
        load_model(str(tmp_path / "m.onnx"), {}, DiagnosticSink())
