"""Hand-over: what a device spends on each microbatch for being one of several, whatever its tensors.

Where several devices work, each microbatch is handed to a process and wakes it; the seconds of that (``DeviceType.handover``)
come once per stage and microbatch, besides the latency and the bytes of each tensor. Each of r devices of a stage is woken once
in r microbatches, for an r-th of these seconds per microbatch. A plan of one device has none.

Of a pipeline whose loads add up, every stage of a plan on several devices takes at least the least of these seconds. The search
of such plans counts what each kind of device takes beyond that (``counting``), whatever it holds, and the least is added to its
value and bound. The model as one stage is compared with what was found (``with_handover``). Where compute hides
transfers nothing is common to all loads, and the search counts everything. Where it counts nothing (latency, splits of any
form), value and bound are of what is certain.

In training, ranks of one stage read their own samples: only stages that exchange microbatches with others spend it. So the
search counts it where several stages are asked for (``in_steps``); the model as one stage is asked for by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ir.core.topology import Topology
from passes.partition.bridge.memory import with_bound
from passes.partition.bridge.plan import Asked
from passes.partition.lattice.objective import Solution
from passes.stages.placement_from_ir import stage_memory
from passes.stages.problem import Kind, Problem, stage_cost


def counting(problem: Problem, topology: Topology) -> Problem:
    """The problem of a pipeline whose stages take what their kind of device takes beyond the least (``common``)."""
    own, least = _seconds(problem.kinds, topology), common(problem, topology)
    kinds = tuple(replace(kind, handover=seconds - least) for kind, seconds in zip(problem.kinds, own, strict=True))
    return replace(problem, kinds=kinds)


def in_steps(problem: Problem, topology: Topology) -> Problem:
    """The problem of a training step in a prescribed number of stages, or in several, which hand over."""
    if problem.stages == 1 or (problem.stages is None and problem.most is None):
        return problem
    own = _seconds(problem.kinds, topology)
    return replace(
        problem, kinds=tuple(replace(kind, handover=seconds) for kind, seconds in zip(problem.kinds, own, strict=True))
    )


def common(problem: Problem, topology: Topology) -> float:
    """Seconds that each load of a plan on several devices has for hand-over at least."""
    return min(_seconds(problem.kinds, topology)) if problem.comm == "sum" else 0.0


def slowest(problem: Problem, solution: Solution) -> float:
    """The largest load of a solution's stages."""
    return max(stage_cost(problem, nodes, kind).load for kind, nodes in solution.stages or ())


def with_handover(asked: Asked, solution: Solution, value_of: Callable[[Problem, Solution], float] = slowest) -> Solution:
    """The solution with hand-over in its value and bound, or the model as one stage where that is faster and allowed.
    ``value_of``: what the objective says of a solution of several stages."""
    problem, topology = asked.problem, asked.topology
    if solution.stages and asked.steps is not None:
        return with_bound(
            replace(solution, value=value_of(_raised(asked, solution), solution)), solution.bound, solution.reason
        )
    if not solution.stages or not any(_seconds(problem.kinds, topology)):
        return solution
    parts, single = solution.parts, one_stage(asked, solution)
    if len(parts) > 1:
        value = value_of(_raised(asked, solution), solution)
    else:
        value = _one_load(asked, parts[0][1], solution.stages[0][0])
    bound = min(solution.bound + common(problem, topology), value if len(parts) == 1 else math.inf)
    if single is not None:
        bound = min(bound, single.value)
        if single.value < value:
            return with_bound(single, bound, solution.reason)
    return with_bound(replace(solution, value=value), bound, solution.reason)


def one_stage(asked: Asked, solution: Solution) -> Solution | None:
    """The best plan of one stage, with the bound of ``solution``; None where several stages were asked for, or no device has
    what is pinned and memory for all as ``place`` counts it."""
    problem = asked.problem
    if problem.forced or problem.stages not in (None, 1) or not problem.size:
        return None
    needed = stage_memory(asked.module, [range(len(asked.module.entry.ops))], (), problem.comm)[0].least
    nodes = tuple(range(problem.size))
    found = [
        (_one_load(asked, nodes, k), k) for k, kind in enumerate(problem.kinds) if kind.memory is None or needed <= kind.memory
    ]
    value, kind = min(found, default=(math.inf, 0))
    if math.isinf(value):
        return None
    return replace(solution, status="within-gap", stages=((kind, nodes),), value=value, apart=(), devices=())


def _one_load(asked: Asked, nodes: Sequence[int], kind: int) -> float:
    """The load of the only stage of a plan; hand-over counts where it has replicas."""
    seconds = _seconds(asked.problem.kinds, asked.topology)[kind] if asked.problem.kinds[kind].replicas > 1 else 0.0
    return seconds + stage_cost(asked.problem, nodes, kind).load


def _seconds(kinds: Sequence[Kind], topology: Topology) -> list[float]:
    """Of each kind of device the seconds of hand-over per microbatch."""
    return [topology.type(kind.type).handover / kind.replicas for kind in kinds]


def _raised(asked: Asked, solution: Solution) -> Problem:
    """The problem with hand-over in the compute of the first node of each stage; of training, with what it leaves out of sums
    of gradients."""
    problem, stages = asked.problem, solution.stages or ()
    own, seconds = _seconds(problem.kinds, asked.topology), problem.seconds.copy()
    parts = [(stages[owner][0], nodes) for owner, nodes in solution.parts]
    more, steps = [0.0] * len(parts), asked.steps
    if steps is not None:
        more = steps.exposed(problem, asked.groups, parts, asked.members(solution.parts))
    for (kind, nodes), exposed in zip(parts, more, strict=True):
        handover = own[kind] if steps is None or len(parts) > 1 else 0.0
        seconds[kind, nodes[0]] += handover + exposed
    return replace(problem, seconds=seconds)
