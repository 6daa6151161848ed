"""Microbatches of a person's arrays, and files of outputs.

An ``.npz`` holds one array per model input, under its name. The shape of an array tells how it holds microbatches:

- an array shaped as the input is one microbatch; beside stacked ones it is given to every microbatch;
- an array with one axis more, in front, is a stack of microbatches;
- ``microbatches=M`` splits the first axis of arrays that have the input's rank into M equal parts.

``dnnc.data.entries`` says how a file stores strings, sequences, maps and optionals.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.build.build import INPUTS, Build, ValueInfo
from dnnc.data.entries import from_arrays, parts_of, prefixes, same_width, to_arrays
from dnnc.data.faults import (
    InputIsConstant,
    InputMissing,
    InputOfWrongElements,
    InputOfWrongShape,
    InputsNotKept,
    InputUnreadable,
    NoFolderForOutput,
    OutputIsFolder,
    SizeOutOfRange,
    SizesDiffer,
    UnequalMicrobatches,
    UnknownInput,
)
from dnnc.data.generate import RandomMicrobatches
from dnnc.data.npz import Header, read_arrays, read_npz, write_arrays
from dnnc.data.npz import write_npz as write_file
from dnnc.onnx.elements import Array, user_dtype
from ir.core.diagnostics import DiagnosticSink, Fault, InvalidInput
from ir.core.module import Module
from ir.core.ranges import MOST_MICROBATCHES
from ir.system.scratch import refuse_special


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Inputs per microbatch. ``mode``: ``single``, ``stacked`` or ``split``: how outputs are put together again."""

    items: Sequence[dict[str, Any]]
    mode: str


Constants = Callable[[], Iterable[str]]
"""Returns the names of a model's constants. Called only where an array belongs to no input."""


def read_inputs(
    path: Path, ports: Sequence[ValueInfo], *, microbatches: int | None = None, constants: Constants = tuple
) -> Microbatches:
    """The microbatches in an ``.npz``. Names, element types and shapes are compared with ``ports`` before an array is read.
    Raises InvalidInput as ``read_npz`` and ``split_microbatches`` do."""
    where = str(path)
    arrays = read_npz(path, lambda headers: check_inputs(ports, headers, microbatches, where, constants))
    return split_microbatches(ports, arrays, microbatches=microbatches, where=where)


def drawn(build: Build, count: int, seed: int | None, module: Module | None = None) -> tuple[Sequence[dict[str, Any]], bool]:
    """Microbatches for a run without ``--inputs``, and whether they are random. Without a ``seed``, a build that was compiled
    with arrays runs on these, the same for each microbatch. ``module``: the program, where plan.ir was read already. Raises
    InvalidInput."""
    if seed is None and build.given is not None:
        if not build.given:
            raise InvalidInput(InputsNotKept(), where=str(build.folder))
        where = build.files.where(INPUTS)
        arrays = read_arrays(io.BytesIO(build.files.read(INPUTS)), where)
        return tuple(split_microbatches(build.inputs, arrays, where=where).items) * count, False
    return RandomMicrobatches(build, count, seed=seed or 0, module=module), True


def check_writable(path: Path) -> None:
    """Raises InvalidInput where a file could not be written, before anything is computed for it."""
    if path.is_dir():
        raise InvalidInput(OutputIsFolder(), where=str(path))
    if not path.parent.is_dir():
        raise InvalidInput(NoFolderForOutput(str(path.parent)), where=str(path))
    refuse_special(path)


def write_npz(path: Path, values: Mapping[str, Any], ports: Sequence[ValueInfo] = ()) -> None:
    """Writes the values to ``path`` as ``dnnc.data.entries`` says: all of them, or nothing. ``ports`` tell their types.
    Raises InvalidInput where the folder cannot be written."""
    write_file(path, to_arrays(values, {port.name: port.type for port in ports}))


