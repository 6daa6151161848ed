"""What an array must be to fit an input of the model: its element type, shape and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.build.build import ValueInfo
from dnnc.data.entries import same_width
from dnnc.data.faults import IndexOutOfRange, NoNumberOfSamples, NotFinite, YieldedNoArray
from dnnc.data.ranges import Range
from dnnc.onnx.elements import user_dtype
from ir.core.diagnostics import InvalidInput

Part = tuple[int, int]
"""First row and number of rows."""


@dataclass(frozen=True)
class Inputs:
    """The inputs whose arrays the data have. ``ranges``: of those that hold indices; ``parts``: the rows of each that the
    reader uses, None for all; an input that is not among them is not read. ``labels``: the one whose label ``ignored`` does not
    count in the loss, if any."""

    ports: tuple[ValueInfo, ...]
    ranges: Mapping[str, Range]
    parts: Mapping[str, Part | None] | None = None
    labels: str = ""
    ignored: int = -100

    @property
    def wanted(self) -> tuple[ValueInfo, ...]:
        return tuple(port for port in self.ports if self.parts is None or port.name in self.parts)

    @property
    def units(self) -> int:
        """Samples of a microbatch: the greatest common divisor of the first dimensions of the inputs, 1 without any. For ``x
        [4, 8]`` and ``mask [2, 8]`` two, of 2 and 1 rows. Raises InvalidInput for a first dimension that is no number."""
        return math.gcd(*(rows_of(port) for port in self.ports if port.shape)) or 1

    def each(self, port: ValueInfo) -> int:
        """Rows of a sample."""
        return rows_of(port) // self.units

    def part(self, port: ValueInfo) -> Part:
        """The rows of an input that the reader uses."""
        part = self.parts.get(port.name) if self.parts is not None else None
        return part or (0, rows_of(port))

    def port(self, name: str) -> ValueInfo:
        return next(port for port in self.ports if port.name == name)

    def named(self) -> str:
        return ", ".join(port.name for port in self.ports)

    def check(self, name: str, array: Any, where: str, place: Callable[[int], str], what: str = "") -> None:
        """Raises InvalidInput for an index out of range, for NaN and for infinity. Minus infinity is valid: attention masks
        contain it. ``place``: where an element of this place in the first dimension is, as `` in sample 5``; ``what``: the
        array in messages."""

        def told(at: tuple[int, ...]) -> str:
            return place(at[0]) if at else ""

        if (allowed := self.ranges.get(name)) is not None and (wrong := allowed.wrong(array)) is not None:
            ignored = () if allowed.ignored is None else (str(allowed.ignored),)
            fault = IndexOutOfRange(name, int(array[wrong]), allowed.low, allowed.high, ignored, told(wrong))
            raise InvalidInput(fault, where=where)
        if array.dtype.kind not in "fV" or not array.size:  # those of ml_dtypes are V
            return
        finite = array < np.inf
        if not finite.all():
            at = tuple(map(int, np.argwhere(~finite)[0]))
            raise InvalidInput(NotFinite(what or f"'{name}'", f"{float(array[at]):g}", told(at)), where=where)


def rows_of(port: ValueInfo) -> int:
    """The first dimension of an input. Raises InvalidInput if it is no number above 0."""
    rows = port.shape[0] if port.shape else None
    if not isinstance(rows, int) or rows < 1:
        raise InvalidInput(NoNumberOfSamples(port.name, port.type))
    return rows


def as_array(name: str, value: Any, where: str) -> Any:
    """A copy of a value as an array: functions fill their buffers anew, and steps are read ahead."""
    try:
        return np.array(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except Exception as error:  # elements that numpy lacks, lists of unequal length
        raise InvalidInput(YieldedNoArray(name, str(error)), where=where) from error


def fitting(port: ValueInfo, array: Any) -> Any:
    """The array with the elements of an input: bfloat16 comes as raw bytes."""
    raw = array.dtype.kind == "V" and array.dtype != user_dtype(port.dtype) and same_width(port.dtype, array.dtype)
    return array.view(user_dtype(port.dtype)) if raw else array


def a_value(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def empty(ports: Iterable[ValueInfo]) -> dict[str, Any]:
    """Arrays of zeros. What nobody writes to takes no memory."""
    return {port.name: np.zeros(tuple(port.shape or ()), user_dtype(port.dtype)) for port in ports}
