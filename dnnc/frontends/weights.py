"""Weights: where the bytes of a resource are, whether they are all there, and the bytes themselves.

A weight file is named relative to the model's folder and stays inside it, whatever links it goes through: a model must not be
able to read other files of the user. Reading maps the file; nothing is copied until somebody touches it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnc.frontends.arrays import numpy_dtype, to_array
from ir.diagnostics import Diagnostic, InvalidInput
from ir.files import open_input
from ir.module import Declared, External, Inline, Module, Random, Resource, Splat, View
from ir.types import DType, TensorType


def data_path(file: str, folder: Path, where: str) -> Path:
    """The path of a weight file. Raises InvalidInput where it leaves the folder; the file need not exist."""
    hint = "weights must lie in the model's folder or below; move them there and correct the model's external_data location"
    posix = PurePosixPath(file.replace("\\", "/"))
    if not file or posix.is_absolute() or PureWindowsPath(file).drive:
        what = "is absolute" if file else "is empty"
        raise InvalidInput(
            f"the weight file path '{file}' {what}; a path inside the model's folder was expected", where=where, hint=hint
        )
    path = folder / posix
    try:
        inside, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, links in a circle, a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"the weight file path '{file[:200]}' leads nowhere: {reason}", where=where, hint=hint) from None
    if ".." in posix.parts or not inside.is_relative_to(root):
        raise InvalidInput(f"the weight file path '{file}' leaves the model's folder", where=where, hint=hint)
    return path


def missing_data(module: Module, folder: Path) -> list[Diagnostic]:
    """One diagnostic per weight file that is absent, unreadable or shorter than the resources in it need.

    Raises InvalidInput for a path that leaves the folder."""
    needed: dict[str, tuple[int, str]] = {}
    for resource in module.of_type(Resource):
        data = resource.data.whole if isinstance(resource.data, View) else resource.data
        if isinstance(data, External):
            needed[data.file] = max(needed.get(data.file, (0, "")), (data.offset + data.length, resource.name))
    faults = []
    for file, (end, name) in sorted(needed.items()):
        path = data_path(file, folder, name)
        try:
            size = path.stat().st_size if path.is_file() else -1
        except OSError:
            size = -1
        if size < 0:
            what = "is no regular file" if os.path.exists(path) else "is missing"
            message = f"the weight file '{file}' {what}; {name} and others are in it"
            faults.append(
                Diagnostic(message, file, None, "put it beside the model, or use --plan-only, which reads no weights")
            )
        elif size < end:
            message = f"the weight file '{file}' has {size} bytes; {name} ends at byte {end}"
            faults.append(Diagnostic(message, file, None, "it is truncated or of another model: copy or export it again"))
    return faults


def check_weights(module: Module, folder: Path) -> None:
    """Raises InvalidInput unless every external resource is wholly there."""
    faults = missing_data(module, folder)
    if faults:
        raise InvalidInput(faults)


def read_resource(resource: Resource, folder: Path) -> NDArray[Any]:
    """The elements of a resource, of the type's shape; strings as an object array of bytes. May be read-only and mapped.

    ``folder``: what external files are relative to. Raises InvalidInput for missing, short or undeclared data.
    """
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.elements is None:
        raise InvalidInput(f"{resource.name} has no static tensor type: {type_}", where=resource.name)
    match resource.data:
        case Inline(data):
            try:
                return to_array(type_, data)
            except ValueError as error:
                raise InvalidInput(str(error), where=resource.name) from None
        case Splat(value):
            return np.full(_shape(type_), value, dtype=numpy_dtype(type_.dtype))
        case Random():
            return next(random_pieces(type_, resource.data, type_.elements)).reshape(_shape(type_))
        case External():
            return _read_external(resource.name, type_, resource.data, folder)
        case Declared():
            hint = "the program can be planned (--plan-only) but not run"
            raise InvalidInput(f"{resource.name} is declared without data", where=resource.name, hint=hint)
        case View():
            return box_of(resource, resource.data, folder).reshape(_shape(type_))
    raise AssertionError(resource.data)


def box_of(resource: Resource, view: View, folder: Path) -> NDArray[Any]:
    """The elements of a view in the shape of its box; of a file, a window on what is mapped. Raises as ``read_resource``."""
    type_ = resource.type
    assert isinstance(type_, TensorType)
    whole = read_resource(replace(resource, type=replace(type_, shape=view.shape), data=view.whole), folder)
    ends = zip(view.start, view.length, strict=True)
    found: NDArray[Any] = whole[tuple(slice(start, start + length) for start, length in ends)]
    return found


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(dim for dim in type_.shape or () if isinstance(dim, int))


def _read_external(name: str, type_: TensorType, data: External, folder: Path) -> NDArray[Any]:
    path = data_path(data.file, folder, name)
    if data.length != type_.nbytes:
        raise InvalidInput(f"{name} is {type_}, which needs {type_.nbytes} bytes; {data.length} are given", where=name)
    if data.length == 0:
        return np.zeros(_shape(type_), numpy_dtype(type_.dtype))
    with open_input(path, f"the weight file of {name}", hint="put it beside the model") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size < data.offset + data.length:
            message = f"the weight file '{data.file}' has {size} bytes; {name} ends at byte {data.offset + data.length}"
            raise InvalidInput(message, where=name, hint="it is truncated or of another model: copy or export it again")
        raw = np.memmap(opened, dtype=np.uint8, mode="r", offset=data.offset, shape=(data.length,))
    if type_.dtype.bits % 8:
        return to_array(type_, raw.tobytes())
    return np.asarray(raw).view(numpy_dtype(type_.dtype)).reshape(_shape(type_))


def random_pieces(type_: TensorType, data: Random, most: int) -> Iterator[NDArray[Any]]:
    """The elements of a random resource, flat and in order, at most ``most`` at once; the same ones however they are cut.

    Drawn in single precision (double for f64), then rounded to the element type; integers are rounded to the nearest and
    clipped, booleans are true above the mean."""
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
            message = f"distribution '{data.distribution}' is not known; 'normal' or 'uniform' was expected"
            raise InvalidInput(message)
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


__all__ = ["box_of", "check_weights", "data_path", "missing_data", "random_pieces", "read_resource"]
