"""Elements of dense tensors as readable text, exactly.

``element_texts`` and ``dense_data`` are inverse: a list of texts is given only where reading it back yields the same bytes (a
NaN with a payload, a tensor of the wrong length, have none and are printed as raw bytes). The smaller float formats are decoded
from their definition (OCP 8-bit and MX specifications; ``fnuz`` as in ONNX), without numpy: importing the IR stays cheap.
"""

from __future__ import annotations

import base64
import bisect
import math
import struct
from collections.abc import Callable, Sequence
from functools import cache

from ir.core.names import quote_text, unquote_text
from ir.core.types import DType, TensorType

READABLE_ELEMENTS = 64
"""Tensors with more elements are printed as bytes."""

_STRUCT = {"f64": "d", "f32": "f", "f16": "e"}
# exponent bits, mantissa bits, bias, what the top exponent means: "ieee" inf and nan, "fn" one nan, "fnuz" nan is -0, "mx" none
_SMALL = {
    DType.F8E4M3FN: (4, 3, 7, "fn"),
    DType.F8E4M3FNUZ: (4, 3, 8, "fnuz"),
    DType.F8E5M2: (5, 2, 15, "ieee"),
    DType.F8E5M2FNUZ: (5, 2, 16, "fnuz"),
    DType.F6E2M3: (2, 3, 1, "mx"),
    DType.F6E3M2: (3, 2, 3, "mx"),
    DType.F4E2M1: (2, 1, 1, "mx"),
}


def element_texts(dtype: DType, data: bytes | tuple[bytes, ...], count: int | None) -> list[str] | None:
    """Text of each of ``count`` elements, or None where no list of texts reads back as exactly ``data``."""
    if isinstance(data, tuple):
        return [_string_text(item) for item in data] if len(data) <= READABLE_ELEMENTS else None
    if dtype is DType.STRING or count is None or count > READABLE_ELEMENTS or len(data) != -(-count * dtype.bits // 8):
        return None
    texts = [_text(dtype, code) for code in _codes(dtype, data, count)]
    try:
        return texts if dense_data(dtype, texts) == data else None
    except ValueError:
        return None


def dense_data(dtype: DType, texts: Sequence[str]) -> bytes | tuple[bytes, ...]:
    """Bytes of the elements that ``texts`` spell. Raises ValueError naming the first that ``dtype`` cannot hold."""
    if dtype is DType.STRING:
        return tuple(_string_bytes(text) for text in texts)
    codes = []
    for text in texts:
        try:
            codes.append(_code(dtype, text))
        except (ValueError, OverflowError, struct.error):
            raise ValueError(f"'{text[:40]}' is not an element of type {dtype.value}") from None
    return _pack(dtype, codes)


def storage_fault(type_: TensorType, data: bytes | tuple[bytes, ...]) -> str:
    """Why ``data`` cannot be the elements of ``type_``; empty when it can."""
    if isinstance(data, tuple) is not (type_.dtype is DType.STRING):
        return f"data is {'texts' if isinstance(data, tuple) else 'bytes'}, which is not how {type_} is held"
    expected = type_.elements if isinstance(data, tuple) else type_.nbytes
    if type_.sparse:
        return ""
    if expected is None:
        return f"type {type_} has no fixed size"
    unit = "elements" if isinstance(data, tuple) else "bytes"
    return "" if len(data) == expected else f"data has {len(data)} {unit} where {type_} has {expected}"


def bytes_text(data: bytes) -> str:
    """Raw bytes: readable hexadecimal while short, base64 beyond."""
    if len(data) <= READABLE_ELEMENTS:
        return f'hex"{data.hex()}"'
    return f'base64"{base64.b64encode(data).decode()}"'


def bytes_from_text(text: str) -> bytes:
    """Inverse of ``bytes_text``. Raises ValueError."""
    if text.startswith("hex"):
        return bytes.fromhex(text[4:-1])
    return base64.b64decode(text[7:-1], validate=True)


def _string_text(item: bytes) -> str:
    try:
        return quote_text(item.decode())
    except UnicodeDecodeError:
        return f'hex"{item.hex()}"'


def _string_bytes(text: str) -> bytes:
    if text.startswith(("hex", "base64")):
        return bytes_from_text(text)
    if not text.startswith('"'):
        raise ValueError(f"'{text}' is not an element of type string; expected text in double quotes")
    return unquote_text(text).encode()


def _codes(dtype: DType, data: bytes, count: int) -> list[int]:
    """The elements as unsigned integers of ``dtype.bits`` bits."""
    bits = dtype.bits
    if bits >= 8:
        size = bits // 8
        return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]
    whole = int.from_bytes(data, "little")
    return [whole >> (bits * i) & ((1 << bits) - 1) for i in range(count)]


