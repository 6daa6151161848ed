"""Joint search: where to cut a model into stages, on how many devices each, as which mesh, and how each is sharded.

A stage costs the sharded time of its run of units on its mesh, with what it receives and sends; a plan its slowest stage (the
period of a stream). The search is lazy (``bounding``): every (run, form of mesh) has a bound, at first what no sharding avoids;
the dynamic programme of ``pipeline`` finds the best plan under these, the runs in it are solved and their bounds replaced,
until all stages that decide the value are solved. The plan is then solved stage by stage, each given the layouts that the
stages before it really send, and priced with the real links (``settled``). Where that costs a stage more than its bound, the
programme is asked again, with what was seen in the place of the bound, for a plan that is better still.

In training a stage costs forward and backward of a microbatch, gradients that cross back included, and its part of the
synchronisation of weights' gradients, once per step; a plan ``(microbatches + stages - 1)`` times its slowest stage, as 1F1B
and GPipe fill and drain. Activations kept for the backward pass are not counted as memory.

What is exact and what is a relaxation: the bound of a run lets values enter in the layout that suits it best and leave as suits
it, over the best link that its block has: less than what any plan pays. So the programme's optimum under bounds is a lower
bound of all plans over these cuts and blocks, and the distance of the two is the gap. ``optimal`` is said where they meet only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.module import Module
from ir.topology import Topology
from passes.analyses.network import Network
from passes.fold import Folding
from passes.shard.bounding import Bounding
from passes.shard.pipeline import STEP, Sequenced, StageRun, Tables, alike, flush, least, shortest
from passes.shard.problem import Floats
from passes.shard.settled import Settled, Settler
from passes.shard.staged import Staged
from passes.shard.submeshes import Block, Submeshes

Progress = Callable[[str, float | None], None]
TIGHT = 1e-9
"""Relative: values that count as equal."""
ENOUGH = 1e-4
"""Relative gap at which no better plan is looked for."""
NEAR = 1e-2
"""Relative gap at which plans of one size of block are not looked for."""
SHARE = 0.7
"""Of the time: what the bound may take; the rest is for the plan."""
COARSE = 0.05
"""Relative: how near limits on a training step's stages lie at first; nearer once all that decides is solved."""
MOST_TRIES = 8
"""Plans that are settled."""


Place = tuple[int, int, Block, bool, bool]
"""A run on a block, and whether the stages before and behind it are alike."""


@dataclass(frozen=True, slots=True)
class StagesPlan:
    """``value`` and ``bound`` in seconds per sample of the slowest stage; ``stages`` as decided. Statistics: ``units`` of the
    function, ``forms`` of meshes, distinct ``keys`` of runs, runs that were ``solved``, ``rounds`` of the programme."""

    stages: tuple[Staged, ...]
    value: float
    bound: float
    units: int
    forms: int
    keys: int
    solved: int
    rounds: int


