"""Measured seconds of ops, kept by what is run rather than by where it stands in a model.

A *segment* is an op together with the epilogues that a runtime fuses into it (``op_time.chain_heads``), for it runs as one. Its
*key* is its text with names left out: operators, attributes, the types of what goes in and comes out, and which operands are
weights. Copies of a block, and ops of other models, that are alike have one key. Types are those of the ops as they stand: of a
member's program the local ones.

In training nothing is fused: each op has two keys, one of its forward and one of its backward pass (``passes_of``), which say
which operands need a gradient. The backward pass is one number, gradients of inputs and of weights together; where a schedule
runs these apart, they are divided as their flops are (``timeline.workload.weight_seconds``).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.core.facets import BackwardTime, Cost, Time
from ir.core.module import Func, Module
from ir.core.ops import UNKNOWN_LOCATION, Op
from ir.core.topology import DeviceType, Topology
from ir.core.types import TensorType, Type
from ir.text.printer import print_op
from passes.costs.learning import learning
from passes.costs.op_time import body_seconds, chain_heads, passes_seconds
from passes.graph.graph import reads

ENOUGH = 3
"""Measured segments of a class from which others of the class are scaled."""
_FORWARD, _BACKWARD = "; torch forward", "; torch backward"


@dataclass(frozen=True, slots=True)
class Profile:
    """``seconds[type, key]``: of one execution of a segment on a device of a type; ``training``: a training step is planned, so
    the keys that count are those of forward and backward passes."""

    seconds: Mapping[tuple[str, str], float]
    training: bool = False

    @property
    def fits(self) -> bool:
        """Whether any key is of what is planned."""
        return not self.seconds or any(is_of_training(key) == self.training for _, key in self.seconds)


@dataclass(slots=True)
class Origins:
    """Seconds of a model's ops on one device type, by where they are from."""

    measured: float = 0.0
    scaled: float = 0.0
    modelled: float = 0.0

    def __str__(self) -> str:
        total = self.measured + self.scaled + self.modelled or 1.0
        parts = {"measured": self.measured, "scaled": self.scaled, "modelled": self.modelled}
        return ", ".join(f"{seconds / total:.1%} {name}" for name, seconds in parts.items())


def segments_of(func: Func) -> list[tuple[int, ...]]:
    """The positions of the ops of each segment, in order. An epilogue behind two chains is of the later one.

    A view (``Cost.kind``) is of no segment: it moves nothing in a model, but alone a runtime copies what it reads into the
    output."""
    members: dict[int, list[int]] = {}
    heads = chain_heads(func.ops, [value.name for value in func.results])
    for index, op in enumerate(func.ops):
        if op.facet(Cost, Cost()).kind != "view":
            members.setdefault(max(heads.get(index, (index,))), []).append(index)
    return [tuple(found) for found in members.values()]


def types_of(module: Module, func: Func) -> dict[str, Type]:
    """The type of every value and resource that ``func`` may read."""
    types: dict[str, Type] = {name: resource.type for name, resource in module.resources.items()}
    types.update((arg.name, arg.type) for arg in func.args)
    types.update((value.name, value.type) for op in func.ops for value in op.results)
    return types


def inputs_of(ops: Sequence[Op]) -> list[str]:
    """What a segment reads that it does not make, in order."""
    made = {value.name for op in ops for value in op.results}
    return list(dict.fromkeys(name for op in ops for name in op.operands if name and name not in made))


def key_of(ops: Sequence[Op], types: Mapping[str, Type]) -> str | None:
    """The key of a segment; None for one that is not measured: it has regions, or types without a size."""
    given = inputs_of(ops)
    names = {name: f"{name[0]}i{number}" for number, name in enumerate(given)}
    texts = []
    for op in ops:
        for value in op.results:
            names[value.name] = f"%v{len(names)}" if value.name else ""
        sized = all(isinstance(t, TensorType) and t.elements is not None for t in (*(v.type for v in op.results if v.name),))
        if op.regions or op.dialect != "onnx" or not sized:
            return None
        operands = tuple(names.get(name, "") for name in op.operands)
        results = tuple(replace(value, name=names.get(value.name, "")) for value in op.results)
        plain = replace(op, operands=operands, results=results, facets=(), location=UNKNOWN_LOCATION)
        texts.append(" ".join(print_op(plain).removesuffix(" loc(?)").split()))
    for name in given:
        type_ = types.get(name)
        if not isinstance(type_, TensorType) or type_.elements is None:
            return None
        texts.append(f"{names[name]} : {type_}")
    return "; ".join(texts)


def is_of_training(key: str) -> bool:
    """Whether a key is of a pass of a training step."""
    return _FORWARD in key or _BACKWARD in key


@dataclass(frozen=True, slots=True)
class OpPasses:
    """An op of a training step. ``learned``: which of its operands need a gradient; ``readers``: how often each of its results
    is read. ``forward``, ``backward``: the keys of its passes; None for one that is not measured, or not there."""

    index: int
    op: Op
    learned: tuple[bool, ...]
    readers: tuple[int, ...]
    forward: str | None
    backward: str | None