def _pack(dtype: DType, codes: list[int]) -> bytes:
    bits = dtype.bits
    if bits >= 8:
        return b"".join(code.to_bytes(bits // 8, "little") for code in codes)
    whole = 0
    for i, code in enumerate(codes):
        whole |= code << (bits * i)
    return whole.to_bytes(-(-len(codes) * bits // 8), "little")


def _text(dtype: DType, code: int) -> str:
    if dtype is DType.BOOL:
        return {0: "false", 1: "true"}.get(code, "?")
    if dtype.is_integer:
        negative = dtype.value[0] == "i" and code >> (dtype.bits - 1)
        return str(code - (1 << dtype.bits) if negative else code)
    if dtype in (DType.C64, DType.C128):
        half, part = dtype.bits // 2, DType.F32 if dtype is DType.C64 else DType.F64
        return f"({_text(part, code & ((1 << half) - 1))}, {_text(part, code >> half)})"
    return _shortest(dtype, code)


def _code(dtype: DType, text: str) -> int:
    if dtype is DType.BOOL:
        return ("false", "true").index(text)
    if dtype.is_integer:
        value, bits = int(text), dtype.bits
        low = -(1 << (bits - 1)) if dtype.value[0] == "i" else 0
        if not low <= value < low + (1 << bits):
            raise ValueError(text)
        return value & ((1 << bits) - 1)
    if dtype in (DType.C64, DType.C128):
        half, part = dtype.bits // 2, DType.F32 if dtype is DType.C64 else DType.F64
        if not (text.startswith("(") and text.count(",") == 1):
            raise ValueError(text)
        real, imaginary = text[1:-1].split(",")
        return _code(part, real.strip()) | _code(part, imaginary.strip()) << half
    return _encode(dtype, float(text))


def _shortest(dtype: DType, code: int) -> str:
    """The shortest decimal text that reads back as ``code``."""
    value = _decode(dtype, code)
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if dtype is DType.F8E8M0:  # powers of two: how readers round between them differs
        return repr(value)
    for digits in range(1, 17):
        text = repr(float(f"{value:.{digits}g}"))
        if float(text) == value or _encodes(dtype, text, code):
            return text
    return repr(value)


def _encodes(dtype: DType, text: str, code: int) -> bool:
    try:
        return _encode(dtype, float(text)) == code
    except (ValueError, OverflowError, struct.error):
        return False


def _decode(dtype: DType, code: int) -> float:
    form = _STRUCT.get(dtype.value)
    if dtype is DType.BF16:
        return _decode(DType.F32, code << 16)
    if form:
        value: float = struct.unpack("<" + form, code.to_bytes(dtype.bits // 8, "little"))[0]
        return value
    return _tables(dtype)[0][code]


def _encode(dtype: DType, value: float) -> int:
    """The code of ``value`` rounded to the nearest, ties to even. Raises ValueError where the format has none."""
    form = _STRUCT.get(dtype.value)
    if dtype is DType.BF16:
        code = _encode(DType.F32, value)
        return code >> 16 if math.isnan(value) else (code + 0x7FFF + (code >> 16 & 1)) >> 16
    if form:
        return int.from_bytes(struct.pack("<" + form, value), "little")
    return _tables(dtype)[1](value)


@cache
def _tables(dtype: DType) -> tuple[list[float], Callable[[float], int]]:
    """Values of all codes of a small format, and the function from a value to its code."""
    if dtype is DType.F8E8M0:
        values = [2.0 ** (code - 127) for code in range(255)] + [math.nan]
    else:
        values = [_small_value(dtype, code) for code in range(1 << dtype.bits)]
    exact = {(value, math.copysign(1.0, value)): code for code, value in enumerate(values) if not math.isnan(value)}
    nans = [code for code, value in enumerate(values) if math.isnan(value)]
    nan = 0x7E if dtype is DType.F8E5M2 else next(iter(nans), None)  # 0x7E: the quiet one, as ml_dtypes writes it
    finite = sorted((value, code) for (value, _), code in exact.items() if math.isfinite(value))

    def nearest(value: float) -> int:
        if math.isnan(value):
            if nan is None:
                raise ValueError("nan")
            return nan
        found = exact.get((value, math.copysign(1.0, value)))
        if found is not None:
            return found
        at = bisect.bisect(finite, (value, -1))
        if at == 0 or at == len(finite):
            raise ValueError("out of range")
        (low, low_code), (high, high_code) = finite[at - 1], finite[at]
        if value - low == high - value:
            return low_code if low_code % 2 == 0 else high_code
        return low_code if value - low < high - value else high_code

    return values, nearest


def _small_value(dtype: DType, code: int) -> float:
    exponent_bits, mantissa_bits, bias, rule = _SMALL[dtype]
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    top = exponent == (1 << exponent_bits) - 1
    if rule == "ieee" and top:
        return math.nan if mantissa else sign * math.inf
    if rule == "fn" and top and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    if rule == "fnuz" and sign < 0 and exponent == 0 and mantissa == 0:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
