"""A function as a graph: what an op reads, what is needed, topological order, names replaced, the stages of ops and the tensors
between them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.facets import FORWARD, PHASES, UPDATE, Cost, ShardRule, StageSet, phase_of
from ir.core.module import Func, Module, Plan, Stage
from ir.core.names import ABSENT
from ir.core.ops import Location, Op, Region, Value
from ir.core.types import type_bytes
from ir.ops.opdefs import RESHARD
from ir.ops.rows import gradient_order
from passes.graph.faults import OpInNoStage, ReadsUnreachable, StagesWithHoles
from passes.graph.sizes import sized_results


def topological(after: Sequence[Iterable[int]]) -> list[int]:
    """All positions, each before those of ``after`` it, the least that is ready first. Positions on a cycle or behind one are
    missing. ``after`` is read twice; what it lists several times counts as often."""
    missing = [0] * len(after)
    for targets in after:
        for w in targets:
            missing[w] += 1
    ready = [v for v, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                heapq.heappush(ready, w)
    return order


def ordered_groups(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The groups below ``count`` in the order of ``topological``; ``edges``: the groups of two nodes, the first of which comes
    first. Edges within a group say nothing."""
    after: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        if source != target:
            after[source].add(target)
    return topological(after)


class DisjointSets:
    """The numbers below ``size`` in sets, each alone at first."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, v: int) -> int:
        """The member that stands for the set of ``v``."""
        parent = self._parent
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    def join(self, v: int, target: int) -> None:
        """Makes the set of ``v`` part of that of ``target``, whose root stays."""
        self._parent[self.root(v)] = self.root(target)

    def listed(self) -> tuple[tuple[int, ...], ...]:
        """The sets, members ascending, ordered by first member."""
        found: dict[int, list[int]] = {}
        for v in range(len(self._parent)):
            found.setdefault(self.root(v), []).append(v)
        return tuple(map(tuple, found.values()))


def components(after: Sequence[Collection[int]]) -> list[list[int]]:
    """Strongly connected components of all positions, each sorted; those in ``after`` of a position come after it."""
    if len(topological(after)) == len(after):
        return [[v] for v in range(len(after))]
    import networkx

    graph = networkx.DiGraph((v, w) for v, targets in enumerate(after) for w in targets)
    graph.add_nodes_from(range(len(after)))
    return [sorted(part) for part in networkx.strongly_connected_components(graph)]


def reads(op: Op) -> tuple[str, ...]:
    """Names that ``op`` reads, operands first, then what its regions capture; each once, symbols included."""
    operands = op.operands
    if not op.regions and ABSENT not in operands and len(set(operands)) == len(operands):
        return operands
    found: dict[str, None] = {name: None for name in op.operands if name != ABSENT}
    for _, region in op.regions:
        found.update(dict.fromkeys(_captured(region)))
    return tuple(found)


def _captured(region: Region) -> Iterable[str]:
    local = {arg.name for arg in region.args}
    for op in region.ops:
        yield from (name for name in reads(op) if name not in local)
        local.update(value.name for value in op.results)
    yield from (name for name in region.results if name not in local and name != ABSENT)


def live_ops(ops: Iterable[Op], yielded: Iterable[str]) -> tuple[Op, ...]:
    """The needed ops of a body that yields ``yielded``, the same inside their regions. An op is needed when the body yields one
    of its results, a needed op reads one, or it acts on the world (``comm``)."""
    needed = set(yielded)
    kept: list[Op] = []
    for op in reversed(tuple(ops)):
        acts = op.dialect == "comm" or not op.results
        if not acts and not any(value.name in needed for value in op.results):
            continue
        if op.regions:
            regions = tuple((key, replace(region, ops=live_ops(region.ops, region.results))) for key, region in op.regions)
            op = op if regions == op.regions else replace(op, regions=regions)
        needed.update(reads(op))
        kept.append(op)
    return tuple(reversed(kept))


def used_symbols(module: Module) -> set[str]:
    """Names that functions and stages read or yield."""
    used: set[str] = set()
    for symbol in module.symbols:
        if isinstance(symbol, Func | Stage):
            used.update(value.name for value in symbol.results)
            for op in symbol.ops:
                used.update(reads(op))
    return used


def renamed(ops: Iterable[Op], names: Mapping[str, str]) -> tuple[Op, ...]:
    """``ops`` with names replaced where they are read and where they are assigned, in regions too."""
    return tuple([rebuild(op, names) for op in ops])


def rebuild(op: Op, names: Mapping[str, str], places: Iterator[Location] | None = None) -> Op:
    """``op`` with every name replaced that ``names`` has, read or assigned, and its locations by the next of ``places``; itself
    where that changes nothing."""
    location = op.location if places is None else next(places)
    operands = tuple([names.get(name, name) for name in op.operands])
    results = _rename(op.results, names)
    regions = tuple([(key, _rebuild_region(region, names, places)) for key, region in op.regions]) if op.regions else ()
    if operands == op.operands and results == op.results and regions == op.regions and location == op.location:
        return op
    return replace(op, operands=operands, results=results, regions=regions, location=location)


def _rebuild_region(region: Region, names: Mapping[str, str], places: Iterator[Location] | None) -> Region:
    args = _rename(region.args, names)
    ops = tuple([rebuild(op, names, places) for op in region.ops])
    return Region(args, ops, tuple([names.get(name, name) for name in region.results]))


def _rename(values: tuple[Value, ...], names: Mapping[str, str]) -> tuple[Value, ...]:
    return tuple([Value(names[value.name], value.type) if value.name in names else value for value in values])


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor that crosses from stage ``source`` to stage ``target``; its channel is its position in ``cuts_of``.

    ``sent``: the phase in which it is made; ``read``: that of its first reader in ``target``, in the order of ``PHASES``."""

    tensor: Value
    name: str
    """What the model calls it, where nothing else that ``target`` gets is called so; a ``comm.reshard`` gives other names."""
    source: int
    target: int
    nbytes: int | None
    """Bytes per microbatch, measured ones where the type does not tell; None where nothing does."""
    sent: str = FORWARD
    read: str = FORWARD


