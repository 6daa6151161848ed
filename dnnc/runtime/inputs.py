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
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.backend.build import Port
from dnnc.runtime.elements import BY_NAME, Array, user_dtype
from ir.diagnostics import Diagnostic, DiagnosticSink, InvalidInput
from ir.scratch import whole_file

HINT = "'dnnc inspect DIR' lists the inputs of the model"


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Inputs per microbatch. ``mode``: ``single``, ``stacked`` or ``split``: how outputs are put together again."""

    items: tuple[dict[str, Any], ...]
    mode: str


def read_npz(path: Path) -> dict[str, Any]:
    """Arrays by name. Raises InvalidInput for a file that is missing, is no ``.npz`` or holds pickled objects."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InvalidInput("one bare array found, an .npz of named arrays expected", where=str(path), hint=_SAVE)
        with archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InvalidInput("no such file", where=str(path), hint=_SAVE) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else "it is not an .npz file, or damaged"
        raise InvalidInput(f"the arrays cannot be read: {reason}", where=str(path), hint=_SAVE) from error


_SAVE = "make it with numpy.savez(FILE, **{'INPUT NAME': array})"


def check_writable(path: Path) -> None:
    """Raises InvalidInput where a file could not be written, before anything is computed for it."""
    if path.is_dir():
        raise InvalidInput("a folder; a file was expected", where=str(path), hint="name a file in it, ending in .npz")
    if not path.parent.is_dir():
        raise InvalidInput("its folder does not exist", where=str(path), hint=f"mkdir -p {path.parent}")


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
    sink = DiagnosticSink()
    found = {port.name: _gather(port, arrays, where, sink) for port in ports}
    known = {port.name for port in ports} | {
        key for key in arrays for port in ports if not port.dtype and re.fullmatch(re.escape(port.name) + r"\.\d+", key)
    }
    for name in sorted(arrays.keys() - known):
        expected = ", ".join(f"'{port.name}'" for port in ports) or "none"
        sink.error(f"the model has no input '{name}'; its inputs are {expected}", where=where, hint=HINT)
    sink.raise_errors()
    parts: dict[str, list[Any]] = {}
    modes: set[str] = set()
    for port in ports:
        value = found[port.name]
        mode, count = _mode(port, value, microbatches)
        if mode == "wrong":
            sink.emit(_shape_error(port, value, microbatches, where))
        elif mode == "shared":
            parts[port.name] = [value]
        else:
            modes.add(mode)
            parts[port.name] = list(value) if mode == "stacked" else np.split(value, count)
    sink.raise_errors()
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


def _gather(port: Port, arrays: Mapping[str, Any], where: str, sink: DiagnosticSink) -> Any:
    """The value given for ``port``, with the dtype of the model; errors go to ``sink``."""
    if not port.dtype:
        if port.name in arrays:
            return arrays[port.name]
        items = sorted(
            (k for k in arrays if re.fullmatch(re.escape(port.name) + r"\.\d+", k)), key=lambda k: int(k[len(port.name) + 1 :])
        )
        if port.type.startswith("optional"):
            return arrays[items[0]] if items else None
        return [arrays[key] for key in items]
    if port.name not in arrays:
        sink.error(f"input '{port.name}' is missing; expected {port.type}", where=where, hint=HINT)
        return None
    array = np.asarray(arrays[port.name])
    expected = user_dtype(port.dtype)
    if array.dtype == expected:
        return array
    if port.dtype == "string":
        if array.dtype.kind in "US":
            return array.astype(np.str_).astype(object)
    elif array.dtype.itemsize == expected.itemsize and (
        array.dtype.kind == "V" or (array.dtype.kind == "u" and BY_NAME[port.dtype].carrier != port.dtype)
    ):
        return np.ascontiguousarray(array).reshape(array.shape).view(expected)
    found = array.dtype.name
    sink.error(
        f"input '{port.name}' has element type {found}, the model expects {port.dtype}",
        where=where,
        hint=f"convert it: array.astype('{port.dtype}')" if port.dtype in np.sctypeDict else HINT,
    )
    return None


def _fits(shape: Sequence[int], expected: Sequence[int | str | None] | None) -> bool:
    return expected is None or (
        len(shape) == len(expected) and all(not isinstance(e, int) or s == e for s, e in zip(shape, expected, strict=True))
    )


def _mode(port: Port, value: Any, microbatches: int | None) -> tuple[str, int]:
    """How ``value`` holds microbatches of ``port``, and how many."""
    if not isinstance(value, np.ndarray) or port.shape is None:
        return "shared", 1
    rank = len(port.shape)
    if value.ndim == rank + 1 and value.shape[0] > 0 and _fits(value.shape[1:], port.shape):
        return "stacked", value.shape[0]
    if microbatches and microbatches > 1 and value.ndim == rank and rank and value.shape[0] % microbatches == 0:
        first = port.shape[0]
        if _fits((value.shape[0] // microbatches, *value.shape[1:]), port.shape) and (isinstance(first, int) or value.shape[0]):
            return "split", microbatches
    return ("shared", 1) if _fits(value.shape, port.shape) else ("wrong", 0)


def _shape_error(port: Port, value: Array, microbatches: int | None, where: str) -> Diagnostic:
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
