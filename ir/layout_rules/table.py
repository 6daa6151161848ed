"""The layout rule of each op, and the ops without one."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from ir.core.attributes import Attributes, Dense
from ir.core.facets import OptimizerState
from ir.core.module import Func, Inline, Module, Resource, Splat
from ir.core.ops import Interned, Op
from ir.core.types import DType, TensorType, Type, UnknownType
from ir.layout_rules import attention, indexing, kernels, moves, pointwise, products, quantised, reductions, updates
from ir.layout_rules.draft import Constants, Draft, Draw, Numbers
from ir.layout_rules.rule import LayoutRule
from ir.ops.opdefs import module_opsets

RULES: dict[str, Draw] = {
    **attention.RULES,
    **indexing.RULES,
    **kernels.RULES,
    **moves.RULES,
    **pointwise.RULES,
    **products.RULES,
    **quantised.RULES,
    **reductions.RULES,
    **updates.RULES,
}
"""How the rule of each op is drawn, by the op's full name."""

NEWEST = 1 << 20
"""The opset of a module that states none: newer than any change to an operator."""
MOST_NUMBERS = 64
"""Elements of the longest constant that rules read: shapes, axes, pads."""

_FORMATS = {
    DType.F64: "d", DType.F32: "f", DType.F16: "e", DType.I64: "q", DType.I32: "i", DType.I16: "h", DType.I8: "b",
    DType.U64: "Q", DType.U32: "I", DType.U16: "H", DType.U8: "B", DType.BOOL: "B",
}  # fmt: skip


def rule_of(
    op: Op,
    operand_types: Sequence[Type | None],
    result_types: Sequence[Type],
    constants: Constants = (),
    opsets: Mapping[str, int] | None = None,
) -> LayoutRule | None:
    """How ``op`` may be split over a mesh axis; None if it has no rule, so that it runs replicated.

    ``operand_types``: None for an absent one; symbolic dimensions are whole. ``constants``: the elements of operands that are
    known (``numbers_of``); an op whose axes or steps are operands has fewer factors, or no rule, without them. ``opsets``:
    version by domain, as of ``ir.ops.opdefs.module_opsets``.

    Rules do not depend on names, so equal ops of repeated layers share one cached rule."""
    by_operand = tuple(constants[i] if i < len(constants) else None for i in range(len(operand_types)))
    results = tuple(
        None if isinstance(type_, UnknownType) and not value.name else type_
        for value, type_ in zip(op.results, result_types, strict=True)
    )
    opset = (opsets or {}).get("onnx", NEWEST)
    if op.regions or op.name not in RULES:
        return None
    return _drawn(op.name, op.attributes, tuple(operand_types), results, by_operand, opset)


@lru_cache(maxsize=1 << 14)
def _drawn(
    name: str,
    attributes: Attributes,
    operands: tuple[Type | None, ...],
    results: tuple[Type | None, ...],
    constants: tuple[Numbers | None, ...],
    opset: int,
) -> LayoutRule | None:
    draft = Draft(attributes, operands, results, constants, opset)
    try:
        RULES[name](draft)
        return draft.rule()
    except (LookupError, TypeError, ValueError, ArithmeticError):  # an invalid op, or a form that the rule does not know
        return None


def numbers_of(dense: Dense) -> Numbers | None:
    """The elements of a constant; None if it has more than ``MOST_NUMBERS``, or a type that no rule reads."""
    code, elements = _FORMATS.get(dense.type.dtype), dense.type.elements
    if code is None or elements is None or elements > MOST_NUMBERS or isinstance(dense.data, tuple):
        return None
    try:
        return struct.unpack(f"<{elements}{code}", dense.data)
    except struct.error:
        return None


def resource_numbers(resource: Resource) -> Numbers | None:
    """The elements of a small constant resource, or None. A trained weight is no constant: each step changes it."""
    if not isinstance(resource.type, TensorType) or any(isinstance(facet, OptimizerState) for facet in resource.facets):
        return None
    match resource.data:
        case Inline(data):
            return numbers_of(Dense(resource.type, data))
        case Splat(value):
            elements = resource.type.elements
            return None if elements is None or elements > MOST_NUMBERS else (value,) * elements
    return None


class Surroundings:
    """Types and constants by name, which rules read; ``see`` adds those of each op, in order."""

    def __init__(self, resources: Iterable[Resource] = (), opsets: Mapping[str, int] | None = None) -> None:
        self.opsets = opsets
        self.interned = Interned()
        self.drawn: dict[int, LayoutRule | None] = {}
        self.types: dict[str, Type] = {}
        self.numbers: dict[str, Numbers] = {}
        for resource in resources:
            self.types[resource.name] = resource.type
            numbers = resource_numbers(resource)
            if numbers is not None:
                self.numbers[resource.name] = numbers

    def see(self, op: Op) -> None:
        """Adds the results of ``op``, and its elements if it is an ``onnx.Constant``."""
        self.types.update((value.name, value.type) for value in op.results)
        if op.name == "onnx.Constant":
            value = op.get("value", op.get("value_ints", op.get("value_int", op.get("value_float"))))
            numbers = numbers_of(value) if isinstance(value, Dense) else (value,) if isinstance(value, int | float) else value
            if isinstance(numbers, tuple) and len(numbers) <= MOST_NUMBERS:
                self.numbers[op.results[0].name] = numbers

    def kind(self, op: Op) -> int:
        """A number that ops share which agree in all but names and locations: what rules, costs and seconds depend on. Of names
        it tells which operands are the same, and which are symbols."""
        operands = [self.types.get(name) if name else None for name in op.operands]
        constants = [self.numbers.get(name) for name in op.operands]
        made = [part for value in op.results for part in (value.type, not value.name)]
        names = [(op.operands.index(name), name[:1]) for name in op.operands]
        own = op.name, op.attributes, op.facets, op.regions
        return self.interned.number(*own, len(operands), *operands, *constants, *made, *itertools.chain.from_iterable(names))

    def rule(self, op: Op) -> LayoutRule | None:
        """The rule of an op; None if an operand has not been seen."""
        kind = self.kind(op)
        if kind not in self.drawn:
            operands = [self.types.get(name) if name else None for name in op.operands]
            unseen = any(name and type_ is None for name, type_ in zip(op.operands, operands, strict=True))
            constants = [self.numbers.get(name) for name in op.operands]
            made = [value.type for value in op.results]
            self.drawn[kind] = None if unseen else rule_of(op, operands, made, constants, self.opsets)
        return self.drawn[kind]


def rules(module: Module, func: Func | None = None) -> Iterator[tuple[Op, LayoutRule | None]]:
    """Each op of ``func`` (default: the entry) with its rule, in order, without ops in regions."""
    func = module.entry if func is None else func
    around = Surroundings(module.resources.values(), module_opsets(module))
    around.types.update((arg.name, arg.type) for arg in func.args)
    for op in func.ops:
        yield op, around.rule(op)
        around.see(op)


def coverage(module: Module, func: Func | None = None) -> dict[str, int]:
    """The number of ops without a rule, which run replicated, by operator, sorted."""
    missing = sorted(op.name for op, rule in rules(module, func) if rule is None)
    return {name: missing.count(name) for name in dict.fromkeys(missing)}
