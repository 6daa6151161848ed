"""Op definitions: the form of each op, and its properties that passes, importers, runtimes and reports rely on.

An ``OpDef`` states arity, attributes, regions, traits, the layout rule and a check; for an op of ``comm`` also how the op
changes placements. All other code asks the definition instead of keeping a list of op names.

A *dialect* is a set of definitions, and the caller passes the dialects by which a module is verified. ``CORE`` are ``comm`` and
``dnnc``, defined here; ``grad`` is in ``ir.ops.grads``; the dialect of ONNX's operators needs their schemas, and ``dnnc.onnx``
makes it (traits of ONNX's operators need no schema: ``ir.ops.operators``). A dialect is complete: an op that it lacks is a
fault. An op that its dialect declares opaque, or whose dialect was not passed, is accepted, and nothing is assumed about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ir.core.attributes import Attribute, AttrKind
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.ranges import MOST_MEMORY
from ir.core.types import REDUCTIONS, Partial, Placement, Replicate, Shard, Type

PURE = "pure"
"""Results depend on operands and attributes only: the op may be dropped, moved and computed again."""
OPAQUE = "opaque"
"""Nothing is known beyond the types."""
RESHARD = "comm.reshard"
"""The op that changes the layout of a value."""
SEGMENT = "dnnc.segment"
"""The op of a build's programs that runs an ONNX model."""
COMMUNICATION = "communication"
"""Moves data between devices."""
EFFECT = "effect"
"""Changes what outlives the run: the op is kept though nothing reads it, and is neither merged nor repeated."""

