"""Op definitions: what an op of a known kind looks like, and what passes may assume about it.

An ``OpDef`` states arity, attributes, regions, traits and a check. The dialects ``comm`` and ``dnnc`` are defined here. Other
dialects come from *providers*: ``register_provider("onnx", lookup)`` is called where the ONNX schemas live, and ``lookup(name,
opsets)`` then answers for ops of that dialect. An op without a definition is opaque: it passes, and nothing is assumed of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ir.attributes import AttrKind
from ir.module import Module
from ir.ops import Op
from ir.ranges import MOST_MEMORY

PURE = "pure"
"""Results depend on operands and attributes only: the op may be dropped, moved and computed again."""
ELEMENTWISE = "elementwise"
"""Each element of a result depends on the elements of the operands at its (broadcast) place."""
RANDOM = "random"
"""Draws random numbers: runs differ."""
OPAQUE = "opaque"
"""Nothing is known beyond the types."""
RESHARD = "comm.reshard"
"""The op that changes the layout of a value."""
COMMUNICATION = "communication"
"""Moves data between devices."""
START = "start"
DONE = "done"
"""Halves of an operation that overlaps with compute: ``start`` gives a handle, ``done`` takes it and gives the result."""

Arity: TypeAlias = tuple[int, int | None]
"""Least and greatest number; None: no upper limit."""


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute of an op: its kind (None: any) and whether it must be there."""

    kind: AttrKind | None
    required: bool = False


@dataclass(frozen=True, slots=True)
class OpDef:
    """What an op called ``name`` looks like. ``attributes`` are those it may have; with ``extensible`` it may have others
    too. ``regions`` are the keys of its regions. ``check`` gives messages about an op that arity and kinds do not catch."""

    name: str
    operands: Arity = (0, None)
    results: Arity = (0, None)
    attributes: tuple[tuple[str, AttrDef], ...] = ()
    regions: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()
    extensible: bool = False
    check: Callable[[Op], Iterable[str]] | None = None
    doc: str = ""

    def faults(self, op: Op) -> list[str]:
        """What is wrong with ``op`` by this definition."""
        found = []
        for what, count, (low, high) in (
            ("operands", len(op.operands), self.operands),
            ("results", len(op.results), self.results),
        ):
            if count < low or (high is not None and count > high):
                found.append(f"{self.name} takes {_range(low, high)} {what}, not {count}")
        known = dict(self.attributes)
        present = set()
        for key, attribute in op.attributes:
            present.add(key)
            definition = known.get(key)
            if definition is None:
                if not self.extensible:
                    found.append(f"{self.name} has no attribute '{key}'; it has: {', '.join(known) or 'none'}")
            elif definition.kind is not None and attribute.kind is not definition.kind:
                found.append(f"attribute '{key}' of {self.name} is of kind {definition.kind.value}, not {attribute.kind.value}")
        found += [f"{self.name} needs attribute '{key}'" for key, a in self.attributes if a.required and key not in present]
        keys = tuple(sorted(key for key, _ in op.regions))
        if keys != tuple(sorted(self.regions)):
            found.append(f"{self.name} has regions {_listed(self.regions)}, not {_listed(keys)}")
        if self.check is not None and not found:
            found += self.check(op)
        return found


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "none"


Provider: TypeAlias = Callable[[str, Mapping[str, int]], OpDef | None]
"""From the full name of an op and the module's opsets (domain to version) to its definition."""

_PROVIDERS: dict[str, Provider] = {}


def register_provider(dialect: str, lookup: Provider) -> None:
    """Makes ``lookup`` answer for the ops of ``dialect``, in place of the one before it."""
    _PROVIDERS[dialect] = lookup


def opdef(name: str, opsets: Mapping[str, int]) -> OpDef | None:
    """The definition of the op called ``name`` under these opsets; None when nothing is known of it."""
    found = OPDEFS.get(name)
    if found is None:
        provider = _PROVIDERS.get(name.partition(".")[0])
        found = provider(name, opsets) if provider else None
    return found


