"""A layout rule: how one op may be split over one mesh axis.

A rule lists *factors*, as Einstein notation lists letters: a factor names the dimension that it lies along in each operand and
result. One mesh axis shards one factor; with several axes, the rule applies to each axis. With a sharded factor:

- an operand that has it is ``S(dim)``, one that lacks it ``R`` (``P`` where ``Factor.partial`` says so: a bias under a partial
  sum stands on one member, or it would count n times);
- a result that has it is ``S(dim)``; one that lacks it is ``P(kind)`` under a reduction, ``R`` under a parallel factor.

``linear`` lists the other way to split an op: some operands are terms of a reduction *together*, all others are whole, and
every result is a term of that reduction.

Invariants: a dimension of size above 1 stands in exactly one factor, one of size 1 in none; a factor lies along at most one
dimension of a tensor; the length of that dimension is ``size`` times a whole *unit* (64 channels of 4 heads: size 4, unit 16),
and shards are cut between units only, contiguous, in order. Shards of any lengths are right, not only equal ones.

The backward pass follows (``backward_rule``): see there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ir.core.facets import WHOLE
from ir.core.shares import cut, equal
from ir.core.types import Partial, Placement, Replicate, Shard
from ir.layout_rules.adapt import Adapt


class Kind(enum.Enum):
    """How sharding a factor changes the results."""

    PARALLEL = "parallel"
    """Results are split, or do not depend on it."""
    SUM = "sum"
    MAX = "max"
    """A reduction along the factor: results become terms of it."""
    WHOLE = "whole"
    """It must not be sharded."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A letter of the op's index space. ``operands`` and ``results``: the dimension of each that it lies along, None for none.

    ``partial``: operands without the factor that must be terms of the reduction, not replicas. ``adapt``: what changes in the
    op that runs on a shard, its smaller operands aside. ``divided``: whether flops are divided by the number of shards; else
    every shard works as much as the whole op (its bytes are those of its smaller tensors all the same)."""

    name: str
    kind: Kind
    size: int
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    partial: tuple[int, ...] = ()
    adapt: tuple[Adapt, ...] = ()
    divided: bool = True

    def share(self, count: int) -> float:
        """The largest shard's part of the op's flops when ``count`` (at most ``size``) balanced shards are cut."""
        return -(-self.size // count) / self.size if self.divided else 1.0

    def cuts(self, count: int) -> tuple[tuple[int, int], ...]:
        """Start and length, in units, of each of ``count`` shards; the first ones are longer where they cannot be equal.

        Raises ValueError where a shard would be empty."""
        if not 1 <= count <= self.size:
            raise ValueError(f"factor '{self.name}' has {self.size} units, which cannot be cut into {count}")
        return tuple(cut(self.size, equal(count), shard) for shard in range(count))


@dataclass(frozen=True, slots=True)
class Linear:
    """Operands that may be terms of one of ``reductions`` together, with all others replicated; every result is then a term."""

    operands: tuple[int, ...]
    reductions: tuple[str, ...] = ("sum",)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an op over one mesh axis: a placement for each operand and result.

    ``factor`` is the sharded one; None for the op run whole by every member and for linear ops on terms (``name`` tells)."""

    name: str
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: Factor | None = None


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass of a strategy. ``cotangents``: the placements in which the gradients of the results must arrive.
    ``gradients``: the placements of the gradients of the operands that each shard's derivative yields. None: no gradient
    (indices, shapes, comparisons)."""

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


def _sharded(factor: Factor) -> Strategy:
    term: Placement = Replicate() if factor.kind is Kind.PARALLEL else Partial(factor.kind.value)
    operands = (
        Shard(dim) if dim is not None else term if i in factor.partial else Replicate() for i, dim in enumerate(factor.operands)
    )
    results = (Shard(dim) if dim is not None else term for dim in factor.results)
    return Strategy(factor.name, tuple(operands), tuple(results), factor)


def backward_rule(rule: LayoutRule, count: int = 2) -> tuple[Backward, ...]:
    """The backward side of each of ``rule.strategies(count)``, in their order.

    Differentiating what each member runs gives the gradients, when those of the results come in placed as follows:

    ====================  =====================  ==================================================================
    the value is          its gradient is        because
    ====================  =====================  ==================================================================
    ``S(d)``              ``S(d)``               each member has its part of both
    ``P(sum)``            ``R``                  every term counts once in the sum
    ``P(max)``            ``P(sum)``             only the member that held the maximum gets it, the others zero:
                                                 what undoes the ``P(max)`` masks by comparing its input and output
    ``R``, op sharded     ``P(sum)`` (operand)   each member knows the part that comes through its own shard
    ``R``, op replicated  ``R``                  all members do the same
    ====================  =====================  ==================================================================

    The derivative of any op is linear in the gradients of its results: where an op runs replicated, ``P(sum)`` may come in and
    leave as ``P(sum)`` as well, so a sum of several gradients is reduced once. Values that the derivative reads (operands, or a
    saved result such as Softmax's) are read in the layout that the strategy gives them; no op needs more.
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


__all__ = ["Backward", "Factor", "Kind", "LayoutRule", "Linear", "Strategy", "backward_rule"]
