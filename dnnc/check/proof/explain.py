"""Why a goal of a stage is not reached: the first op that does not follow, in words.

Among all that the goal's value is computed from, that is the first op, in the order of the text, of whose result nothing is
known. Names of values say which op of the model it was to be; they serve the words only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dnnc.check.proof.facts import Part
from dnnc.check.proof.model import Application, Model
from dnnc.check.proof.programs import Line
from dnnc.check.proof.stage import MOST_TRIED, Derived, Goal, StageProof
from dnnc.check.proof.terms import ABSENT, Content
from ir.core.module import Mesh
from ir.core.names import bare
from ir.core.ops import Op
from ir.core.types import Partial, Shard
from ir.ops.boxes import Placements, placements_of
from ir.ops.opdefs import is_collective

REFUTED, NOT_PROVEN = "refuted", "not proven"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """``verdict``: refuted or not proven; ``message``: what does not follow, what it has and would need; ``origin``: the op's
    file and node."""

    verdict: str
    message: str
    origin: str

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "message": self.message, **({"origin": self.origin} if self.origin else {})}


def explain(model: Model, proof: StageProof, goal: Goal | Failure) -> Failure:
    """Why ``goal`` is not reached. Where the search left something untried, nothing is refuted by that it found no way."""
    if isinstance(goal, Failure):
        return goal
    failure = _explained(model, proof, goal)
    if not proof.untried:
        return failure
    untried = ", ".join(f"'{bare(one)}'" for one in sorted(proof.untried)[:_SHOWN])
    limit = f"of the operands of {untried} only {MOST_TRIED} combinations were tried"
    return Failure(NOT_PROVEN, f"{failure.message}; or that was not found: {limit}", failure.origin)


def _explained(model: Model, proof: StageProof, goal: Goal) -> Failure:
    placements = placements_of(goal.of, proof.mesh)
    for derived, term in zip(proof.derived, goal.terms, strict=True):
        own = proof.parts(derived, term)
        if any(part.node == goal.wanted and part.placements == placements for part in own):
            continue
        culprit = None if own else _culprit(model, proof, derived, term)
        if culprit is not None:
            return _of_line(model, proof, derived, culprit)
        has = _parts(model, proof.mesh, own)
        wanted = _part(model, proof.mesh, Part(goal.wanted, placements))
        return Failure(REFUTED, f"it {goal.what}: that is {has}, but must be {wanted}", derived.unit.program.name)
    return Failure(REFUTED, f"it {goal.what}: members hold terms of different sums", "")


def _culprit(model: Model, proof: StageProof, derived: Derived, term: int) -> Line | None:
    """The first line that does not follow, among those that make ``term``: one that reads a weight with wrong bytes, a
    collective, or an op whose result the model names (others may be what a layout rule adds to an op), if there is one."""
    makers = {result: line for line in derived.unit.lines for result in line.results}
    needed, todo = set(), [term]
    while todo:
        line = makers.get(todo.pop())
        if line is not None and id(line) not in needed:
            needed.add(id(line))
            todo += [operand for operand in line.operands if operand != ABSENT]
    wrong = [
        line
        for line in derived.unit.lines
        if id(line) in needed and not any(proof.parts(derived, result) for result in line.results)
    ]
    named = (
        line
        for line in wrong
        if line.unknown
        or is_collective(line.op)
        or _named(model, line)
        or any(_wrong_weight(model, proof, derived, operand) for operand in line.operands if operand != ABSENT)
    )
    return next(named, wrong[0] if wrong else None)


def _named(model: Model, line: Line) -> bool:
    return any(_node(model, value.name) is not None for value in line.op.results)


def _node(model: Model, name: str) -> int | None:
    """The node that the model calls so; ``name`` may lack its sigil, as in an ONNX model."""
    return model.node_of.get(name, model.node_of.get(f"%{name}"))


def _wrong_weight(model: Model, proof: StageProof, derived: Derived, term: int) -> str:
    """The weight that a constant has the name of and is no part of; empty for another term."""
    named = f"@{bare(derived.unit.named.get(term, ''))}"
    wrong = _is_constant(derived, term) and named in model.node_of and not proof.parts(derived, term)
    return named if wrong else ""


def _is_constant(derived: Derived, term: int) -> bool:
    return term == ABSENT or derived.unit.terms.keys[term][0] == "constant"


def _of_line(model: Model, proof: StageProof, derived: Derived, line: Line) -> Failure:
    """What a line has and what it would need."""
    op = line.op
    node = f", node '{op.location.node}'" if op.location.node else ""
    origin = f"{line.file}{node}" if line.file else derived.unit.program.name
    if is_collective(op):
        return _of_collective(model, proof, op, origin)
    name = op.name.removeprefix("onnx.")
    has = ", ".join(_operand(model, proof, derived, term) for term in line.operands if term != ABSENT)
    wanted = _node(model, op.id)
    made = model.makers.get(wanted) if wanted is not None else None
    if unknown := line.unknown or (made.unknown if made is not None else ""):
        return Failure(NOT_PROVEN, f"nothing is known of what {name} makes as '{bare(op.id)}': {unknown}", origin)
    message = f"{name}, which makes '{bare(op.id)}', does not follow: it has {has or 'no operands'}"
    if made is None:
        return Failure(REFUTED, f"{message}; no op of the model makes that of these", origin)
    return Failure(REFUTED, f"{message}; the model has {'; '.join(_differences(model, line, made))}", origin)


def _of_collective(model: Model, proof: StageProof, op: Op, origin: str) -> Failure:
    """Why the result of a collective does not follow: an op before it on some member, or what the members hand to it."""
    channel = op.get("channel")
    reasons = []
    for derived, lines in zip(proof.derived, proof.collectives.get(channel, ()), strict=False):
        for line in lines:
            if not proof.parts(derived, line.operands[0]) and (culprit := _culprit(model, proof, derived, line.operands[0])):
                return _of_line(model, proof, derived, culprit)
            members = ", ".join(map(str, derived.unit.members))
            reasons.append(f"{line.op.operands[0]} is {_has(model, proof, derived, line.operands[0])} on member {members}")
    reason = proof.refusals.get(channel, "; ".join(reasons))
    return Failure(REFUTED, f"{op.name} on channel {channel}, which makes {op.id}, does not follow: {reason}", origin)


def _differences(model: Model, line: Line, made: Application) -> Iterator[str]:
    """How the op of the model that has the name of a local op differs from it."""
    op, theirs = line.op, made.op
    operands = ", ".join(model.names[node] for node in made.operands if node != ABSENT)
    yield f"{theirs.name.removeprefix('onnx.')} of {operands or 'no operands'} there"
    if op.name == theirs.name and line.version != made.version:
        yield f"the operator of opset {made.version} there and of opset {line.version} here"
    own, other = dict(op.attributes), dict(theirs.attributes)
    for key in sorted({*own, *other}):
        if own.get(key) != other.get(key):
            yield f"attribute '{key}' is {_value(other.get(key))} there and {_value(own.get(key))} here"


def _value(attribute: Any) -> str:
    text = "absent" if attribute is None else str(attribute.value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _operand(model: Model, proof: StageProof, derived: Derived, term: int) -> str:
    """An operand by its name, and what it is where the name does not say that."""
    name, what = derived.unit.named.get(term, ""), _has(model, proof, derived, term)
    if not name:
        return what
    return name if what in (name, f"%{name}", f"@{name}") else f"{name} ({what})"


def _has(model: Model, proof: StageProof, derived: Derived, term: int) -> str:
    parts = proof.parts(derived, term)
    if not parts and _is_constant(derived, term):
        if weight := _wrong_weight(model, proof, derived, term):
            return f"bytes that are no part of the weight {weight}"
        contents = derived.unit.constants[term][0][1] if term in derived.unit.constants else ()
        shown = list(dict.fromkeys(_elements(one) for one in contents))
        members = f" on the members {', '.join(map(str, derived.unit.members))}" if len(shown) > 1 else ""
        return f"the constant {', '.join(shown)}{members}"
    return _parts(model, proof.mesh, parts)


def _elements(content: Content) -> str:
    numbers = content.numbers()
    return str(list(numbers)) if numbers is not None and len(numbers) <= 8 else f"{content.dtype.value}{list(content.shape)}"


def _parts(model: Model, mesh: Mesh, parts: tuple[Part, ...]) -> str:
    shown = list(dict.fromkeys(_part(model, mesh, part) for part in sorted(parts, key=lambda part: part.family > 0)))
    more = f" or {len(shown) - _SHOWN} others" if len(shown) > _SHOWN else ""
    return " or ".join(shown[:_SHOWN]) + more if shown else "nothing that is known"


def _part(model: Model, mesh: Mesh, part: Part) -> str:
    return f"{_lying(mesh, part.placements)}{model.names[part.node]}"


def _lying(mesh: Mesh, placements: Placements) -> str:
    """Placements in words, empty for a whole value."""
    words = []
    for (axis, _), placement in zip(mesh.axes, placements, strict=True):
        if isinstance(placement, Shard):
            words.append(f"the part along dimension {placement.dim} by axis {axis}")
        elif isinstance(placement, Partial):
            words.append(f"a term of the {placement.reduction} over axis {axis}")
    return f"{', '.join(words)} of " if words else ""