def module_opsets(module: Module) -> dict[str, int]:
    """Opset versions that the module's attributes state, by domain: ``opset.onnx`` is the default domain's."""
    return {
        key.removeprefix("opset."): attribute.value
        for key, attribute in module.attributes
        if key.startswith("opset.") and attribute.kind is AttrKind.INT
    }


def _one_group(op: Op) -> Iterable[str]:
    by_axis = op.attribute("mesh") is not None and op.attribute("axis") is not None
    by_devices = op.attribute("devices") is not None
    if by_axis == by_devices or (op.attribute("mesh") is None) != (op.attribute("axis") is None):
        yield f"{op.name} needs its group: either mesh and axis, or devices"
    reduction = op.get("reduction", "sum")
    if reduction not in ("sum", "max"):
        yield f"{op.name} reduces by sum or max, not '{reduction}'"
    yield from _known_compression(op)


def _known_compression(op: Op) -> Iterable[str]:
    channel = op.get("channel", 0)
    if channel < 0:
        yield f"a channel is at least 0, not {channel}"
    for key in ("dim", "split_dim", "concat_dim", "root", "peer"):
        if op.get(key, 0) < 0:
            yield f"attribute '{key}' of {op.name} is at least 0, not {op.get(key)}"
    if op.get("compression", "none") not in COMPRESSIONS:
        yield f"unknown compression '{op.get('compression')}'; expected one of {', '.join(COMPRESSIONS)}"


def _known_bytes(op: Op) -> Iterable[str]:
    for key in ("size", "weight"):
        if isinstance(size := op.get(key, 0), int) and not 0 <= size < MOST_MEMORY:
            yield f"attribute '{key}' of {op.name} is a number of bytes, from 0 to {MOST_MEMORY - 1}, not {size}"
    if not isinstance(op.get("id", 0), int | str):
        yield f"attribute 'id' of {op.name} is a number or a text"


COMPRESSIONS = ("none", "f16", "bf16", "i8")
"""Element types that a transfer may use on the wire; ``none``: as they are."""

_CHANNEL = (("channel", AttrDef(AttrKind.INT, True)), ("compression", AttrDef(AttrKind.STRING)))
_PEER = (*_CHANNEL, ("peer", AttrDef(AttrKind.INT, True)))
_GROUP = (
    *_CHANNEL,
    ("mesh", AttrDef(AttrKind.SYMBOL)),
    ("axis", AttrDef(AttrKind.STRING)),
    ("devices", AttrDef(AttrKind.STRINGS)),
)
_DIM = ("dim", AttrDef(AttrKind.INT, True))
_REDUCTION = ("reduction", AttrDef(AttrKind.STRING))
_MOVES = frozenset({COMMUNICATION})

_COPY = (
    *((key, AttrDef(AttrKind.STRINGS)) for key in ("names", "paths", "nodes", "rename", "scopes")),
    ("groups", AttrDef(AttrKind.INTS)),
)

_COLLECTIVES = (
    ("all_reduce", (*_GROUP, _REDUCTION), "Every device of the group gets the reduction of all their tensors."),
    ("all_gather", (*_GROUP, _DIM), "Every device gets the tensors of all, joined along `dim`."),
    ("reduce_scatter", (*_GROUP, _DIM, _REDUCTION), "Each device gets its part along `dim` of the reduction."),
    (
        "all_to_all",
        (*_GROUP, ("split_dim", AttrDef(AttrKind.INT, True)), ("concat_dim", AttrDef(AttrKind.INT, True))),
        "Each device splits its tensor along `split_dim`, and joins the parts it gets along `concat_dim`.",
    ),
    (
        "broadcast",
        (*_GROUP, ("root", AttrDef(AttrKind.INT, True))),
        "Every device gets the tensor of device `root` of the group.",
    ),
)