def sender(phase: str, holders: Iterable[int], stage: int) -> int | None:
    """Which of the stages ``holders``, which make a value in ``phase``, sends it to ``stage``; None where none may.

    Forward values go to stages of higher number, gradients to those of lower number, what an update makes either way."""
    before = [holder for holder in holders if holder < stage]
    after = [holder for holder in holders if holder > stage]
    if before and phase in (FORWARD, UPDATE):
        return max(before)
    return min(after) if after and phase != FORWARD else None


def stage_members(func: Func) -> tuple[tuple[int, ...], ...]:
    """The stages of each op of ``func``, in the ops' order.

    Raises InvalidInput when an op has none, when a number below the highest is used by no op, for a value that no stage makes
    which may send it to one that reads it (``sender``)."""
    members = tuple(op.facet(StageSet, StageSet(())).stages for op in func.ops)
    problems = [OpInNoStage().at(describe(op)) for op, stages in zip(func.ops, members, strict=True) if not stages]
    used = sorted({index for stages in members for index in stages})
    for before, after in pairwise((-1, *used)):
        if after > before + 1:
            holes = f"stage {before + 1} has" if after == before + 2 else f"stages {before + 1} to {after - 1} have"
            problems.append(StagesWithHoles(holes, used[-1]).at(func.name))
    made: dict[str, tuple[Op, tuple[int, ...]]] = {}
    for op, stages in zip(func.ops, members, strict=True) if len(set(members)) > 1 else ():  # one stage sends itself nothing
        for name in reads(op) if stages else ():
            producer, holders = made.get(name, (None, ()))
            if producer is not None and holders:
                problems += _unreachable(name, producer, holders, op, stages)
        made.update((value.name, (op, stages)) for value in op.results)
    if problems:
        raise InvalidInput(problems)
    return members


