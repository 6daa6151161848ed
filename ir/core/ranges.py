"""The range of each kind of number in texts and documents, for the verifier and all readers.

No model and no machine is outside these ranges. Inside them sums of a million numbers stay 64-bit integers, and products and
ratios stay finite floats, so code behind the readers needs no checks.
"""

from __future__ import annotations

import math

MOST_BYTES = 1 << 53
"""Bytes of one tensor or message stay below it (8 PiB): such numbers are exact as floats, too."""
MOST_MEMORY = 1 << 62
"""Bytes of one memory, and of all tensors together, stay below it: sums fit 64-bit integers."""
COUNTED = 10**60
"""Flops and bytes of an op stay below it, also when loops multiply them, so that a float holds them."""
MOST_MICROBATCHES = 1 << 20
"""Microbatches of one training step: a schedule has an action for each."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Rates, bandwidths, latencies and overheads of machines: 0 or between these."""
MOST_SECONDS = 1e100
"""Seconds of an op, a message or a plan; no time that follows from the numbers above comes near it."""


def is_bytes(value: int) -> bool:
    """Whether ``value`` can be the size of a tensor, a message or a file."""
    return 0 <= value < MOST_BYTES


def is_amount(value: float) -> bool:
    """Whether ``value`` can be a property of a machine: 0, or from ``SMALLEST`` to ``LARGEST``."""
    return value == 0 or SMALLEST <= value <= LARGEST


def is_seconds(value: float, *, infinite: bool = False) -> bool:
    """Whether ``value`` can be a time: at least 0, at most ``MOST_SECONDS``, or ``infinite`` where nothing can take it."""
    return 0 <= value <= MOST_SECONDS or (infinite and value == math.inf)


def whole(text: str, most: int = 1 << 64) -> int:
    """The integer that digits spell, from ``-most`` to ``most``. Raises ValueError for others, and for text that is none."""
    digits = text.strip().lstrip("+-0")
    if len(digits) > len(str(most)) and digits.isdecimal():  # Python does not read thousands of digits
        raise ValueError(f"a number of {len(digits)} digits is too large")
    value = int(text)
    if abs(value) > most:
        raise ValueError(f"the number {value} is too large")
    return value
