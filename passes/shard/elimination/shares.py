"""Bounds where values have too many readers for exact tables: what is paid once is shared among the readers, and the shares are
moved to where they bind.

Any shares (at least 0, adding up to 1 per source and key) give a bound: readers that need the key together never pay more than
it costs. A reader that needs it alone pays too little; so after each search, shares move towards the readers that needed the
key, from those that did not. That is subgradient ascent on the dual of the sharing constraint (Polyak 1969, the step from the
distance of bound and value); each search's plan is a candidate too. Readers of one form in different copies of a layer keep
equal shares, so that copies stay equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.shard.elimination.charges import Charge
from passes.shard.elimination.model import Charges
from passes.shard.problem.graph import Form
from passes.shard.problem.problem import Floats, Integers, ShardProblem


@dataclass(slots=True)
class _Sharing:
    """One form of values: ``weights[source, key]``, ``wants[reader][need, key]``, ``shares[reader, source, key]``; readers of
    equal ``group`` have equal shares."""

    charge: Charge
    weights: Floats
    wants: list[Floats]
    groups: Integers
    shares: Floats
    moved: Floats

    def priced(self) -> Charge:
        parts = self.weights * self.shares
        tables = tuple(part @ wants.T for part, wants in zip(parts, self.wants, strict=True))
        return replace(self.charge, mode="relaxed", tables=tables, wild=frozenset())


class Shares(Charges):
    """Charges in which every value that has no joint table is shared."""

    def __init__(self, problem: ShardProblem, spread: frozenset[int] = frozenset()) -> None:
        super().__init__(problem, spread)
        self.forms: dict[tuple[int, bool], _Sharing] = {}
        self.form_of: dict[int, tuple[int, bool]] = {}

    def found(self, number: int) -> tuple[Charge, tuple[int, ...]]:
        charge, nodes = super().found(number)
        if charge.mode == "joint":
            return charge, nodes
        key = self.form_of[number] = self.problem.graph.form_of[number][0], number in self.spread
        if key not in self.forms:
            self.forms[key] = self.sharing(charge, self.problem.graph.forms[key[0]], key[1])
        return self.forms[key].priced(), nodes

    def sharing(self, charge: Charge, form: Form, spread: bool) -> _Sharing:
        value, maker, readers = self.problem.value_kinds[form.kind], form.maker, form.readers
        sources = np.unique(self.problem.node_kinds[maker[0]].makes[maker[1]])
        wants: list[Floats] = []
        for (node_kind, listed), classes in zip(readers, charge.need_of, strict=True):
            table = np.zeros((int(classes.max()) + 1, value.weights.shape[1]))
            for choice, number in enumerate(classes.tolist()):
                for port in listed:
                    table[number, list(value.needs[self.problem.node_kinds[node_kind].reads[port][choice]])] = 1.0
            wants.append(table)
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        groups = [known.setdefault(reader, len(known)) if spread else i for i, reader in enumerate(readers)]
        could = np.array([table.max(axis=0) for table in wants])
        even = could / np.maximum(could.sum(axis=0), 1.0)
        shares = np.repeat(even[:, None, :], len(sources), axis=1)
        return _Sharing(charge, value.weights[sources], wants, np.array(groups), shares, np.zeros_like(shares))

    def move(self, choices: Sequence[int], distance: float) -> bool:
        """Moves shares after a search found ``choices``; ``distance`` between value and bound times how bold to be. False where
        no share is wrong."""
        for form in self.forms.values():
            form.moved[:] = 0.0
        for number, key in self.form_of.items():
            form = self.forms[key]
            value = self.problem.values[number]
            source = int(form.charge.source_of[choices[value.maker[0]]])
            nodes = dict.fromkeys(node for node, _ in value.readers)
            for reader, node in enumerate(nodes):
                need = int(form.charge.need_of[reader][choices[node]])
                form.moved[reader, source] += form.weights[source] * form.wants[reader][need]
        length = 0.0
        for form in self.forms.values():
            could = np.array([table.max(axis=0) for table in form.wants])[:, None, :]
            for group in np.unique(form.groups):
                form.moved[form.groups == group] = form.moved[form.groups == group].mean(axis=0)
            mean = (form.moved * could).sum(axis=0) / np.maximum(could.sum(axis=0), 1.0)
            form.moved[:] = (form.moved - mean) * could
            length += float((form.moved**2).sum())
        if length <= 0.0:
            return False
        for form in self.forms.values():
            shares = np.maximum(form.shares + distance / length * form.moved, 0.0)
            form.shares = shares / np.maximum(shares.sum(axis=0), 1e-12)
        self.values.clear()
        return True


__all__ = ["Shares"]