def npz_bytes(values: Mapping[str, Any], ports: Sequence[ValueInfo], most: int) -> bytes:
    """The same as the bytes of a file; empty for one of more than ``most`` bytes, which is not made where its arrays alone have
    more."""
    arrays, content = to_arrays(values, {port.name: port.type for port in ports}), io.BytesIO()
    if sum(array.nbytes for array in arrays.values()) > most:
        return b""
    write_arrays(content, arrays, INPUTS)
    return content.getvalue() if content.tell() <= most else b""


def split_microbatches(
    ports: Sequence[ValueInfo],
    arrays: Mapping[str, Any],
    *,
    microbatches: int | None = None,
    where: str = "",
    constants: Constants = tuple,
) -> Microbatches:
    """The microbatches in ``arrays``. Raises InvalidInput with everything that is wrong: names, dtypes, shapes, counts."""
    check_inputs(ports, arrays, microbatches, where, constants)
    values = _gathered(ports, arrays, where)
    parts: dict[str, list[Any]] = {}
    modes: set[str] = set()
    for port in ports:
        value = values[port.name]
        mode, count = _mode(port, value, microbatches)
        if mode == "shared":
            parts[port.name] = [value]
        else:
            modes.add(mode)
            parts[port.name] = list(value) if mode == "stacked" else np.split(value, count)
    counts = {name: len(items) for name, items in parts.items() if len(items) != 1}
    if len(set(counts.values())) > 1 or (microbatches and counts and set(counts.values()) != {microbatches}):
        each = tuple(f"'{name}' {count}" for name, count in sorted(counts.items()))
        raise InvalidInput(UnequalMicrobatches(each, microbatches or 0), where=where)
    total = next(iter(counts.values()), microbatches or 1)
    items = tuple({name: part[i if len(part) > 1 else 0] for name, part in parts.items()} for i in range(total))
    return Microbatches(items, "split" if "split" in modes else "stacked" if modes or total > 1 else "single")


def join_outputs(outputs: Sequence[Mapping[str, Any]], mode: str) -> dict[str, Any]:
    """Outputs of all microbatches in one array per name, as the inputs were given; ``NAME.M`` where shapes differ."""
    return {name: value for name, (_, value) in _joined(outputs, mode).items()}


def write_outputs(path: Path, outputs: Sequence[Mapping[str, Any]], mode: str, ports: Sequence[ValueInfo]) -> None:
    """Writes what ``join_outputs`` makes, as ``write_npz`` does: what is of one microbatch has the type of its output."""
    joined, types = _joined(outputs, mode), {port.name: port.type for port in ports}
    values = {name: value for name, (_, value) in joined.items()}
    write_file(path, to_arrays(values, {name: types.get(of, "") for name, (of, _) in joined.items()}))


def _joined(outputs: Sequence[Mapping[str, Any]], mode: str) -> dict[str, tuple[str, Any]]:
    """Joined values by name, each with the name of its output."""
    if mode == "single" or (len(outputs) == 1 and mode != "stacked"):
        return {name: (name, value) for name, value in outputs[0].items()}
    joined: dict[str, tuple[str, Any]] = {}
    before = prefixes(outputs[0])
    for name in outputs[0]:
        values = [output[name] for output in outputs]
        shapes = {value.shape if isinstance(value, np.ndarray) else None for value in values}
        if None in shapes or (len(shapes) > 1 and mode == "stacked"):
            joined |= {f"{before[name]}{i}": (name, value) for i, value in enumerate(values)}
        elif mode == "split" and values[0].ndim and len({shape[1:] for shape in shapes if shape}) == 1:
            joined[name] = name, np.concatenate(values)
        else:
            joined[name] = name, np.stack(values)
    return joined