class StageSearch:
    """The search over one module and one set of blocks."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        net: Network,
        folding: Folding | None,
        meshes: Submeshes,
        *,
        memory: int = 0,
        uneven: bool = False,
        training: bool = False,
        microbatches: int = 1,
        progress: Progress = lambda label, fraction: None,
    ) -> None:
        """``memory``: bytes of weights per device at most; 0: those of the devices; -1: no limit. ``training``: of steps of so
        many ``microbatches``."""
        self.meshes, self.progress, self.flushes = meshes, progress, microbatches if training else 0
        self.bounding = Bounding(
            module,
            topology,
            net,
            folding,
            meshes,
            memory=memory,
            uneven=uneven,
            training=training,
            microbatches=microbatches,
            progress=progress,
        )
        self.step = COARSE
        self.settler = Settler(self.bounding, topology, net)

    @property
    def unsharded(self) -> tuple[str, ...]:
        """Operators without a layout rule."""
        return self.bounding.base.unsharded

    def search(self, stages: int, seconds: float) -> StagesPlan | None:
        """The plan; None where nothing fits. ``stages``: exactly so many; 0: any number."""
        start = time.perf_counter()
        bounding, count = self.bounding, self.bounding.units.count
        bound, rounds = 0.0, 0
        try:
            while True:
                rounds += 1
                found = self.best(bounding.table, stages, start + SHARE * seconds)
                if not found.runs:
                    return None
                bound = max(bound, found.value)
                self.progress("stages", None)
                left = start + SHARE * seconds - time.perf_counter()
                if left < 0:
                    break
                if not bounding.refine(found, left):
                    if not self.flushes or stages or self.step <= STEP:
                        break
                    self.step = max(STEP, self.step / 8)
        except KeyboardInterrupt:
            seconds = 0.0  # the plan at hand
        # Plans of all kinds, then those of blocks of one size, which the search above may have passed by.
        best: Settled | None = None
        for only in (0, *sorted({block.behind - block.first for block in self.meshes.blocks})):
            if best is None or not (self.worth(best.seconds) <= bound * (1 + NEAR) or time.perf_counter() > start + seconds):
                best = self.settled(bound, stages, start + seconds, best, only)
        if best is None:
            return None
        keys = len({key for row in bounding.units.keys for key in row})
        told = (count, len(self.meshes.forms), keys, bounding.solved, rounds)
        staged = tuple(map(self.settler.decided, best.drafts))
        value = self.worth(best.seconds)
        return StagesPlan(staged, value, min(bound, value), *told)

    def best(self, tables: Tables, stages: int, until: float, *, gaps: bool = True) -> Sequenced:
        """The best sequence under these seconds."""
        if self.flushes:
            return flush(tables, self.meshes, self.bounding.units.count, self.flushes, stages, until, self.step)
        return least(tables, self.meshes, self.bounding.units.count, stages, gaps=gaps)

    def worth(self, seconds: Sequence[float]) -> float:
        """The value of a plan, given what its stages spend."""
        return max(seconds) * (self.flushes + len(seconds) - 1 if self.flushes else 1)

    @staticmethod
    def slowest(tables: Tables, runs: Sequence[StageRun]) -> float:
        sides = zip(runs, alike(runs), strict=True)
        return max(float(tables(run.block, *side)[run.first, run.behind]) for run, side in sides)

    def settled(self, bound: float, stages: int, ends: float, best: Settled | None, only: int) -> Settled | None:
        """The best of some plans as they really cost, and of ``best``; ``only``: on blocks of so many devices, 0 for any."""
        bounding, count = self.bounding, self.bounding.units.count
        seen: dict[Place, float] = {}
        often, nowhere = np.zeros((count, count + 1)), np.full((count, count + 1), np.inf)

        def table(block: Block, before: bool, behind: bool) -> Floats:
            if only and block.behind - block.first != only:
                return nowhere
            known = bounding.table(block, before, behind) + often / math.prod(block.mesh.sizes)
            for place, cost in seen.items():
                if place[2:] == (block, before, behind):
                    known[place[:2]] = max(known[place[:2]], cost)
            return known

        # First without idle devices between stages: bounds take links from the best of them, plans from the last.
        gaps = self.flushes > 0
        for number in range(MOST_TRIES):
            if best is not None and (time.perf_counter() > ends or self.worth(best.seconds) <= bound * (1 + ENOUGH)):
                break
            gaps = gaps or number == MOST_TRIES // 2
            found = self.refined(table, stages, ends, gaps)
            if not found.runs or (best is not None and found.value >= self.worth(best.seconds)):
                if gaps:
                    break
                gaps = True
                continue
            limit = self.slowest(table, found.runs) * (1 + TIGHT)
            self.progress("stages", number / MOST_TRIES)
            made = self.settler.settle(found.runs)
            costs = made.seconds if made is not None else (math.inf,) * len(found.runs)
            known = len(seen)
            for place, cost in zip(places(found.runs), costs, strict=True):
                if cost > seen.get(place, limit):
                    seen[place] = cost
            if made is not None:
                often = self.often(made)
                if best is None or self.worth(made.seconds) < self.worth(best.seconds):
                    best = made
            if len(seen) == known:
                if gaps:
                    break
                gaps = True
        return best

    def refined(self, table: Tables, stages: int, ends: float, gaps: bool) -> Sequenced:
        """Of the best sequences the one of least sum, once no bound of its runs gets better; its value is the best's."""
        count = self.bounding.units.count
        while True:
            found = self.best(table, stages, ends, gaps=gaps)
            if not found.runs:
                return found
            limit = self.slowest(table, found.runs) * (1 + TIGHT)
            short = shortest(table, self.meshes, count, limit, len(found.runs) if self.flushes else stages, gaps=gaps)
            short = replace(short if short.runs else found, value=found.value)
            if not self.bounding.refine(short, ends - time.perf_counter()):
                return short

    def often(self, made: Settled) -> Floats:
        """Seconds times devices, beyond one message each, that a run spends on values that several stages read, as a plan had
        it: what other plans will spend, but no bound."""
        bounding = self.bounding
        table = np.zeros((bounding.units.count, bounding.units.count + 1))
        problem, ops = bounding.base.problem, bounding.base.func.ops
        home = {op: number for number, stage in enumerate(made.drafts) for op in stage.ops}
        for value in problem.values:
            node, result = value.maker
            if node < len(ops) and (sent := made.sends.get(ops[node].results[result].name)):
                readers = [reader for reader, _ in value.readers if reader < len(ops)]
                others = len({home[reader] for reader in readers} - {home[node]})
                maker, last = bounding.unit_of[node], max(bounding.unit_of[reader] for reader in readers)
                devices = len(made.drafts[home[node]].mesh.devices)
                table[: maker + 1, maker + 1 : last + 1] += sent * devices * (others - 1) / others
        return table


def places(runs: Sequence[StageRun]) -> list[Place]:
    """What the seconds of each stage depend on, as far as the programme knows."""
    return [(run.first, run.behind, run.block, *sides) for run, sides in zip(runs, alike(runs), strict=True)]


__all__ = ["StageSearch", "StagesPlan"]
