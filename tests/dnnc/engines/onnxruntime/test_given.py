"""What a sequence is given where it begins: arrays of the right types, in full length, and to whom they go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnc.build.decoding import Decoding, State
from dnnc.engines.onnxruntime.decoding.given import given_arrays, given_bytes
from ir.core.diagnostics import DnncError

KEY = State("past_key_values.0.encoder.key", "", 0, "f32", (2, 3, 5, 4))
MASKS = tuple(State("encoder_attention_mask", "", stage, "i64", (2, 5)) for stage in (0, 1))
OWN = State("past.0.key", "present.0.key", 0, "f32", (2, 3, 8, 4), 2)
DECODING = Decoding((OWN, KEY, *MASKS), "ids", "position", "logits", 2, 8, 1, 1, 50)


def key(length: int = 5) -> Any:
    return np.arange(3 * length * 4, dtype=np.float32).reshape(3, length, 4)


def test_a_mask_that_is_left_out_is_one_for_what_is_given() -> None:
    arrays = given_arrays(DECODING, {"present.0.encoder.key": key(2)[None]})
    assert arrays[KEY.name].shape == (3, 5, 4)
    np.testing.assert_array_equal(arrays[KEY.name][:, :2], key(2))
    assert not arrays[KEY.name][:, 2:].any()
    assert arrays["encoder_attention_mask"].tolist() == [1, 1, 0, 0, 0]
    whole = given_arrays(DECODING, {KEY.name: key(), "encoder_attention_mask": np.array([1, 0, 1, 0, 0])})
    assert whole["encoder_attention_mask"].tolist() == [1, 0, 1, 0, 0]
    assert given_arrays(DECODING, {KEY.name: key()})["encoder_attention_mask"].tolist() == [1] * 5


def test_bytes_go_by_sequence_and_state() -> None:
    arrays = [given_arrays(DECODING, {KEY.name: key() + n}) for n in (0, 1)]
    data = given_bytes([KEY, MASKS[0]], arrays).tobytes()
    assert data == b"".join(one[name].tobytes() for one in arrays for name in (KEY.name, "encoder_attention_mask"))
    assert given_bytes([KEY], []).size == 0


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({}, r"(?s)the model reads past_key_values.0.encoder.key.*arrays for past_key_values.0.encoder.key: generate"),
        ({"x": key()}, "'x' is none of the states that a sequence of this model is given"),
        ({KEY.name: key().astype(np.float64)}, r"is float64\[3, 5, 4\]; f32\[3, 5, 4\], or shorter in one dimension expected"),
        ({KEY.name: key(6)}, r"is float32\[3, 6, 4\]"),
        ({KEY.name: key()[:2, :2]}, r"is float32\[2, 2, 4\]"),
        ({KEY.name: np.stack([key(), key()])}, r"is float32\[2, 3, 5, 4\]"),
        ({KEY.name: key(2), "encoder_attention_mask": np.ones(3, np.int64)}, r"lengths \['2', '3'\]; one expected"),
    ],
)
def test_arrays_that_are_refused(states: dict[str, Any], words: str) -> None:
    with pytest.raises(DnncError, match=words) as refused:
        given_arrays(DECODING, states, "file.npz")
    alone = f": {next(iter(states))}" if len(states) == 1 else ""
    assert refused.value.diagnostics[0].where == f"file.npz{alone}"


def test_without_a_mask_arrays_are_whole() -> None:
    decoding = Decoding((OWN, KEY), "ids", "position", "logits", 2, 8, 1, 1, 50)
    assert list(given_arrays(decoding, {KEY.name: key()})) == [KEY.name]
    with pytest.raises(DnncError, match="shorter than the build's, and the model has no mask"):
        given_arrays(decoding, {KEY.name: key(2)})
    with pytest.raises(DnncError, match="there are none"):
        given_arrays(Decoding((OWN,), "ids", "position", "logits", 2, 8, 1, 1, 50), {KEY.name: key()})