Arity: TypeAlias = tuple[int, int | None]
"""Least and greatest number; None: no upper limit."""


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute of an op: its kind (None: any) and whether it must be there."""

    kind: AttrKind | None
    required: bool = False


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """How an op of ``comm`` changes the placement along one axis of a mesh: from class ``before`` to class ``after``.
    Placements on other axes stay. With n members along the axis, a ring takes ``rounds`` * (n - 1) steps; ``rounds`` is 0 where
    nothing moves. ``join``: the op's attribute that says the dimension of a ``before`` that is ``Shard``; ``split``: likewise
    of ``after``; empty where that is no ``Shard``."""

    before: type[Placement]
    after: type[Placement]
    rounds: int
    join: str = ""
    split: str = ""

    @property
    def moves(self) -> bool:
        """Whether members exchange anything."""
        return self.rounds > 0

    @property
    def reduces(self) -> bool:
        """Whether terms are reduced to their sum or maximum."""
        return self.moves and self.before is Partial

    @property
    def cuts_anew(self) -> bool:
        """Whether each ring step sends 1/n of the tensor, because neither placement cuts it. Otherwise a step sends what the
        shard of the sender and the shard of the receiver have in common."""
        return self.moves and not self.join and not self.split

    def placements(self, op: Op) -> tuple[Placement, Placement]:
        """The placements along the axis of ``op``, before and after it."""
        return _placement(self.before, op, self.join), _placement(self.after, op, self.split)

    def attributes(self, before: Placement, after: Placement) -> dict[str, Attribute]:
        """The attributes of an op that changes ``before`` into ``after``, except mesh, axis and channel."""
        fields = {}
        for placement, key in ((before, self.join), (after, self.split)):
            if isinstance(placement, Shard):
                fields[key] = Attribute(AttrKind.INT, placement.dim)
            elif isinstance(placement, Partial):
                fields["reduction"] = Attribute(AttrKind.STRING, placement.reduction)
        return fields

    @property
    def spreads(self) -> bool:
        """Whether each member sends a different part to every other member (all-to-all) instead of forwarding around a ring."""
        return bool(self.join and self.split)


def _placement(kind: type[Placement], op: Op, key: str) -> Placement:
    if kind is Shard:
        return Shard(op.get(key, 0))
    return Partial(op.get("reduction", "sum")) if kind is Partial else Replicate()


@dataclass(frozen=True, slots=True)
class OpDef:
    """What an op called ``name`` looks like, and what is known about it."""

    name: str
    operands: Arity = (0, None)
    results: Arity = (0, None)
    attributes: tuple[tuple[str, AttrDef], ...] = ()
    regions: tuple[str, ...] = ()
    """The keys of its regions."""
    traits: frozenset[str] = frozenset()
    """Some of ``PURE``, ``OPAQUE``, ``COMMUNICATION``, ``EFFECT`` and, of ONNX's operators, those of ``ir.ops.operators``."""
    extensible: bool = False
    """Whether it may have other attributes too."""
    check: Callable[[Op], Iterable[str]] | None = None
    """Further messages about an op that has the right arity, attributes and regions."""
    typed: Callable[[Op, Sequence[Type | None]], Iterable[str]] | None = None
    """Messages about the types of its operands (None: not known) and results."""
    doc: str = ""
    step: ReshardStep | None = None
    """Of an op of ``comm``: what it does to placements."""
    layout: Callable[[Any], None] | None = None
    """Of other ops: writes the layout rule (``ir.layout_rules``); None where the op has no rule."""
    missing: str = ""
    """Of an op that the dialect does not have: the message that says so."""

    def faults(self, op: Op) -> list[str]:
        """A message for each way in which ``op`` contradicts this definition, types (``typed``) aside."""
        if self.missing:
            return [self.missing]
        messages = []
        for what, count, (low, high) in (
            ("operands", len(op.operands), self.operands),
            ("results", len(op.results), self.results),
        ):
            if count < low or (high is not None and count > high):
                messages.append(f"{self.name} takes {_range(low, high)} {what}, not {count}")
        known = dict(self.attributes)
        present = set()
        for key, attribute in op.attributes:
            present.add(key)
            definition = known.get(key)
            if definition is None:
                if not self.extensible:
                    messages.append(f"{self.name} has no attribute '{key}'; it has: {', '.join(known) or 'none'}")
            elif definition.kind is not None and attribute.kind is not definition.kind:
                messages.append(
                    f"attribute '{key}' of {self.name} is of kind {definition.kind.value}, not {attribute.kind.value}"
                )
        messages += [f"{self.name} needs attribute '{key}'" for key, a in self.attributes if a.required and key not in present]
        keys = tuple(sorted(key for key, _ in op.regions))
        if keys != tuple(sorted(self.regions)):
            messages.append(f"{self.name} has regions {_listed(self.regions)}, not {_listed(keys)}")
        if self.check is not None and not messages:
            messages += self.check(op)
        return messages


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "none"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The ops whose names begin with ``name`` and a dot. ``lookup`` takes an op's full name and the module's opsets
    (``module_opsets``) and returns its definition, None where the op is opaque. Where there is no such op, the definition
    states that as ``missing``."""

    name: str
    lookup: Callable[[str, Mapping[str, int]], OpDef | None]


Dialects: TypeAlias = tuple[Dialect, ...]


def opdef(name: str, opsets: Mapping[str, int], dialects: Dialects) -> OpDef | None:
    """The definition of the op called ``name`` under these opsets; None when it is opaque or of none of these dialects."""
    wanted = name.partition(".")[0]
    for dialect in dialects:
        if dialect.name == wanted:
            return dialect.lookup(name, opsets)
    return None


def module_opsets(module: Module) -> dict[str, int]:
    """The opset version of each domain that the module states: attribute ``opset.D`` that of domain D, where ``onnx`` stands
    for ONNX's default domain."""
    return {
        key.removeprefix("opset."): attribute.value
        for key, attribute in module.attributes
        if key.startswith("opset.") and attribute.kind is AttrKind.INT
    }


# -- comm --------------------------------------------------------------------------------------------------------------


def _sensible(op: Op) -> Iterable[str]:
    """The check of the ops of ``comm``: numbers and words in range."""
    if op.get("channel", 0) < 0:
        yield f"a channel is at least 0, not {op.get('channel')}"
    for key in ("dim", "split_dim", "concat_dim", "peer", "through"):
        if op.get(key, 0) < 0:
            yield f"attribute '{key}' of {op.name} is at least 0, not {op.get(key)}"
    if op.get("reduction", "sum") not in REDUCTIONS:
        yield f"{op.name} reduces by {' or '.join(REDUCTIONS)}, not '{op.get('reduction')}'"


