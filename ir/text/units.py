"""Numbers for people: seconds, bytes, counts and shares, at three significant digits.

Files and ``--json`` carry exact numbers in base units; only what a person reads passes through here.
"""

from __future__ import annotations

import math

from ir.core.outcomes import Outcome


def _scaled(value: float, step: float, units: tuple[str, ...], whole: bool = True) -> str:
    """``value`` in the largest unit of which there is at least one (after rounding), with three digits; a whole number
    without decimals where ``whole``."""
    index = 0
    while abs(value) >= step * (1 - 0.0005) and index + 1 < len(units):
        value /= step
        index += 1
    digits = 0 if abs(value) >= 99.95 or (whole and value == int(value)) else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {units[index]}"


def seconds_text(seconds: float) -> str:
    """``1.25 ms``, ``340 us``, ``0 s``, ``inf``; three digits always, so that columns compare."""
    if not math.isfinite(seconds):
        return "inf" if seconds > 0 else str(seconds)
    if seconds == 0:
        return "0 s"
    if abs(seconds) >= 0.9995:
        return _scaled(seconds, math.inf, ("s",), whole=False)
    return _scaled(seconds * 1e9, 1000, ("ns", "us", "ms", "s"), whole=False)


def bytes_text(size: float) -> str:
    """``512 B``, ``1.50 MiB``."""
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rate_text(rate: float, unit: str) -> str:
    """A decimal rate: ``312 TFLOP/s``, ``25 GB/s``."""
    return _scaled(rate, 1000, tuple(prefix + unit for prefix in ("", "k", "M", "G", "T", "P", "E")))


def count_text(count: float) -> str:
    """``1.24 G`` for 1,240,000,000; whole below a thousand."""
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P", "E")).rstrip()


def percent_text(fraction: float) -> str:
    """``12.3 %``; ``< 0.1 %`` for a small positive share; ``inf`` stays; rounding errors below zero are 0."""
    if not math.isfinite(fraction):
        return "inf"
    if 0 < fraction < 0.0005:
        return "< 0.1 %"
    return f"{100 * (fraction if abs(fraction) >= 0.0005 else 0.0):.1f} %"


def outcome_text(outcome: Outcome, gap: float) -> str:
    """The outcome of a search in prose, with the gap where there is one: ``optimal``, ``at most 4.3 % above the best plan``."""
    if outcome != "within-gap":
        return outcome
    if not math.isfinite(gap):
        return "not known how far above the best plan"
    return f"at most {percent_text(max(gap, 0.001))} above the best plan"


def ratio_text(ratio: float) -> str:
    """``1.86x``."""
    return f"{ratio:.2f}x" if math.isfinite(ratio) else "inf"
