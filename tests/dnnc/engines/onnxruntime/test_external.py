"""Models whose weights are in files that are open already: onnxruntime reads those files, not what their paths lead to now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from dnnc.engines.onnxruntime.session.external import open_path
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.protobuf.places import locations, relocated

WEIGHTS = np.arange(64, dtype=np.float32).reshape(8, 8)


def external(name: str, location: str, offset: int = 0) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(WEIGHTS, name)
    onnx.external_data_helper.set_external_data(tensor, location, offset, WEIGHTS.nbytes)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return tensor


def model(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    """y = x + every one of the tensors."""
    graph = onnx.parser.parse_graph("g (float[8,8] x) => (float[8,8] y) { y = Sum(x) }")
    graph.node[0].input.extend(tensor.name for tensor in tensors)
    graph.initializer.extend(tensors)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    (tmp_path / "weights.data").write_bytes(bytes(64) + WEIGHTS.tobytes())
    descriptor = os.open(tmp_path / "weights.data", os.O_RDONLY)
    yield tmp_path / "weights.data", descriptor
    os.close(descriptor)


def result(program: Program) -> np.ndarray:
    return np.asarray(program.session.run(None, {"x": np.zeros((8, 8), np.float32)})[0])


def program(proto: onnx.ModelProto, **weights: int) -> Program:
    files = {f"{name}.data": descriptor for name, descriptor in weights.items()}
    return Program(proto.SerializeToString(), (ValueSpec("y", 1, (8, 8)),), weights=files)


@pytest.mark.parametrize("fate", ["stays", "is replaced", "is deleted"])
def test_the_open_file_is_read(opened: tuple[Path, int], fate: str) -> None:
    path, descriptor = opened
    if fate == "is deleted":
        path.unlink()
    elif fate == "is replaced":
        (path.parent / "other").write_bytes(bytes(64) + bytes(WEIGHTS.nbytes))
        os.replace(path.parent / "other", path)
    assert bool(open_path(descriptor)) == (fate == "stays")
    found = result(program(model(external("a", "weights.data", 64), external("b", "weights.data", 64)), weights=descriptor))
    np.testing.assert_array_equal(found, 2 * WEIGHTS)


def test_the_file_is_mapped_and_not_copied(opened: tuple[Path, int]) -> None:
    """Processes of one build share the pages of its weights."""
    path, descriptor = opened
    loaded = program(model(external("a", "weights.data", 64)), weights=descriptor)
    assert str(path) in Path("/proc/self/maps").read_text()
    np.testing.assert_array_equal(result(loaded), WEIGHTS)


def test_another_file_is_refused(opened: tuple[Path, int]) -> None:
    """Though it is there: what was not verified is not read."""
    path, descriptor = opened
    (path.parent / "other.data").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ValueError, match=r"refers to 'other\.data', which is no weights file of the build"):
        program(model(external("a", "weights.data"), external("b", "other.data")), weights=descriptor)


def test_every_tensor_is_found() -> None:
    """Of initializers, attributes, subgraphs, sparse tensors and functions."""
    proto = model(external("a", "one"), external("b", "two"))
    inner = onnx.parser.parse_graph("t () => (float[8,8] z) { z = Identity(c) }")
    inner.initializer.append(external("c", "three"))
    inner.node.append(helper.make_node("Constant", [], ["k"], value=external("k", "four")))
    proto.graph.node.append(helper.make_node("If", ["x"], ["u"], then_branch=inner, else_branch=inner))
    sparse = proto.graph.sparse_initializer.add()
    sparse.values.CopyFrom(external("s", "five"))
    body = [helper.make_node("Constant", [], ["o"], value=external("f", "six"))]
    proto.functions.append(helper.make_function("d", "F", [], ["o"], body, [helper.make_opsetid("", 20)]))
    assert sorted(locations(proto.SerializeToString())) == ["five", "four", "one", "six", "three", "two"]


@given(st.text(min_size=1, max_size=300), st.text(max_size=200), st.integers(0, 3))
def test_only_the_location_changes(location: str, other: str, count: int) -> None:
    tensors = [external(f"t{number}", other, 64) for number in range(count)]
    proto = model(*tensors, numpy_helper.from_array(np.frombuffer(b"\x0a\x08location\x12\x01a__", np.uint8), "raw"))
    wanted = onnx.ModelProto()
    wanted.CopyFrom(proto)
    for tensor in wanted.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    assert onnx.load_model_from_string(relocated(proto.SerializeToString(), lambda name: location)) == wanted


@given(st.binary(max_size=400), st.integers(0, 400))
def test_noise_is_refused_or_kept(noise: bytes, cut: int) -> None:
    data = model(external("a", "weights.data")).SerializeToString()
    for text in (noise, data[:cut] + noise, data[:cut] + noise + data[cut:]):
        try:
            kept = relocated(text, lambda name: name)
        except ValueError:
            continue
        assert locations(kept) == locations(text)
