"""Small modules whose ops have stages, for the passes behind partition; and what such a module computes, symbolically."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import strategies as st

from ir.core.facets import Facets, StageSet, Time, with_facet
from ir.core.module import Declared, Func, Module, Plan, PlanStage, Resource, Splat, Stage
from ir.core.ops import Op, Region, Value
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType

VECTOR = TensorType(DType.F32, (256,))  # 1024 bytes


def value(name: str) -> Value:
    return Value(name, VECTOR)


def op(
    name: str,
    operands: Iterable[str],
    results: Iterable[str],
    stages: tuple[int, ...] = (),
    region: Region | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Op:
    """``seconds``: by device type, without the sigil."""
    facets: Facets = (StageSet(stages),) if stages else ()
    if seconds is not None:
        facets = with_facet(facets, Time(tuple(sorted((f"@{type_}", value) for type_, value in seconds.items()))))
    regions = (("body", region),) if region else ()
    return Op(name, tuple(operands), tuple(map(value, results)), regions=regions, facets=facets)


def chain(stages: Iterable[int], seconds: float = 1.0) -> Module:
    """``%x -> Relu -> %v0 -> Relu -> %v1 ...``: one op per entry, which is its stage, of ``seconds`` on type ``t``; the last
    value is the output."""
    stages = tuple(stages)
    time = {"t": seconds}
    ops = tuple(op("onnx.Relu", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], (s,), seconds=time) for i, s in enumerate(stages))
    return Module("@m", (Func("@main", (value("%x"),), (value(f"%v{len(stages) - 1}"),), ops),))


def devices(count: int, *, memory: int | None = None, links: tuple[Link, ...] | None = None) -> Topology:
    """``count`` devices ``d0``... of type ``t`` on one host, each with a link of 1 KiB/s to it, so a value takes a second."""
    names = [f"d{i}" for i in range(count)]
    type_ = DeviceType("t", rates=(("f32", 1.0),), memory=memory)
    if links is None:
        links = tuple(Link(f"l-{name}", (name, "h"), 1024.0, 0.0) for name in names)
    return Topology("@top", (type_,), (Host("h"),), tuple(Device(name, "t", "h") for name in names), (), links)


def planned(module: Module, topology: Topology, given: Mapping[int, tuple[str, ...]] | None = None, type_: str = "t") -> Module:
    """The module with a topology and a plan as ``partition`` leaves it."""
    count = 1 + max(s for o in module.entry.ops for s in o.facet(StageSet, StageSet((0,))).stages)
    stages = tuple(PlanStage(i, type_, (given or {}).get(i, ())) for i in range(count))
    inf = float("inf")
    return module.extend([topology, Plan("@plan", "throughput", "sum", inf, inf, 0.0, "within-gap", inf, stages)])


@st.composite
def staged_modules(draw: st.DrawFn, replicate: bool = True) -> Module:
    """A random function of ops with 1 or 2 results, regions that capture, unused arguments, outputs that are arguments or
    resources; every op has stages such that data flows forward."""
    resources = ["@w", "@u"]
    args = ["%x", "%y"]
    known = [*args, *resources]
    home: dict[str, int] = {}  # first stage that holds the value
    count = draw(st.integers(1, 9))
    rows: list[tuple[str, list[str], list[str], list[str], tuple[int, ...]]] = []
    for i in range(count):
        operands = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        captured = draw(st.lists(st.sampled_from(known), max_size=2)) if draw(st.booleans()) else []
        results = [f"%v{i}"] + ([f"%w{i}"] if draw(st.booleans()) else [])
        first = max((home.get(name, 0) for name in (*operands, *captured)), default=0)
        stage = draw(st.integers(first, 4))
        more = draw(st.sets(st.integers(stage, 4), max_size=2)) if replicate else set()
        rows.append((f"onnx.Op{i}", operands, captured, results, tuple(sorted({stage, *more}))))
        home.update(dict.fromkeys(results, stage))
        known += results
    used = sorted({s for row in rows for s in row[4]})
    ops = []
    for name, operands, captured, results, stages in rows:
        region = None
        if captured:
            inner = Op("onnx.Inner", tuple(captured), (value(f"%in{name[-1]}"),))
            region = Region((), (inner,), (f"%in{name[-1]}",))
        ops.append(op(name, operands, results, tuple(used.index(s) for s in stages), region))
    outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    func = Func("@main", tuple(map(value, args)), tuple(map(value, outputs)), tuple(ops))
    return Module("@m", (Resource("@w", VECTOR, Splat(0)), Resource("@u", VECTOR, Declared()), func))


def run_ops(ops: Iterable[Op], known: dict[str, object]) -> None:
    """Adds what ``ops`` compute to ``known``: terms, so that equal terms mean equal programs. KeyError for what is not
    there."""
    for o in ops:
        inner: list[object] = []
        for _, region in o.regions:
            scope = dict(known)
            run_ops(region.ops, scope)
            inner += [scope[name] for name in region.results]
        term = (o.name, tuple(known[name] for name in o.operands), tuple(inner))
        known.update((result.name, (term, number)) for number, result in enumerate(o.results))


def entry_outputs(module: Module) -> dict[str, object]:
    known: dict[str, object] = dict.fromkeys(("%x", "%y"), None) | {name: name for name in ("@w", "@u", "%x", "%y")}
    run_ops(module.entry.ops, known)
    return {result.name: known[result.name] for result in module.entry.results}


def staged_outputs(module: Module) -> dict[str, object]:
    """Runs the stage programs one after the other; each knows its arguments, the resources and what it received, nothing
    else."""
    wires: dict[int, object] = {}
    found: dict[str, object] = {}
    for stage in module.of_type(Stage):
        known: dict[str, object] = {"@w": "@w", "@u": "@u"} | {arg.name: arg.name for arg in stage.args}
        for o in stage.ops:
            if o.name == "comm.recv":
                known[o.results[0].name] = wires.pop(o.get("channel"))
            elif o.name == "comm.send":
                wires[o.get("channel")] = known[o.operands[0]]
            else:
                run_ops([o], known)
        found.update((result.name, known[result.name]) for result in stage.results)
    assert not wires, "sent and never received"
    return found
