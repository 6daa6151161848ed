"""A layout rule under construction: the op that a rule function reads, and the factors that it has added so far.

Tensors are numbered as in cost formulas: operand ``i`` is ``i``, result ``i`` is ``-1 - i``. A dimension is not
sharded if its length is no number (a symbol, or unknown) or if no factor is tied to it: ``rule`` gives it one of kind
``WHOLE``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ir.core.attributes import Attributes
from ir.core.types import REDUCTIONS, Dim, DType, TensorType, Type
from ir.layout_rules.adapt import Adapt, FixedResult
from ir.layout_rules.rule import Factor, Kind, LayoutRule, Linear

Numbers: TypeAlias = tuple[int | float, ...]
Constants: TypeAlias = Sequence[Numbers | None]
"""The elements of each operand that is a known constant, in row-major order; None for one that is not."""
Place: TypeAlias = tuple[int, int]
"""(tensor, dimension); a dimension below zero counts from the last."""

BOTH = REDUCTIONS
"""Reductions that commute with ops that only move elements."""


class UnfitError(ValueError):
    """The rule does not cover an op with these types or attributes."""


class Draft:
    """One op, and the rule drawn for it so far."""

    def __init__(
        self,
        attributes: Attributes,
        operands: Sequence[Type | None],
        results: Sequence[Type | None],
        constants: Constants,
        opset: int,
    ) -> None:
        self.attributes: Mapping[str, Any] = {key: attribute.value for key, attribute in attributes}
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.constants = constants
        self.opset = opset
        self.factors: list[Factor] = []
        self.linear: list[Linear] = []
        self.no_gradient: set[int] = set()
        self._tied: set[Place] = set()

    # -- reading -------------------------------------------------------------------------------------------------------

    def present(self, tensor: int) -> bool:
        return self._type(tensor) is not None

    def shape(self, tensor: int) -> tuple[Dim, ...]:
        """Raises UnfitError where the rank is not known."""
        type_ = self._type(tensor)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise UnfitError(f"the rank of {tensor} is not known")
        return type_.shape

    def rank(self, tensor: int) -> int:
        return len(self.shape(tensor))

    def numbers(self, tensor: int) -> tuple[int, ...]:
        """The shape; raises UnfitError where a dimension has no number."""
        shape = tuple(dim for dim in self.shape(tensor) if isinstance(dim, int))
        if len(shape) != self.rank(tensor):
            raise UnfitError(f"a dimension of {tensor} has no number")
        return shape

    def dtype(self, tensor: int) -> DType:
        type_ = self._type(tensor)
        if not isinstance(type_, TensorType):
            raise UnfitError(f"{tensor} is no tensor")
        return type_.dtype

    def constant(self, operand: int) -> Numbers | None:
        return self.constants[operand] if operand < len(self.constants) else None

    def get(self, key: str, default: Any = None) -> Any:
        return self.attributes.get(key, default)

    def axis(self, key: str, default: int, tensor: int = 0) -> int:
        """Attribute ``key`` as a dimension of ``tensor``, counted from 0."""
        return self.dim(int(self.get(key, default)), self.rank(tensor))

    @staticmethod
    def dim(axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise UnfitError(f"axis {axis} of rank {rank}")
        return axis % rank

    def axes(self, operand: int, rank: int, key: str = "axes") -> tuple[int, ...] | None:
        """The dimensions in attribute ``key`` or, in later opsets, in operand ``operand``, from 0, sorted; None if the operand
        is no known constant; ``()`` if the op has neither."""
        listed = self.get(key)
        if listed is None:
            if not self.present(operand):
                return ()
            listed = self.constant(operand)
            if listed is None:
                return None
        return tuple(sorted({self.dim(int(axis), rank) for axis in listed}))

    def _type(self, tensor: int) -> Type | None:
        if tensor >= 0:
            return self.operands[tensor] if tensor < len(self.operands) else None
        return self.results[-1 - tensor] if -tensor <= len(self.results) else None

    # -- drawing -------------------------------------------------------------------------------------------------------

    def tie(
        self,
        name: str,
        *places: Place,
        kind: Kind = Kind.PARALLEL,
        size: int | None = None,
        partial: Iterable[int] = (),
        adapt: Iterable[Adapt] = (),
        divided: bool = True,
    ) -> None:
        """Adds a factor of ``size`` units (default: the longest length) along ``places``, without those of absent tensors and
        those of length 1, which broadcast. Adds none if it has fewer than two units, or if a length is 0 or no number.

        Raises UnfitError if a length is no multiple of ``size``, if a dimension is tied already or a tensor occurs twice, if
        a parallel factor is in no result, or if any other factor is in one."""
        lengths_at: list[tuple[Place, Dim]] = []
        for tensor, axis in places:
            if self.present(tensor):
                shape = self.shape(tensor)
                dim = self.dim(axis, len(shape))
                lengths_at.append(((tensor, dim), shape[dim]))
        lengths = [length for _, length in lengths_at if isinstance(length, int)]
        if not lengths or len(lengths) < len(lengths_at):
            return
        adapt = tuple(adapt)
        units = max(lengths) if size is None else size
        if units < 2 or 0 in lengths:
            return
        long_places = [place for place, length in lengths_at if length != 1]
        if any(length % units if size is not None else length != units for length in lengths if length != 1):
            raise UnfitError(f"factor '{name}' has lengths {lengths}, not {units}")
        if self._tied.intersection(long_places) or len({tensor for tensor, _ in long_places}) < len(long_places):
            raise UnfitError(f"factor '{name}' lies along a dimension twice")
        in_results = kind is Kind.PARALLEL and not any(isinstance(change, FixedResult) for change in adapt)
        if self.results and any(tensor < 0 for tensor, _ in long_places) != in_results:
            raise UnfitError(f"factor '{name}' is {kind.value}, which the results contradict")
        self._tied.update(long_places)
        self._add(name, kind, units, long_places, tuple(i for i in partial if self.present(i)), adapt, divided)

    def _add(
        self,
        name: str,
        kind: Kind,
        size: int,
        places: Iterable[Place],
        partial: tuple[int, ...] = (),
        adapt: tuple[Adapt, ...] = (),
        divided: bool = True,
    ) -> None:
        dims = dict(places)
        operands = tuple(dims.get(i) for i in range(len(self.operands)))
        results = tuple(dims.get(-1 - i) for i in range(len(self.results)))
        self.factors.append(Factor(name, kind, size, operands, results, partial, adapt, divided))

    def tie_labels(
        self, terms: Mapping[int, Sequence[str]], kinds: Mapping[str, Kind] | None = None, partial: Iterable[int] = ()
    ) -> None:
        """Adds a factor for each label, along the dimensions with that label in ``terms``; a dimension labelled ``""`` is in
        none. ``kinds``: of labels that are not parallel; ``partial``: ``Factor.partial`` of those."""
        places: dict[str, list[Place]] = {}
        for tensor, labels in terms.items():
            if self.present(tensor):
                if len(labels) != self.rank(tensor):
                    raise UnfitError(f"{tensor} has rank {self.rank(tensor)}, not {len(labels)}")
                for dim, label in enumerate(labels):
                    if label:
                        places.setdefault(label, []).append((tensor, dim))
        for label, labelled in places.items():
            kind = (kinds or {}).get(label, Kind.PARALLEL)
            self.tie(label, *labelled, kind=kind, partial=() if kind is Kind.PARALLEL else partial)

    def tie_broadcast(self, operands: Iterable[int], results: Iterable[int] = (-1,)) -> None:
        """Adds a parallel factor for each dimension of ``results``, which have one shape, to which ``operands`` broadcast."""
        results = tuple(results)
        rank = self.rank(results[0])
        tensors = [i for i in operands if self.present(i)]
        for dim in range(rank):
            back = dim - rank
            places = [(i, back) for i in tensors if self.rank(i) >= -back]
            self.tie(f"d{dim}", *places, *((i, back) for i in results))

    def tie_same(
        self, tensors: Sequence[int], whole: Iterable[int] = (), adapt: Callable[[int], Iterable[Adapt]] | None = None
    ) -> None:
        """Adds a parallel factor for each dimension of tensors of equal rank, except the dimensions in ``whole``."""
        left_out = set(whole)
        for dim in range(self.rank(tensors[0])):
            if dim not in left_out:
                self.tie(f"d{dim}", *((i, dim) for i in tensors), adapt=adapt(dim) if adapt else ())

    def passes(self, *groups: Sequence[int], reductions: tuple[str, ...] = ("sum",)) -> None:
        """Adds a ``Linear`` for the present operands of each group; none if the result has elements that cannot be added."""
        if self.dtype(-1) in (DType.BOOL, DType.STRING):
            return
        for group in groups:
            self.linear.append(Linear(tuple(i for i in group if self.present(i)), reductions))

    def rule(self) -> LayoutRule:
        """The rule, with a factor of kind ``WHOLE`` for each dimension that is in no other."""
        tensors = [*range(len(self.operands)), *(-1 - i for i in range(len(self.results)))]
        for tensor in tensors:
            type_ = self._type(tensor)
            for dim, length in enumerate((type_.shape or ()) if isinstance(type_, TensorType) else ()):
                if length != 1 and (tensor, dim) not in self._tied:
                    side = f"operand{tensor}" if tensor >= 0 else f"result{-1 - tensor}"
                    self._add(f"{side}.{dim}", Kind.WHOLE, length if isinstance(length, int) else 0, [(tensor, dim)])
        results = tuple(_is_float(type_) and -1 - i not in self.no_gradient for i, type_ in enumerate(self.results))
        operands = tuple(
            any(results) and _is_float(type_) and i not in self.no_gradient for i, type_ in enumerate(self.operands)
        )
        return LayoutRule(tuple(self.factors), tuple(self.linear), (operands, results))


def _is_float(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


Draw: TypeAlias = Callable[[Draft], None]
"""Draws the rule of one operator. Raises UnfitError, or any LookupError, TypeError, ValueError or ArithmeticError, for a form
of the op that it does not know: the op then has no rule."""
