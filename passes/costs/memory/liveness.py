"""Bytes of a program at inference: what is alive while each op runs.

A workload of opaque units (``dnnc.work``) states the bytes of each unit, its messages included: a stage needs their sum
(``stated_bytes``), and nothing else of this file is for it.

A stage runs its ops one after another in the order of the function; its *workspace* is the most bytes alive at once.

Three answers. ``stage_live`` walks one stage and is exact. ``live_bytes`` gives, per op,
the bytes alive *in the whole program* while the op runs: the maximum over a stage's ops is an upper bound, for what is alive
inside the stage is alive in the program too. ``own_bytes`` gives the workspace of each op as a stage of its own: the maximum
over a stage's ops is a lower bound. Both are maxima over ops, which never shrink when a stage grows, as the dynamic programme
needs; a plan under the first fits, and what no plan under the second does, none does.

Rules: a value lives from the op that makes it to its last reader; a received value lives in its buffer and is not counted
again; a value nobody reads (or that leaves the stage) dies with its op, because it is sent as soon as it exists; an argument
of the function lives from its first reader to its last. The bodies of an If, Loop or Scan count at their own peak
while the op runs. A value of unknown size counts 0, a measured one (``sizes``) what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.core.module import Func, Module
from ir.core.ops import Op, Value
from ir.core.types import type_bytes
from passes.graph.graph import reads
from passes.graph.sizes import sized_results

SLOTS = 2
"""Buffers per received tensor: the sender fills one while the receiver reads the other."""


def value_bytes(value: Value) -> int:
    """Bytes of a value; 0 where its type does not tell."""
    return type_bytes(value.type) or 0


def resource_bytes(module: Module, groups: int = 0) -> dict[str, int]:
    """Bytes of each resource, by name; of a state, those of the sets of so many ``groups``, 0 for all."""
    sets = {name: min(groups or state.sets, state.sets) for name, state in module.states.items()}
    return {name: (type_bytes(resource.type) or 0) * sets.get(name, 1) for name, resource in module.resources.items()}


def live_bytes(func: Func) -> tuple[int, ...]:
    """Bytes of activations alive in the program while each op runs, in the order of ``func.ops``."""
    return _live(func.args, func.ops, outside=frozenset())


def own_bytes(func: Func) -> tuple[int, ...]:
    """Bytes of activations that any stage with the op has alive while the op runs, in the order of ``func.ops``: its results,
    the arguments of the function that it reads, and the peak of its bodies."""
    return tuple(_live(func.args, (op,), frozenset())[0] for op in func.ops)


def states_bytes(func: Func) -> bool:
    """Whether the function is a workload, whose ops state their bytes."""
    return bool(func.ops) and all(op.name == "dnnc.work" for op in func.ops)


def stated_bytes(func: Func) -> tuple[int, ...] | None:
    """Bytes that each op of a workload states (``size`` and ``weight``), in order; None when the function is no workload."""
    if not states_bytes(func):
        return None
    return tuple(sum([int(a.value) for key, a in op.attributes if key in ("size", "weight")]) for op in func.ops)


def stage_live(func: Func, members: Sequence[int]) -> tuple[int, ...]:
    """Bytes alive in a stage of the ops at ``members`` (ascending positions in ``func.ops``) while each of them runs. What
    other ops of the function make is received, hence counted with the buffers and not here."""
    chosen = set(members)
    received = frozenset(v.name for i, op in enumerate(func.ops) if i not in chosen for v in op.results)
    return _live(func.args, [func.ops[i] for i in members], received)


def _live(args: Sequence[Value], ops: Sequence[Op], outside: frozenset[str]) -> tuple[int, ...]:
    """Bytes alive while each of ``ops`` runs; names in ``outside`` and names defined elsewhere count nothing."""
    size = {value.name: value_bytes(value) for value in args}
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for i, op in enumerate(ops):
        for value in sized_results(op):
            size[value.name] = value_bytes(value)
            first[value.name] = last[value.name] = i
        for name in reads(op):
            if name in size:
                first.setdefault(name, i)
                last[name] = i
    change = [0] * (len(ops) + 1)
    for name, start in first.items():
        if name not in outside:
            change[start] += size[name]
            change[last[name] + 1] -= size[name]
    alive, total = [], 0
    for i, op in enumerate(ops):
        total += change[i]
        inner = max((max(_live(r.args, r.ops, frozenset()), default=0) for _, r in op.regions), default=0)
        alive.append(total + inner)
    return tuple(alive)
