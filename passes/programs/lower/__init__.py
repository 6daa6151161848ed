"""Lower: one program per stage, with explicit sends and receives at its borders.

Reads the ``StageSet`` facet of every op of the entry function; appends one ``Stage`` symbol per stage. The entry function
stays: it is what the stages are checked against. ``sharded.py`` writes the stages, and says what else holds of those on a mesh;
collectives are explicit there.

Invariants of the result (``ir.verifier`` checks that channels pair up; ``tests/passes/programs/test_lower.py`` the rest):
1. An op stands in each stage of its set, in the entry's order (``buckets.py`` brings sums of gradients forward), unchanged,
   values under the entry's names. So the stages one after the other, without ``comm`` ops, are the entry function in another
   topological order (each op once unless replicated).
2. ``comm.send(%v) {channel, peer}`` stands right after the op that makes ``%v``, in its phase. A
   ``%v = comm.recv() {channel, peer}`` has the phase of the first op that reads ``%v`` in its stage, and ``borders.py`` says
   where it stands. A channel is one tensor to one stage. One of a forward value leads from a lower to a higher index, one of
   a gradient from a higher to a lower, so stages never wait in a circle. Channels are numbered by the producer's place in the
   entry, then by receiver; collectives behind them.
3. A replicated op sends to a stage that lacks it from the copy that is nearest on the way (``passes.graph.graph.sender``).
4. Arguments and resources reach each stage that reads them directly: no channel carries them. An output of the model that is
   itself an argument or a resource is handed through by stage 0; one that is made in several stages leaves the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ir.core.module import Module, Plan, Program, Stage
from ir.core.names import unique
from ir.core.outcomes import AGREE
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import cuts_of, is_sharded
from passes.graph.symbols import insert_symbols
from passes.programs.lower.borders import collectives_in
from passes.programs.lower.faults import OtherCollectives
from passes.programs.lower.sharded import lower_stages


@dataclass(frozen=True)
class LowerPass(Pass):
    """Write one program per stage, with explicit sends and receives at its borders."""

    name = "lower"

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput when an op has no stage, a stage has no op, or a value would travel backwards."""
        return self._lowered(module.without(Stage, Program), context)  # those that there are may be of an entry that was edited

    @on_expanded
    def _lowered(self, module: Module, context: PassContext) -> Module:
        plan = module.first(Plan)
        devices = {stage.index: stage.devices for stage in plan.stages} if plan else {}
        cuts = cuts_of(module.entry)
        taken = {symbol.name for symbol in module.symbols}
        stages = tuple(
            replace(stage, name=unique(stage.name, taken), devices=devices.get(stage.index, ()))
            for stage in lower_stages(module, cuts)
        )
        context.count(
            self.name,
            stages=len(stages),
            channels=len(cuts),
            bytes=sum(cut.nbytes or 0 for cut in cuts),
            collectives=sum(collectives_in(stage.ops) for stage in stages),
        )
        module = insert_symbols(module, stages)
        if is_sharded(module) and plan is not None and not plan.minimises.trains:
            _compare(module, plan, context)
        return module


def _compare(module: Module, plan: Plan, context: PassContext) -> None:
    """Warns where the collectives of a stage cost other seconds than the plan says: somebody has edited one of them."""
    from passes.meshes.costs.count import count

    counted: dict[int, list[float]] = {}
    for one in count(module):
        counted.setdefault(one.stage, []).append(one.seconds)
    for stage in plan.stages:
        seconds = math.fsum(counted.get(stage.index, ()))
        if not math.isclose(seconds, stage.collectives, rel_tol=AGREE, abs_tol=1e-15):
            context.sink.warn(OtherCollectives(stage.index, seconds, stage.collectives, plan.name), where=plan.name)


__all__ = ["LowerPass"]
