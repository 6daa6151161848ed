"""Contract: ops that need not be told apart become one node of the graph that ``partition`` searches.

Reads the costs of the entry function and the topology; writes a ``Group`` facet on every op of the entry function (numbers in a
topological order of the groups) and the function attributes ``contract.guarantee`` (``exact``: some best plan among those that
keep colocated ops together keeps every group together) and ``contract.comm`` (the port model it was argued for).

First what must share a stage (``partition/colocation.py``), then, with ``reduce``, what some best plan keeps together anyway
(``partition/reduce.py`` argues each rule). Invariant: the groups form no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ir.attributes import attributes
from ir.diagnostics import InvalidInput
from ir.facets import Group
from ir.module import Module
from ir.topology import Topology
from passes.analyses.network import network
from passes.base import Pass, PassContext
from passes.partition.colocation import colocation
from passes.partition.from_ir import problem_of
from passes.partition.problem import COMM
from passes.partition.reduce import ordered, quotient, reduce


@dataclass(frozen=True)
class ContractPass(Pass):
    """Group ops that must share a stage, and ops that some best plan keeps together.

    ``comm``: how compute and transfers of a device add up (``sum``, ``overlap``, ``duplex``), as for ``partition``. ``exact``:
    also apply the exact reductions, not only colocation.
    """

    name: ClassVar[str] = "contract"
    comm: str = "sum"
    exact: bool = True

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for an unknown ``comm``, and when the reductions are wanted but the module has no topology."""
        if self.comm not in COMM:
            raise InvalidInput(f"comm is '{self.comm}', expected one of {', '.join(COMM)}", where=self.name)
        entry = module.entry
        classes = context.analyses.get(colocation, module)
        topology = module.first(Topology)
        if topology is None:
            raise InvalidInput("the module has no topology", where=module.name, hint="give one with -t")
        problem = problem_of(module, topology, context.analyses.get(network, topology), comm=self.comm)
        groups = ordered(problem, classes)
        if self.exact:
            groups = tuple(
                tuple(sorted(op for node in merged for op in groups[node])) for merged in reduce(quotient(problem, groups))
            )
            groups = ordered(problem, groups)
        label = {op: group for group, members in enumerate(groups) for op in members}
        ops = tuple(op.with_facets(Group(label[i])) for i, op in enumerate(entry.ops))
        kept = {key: value for key, value in entry.attributes if not key.startswith("contract.")}
        marks = attributes({**kept, "contract.guarantee": "exact", "contract.comm": self.comm})
        context.count(self.name, ops=len(ops), classes=len(classes), groups=len(groups))
        return module.replace(entry, replace(entry, ops=ops, attributes=marks))


__all__ = ["ContractPass"]
