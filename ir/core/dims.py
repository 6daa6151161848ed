"""Symbolic dimensions: names, arithmetic over names, and their binding by ``--dim``.

Exporters write a dimension as a name (``s72``) or as arithmetic over names (``s70*s72``, ``Min(512, s53)``, ``past + 1``).
Binding replaces names by numbers or by other names (aliases), then evaluates what has become constant. Text that is not
arithmetic is an opaque name.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.faults import (
    CircularDimensions,
    DimensionGivenTwice,
    DimensionIsNumber,
    NoSuchAxis,
    NoSuchDimension,
    NotADimension,
    RankMismatch,
    SizeContradicted,
    SizeMismatch,
)
from ir.core.types import Dim

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?!\s*\()\b")
_HYPHENATED = re.compile(r"[A-Za-z_]\w*(-[A-Za-z_]\w*)+")
"""A name such as ``batch-size``; exporters put spaces around a minus."""
_LONGEST = 500
"""Characters of arithmetic over dimensions; what is longer is a name, so that nothing nests or grows without an end."""
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "Min": min,
    "min": min,
    "Max": max,
    "max": max,
    "floor": math.floor,
    "ceil": math.ceil,
    "ceiling": math.ceil,
    "FloorDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "Abs": abs,
    "abs": abs,
}
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: lambda a, b: a % b,
}


@lru_cache(maxsize=1 << 14)
def symbols(dim: str) -> tuple[str, ...]:
    """Names that occur in a dimension, in order, each once; the whole text where it is no arithmetic."""
    if _parse(dim) is None:
        return (dim,)
    return tuple(dict.fromkeys(name for name in _IDENTIFIER.findall(dim) if name not in _FUNCTIONS))


@lru_cache(maxsize=1 << 14)
def _parse(text: str) -> ast.expr | None:
    if len(text) > _LONGEST or _HYPHENATED.fullmatch(text):
        return None
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, bindings: Mapping[str, int]) -> float:
    """Value of dimension arithmetic. Raises KeyError for a free name or an unknown construct, ArithmeticError as Python."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return bindings[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, bindings), _evaluate(right, bindings))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, bindings)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _FUNCTIONS[name](*(_evaluate(arg, bindings) for arg in args))
        case ast.Attribute():
            return bindings[ast.unparse(node)]
    raise KeyError(ast.dump(node))


def bind(dim: Dim, bindings: Mapping[str, int | str]) -> Dim:
    """``dim`` with the names of ``bindings`` replaced, as a number where nothing free is left."""
    if not isinstance(dim, str):
        return dim
    if dim in bindings:
        return bindings[dim]
    names = symbols(dim)
    if names == (dim,) or not any(name in bindings for name in names):
        return dim
    text = _IDENTIFIER.sub(lambda match: str(bindings.get(match[0], match[0])), dim)
    parsed = _parse(text)
    try:
        value = _evaluate(parsed, {}) if parsed is not None else math.nan
        return int(value) if value == int(value) and value >= 0 else text
    except (KeyError, ArithmeticError, ValueError, TypeError, RecursionError):
        return text


def _possible(target: int | str) -> bool:
    """Whether a dimension can be this: a number that ONNX can write, or text with a name in it (unlike ``2.5``)."""
    if isinstance(target, int):
        return 0 <= target < 1 << 63
    parsed = _parse(target)
    return parsed is None or any(isinstance(node, ast.Name) for node in ast.walk(parsed))


