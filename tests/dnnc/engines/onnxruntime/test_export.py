"""Export is the inverse of import: the same ops at the same places, and the same numbers from onnxruntime."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from dnnc.onnx import import_model
from dnnc.onnx.importer.read import import_proto
from ir import parse_module, print_module
from ir.core.attributes import attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Declared, External, Func, Module, Random, Resource, Splat, Stage
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from tests.dnnc.onnx.models import load, model
from tests.slow_cases import slow_but


def _exported(module: Module, folder: Path, **options: Any) -> onnx.ModelProto:
    proto = onnx_ir.to_proto(export_func(module, module.entry, tensors=reading_tensors(folder), **options))
    return onnx.ModelProto.FromString(proto.SerializeToString())


def _run(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # As written: fusions differ with the names of nodes, and this is about the same program, bit by bit.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: list[Any] = session.run(None, dict(feeds))
    return result


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if a is None or b is None or isinstance(a, dict):
        return bool(a == b)
    left, right = np.asarray(a), np.asarray(b)
    return left.shape == right.shape and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


BODIES = {
    "if": """g (bool c, float[2] x) => (float[2] y) {
      before = Relu(x)
      y = If (c) <
        then_branch = t () => (float[2] o) { s = Neg(before)  o = Add(s, x) },
        else_branch = e () => (float[2] o) { s = Abs(before)  o = Mul(s, x) }>
    }""",
    "loop": """g (int64 n, float[2] x) => (float[2] last, float[k, 2] all) {
      last, all = Loop (n, , x) <
        body = b (int64 i, bool go, float[2] v) => (bool go_on, float[2] w, float[2] scan)
          { go_on = Identity(go)  w = Add(v, x)  scan = Neg(w) }>
    }""",
    "branch hands a captured value out": """g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <
        then_branch = t () => (float[2] o) { o = Neg(x) },
        else_branch = e () => (float[2] k) <float[2] k = {1, 2}> {}>
    }""",
    "through": "g (float[2] x) => (float[2] x, float[2] w, float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
    "optional inputs": "g (float[2] x, float hi) => (float[2] y) { y = Clip(x, , hi) }",
}
FEEDS = {
    "if": {"c": np.array(True), "x": np.array([1, -2], np.float32)},
    "loop": {"n": np.array(3), "x": np.array([1, -2], np.float32)},
    "branch hands a captured value out": {"c": np.array(False), "x": np.array([1, -2], np.float32)},
    "through": {"x": np.array([1, -2], np.float32)},
    "optional inputs": {"x": np.array([1, -2], np.float32), "hi": np.array(0, np.float32)},
}


@pytest.mark.parametrize("name", BODIES)
def test_control_flow_and_corners_run_the_same(tmp_path: Path, name: str) -> None:
    proto = model(BODIES[name])
    module = load(proto, tmp_path)
    exported = _exported(module, tmp_path)
    assert _same(_run(exported, FEEDS[name]), _run(proto, FEEDS[name]))
    onnx.checker.check_model(exported)


def _cases() -> list[Any]:
    """Node tests of every sixth file of the onnx package: a file computes what its tests expect as it is imported."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, meanwhile
        for module in sorted(one.name for one in pkgutil.iter_modules(node.__path__))[::6]:
            importlib.import_module(f"{node.__name__}.{module}")
    return list(node._NodeTestCases)


def _round_trips(case: Any) -> str:
    """What the trip of a node test of the onnx package ended in: ``ran`` or why the original does not run."""
    raw = case.model.SerializeToString()
    sink = DiagnosticSink()
    module = import_proto(onnx.ModelProto.FromString(raw), where=case.name, sink=sink)
    assert parse_module(print_module(module)) == module, case.name
    version = 10 if case.model.ir_version < 14 else 13
    exported = _exported(module, Path(), opset_limit=None, ir_version=version)
    again = import_proto(onnx.ModelProto.FromString(exported.SerializeToString()), where=case.name)
    assert again.entry == module.entry, case.name
    original = onnx.ModelProto.FromString(raw)
    original.ir_version = min(original.ir_version, version)
    inputs, _ = case.data_sets[0]
    feeds = dict(zip((value.name for value in original.graph.input), inputs, strict=False))
    try:
        expected = _run(original, feeds)
    except Exception:  # onnxruntime raises its own family, unrelated to one another
        return "not run by onnxruntime"
    assert _same(_run(exported, feeds), expected), case.name
    return "ran"


