"""A function as folding reads it: for each op a *key* that says everything but names, and what it reads and defines as numbers.

Two ops have equal keys exactly when they agree in opcode, attributes, facts (the phase is one), result types, the types of
what they read, the inside of their regions up to names, and the *sharing class* of each resource that they read:

- a *constant* (integers or booleans, few: shapes, axes, permutations) by its value: it decides what the op does;
- a *scalar* by its type: scales and zero points differ from layer to layer;
- a *weight* by the multiset of its readers (their keys without classes, and ports): a weight with one reader and a
  weight that a second op shares never stand at the same port of two copies.

Which of the names are the same name inside a copy is no matter of single ops: ``search`` compares it.

Types are those without layouts: neither these nor decisions are part of a key, so a block is the same whatever was decided for
its copies. What keys leave out is told by ``decided``, for ``variants`` to compare.

Keys are exact, not hashes: numbers given to structures that compare equal, floats by their text, because -0.0 == 0.0. Ops that
must not be folded have a key of their own each: those of ``comm`` whose channels and handles are single, all but
``comm.reshard``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from ir.core.attributes import Attributes, AttrKind
from ir.core.facets import DECISIONS, Color, Cost, Direction, Facet, Facets, Phase
from ir.core.module import Func, Inline, Resource, Splat
from ir.core.ops import Op, Region
from ir.core.types import DType, TensorType, Type, without_layout
from ir.ops.opdefs import RESHARD
from passes.graph.folding.names import reads

CONSTANT_ELEMENTS = 64
"""Integer tensors up to this size are constants, larger ones weights (tables, quantised matrices)."""

_FLOATS = (AttrKind.FLOAT, AttrKind.FLOATS)
_CONSTANT, _SCALAR, _WEIGHT = "constant", "scalar", "weight"


@dataclass(frozen=True, slots=True)
class Program:
    """The ops of ``func`` by position. ``values`` numbers every name that is read or defined, ``names`` back again;
    ``reads[i]`` are the numbers that op ``i`` reads, with repeats, absent operands left out; ``defs[i]`` those it defines;
    ``maker[v]`` is the op that defines value ``v``, or -1. ``results`` are the numbers of the function's results.
    ``keys[i]`` is the op's own, below 0, where it must not be folded. ``fixed`` are the numbers of constants, by value the same
    program wherever they are."""

    func: Func
    resources: Mapping[str, Resource]
    keys: tuple[int, ...]
    names: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    defs: tuple[tuple[int, ...], ...]
    maker: tuple[int, ...]
    results: tuple[int, ...]
    fixed: frozenset[int]


def program_of(func: Func, resources: Mapping[str, Resource]) -> Program:
    """Reads ``func``, in time linear in its text."""
    keyed = _Keys(func, resources)
    occurrences = [reads(op) for op in func.ops]
    bases = [keyed.base(op, names) for op, names in zip(func.ops, occurrences, strict=True)]
    keys = keyed.with_classes(bases, occurrences)
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    read, defined = [], []
    maker: dict[int, int] = {}
    for position, (op, names) in enumerate(zip(func.ops, occurrences, strict=True)):
        read.append(tuple([number(name) for name in names if name]))
        defined.append(tuple([number(value.name) for value in op.results if value.name]))
        maker.update((value, position) for value in defined[-1])
    results = tuple([number(value.name) for value in func.results])
    return Program(
        func,
        resources,
        tuple(~i if unfoldable(op) else key for i, (op, key) in enumerate(zip(func.ops, keys, strict=True))),
        tuple(numbers),
        tuple(read),
        tuple(defined),
        tuple([maker.get(value, -1) for value in range(len(numbers))]),
        results,
        frozenset(value for name, value in numbers.items() if keyed.kind(name) == _CONSTANT),
    )


def unfoldable(op: Op) -> bool:
    """Whether ``op``, or one inside it, must stay where it is."""
    single = op.dialect == "comm" and op.name != RESHARD
    return single or any(unfoldable(inner) for _, region in op.regions for inner in region.ops)


def laid(types: Iterable[Type]) -> tuple[tuple[int, Type], ...]:
    """Those of ``types`` that have a layout, with their places."""
    return tuple([(place, type_) for place, type_ in enumerate(types) if without_layout(type_) is not type_])


def choices(op: Op) -> tuple[Facet, ...]:
    """What was decided about ``op`` itself."""
    if not op.facets:
        return ()
    return tuple([facet for facet in op.facets if isinstance(facet, DECISIONS)])


def decided(op: Op) -> Hashable:
    """What the key of ``op`` leaves out, beside ``choices(op)``: layouts of what it makes, decisions and layouts inside it;
    empty for nothing. Of two ops with equal keys, ``op`` with these equal and names and locations put in is the other."""
    found = laid([value.type for value in op.results])
    if not op.regions:
        return (found, ()) if found else ()
    inside = tuple([_decided_region(region) for _, region in op.regions])
    return (found, inside) if found or any(inside) else ()


def _decided_region(region: Region) -> Hashable:
    found = laid([value.type for value in region.args])
    ops = tuple([(choices(op), decided(op)) for op in region.ops])
    return (found, ops) if found or any(any(op) for op in ops) else ()


class _Keys:
    """Gives equal structures equal numbers."""

    def __init__(self, func: Func, resources: Mapping[str, Resource]) -> None:
        self.resources = resources
        self.numbers: dict[Hashable, int] = {}
        self.kinds: dict[str, str] = {}
        self.types: dict[str, Type] = {value.name: without_layout(value.type) for value in func.args}
        for op in func.ops:
            self.types.update((value.name, without_layout(value.type)) for value in op.results)

    def number(self, structure: Hashable) -> int:
        return self.numbers.setdefault(structure, len(self.numbers))

    def kind(self, name: str) -> str:
        """What sort of resource ``name`` is; empty for none."""
        if name[:1] != "@" or name not in self.resources:
            return ""
        if name not in self.kinds:
            self.kinds[name] = _resource_kind(self.resources[name])
        return self.kinds[name]

    def base(self, op: Op, names: tuple[str, ...]) -> int:
        """The key of ``op`` without the classes of its weights; ``names`` are its reads."""
        return self.number((self.shape(op, {}), *[self.read(name) for name in names]))

    def read(self, name: str) -> Hashable:
        """What may stand where ``name`` is read."""
        if not name:
            return None
        kind = self.kind(name)
        if not kind:
            return self.types.get(name)
        resource = self.resources[name]
        if kind != _CONSTANT:
            return (_SCALAR if kind == _SCALAR else _WEIGHT, without_layout(resource.type))
        data = resource.data
        return (_CONSTANT, without_layout(resource.type), data.data if isinstance(data, Inline) else repr(data))

    def shape(self, op: Op, local: dict[str, int]) -> int:
        """All of ``op`` but the names it takes from outside; names that it gives to ``local`` are numbered there."""
        results = tuple([(without_layout(value.type), not value.name) for value in op.results])
        regions = tuple([(key, self.region(region, local)) for key, region in op.regions])
        return self.number((op.name, len(op.operands), attributes_key(op.attributes), _facets(op.facets), results, regions))

    def region(self, region: Region, around: dict[str, int]) -> int:
        """The inside of a region up to names: what is local stands as a number, what is not as a hole."""
        local = dict(around)

        def holes(names: tuple[str, ...]) -> tuple[int, ...]:
            return tuple([local.get(name, -1) if name else -2 for name in names])

        def give(name: str) -> None:
            if name:
                local[name] = len(local)

        args = tuple([(without_layout(value.type), not value.name) for value in region.args])
        for value in region.args:
            give(value.name)
        ops = []
        for op in region.ops:
            ops.append((self.shape(op, local), holes(op.operands)))
            for value in op.results:
                give(value.name)
        return self.number((args, tuple(ops), holes(region.results)))

    def with_classes(self, bases: list[int], occurrences: list[tuple[str, ...]]) -> list[int]:
        """Keys: each base with the sharing classes of the weights that its op reads."""
        readers: dict[str, list[tuple[int, int]]] = {}
        for base, names in zip(bases, occurrences, strict=True):
            for port, name in enumerate(names):
                if self.kind(name) == _WEIGHT:
                    readers.setdefault(name, []).append((base, port))
        classes = {name: self.number(("class", *sorted(found))) for name, found in readers.items()}
        return [
            self.number((base, "of", *[classes[name] for name in names if name in classes]))
            for base, names in zip(bases, occurrences, strict=True)
        ]


def _resource_kind(resource: Resource) -> str:
    type_ = resource.type
    elements = type_.elements if isinstance(type_, TensorType) else None
    if elements is None or not isinstance(type_, TensorType) or _facts(resource.facets):
        return _WEIGHT
    whole = type_.dtype in (DType.I64, DType.I32, DType.BOOL)
    if whole and elements <= CONSTANT_ELEMENTS and isinstance(resource.data, Inline | Splat):
        return _CONSTANT
    return _SCALAR if elements <= 1 else _WEIGHT


def attributes_key(attributes: Attributes) -> Hashable:
    """Equal for attributes that print the same."""
    return repr(attributes) if any(value.kind in _FLOATS for _, value in attributes) else attributes


def _facts(facets: Facets) -> Facets:
    return tuple([facet for facet in facets if not isinstance(facet, DECISIONS)])


def _facets(facets: Facets) -> Hashable:
    """Equal for facets whose facts print the same."""
    facets = _facts(facets)
    return facets if all(isinstance(facet, Cost | Color | Direction | Phase) for facet in facets) else repr(facets)
