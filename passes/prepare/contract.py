"""Contract: ops that need not be told apart become one node of the graph that ``partition`` searches.

Reads the costs of the entry function and the topology; writes a ``Group`` facet on every op of the entry function (numbers in a
topological order of the groups) and the function attributes ``contract.guarantee`` (``exact``: some best plan among those that
keep colocated ops together keeps every group together; ``bounded:`` and by how much the best plan may be worse) and
``contract.comm`` (the port model it was argued for).

First what must share a stage (``partition/colocation.py``), then, with ``exact``, what some best plan keeps together anyway
(``partition/reduce.py`` argues each rule), then, with ``max_ideals``, antichain contraction of a lattice larger than that
(``partition/coarsen.py``). Invariant: the groups form no cycle.

The exact rules know no plan's value, so they join only what no best plan parts whatever the other stages are: two ops whose
border costs more than either of them. On cores the 374 ops of BERT base become 368 groups, the 331 of GPT-2 330; on H100s,
whose transfers are dear for their speed, the 2168 of T5-large 1945, the 228 of four layers of LLaMA 194. With a plan's
value at hand more goes, which is the search's to do (``partition/search.py``: windows, what is too dear to cut).

Antichain contraction is off by default: where a lattice is too large, ``partition`` contracts by itself to find a first plan,
then searches around it in the graph of the exact reductions. On encoder-decoders, experts and random series-parallel graphs
(``tests/bench/partition.py``) its plans were up to 3 % better than those of a graph contracted to 20,000 ideals, never more
than 0.1 % worse than at 200,000, in seconds instead of tenths of a second. Contracting here serves searches that must be
quick, and shows what is merged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import Group
from ir.core.module import Module
from ir.core.topology import Topology
from passes.costs.network import network
from passes.framework.base import Pass, PassContext, needed
from passes.framework.expanded import on_expanded
from passes.framework.faults import LargeLattice
from passes.graph.faults import NotAChoice, NotInRange
from passes.stages.colocation import colocation
from passes.stages.from_ir import problem_of
from passes.stages.fusing import streamed_problem_of
from passes.stages.lattice.coarsen import Coarse, TooLarge, coarsen
from passes.stages.load import COMM
from passes.stages.problem import Problem
from passes.stages.reduce import ordered, quotient, reduce


@dataclass(frozen=True)
class ContractPass(Pass):
    """Group ops that must share a stage, and ops that some best plan keeps together.

    ``comm``: how compute and transfers of a device add up (``sum``, ``overlap``, ``duplex``), as for ``partition``. ``exact``:
    also apply the exact reductions, not only colocation. ``max_ideals``: contract further until the lattice has at most so
    many ideals (0: do not).
    """

    name: ClassVar[str] = "contract"
    comm: str = "sum"
    exact: bool = True
    max_ideals: int = 0

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for an unknown ``comm`` and a negative ``max_ideals``. Warns when no
        contraction is small enough; the groups are then the exact ones."""
        if self.comm not in COMM:
            raise InvalidInput(NotAChoice("comm", self.comm, f"one of {', '.join(COMM)}"), where=self.name)
        if self.max_ideals < 0:
            expected = "a number above 0, or 0 for no limit"
            raise InvalidInput(NotInRange("max-ideals", self.max_ideals, expected), where=self.name)
        entry = module.entry
        classes = context.analyses.get(colocation, module)
        topology = needed(module, Topology)
        net = context.analyses.get(network, topology)
        stated = streamed_problem_of if self.comm == "sum" else problem_of
        whole = context.analyses.get(stated, module, topology, net)
        problem = replace(whole, comm=self.comm)
        groups = ordered(problem, classes)
        if self.exact:
            groups = tuple(
                tuple(sorted(op for node in merged for op in groups[node])) for merged in reduce(quotient(problem, groups))
            )
            groups = ordered(problem, groups)
        guarantee = "exact"
        if self.max_ideals:
            coarse = self._coarse(quotient(problem, groups), context)
            if coarse is not None:
                merged = [[op for node in nodes for op in groups[node]] for nodes in coarse.groups]
                groups = ordered(problem, merged)
                guarantee = f"bounded:the best plan of the groups is at most {coarse.factor:.6g} times the best plan"
        label = {op: group for group, members in enumerate(groups) for op in members}
        ops = tuple(op.with_facets(Group(label[i])) for i, op in enumerate(entry.ops))
        kept = {key: value for key, value in entry.attributes if not key.startswith("contract.")}
        marks = attributes({**kept, "contract.guarantee": guarantee, "contract.comm": self.comm})
        context.count(self.name, ops=len(ops), classes=len(classes), groups=len(groups))
        grouped = module.replace(entry, replace(entry, ops=ops, attributes=marks))
        context.analyses.put(classes, colocation, grouped)  # groups change neither
        context.analyses.put(whole, stated, grouped, topology, net)
        return grouped

    def _coarse(self, problem: Problem, context: PassContext) -> Coarse | None:
        """What antichain contraction makes of the problem; None when it stays as it is."""
        try:
            return coarsen(problem, self.max_ideals)
        except TooLarge as error:
            context.sink.warn(LargeLattice(self.max_ideals, str(error)), where=self.name)
            return None


__all__ = ["ContractPass"]
