"""Kinds of damage to a training step: each edits the programs, the entry function or the rows of a module at a random place.

``PROGRAMS`` edit the programs of one stage (``localize`` wrote them), ``STEPS`` the entry function and all programs alike, as a
wrong gradient formula would, ``ROWS`` the schedule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ir.core.attributes import Attribute, AttrKind
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Phase, phase_of
from ir.core.module import Action, Module, Program, Schedule, Stage
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, without_layout
from ir.ops.grads import ACCUMULATE, ASSIGN
from ir.ops.opdefs import is_collective
from ir.ops.optimizers import EMA, OPTIMIZERS, RATE, UpdateOperands

Ops = tuple[Op, ...]
Damage = Callable[[Ops, random.Random], Ops | None]
"""Changes ops at a random place; None where there is no place for it. The generator has the same numbers for each member of a
stage, so that members change alike where their programs have the same ops."""


def _place(ops: Ops, rng: random.Random, fits: Callable[[Op], bool]) -> int | None:
    places = [place for place, op in enumerate(ops) if fits(op)]
    return rng.choice(places) if places else None


def _pair(ops: Ops, rng: random.Random, fits: Callable[[Op, Op], bool]) -> tuple[int, int] | None:
    pairs = [(i, j) for j in range(len(ops)) for i in range(j) if fits(ops[i], ops[j])]
    return rng.choice(pairs) if pairs else None


def _with(ops: Ops, place: int, *new: Op) -> Ops:
    return (*ops[:place], *new, *ops[place + 1 :])


def _reading(ops: Sequence[Op], names: dict[str, str]) -> Ops:
    """The ops with other names of what they read."""
    return tuple(replace(op, operands=tuple(names.get(name, name) for name in op.operands)) for op in ops)


def _attribute(op: Op, key: str, value: object, kind: AttrKind | None = None) -> Op:
    fields = dict(op.attributes)
    fields[key] = Attribute(kind or fields[key].kind, value)  # type: ignore[arg-type]
    return replace(op, attributes=tuple(sorted(fields.items())))


def _type(ops: Ops, name: str) -> object:
    return next((without_layout(value.type) for op in ops for value in op.results if value.name == name), None)


def _sum(op: Op) -> bool:
    return op.name in ("comm.all_reduce", "comm.reduce_scatter")


# -- programs ----------------------------------------------------------------------------------------------------------


def lost_sum(ops: Ops, rng: random.Random) -> Ops | None:
    """An all-reduce that members leave out: they go on with their terms."""
    place = _place(ops, rng, lambda op: op.name == "comm.all_reduce")
    if place is None:
        return None
    return _reading(_with(ops, place), {ops[place].id: ops[place].operands[0]})


def repeated_sum(ops: Ops, rng: random.Random) -> Ops | None:
    """A sum that is summed again."""
    place = _place(ops, rng, lambda op: op.name == "comm.all_reduce" and op.get("bucket") is None)
    place = _place(ops, rng, lambda op: op.name == "comm.all_reduce") if place is None else place
    if place is None:
        return None
    last = max(op.get("channel", 0) for op in ops) + 1000
    op, (value,) = ops[place], ops[place].results
    once = replace(op, results=(replace(value, name=f"{value.name}.once"),))
    again = replace(op, operands=(once.id,), attributes=tuple(a for a in op.attributes if a[0] != "bucket"))
    return _with(ops, place, once, _attribute(again, "channel", last))


def other_reduction(ops: Ops, rng: random.Random) -> Ops | None:
    """A sum that is a maximum."""
    place = _place(ops, rng, _sum)
    return None if place is None else _with(ops, place, _attribute(ops[place], "reduction", "max"))


def other_dimension(ops: Ops, rng: random.Random) -> Ops | None:
    """A collective that joins or cuts another dimension."""
    place = _place(ops, rng, lambda op: is_collective(op) and op.get("dim") is not None)
    return None if place is None else _with(ops, place, _attribute(ops[place], "dim", 1 - ops[place].get("dim") % 2))


def other_microbatches(ops: Ops, rng: random.Random) -> Ops | None:
    """A mean over one microbatch more."""
    place = _place(ops, rng, lambda op: op.name == ACCUMULATE)
    more = None if place is None else ops[place].get("microbatches") + 1
    return None if place is None else _with(ops, place, _attribute(ops[place], "microbatches", more))


def lost_mean(ops: Ops, rng: random.Random) -> Ops | None:
    """An update by the gradient of the last microbatch."""
    place = _place(ops, rng, lambda op: op.name == ACCUMULATE)
    if place is None:
        return None
    return _reading(_with(ops, place), {ops[place].id: ops[place].operands[0]})


def gradient_twice(ops: Ops, rng: random.Random) -> Ops | None:
    """A gradient that is added to itself before its mean."""
    place = _place(ops, rng, lambda op: op.name == ACCUMULATE)
    if place is None:
        return None
    op = ops[place]
    twice = Value(f"{op.operands[0]}.twice", op.results[0].type)
    added = Op("onnx.Add", op.operands * 2, (twice,), facets=(Phase(WEIGHT_GRADIENT),))
    return _with(ops, place, added, replace(op, operands=(twice.name,)))


def lost_update(ops: Ops, rng: random.Random) -> Ops | None:
    """A weight, or optimizer state, that is not assigned."""
    place = _place(ops, rng, lambda op: op.name == ASSIGN)
    return None if place is None else _with(ops, place)


def double_update(ops: Ops, rng: random.Random) -> Ops | None:
    """A weight that the optimizer updates twice by one gradient."""
    place = _place(ops, rng, lambda op: op.name in OPTIMIZERS)
    if place is None:
        return None
    op = ops[place]
    once = replace(op, results=tuple(replace(value, name=f"{value.name}.once") for value in op.results))
    again = replace(op, operands=(once.id, *op.operands[1:]))
    return _with(ops, place, once, again)


def stale_weight(ops: Ops, rng: random.Random) -> Ops | None:
    """A weight that is assigned what it was."""
    place = _place(ops, rng, lambda op: op.name == ASSIGN)
    return None if place is None else _with(ops, place, replace(ops[place], operands=ops[place].operands[:1] * 2))


def early_update(ops: Ops, rng: random.Random) -> Ops | None:
    """A weight that is updated by the optimizer for each microbatch."""
    place = _place(ops, rng, lambda op: op.name in OPTIMIZERS)
    return None if place is None else _with(ops, place, ops[place].with_facets(Phase(WEIGHT_GRADIENT)))


def once_a_step(ops: Ops, rng: random.Random) -> Ops | None:
    """A gradient that is made once a step, of the last microbatch."""
    place = _place(ops, rng, lambda op: phase_of(op.facets) in (INPUT_GRADIENT, WEIGHT_GRADIENT) and op.dialect == "onnx")
    return None if place is None else _with(ops, place, ops[place].with_facets(Phase(UPDATE)))


def swapped_assignments(ops: Ops, rng: random.Random) -> Ops | None:
    """Two resources of one type, each assigned what the other becomes."""
    types = {op.id: _type(ops, op.id) for op in ops if op.results}
    types.update((value.name, without_layout(value.type)) for op in ops for value in op.results)
    pair = _pair(ops, rng, lambda a, b: a.name == b.name == ASSIGN and types.get(a.operands[1]) == types.get(b.operands[1]))
    if pair is None:
        return None
    one, other = (ops[place] for place in pair)
    made = _with(ops, pair[0], replace(one, operands=(one.operands[0], other.operands[1])))
    return _with(made, pair[1], replace(other, operands=(other.operands[0], one.operands[1])))


def swapped_gradients(ops: Ops, rng: random.Random) -> Ops | None:
    """Two weights of one type, each updated by the gradient of the other."""
    pair = _pair(ops, rng, lambda a, b: a.name == b.name and a.name in OPTIMIZERS and a.results[0].type == b.results[0].type)
    if pair is None:
        return None
    one, other = (ops[place] for place in pair)
    made = _with(ops, pair[0], replace(one, operands=(one.operands[0], other.operands[1], *one.operands[2:])))
    return _with(made, pair[1], replace(other, operands=(other.operands[0], one.operands[1], *other.operands[2:])))


def swapped_weights(ops: Ops, rng: random.Random) -> Ops | None:
    """Two operands of one type that are weights of different ops, exchanged."""
    weights = {op.results[0].name for op in ops if op.name == "comm.part"}
    products = [
        (place, name)
        for place, op in enumerate(ops)
        if op.dialect == "onnx" and phase_of(op.facets) != UPDATE
        for name in op.operands
        if name[:1] == "@" or name in weights
    ]
    pairs = [(a, b) for b in products for a in products if a[0] < b[0] and a[1] != b[1] and _same_use(ops, a, b)]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    made = _with(ops, one[0], *_reading([ops[one[0]]], {one[1]: other[1]}))
    return _with(made, other[0], *_reading([ops[other[0]]], {other[1]: one[1]}))


def _same_use(ops: Ops, one: tuple[int, str], other: tuple[int, str]) -> bool:
    """Whether two ops read two weights alike. Each is a place and a name."""
    (a, first), (b, second) = (ops[one[0]], one[1]), (ops[other[0]], other[1])
    same = a.name == b.name and a.results[0].type == b.results[0].type
    return same and a.operands.index(first) == b.operands.index(second)


def swapped_states(ops: Ops, rng: random.Random) -> Ops | None:
    """An optimizer that reads its states in the place of each other."""
    place = _place(ops, rng, lambda op: op.name in ("grad.adam", "grad.adamw"))
    if place is None:
        return None
    weight, gradient, one, other, *scalars = ops[place].operands
    return _with(ops, place, replace(ops[place], operands=(weight, gradient, other, one, *scalars)))


def lost_scalar(ops: Ops, rng: random.Random) -> Ops | None:
    """An optimizer without the factor of its learning rate or of its gradient."""
    place = _place(ops, rng, lambda op: op.name in OPTIMIZERS and bool(_scalars(op)))
    if place is None:
        return None
    op = ops[place]
    lost = rng.choice(_scalars(op))
    return _with(ops, place, replace(op, operands=tuple("" if name == lost else name for name in op.operands)))


def _scalars(op: Op) -> list[str]:
    operands = UpdateOperands.of(op)
    return [name for name in (operands.rate, operands.scale) if name]


def other_rate(ops: Ops, rng: random.Random) -> Ops | None:
    """A schedule of the learning rate with another number, or an average with another decay."""
    place = _place(ops, rng, lambda op: op.name in (RATE, EMA))
    if place is None:
        return None
    key, value = ("decay", 0.5) if ops[place].name == EMA else ("warmup", ops[place].get("warmup") + 1)
    return _with(ops, place, _attribute(ops[place], key, value))


def other_number(ops: Ops, rng: random.Random) -> Ops | None:
    """A weight that learns at another rate."""
    place = _place(ops, rng, lambda op: op.name in OPTIMIZERS)
    if place is None:
        return None
    return _with(ops, place, _attribute(ops[place], "learning_rate", 2 * ops[place].get("learning_rate") + 1))


def other_operand(ops: Ops, rng: random.Random) -> Ops | None:
    """An op that reads another value of the same type."""
    by_type: dict[object, list[str]] = {}
    places = []
    types: dict[str, object] = {}
    for place, op in enumerate(ops):
        for number, name in enumerate(op.operands):
            others = [other for other in by_type.get(types.get(name), ()) if other != name]
            places += [(place, number, other) for other in others]
        for value in op.results:
            types[value.name] = value.type
            by_type.setdefault(value.type, []).append(value.name)
    if not places:
        return None
    place, number, other = rng.choice(places)
    operands = list(ops[place].operands)
    operands[number] = other
    return _with(ops, place, replace(ops[place], operands=tuple(operands)))


def lost_op(ops: Ops, rng: random.Random) -> Ops | None:
    """An op whose result is its first operand."""
    place = _place(
        ops,
        rng,
        lambda op: op.dialect == "onnx" and len(op.results) == 1 and _type(ops, (*op.operands, "")[0]) == op.results[0].type,
    )
    if place is None:
        return None
    return _reading(_with(ops, place), {ops[place].id: ops[place].operands[0]})


def other_attribute(ops: Ops, rng: random.Random) -> Ops | None:
    """An integer attribute of an operator, another."""
    place = _place(ops, rng, lambda op: op.dialect == "onnx" and any(a.kind == AttrKind.INT for _, a in op.attributes))
    if place is None:
        return None
    key, attribute = rng.choice([(k, a) for k, a in ops[place].attributes if a.kind == AttrKind.INT])
    return _with(ops, place, _attribute(ops[place], key, 1 - attribute.value if attribute.value in (0, 1) else 1))  # type: ignore[operator]


def exchanged_messages(ops: Ops, rng: random.Random) -> Ops | None:
    """Two values of one type that arrive, each taken for the other."""
    pair = _pair(ops, rng, lambda a, b: a.name == b.name == "comm.recv" and a.results[0].type == b.results[0].type)
    if pair is None:
        return None
    one, other = (ops[place] for place in pair)
    return _with(_with(ops, pair[0], replace(one, results=other.results)), pair[1], replace(other, results=one.results))


def other_value_sent(ops: Ops, rng: random.Random) -> Ops | None:
    """A message with another value of the same type."""
    place = _place(ops, rng, lambda op: op.name == "comm.send")
    if place is None:
        return None
    (name,) = ops[place].operands
    type_ = _type(ops, name)
    others = [v.name for op in ops[:place] for v in op.results if v.name != name and without_layout(v.type) == type_]
    return _with(ops, place, replace(ops[place], operands=(rng.choice(others),))) if others else None


def mixed_bucket(ops: Ops, rng: random.Random) -> Ops | None:
    """A sum of a bucket that is summed through another member."""
    place = _place(ops, rng, lambda op: op.get("bucket") is not None)
    if place is None:
        return None
    through = 1 - (ops[place].get("through") or 0) % 2
    return _with(ops, place, _attribute(ops[place], "through", through, AttrKind.INT))


def other_type(ops: Ops, rng: random.Random) -> Ops | None:
    """A value that is said to have other elements: a sum of gradients is added up in integers."""
    place = _place(ops, rng, lambda op: len(op.results) == 1 and op.dialect != "comm")
    if place is None:
        return None
    (value,) = ops[place].results
    type_ = value.type
    assert isinstance(type_, TensorType)
    other = replace(type_, dtype=DType.I32 if type_.dtype != DType.I32 else DType.F16)
    return _with(ops, place, replace(ops[place], results=(replace(value, type=other),)))


PROGRAMS: dict[str, Damage] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        lost_sum, repeated_sum, other_reduction, other_dimension, other_microbatches, lost_mean, gradient_twice, lost_update,
        double_update, stale_weight, early_update, once_a_step, swapped_assignments, swapped_gradients, swapped_weights,
        swapped_states, lost_scalar, other_rate, other_number, other_operand, lost_op, other_attribute, exchanged_messages,
        other_value_sent, mixed_bucket, other_type,
    )
}  # fmt: skip


def rotated_members(module: Module, rng: random.Random) -> Module | None:
    """Constants of members, each of the next one: where its part begins."""
    return _in_program(module, rng, _rotated)


def _rotated(ops: Ops, rng: random.Random) -> Ops | None:
    place = _place(ops, rng, lambda op: op.name == "comm.member")
    if place is None:
        return None
    values = ops[place].get("values")
    size = len(values.data) // values.type.shape[0]
    turned = replace(values, data=values.data[size:] + values.data[:size])
    return None if turned == values else _with(ops, place, _attribute(ops[place], "values", turned))


def _in_program(module: Module, rng: random.Random, kind: Damage) -> Module | None:
    programs = list(module.of_type(Program))
    for program in rng.sample(programs, len(programs)):
        ops = in_order(kind(program.ops, rng))
        if ops is not None and ops != program.ops:
            return module.replace(program, replace(program, ops=ops))
    return None


def in_order(ops: Ops | None) -> Ops | None:
    """The ops, each behind those that make what it reads; None where they make a circle."""
    if ops is None:
        return None
    left, made = list(ops), list[Op]()
    missing = {value.name for op in ops for value in op.results}
    while left:
        ready = next((op for op in left if missing.isdisjoint(op.operands)), None)
        if ready is None:
            return None
        left.remove(ready)
        missing -= {value.name for value in ready.results}
        made.append(ready)
    return tuple(made)


# -- the step, alike in the entry function and in the programs ---------------------------------------------------------


def in_step(module: Module, rng: random.Random, kind: Damage) -> Module | None:
    """The damage that the entry function and each program have alike; of a module without programs, each stage."""
    seed = rng.random()
    entry = module.entry
    forward = {id(op) for op in entry.ops if phase_of(op.facets) == FORWARD}
    ops = in_order(kind(entry.ops, random.Random(seed)))
    if ops is None or any(op not in ops for op in entry.ops if id(op) in forward):
        return None
    old = {op.id: op for op in entry.ops if op.results}
    changed = {op.id: op for op in ops if op.results and old.get(op.id, op) != op}
    made = module.replace(entry, replace(entry, ops=ops))
    every: list[Program | Stage] = [*module.of_type(Program)]
    for program in every or module.of_type(Stage):
        own = tuple(
            replace(op, operands=changed[op.id].operands, attributes=changed[op.id].attributes)
            if op.results and op.id in changed and op.name == changed[op.id].name
            else op
            for op in program.ops
        )
        own_order = in_order(own)
        if own_order is None:
            return None
        made = made.replace(program, replace(program, ops=own_order))
    return made


STEPS: dict[str, Damage] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        other_microbatches, swapped_gradients, swapped_states, lost_scalar, other_rate, other_number, other_operand,
        other_attribute,
    )
}  # fmt: skip


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(module: Module, rng: random.Random, change: Callable[[list[Action]], Iterator[list[Action]]]) -> Module | None:
    schedule = module.first(Schedule)
    assert schedule is not None
    ways = [(place, row) for place, (_, actions) in enumerate(schedule.rows) for row in change(list(actions))]
    if not ways:
        return None
    place, row = rng.choice(ways)
    rows = list(schedule.rows)
    rows[place] = rows[place][0], tuple(row)
    return module.replace(schedule, replace(schedule, rows=tuple(rows)))


def exchanged_actions(row: list[Action]) -> Iterator[list[Action]]:
    """Two actions of one microbatch and stage, one of which reads what the other makes, in each other's place."""
    for j in range(len(row)):
        for i in range(j):
            a, b = row[i], row[j]
            kinds = {a.kind, b.kind}
            depends = a.microbatch == b.microbatch or (a.microbatch is None or b.microbatch is None)
            if a.stage == b.stage and depends and len(kinds) == 2 and not ("U" in kinds and kinds & {"recv", "send"}):
                yield [*row[:i], b, *row[i + 1 : j], a, *row[j + 1 :]]


