"""Localize: what each device runs, as ``program`` symbols of ops on local tensors.

One ``Program`` stands for all members of a stage's mesh that run the same text, and for all replicas of a stage without a
mesh; which member a device is follows from its place in the mesh. Members whose texts differ in the values of constants alone
(where a range begins) share a program too: such a constant is a ``comm.member``, which lists the value of each of them. Members
differ otherwise where parts are of different lengths, or where one holds a term of a sum and the others zeros. What members run
is worked out once for each kind of op (``kinds``).

Invariants of the result (INV23 of ``ir.verifier``): each device of each stage runs one program of it; all programs of a stage
have the same collectives and messages in the same order; a local type is that of the box that the whole type says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ir.core.module import Module, Program, Stage
from ir.core.names import unique
from ir.system.collector import collector_paused
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.symbols import insert_symbols
from passes.programs.localize.programs import members_of, stage_programs


@dataclass(frozen=True)
class LocalizePass(Pass):
    """Write what each device runs: one program for all members of a stage that run the same text."""

    name = "localize"

    def run(self, module: Module, context: PassContext) -> Module:
        """Programs that there are already are written anew. Needs the stages that ``lower`` writes; without any, nothing is
        done."""
        return self._localized(module.without(Program), context)

    @collector_paused()
    @on_expanded
    def _localized(self, module: Module, context: PassContext) -> Module:
        taken = {symbol.name for symbol in module.symbols}
        programs: list[Program] = []
        members = 0
        for stage in module.of_type(Stage):
            members += max(1, len(members_of(module, stage).devices))
            for program in stage_programs(module, stage):
                programs.append(replace(program, name=unique(f"@program{len(programs)}", taken)))
                taken.add(programs[-1].name)
        context.count(self.name, members=members, programs=len(programs))
        return insert_symbols(module, programs)


__all__ = ["LocalizePass"]
