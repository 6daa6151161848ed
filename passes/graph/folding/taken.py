"""Stages that say which ops of the entry function they take, in place of these ops: ``dnnc.take``.

The ops that stage ``k`` takes are those of the expanded entry function that ``stage<..>`` gives to it, in order. A
``dnnc.take`` stands for all of them, or for ``ops = [first, count]`` of them. Its operands are the values of the stage that
they read, its results those that the rest of the stage reads. Ops that are not as in the function, such as one that reads what
a collective made, stand in the stage themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import StageSet
from ir.core.module import Func, Module, Stage
from ir.core.ops import UNKNOWN_LOCATION, Op, Value
from passes.graph.faults import TakenDiffers, TakesOtherOps
from passes.graph.folding.names import assigned, reads

TAKE = "dnnc.take"
LEAST = 3
"""Ops that are worth one ``dnnc.take``."""


def taking(module: Module, entry: Func) -> Module:
    """``module`` with ``dnnc.take`` in its stages, itself where no stage takes ops. ``entry``: its entry function, expanded."""
    if module.first(Stage) is None:
        return module
    found = [_taking(symbol, _ops_of(symbol, entry)) if isinstance(symbol, Stage) else symbol for symbol in module.symbols]
    changed = any(one is not other for one, other in zip(found, module.symbols, strict=True))
    return replace(module, symbols=tuple(found)) if changed else module


def takes(module: Module) -> bool:
    """Whether a stage of ``module`` has a ``dnnc.take``."""
    return any(op.name == TAKE for stage in module.of_type(Stage) for op in stage.ops)


def with_ops(stage: Stage, entry: Func) -> Stage:
    """``stage`` with the ops themselves in place of each ``dnnc.take``; ``entry`` is the entry function, expanded. Raises
    InvalidInput where an op of that kind does not say what its ops read and make."""
    if not any(op.name == TAKE for op in stage.ops):
        return stage
    ops: list[Op] = []
    all_ops = _ops_of(stage, entry)
    seen: set[int] = set()
    for number, op in enumerate(stage.ops):
        if op.name != TAKE:
            ops.append(op)
            continue
        first, count = said if len(said := op.get("ops", (0, len(all_ops)))) == 2 else (-1, 0)
        positions = range(first, first + count)
        if first < 0 or count < 1 or first + count > len(all_ops) or seen.intersection(positions):
            last = first + count - 1
            raise InvalidInput(TakesOtherOps(TAKE, first, last, stage.name, len(all_ops), entry.name), where=stage.name)
        seen.update(positions)
        taken = all_ops[first : first + count]
        _check(stage, op, _taken(taken, first, len(all_ops), _read(stage.ops[number + 1 :], stage.results)))
        ops += taken
    return replace(stage, ops=tuple(ops))


def _check(stage: Stage, op: Op, expected: Op) -> None:
    for what, found, wanted in (
        ("reads", op.operands, expected.operands),
        ("makes", tuple([value.name for value in op.results]), tuple([value.name for value in expected.results])),
        ("makes values of types", tuple([str(v.type) for v in op.results]), tuple([str(v.type) for v in expected.results])),
    ):
        if found != wanted:
            stated, expected_ = (", ".join(names) or "nothing" for names in (found, wanted))
            raise InvalidInput(TakenDiffers(TAKE, what, stated, expected_), where=stage.name)


def _ops_of(stage: Stage, entry: Func) -> Sequence[Op]:
    """The ops of ``entry`` that are given to ``stage``."""
    return [op for op in entry.ops if (facet := op.facet(StageSet)) is not None and stage.index in facet.stages]


def _taking(stage: Stage, all_ops: Sequence[Op]) -> Stage:
    position = {op.id: number for number, op in enumerate(all_ops)}
    parts: list[tuple[int, list[Op]]] = []  # position of the first op that is taken (-1: none is) and the ops
    following = -1
    for op in stage.ops:
        at = position.get(op.id, -1)
        same = at >= 0 and (all_ops[at] is op or all_ops[at] == op)
        if same and parts and following == at:
            parts[-1][1].append(op)
        else:
            parts.append((at if same else -1, [op]))
        following = at + 1 if same else -1
    if not any(first >= 0 and len(ops) >= LEAST for first, ops in parts):
        return stage
    ops: list[Op] = []
    needed = set(_read((), stage.results))
    for first, taken in reversed(parts):
        if first >= 0 and len(taken) >= LEAST:
            ops.append(_taken(taken, first, len(all_ops), needed))
        else:
            ops += reversed(taken)
        needed |= _read(taken, ())
    return replace(stage, ops=tuple(reversed(ops)))


def _read(ops: Iterable[Op], results: Iterable[Value]) -> set[str]:
    return {name for op in ops for name in reads(op) if name} | {value.name for value in results}


def _taken(ops: Sequence[Op], first: int, count: int, needed: Iterable[str]) -> Op:
    """The op that stands for ``ops``, of whose values the rest of the stage reads those ``needed``."""
    made = set(assigned(ops))
    operands = dict.fromkeys(name for op in ops for name in reads(op) if name[:1] == "%" and name not in made)
    wanted = set(needed)
    results = tuple(value for op in ops for value in op.results if value.name in wanted)
    said = {} if (first, len(ops)) == (0, count) else {"ops": (first, len(ops))}
    return Op(TAKE, tuple(operands), results, attributes(said), (), (), UNKNOWN_LOCATION)