_INT = AttrDef(AttrKind.INT, True)
_AXIS = (("mesh", AttrDef(AttrKind.SYMBOL, True)), ("axis", AttrDef(AttrKind.STRING, True)))
_OF = (("of", AttrDef(AttrKind.TYPE)),)
_PEER = (("channel", _INT), ("peer", _INT), *_OF)

_STEPS = {
    "all_reduce": (
        ReshardStep(Partial, Replicate, 2),
        "Every member gets the reduction of all their tensors. With `through`, the member at that place of the axis makes it: "
        "it gets the tensors of the others and sends them the result.",
    ),
    "all_gather": (ReshardStep(Shard, Replicate, 1, join="dim"), "Every member gets the tensors of all, joined along `dim`."),
    "reduce_scatter": (ReshardStep(Partial, Shard, 1, split="dim"), "Each member gets its part along `dim` of the reduction."),
    "all_to_all": (
        ReshardStep(Shard, Shard, 1, join="concat_dim", split="split_dim"),
        "Each member splits its tensor along `split_dim`, and joins the parts it gets along `concat_dim`.",
    ),
    "slice": (
        ReshardStep(Replicate, Shard, 0, split="dim"),
        "This member's part along `dim` of a tensor that it holds whole; nothing is moved.",
    ),
    "term": (
        ReshardStep(Replicate, Partial, 0),
        "This member's term of a tensor that it holds whole; nothing is moved. Of a sum: the tensor on the first member of the "
        "axis, zero on the others; of a maximum: the tensor.",
    ),
}


def _step(name: str, step: ReshardStep, doc: str) -> OpDef:
    attributes = (*_AXIS, *((key, _INT) for key in (step.join, step.split) if key))
    if step.moves:
        attributes = (("channel", _INT), *attributes)
    if Partial in (step.before, step.after):
        attributes = (*attributes, ("reduction", AttrDef(AttrKind.STRING)))
    if step.cuts_anew:
        attributes = (*attributes, ("bucket", AttrDef(AttrKind.INT)), ("through", AttrDef(AttrKind.INT)))
    traits = frozenset({COMMUNICATION if step.moves else PURE})
    return OpDef(f"comm.{name}", (1, 1), (1, 1), attributes, traits=traits, check=_sensible, doc=doc, step=step)


_MOVES = frozenset({COMMUNICATION})
_COMM = (
    OpDef("comm.send", (1, 1), (0, 0), _PEER, traits=_MOVES, check=_sensible, doc="Sends a value to stage `peer`."),
    OpDef("comm.recv", (0, 0), (1, 1), _PEER, traits=_MOVES, check=_sensible, doc="Receives a value from stage `peer`."),
    OpDef(
        RESHARD,
        (1, 1),
        (1, 1),
        (("once", AttrDef(AttrKind.INT)),),
        traits=frozenset({PURE}),
        doc="The operand in the layout of the result, on the members of the op's stage. With `once`, on a resource: how "
        "that stage keeps it; it is read so, and nothing is moved.",
    ),
    *(_step(name, step, doc) for name, (step, doc) in _STEPS.items()),
    OpDef(
        "comm.part",
        (1, 1),
        (1, 1),
        (("of", AttrDef(AttrKind.TYPE, True)),),
        traits=frozenset({PURE}),
        doc="In a program: this member's part of a resource, which lies as the layout of the type `of` says.",
    ),
    OpDef(
        "comm.member",
        (0, 0),
        (1, 1),
        (("values", AttrDef(AttrKind.TENSOR, True)),),
        traits=frozenset({PURE}),
        doc="In a program: a constant that differs by member. `values` has one entry along its first dimension for each device "
        "of the program, in their order.",
    ),
)

# -- dnnc --------------------------------------------------------------------------------------------------------------


