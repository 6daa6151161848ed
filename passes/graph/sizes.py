"""Sizes of values: what the types say, else what a run of the model measured, else nothing.

A type says no size where it depends on data (``NonZero``, ``NonMaxSuppression``, the output of a ``Loop``) or where an operator
is not known. ``Measured`` facets hold what one run showed of such values. A plan that counts values of neither kind is a guess:
``assessed`` says so in its certificate and never calls it optimal, whatever was proven of the numbers that it was made with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ir.core.facets import Measured, measured_shape
from ir.core.module import Func, Plan
from ir.core.ops import Op, Value, all_reads
from ir.core.outcomes import TIGHT, outcome
from ir.core.types import TensorType, Type, type_bytes

NOT_SHOWN = ", which a run of the model did not show"
"""Said of sizes that stay unknown though inputs were given."""

SIZES = "sizes"
"""The key of a plan's certificate that says which sizes nobody knew; absent where all were known."""


def measured_type(type_: Type, shape: str) -> Type:
    """``type_`` with the shape that a ``Measured`` facet states, where its own says no size."""
    if isinstance(type_, TensorType) and type_.elements is None and (dims := measured_shape(shape)) is not None:
        return replace(type_, shape=dims)
    return type_


def sized_results(op: Op) -> tuple[Value, ...]:
    """The results of an op, with measured shapes where their types say no size."""
    facet = op.facet(Measured)
    if facet is None:
        return op.results
    return tuple(
        Value(value.name, measured_type(value.type, shape)) for value, shape in zip(op.results, facet.shapes, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many values of a function are read, and which of them have no size, in order; ``measured``: whether the model was run
    to find them."""

    values: int
    unknown: tuple[str, ...]
    measured: bool

    @property
    def text(self) -> str:
        """Both numbers and an example; empty where every size is known."""
        if not self.unknown:
            return ""
        verb = "is" if len(self.unknown) == 1 else "are"
        told = f"{len(self.unknown)} of {self.values} sizes {verb} unknown, such as {self.unknown[0]}"
        return told + NOT_SHOWN if self.measured else told


def sizes(func: Func) -> Sizes:
    """The sizes of the values that something reads, those in regions included. A region that was measured with its op counts
    by that alone."""
    used = {value.name for value in func.results}
    used.update(name for op in func.ops for name in all_reads(op))
    read = [value for value in _values(func.ops) if value.name in used]
    return Sizes(len(read), tuple(value.name for value in read if not _is_known(value.type)), _measured(func.ops))


def _measured(ops: Iterable[Op]) -> bool:
    return any(op.facet(Measured) is not None for op in ops)


def _is_known(type_: Type) -> bool:
    return type_.elements is not None if isinstance(type_, TensorType) else type_bytes(type_) is not None


def _values(ops: Iterable[Op]) -> Iterator[Value]:
    for op in ops:
        yield from sized_results(op)
        if op.facet(Measured) is None:
            for _, region in op.regions:
                yield from _values(region.ops)


def assessed(plan: Plan, func: Func, value: float, bound: float, tight: float = TIGHT) -> Plan:
    """The plan with this value and bound, and the outcome that follows: ``optimal`` where the value is the bound up to
    ``tight``, relative, and every size was known, else ``within-gap``. The certificate says which sizes of values in ``func``
    are unknown, if any are. Raises AssertionError for a value that is below its bound by more than that: one of the two is
    wrong."""
    if value < bound * (1 - tight):
        raise AssertionError(f"the plan takes {value!r} s, and its bound says that none is below {bound!r} s: one is wrong")
    value = max(value, bound)  # less by rounding only
    certificate = {key: text for key, text in plan.certificate if key != SIZES}
    status = outcome(value, bound, tight)
    if unknown := sizes(func).text:
        certificate[SIZES], status = unknown, "within-gap"
    return replace(plan, value=value, bound=bound, status=status, certificate=tuple(sorted(certificate.items())))
