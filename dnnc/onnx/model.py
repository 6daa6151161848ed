"""What every frontend yields: a program and where its weights are; and the dimensions that its inputs leave open.

Importing this module imports no third-party library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnc.onnx.faults import UnboundDimension
from ir.core import dims as dimensions
from ir.core.diagnostics import InvalidInput
from ir.core.module import Func, Module
from ir.core.ops import all_reads
from ir.core.types import MapType, OptionalType, SeqType, TensorType, Type

if TYPE_CHECKING:
    from dnnc.onnx.weights import WeightFiles

CHOOSES_CACHES = "use_cache_branch"
"""The input by which a decoder that optimum merged chooses its branch with caches."""
_SHOWN = 20
"""The most messages about dimensions without a number; one message is about one dimension."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A program and the files of its ``External`` resources. ``source``: how the user spelled the model."""

    module: Module
    files: WeightFiles
    source: str


@dataclass(frozen=True, slots=True)
class Arrays:
    """Shapes of the arrays that a person gave, by input; ``where``: the file that they are in."""

    shapes: Mapping[str, tuple[int, ...]]
    where: str


def bind_module(module: Module, dims: Mapping[str, int | str], arrays: Arrays | None = None) -> Module:
    """A module of IR with its symbolic dimensions bound. Raises as ``load_model``."""
    if not dims and arrays is None:
        return module
    from passes.prepare.canonicalize.bind import bind_types

    types = {arg.name[1:]: arg.type for arg in module.entry.args}
    return bind_types(module, bindings_of(dims, arrays, types, free_symbols(module.entry)))


def bindings_of(
    dims: Mapping[str, int | str], arrays: Arrays | None, inputs: Mapping[str, Type], symbols: Iterable[str]
) -> dict[str, int | str]:
    """Dimensions by name, with what ``--dim`` and arrays bind them to. ``inputs``: types by input, without sigils. Raises as
    ``load_model``."""
    shapes = {name: t.shape for name, t in inputs.items() if isinstance(t, TensorType) and t.shape is not None}
    bindings = dimensions.by_place(dims, shapes, symbols)
    return bindings if arrays is None else dimensions.of_arrays(bindings, shapes, arrays.shapes, arrays.where)


def type_dims(type_: Type) -> tuple[str | int | None, ...]:
    """All dimensions within a type; a tensor of unknown rank counts as one unknown dimension."""
    match type_:
        case TensorType():
            return (None,) if type_.shape is None else type_.shape
        case SeqType() | OptionalType():
            return type_dims(type_.element)
        case MapType():
            return type_dims(type_.value)
    return ()


def free_symbols(func: Func) -> dict[str, str]:
    """Symbols that the function's arguments leave open, with where each stands first (``dimension 0 of %x``)."""
    places: dict[str, str] = {}
    for arg in func.args:
        for index, dim in enumerate(type_dims(arg.type)):
            if isinstance(dim, str):
                for name in dimensions.symbols(dim):
                    places.setdefault(name, f"dimension {index} of {arg.name}")
    return places


def dim_flags(func: Func) -> str:
    """The ``--dim`` flags that would make the arguments static: for a symbol that leads its input 1, else 128; a second
    symbol that leads another input is offered as an alias of the first."""
    flags, leader = [], ""
    for name, place in free_symbols(func).items():
        first = place.startswith("dimension 0 ")
        if first and leader:
            flags.append(f"--dim {name}={leader}")
        else:
            flags.append(f"--dim {name}={1 if first else 128}")
            leader = leader or (name if first else "")
    return " ".join(flags)


def require_bound(module: Module, where: str) -> None:
    """Raises InvalidInput, with the flags that bind them, if arguments of the entry function have symbolic dimensions."""
    func = module.entry
    if symbols := free_symbols(func):
        *others, last = list(symbols.items())[:_SHOWN]
        faults = [UnboundDimension(*symbol) for symbol in others]
        faults.append(UnboundDimension(*last, flags=dim_flags(func), more=max(0, len(symbols) - _SHOWN)))
        raise InvalidInput([fault.at(where) for fault in faults])


def used_names(func: Func) -> set[str]:
    """Names that ops (regions included) or results read: a result that nobody reads needs no shape."""
    return {name for op in func.ops for name in all_reads(op)} | {value.name for value in func.results}
