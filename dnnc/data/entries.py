"""How values are stored in an ``.npz``: the rule for both outputs that are written and inputs that are read.

- A tensor is the array of its name. Elements that numpy lacks (``ml_dtypes``) are unsigned integers of their width, those
  narrower than a byte one a byte: ``array.view(ml_dtypes.bfloat16)`` gives them back.
- Strings are a ``U`` array. numpy drops NULs at the end of such a string: where there are any, ``NAME.nuls`` counts them.
- A sequence is the arrays ``NAME.0``, ``NAME.1``...; a map ``NAME.keys`` and ``NAME.values``; an absent optional has none.
- Of several microbatches, arrays are joined under the one name where they can be. What is no array, or has another shape in
  each, is a value a microbatch, called ``NAME.0``, ``NAME.1``...: item 0 of a sequence of microbatch 0 is ``NAME.0.0``. These
  are outputs alone: reading takes none of them for a microbatch.
- Where another value's name begins with ``NAME.``, parts of ``NAME`` begin with ``NAME..`` (and so on).

Types are IR text, as a ``ValueInfo`` has them.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dnnc.onnx.elements import Array, user_dtype
from ir.core.types import DType

_DTYPES = {name: dtype.numpy_name for dtype in DType for name in (dtype.numpy_name, dtype.value)}
"""Numpy's name of an element type by that name and by the IR's."""
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_NULS = 1 << 20
"""The most NULs at the end of a string."""


def prefixes(names: Iterable[str]) -> dict[str, str]:
    """The prefix of the names of a value's parts, by the name of the value. No part gets the name of another value or of its
    part."""
    every = tuple(names)
    in_order, whole = sorted(every), set(every)

    def begun_by(prefix: str) -> int:
        return bisect_left(in_order, prefix + chr(sys.maxunicode)) - bisect_left(in_order, prefix)

    prefix_of: dict[str, str] = {}
    taken: set[str] = set()
    for name in every:
        prefix = f"{name}."
        while prefix in taken or begun_by(prefix) > begun_by(f"{prefix}.") + (prefix in whole):
            prefix += "."
        taken.add(prefix)
        prefix_of[name] = prefix
    return prefix_of


def to_arrays(values: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Array]:
    """The arrays of a file that holds these values. ``types``: of those whose type is known."""
    before = prefixes(values)
    parts = (_parts(name, before[name], types.get(name, ""), value) for name, value in values.items())
    return {key: array for part in parts for key, array in part}


def _parts(key: str, prefix: str, type_: str, value: Any) -> Iterator[tuple[str, Array]]:
    """The arrays of a value called ``key``, whose parts begin with ``prefix``."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _parts(f"{prefix}{i}", f"{prefix}{i}.", _inner(type_), item)
    elif isinstance(value, Mapping):
        of_map = re.search(r"map<(\w+), (?:tensor<)?(\w+)>", type_)
        for i, (name, column) in enumerate((("keys", list(value)), ("values", list(value.values())))):
            dtype = user_dtype(_DTYPES[of_map[1 + i]]) if of_map else None
            yield from _parts(f"{prefix}{name}", f"{prefix}{name}.", "", np.array(column, dtype))
    elif value is not None:
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            nuls = [len(text) - len(text.rstrip("\0")) for text in map(str, array.reshape(-1).tolist())]
            array = array.astype(np.str_)
            if any(nuls):
                yield f"{prefix}nuls", np.array(nuls, np.int64).reshape(array.shape)
        yield key, array.view(f"u{array.dtype.itemsize}") if array.dtype.isbuiltin == 2 else array


def _inner(type_: str) -> str:
    """The element type of a sequence or an optional."""
    return type_.partition("<")[2][:-1]


def _element(type_: str) -> str:
    """numpy's name of the element type of a tensor; empty for another type."""
    return _DTYPES.get(re.split("[<x ]", type_.rstrip(">"))[-1], "")


def parts_of(name: str, prefix: str, type_: str, names: Collection[str]) -> list[str]:
    """Which of ``names`` are the value called ``name``, of this type, or a part of it."""

    if type_.startswith("tensor<"):
        return [key for key in (name, f"{prefix}nuls" if _element(type_) == "string" else name) if key in names]

    def pattern(key: str, prefix: str, type_: str) -> str:
        kind = type_.partition("<")[0]
        if kind == "optional":
            return pattern(key, prefix, _inner(type_))
        if kind == "seq":
            item = f"{prefix}{_NUMBER}"
            return pattern(item, rf"{item}\.", _inner(type_))
        if kind == "map":
            return rf"{prefix}(?:keys|values)(?:\.nuls)?"
        return f"{key}|{prefix}nuls" if _element(type_) == "string" else key

    wanted = re.compile(f"{re.escape(name)}|{pattern(re.escape(name), re.escape(prefix), type_)}")
    return list(filter(wanted.fullmatch, names))


def from_arrays(name: str, prefix: str, type_: str, arrays: Mapping[str, Any]) -> Any:
    """The value called ``name``, made of its arrays. Where ``arrays[name]`` is no array, it is the value. Raises ValueError for
    a missing array, for columns of unequal length, and for strings that are not UTF-8."""

    def value(key: str, prefix: str, type_: str) -> Any:
        kind = type_.partition("<")[0]
        if kind == "optional":
            return value(key, prefix, _inner(type_)) if parts_of(key, prefix, type_, arrays) else None
        if kind == "seq":
            items = (other[len(prefix) :] for other in parts_of(key, prefix, type_, arrays) if other != key)
            numbers = sorted({int(rest.partition(".")[0]) for rest in items})
            return [value(f"{prefix}{i}", f"{prefix}{i}.", _inner(type_)) for i in numbers]
        if kind == "map":
            keys, values = (value(f"{prefix}{one}", f"{prefix}{one}.", "tensor<string>") for one in ("keys", "values"))
            return dict(zip(keys.tolist(), values.tolist(), strict=True))
        if key not in arrays:
            raise ValueError(f"'{key}' is missing")
        return _tensor(np.asarray(arrays[key]), _element(type_), arrays.get(f"{prefix}nuls"))

    if name in arrays and isinstance(arrays[name], list | tuple | Mapping | None):
        return arrays[name]
    return value(name, prefix, type_)


def _tensor(array: Array, element: str, nuls: Array | None) -> Array:
    """An array of a file with the element type of the model."""
    if array.dtype.kind in "SU":
        texts = (np.strings.decode(array, "utf-8") if array.dtype.kind == "S" else array).astype(object)
        if nuls is not None:
            if nuls.shape != texts.shape or nuls.dtype.kind not in "iu" or (nuls < 0).any() or (nuls > _NULS).any():
                raise ValueError("the counts of NULs at the ends of strings do not fit them")
            texts = texts + np.array(["\0" * int(count) for count in nuls.reshape(-1)], object).reshape(nuls.shape)
        return np.asarray(texts, object)
    if element and array.dtype != user_dtype(element) and same_width(element, array.dtype):
        return np.ascontiguousarray(array).reshape(array.shape).view(user_dtype(element))
    return array


def same_width(element: str, dtype: np.dtype[Any]) -> bool:
    """Whether elements of ``dtype`` are the bytes of one of ``element`` (numpy's name): raw ones, or unsigned integers in the
    place of a type that numpy lacks."""
    wanted = user_dtype(element)
    raw = dtype.kind == "V" and dtype.names is None and dtype.subdtype is None
    return dtype.itemsize == wanted.itemsize and (raw or (dtype.kind == "u" and wanted.isbuiltin == 2)) and element != "string"
