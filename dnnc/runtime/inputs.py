"""From a person's arrays to microbatches, and from outputs to a file.

An ``.npz`` holds one array per model input, under its name. Three ways to give several microbatches are told apart by shape:

- an array shaped as the input is one microbatch; beside stacked ones it is given to every microbatch;
- an array with one axis more, in front, is a stack of microbatches;
- ``microbatches=M`` splits the first axis of arrays that have the input's rank into M equal parts.

numpy's file format has no bfloat16, float8 or 4-bit integers: arrays of those (``ml_dtypes``) come back from a file as raw
bytes (``V1``, ``V2``); raw bytes or unsigned integers of the same width are taken as the element type that the model states.
Arrays of sub-byte elements have one element a byte. A sequence is the arrays ``NAME.0``, ``NAME.1``...; an absent optional
has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.program.build import Port
from dnnc.program.elements import BY_NAME, Array, user_dtype
from dnnc.runtime.npz import Header, read_npz
from ir.diagnostics import Diagnostic, DiagnosticSink, InvalidInput
from ir.ranges import MOST_MICROBATCHES
from ir.scratch import refuse_special, whole_file

HINT = "'dnnc inspect DIR' lists the inputs of the model"


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Inputs per microbatch. ``mode``: ``single``, ``stacked`` or ``split``: how outputs are put together again."""

    items: Sequence[dict[str, Any]]
    mode: str


def read_inputs(path: Path, ports: Sequence[Port], *, microbatches: int | None = None) -> Microbatches:
    """The microbatches in an ``.npz``. Names, element types and shapes are compared with ``ports`` before an array is read.
    Raises InvalidInput as ``read_npz`` and ``split_microbatches`` do."""
    where = str(path)
    arrays = read_npz(path, lambda headers: check_inputs(ports, headers, microbatches, where))
    return split_microbatches(ports, arrays, microbatches=microbatches, where=where)


