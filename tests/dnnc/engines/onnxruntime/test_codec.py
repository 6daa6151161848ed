"""Values as bytes: what goes in comes out, whatever its kind; packed elements; edges of any slot size."""

from __future__ import annotations

import os
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.engines.onnxruntime.transport.codec import decode, encode, from_user, to_user
from dnnc.engines.onnxruntime.transport.edges import Descriptors, Edge, Receiver, Sender, ValueSpec, anonymous_memory
from dnnc.onnx.elements import BY_NAME, from_carrier, nbytes, pack, to_carrier, unpack, user_dtype
from ir.core.types import DType

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
NAMES = sorted(BY_NAME)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    name, shape = draw(st.sampled_from(NAMES)), draw(SHAPES)
    count = int(np.prod(shape))
    codes = np.array(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.int8)
    return codes.astype(user_dtype(name)).reshape(shape)


STRINGS = st.lists(st.text(max_size=5), max_size=4).map(lambda texts: np.array(texts, object).reshape(-1))
VALUES: st.SearchStrategy[Any] = st.one_of(arrays(), STRINGS, st.none(), st.lists(arrays(), max_size=3))
MESSAGES = st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=4)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if left is None:
        return right is None
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return left.tolist() == right.tolist() if left.dtype == object else left.tobytes() == right.tobytes()


@given(MESSAGES)
@settings(deadline=None, max_examples=12)
def test_messages_round_trip(message: dict[str, Any]) -> None:
    data = b"".join(encode({name: from_user(value) for name, value in message.items()}))
    found = {name: to_user(value) for name, value in decode(np.frombuffer(data, np.uint8)).items()}
    assert found.keys() == message.keys()
    assert all(same(message[name], found[name]) for name in message)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.sampled_from([64, 128, 640]), st.integers(2, 3))
@settings(deadline=None, max_examples=20)
def test_edges_carry_messages_of_any_size(messages: list[dict[str, Any]], area: int, slots: int) -> None:
    """However small the slots are, the receiver gets what was sent, in order."""
    names = sorted({name for message in messages for name in message})
    edge = Edge(0, 1, (ValueSpec("fixed", 1, (3,)), *(ValueSpec(f"v{name}") for name in names)), slots, area)
    memory = anonymous_memory(edge.nbytes)
    (data_read, data_write), (free_read, free_write) = os.pipe(), os.pipe()
    sender = Sender(edge, Descriptors(memory, free_read, data_write))
    receiver = Receiver(edge, Descriptors(memory, data_read, free_write))
    full = [{"fixed": np.full(3, i, np.float32), **{f"v{n}": m.get(n) for n in names}} for i, m in enumerate(messages)]

    def send() -> None:
        for message in full:
            for _ in sender.send_microbatch({name: from_user(value) for name, value in message.items()}):
                sender.read_tokens()

    thread = threading.Thread(target=send)
    thread.start()
    for message in full:
        while not receiver.complete:
            receiver.read_tokens()
        slot = receiver.take()
        found = {name: to_user(value) for name, value in receiver.values(slot).items()}
        receiver.release(slot)
        assert found.keys() == message.keys()
        assert all(same(message[name], found[name]) for name in message)
    thread.join()
    for descriptor in (memory, data_read, data_write, free_read, free_write):
        os.close(descriptor)


def test_every_element_type_of_a_build_has_a_carrier() -> None:
    assert {dtype.numpy_name for dtype in DType} == set(BY_NAME) | {"string"}


@given(st.sampled_from([2, 4]), st.lists(st.integers(0, 15), max_size=9))
def test_packing(bits: int, codes: list[int]) -> None:
    array = np.array(codes, np.uint8) & ((1 << bits) - 1)
    packed = pack(array, bits)
    assert packed.size == -(-len(codes) * bits // 8)
    assert unpack(packed, bits, len(codes)).tolist() == array.tolist()


def test_packed_elements_lie_as_in_onnx() -> None:
    """Low bits first; signs survive."""
    element = BY_NAME["int4"]
    array = np.array([1, -1, 7], ml_dtypes.int4)
    raw = to_carrier(array, element)
    assert raw.tolist() == [0xF1, 0x07]
    assert nbytes(element, (3,)) == 2
    assert from_carrier(raw, element, (3,)).astype(int).tolist() == [1, -1, 7]


def test_a_value_that_cannot_travel_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        encode({"x": object()})
    with pytest.raises(TypeError, match="datetime64"):
        from_user(np.zeros(2, "datetime64[s]"))
