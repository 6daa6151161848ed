"""Lower: one program per stage, with explicit sends and receives at its borders.

Reads the ``StageSet`` facet of every op of the entry function; appends one ``Stage`` symbol per stage. The entry function
stays: it is what the stages are checked against. Where a stage is on a mesh, ``sharded.py`` writes the stages, and says what
else holds of them; collectives are explicit there.

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

from ir.core.attributes import attributes
from ir.core.facets import in_phase
from ir.core.module import Func, Module, Plan, Program, Stage
from ir.core.names import unique
from ir.core.ops import Op
from ir.core.outcomes import AGREE
from ir.core.types import type_bytes
from ir.ops.opdefs import is_collective
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.graph.graph import Cut, cuts_of, is_sharded, reads, stage_members
from passes.graph.symbols import insert_symbols
from passes.programs.lower.borders import collectives_in, numbered, sends_of, stage_text
from passes.programs.lower.buckets import in_buckets
from passes.programs.lower.faults import OtherCollectives
from passes.programs.lower.sharded import lower_sharded


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
        sharded = is_sharded(module)
        if sharded:
            lowered = lower_sharded(module, cuts)
        else:
            lowered = lower_function(module.entry, cuts)
        taken = {symbol.name for symbol in module.symbols}
        stages = tuple(
            replace(stage, name=unique(stage.name, taken), devices=devices.get(stage.index, ())) for stage in lowered
        )
        context.count(
            self.name,
            stages=len(stages),
            channels=len(cuts),
            bytes=sum(cut.nbytes or 0 for cut in cuts),
            collectives=sum(collectives_in(stage.ops) for stage in stages),
        )
        module = insert_symbols(module, stages)
        if sharded and plan is not None and not plan.minimises.trains:
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


def lower_function(func: Func, cuts: tuple[Cut, ...]) -> tuple[Stage, ...]:
    """The programs of ``func``'s stages, on no device yet; ``cuts`` are its ``cuts_of``."""
    members = stage_members(func)
    arguments = {value.name: value for value in func.args}
    outputs = {value.name: value for value in func.results}
    first_holder: dict[str, int] = {}
    stages = []
    collective = len(cuts)
    for index in range(1 + max((index for stages in members for index in stages), default=0)):
        own = [op for op, stages in zip(func.ops, members, strict=True) if index in stages]
        used = dict.fromkeys(name for op in own for name in reads(op))
        for op in own:
            for value in op.results:
                first_holder.setdefault(value.name, index)
        results = [
            value
            for name, value in outputs.items()
            if first_holder.get(name, -1) == index or (index == 0 and (name in arguments or name[:1] == "@"))
        ]
        if index == 0:
            used.update(dict.fromkeys(value.name for value in results))
        body: list[Op] = []
        sends = sends_of(cuts, index)
        for item in stage_text(func, members, cuts, index):
            if isinstance(item, tuple):
                channel, cut = item
                fields = attributes(channel=channel, peer=cut.source)
                body.append(Op("comm.recv", results=(cut.tensor,), attributes=fields, facets=in_phase(cut.read)))
                continue
            body.append(numbered(item, collective) if is_collective(item) else item)
            collective += is_collective(item)
            for value in item.results:
                body += [replace(send, location=item.location) for send in sends.get(value.name, ())]
        args = tuple(value for value in func.args if value.name in used)
        ops = in_buckets(body, lambda type_: type_bytes(type_) or 0)
        stages.append(Stage(f"@stage{index}", index, (), args, tuple(results), ops))
    return tuple(stages)


__all__ = ["LowerPass"]
