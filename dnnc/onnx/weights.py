"""Weights: where the bytes of a resource lie, whether all are there, and the reading of them.

The path of a weight file is relative to the model's folder and, after all links, inside it: a model must not read other files
of the user. Each file is opened once and read through that descriptor. So a file that replaces it meanwhile changes nothing,
and ``WeightFiles.confirm`` detects a write to it. Files are read, not mapped: a mapped file that somebody truncates would kill
the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnnc.onnx.arrays import numpy_dtype, to_array
from dnnc.onnx.faults import (
    InlineWeightInvalid,
    UnknownDistribution,
    WeightFileChanged,
    WeightFileMissing,
    WeightFileNotOpened,
    WeightFileNotRegular,
    WeightFileTooShort,
    WeightOfWrongSize,
    WeightPathLeadsNowhere,
    WeightPathLeavesFolder,
    WeightPathNotRelative,
    WeightWithoutData,
    WeightWithoutStaticType,
)
from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.module import Declared, External, Inline, Module, Random, Resource, Splat, State, View
from ir.core.types import DType, TensorType
from ir.system.digests import OpenFile, Stamp
from ir.system.files import open_input


def data_path(file: str, folder: Path, where: str) -> Path:
    """The path of a weight file. Raises InvalidInput where it leaves the folder; the file need not exist."""
    posix = PurePosixPath(file.replace("\\", "/"))
    if not file or posix.is_absolute() or PureWindowsPath(file).drive:
        raise InvalidInput(WeightPathNotRelative(file), where=where)
    path = folder / posix
    try:
        inside, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, links in a circle, a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(WeightPathLeadsNowhere(file[:200], str(reason)), where=where) from None
    if ".." in posix.parts or not inside.is_relative_to(root):
        raise InvalidInput(WeightPathLeavesFolder(file), where=where)
    return path


class _Changed(InvalidInput):
    """A file is not what it was."""

    def __init__(self, path: Path) -> None:
        super().__init__(WeightFileChanged(), where=str(path))


class WeightFiles:
    """The files that hold the data of a model, below its ``folder``. Each is opened at its first use.

    At most ``MOST_OPEN`` files stay open. The others are opened again at each use, and must not have changed."""

    MOST_OPEN = 128

    def __init__(self, folder: Path, own: Mapping[str, OpenFile] | None = None) -> None:
        """``own``: the model's own file by its name, which holds weights too."""
        self.folder = folder
        self._open: dict[str, OpenFile] = dict(own or {})
        self._seen: dict[str, Stamp] = {}

    def open(self, file: str, where: str) -> OpenFile:
        """The file of this name. Raises InvalidInput where there is none in the folder, or another one than before."""
        if file in self._open:
            return self._open[file]
        path = data_path(file, self.folder, where)
        opened = OpenFile(open_input(path, f"the weight file of {where}", hint="put it beside the model"))
        if self._seen.setdefault(file, opened.stamp) != opened.stamp:
            raise _Changed(path)
        if len(self._open) < self.MOST_OPEN:
            self._open[file] = opened
        return opened

    def add(self, file: str, opened: OpenFile) -> None:
        """From now on ``file`` is this one, wherever it lies."""
        self._open[file] = opened

    def read(self, name: str, data: External) -> NDArray[np.uint8]:
        """The bytes of the resource called ``name``. Raises InvalidInput where they are not there."""
        opened = self.open(data.file, name)
        if opened.stamp.size < data.offset + data.length:
            raise InvalidInput(WeightFileTooShort(data.file, opened.stamp.size, name, data.offset + data.length), where=name)
        content, done = np.empty(data.length, np.uint8), 0
        while done < data.length:
            count = os.preadv(opened.descriptor, [content[done:].data], data.offset + done)
            if not count:
                raise _Changed(self.folder / data.file)
            done += count
        return content

    def digests(self) -> dict[str, str]:
        """The digest of every file that was opened, by name. Call it early: with a digest, ``confirm`` can tell a file that was
        renamed meanwhile from one that was written to."""
        return {name: self.open(name, name).known_digest() for name in sorted({*self._open, *self._seen})}

    def confirm(self) -> None:
        """Raises InvalidInput where a file was written to since it was opened. Call it after the last read."""
        for name in sorted({*self._open, *self._seen}):
            if self.open(name, name).was_written():
                raise _Changed(self.folder / name)


WeightSource: TypeAlias = Path | WeightFiles
"""Where weights lie: open files, or the folder in which to open them."""


def files_of(source: WeightSource) -> WeightFiles:
    return source if isinstance(source, WeightFiles) else WeightFiles(source)


