"""``dnnc profile``: measures the seconds of a model's segments on this machine, and keeps them in a file.

Each distinct segment (``passes.costs.profiled``) runs alone as a small ONNX model, with the options of ``dnnc run``, on all CPU
devices of a type at once, each on its own cores, as in a pipeline. Its seconds are the median of what onnxruntime's profiler
reports for its kernels. Before each run of a segment with large weights the caches are filled with other data, because in a
whole model these come from memory; not of others, whose inputs were just computed, and whose code would be cold too. The
largest segments are measured first.

For a training step, the forward and the backward pass of each distinct op run alone, as functions of the kernels that ``dnnc
train`` calls. Their seconds are those of the whole function, because ``dnnc train`` pays for starting each kernel too.

The file is JSON: ``{"schema": "dnnc.profile/1", "machine": {"processor", "onnxruntime"}, "segments": [{"device_type", "key",
"seconds", "spread", "runs"}]}``, in the order of type and key; ``machine`` has ``torch`` where passes of training are in it.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dnnc.engines.onnxruntime.write.labelled import labelled_model
from dnnc.engines.torch.statements.call import DTYPES
from dnnc.machines.detect import split_cores
from dnnc.machines.facts import Facts, core_caches, read_facts
from dnnc.machines.faults import NoCpuDevice, OtherMachine, ProfiledTwice, TypeNotOfTorch, UnknownProfileKey, WrongProfile
from dnnc.machines.probes import NotRun, Probes, Sample, probes
from dnnc.onnx.importer.bodies import OnnxBodies
from dnnc.onnx.ort import load_onnxruntime
from dnnc.onnx.weights import WeightSource
from ir.core.diagnostics import Fault, InvalidInput, UsageError
from ir.core.facets import Cost
from ir.core.module import Declared, Func, Module, Random, Resource, Splat
from ir.core.ops import Op, Value
from ir.core.topology import DeviceType, Topology
from ir.core.types import TensorType, Type, type_bytes
from ir.system.files import read_input_text
from ir.system.host import available_memory, device_cores
from ir.system.scratch import scratch_folder
from ir.text.json_text import parse_json
from passes.costs.op_time import body_seconds, passes_seconds
from passes.costs.profiled import Profile, inputs_of, key_of, passes_of, segments_of, types_of
from passes.differentiate import Alone

SCHEMA = "dnnc.profile/1"
ROUNDS, WARM = 11, 2
UNTOLD = 32 << 20
"""Bytes of the largest cache where the system tells of none."""
COLD = 1 << 18
"""From this many bytes of weights on, a segment is measured with cold caches: to read these from memory takes longer than the
20 to 50 us that cold code adds to any op."""
LARGEST = 1 << 30
"""Most bytes of weights and values of a segment that is measured."""
LONGEST = 64 << 20
"""Most bytes of a profile file."""
_SMALL = 1024
"""A constant of up to this many elements keeps its data: it may be a shape, or indices."""
_DIGITS = 4
Progress = Callable[[str, float | None], None]


def evicting(probes: int, root: Path = Path("/"), core: int | None = None) -> int:
    """How many bytes each of so many ``probes`` writes before a run to evict the caches: twice the largest cache that a core
    reaches, with others or alone; all probes together at most half of the memory that is available. ``root`` replaces ``/``,
    and ``core`` the first core that this process may use, in tests."""
    size = 2 * max(core_caches(root, core).values(), default=UNTOLD)
    return min(size, available_memory(root) // (2 * probes))


@dataclass(frozen=True, slots=True)
class Entry:
    """The median of ``runs`` runs; ``spread``: half of the distance between their quartiles."""

    seconds: float
    spread: float
    runs: int


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The measured seconds of a machine, by device type and key."""

    machine: Mapping[str, str]
    entries: Mapping[tuple[str, str], Entry] = field(default_factory=dict)

    def profile(self, *, training: bool = False) -> Profile:
        """The seconds for plans of inference, or of a training step."""
        return Profile({key: entry.seconds for key, entry in self.entries.items()}, training)

    def text(self) -> str:
        rows = [
            {"device_type": type_, "key": key, "seconds": e.seconds, "spread": e.spread, "runs": e.runs}
            for (type_, key), e in sorted(self.entries.items())
        ]
        return json.dumps({"schema": SCHEMA, "machine": dict(self.machine), "segments": rows}, indent=1) + "\n"

    def joined(self, other: ProfileFile, where: str) -> ProfileFile:
        """This profile with the entries of ``other``, which replace its own. Raises InvalidInput if that is of another
        machine."""
        if any(other.machine[key] != text for key, text in self.machine.items() if key in other.machine):
            raise InvalidInput(OtherMachine(_machine_text(other.machine), _machine_text(self.machine)), where=where)
        return ProfileFile({**self.machine, **other.machine}, {**self.entries, **other.entries})