def passes_of(module: Module) -> Iterator[OpPasses]:
    """The ops of the entry function, in order."""
    entry, types, found = module.entry, types_of(module, module.entry), learning(module)
    count = Counter([*(name for op in entry.ops for name in reads(op)), *(value.name for value in entry.results)])
    for index, op in enumerate(entry.ops):
        learned = tuple(name in found.values or name in found.state for name in op.operands)
        readers = tuple(count[value.name] if value.name else 0 for value in op.results)
        key = key_of([op], types)
        if key is not None and any(learned):
            more = f", read {' '.join(map(str, readers))}" if max(readers, default=1) > 1 else ""
            told = f", gradients of {' '.join(str(i) for i, learns in enumerate(learned) if learns)}{more}"
            yield OpPasses(index, op, learned, readers, f"{key}{_FORWARD}{told}", f"{key}{_BACKWARD}{told}")
        else:
            yield OpPasses(index, op, learned, readers, f"{key}{_FORWARD}" if key is not None else None, None)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is measured as one: a segment, or the forward or ``backward`` pass of an op."""

    positions: tuple[int, ...]
    key: str | None
    backward: bool = False


Both = tuple[Sequence[float], Sequence[float]]
"""Modelled seconds of each op of a body, forward and backward."""


def with_profile(module: Module, profile: Profile) -> tuple[Module, dict[str, Origins]]:
    """The module with the ``Time``, in training also the ``BackwardTime``, of ops whose segment is in the profile, and where
    seconds of its entry function are from.

    Of a segment the first op has its measured seconds and the device's overhead, and what is fused into it none; the seconds of
    a pass of a training step hold the overhead. Where the profile lacks a segment but has ``ENOUGH`` of its class
    (``Cost.kind``), its modelled seconds are scaled by the median of measured over modelled. Types of the topology that the
    profile lacks keep modelled seconds."""
    topology = module.first(Topology)
    entry = module.entry
    if topology is None:
        return module, {}
    parts = _passes(module) if profile.training else _segments(module)
    modelled = {type_.name: _modelled(entry, type_, training=profile.training) for type_ in topology.types}
    told: dict[tuple[int, bool], dict[str, float]] = defaultdict(dict)
    origins = {}
    for type_ in topology.types:
        if any(name == type_.name for name, _ in profile.seconds):
            seconds, origins[type_.name] = _seconds(entry, type_, parts, modelled[type_.name], profile)
            for place, own in seconds.items():
                told[place][f"@{type_.name}"] = own
    ops = list(entry.ops)
    for index, op in enumerate(ops):
        if op.facet(Time) is None and ((index, False) in told or (index, True) in told):
            ops[index] = op.with_facets(*_facets(index, told, modelled))
    return module.replace(entry, replace(entry, ops=tuple(ops))), origins


def _facets(
    index: int, told: Mapping[tuple[int, bool], Mapping[str, float]], modelled: Mapping[str, Both]
) -> Iterator[Time | BackwardTime]:
    """The seconds of an op on every type: those that are told, else the modelled ones; none of a backward pass that takes
    none."""
    for backward, kind in ((False, Time), (True, BackwardTime)):
        own = {f"@{name}": both[backward][index] for name, both in modelled.items()} | dict(told.get((index, backward), {}))
        if not backward or any(own.values()):
            yield kind(tuple(sorted(own.items())))


def _segments(module: Module) -> list[_Part]:
    entry, types = module.entry, types_of(module, module.entry)
    return [_Part(found, key_of([entry.ops[i] for i in found], types)) for found in segments_of(entry)]


def _passes(module: Module) -> list[_Part]:
    found = []
    for one in passes_of(module):
        found.append(_Part((one.index,), one.forward))
        if any(one.learned):
            found.append(_Part((one.index,), one.backward, backward=True))
    return found


def _modelled(entry: Func, device_type: DeviceType, *, training: bool) -> Both:
    if not training:
        return body_seconds(entry.ops, device_type, [value.name for value in entry.results]), [0.0] * len(entry.ops)
    costs = [op.facet(Cost, Cost()) for op in entry.ops]
    both = [
        passes_seconds(op, device_type, cost.input_grad + cost.weight_grad) for op, cost in zip(entry.ops, costs, strict=True)
    ]
    return [forward for forward, _ in both], [backward for _, backward in both]


def _seconds(
    entry: Func, device_type: DeviceType, parts: Sequence[_Part], modelled: Both, profile: Profile
) -> tuple[dict[tuple[int, bool], float], Origins]:
    """Seconds of the ops of parts that are measured or scaled, by position and whether they are of the backward pass, and their
    origins."""
    overhead = 0.0 if profile.training else device_type.overhead
    kinds = [(entry.ops[part.positions[0]].facet(Cost, Cost()).kind, part.backward) for part in parts]
    sums = [math.fsum(modelled[part.backward][i] for i in part.positions) for part in parts]
    stated = [profile.seconds.get((device_type.name, part.key)) if part.key is not None else None for part in parts]
    of_class: dict[tuple[str, bool], dict[str, float]] = defaultdict(dict)
    for kind, part, model, own in zip(kinds, parts, sums, stated, strict=True):
        if own is not None and part.key is not None and 0 < model < math.inf:
            of_class[kind][part.key] = (own + overhead) / model
    ratios = {kind: statistics.median(found.values()) for kind, found in of_class.items() if len(found) >= ENOUGH}
    seconds: dict[tuple[int, bool], float] = {}
    origins = Origins()
    for part, kind, model, own in zip(parts, kinds, sums, stated, strict=True):
        if any(entry.ops[i].facet(Time) is not None for i in part.positions) or not model < math.inf:
            continue
        if own is not None:
            seconds.update(((i, part.backward), 0.0) for i in part.positions)
            seconds[part.positions[0], part.backward] = own + overhead
            origins.measured += own + overhead
        elif kind in ratios:
            seconds.update(((i, part.backward), modelled[part.backward][i] * ratios[kind]) for i in part.positions)
            origins.scaled += model * ratios[kind]
        else:
            origins.modelled += model
    return seconds, origins