@pytest.mark.slow
def test_onnx_node_tests_round_trip() -> None:
    outcomes = [_round_trips(case) for case in _cases()[::4]]
    assert outcomes.count("ran") > 40


SHARED = {
    "bert": {"s72": 2, "s53": 16, "s43": "s72"},
    "gpt2": {"s72": 2, "s70": 16},
    "llama": {"s72": "batch", "batch": 2, "s70": 16},
    "resnet": {"s99": 2},
    "vit": {"s99": 2},
}


@pytest.mark.parametrize("name", slow_but(SHARED, "bert", "resnet"))
def test_shared_models_run_the_same(shared_dir: Path, name: str) -> None:
    path = shared_dir / "models" / f"{name}.onnx"
    sink = DiagnosticSink()
    imported = import_model(path, dims=SHARED[name], sink=sink)
    assert sink.diagnostics == []
    exported = _exported(imported.module, imported.files)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for arg in imported.module.entry.args:
        assert isinstance(arg.type, TensorType)
        shape = tuple(dim for dim in arg.type.shape or () if isinstance(dim, int))
        integer = arg.type.dtype is DType.I64
        feeds[arg.name[1:]] = np.ones(shape, np.int64) if integer else rng.standard_normal(shape).astype(np.float32)
    assert _same(_run(exported, feeds), _run(onnx.load(str(path)), feeds))
    again = import_proto(exported, where=name, name=name)
    assert again.entry == imported.module.entry


LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_import_and_export_the_same(path: Path) -> None:
    imported = import_model(path, dims={}, sink=DiagnosticSink())
    exported = _exported(imported.module, imported.files)
    again = import_proto(exported, where=path.stem, name=path.stem)
    assert again.entry == imported.module.entry


def test_a_stage_takes_what_it_receives_and_gives_what_it_sends_once() -> None:
    f32 = TensorType(DType.F32, (2,))
    ops = (
        Op("comm.recv", (), (Value("%a", f32),)),
        Op("onnx.Relu", ("%a",), (Value("%b", f32),)),
        Op("comm.send", ("%b",)),
        Op("comm.send", ("%b",)),
        Op("onnx.Add", ("%b", "%x"), (Value("%y", f32),)),
    )
    stage = Stage("@stage1", 1, ("d",), (Value("%x", f32),), (Value("%y", f32),), ops)
    module = Module("@m", (stage,), attributes({"opset.onnx": 20}))
    proto = onnx_ir.to_proto(export_func(module, stage))
    assert [v.name for v in proto.graph.input] == ["x", "a"]
    assert [v.name for v in proto.graph.output] == ["y", "b"]
    feeds = {"x": np.array([1, 1], np.float32), "a": np.array([-1, 3], np.float32)}
    assert _same(_run(proto, feeds), [np.array([1, 4], np.float32), np.array([0, 3], np.float32)])


def _with_weight(tmp_path: Path, count: int = 512) -> Module:
    proto = model(f"g (float[{count}] x) => (float[{count}] y) {{ y = Add(x, w) }}")
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(count, dtype=np.float32), "w"))
    return load(proto, tmp_path)


def test_external_weights_are_referred_to_not_read(tmp_path: Path) -> None:
    module = _with_weight(tmp_path)
    (tmp_path / "m.onnx").unlink()
    tensor = onnx_ir.to_proto(export_func(module, module.entry)).graph.initializer[0]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    data = module.resources["@w"].data
    assert isinstance(data, External)
    assert entries == {"location": "m.onnx", "offset": str(data.offset), "length": "2048"}


def test_generated_weights_are_made_when_written(tmp_path: Path) -> None:
    module = _with_weight(tmp_path)
    resource = module.resources["@w"]
    feeds = {"x": np.zeros(512, np.float32)}
    splat = module.replace(resource, replace(resource, data=Splat(2.0)))
    proto = onnx_ir.to_proto(export_func(splat, splat.entry))
    np.testing.assert_array_equal(_run(proto, feeds)[0], np.full(512, 2, np.float32))
    drawn = module.replace(resource, replace(resource, data=Random("normal", 7)))
    proto = onnx_ir.to_proto(export_func(drawn, drawn.entry))
    values = _run(proto, feeds)[0]
    assert abs(values.mean()) < 0.2
    assert 0.8 < values.std() < 1.2


def test_declared_weights_cannot_be_written(tmp_path: Path) -> None:
    module = _with_weight(tmp_path)
    resource = module.resources["@w"]
    declared = module.replace(resource, replace(resource, data=Declared()))
    with pytest.raises(InvalidInput, match=r"@w: error\[E0601\]: the weight is declared without data"):
        export_func(declared, declared.entry)


