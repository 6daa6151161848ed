"""What plans cost at least that take a choice: the way back through an elimination, and what follows from it.

The elimination of ``elimination`` sends messages from each variable to its neighbours; sent back as well, they tell for every
value of every variable the least sum of an assignment that has it (its *min-marginal*: Dechter 1999; Kask et al. 2005, bucket
trees). Where the elimination was done in parts, or its factors are a relaxation, that is a lower bound of it. A choice whose
bound is above what some plan costs is in no better plan, and goes (reduced-cost fixing).

The *outside* of a table is what everything else costs at least, for each of its entries: their sum is the marginal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from passes.partition.layouts.elimination.elimination import PIECE, Eliminated, Factor, Scope, join
from passes.partition.layouts.problem.problem import Floats


class Marginals:
    """``of[variable]``: the bound of each of its values; ``outside[id(factor)]``: of those ``wanted``."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self.sizes = sizes
        self.of: dict[int, Floats] = {}
        self.outside: dict[int, Floats] = {}

    def through(self, found: Eliminated, kept: Scope, outside: Floats, wanted: Iterable[Factor] = ()) -> None:
        """Goes back through ``found``; ``outside`` is that of the sum of what it left over ``kept``."""
        asked = {id(factor) for factor in wanted} | {id(message) for bucket in found.buckets for message in bucket.messages}
        self.back(found.left, kept, outside, kept, asked)
        for bucket in reversed(found.buckets):
            for part, message in zip(bucket.parts, bucket.messages, strict=True):
                scope = (*message.scope, bucket.variable)
                around = self.outside.pop(id(message))
                self.back(part, scope, around[..., None], (bucket.variable,), asked)

    def back(self, factors: Sequence[Factor], scope: Scope, outside: Floats, told: Scope, asked: Set[int]) -> None:
        """From the outside of the sum of ``factors`` over ``scope``: the outside of those that are ``asked`` for, and the
        marginals of the variables ``told``."""
        asked_here = [factor for factor in factors if id(factor) in asked]
        least = self.least(factors, scope, outside, [*(factor.scope for factor in asked_here), *((v,) for v in told)])
        for factor, total in zip(asked_here, least, strict=False):
            with np.errstate(invalid="ignore"):
                rest = total - factor.table
            self.outside[id(factor)] = np.where(np.isnan(rest), np.inf, rest)
        for variable, total in zip(told, least[len(asked_here) :], strict=True):
            known = self.of.get(variable)
            self.of[variable] = total if known is None else np.maximum(known, total)

    def least(self, factors: Sequence[Factor], scope: Scope, outside: Floats, scopes: Sequence[Scope]) -> list[Floats]:
        """The sum of ``factors`` and ``outside`` as a table over each of ``scopes``, least over the rest; in pieces."""
        shape = tuple(self.sizes[variable] for variable in scope)
        if np.prod(shape, dtype=np.float64) <= PIECE:
            total = join(factors, scope, self.sizes) + outside
            return [_over(total, scope, each) for each in scopes]
        longest = max(scope, key=lambda variable: self.sizes[variable])
        place = scope.index(longest)
        rest = tuple(variable for variable in scope if variable != longest)
        pieces: list[list[Floats]] = []
        for value in range(self.sizes[longest]):
            cut = [_at(factor, longest, value) for factor in factors]
            slot = value if outside.shape[place] > 1 else 0
            here = outside[(slice(None),) * place + (slot,)]
            pieces.append(self.least(cut, rest, here, [tuple(v for v in each if v != longest) for each in scopes]))
        found: list[Floats] = []
        for each, several in zip(scopes, zip(*pieces, strict=True), strict=True):
            if longest in each:
                found.append(np.stack(several, axis=each.index(longest)))
            else:
                found.append(np.minimum.reduce(several))
        return found


def _at(factor: Factor, variable: int, value: int) -> Factor:
    """The factor where ``variable`` has a value."""
    index = tuple(value if v == variable else slice(None) for v in factor.scope)
    return Factor(tuple(v for v in factor.scope if v != variable), np.asarray(factor.table[index]))


def _over(table: Floats, scope: Scope, wanted: Scope) -> Floats:
    """``table`` over ``scope``, least over what is not ``wanted``, its dimensions in that order."""
    away = tuple(i for i, variable in enumerate(scope) if variable not in wanted)
    left = [variable for variable in scope if variable in wanted]
    return np.asarray(table.min(axis=away).transpose([left.index(variable) for variable in wanted]))
