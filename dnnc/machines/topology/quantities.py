"""Quantities with units, as topology files write them: ``80 GiB``, ``1.2 TB/s``, ``25 Gbit/s``, ``5 us``, ``312 TFLOP/s``.

A quantity is a number, a space that may be left out, and a unit: an SI prefix (k M G T P, powers of 1000) or a binary one
(Ki Mi Gi Ti Pi, powers of 1024) before ``B`` or ``bit``. ``Gb`` could mean either and is refused.

Invariant: arithmetic is exact (rationals) until the one rounding to a float or an int at the end, so that
``parse_quantity(quantity_text(x, kind), kind) == x`` for every finite x >= 0.
"""

from __future__ import annotations

import enum
import math
import re
from fractions import Fraction


class Quantity(enum.Enum):
    """What a quantity measures; ``value`` is how a message calls it."""

    MEMORY = "an amount of memory"
    BANDWIDTH = "a bandwidth"
    TIME = "a time"
    RATE = "a rate of arithmetic"


EXAMPLES = {
    Quantity.MEMORY: '"80 GiB"',
    Quantity.BANDWIDTH: '"25 Gbit/s" or "1.2 TB/s"',
    Quantity.TIME: '"5 us"',
    Quantity.RATE: '"312 TFLOP/s"',
}

_SI = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}
_PREFIXES = {prefix: Fraction(1000) ** power for prefix, power in _SI.items()} | {
    prefix: Fraction(1024) ** power for prefix, power in _BINARY.items()
}
_SECONDS = {"s": 0, "ms": 1, "us": 2, "µs": 2, "μs": 2, "ns": 3, "ps": 4}


def _unit_table() -> dict[str, tuple[Quantity, Fraction]]:
    """Every spelling that is accepted, with what it measures and its size in bytes, seconds or flop."""
    units: dict[str, tuple[Quantity, Fraction]] = {}
    for prefix, size in _PREFIXES.items():
        for unit, bytes_ in (("B", Fraction(1)), ("bit", Fraction(1, 8))):
            units[f"{prefix}{unit}"] = (Quantity.MEMORY, size * bytes_)
            units[f"{prefix}{unit}/s"] = (Quantity.BANDWIDTH, size * bytes_)
        units[f"{prefix}bps"] = (Quantity.BANDWIDTH, size / 8)  # always bits per second
        if not prefix.endswith("i"):
            for flop in ("FLOP/s", "FLOPS", "OP/s"):
                units[f"{prefix}{flop}"] = (Quantity.RATE, size)
    for name, power in _SECONDS.items():
        units[name] = (Quantity.TIME, Fraction(1, 1000**power))
    return units


UNITS = _unit_table()
_LONGEST = 100
"""Characters of a quantity; matching takes the cube of their number."""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*\Z")


def parse_quantity(text: object, kind: Quantity) -> float:
    """``text`` in bytes, bytes per second, seconds or flop per second.

    Raises ValueError with what was found and what was expected. A bare 0 needs no unit; any other bare number does.
    """
    try:
        return float(_exact(text, kind))
    except OverflowError:
        raise ValueError(f"found {text!r}, which is too large for {kind.value}") from None


def parse_memory(text: object) -> int:
    """``text`` in whole bytes, a part of one cut off. Raises ValueError as ``parse_quantity`` does."""
    return int(_exact(text, Quantity.MEMORY))


def _exact(text: object, kind: Quantity) -> Fraction:
    if isinstance(text, int | float) and not isinstance(text, bool) and text == 0:
        return Fraction(0)
    if not isinstance(text, str):
        found = f"the number {text} without a unit" if isinstance(text, int | float) else f"{text!r}"
        raise ValueError(f"found {found}, expected {kind.value} such as {EXAMPLES[kind]}")
    match = _QUANTITY.match(text) if len(text) <= _LONGEST else None
    if len(text) > _LONGEST:
        raise ValueError(f"found a text of {len(text)} characters, expected {kind.value} such as {EXAMPLES[kind]}")
    if match is None:
        raise ValueError(f"found {text!r}, expected {kind.value} such as {EXAMPLES[kind]}")
    number, unit = match.groups()
    value = Fraction(number)
    if not unit and value == 0:
        return value
    found_kind, size = UNITS.get(unit, (None, Fraction(0)))
    if found_kind is None:
        raise ValueError(f"{_unknown_unit(text, unit)}, expected {kind.value} such as {EXAMPLES[kind]}")
    if found_kind is not kind:
        raise ValueError(f"found {found_kind.value}, {text!r}, expected {kind.value} such as {EXAMPLES[kind]}")
    if value < 0:
        raise ValueError(f"found {text!r}, expected {kind.value} that is not negative")
    return value * size


def _unknown_unit(text: str, unit: str) -> str:
    if not unit:
        return f"found {text!r} without a unit"
    if re.fullmatch(r"[kKMGTP]?i?b(/s)?", unit):
        bits, bytes_ = unit.replace("b", "bit"), unit.replace("b", "B")
        return f"found {text!r}, where 'b' may mean bits or bytes (write {bits!r} or {bytes_!r})"
    folded = {name.lower(): name for name in UNITS}
    near = folded.get(unit.lower())
    return f"found {text!r} with the unknown unit {unit!r}" + (f" (did you mean {near!r}?)" if near else "")


_WRITTEN: dict[Quantity, tuple[str, ...]] = {
    Quantity.MEMORY: ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B"),
    Quantity.BANDWIDTH: ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
    Quantity.TIME: ("s", "ms", "us", "ns"),
    Quantity.RATE: ("TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
}


def quantity_text(value: float, kind: Quantity) -> str:
    """The shortest exact text of ``value`` (finite, not negative) in the largest unit that leaves at least 1 before the
    point; memory in the first unit, binary ones before SI ones, that leaves a short number."""
    exact = Fraction(value) if isinstance(value, int) else Fraction(repr(float(value)))
    if exact == 0:
        return f"0 {_WRITTEN[kind][-1] if kind is not Quantity.TIME else 's'}"
    for unit in _WRITTEN[kind]:
        scaled = exact / UNITS[unit][1]
        if scaled < 1:
            continue
        text = _decimal(scaled)
        if kind is not Quantity.MEMORY or len(text) <= 6:
            return f"{text} {unit}"
    unit = _WRITTEN[kind][-1]
    return f"{_decimal(exact / UNITS[unit][1])} {unit}"


def _decimal(value: Fraction) -> str:
    """``value``, whose denominator divides a power of ten, in decimal digits; exponents only where digits would run long."""
    denominator, twos, fives = value.denominator, 0, 0
    while denominator % 2 == 0:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0:
        denominator, fives = denominator // 5, fives + 1
    places = max(twos, fives)
    digits = str(value.numerator * (10**places // value.denominator))
    if places == 0:
        stripped = digits.rstrip("0")
        return digits if len(digits) <= 21 else f"{stripped}e{len(digits) - len(stripped)}"
    if places > 25:
        return f"{digits}e-{places}"
    digits = digits.rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}"


def is_amount(value: float) -> bool:
    """Whether ``value`` can be written: finite and not negative."""
    return math.isfinite(value) and value >= 0