def test_a_weight_and_a_value_of_one_name_part() -> None:
    f32 = TensorType(DType.F32, (2,))
    resource = Resource("@y", f32, Splat(1.0))
    func = Func("@main", (Value("%x", f32),), (Value("%y", f32),), (Op("onnx.Add", ("%x", "@y"), (Value("%y", f32),)),))
    module = Module("@m", (resource, func), attributes({"opset.onnx": 20}))
    proto = onnx_ir.to_proto(export_func(module, func))
    assert proto.graph.initializer[0].name == "y_1"
    assert _same(_run(proto, {"x": np.array([1, 2], np.float32)}), [np.array([2, 3], np.float32)])


def test_nodes_of_a_function_called_twice_have_names_of_their_own(tmp_path: Path) -> None:
    """A function is inlined at each call with the names of its nodes, and onnxruntime refuses two nodes of one name."""
    inner = [helper.make_node("Relu", ["p"], ["q"], name="n"), helper.make_node("Neg", ["q"], ["r"], name="n")]
    function = helper.make_function("f", "F", ["p"], ["r"], inner, [helper.make_opsetid("", 20)])
    calls = [
        helper.make_node("F", ["x"], ["a"], domain="f", name="first"),
        helper.make_node("F", ["a"], ["y"], domain="f", name="second"),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    graph = helper.make_graph(calls, "g", [x], [y])
    proto = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    exported = _exported(import_proto(proto, where="m"), tmp_path)
    assert [node.name for node in exported.graph.node] == ["n", "n_1", "n_2", "n_3"]
    (result,) = _run(exported, {"x": np.float32([-1.0, 2.0])})
    assert result.tolist() == [0.0, 0.0]


def test_locations_go_back(tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["": 20, "f": 1]>\n'
    body = 'g (float[4] x) => (float[4] y) { y = f.fn(x) }\n<domain: "f", opset_import: ["": 20]> fn (u) => (v) { v = Relu(u) }'
    proto = model(body, head)
    proto.graph.node[0].name = "call"
    module = load(proto, tmp_path)
    node = _exported(module, tmp_path).graph.node[0]
    assert {entry.key: entry.value for entry in node.metadata_props} == {"dnnc.path": "call:fn"}
    assert load(_exported(module, tmp_path), tmp_path).entry == module.entry


def test_a_newer_opset_is_lowered_where_nothing_changed(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }", f'<ir_version: 10, opset_import: ["": {newest}]>\n')
    exported = _exported(load(proto, tmp_path), tmp_path)
    assert exported.opset_import[0].version == 26
    assert _same(_run(exported, {"x": np.array([-1, 1], np.float32)}), [np.array([0, 1], np.float32)])


def test_an_operator_that_no_older_opset_has_is_named(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    newer = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.since_version > 26]
    older = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.since_version <= 26}
    new = min(s.name for s in newer if s.name not in older)
    schema = onnx.defs.get_schema(new, newest)
    inputs = [f"x{index}" for index in range(schema.min_input)]
    node = helper.make_node(new, inputs, ["y", "z"][: schema.min_output])
    node.attribute.extend(_any_value(a) for a in schema.attributes.values() if a.required)
    infos = [helper.make_tensor_value_info(name, 1, None) for name in [*inputs, "y"]]
    proto = helper.make_model(helper.make_graph([node], "g", infos[:-1], infos[-1:]))
    proto.opset_import[0].version = newest
    module = load(proto, tmp_path)
    with pytest.raises(InvalidInput, match=f"onnxruntime takes 26 at most; .*{new}") as raised:
        export_func(module, module.entry)
    assert "opset 26 or older" in raised.value.diagnostics[0].hint


def _any_value(attribute: onnx.defs.OpSchema.Attribute) -> onnx.AttributeProto:
    kind = str(attribute.type).rpartition(".")[2]
    values: dict[str, Any] = {"INT": 1, "FLOAT": 1.0, "STRING": "a", "INTS": [1], "FLOATS": [1.0], "STRINGS": ["a"]}
    return helper.make_attribute(attribute.name, values[kind])


def test_ops_that_onnx_lacks_are_refused() -> None:
    func = Func("@main", (), (), (Op("dnnc.work", (), (Value("%y"),)),))
    with pytest.raises(InvalidInput, match=r"%y is dnnc.work"):
        export_func(Module("@m", (func,), attributes({"opset.onnx": 20})), func)