def read_profile(path: Path) -> ProfileFile:
    """The profile in a file. Raises InvalidInput, with the place of the fault."""
    where = str(path)
    data = parse_json(read_input_text(path, "a profile of operators", LONGEST), where)

    def fail(fault: Fault | str, at: str) -> InvalidInput:
        return InvalidInput(WrongProfile(fault) if isinstance(fault, str) else fault, where=f"{where}: {at}")

    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise fail(f'an object with "schema": "{SCHEMA}"', "schema")
    _only(data, {"schema", "machine", "segments"}, "the profile", fail)
    machine, rows = data.get("machine"), data.get("segments")
    if not isinstance(machine, dict) or set(machine) - {"torch"} != {"processor", "onnxruntime"}:
        raise fail('an object of "processor" and "onnxruntime", and of "torch" beside training', "machine")
    if not all(isinstance(text, str) for text in machine.values()):
        raise fail("texts", "machine")
    if not isinstance(rows, list):
        raise fail("a list", "segments")
    entries: dict[tuple[str, str], Entry] = {}
    for number, row in enumerate(rows):
        at = f"segments[{number}]"
        if not isinstance(row, dict):
            raise fail("an object", at)
        _only(row, {"device_type", "key", "seconds", "spread", "runs"}, at, fail)
        for name in ("device_type", "key"):
            if not isinstance(row.get(name), str) or not row[name]:
                raise fail("a text", f"{at}.{name}")
        for name in ("seconds", "spread"):
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
                raise fail("seconds, at least 0", f"{at}.{name}")
        runs = row.get("runs")
        if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
            raise fail("a number of runs, at least 1", f"{at}.runs")
        place = row["device_type"], row["key"]
        if place in entries:
            raise fail(ProfiledTwice(), at)
        entries[place] = Entry(float(row["seconds"]), float(row["spread"]), runs)
    return ProfileFile({str(name): str(text) for name, text in machine.items()}, entries)


def _only(row: Mapping[str, Any], known: set[str], at: str, fail: Callable[[Fault | str, str], InvalidInput]) -> None:
    if others := sorted(set(row) - known):
        raise fail(UnknownProfileKey(others[0][:80]), at)


def _machine_text(machine: Mapping[str, str]) -> str:
    torch = f" and torch {machine['torch']}" if "torch" in machine else ""
    return f"{machine['processor']} with onnxruntime {machine['onnxruntime']}{torch}"