def missing_data(module: Module, source: WeightSource) -> list[Diagnostic]:
    """One diagnostic per weight file that is absent, unreadable or shorter than the resources in it need.

    Raises InvalidInput for a path that leaves the folder."""
    files = files_of(source)
    needed: dict[str, tuple[int, str]] = {}
    for resource in module.of_type(Resource):
        data = resource.data.whole if isinstance(resource.data, View) else resource.data
        if isinstance(data, External):
            needed[data.file] = max(needed.get(data.file, (0, "")), (data.offset + data.length, resource.name))
    faults = []
    for file, (end, name) in sorted(needed.items()):
        try:
            size = files.open(file, name).stamp.size
        except _Changed:
            raise
        except InvalidInput:
            path = data_path(file, files.folder, name)
            if not os.path.exists(path):
                faults.append(WeightFileMissing(file, name).at(file))
            elif os.path.isfile(path):
                faults.append(WeightFileNotOpened(file, name).at(file))
            else:
                faults.append(WeightFileNotRegular(file, name).at(file))
            continue
        if size < end:
            faults.append(WeightFileTooShort(file, size, name, end).at(file))
    return faults


def check_weights(module: Module, source: WeightSource) -> None:
    """Raises InvalidInput unless every external resource is wholly there."""
    faults = missing_data(module, source)
    if faults:
        raise InvalidInput(faults)


def read_resource(resource: Resource, source: WeightSource) -> NDArray[Any]:
    """The elements of a resource as an array of its shape, which may be read-only; strings are an object array of bytes.

    ``source``: the external files, or the folder of their paths. Raises InvalidInput for missing, short or undeclared data.
    """
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.elements is None:
        raise InvalidInput(WeightWithoutStaticType(resource.name, str(type_)), where=resource.name)
    match resource.data:
        case Inline(data):
            try:
                return to_array(type_, data)
            except ValueError as error:
                raise InvalidInput(InlineWeightInvalid(str(error)), where=resource.name) from None
        case Splat(value):
            return np.full(_shape(type_), value, dtype=numpy_dtype(type_.dtype))
        case Random():
            return next(random_pieces(type_, resource.data, type_.elements)).reshape(_shape(type_))
        case External():
            return _read_external(resource.name, type_, resource.data, files_of(source))
        case Declared() | State():
            raise InvalidInput(WeightWithoutData(resource.name), where=resource.name)
        case View():
            return box_of(resource, resource.data, source).reshape(_shape(type_))
    raise AssertionError(resource.data)


def box_of(resource: Resource, view: View, source: WeightSource) -> NDArray[Any]:
    """The elements of a view, in the shape of its box. Of an external file only the rows of the box are read. Raises as
    ``read_resource``."""
    type_ = resource.type
    assert isinstance(type_, TensorType)
    data, shape, start = view.whole, view.shape, view.start
    if isinstance(data, External) and shape and shape[0] and not type_.dtype.bits % 8:
        row = data.length // shape[0]
        data = External(data.file, data.offset + start[0] * row, view.length[0] * row)
        shape, start = (view.length[0], *shape[1:]), (0, *start[1:])
    whole = read_resource(replace(resource, type=replace(type_, shape=shape), data=data), source)
    box: NDArray[Any] = whole[tuple(slice(s, s + length) for s, length in zip(start, view.length, strict=True))]
    return box


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(dim for dim in type_.shape or () if isinstance(dim, int))


def _read_external(name: str, type_: TensorType, data: External, files: WeightFiles) -> NDArray[Any]:
    if data.length != type_.nbytes:
        raise InvalidInput(WeightOfWrongSize(name, str(type_), type_.nbytes or 0, data.length), where=name)
    if data.length == 0:
        return np.zeros(_shape(type_), numpy_dtype(type_.dtype))
    raw = files.read(name, data)
    if type_.dtype.bits % 8:
        return to_array(type_, raw.tobytes())
    return raw.view(numpy_dtype(type_.dtype)).reshape(_shape(type_))


def random_pieces(type_: TensorType, data: Random, most: int) -> Iterator[NDArray[Any]]:
    """The elements of a random resource in pieces of at most ``most``, flat and in order; ``most`` changes no element.

    They are drawn in single precision (double for f64), then rounded to the element type. Integers are rounded to the nearest
    and clipped; booleans are true above the mean."""
    generator = np.random.Generator(np.random.Philox(key=data.seed))
    dtype = type_.dtype
    precision: Any = np.float64 if dtype is DType.F64 else np.float32
    left = math.prod(_shape(type_))
    while True:
        count = min(left, most)
        if data.distribution == "normal":
            drawn = generator.standard_normal(count, dtype=precision)
        elif data.distribution == "uniform":
            drawn = generator.random(count, dtype=precision) * precision(2) - precision(1)
        else:
            raise InvalidInput(UnknownDistribution(data.distribution))
        drawn *= precision(data.scale)
        drawn += precision(data.mean)
        yield _converted(drawn, dtype, data.mean)
        left -= count
        if not left:
            return


def _converted(drawn: NDArray[Any], dtype: DType, mean: float) -> NDArray[Any]:
    if dtype is DType.BOOL:
        return drawn > mean
    if dtype.is_integer:
        low, high = (
            (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.value[0] == "i" else (0, (1 << dtype.bits) - 1)
        )
        return np.clip(np.rint(drawn.astype(np.float64)), low, high).astype(numpy_dtype(dtype))
    return drawn.astype(numpy_dtype(dtype), copy=False)