def check_inputs(
    ports: Sequence[ValueInfo],
    arrays: Mapping[str, Any],
    microbatches: int | None = None,
    where: str = "",
    constants: Constants = tuple,
) -> None:
    """Raises InvalidInput with everything that is wrong with the names, element types and shapes of ``arrays``, or of their
    headers: nothing of their data is looked at."""
    sink = DiagnosticSink()
    for port in ports:
        if port.dtype:
            _check_dtype(port, arrays, where, sink)
    before = prefixes(port.name for port in ports)
    known = {name for port in ports for name in parts_of(port.name, before[port.name], _type(port), arrays)}
    unknown = sorted(arrays.keys() - known)
    fixed = frozenset(constants()) if unknown else frozenset()
    for name in unknown:
        if name in fixed:
            sink.error(InputIsConstant(name), where=where)
        else:
            sink.error(UnknownInput(name, tuple(port.name for port in ports)), where=where)
    sink.raise_errors()
    found: dict[str, tuple[int, str]] = {}
    for port in ports:
        if port.dtype:
            value = arrays[port.name]
            value = value if isinstance(value, Header) else np.asarray(value)
            if (mode := _mode(port, value, microbatches)[0]) == "wrong":
                sink.error(_wrong_shape(port, value, microbatches), where=where)
            elif port.ranges:
                shape = value.shape[1:] if mode == "stacked" else value.shape
                for fault in _out_of_range(port, shape, found):
                    sink.error(fault, where=where)
    sink.raise_errors()


def _out_of_range(port: ValueInfo, shape: Sequence[int], found: dict[str, tuple[int, str]]) -> Iterator[Fault]:
    """Faults of sizes beyond the ranges that a build was compiled for, and of a size that another input has otherwise.
    ``found``: sizes by name, each with the input that it was found in; those of ``port`` are added."""
    ranges = {name: (least, most) for name, least, most in port.ranges}
    for axis, (size, name) in enumerate(zip(shape, port.shape or (), strict=True)):
        if not isinstance(name, str) or name not in ranges:
            continue
        least, most = ranges[name]
        before, other = found.setdefault(name, (size, port.name))
        if not least <= size <= most:
            yield SizeOutOfRange(port.name, axis, size, name, least, most)
        elif size != before:
            yield SizesDiffer(port.name, axis, size, name, before, other)


def _check_dtype(port: ValueInfo, arrays: Mapping[str, Any], where: str, sink: DiagnosticSink) -> None:
    """An error in ``sink`` where the array is missing, or where its elements are not those of the model."""
    if port.name not in arrays:
        sink.error(InputMissing(port.name, port.type), where=where)
        return
    value = arrays[port.name]
    dtype = value.dtype if isinstance(value, Header) else np.asarray(value).dtype
    if dtype == user_dtype(port.dtype) or (dtype.kind in "US" if port.dtype == "string" else same_width(port.dtype, dtype)):
        return
    conversion = f"array.astype('{port.dtype}')" if port.dtype in np.sctypeDict else ""
    sink.error(InputOfWrongElements(port.name, dtype.name[:80], port.dtype, conversion), where=where)


def _type(port: ValueInfo) -> str:
    return f"tensor<{port.dtype}>" if port.dtype else port.type


def _gathered(ports: Sequence[ValueInfo], arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The value given for each port, with the element type of the model; ``check_inputs`` has agreed to the names."""
    before, values = prefixes(port.name for port in ports), {}
    for port in ports:
        try:
            values[port.name] = from_arrays(port.name, before[port.name], _type(port), arrays)
        except ValueError as error:
            raise InvalidInput(InputUnreadable(port.name, str(error)), where=where) from None
    return values


def _fits(shape: Sequence[int], expected: Sequence[int | str | None] | None) -> bool:
    return expected is None or (
        len(shape) == len(expected) and all(not isinstance(e, int) or s == e for s, e in zip(shape, expected, strict=True))
    )


def _mode(port: ValueInfo, value: Any, microbatches: int | None) -> tuple[str, int]:
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


def _wrong_shape(port: ValueInfo, value: Array | Header, microbatches: int | None) -> Fault:
    expected = " x ".join("?" if d is None else str(d) for d in port.shape or ())
    shape = " x ".join(map(str, value.shape))
    also = f", or M x {expected} for M microbatches"
    if microbatches and port.shape and isinstance(port.shape[0], int):
        also += (
            f", or {' x '.join([str(port.shape[0] * microbatches), *expected.split(' x ')[1:]])} to be split in {microbatches}"
        )
    return InputOfWrongShape(port.name, shape or "of a scalar", expected or "a scalar", also)