def machine_here(*, training: bool = False) -> dict[str, str]:
    machine = {"processor": read_facts().processor, "onnxruntime": str(load_onnxruntime().__version__)}
    return {**machine, "torch": importlib.metadata.version("torch")} if training else machine


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment to measure; ``func``: it alone, of ``module``; ``copies``: how often it occurs; ``modelled``: seconds of all
    of them; ``operator`` and ``id`` of its first op; ``fresh``, ``summed``: as of ``PassAlone``, of a pass of a training
    step, which is that of ``op``, ``backward`` or forward."""

    key: str
    module: Module
    func: Func
    copies: int
    modelled: float
    size: int
    operator: str
    id: str
    fresh: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    op: Op | None = None
    backward: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """All segments of a device type that begin with one operator: how many there are, with copies, and the seconds of all of
    them together, by the model and as measured."""

    operator: str
    device_type: str
    copies: int
    modelled: float
    measured: float


@dataclass(frozen=True, slots=True)
class Measured:
    """``new``, ``known``: numbers of segments measured now, and before; ``left``: number and modelled seconds of segments for
    which there was no time; ``large``: number of segments above ``LARGEST`` bytes; ``refused``: segments that onnxruntime, or
    torch, did not run, with its message; ``compared``: all that the file has of this model."""

    file: ProfileFile
    new: int
    known: int
    left: tuple[int, float]
    large: int
    refused: tuple[tuple[str, str], ...]
    compared: tuple[Compared, ...]


def measure_profile(
    modules: Iterable[Module],
    data: WeightSource,
    topology: Topology,
    known: ProfileFile,
    *,
    training: bool = False,
    seconds: float = math.inf,
    seed: int = 0,
    progress: Progress = lambda label, fraction: None,
) -> Measured:
    """The profile ``known`` with the segments of ``modules`` (after the pass ``cost``) that it lacks, measured on the cores of
    this machine for each CPU type of the topology; in ``training`` the passes of their ops, on torch. ``data``: where small
    constants lie; ``seconds``: no new segment is begun after so many. Raises UsageError where there is no CPU type, or fewer
    cores than devices of a type."""
    begin = time.monotonic()
    types = [type_ for type_ in topology.types if type_.on_cores]
    if not types:
        raise UsageError(NoCpuDevice(topology.name[1:]), where="-t")
    modules = list(modules)
    entries = dict(known.entries)
    new = before = large = left = 0
    left_seconds = 0.0
    refused: list[tuple[str, str]] = []
    compared: dict[tuple[str, str], Compared] = {}
    for type_ in types:
        cores = cores_of_type(topology, type_, read_facts())
        if training:
            segments, without = training_segments(modules, type_)
            refused += without
        else:
            segments = _segments([(module, body_seconds(module.entry.ops, type_)) for module in modules])
        with scratch_folder() as scratch, probes(cores, Path(scratch), seed, type_.cores if training else 0) as running:
            for done, segment in enumerate(segments):
                place = type_.name, segment.key
                if place in entries:
                    before += 1
                elif segment.size > LARGEST:
                    large += 1
                elif time.monotonic() - begin > seconds:
                    left, left_seconds = left + 1, left_seconds + segment.modelled
                else:
                    progress(f"measure {segment.operator} on {type_.name}", done / len(segments))
                    try:
                        entries[place] = run_on_torch(running, segment) if training else _run(running, segment, data)
                        new += 1
                    except NotRun as error:
                        refused.append((segment.id, str(error)))
                if place in entries:
                    of_all = compared.get((type_.name, segment.operator), Compared(segment.operator, type_.name, 0, 0.0, 0.0))
                    compared[type_.name, segment.operator] = replace(
                        of_all,
                        copies=of_all.copies + segment.copies,
                        modelled=of_all.modelled + segment.modelled,
                        measured=of_all.measured + segment.copies * entries[place].seconds,
                    )
    file = replace(known, entries=entries)
    rows = sorted(compared.values(), key=lambda row: (-max(row.modelled, row.measured), row.device_type, row.operator))
    return Measured(file, new, before, (left, left_seconds), large, tuple(refused), tuple(rows))


def cores_of_type(topology: Topology, type_: DeviceType, facts: Facts) -> tuple[tuple[int, ...], ...]:
    """The cores of the devices of a type in ``dnnc run``; where their type states more cores than there are, equal parts of
    those that there are."""
    own = [device.name for device in topology.devices if device.type == type_.name]
    types = {device.name: topology.type(device.type) for device in topology.devices}
    cores, enough = device_cores(own, {name: each.cores for name, each in types.items() if each.on_cores})
    if enough and all(cores) and len(own) * type_.cores <= facts.usable:
        return tuple(map(tuple, cores))
    return split_cores(facts, min(len(own), facts.usable))


def _segments(modules: Iterable[tuple[Module, list[float]]]) -> list[Segment]:
    """The distinct segments, in decreasing order of their modelled seconds. The modules are one model after several pipelines,
    so what is in more than one of them counts once."""
    by_key: dict[str, Segment] = {}
    most: dict[str, tuple[int, float]] = {}  # copies, and their modelled seconds, of the module that has most
    for module, modelled in modules:
        seconds: dict[str, list[float]] = defaultdict(list)
        entry = module.entry
        types = types_of(module, entry)
        read_later = {value.name for value in entry.results} | {name for op in entry.ops for name in op.operands}
        for positions in segments_of(entry):
            ops = [entry.ops[i] for i in positions]
            key = key_of(ops, types)
            if key is None:
                continue
            seconds[key].append(math.fsum(modelled[i] for i in positions))
            if key in by_key:
                continue
            arguments = [name for name in inputs_of(ops) if name[:1] != "@"]
            inside = {name for op in ops[1:] for name in op.operands}
            results = tuple(
                v for op in ops for v in op.results if v.name in read_later and (op is ops[-1] or v.name not in inside)
            )
            args = tuple(Value(name, types[name]) for name in arguments)
            size = sum(type_bytes(types[name]) or 0 for name in inputs_of(ops))
            size += sum(type_bytes(value.type) or 0 for op in ops for value in op.results)
            func = Func("@main", args, results, tuple(ops))
            by_key[key] = Segment(key, module, func, 0, 0.0, size, ops[0].name.removeprefix("onnx."), ops[0].id)
        for key, own in seconds.items():
            most[key] = max(most.get(key, (0, 0.0)), (len(own), math.fsum(own)))
    segments = [replace(segment, copies=most[key][0], modelled=most[key][1]) for key, segment in by_key.items()]
    return sorted((s for s in segments if s.func.results and s.func.args), key=lambda s: (-s.modelled, s.key))


def training_segments(modules: Iterable[Module], type_: DeviceType) -> tuple[list[Segment], list[tuple[str, str]]]:
    """The distinct passes of the ops of training steps, in decreasing order of modelled seconds; and the ops that cannot be
    measured, with the reason."""
    by_key: dict[str, Segment] = {}
    total: dict[str, float] = defaultdict(float)
    copies: Counter[str] = Counter()
    refused: dict[str, tuple[str, str]] = {}
    for module in modules:
        alone = Alone(module, OnnxBodies())
        for one in passes_of(module):
            op, cost = one.op, one.op.facet(Cost, Cost())
            if one.forward is None or one.forward in refused:
                continue
            for key, seconds in zip(
                (one.forward, one.backward), passes_seconds(op, type_, cost.input_grad + cost.weight_grad), strict=True
            ):
                total[key or ""] += seconds
                copies[key or ""] += 1
            if one.forward in by_key:
                continue
            try:
                passes = alone.of(op, one.learned, one.readers)
            except InvalidInput as error:
                refused[one.forward] = op.id, error.diagnostics[0].message
                continue
            for key, back, own in zip((one.forward, one.backward), (False, True), passes, strict=True):
                if key is not None and own is not None:
                    entry, types = own.module.entry, types_of(own.module, own.module.entry)
                    size = sum(type_bytes(type_) or 0 for type_ in types.values())
                    operator = f"{op.name.removeprefix('onnx.')}{' backward' * back}"
                    pass_ = own.fresh, own.summed, op, back
                    by_key[key] = Segment(key, own.module, entry, 0, 0.0, size, operator, op.id, *pass_)
    segments = [replace(segment, copies=copies[key], modelled=total[key]) for key, segment in by_key.items()]
    return sorted(segments, key=lambda s: (-s.modelled, s.key)), list(refused.values())


def run_on_torch(running: Probes, segment: Segment, rounds: int = ROUNDS) -> Entry:
    """The seconds of so many runs on each device. Raises NotRun."""
    from dnnc.engines.torch.statements.run import function_source

    types = types_of(segment.module, segment.func)
    read = dict.fromkeys([*(value.name for value in segment.func.args), *(r.name for r in segment.module.of_type(Resource))])
    try:
        source, _ = function_source(segment.module, segment.func)
        values = [_value(name, types[name], fresh=name in segment.fresh) for name in read]
    except InvalidInput as error:
        raise NotRun(error.diagnostics[0].message) from None
    path = running.model(source.encode(), "py")
    summed = [number for number, value in enumerate(segment.func.results) if value.name in segment.summed]
    order = {"do": "function", "source": str(path), "values": values, "summed": summed, "cold": evicting(len(running.cores))}
    answers = running.ask(order, range(len(running.cores)), rounds=rounds, warm=WARM)
    path.unlink()
    return _entry(answers)


def _value(name: str, type_: Type, *, fresh: bool) -> tuple[str, str, tuple[int, ...], bool]:
    """An argument as a measuring process makes it: name, torch's element type, shape, and whether it is freshly computed (in
    the caches). Raises InvalidInput for an element type that torch lacks."""
    assert isinstance(type_, TensorType)
    if type_.dtype not in DTYPES:
        raise InvalidInput(TypeNotOfTorch(type_.dtype.value), where=name)
    return name, DTYPES[type_.dtype], tuple(int(dim) for dim in type_.shape or () if isinstance(dim, int)), fresh


def _run(running: Probes, segment: Segment, data: WeightSource) -> Entry:
    """Raises NotRun."""
    names = {name for name in inputs_of(segment.func.ops) if name[:1] == "@"}
    symbols = [_with_data(resource) for name, resource in segment.module.resources.items() if name in names]
    module = replace(segment.module, symbols=(*symbols, replace(segment.func, name=segment.module.entry.name)))
    path = running.model(labelled_model(module, data)[0])
    weights = sum(type_bytes(resource.type) or 0 for resource in symbols)
    order = {"do": "kernels", "model": str(path), "evict": evicting(len(running.cores)) if weights >= COLD else 0}
    answers = running.ask(order, range(len(running.cores)), rounds=ROUNDS, warm=WARM)
    path.unlink()
    return _entry(answers)


def _entry(answers: Mapping[int, list[float]]) -> Entry:
    """The median over all runs on all devices."""
    every = [own for seconds in answers.values() for own in seconds]
    sample = Sample.of(every)
    return Entry(float(f"{sample.median:.{_DIGITS}g}"), float(f"{sample.spread:.{_DIGITS}g}"), len(every))


def _with_data(resource: Resource) -> Resource:
    """The resource with data that need no file: random numbers for floats, whose values do not change the time; its own data
    for small constants; ones for the rest."""
    type_ = resource.type
    if not isinstance(type_, TensorType):
        return resource
    if type_.dtype.is_float and (type_.elements or 0) > 1:
        return replace(resource, data=Random("uniform", 1, 0.05, 0.1), digest="")
    if (type_.elements or 0) > _SMALL or isinstance(resource.data, Declared):
        return replace(resource, data=Splat(1 if not type_.dtype.is_float else 1.0), digest="")
    return resource