def _known_bytes(op: Op) -> Iterable[str]:
    for key in ("size", "weight"):
        if isinstance(size := op.get(key, 0), int) and not 0 <= size < MOST_MEMORY:
            yield f"attribute '{key}' of {op.name} is a number of bytes, from 0 to {MOST_MEMORY - 1}, not {size}"
    if not isinstance(op.get("id", 0), int | str):
        yield f"attribute 'id' of {op.name} is a number or a text"


_COPY = (
    *((key, AttrDef(AttrKind.STRINGS)) for key in ("names", "paths", "nodes", "rename", "scopes")),
    ("groups", AttrDef(AttrKind.INTS)),
)
_DNNC = (
    OpDef(
        "dnnc.call",
        attributes=(("callee", AttrDef(AttrKind.SYMBOL, True)), *_COPY),
        doc="Calls function `callee`: operands are its arguments, results its results, in order. `names`, `paths`, `nodes` and "
        "`scopes` are what the ops of this copy are called and where they came from, where that differs from the body, and "
        "`rename` is a renaming of the body's own in their place (INV20). `groups`, of earlier versions, says nothing.",
    ),
    OpDef(
        "dnnc.take",
        attributes=(("ops", AttrDef(AttrKind.INTS)),),
        check=lambda op: () if len(op.get("ops", (0, 1))) == 2 else ("attribute 'ops' is the first op and how many",),
        doc="The ops of the expanded entry function that belong to this stage; `ops = [first, count]`: so many of them. "
        "Operands are the values of the stage that they read, results those that the rest of the stage reads.",
    ),
    OpDef(
        SEGMENT,
        attributes=(("level", AttrDef(AttrKind.INT, True)),),
        check=lambda op: () if op.get("level") >= 0 else ("attribute 'level' is at least 0",),
        doc="In a program of a build: an ONNX model in `stages/` of the build, `stageK.onnx` of stage K, or of member I of its "
        "mesh `stageK.memberI.segmentL.onnx`, where L is `level`. Operands are the model's inputs, results what it makes. It "
        "runs after the collectives of lower levels; the level of a collective is the number of collectives on the longest "
        "path to its operand.",
    ),
    OpDef(
        "dnnc.work",
        attributes=(("id", AttrDef(None)), ("size", AttrDef(AttrKind.INT)), ("weight", AttrDef(AttrKind.INT))),
        traits=frozenset({OPAQUE, PURE}),
        extensible=True,
        check=_known_bytes,
        doc="An opaque unit of a profiled workload: what is known of it stands in its facets. `id` is what the workload calls "
        "it (a number or a text); `size` the bytes that a device needs to hold it, `weight` bytes of parameters besides.",
    ),
)

# ----------------------------------------------------------------------------------------------------------------------

OPDEFS: dict[str, OpDef] = {definition.name: definition for definition in (*_COMM, *_DNNC)}
"""The ops of the dialects ``comm`` and ``dnnc``, by name."""

RESHARD_STEPS: dict[str, ReshardStep] = {name: step for name, (step, _) in _STEPS.items()}
"""The ops of ``comm`` that change the placement on one axis, by name."""

COLLECTIVES: dict[str, ReshardStep] = {name: step for name, step in RESHARD_STEPS.items() if step.moves}
"""Those in which members exchange data."""


def is_collective(op: Op) -> bool:
    """Whether members exchange data in this op."""
    definition = OPDEFS.get(op.name)
    return definition is not None and definition.step is not None and definition.step.moves


def reshard_step(before: Placement, after: Placement) -> str | None:
    """Name of the op of ``comm`` that changes ``before`` into ``after`` along an axis; None where no op does."""
    return _BETWEEN.get((type(before), type(after)))


_BETWEEN = {(step.before, step.after): name for name, step in RESHARD_STEPS.items()}


def _core(name: str, opsets: Mapping[str, int]) -> OpDef | None:
    definition = OPDEFS.get(name)
    if definition is None:
        dialect = name.partition(".")[0]
        has = ", ".join(sorted(other for other in OPDEFS if other.partition(".")[0] == dialect))
        return OpDef(name, missing=f"the dialect {dialect} has no op {name}; it has: {has}")
    return definition


CORE: Dialects = (Dialect("comm", _core), Dialect("dnnc", _core))
"""The dialects of every module."""
