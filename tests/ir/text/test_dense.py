"""Elements of dense tensors: against numpy and ml_dtypes, every code of the small formats."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ir.core.types import DType
from ir.text.dense import bytes_from_text, bytes_text, dense_data, element_texts

NUMPY = {
    DType.BF16: ml_dtypes.bfloat16,
    DType.F8E4M3FN: ml_dtypes.float8_e4m3fn,
    DType.F8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    DType.F8E5M2: ml_dtypes.float8_e5m2,
    DType.F8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    DType.F8E8M0: ml_dtypes.float8_e8m0fnu,
    DType.F4E2M1: ml_dtypes.float4_e2m1fn,
    DType.F6E2M3: ml_dtypes.float6_e2m3fn,
    DType.F6E3M2: ml_dtypes.float6_e3m2fn,
    DType.F16: np.float16,
}


@pytest.mark.parametrize("dtype", NUMPY, ids=lambda dtype: dtype.value)
def test_every_code_has_the_value_that_numpy_gives(dtype: DType) -> None:
    width = max(8, dtype.bits)
    codes = range(0, 1 << dtype.bits, 1 if dtype.bits < 16 else 37)
    raw = b"".join(code.to_bytes(width // 8, "little") for code in codes)
    with np.errstate(invalid="ignore"):
        expected = np.frombuffer(raw, dtype=NUMPY[dtype]).astype(np.float64)
    for code, value in zip(codes, expected.tolist(), strict=True):
        data = code.to_bytes(math.ceil(dtype.bits / 8), "little")
        texts = element_texts(dtype, data, 1)
        if texts is None:
            assert math.isnan(value), f"code {code} of {dtype.value} is {value} but has no text"
            continue
        text = float(texts[0])
        assert dense_data(dtype, texts) == data
        assert math.isnan(text) if math.isnan(value) else np.array(text).astype(NUMPY[dtype]).astype(np.float64) == value


@pytest.mark.parametrize(
    ("dtype", "texts", "data"),
    [
        (DType.I4, ["-8", "7", "1"], b"\x78\x01"),
        (DType.U2, ["3", "0", "1", "2", "1"], b"\x93\x01"),
        (DType.BOOL, ["true", "false"], b"\x01\x00"),
        (DType.I64, ["-1"], b"\xff" * 8),
        (DType.C64, ["(1.0, -0.0)"], np.array([complex(1, -0.0)], np.complex64).tobytes()),
        (
            DType.F32,
            ["0.1", "-inf", "nan", "-0.0", "1e-45"],
            np.array([0.1, -np.inf, np.nan, -0.0, 1e-45], np.float32).tobytes(),
        ),
        (DType.STRING, ['"a"', 'hex"ff"', '""'], (b"a", b"\xff", b"")),
    ],
)
def test_known_bytes(dtype: DType, texts: list[str], data: bytes | tuple[bytes, ...]) -> None:
    assert dense_data(dtype, texts) == data
    assert element_texts(dtype, data, len(texts)) == texts


@pytest.mark.parametrize(
    ("dtype", "text"),
    [(DType.I8, "128"), (DType.U4, "-1"), (DType.I32, "1.5"), (DType.F8E4M3FN, "1e9"), (DType.BOOL, "2"), (DType.F32, "word"),
     (DType.F16, "1e9"), (DType.F4E2M1, "nan"), (DType.C64, "1.0"), (DType.STRING, "1")],
)  # fmt: skip
def test_elements_that_do_not_fit(dtype: DType, text: str) -> None:
    with pytest.raises(ValueError, match="is not an element of type"):
        dense_data(dtype, [text])


def test_rounding_is_to_nearest_even() -> None:
    for value in (0.1, 1 / 3, 2.71828, 100.3, -7.77, 1.0625, 0.03):
        for dtype in (DType.BF16, DType.F8E4M3FN, DType.F8E5M2):
            expected = np.array([value], np.float64).astype(np.float32).astype(NUMPY[dtype]).tobytes()
            assert dense_data(dtype, [repr(value)]) == expected, (value, dtype)


def test_raw_bytes() -> None:
    for size in (0, 1, 64, 65, 1000):
        data = bytes(i % 256 for i in range(size))
        assert bytes_text(data).startswith("hex" if size <= 64 else "base64")
        assert bytes_from_text(bytes_text(data)) == data
