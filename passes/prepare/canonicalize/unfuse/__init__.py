"""Unfuse: one product per part where the columns of a fused one are taken apart (queries, keys and values; gate and up).

A dimension that is cut into parts cannot be split over devices: of three joined projections a shard of the columns holds no
heads. The rewritten product has a product for each part, whose weight is a part of the fused one (``View``): nothing is copied,
and each is split by its own columns.

Where: chains as ``chains`` describes them, of every function; a weight that other ops read too stays as it is, and all chains
of one weight must take the same parts of it. An attention that reads all three of one operand (``packed``) ends a chain as a
Split does. Invariants: the numbers that come out are the same but for the order in which a
product sums; values that are read further keep their names; running the pass again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ir.core.attributes import attributes
from ir.core.facets import BackwardTime, Cost, Measured, Time, Transfer
from ir.core.module import Func, Inline, Module, Resource, Splat, Symbol
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import Dim, DType, TensorType
from ir.layout_rules import resource_numbers
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import reads, used_symbols
from passes.prepare.canonicalize.unfuse.chains import Chain, Part, Surroundings, chain_from
from passes.prepare.canonicalize.unfuse.packed import packed_attentions, with_splits
from passes.prepare.canonicalize.unfuse.parts import part_data


@dataclass(frozen=True)
class UnfusePass(Pass):
    """Take fused projections apart, so that each part can be split over devices.

    Queries, keys and values that one product makes become three products of parts of its weight.
    """

    name: ClassVar[str] = "unfuse"

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        rewrite = _Rewrite(module)
        symbols: list[Symbol] = [rewrite.func(symbol) if isinstance(symbol, Func) else symbol for symbol in module.symbols]
        context.count(self.name, products=rewrite.products, parts=rewrite.made_products)
        return module if not rewrite.products else _with_parts(replace(module, symbols=tuple(symbols)), rewrite)


@dataclass(slots=True)
class _Rewrite:
    """``made``: new resources, by the one that they come from."""

    module: Module
    resources: Mapping[str, Resource] = field(init=False)
    times_read: dict[str, int] = field(default_factory=dict)
    taken: set[str] = field(init=False)
    made: dict[str, list[Resource]] = field(default_factory=dict)
    known: dict[tuple[str, tuple[int, ...], tuple[int, int, int]], str] = field(default_factory=dict)
    products: int = 0
    made_products: int = 0

    def __post_init__(self) -> None:
        self.resources = self.module.resources
        self.taken = {symbol.name for symbol in self.module.symbols}
        for func in self.module.of_type(Func):
            for name in [*(name for op in func.ops for name in reads(op)), *(value.name for value in func.results)]:
                self.times_read[name] = self.times_read.get(name, 0) + 1

    def func(self, func: Func) -> Func:
        """The function with its chains rewritten."""
        whole, wanted = func, packed_attentions(func)
        while True:  # a Split that no chain ends in would be work for nothing
            names = {value.name for op in whole.ops for value in op.results} | {arg.name for arg in whole.args}
            func, queries = with_splits(whole, wanted, names)
            around = self.around(func)
            chains = [found for place in range(len(func.ops)) if (found := chain_from(place, around)) is not None]
            chains = self.chosen(chains)
            taken = {part.value.name for chain in chains for part in chain.parts}
            if all(query in taken for query in queries.values()):
                break
            wanted = [result for result, query in queries.items() if query in taken]
        if not chains:
            return whole
        ends = {max(chain.places): chain for chain in chains}
        gone = {place for chain in chains for place in (*chain.places, *chain.takers)}
        ops: list[Op] = []
        for place, op in enumerate(func.ops):
            if place not in gone:
                ops.append(op)
            if place in ends:
                ops += self.rewritten(ends[place], names)
        self.products += len(chains)
        return replace(func, ops=tuple(ops))

    def around(self, func: Func) -> Surroundings:
        types = {name: resource.type for name, resource in self.resources.items()}
        types.update((value.name, value.type) for op in func.ops for value in op.results)
        readers: dict[str, list[int]] = {}
        for place, op in enumerate(func.ops):
            for name in reads(op):
                readers.setdefault(name, []).append(place)
        return Surroundings(
            func.ops, self.resources, types, readers, frozenset(value.name for value in func.results), self.integers
        )

    def integers(self, name: str) -> tuple[int, ...] | None:
        numbers = resource_numbers(self.resources[name]) if name in self.resources else None
        return None if numbers is None else tuple(map(int, numbers))

    def chosen(self, chains: Sequence[Chain]) -> list[Chain]:
        """Those whose weights are read by chains alone, which all take the same parts, and can be said in parts."""
        by_weight: dict[str, list[Chain]] = {}
        for chain in chains:
            by_weight.setdefault(chain.weight, []).append(chain)
        found = []
        for weight, alike in by_weight.items():
            same = len({(chain.factors, chain.cuts, chain.biases, chain.product.get("transB", 0)) for chain in alike}) == 1
            if same and self.times_read[weight] == len(alike) and self.can_part(alike[0], len(alike)):
                found += alike
        return sorted(found, key=lambda chain: chain.places)

    def can_part(self, chain: Chain, count: int) -> bool:
        """Whether weight and biases can be said in parts; a bias that others than the ``count`` chains read must be a constant
        in the text."""
        tied = (name for name in set(chain.biases) if self.times_read[name] != count)
        if not all(isinstance(self.resources[name].data, Inline | Splat) for name in tied):
            return False
        return all(self.part(name, chain, chain.parts[0], dry=True) for name in (chain.weight, *chain.biases))

    # -- writing -------------------------------------------------------------------------------------------------------

    def rewritten(self, chain: Chain, names: set[str]) -> list[Op]:
        """For each part: its product, additions, reshape and transpose."""
        return [op for number, part in enumerate(chain.parts) for op in self.part_ops(chain, part, number, names)]

    def part_ops(self, chain: Chain, part: Part, number: int, names: set[str]) -> list[Op]:
        self.made_products += 1
        columns = chain.columns // chain.factors[part.factor] * part.length
        flat, ops = _shape_of(chain.product)[:-1], list[Op]()

        def append(op: Op, operands: Sequence[str], shape: Sequence[Dim], **attrs: object) -> str:
            before = op.results[0]
            assert isinstance(before.type, TensorType)
            value = Value(unique(f"{before.name}.{number}", names), replace(before.type, shape=tuple(shape)))
            counted = Cost | Measured | Time | BackwardTime | Transfer
            found = tuple(facet for facet in op.facets if not isinstance(facet, counted))
            ops.append(
                replace(
                    op, operands=tuple(operands), results=(value,), facets=found, attributes=attributes(attrs) or op.attributes
                )
            )
            return value.name

        operands = [
            self.part(name, chain, part) if name in (chain.weight, *chain.biases) else name for name in chain.product.operands
        ]
        counted_columns = {"N": columns} if chain.product.get("N") is not None else {}
        given = {key: attribute.value for key, attribute in chain.product.attributes} | counted_columns
        value = append(chain.product, operands, (*flat, columns), **(given if counted_columns else {}))
        for op, side in chain.adds:
            pair = [value, value]
            pair[side] = self.part(op.operands[side], chain, part)
            value = append(op, pair, (*flat, columns))
        factors = list(chain.factors)
        factors[part.factor] = part.length
        lost = len(chain.rows) + part.factor
        whole = [*chain.rows, *factors]
        perm = list(chain.perm)
        if part.picked:
            del whole[lost]
            perm = [axis - (axis > lost) for axis in perm if axis != lost]
        if tuple(whole) != (*flat, columns):
            assert chain.reshape is not None, "only a reshape changes rows or divides columns"
            value = append(chain.reshape, (value, self.shape(whole)), whole)
        if perm != sorted(perm):
            assert chain.transpose is not None, "only a transpose changes the order"
            value = append(chain.transpose, (value,), [whole[axis] for axis in perm], perm=perm)
        last = ops[-1]
        names.discard(value)
        ops[-1] = replace(last, results=(part.value,))
        return ops

    def shape(self, shape: Sequence[Dim]) -> str:
        """A constant for a shape."""
        numbers = [dim for dim in shape if isinstance(dim, int)]
        data = Inline(b"".join(dim.to_bytes(8, "little", signed=True) for dim in numbers))
        key = (f"@shape.{'x'.join(map(str, numbers))}", (), (0, 0, 0))
        if key not in self.known:
            self.known[key] = unique(key[0], self.taken)
            self.made.setdefault("", []).append(Resource(self.known[key], TensorType(DType.I64, (len(numbers),)), data))
        return self.known[key]

    def part(self, name: str, chain: Chain, part: Part, *, dry: bool = False) -> str:
        """The resource that is ``part`` of weight or bias ``name``, which stands for itself where it does not vary along the
        columns; ``dry``: only whether it can be said, empty if not."""
        resource = self.resources[name]
        type_ = resource.type
        assert isinstance(type_, TensorType)
        shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
        first = name in chain.by_row
        if not first and name != chain.weight and (not shape or shape[-1] != chain.columns):
            return name
        key = (name, chain.factors, part.cut)
        if key in self.known:
            return self.known[key]
        outer, inner = ((), shape[1:]) if first else (shape[:-1], ())
        view = (*outer, *chain.factors, *inner)
        start, length = [0] * len(view), list(view)
        start[len(outer) + part.factor], length[len(outer) + part.factor] = part.start, part.length
        data = part_data(resource, view, start, length)
        if data is None or resource.facets:
            return ""
        if dry:
            return name
        columns = chain.columns // chain.factors[part.factor] * part.length
        made = Resource(unique(f"{name}.{part.start}", self.taken), replace(type_, shape=(*outer, columns, *inner)), data)
        self.made.setdefault(name, []).append(made)
        self.known[key] = made.name
        return made.name


def _shape_of(op: Op) -> tuple[Dim, ...]:
    type_ = op.results[0].type
    assert isinstance(type_, TensorType)
    return type_.shape or ()


def _with_parts(module: Module, rewrite: _Rewrite) -> Module:
    """The module with new resources behind those that they are parts of; what nothing reads any more goes."""
    made = rewrite.made
    used = used_symbols(module)
    symbols: list[Symbol] = []
    for symbol in module.symbols:
        if not isinstance(symbol, Resource) or symbol.name in used or symbol.name not in rewrite.times_read:
            symbols.append(symbol)
        symbols += made.get(symbol.name, ())
    last = max(i for i, symbol in enumerate(symbols) if isinstance(symbol, Resource))
    symbols[last + 1 : last + 1] = made.get("", ())
    return replace(module, symbols=tuple(symbols))


__all__ = ["UnfusePass"]