def other_microbatch(row: list[Action]) -> Iterator[list[Action]]:
    """An action on another microbatch."""
    for i, action in enumerate(row):
        if action.kind != "U" and action.microbatch is not None:
            yield [*row[:i], replace(action, microbatch=action.microbatch + 1), *row[i + 1 :]]


def lost_action(row: list[Action]) -> Iterator[list[Action]]:
    """A row without one of its actions; W may be of no op."""
    yield from ([*row[:i], *row[i + 1 :]] for i in range(len(row)) if row[i].kind != "W")


def repeated_action(row: list[Action]) -> Iterator[list[Action]]:
    """A row with an action twice."""
    yield from ([*row[: i + 1], *row[i:]] for i in range(len(row)))


ROWS: dict[str, Callable[[list[Action]], Iterator[list[Action]]]] = {
    kind.__name__.replace("_", " "): kind for kind in (exchanged_actions, other_microbatch, lost_action, repeated_action)
}


def damaged_step(module: Module, kind: str, rng: random.Random) -> Module | None:
    """The localized ``module`` with damage of ``kind`` (``program lost sum``, ``step other operand``, ``row lost action``);
    None where it has no place for it."""
    where, _, name = kind.partition(" ")
    match where:
        case "program":
            return rotated_members(module, rng) if name == "rotated members" else _in_program(module, rng, PROGRAMS[name])
        case "step":
            return in_step(module, rng, STEPS[name])
    return damaged_rows(module, name, rng)


def damaged_rows(module: Module, kind: str, rng: random.Random) -> Module | None:
    """The ``module`` with damage to one of its rows."""
    return _rows(module, rng, ROWS[kind])


KINDS = (
    *(f"program {name}" for name in (*PROGRAMS, "rotated members")),
    *(f"step {name}" for name in STEPS),
    *(f"row {name}" for name in ROWS),
)
