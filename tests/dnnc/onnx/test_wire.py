"""The wire walker: payloads are cut and addressed, nothing else changes, and what is no model fails at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from dnnc.onnx.protobuf.varint import varint
from dnnc.onnx.protobuf.wire import INLINE_LIMIT, SELF, WireError, skeleton


def _model(tensors: list[onnx.TensorProto], nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    graph = helper.make_graph(nodes or [], "g", [], [], initializer=tensors)
    return helper.make_model(graph, producer_name="p" * 2000)


def _location(tensor: onnx.TensorProto) -> tuple[int, int]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    assert entries["location"] == SELF
    return int(entries["offset"]), int(entries["length"])


@given(st.lists(st.tuples(st.sampled_from(["raw", "typed"]), st.sampled_from([1, 11, 14]), st.integers(0, 900)), max_size=6))
def test_every_payload_is_found_where_it_says(specs: list[tuple[str, int, int]]) -> None:
    rng = np.random.default_rng(0)
    arrays, tensors = [], []
    for index, (form, elem, count) in enumerate(specs):
        dtype = helper.tensor_dtype_to_np_dtype(elem)
        array = rng.standard_normal(count).astype(dtype)
        arrays.append(array)
        if form == "raw":
            tensors.append(numpy_helper.from_array(array, f"t{index}"))
        else:
            tensors.append(helper.make_tensor(f"t{index}", elem, [count], array))
    data = _model(tensors).SerializeToString()
    parsed = onnx.ModelProto.FromString(skeleton(data))
    for array, original, tensor in zip(arrays, tensors, parsed.graph.initializer, strict=True):
        assert (tensor.name, list(tensor.dims), tensor.data_type) == (original.name, list(original.dims), original.data_type)
        if array.nbytes >= INLINE_LIMIT:
            offset, length = _location(tensor)
            assert data[offset : offset + length] == array.tobytes()
            assert not tensor.raw_data
            assert not tensor.float_data
        else:
            assert tensor == original


def test_without_large_tensors_nothing_changes() -> None:
    model = _model([numpy_helper.from_array(np.arange(9), "small")])
    assert skeleton(model.SerializeToString()) == model.SerializeToString()


def test_a_stated_location_does_not_hide_the_reference() -> None:
    """Quantising tools state `data_location = DEFAULT` after the payload; the reference to the payload must still win."""
    tensor = numpy_helper.from_array(np.arange(600, dtype=np.float32), "t")
    tensor.data_location = onnx.TensorProto.DEFAULT
    data = _model([tensor]).SerializeToString()
    (parsed,) = onnx.ModelProto.FromString(skeleton(data)).graph.initializer
    assert parsed.data_location == onnx.TensorProto.EXTERNAL
    offset, length = _location(parsed)
    assert data[offset : offset + length] == tensor.raw_data


def test_payloads_in_nested_graphs_are_found() -> None:
    array = np.arange(600, dtype=np.float32)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(array, "v"))
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", 1, [600])])
    model = _model([], [helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)])
    data = model.SerializeToString()
    parsed = onnx.ModelProto.FromString(skeleton(data))
    for attribute in parsed.graph.node[0].attribute:
        offset, length = _location(attribute.g.node[0].attribute[0].t)
        assert data[offset : offset + length] == array.tobytes()


def test_integers_in_varints_have_no_bytes_to_point_at() -> None:
    tensor = onnx.TensorProto(name="t", data_type=7, dims=[600], int64_data=range(600))
    parsed = onnx.ModelProto.FromString(skeleton(_model([tensor]).SerializeToString()))
    assert list(parsed.graph.initializer[0].int64_data) == list(range(600))


def _fault(data: bytes) -> WireError | None:
    try:
        onnx.ModelProto.FromString(skeleton(data))
    except WireError as error:
        return error
    except Exception:  # protobuf's own, for text that is not UTF-8 and the like
        return None
    return None


def test_a_file_cut_anywhere_is_truncated_or_still_whole() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="n" * 300)
    data = _model([numpy_helper.from_array(np.zeros(300, np.float32), "t")], [node]).SerializeToString()
    faults = {cut: fault for cut in range(len(data)) if (fault := _fault(data[:cut]))}
    assert [cut for cut, fault in faults.items() if not fault.truncated] == []
    # Only behind the graph can a cut fall between two fields.
    assert min(set(range(len(data))) - set(faults)) > 1500


@given(st.binary(min_size=1, max_size=300))
def test_noise_raises_nothing_but_wire_errors(noise: bytes) -> None:
    fault = _fault(noise)
    assert fault is None or 0 <= fault.offset <= len(noise)


@pytest.mark.parametrize(
    "head", [b"", b"\x3a\x80\x80\x80\x80\x01", b"\x08\x0a\x3a"], ids=["zeros", "long graph", "broken length"]
)
def test_large_noise_fails_in_little_memory(head: bytes) -> None:
    data = head + bytes(50 << 20)
    tracemalloc.start()
    with pytest.raises(WireError):
        skeleton(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_nesting_is_bounded() -> None:
    data = bytes(INLINE_LIMIT)
    for _ in range(150):
        for tag in (0x32, 0x2A, 0x0A):  # graph in attribute in node in graph
            size = len(data)
            data = bytes([tag]) + varint(size) + data
    with pytest.raises(WireError, match=r"nested|wire type"):
        skeleton(b"\x3a" + varint(len(data)) + data)
