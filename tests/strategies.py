"""Hypothesis strategies for the IR: types, attributes, facets, functions, topologies and whole valid modules.

``modules()`` gives modules that the verifier accepts and that hold everything the language has, with odd names, odd numbers and
odd bytes. Sizes stay small (a few ops a body): a fault of text or of a pass shows in a small module, and shrinks to a smaller.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from ir.core.attributes import Attribute, Attributes, AttrKind, Dense
from ir.core.facets import (
    SYNCS,
    BackwardTime,
    Color,
    Cost,
    Direction,
    Facets,
    Group,
    OptimizerState,
    Phase,
    ShardRule,
    StageSet,
    Sync,
    Time,
    Transfer,
)
from ir.core.module import (
    Action,
    Declared,
    External,
    Func,
    Inline,
    Mesh,
    Module,
    Plan,
    PlanStage,
    Random,
    Resource,
    ResourceData,
    Schedule,
    Splat,
    Stage,
    State,
    Symbol,
    View,
)
from ir.core.objectives import OBJECTIVES
from ir.core.ops import Location, Op, Region, Value
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.core.types import (
    UNKNOWN,
    BytesType,
    Dim,
    DType,
    Layout,
    MapType,
    OptionalType,
    Partial,
    Replicate,
    SeqType,
    Shard,
    TensorType,
    Type,
)

T = TypeVar("T")

ODD_WORDS = [
    "",
    "a b",
    "x",
    "_",
    "1",
    "-",
    "%",
    'q"q',
    "back\\slash",
    "é",
    "line\nbreak",
    "\x85\u2028\t",
    "inf",
    "none",
    "//c",
    "a:",
    "🙂",
    "}{",
]
PLAIN_WORDS = ["x", "y", "fc1.weight", "/layer.0/MatMul_output_0", "h", "w", "onnx::Add_3", "A-1", "$0", "dense/kernel:0"]

words = st.one_of(st.sampled_from(PLAIN_WORDS), st.sampled_from(ODD_WORDS), st.text(max_size=6))
"""Names without their sigil: ordinary ones, known trouble, and any text."""
floats32 = st.one_of(st.floats(width=32), st.just(math.nan), st.sampled_from([0.1, -0.0, 1e-45, math.inf])).map(
    lambda v: math.nan if math.isnan(v) else v
)
seconds = st.one_of(st.sampled_from([0.0, 1.5e-6, 0.1, 1 / 3]), st.floats(1e-30, 1e9))
group_numbers = st.sampled_from([-1.0, 0.0, 0.5, 1e-4])
counts = st.one_of(st.integers(0, 9), st.integers(0, (1 << 62) - 1))


def symbols(taken: set[str]) -> st.SearchStrategy[str]:
    """A fresh symbol name."""
    return words.map(lambda word: _fresh("@" + word, taken))


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


# -- types -------------------------------------------------------------------------------------------------------------


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """A dimension: mostly a number."""
    return draw(
        st.one_of(
            st.integers(0, 5), st.integers(0, 1 << 12), st.none(), st.sampled_from(["batch", "2*seq + 1", "x", "f32"]), words
        )
    )


@st.composite
def shares(draw: st.DrawFn, axes: Sequence[tuple[str, int]]) -> tuple[tuple[int, ...], ...]:
    """Shares of the members along each axis, in lowest terms; none where all are 1."""
    drawn = [draw(st.lists(st.integers(1, 4), min_size=size, max_size=size)) for _, size in axes]
    found = tuple(tuple(share // math.gcd(*given) for share in given) for given in drawn)
    return found if any(max(given) > 1 for given in found) else ()


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, rank: int) -> Layout:
    """A layout of a tensor of this rank on ``mesh``."""
    placements = [Replicate(), Partial("sum"), Partial("max"), *[Shard(dim) for dim in range(rank)]]
    return Layout(mesh.name, tuple(draw(st.sampled_from(placements)) for _ in mesh.axes))


@st.composite
def tensor_types(draw: st.DrawFn, mesh: Mesh | None = None) -> TensorType:
    """A tensor type of any element type; on ``mesh`` now and then."""
    dtype = draw(st.sampled_from(DType))
    shape = draw(st.one_of(st.none(), st.lists(dims(), max_size=3).map(tuple)))
    layout = None
    if mesh is not None and shape is not None and draw(st.booleans()):
        layout = draw(layouts(mesh, len(shape)))
    return TensorType(dtype, shape, layout, sparse=draw(st.sampled_from([False, False, False, True])))


def types(mesh: Mesh | None = None) -> st.SearchStrategy[Type]:
    """Any type."""
    leaves: st.SearchStrategy[Any] = st.one_of(
        tensor_types(mesh), tensor_types(mesh), st.just(UNKNOWN), st.integers(0, 1 << 50).map(BytesType)
    )
    keys = st.sampled_from([DType.I64, DType.STRING, DType.U8])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(inner.map(SeqType), inner.map(OptionalType), st.builds(MapType, keys, inner)),
        max_leaves=2,
    )


# -- attributes --------------------------------------------------------------------------------------------------------


@st.composite
def dense(draw: st.DrawFn) -> Dense:
    """A constant tensor with any bits, now and then larger than what is printed by value."""
    dtype = draw(st.sampled_from(DType))
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 2), (5, 13)]))
    type_ = TensorType(dtype, shape)
    if dtype is DType.STRING:
        count = type_.elements or 0
        item = st.one_of(words.map(str.encode), st.binary(max_size=3))
        return Dense(type_, tuple(draw(st.lists(item, min_size=count, max_size=count))))
    size = type_.nbytes or 0
    if dtype in (DType.F32, DType.F16, DType.F64) and draw(st.booleans()):
        code = {DType.F32: "f", DType.F16: "e", DType.F64: "d"}[dtype]
        value = draw(st.sampled_from([0.1, -0.0, math.inf, math.nan, 1.0, 6e-8]))
        return Dense(type_, struct.pack("<" + code, value) * (type_.elements or 0))
    return Dense(type_, draw(st.binary(min_size=size, max_size=size)))


def attribute(symbol_names: tuple[str, ...] = ()) -> st.SearchStrategy[Attribute]:
    """One attribute of any kind."""
    ints = st.integers(-(1 << 63), (1 << 63) - 1)
    scalars: dict[AttrKind, st.SearchStrategy[Any]] = {
        AttrKind.INT: ints,
        AttrKind.FLOAT: floats32,
        AttrKind.STRING: words,
        AttrKind.TENSOR: dense(),
        AttrKind.TYPE: types(),
    }
    plural = {AttrKind.INT: "ints", AttrKind.FLOAT: "floats", AttrKind.STRING: "strings", AttrKind.TENSOR: "tensors"}
    options = [values.map(_of(kind)) for kind, values in scalars.items()]
    options.append(st.binary(max_size=80).map(_of(AttrKind.BYTES)))
    for kind, values in scalars.items():
        listed = AttrKind(plural.get(kind, "types"))
        options.append(st.lists(values, max_size=3).map(tuple).map(_of(listed)))
    if symbol_names:
        options.append(st.sampled_from(symbol_names).map(_of(AttrKind.SYMBOL)))
    return st.one_of(options)


def _of(kind: AttrKind) -> Any:
    return lambda value: Attribute(kind, value)


def attributes(symbol_names: tuple[str, ...] = (), max_size: int = 3) -> st.SearchStrategy[Attributes]:
    """Sorted attributes under any keys."""
    keys = st.one_of(st.sampled_from(["axis", "perm", "op.ai.onnx.ml", "region", "_x"]), words)
    return st.one_of(
        st.just(()),
        st.dictionaries(keys, attribute(symbol_names), max_size=max_size).map(
            lambda found: tuple(sorted(found.items(), key=lambda item: item[0]))
        ),
    )


# -- facets ------------------------------------------------------------------------------------------------------------


@st.composite
def facets(draw: st.DrawFn, results: int, stages: int = 0, decided: bool = True) -> Facets:
    """Facets of an op with ``results`` results; in one of ``stages`` stages where there are any; without decisions
    unless ``decided``."""
    found: list[Any] = []
    if draw(st.booleans()):
        found.append(
            Cost(*[draw(counts) for _ in range(7)], kind=draw(st.one_of(st.sampled_from(["matmul", "default"]), words)))
        )
    choice = draw(st.integers(0, 255))
    if choice & 1 and decided:
        found.append(Group(draw(counts)))
    if choice & 2:
        times = draw(st.dictionaries(words, seconds, max_size=2))
        found.append(draw(st.sampled_from([Time, BackwardTime]))(tuple(sorted(times.items()))))
    if choice & 4:
        found.append(Transfer(tuple(draw(seconds) for _ in range(results))))
    if choice & 8:
        found += [Color(draw(counts)), Direction(draw(st.sampled_from(["fw", "bw"])))]
    if choice & 64:
        found.append(Phase(draw(st.sampled_from(["I", "W", "U"]))))
    if choice & 16 and decided:
        found.append(ShardRule(draw(words)))
    if decided and stages and choice & 32:
        found.append(StageSet(tuple(sorted(draw(st.sets(st.integers(0, stages - 1), min_size=1, max_size=2))))))
    return tuple(sorted(found, key=lambda facet: facet.keyword))


locations = st.one_of(
    st.just(Location()), st.builds(Location, st.just("main"), words), st.builds(Location, words, words, words)
)


# -- programs ----------------------------------------------------------------------------------------------------------

OP_NAMES = [
    "onnx.MatMul",
    "onnx.Add",
    "onnx.com.microsoft.Gelu",
    "dnnc.work",
    "my-dom.x:y/z$",
    "odd op",
    "",
    "nodot",
    "a..b",
    'q"',
]


@st.composite
def bodies(
    draw: st.DrawFn,
    names: set[str],
    visible: list[str],
    resources: tuple[Resource, ...] = (),
    mesh: Mesh | None = None,
    stages: int = 0,
    decided: bool = True,
    depth: int = 0,
    max_ops: int = 4,
) -> tuple[Op, ...]:
    """Ops that use what is ``visible``; ``visible`` then holds their results as well, ``names`` every name of the function."""
    ops = []
    usable = [resource.name for resource in resources]
    symbol_names = tuple(usable)
    for _ in range(draw(st.integers(0, max_ops))):
        pool = [*visible, *usable, ""]
        operands = tuple(draw(st.lists(st.sampled_from(pool), max_size=3)))
        regions = []
        if depth < 2 and draw(st.integers(0, 5)) == 0:
            for key in draw(st.sampled_from([("body",), ("then_branch", "else_branch"), ("odd key",)])):
                regions.append((key, draw(region(names, visible, resources, mesh, stages, decided, depth + 1))))
        count = draw(st.sampled_from([1, 1, 1, 1, 2, 0]))
        results = tuple(Value(_fresh("%" + draw(words), names), draw(types(mesh))) for _ in range(count))
        if len(results) == 2 and draw(st.booleans()):
            results = (results[0], Value(""))
        name = draw(st.sampled_from(OP_NAMES[:3] if regions else OP_NAMES))
        ops.append(
            Op(
                name,
                operands,
                results,
                draw(attributes(symbol_names, max_size=2)),
                tuple(regions),
                draw(facets(len(results), stages, decided)),
                draw(locations),
            )
        )
        visible += [value.name for value in results if value.name]
    return tuple(ops)


@st.composite
def region(
    draw: st.DrawFn,
    names: set[str],
    visible: list[str],
    resources: tuple[Resource, ...],
    mesh: Mesh | None,
    stages: int,
    decided: bool,
    depth: int,
) -> Region:
    """A region that captures what is ``visible``."""
    args = tuple(Value(_fresh("%" + draw(words), names), draw(types(mesh))) for _ in range(draw(st.integers(0, 2))))
    inside = [*visible, *[value.name for value in args]]
    ops = draw(bodies(names, inside, resources, mesh, stages, decided, depth, max_ops=2))
    pool = [*inside, *[resource.name for resource in resources]]
    results = draw(st.lists(st.sampled_from(pool), max_size=2)) if pool else []
    return Region(args, ops, tuple(results))


@st.composite
def funcs(
    draw: st.DrawFn,
    name: str = "@main",
    resources: tuple[Resource, ...] = (),
    mesh: Mesh | None = None,
    stages: int = 0,
    decided: bool = True,
) -> Func:
    """A function whose results are values of its body, arguments or resources."""
    names: set[str] = set()
    args = tuple(Value(_fresh("%" + draw(words), names), draw(types(mesh))) for _ in range(draw(st.integers(0, 2))))
    visible = [value.name for value in args]
    ops = draw(bodies(names, visible, resources, mesh, stages, decided))
    known = {value.name: value.type for op in ops for value in op.results} | {value.name: value.type for value in args}
    known |= {resource.name: resource.type for resource in resources}
    pool = [value for value in [*visible, *[resource.name for resource in resources]] if value]
    results = draw(st.lists(st.sampled_from(pool), max_size=3)) if pool else []
    return Func(name, args, tuple(Value(value, known[value]) for value in results), ops, draw(attributes(max_size=2)))


def whole_numbers(dtype: DType) -> st.SearchStrategy[int]:
    """The values of an integer type; 0 and 1 for booleans."""
    bits = 1 if dtype is DType.BOOL else dtype.bits
    low = -(1 << (bits - 1)) if dtype.value[0] == "i" else 0
    return st.integers(low, low + (1 << bits) - 1)


@st.composite
def resources(draw: st.DrawFn, name: str, mesh: Mesh | None = None) -> Resource:
    """A resource with data of any kind that fits its type."""
    constant = draw(dense())
    whole = constant.type.dtype.is_integer or constant.type.dtype is DType.BOOL
    options: list[st.SearchStrategy[ResourceData]] = [st.just(Inline(constant.data)), st.just(Declared())]
    if constant.type.dtype is not DType.STRING:
        value = draw(st.integers(0, 1) | whole_numbers(constant.type.dtype)) if whole else draw(floats32)
        options += [
            st.just(Splat(value)),
            st.builds(Random, st.sampled_from(["normal", "uniform"]), counts, st.floats(0, 10), st.floats(-10, 10)),
            st.builds(
                External,
                st.sampled_from(["w.data", "a b/é.bin", 'q"'.replace('"', "'")]),
                counts,
                st.just(constant.type.nbytes),
            ),
        ]
        before, behind = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        elements = constant.type.elements or 0
        whole_data = st.one_of(
            st.just(Declared()),
            st.just(External("w.data", 3, TensorType(constant.type.dtype, (before + elements + behind,)).nbytes or 0)),
        )
        options.append(
            st.builds(View, whole_data, st.just((before + elements + behind,)), st.just((before,)), st.just((elements,)))
        )
    type_ = constant.type
    if mesh is not None and draw(st.booleans()):
        type_ = TensorType(type_.dtype, type_.shape, draw(layouts(mesh, len(type_.shape or ()))))
    found: list[Any] = []
    if draw(st.booleans()):
        found = [
            OptimizerState(draw(words), draw(counts), draw(group_numbers), draw(group_numbers)),
            Sync(draw(st.sampled_from(SYNCS)), draw(words), draw(counts), draw(st.integers(-1, 4))),
        ]
    digest = draw(st.sampled_from(["", "sha256:" + "0a" * 32]))
    return Resource(name, type_, draw(st.one_of(options)), digest, tuple(found))


@st.composite
def states(draw: st.DrawFn, entry: Func, taken: set[str]) -> list[Resource]:
    """States that become results of ``entry``."""
    found = []
    for value in {value.name: value for value in entry.results if value.name[0] == "%"}.values():
        if (
            isinstance(value.type, TensorType)
            and not value.type.sparse
            and value.type.shape is not None
            and draw(st.booleans())
        ):
            axis = draw(st.none() | st.integers(0, len(value.type.shape) - 1)) if value.type.shape else None
            data = State(value.name[1:], axis, draw(st.integers(1, 4)))
            found.append(Resource(draw(symbols(taken)), value.type, data))
    return found


# -- machines and decisions --------------------------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn, name: str = "@machines") -> Topology:
    """A topology of one to four devices on one or two hosts, joined by links or a bus, with a route now and then."""
    names: set[str] = set()
    positive = st.one_of(st.sampled_from([1e9, 2.5e10]), st.floats(1e-3, 1e15))
    type_names = draw(st.lists(words, min_size=1, max_size=2, unique=True))
    no_paths = words.filter(lambda word: "/" not in word and "\\" not in word)
    provider_options = st.dictionaries(words, no_paths, max_size=2).map(lambda options: tuple(sorted(options.items())))
    device_types = tuple(
        DeviceType(
            name=type_name,
            kind=draw(words),
            rates=tuple(sorted(draw(st.dictionaries(st.sampled_from(["f32", "bf16", "i8"]), positive)).items())),
            memory_bandwidth=draw(st.one_of(st.just(0.0), positive)),
            memory=draw(st.one_of(st.none(), counts)),
            overhead=draw(seconds),
            efficiency=tuple(sorted(draw(st.dictionaries(words, st.floats(0.01, 1), max_size=2)).items())),
            free_transfers=draw(st.booleans()),
            source=draw(words),
            provider=(provider := draw(st.sampled_from(["", "CPUExecutionProvider"]))),
            provider_options=draw(provider_options) if provider else (),
        )
        for type_name in type_names
    )
    named = {type_.name for type_ in device_types if type_.provider}
    optional = st.one_of(st.none(), st.integers(1, 1 << 40))
    cores = st.one_of(st.none(), st.integers(1, 256))
    places = st.sampled_from(["", "192.0.2.1"])
    hosts = tuple(
        Host(_fresh(draw(words), names), draw(cores), draw(optional), draw(places)) for _ in range(draw(st.integers(1, 2)))
    )
    devices = tuple(
        Device(
            _fresh(draw(words), names),
            type_name := draw(st.sampled_from(type_names)),
            draw(st.sampled_from(hosts)).name,
            draw(optional),
            draw(st.one_of(st.none(), st.integers(0, 9))) if type_name in named else None,
        )
        for _ in range(draw(st.integers(1, 4)))
    )
    switches = tuple(Switch(_fresh(draw(words), names)) for _ in range(draw(st.integers(0, 1))))
    points = [point.name for point in (*devices, *hosts, *switches)]
    link_names: set[str] = set()
    links = tuple(
        Link(
            _fresh(draw(words), link_names),
            tuple(draw(st.lists(st.sampled_from(points), min_size=2, max_size=3, unique=True))),
            draw(positive),
            draw(seconds),
            draw(st.sampled_from(["full", "half"])),
            draw(st.booleans()),
            training_bandwidth=draw(st.one_of(st.just(0.0), positive)),
            training_start=draw(seconds),
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    routes = tuple(Route(link.ends[0], link.ends[1], (link.name,)) for link in links[:1] if draw(st.booleans()))
    return Topology(name, device_types, hosts, devices, switches, links, routes)


@st.composite
def plans(draw: st.DrawFn, topology: Topology, stages: int, name: str = "@plan") -> Plan:
    """A plan of this many stages on devices of ``topology``."""
    value = draw(seconds)
    entries = []
    for index in range(stages):
        type_name = draw(st.sampled_from([type_.name for type_ in topology.types]))
        fitting = [device.name for device in topology.devices if device.type == type_name]
        chosen = draw(st.lists(st.sampled_from(fitting), max_size=2, unique=True)) if fitting else []
        entries.append(
            PlanStage(
                index,
                type_name,
                tuple(chosen),
                draw(counts),
                *[draw(seconds) for _ in range(3)],
                *[draw(counts) for _ in range(3)],
                learning=tuple(draw(st.lists(words, max_size=2))),
            )
        )
    return Plan(
        name=name,
        objective=draw(st.sampled_from([objective.name for objective in OBJECTIVES])),
        comm=draw(st.sampled_from(["sum", "overlap", "duplex"])),
        value=value,
        port_value=draw(seconds),
        bound=draw(st.sampled_from([0.0, value])),
        status=draw(st.sampled_from(["optimal", "within-gap"])),
        single=draw(st.one_of(seconds, st.just(math.inf))),
        stages=tuple(entries),
        certificate=tuple(sorted(draw(st.dictionaries(words, words, max_size=2)).items())),
        microbatches=draw(st.integers(1, 9)),
    )


@st.composite
def schedules(draw: st.DrawFn, topology: Topology, stages: int, name: str = "@schedule") -> Schedule:
    """A schedule of this many stages."""
    microbatches, periodic = draw(st.integers(1, 4)), draw(st.booleans())
    number = st.one_of(st.none(), st.integers(0, microbatches - 1) if not periodic else st.integers(-3, 3))
    action = st.builds(
        Action,
        st.sampled_from(["F", "B", "recv", "send", "all_reduce", "odd kind", ""]),
        st.integers(0, stages - 1),
        number,
        st.one_of(st.none(), counts),
    )
    rows = tuple((device.name, tuple(draw(st.lists(action, max_size=3)))) for device in topology.devices[:2])
    return Schedule(
        name,
        draw(words),
        rows,
        microbatches,
        periodic,
        draw(seconds),
        draw(seconds),
        draw(st.integers(1, 3)),
    )


@st.composite
def orders(draw: st.DrawFn, plan: Plan, name: str = "@schedule") -> Schedule | None:
    """Rows that the programs of ``stage_chain`` follow; None for training, and where stages share some of their devices or have
    none."""
    if plan.minimises.trains:
        return None
    devices = [stage.devices for stage in plan.stages]
    if any(not on or any(set(on) & set(other) and on != other for other in devices) for on in devices):
        return None
    last = len(devices) - 1
    rows: dict[str, tuple[Action, ...]] = {}
    for stage, on in enumerate(devices):
        receives = (Action("recv", stage, last - stage, stage - 1),) if stage else ()
        sends = (Action("send", stage, last - stage, stage),) if stage < last else ()
        for device in on:
            rows[device] = (*rows.get(device, ()), *receives, Action("F", stage, last - stage), *sends)
    period, latency = draw(seconds), draw(seconds)
    alone = len(rows) == sum(map(len, devices))  # else a device sends one microbatch before it receives the one before it
    slots = draw(st.integers(1 if alone else 2, 3))
    return Schedule(name, draw(words), tuple(rows.items()), 1, True, period, latency, slots)


@st.composite
def stage_chain(draw: st.DrawFn, plan: Plan, taken: set[str]) -> tuple[Stage, ...]:
    """Stage programs of ``plan`` in which each sends one value to the next."""
    moved = [draw(types()) for _ in plan.stages]
    found = []
    for stage in plan.stages:
        ops: list[Op] = []
        index = stage.index
        sent = f"%v{index}"
        if index > 0:
            channel = _channel(index - 1, index - 1)
            ops.append(Op("comm.recv", (), (Value(f"%v{index - 1}", moved[index - 1]),), channel))
        if index + 1 < len(plan.stages):
            ops.append(Op("dnnc.work", (), (Value(sent, moved[index]),)))
            ops.append(Op("comm.send", (sent,), (), _channel(index, index + 1)))
        results = (Value(ops[-1].results[0].name, ops[-1].results[0].type),) if ops and ops[-1].results else ()
        args = (Value("%arg", draw(types())),) if index == 0 else ()
        found.append(
            Stage(draw(symbols(taken)), index, stage.devices, args, results, tuple(ops), "", draw(attributes(max_size=1)))
        )
    return tuple(found)


def _channel(channel: int, peer: int) -> Attributes:
    return (("channel", Attribute(AttrKind.INT, channel)), ("peer", Attribute(AttrKind.INT, peer)))


@st.composite
def modules(draw: st.DrawFn, machines: bool = True) -> Module:
    """A whole valid module; with ``machines``, of every kind of symbol."""
    taken: set[str] = set()
    found: list[Symbol] = []
    topology = draw(topologies(draw(symbols(taken)))) if machines and draw(st.booleans()) else None
    mesh = None
    if topology is not None and draw(st.booleans()):
        devices = tuple(device.name for device in topology.devices)
        axis = draw(words)
        axes = draw(st.sampled_from([((axis, len(devices)),), ((axis, 1), (axis + "2", len(devices)))]))
        mesh = Mesh(draw(symbols(taken)), axes, devices, draw(shares(axes)))
    weights = tuple(draw(resources(draw(symbols(taken)), mesh)) for _ in range(draw(st.integers(0, 2))))
    stages = draw(st.integers(1, 3)) if topology is not None and draw(st.booleans()) else 0
    found += weights
    entry = draw(funcs(draw(symbols(taken)), weights, mesh, stages))
    found += [] if stages else draw(states(entry, taken))
    found.append(entry)
    if draw(st.integers(0, 3)) == 0:
        callee = draw(funcs(draw(symbols(taken)), weights, mesh, decided=False))
        found += [callee, draw(_caller(callee, draw(symbols(taken))))]
    found += [topology] if topology else []
    found += [mesh] if mesh else []
    if topology is not None and stages:
        plan = draw(plans(topology, stages, draw(symbols(taken))))
        programs = draw(st.booleans())
        if programs:
            found += draw(stage_chain(plan, taken))
        if not programs or draw(st.booleans()):  # beside programs, rows are theirs
            ordered = draw(orders(plan, draw(symbols(taken)))) if programs else None
            schedule = ordered if programs else draw(schedules(topology, stages, draw(symbols(taken))))
            found += [schedule] if schedule is not None else []
        found.append(plan)
    return Module(draw(symbols(set())), tuple(found), draw(attributes(max_size=2)))


@st.composite
def _caller(draw: st.DrawFn, callee: Func, name: str) -> Func:
    """A function that calls ``callee`` twice."""
    args = tuple(Value(f"%a{i}", value.type) for i, value in enumerate(callee.args))
    callee_name = (("callee", Attribute(AttrKind.SYMBOL, callee.name)),)
    ops = tuple(
        Op(
            "dnnc.call",
            tuple(value.name for value in args),
            tuple(Value(f"%r{copy}_{i}", value.type) for i, value in enumerate(callee.results)),
            callee_name,
            location=draw(locations),
        )
        for copy in range(2)
    )
    return Func(name, args, ops[-1].results, ops)
