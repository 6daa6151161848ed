"""Measured seconds of ops, kept by what is run rather than by where it stands in a model.

A *segment* is an op together with the epilogues that a runtime fuses into it (``op_time.chain_heads``), for it runs as one. Its
*key* is its text with names left out: operators, attributes, the types of what goes in and comes out, and which operands are
weights. Copies of a block, and ops of other models, that are alike have one key. Types are those of the ops as they stand: of a
member's program the local ones.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.facets import Cost, Time
from ir.module import Func, Module
from ir.ops import UNKNOWN_LOCATION, Op
from ir.printer import print_op
from ir.topology import DeviceType, Topology
from ir.types import TensorType, Type
from passes.model.op_time import body_seconds, chain_heads

ENOUGH = 3
"""Measured segments of a class from which others of the class are scaled."""


@dataclass(frozen=True, slots=True)
class Profile:
    """``seconds[type, key]``: of one execution of a segment on a device of a type."""

    seconds: Mapping[tuple[str, str], float]


@dataclass(slots=True)
class Origins:
    """Seconds of a model's ops on one device type, by where they are from."""

    measured: float = 0.0
    scaled: float = 0.0
    modelled: float = 0.0
    ratios: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        total = self.measured + self.scaled + self.modelled or 1.0
        parts = {"measured": self.measured, "scaled": self.scaled, "modelled": self.modelled}
        return ", ".join(f"{seconds / total:.1%} {name}" for name, seconds in parts.items())


def segments_of(func: Func) -> list[tuple[int, ...]]:
    """The positions of the ops of each segment, in order. An epilogue behind two chains is of the later one."""
    members: dict[int, list[int]] = {}
    heads = chain_heads(func.ops, [value.name for value in func.results])
    for index in range(len(func.ops)):
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


def with_profile(module: Module, profile: Profile) -> tuple[Module, dict[str, Origins]]:
    """The module with the ``Time`` of ops whose segment is in the profile, and where seconds of its entry function are from.

    Of a segment the first op has its measured seconds and the device's overhead, and what is fused into it none. Where the
    profile lacks a segment but has ``ENOUGH`` of its class (``Cost.kind``), its modelled seconds are scaled by the median of
    measured over modelled. Types of the topology that the profile lacks keep modelled seconds."""
    topology = module.first(Topology)
    entry = module.entry
    if topology is None:
        return module, {}
    types = types_of(module, entry)
    segments = segments_of(entry)
    keys = [key_of([entry.ops[i] for i in segment], types) for segment in segments]
    seconds: dict[int, dict[str, float]] = defaultdict(dict)
    origins = {}
    for device_type in topology.types:
        if any(name == device_type.name for name, _ in profile.seconds):
            found = _seconds(entry, device_type, segments, keys, profile)
            origins[device_type.name] = found[1]
            for index, own in found[0].items():
                seconds[index][f"@{device_type.name}"] = own
    others = [type_ for type_ in topology.types if type_.name not in origins]
    outputs = [value.name for value in entry.results]
    for type_ in topology.types:
        modelled = body_seconds(entry.ops, type_, outputs) if others or seconds else []
        for index, told in seconds.items():
            told.setdefault(f"@{type_.name}", modelled[index])
    ops = tuple(
        op.with_facets(Time(tuple(sorted(seconds[index].items())))) if seconds.get(index) and op.facet(Time) is None else op
        for index, op in enumerate(entry.ops)
    )
    return module.replace(entry, replace(entry, ops=ops)), origins


def _seconds(
    entry: Func,
    device_type: DeviceType,
    segments: Sequence[tuple[int, ...]],
    keys: Sequence[str | None],
    profile: Profile,
) -> tuple[dict[int, float], Origins]:
    """Seconds of the ops of segments that are measured or scaled, and their origins."""
    modelled = body_seconds(entry.ops, device_type, [value.name for value in entry.results])
    kinds = [entry.ops[segment[0]].facet(Cost, Cost()).kind for segment in segments]
    told = [math.fsum(modelled[i] for i in segment) for segment in segments]
    stated = [profile.seconds.get((device_type.name, key)) if key is not None else None for key in keys]
    of_class: dict[str, dict[str, float]] = defaultdict(dict)
    for kind, key, model, own in zip(kinds, keys, told, stated, strict=True):
        if own is not None and key is not None and 0 < model < math.inf:
            of_class[kind][key] = (own + device_type.overhead) / model
    ratios = {kind: statistics.median(found.values()) for kind, found in of_class.items() if len(found) >= ENOUGH}
    seconds: dict[int, float] = {}
    origins = Origins(ratios=ratios)
    for segment, kind, model, own in zip(segments, kinds, told, stated, strict=True):
        if any(entry.ops[i].facet(Time) is not None for i in segment) or not model < math.inf:
            continue
        if own is not None:
            seconds.update(dict.fromkeys(segment, 0.0))
            seconds[segment[0]] = own + device_type.overhead
            origins.measured += own + device_type.overhead
        elif kind in ratios:
            seconds.update({i: modelled[i] * ratios[kind] for i in segment})
            origins.scaled += model * ratios[kind]
        else:
            origins.modelled += model
    return seconds, origins


__all__ = ["ENOUGH", "Origins", "Profile", "inputs_of", "key_of", "segments_of", "types_of", "with_profile"]