def _definitions() -> Iterable[OpDef]:
    blocking = [
        OpDef("comm.send", (1, 1), (0, 0), _PEER, (), _MOVES, check=_known_compression, doc="Sends a value to stage `peer`."),
        OpDef(
            "comm.recv", (0, 0), (1, 1), _PEER, (), _MOVES, check=_known_compression, doc="Receives a value from stage `peer`."
        ),
        *(
            OpDef(f"comm.{name}", (1, 1), (1, 1), attributes, (), _MOVES, check=_one_group, doc=doc)
            for name, attributes, doc in _COLLECTIVES
        ),
    ]
    for definition in blocking:
        yield definition
        yield OpDef(
            f"{definition.name}_start",
            definition.operands,
            (1, 1),
            definition.attributes,
            (),
            _MOVES | {START},
            check=definition.check,
            doc=f"Begins a `{definition.name}`; the result is a handle that one `{definition.name}_done` takes.",
        )
        yield OpDef(
            f"{definition.name}_done",
            (1, 1),
            definition.results,
            (),
            (),
            _MOVES | {DONE},
            doc=f"Waits for the `{definition.name}_start` whose handle it takes.",
        )
    yield OpDef(
        RESHARD,
        (1, 1),
        (1, 1),
        (("once", AttrDef(AttrKind.INT)),),
        traits=frozenset({PURE}),
        doc="The operand in the layout of the result, on the members of the op's stage. With `once`, on a resource: how "
        "that stage keeps it; it is read so, and nothing is moved.",
    )
    yield OpDef(
        "comm.slice",
        (1, 1),
        (1, 1),
        (("mesh", AttrDef(AttrKind.SYMBOL, True)), ("axis", AttrDef(AttrKind.STRING, True)), _DIM),
        traits=frozenset({PURE}),
        check=_known_compression,
        doc="This device's part along `dim` of a tensor that it holds whole; nothing is moved.",
    )
    yield OpDef(
        "comm.term",
        (1, 1),
        (1, 1),
        (("mesh", AttrDef(AttrKind.SYMBOL, True)), ("axis", AttrDef(AttrKind.STRING, True)), _REDUCTION),
        traits=frozenset({PURE}),
        check=_one_group,
        doc="This device's term of a tensor that it holds whole; nothing is moved. Of a sum: the tensor on the first device of "
        "the axis, zero on the others; of a maximum: the tensor.",
    )
    yield OpDef(
        "dnnc.call",
        attributes=(("callee", AttrDef(AttrKind.SYMBOL, True)), *_COPY),
        doc="Calls function `callee`: operands are its arguments, results its results, in order. `names`, `paths`, `nodes` and "
        "`scopes` are what the ops of this copy are called and where they came from, where that differs from the body, and "
        "`rename` is a renaming of the body's own in their place; "
        "`groups` are the groups of its ops (INV20).",
    )
    yield OpDef(
        "dnnc.take",
        attributes=(("ops", AttrDef(AttrKind.INTS)),),
        check=lambda op: () if len(op.get("ops", (0, 1))) == 2 else ("attribute 'ops' is the first op and how many",),
        doc="The ops of the expanded entry function that belong to this stage; `ops = [first, count]`: so many of them. "
        "Operands are the values of the stage that they read, results those that the rest of the stage reads.",
    )
    yield OpDef(
        "dnnc.work",
        attributes=(("id", AttrDef(None)), ("size", AttrDef(AttrKind.INT)), ("weight", AttrDef(AttrKind.INT))),
        traits=frozenset({OPAQUE, PURE}),
        extensible=True,
        check=_known_bytes,
        doc="An opaque unit of a profiled workload: what is known of it stands in its facets. `id` is what the workload calls "
        "it (a number or a text); `size` the bytes that a device needs to hold it, `weight` bytes of parameters besides.",
    )


OPDEFS: dict[str, OpDef] = {definition.name: definition for definition in _definitions()}
"""The ops of the dialects ``comm`` and ``dnnc``, by name."""


__all__ = [
    "COMMUNICATION",
    "COMPRESSIONS",
    "DONE",
    "ELEMENTWISE",
    "OPAQUE",
    "OPDEFS",
    "PURE",
    "RANDOM",
    "RESHARD",
    "START",
    "AttrDef",
    "OpDef",
    "Provider",
    "module_opsets",
    "opdef",
    "register_provider",
]