def _unreachable(
    name: str, producer: Op, holders: tuple[int, ...], reader: Op, stages: tuple[int, ...]
) -> Iterable[Diagnostic]:
    """A fault where a stage of ``reader`` can get ``name`` from none of ``holders``: of the first such stage."""
    phase = phase_of(producer.facets)
    lost = next((s for s in stages if s not in holders and sender(phase, holders, s) is None), None)
    if lost is None:
        return
    if phase == FORWARD:
        source, hint = min(holders), "what a stage reads comes from stages of lower number"
    else:
        source, hint = max(holders), "gradients come from stages of higher number"
    yield ReadsUnreachable(lost, name, source, describe(producer), hint).at(describe(reader))


def cuts_of(func: Func) -> tuple[Cut, ...]:
    """Every tensor that crosses from one stage to another: of the forward pass by producer in ``func``'s order, then by
    receiver; behind these the gradients, in ``gradient_order``; then what an update makes. Raises as ``stage_members``."""
    members = stage_members(func)
    if len(set(members)) < 2:
        return ()
    targets: dict[str, dict[int, str]] = {}
    made: dict[str, tuple[int, ...]] = {}
    for op, stages in zip(func.ops, members, strict=True):
        phase = phase_of(op.facets)
        for name in reads(op):
            for stage in stages:
                if name in made and stage not in made[name]:
                    readers = targets.setdefault(name, {})
                    readers[stage] = min(phase, readers.get(stage, phase), key=PHASES.index)
        made.update((value.name, stages) for value in op.results)
    names = origins(func)
    taken = {(target, name) for name, to in targets.items() for target in to}
    found = []
    for op, stages in zip(func.ops, members, strict=True):
        phase = phase_of(op.facets)
        for value, sized in zip(op.results, sized_results(op), strict=True):
            for target, read in sorted(targets.get(value.name, {}).items()):
                name = names.get(value.name, value.name)
                if (target, name) in taken:
                    name = value.name
                taken.add((target, name))
                source = sender(phase, stages, target)
                assert source is not None
                found.append(Cut(value, name, source, target, type_bytes(sized.type), phase, read))
    return tuple(sorted(found, key=_channel_order))


def _channel_order(cut: Cut) -> tuple[int, int, int]:
    if cut.sent in (FORWARD, UPDATE):
        return (2 if cut.sent == UPDATE else 0), 0, 0
    return 1, *gradient_order(cut.source, cut.target)


def origins(func: Func) -> dict[str, str]:
    """What the model calls each value that it does not call so: results of ``comm.reshard``, and operands of those that make a
    result of the model, which keeps its name."""
    results = {value.name for value in func.results}
    found: dict[str, str] = {}
    for op in func.ops:
        if op.name == RESHARD:
            operand, result = op.operands[0], op.results[0].name
            operand = found.get(operand, operand)
            if result in results and operand not in results:
                found[operand] = result
            else:
                found[result] = operand
    return {name: found.get(origin, origin) for name, origin in found.items()}


def is_sharded(module: Module) -> bool:
    """Whether ops have strategies for a mesh, or the plan puts a stage on one."""
    plan = module.first(Plan)
    if plan is not None and plan.on_meshes:
        return True
    return any(op.facet(ShardRule) is not None for op in module.entry.ops)


COST_PARTS = tuple(f.name for f in fields(Cost) if f.name != "kind")


def total_cost(ops: Iterable[Op]) -> Cost:
    """The sum of the costs of the ops of a body, part by part."""
    costs = [op.facet(Cost, Cost()) for op in ops]
    return Cost(**{name: sum(getattr(cost, name) for cost in costs) for name in COST_PARTS})


def describe(op: Op) -> str:
    """How diagnostics name an op: its graph path and node, else its id."""
    node = "/".join(part for part in (op.location.path, op.location.node) if part)
    return f"{node} ({op.id})" if op.location.node else op.id


def listing(names: Iterable[str]) -> str:
    """Names for a message; a long list is cut."""
    names = list(names)
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:8])} and {len(names) - 8} more"