def by_place(
    requested: Mapping[str, int | str], inputs: Mapping[str, Sequence[Dim]], known: Iterable[str]
) -> dict[str, int | str]:
    """Bindings by name alone: ``INPUT.AXIS`` becomes the name of that dimension. ``inputs``: shapes by input, without sigils.

    What is a name in ``known`` is a name. Raises UsageError for an axis that the input does not have, a dimension that is
    another number already, and two bindings of one dimension that differ.
    """
    names, faults = set(known), []
    bound: dict[str, tuple[str, int | str]] = {}  # dimension -> the key that binds it, and to what
    for key, target in requested.items():
        where, name = f"--dim {key}={target}", key
        base, dot, axis = key.rpartition(".")
        if key not in names and dot and axis.isdecimal() and base in inputs:
            shape = inputs[base]
            if int(axis) >= len(shape):
                faults.append(NoSuchAxis(base, len(shape)).at(where))
                continue
            dim = shape[int(axis)]
            if isinstance(dim, int) and dim != target:
                faults.append(DimensionIsNumber(base, int(axis), dim).at(where))
            if not isinstance(dim, str) or dim == target:
                continue
            name = dim
        other, before = bound.setdefault(name, (key, target))
        if before != target:
            faults.append(DimensionGivenTwice(f"--dim {other}={before}", name).at(where))
    if faults:
        raise UsageError(faults)
    return {name: target for name, (_, target) in bound.items()}


def of_arrays(
    requested: Mapping[str, int | str],
    inputs: Mapping[str, Sequence[Dim]],
    arrays: Mapping[str, Sequence[int]],
    where: str,
) -> dict[str, int | str]:
    """``requested`` (by name alone) and the dimensions that the shapes of ``arrays`` give, by input. An array with one axis
    more, in front, is a stack of inputs.

    Raises InvalidInput, at ``where``, for a size that contradicts another, a binding or the model."""
    bound, sources = dict(requested), {name: f"--dim {name}={target}" for name, target in requested.items()}
    faults, later = [], []
    for name, shape in inputs.items():
        array = arrays.get(name)
        if array is None:
            continue
        array = array[1:] if len(array) == len(shape) + 1 else array
        if len(array) != len(shape):
            faults.append(RankMismatch(name, len(array), len(shape)).at(where))
            continue
        for axis, (dim, size) in enumerate(zip(shape, array, strict=True)):
            if dim is None or dim == size:
                continue
            if isinstance(dim, int) or symbols(dim) != (dim,):
                later.append((name, axis, dim, size))
                continue
            symbol = dim
            while isinstance(target := bound.get(symbol), str):
                symbol = target
            if bound.setdefault(symbol, size) != size:
                faults.append(SizeContradicted(name, axis, size, dim, str(bound[symbol]), sources[symbol]).at(where))
            sources.setdefault(symbol, f"dimension {axis} of input '{name}'")
    for name, axis, dim, size in later:
        expected = bind(dim, resolve(bound, bound))
        if isinstance(expected, int) and expected != size:
            text = f"'{dim}', which is {expected}" if isinstance(dim, str) else str(dim)
            faults.append(SizeMismatch(name, axis, size, text).at(where))
    if faults:
        raise InvalidInput(faults)
    return bound


def resolve(requested: Mapping[str, int | str], known: Iterable[str]) -> dict[str, int | str]:
    """Bindings with aliases followed to their end (``s72 = batch, batch = 8`` gives both 8).

    ``known``: symbols of the model. Raises UsageError for a name that neither the model nor an alias mentions, what cannot
    be a dimension (a negative or fractional number), or aliases in a circle.
    """
    known = set(known)
    targets = {target for target in requested.values() if isinstance(target, str)}
    faults = []
    for name, target in sorted(requested.items()):
        where = f"--dim {name}={target}"
        if name not in known | targets:
            close = "".join(f"--dim {other}={target}" for other in difflib.get_close_matches(name, sorted(known), 1))
            faults.append(NoSuchDimension(name, close, tuple(sorted(known))).at(where))
        if not _possible(target):
            faults.append(NotADimension(name, str(target)).at(where))
    if faults:
        raise UsageError(faults)
    resolved: dict[str, int | str] = {}
    for name in requested:
        seen, target = [name], requested[name]
        while isinstance(target, str) and target in requested:
            if target in seen:
                circle = " -> ".join([*seen, target])
                raise UsageError(CircularDimensions(circle), where=f"--dim {name}={requested[name]}")
            seen.append(target)
            target = requested[target]
        resolved[name] = target
    return resolved