def check_writable(path: Path) -> None:
    """Raises InvalidInput where a file could not be written, before anything is computed for it."""
    if path.is_dir():
        raise InvalidInput("a folder; a file was expected", where=str(path), hint="name a file in it, ending in .npz")
    if not path.parent.is_dir():
        raise InvalidInput("its folder does not exist", where=str(path), hint=f"mkdir -p {path.parent}")
    refuse_special(path)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes the arrays to ``path``: all of them, or nothing. Raises InvalidInput where the folder cannot be written."""
    flat: dict[str, Array] = {}
    for name, value in arrays.items():
        for key, array in _flatten(name, value):
            flat[key] = array.astype(np.str_) if array.dtype == object else array
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **flat)


def _flatten(name: str, value: Any) -> list[tuple[str, Array]]:
    if value is None:
        return []
    if isinstance(value, list):
        return [pair for i, item in enumerate(value) for pair in _flatten(f"{name}.{i}", item)]
    if isinstance(value, Mapping):
        keys = list(value)
        return [(f"{name}.keys", np.array(keys)), (f"{name}.values", np.array([value[key] for key in keys]))]
    return [(name, np.asarray(value))]


def split_microbatches(
    ports: Sequence[Port], arrays: Mapping[str, Any], *, microbatches: int | None = None, where: str = ""
) -> Microbatches:
    """The microbatches in ``arrays``. Raises InvalidInput with everything that is wrong: names, dtypes, shapes, counts."""
    check_inputs(ports, arrays, microbatches, where)
    found = {port.name: _gather(port, arrays) for port in ports}
    parts: dict[str, list[Any]] = {}
    modes: set[str] = set()
    for port in ports:
        value = found[port.name]
        mode, count = _mode(port, value, microbatches)
        if mode == "shared":
            parts[port.name] = [value]
        else:
            modes.add(mode)
            parts[port.name] = list(value) if mode == "stacked" else np.split(value, count)
    counts = {name: len(items) for name, items in parts.items() if len(items) != 1}
    if len(set(counts.values())) > 1 or (microbatches and counts and set(counts.values()) != {microbatches}):
        text = ", ".join(f"'{name}' {count}" for name, count in sorted(counts.items()))
        wanted = f", {microbatches} asked for" if microbatches else ""
        raise InvalidInput(f"the inputs do not hold equally many microbatches: {text}{wanted}", where=where, hint=HINT)
    total = next(iter(counts.values()), microbatches or 1)
    items = tuple({name: part[i if len(part) > 1 else 0] for name, part in parts.items()} for i in range(total))
    return Microbatches(items, "split" if "split" in modes else "stacked" if modes or total > 1 else "single")


def join_outputs(outputs: Sequence[Mapping[str, Any]], mode: str) -> dict[str, Any]:
    """Outputs of all microbatches in one array per name, as the inputs were given; ``NAME.M`` where shapes differ."""
    if mode == "single" or (len(outputs) == 1 and mode != "stacked"):
        return dict(outputs[0])
    joined: dict[str, Any] = {}
    for name in outputs[0]:
        values = [output[name] for output in outputs]
        shapes = {value.shape if isinstance(value, np.ndarray) else None for value in values}
        if None in shapes or (len(shapes) > 1 and mode == "stacked"):
            joined |= {f"{name}.{i}": value for i, value in enumerate(values)}
        elif mode == "split" and values[0].ndim and len({shape[1:] for shape in shapes if shape}) == 1:
            joined[name] = np.concatenate(values)
        else:
            joined[name] = np.stack(values)
    return joined


def check_inputs(ports: Sequence[Port], arrays: Mapping[str, Any], microbatches: int | None = None, where: str = "") -> None:
    """Raises InvalidInput with everything that is wrong with the names, element types and shapes of ``arrays``, or of their
    headers: nothing of their data is looked at."""
    sink = DiagnosticSink()
    for port in ports:
        if port.dtype:
            _check_dtype(port, arrays, where, sink)
    known = {port.name for port in ports} | {name for port in ports if not port.dtype for name in _items(port, arrays)}
    for name in sorted(arrays.keys() - known):
        expected = ", ".join(f"'{port.name}'" for port in ports) or "none"
        sink.error(f"the model has no input '{name}'; its inputs are {expected}", where=where, hint=HINT)
    sink.raise_errors()
    for port in ports:
        if port.dtype:
            value = arrays[port.name]
            value = value if isinstance(value, Header) else np.asarray(value)
            if _mode(port, value, microbatches)[0] == "wrong":
                sink.emit(_shape_error(port, value, microbatches, where))
    sink.raise_errors()


def _check_dtype(port: Port, arrays: Mapping[str, Any], where: str, sink: DiagnosticSink) -> None:
    """An error in ``sink`` where the array is missing, or where its elements are not those of the model."""
    if port.name not in arrays:
        sink.error(f"input '{port.name}' is missing; expected {port.type}", where=where, hint=HINT)
        return
    value = arrays[port.name]
    dtype = value.dtype if isinstance(value, Header) else np.asarray(value).dtype
    if dtype == user_dtype(port.dtype) or (dtype.kind in "US" if port.dtype == "string" else same_width(port, dtype)):
        return
    hint = f"convert it: array.astype('{port.dtype}')" if port.dtype in np.sctypeDict else HINT
    sink.error(
        f"input '{port.name}' has element type {dtype.name[:80]}, the model expects {port.dtype}", where=where, hint=hint
    )


def same_width(port: Port, dtype: np.dtype[Any]) -> bool:
    """Whether elements of ``dtype`` are the bytes of the model's, which numpy's file format does not know."""
    raw = dtype.kind == "V" and dtype.names is None and dtype.subdtype is None
    unsigned = dtype.kind == "u" and BY_NAME[port.dtype].carrier != port.dtype
    return dtype.itemsize == user_dtype(port.dtype).itemsize and (raw or unsigned)


def _items(port: Port, arrays: Mapping[str, Any]) -> list[str]:
    """The names of the arrays of a sequence, in order."""
    numbered = re.compile(re.escape(port.name) + r"\.[0-9]{1,9}")
    return sorted(filter(numbered.fullmatch, arrays), key=lambda name: int(name[len(port.name) + 1 :]))


def _gather(port: Port, arrays: Mapping[str, Any]) -> Any:
    """The value given for ``port``, with the dtype of the model; ``check_inputs`` has agreed to it."""
    if not port.dtype:
        if port.name in arrays:
            return arrays[port.name]
        items = _items(port, arrays)
        if port.type.startswith("optional"):
            return arrays[items[0]] if items else None
        return [arrays[key] for key in items]
    array = np.asarray(arrays[port.name])
    expected = user_dtype(port.dtype)
    if array.dtype == expected:
        return array
    if port.dtype == "string":
        return array.astype(np.str_).astype(object)
    return np.ascontiguousarray(array).reshape(array.shape).view(expected)


def _fits(shape: Sequence[int], expected: Sequence[int | str | None] | None) -> bool:
    return expected is None or (
        len(shape) == len(expected) and all(not isinstance(e, int) or s == e for s, e in zip(shape, expected, strict=True))
    )


def _mode(port: Port, value: Any, microbatches: int | None) -> tuple[str, int]:
    """How ``value`` holds microbatches of ``port``, and how many."""
    if not isinstance(value, np.ndarray | Header) or port.shape is None:
        return "shared", 1
    rank = len(port.shape)
    if value.ndim == rank + 1 and 0 < value.shape[0] <= MOST_MICROBATCHES and _fits(value.shape[1:], port.shape):
        return "stacked", value.shape[0]
    if microbatches and microbatches > 1 and value.ndim == rank and rank and value.shape[0] % microbatches == 0:
        first = port.shape[0]
        if _fits((value.shape[0] // microbatches, *value.shape[1:]), port.shape) and (isinstance(first, int) or value.shape[0]):
            return "split", microbatches
    return ("shared", 1) if _fits(value.shape, port.shape) else ("wrong", 0)


def _shape_error(port: Port, value: Array | Header, microbatches: int | None, where: str) -> Diagnostic:
    expected = " x ".join("?" if d is None else str(d) for d in port.shape or ())
    found = " x ".join(map(str, value.shape))
    also = f", or M x {expected} for M microbatches"
    if microbatches and port.shape and isinstance(port.shape[0], int):
        also += (
            f", or {' x '.join([str(port.shape[0] * microbatches), *expected.split(' x ')[1:]])} to be split in {microbatches}"
        )
    return Diagnostic(
        f"input '{port.name}' has shape {found or 'of a scalar'}, the model expects {expected or 'a scalar'}{also}",
        where=where,
        hint=HINT,
    )
