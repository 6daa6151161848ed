"""A layout rule: how one op may be split over one mesh axis.

A rule lists *factors*, as Einstein notation lists letters: a factor names the dimension that it lies along in each operand and
result. One mesh axis shards one factor; with several axes, the rule applies to each axis. With a sharded factor:

- an operand that has it is ``S(dim)``, one that lacks it ``R``, or ``P`` if it is in ``Factor.partial`` (a bias beside a sum of
  n terms is on one member, or it would count n times);
- a result that has it is ``S(dim)``; one that lacks it is ``P(kind)`` if the factor is a reduction, ``R`` if it is parallel.

``linear`` lists the other way to split an op: some operands are terms of a reduction *together*, all others are whole, and
every result is a term of that reduction.

Invariants: a dimension longer than 1 is in exactly one factor, one of length 1 in none; a factor is along at most one dimension
of a tensor; the length of that dimension is ``size * unit`` (64 channels of 4 heads: size 4, unit 16); shards are contiguous,
in order, and cut between units only. Shards may differ in length.

The backward pass follows (``backward_rule``): see there.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ir.core.facets import WHOLE
from ir.core.shares import cut, equal
from ir.core.types import Partial, Placement, Replicate, Shard
from ir.layout_rules.adapt import Adapt


class Kind(enum.Enum):
    """How sharding a factor changes the results."""

    PARALLEL = "parallel"
    """Results have the factor, or do not depend on it (Shape)."""
    SUM = "sum"
    MAX = "max"
    """A reduction along the factor: results become terms of it."""
    WHOLE = "whole"
    """It must not be sharded."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A letter of the op's index space. ``operands`` and ``results``: the dimension of each that it lies along, None for none.

    ``partial``: operands without the factor that must be terms of the reduction, not replicas. ``adapt``: changes to the op on
    a shard beside smaller tensors. ``divided``: whether a shard has a part of the flops, or all of them (Gather)."""

    name: str
    kind: Kind
    size: int
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    partial: tuple[int, ...] = ()
    adapt: tuple[Adapt, ...] = ()
    divided: bool = True

    def share(self, count: int) -> float:
        """The fraction of the op's flops in the largest of ``count`` balanced shards, ``count <= size``."""
        return -(-self.size // count) / self.size if self.divided else 1.0

    def cuts(self, count: int) -> tuple[tuple[int, int], ...]:
        """Start and length, in units, of each of ``count`` shards; if they cannot be equal, the first ones are longer.

        Raises ValueError if a shard would be empty."""
        if not 1 <= count <= self.size:
            raise ValueError(f"factor '{self.name}' has {self.size} units, which cannot be cut into {count}")
        return tuple(cut(self.size, equal(count), shard) for shard in range(count))


@dataclass(frozen=True, slots=True)
class Linear:
    """Operands that may be terms of one of ``reductions`` together, all others replicated; then every result is a term."""

    operands: tuple[int, ...]
    reductions: tuple[str, ...] = ("sum",)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an op over one mesh axis: a placement for each operand and result.

    ``factor``: the sharded one; None if every member runs the whole op, on replicas or on terms."""

    name: str
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: Factor | None = None


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass of a strategy. ``cotangents``: placements that the gradients of the results must have; ``gradients``:
    placements of the gradients of the operands. None: no gradient (indices, shapes, comparisons)."""

    strategy: Strategy
    cotangents: tuple[Placement | None, ...]
    gradients: tuple[Placement | None, ...]


@dataclass(frozen=True, slots=True)
class LayoutRule:
    """How an op may be split. ``differentiable``: of each operand, then of each result, whether it has a gradient."""

    factors: tuple[Factor, ...]
    linear: tuple[Linear, ...]
    differentiable: tuple[tuple[bool, ...], tuple[bool, ...]]

    @property
    def shardable(self) -> tuple[Factor, ...]:
        """The factors that are not whole."""
        return tuple(factor for factor in self.factors if factor.kind is not Kind.WHOLE)

    def factor(self, name: str) -> Factor:
        """The factor of this name. Raises KeyError."""
        for factor in self.factors:
            if factor.name == name:
                return factor
        raise KeyError(name)

    def strategies(self, count: int = 2, *, even: bool = False) -> tuple[Strategy, ...]:
        """Every way to run the op over an axis of ``count`` members, the replicated one first. ``even``: equal shards only."""
        operands, results = (len(side) for side in self.differentiable)
        strategies = [Strategy(WHOLE, (Replicate(),) * operands, (Replicate(),) * results)]
        strategies += [
            _sharded(factor) for factor in self.shardable if factor.size >= count and not (even and factor.size % count)
        ]
        for linear in self.linear:
            for reduction in linear.reductions:
                term = Partial(reduction)
                placements = tuple(term if i in linear.operands else Replicate() for i in range(operands))
                name = f"{reduction} of {', '.join(map(str, linear.operands))}"
                strategies.append(Strategy(name, placements, (term,) * results))
        return tuple(strategies)

    def named(self, names: Sequence[str], counts: Sequence[int]) -> list[Strategy] | None:
        """The strategies of these names, one for each axis of ``counts`` members; None where there is none of its name for an
        axis, or another number of names."""
        pairs = zip(names, counts, strict=False)
        found = [strategy for name, count in pairs for strategy in self.strategies(count) if strategy.name == name]
        return found if len(found) == len(names) == len(counts) else None


def _sharded(factor: Factor) -> Strategy:
    term: Placement = Replicate() if factor.kind is Kind.PARALLEL else Partial(factor.kind.value)
    operands = (
        Shard(dim) if dim is not None else term if i in factor.partial else Replicate() for i, dim in enumerate(factor.operands)
    )
    results = (Shard(dim) if dim is not None else term for dim in factor.results)
    return Strategy(factor.name, tuple(operands), tuple(results), factor)


def backward_rule(rule: LayoutRule, count: int = 2) -> tuple[Backward, ...]:
    """The backward side of each of ``rule.strategies(count)``, in their order.

    If the gradients of the results have these placements, differentiating what each member runs gives those of the operands:

    ====================  =====================  ==================================================================
    the value is          its gradient is        because
    ====================  =====================  ==================================================================
    ``S(d)``              ``S(d)``               each member has the same part of both
    ``P(sum)``            ``R``                  every term counts once in the sum
    ``P(max)``            ``P(sum)``             only the member with the maximum gets it, others zero: the reshard of
                                                 ``P(max)`` masks it by comparing its input and output
    ``R``, op sharded     ``P(sum)`` (operand)   each member has the term that comes through its own shard
    ``R``, op replicated  ``R``                  all members do the same
    ====================  =====================  ==================================================================

    The derivative is linear in the gradients of the results: if an op runs replicated, ``P(sum)`` may also come in and leave,
    so a sum of several gradients is reduced once. The derivative reads values (operands, or a result such as that of Softmax)
    in the layouts of the strategy.
    """
    return tuple(_backward(strategy, rule) for strategy in rule.strategies(count))


def _backward(strategy: Strategy, rule: LayoutRule) -> Backward:
    operands, results = rule.differentiable
    split = any(not isinstance(placement, Replicate) for placement in (*strategy.operands, *strategy.results))
    cotangents = (
        _dual(placement, Replicate()) if has else None for placement, has in zip(strategy.results, results, strict=True)
    )
    whole: Placement = Partial("sum") if split else Replicate()
    gradients = (_dual(placement, whole) if has else None for placement, has in zip(strategy.operands, operands, strict=True))
    return Backward(strategy, tuple(cotangents), tuple(gradients))


def _dual(placement: Placement, whole: Placement) -> Placement:
    """The placement of the gradient of a value with ``placement``; ``whole`` for a replicated value."""
    match placement:
        case Shard():
            return placement
        case Partial("max"):
            return Partial("sum")
        case Partial():
            return Replicate()
    return whole
