"""What each input of a decoder is to a step: its role.

A role follows from the input's name, its type and the operands that read it; ``TABLE`` says how. Masks and positions are told
by their names, for a step computes them itself; where ``TensorScatter`` writes, and the lengths of ``Attention``, by their
readers. Token ids are the integers ``[B, s]`` that are none of these. A person states the role of an input of another name
(``NAME=ROLE``).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Func
from ir.core.ops import Value
from ir.core.types import DType, TensorType
from passes.prepare.states.faults import RoleNotStated, RoleOfNoInput, RoleStatedTwice

ROLES = "roles"
"""The attribute of a function that lists roles of inputs, ``NAME=ROLE``, which a file beside the model states."""


class Role(StrEnum):
    """Of a step of s tokens in each of B sequences, over caches of T positions."""

    IDS = "ids"
    """Token ids, integers ``[B, s]``."""
    MASK = "mask"
    """``[B, T]``, integers or booleans: 1 for a token, 0 for none."""
    POSITIONS = "positions"
    """Integers ``[B, s]``: the position of each token."""
    POSITION = "position"
    """Integers ``[B]``: the position of the first token, where the step is written in a cache."""
    LENGTHS = "lengths"
    """Integers ``[B]``: the positions of a cache that have tokens after the step."""
    GIVEN = "given"
    """``[B, ..]``, of any type: given once, where a sequence begins, and read by each of its steps. Keys and values of an
    encoder, and its mask."""


Use = tuple[str, int]
"""An operator and the number of its operand."""


@dataclass(frozen=True, slots=True)
class Row:
    """An input has ``role`` where it has ``rank`` dimensions (0: any number but 0) and every one of the other marks. ``words``:
    of which its name has one; ``without``: of which it has none; ``reader``: its only use."""

    role: Role
    rank: int
    words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    reader: Use | None = None
    booleans: bool = False

    def fits(self, arg: Value, uses: Collection[Use]) -> bool:
        return (
            self.has_type(arg)
            and (not self.words or any(word in arg.name for word in self.words))
            and not any(word in arg.name for word in self.without)
            and (self.reader is None or set(uses) == {self.reader})
        )

    def has_type(self, arg: Value) -> bool:
        type_ = arg.type
        if self.role is Role.GIVEN:
            return isinstance(type_, TensorType) and bool(type_.shape)
        if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) != self.rank:
            return False
        return type_.dtype.is_integer or (self.booleans and type_.dtype is DType.BOOL)


TABLE = (
    Row(Role.GIVEN, 0, words=("encoder",)),
    Row(Role.MASK, 2, words=("mask",), without=("padding",), booleans=True),  # a mask of padding says the opposite
    Row(Role.POSITIONS, 2, words=("position",)),
    Row(Role.POSITION, 1, reader=("onnx.TensorScatter", 2)),
    Row(Role.LENGTHS, 1, reader=("onnx.Attention", 6)),
    Row(Role.IDS, 2, words=("input_ids",)),
    Row(Role.IDS, 2, without=("mask",)),
)
"""The marks of roles; the first row that fits an input decides. One input alone has the ids, that of the earlier row."""


def roles_of(func: Func, states: Collection[str], stated: Iterable[str] = ()) -> dict[str, Role]:
    """The roles of the inputs of ``func`` (names without ``%``), those that have none left out. ``states``: inputs that are
    states; ``stated``: roles as ``NAME=ROLE``, before those of the attribute ``roles`` whose types fit. Raises UsageError for
    another text, InvalidInput for a name that is no input or has another type."""
    args = {arg.name[1:]: arg for arg in func.args if arg.name[1:] not in states}
    stated = tuple(dict.fromkeys(stated))
    found = {name: _stated(args, name, role, text) for text in stated for name, _, role in [text.partition("=")]}
    for one, other in itertools.combinations(stated, 2):
        (name, _, role), (second, _, of_second) = one.partition("="), other.partition("=")
        if name == second or role == of_second == Role.IDS:
            raise UsageError(RoleStatedTwice(one, other), where="--role")
    of_file = next((attribute.value for key, attribute in func.attributes if key == ROLES), ())
    for name, _, role in (text.rpartition("=") for text in of_file):
        if name in args and any(row.role == role and row.has_type(args[name]) for row in TABLE):
            found.setdefault(name, Role(role))
    uses: dict[str, set[Use]] = {}
    for op in func.ops:
        for place, name in enumerate(op.operands):
            uses.setdefault(name, set()).add((op.name, place))
    for row in TABLE:
        for name, arg in args.items():
            taken = row.role is Role.IDS and Role.IDS in found.values()
            if name not in found and not taken and row.fits(arg, uses.get(arg.name, ())):
                found[name] = row.role
    return {name: found[name] for name in args if name in found}


def _stated(args: dict[str, Value], name: str, role: str, text: str) -> Role:
    rows = [row for row in TABLE if row.role == role]
    if not rows:
        raise UsageError(RoleNotStated(text, tuple(Role)), where="--role")
    if name not in args:
        raise InvalidInput(RoleOfNoInput(text, tuple(args)), where=f"--role {text}")
    if not any(row.has_type(args[name]) for row in rows):
        raise InvalidInput(RoleOfNoInput(f"{text}, {args[name].type}", tuple(args)), where=f"--role {text}")
    return Role(role)
