"""What onnxruntime and onnx say of a model they refuse, without the place in their own source code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from dnnc.engines.onnxruntime.write.load_test import load_test
from dnnc.onnx import import_model
from dnnc.onnx.ort import load_onnxruntime, plain_words
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from tests.dnnc.onnx.models import save
from tests.dnnc.onnx.test_hostile_models import simple

_TRACE = re.compile(r"\.(cc|h):\d+|onnxruntime_src|/project/|onnxruntime::|ONNXRuntimeError")


def with_contrib(*nodes: onnx.NodeProto, x: list[object], **values: np.ndarray) -> onnx.ModelProto:
    proto = simple(*nodes, x=(1, x), **values)
    proto.opset_import.add(domain="com.microsoft", version=1)
    return proto


def lstm(hidden: int) -> onnx.ModelProto:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)
    weights = {"w": np.zeros((1, 16, 3), np.float32), "r": np.zeros((1, 16, 4), np.float32)}
    return with_contrib(node, x=[1, 2, 3], **weights)


def attention(**attributes: object) -> onnx.ModelProto:
    node = helper.make_node("Attention", ["x", "w"], ["y"], domain="com.microsoft", **attributes)
    return with_contrib(node, x=[1, 2, 8], w=np.zeros((8, 24), np.float32))


def recursive() -> onnx.ModelProto:
    """Refused by the inliner of functions."""
    proto = with_contrib(helper.make_node("F", ["x"], ["y"], domain="f"), x=[4])
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    call = helper.make_node("F", ["a"], ["b"], domain="f")
    proto.functions.append(helper.make_function("f", "F", ["a"], ["b"], [call], sets))
    proto.opset_import.append(sets[1])
    return proto


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (lstm(-1), 'info.GetAttr("hidden_size", &int64_value).IsOK() && int64_value > 0 was false.'),
        (attention(num_heads=0), 'info.GetAttr("num_heads", &num_heads).IsOK() && num_heads > 0 was false.'),
        (attention(num_heads=2, qkv_hidden_sizes=[0, 0, 0]), "qkv_hidden_sizes values should be positive"),
        (recursive(), "Model local function definitions must not be recursive. Cycle detected: f:F -> f:F"),
    ],
    ids=["hidden_size", "num_heads", "qkv_hidden_sizes", "functions"],
)
def test_a_load_test_tells_no_source_of_onnxruntime(tmp_path: Path, proto: onnx.ModelProto, words: str) -> None:
    path = save(proto, tmp_path)
    with pytest.raises(Exception, match=r"\.(cc|h):\d+"):  # so that this test is of something
        load_onnxruntime().InferenceSession(str(path), providers=["CPUExecutionProvider"], enable_fallback=0)
    with pytest.raises(InvalidInput) as raised:
        load_test([path], lambda operator: "")
    assert words in str(raised.value)
    assert not _TRACE.search(str(raised.value))


def test_the_version_converter_of_onnx_tells_no_source(tmp_path: Path) -> None:
    """A function of another opset, which onnx cannot convert."""
    proto = with_contrib(helper.make_node("F", ["x", "s"], ["y"], domain="f"), x=[1, 2], s=np.ones(2, np.float32))
    node = helper.make_node("Upsample", ["a", "s"], ["b"])
    proto.functions.append(helper.make_function("f", "F", ["a", "s"], ["b"], [node], [helper.make_opsetid("", 9)]))
    proto.opset_import.add(domain="f", version=1)
    proto.opset_import[0].version = 8
    with pytest.raises(InvalidInput, match="cannot be converted: Assertion `false` failed: Unsupported conversion") as raised:
        import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink())
    assert not _TRACE.search(str(raised.value))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : Load model from /a b/m.onnx failed:Node (n) Op (Add) no", "Node (n) Op (Add) no"),
        (
            "at /a/b.cc:3 static S onnxruntime::F<T>::g(std::function<void(int)>, int) const [with T = float; U = int] a() no",
            "at a() no",
        ),
        ("/a/b.cc:3 onnxruntime::F::operator()(const X&) const x == y was false. Why", "x == y was false. Why"),
        ("b.h:43 Check sizes should be positive (found 0)", "sizes should be positive (found 0)"),
        ("/a/b.h:68: adapt: Assertion `x` failed: why", "Assertion `x` failed: why"),
        ("of node 'layer.h' (Relu)\n\n at 3:4", "of node 'layer.h' (Relu) at 3:4"),
    ],
)
def test_words(said: str, words: str) -> None:
    assert plain_words(said) == words


@given(st.text(alphabet="ab./:() 1h", max_size=30))
def test_words_without_a_place_stay(text: str) -> None:
    if not re.search(r"\.h:1", text):
        assert plain_words(text) == " ".join(text.split())


@pytest.mark.parametrize("part", ["/", "a.", ".h:1 ", "(", "a::", "/a.h:1 a(", "Load model from ", "[ONNXRuntimeError] : 1 : "])
def test_words_of_hostile_names_take_no_time_to_speak_of(part: str) -> None:
    """They stay as they are, but for the place that one begins with. A search that takes a square of the length would take
    minutes."""
    text = part * (200_000 // len(part))
    assert plain_words(text) == " ".join(text.removeprefix("/a.h:1 ").split())
