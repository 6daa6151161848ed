"""``plan.json``: the decision as a person or a script reads it, and edits it.

Schema ``dnnc.plan/2``::

    {"schema": "dnnc.plan/2",
     "objective": "throughput", "comm": "sum", "topology": "cpu2",
     "value": 0.0021, "port_value": 0.0021, "bound": 0.0020, "gap": 0.05, "status": "feasible", "single": 0.0041,
     "stages": [{"index": 0, "device": "cpu0", "device_type": "core",
                 "seconds": {"compute": 0.002, "receive": 0.0, "send": 0.0001},
                 "memory": {"weights": 4096, "workspace": 1024, "buffers": 0},
                 "ops": ["h", "a"]}, ...],
     "cuts": [{"tensor": "a", "from": 0, "to": 1, "bytes": 512, "seconds": 0.0001}],
     "certificate": {...}}

Seconds are per sample, memory in bytes, ``null`` stands for infinite seconds (``single``: the model fits no single device).
``device`` is a list of names for a replicated stage. An op is named by its first result, without the sigil; an op that runs
in several stages is listed in each.

A plan that splits tensors has besides ``"sharding": {"uneven": false}``: whether shards may differ in length, and ``"memory"``
where there was another limit per device than the topology's (bytes; -1: none). One of training says how many ``"microbatches"``
a step has, which ``value``, ``bound`` and ``single`` are seconds of (0: there are no steps but a stream, and they are seconds
per microbatch), and ``"flush": false`` where they are seconds from a step to the next, for which the pipeline is not emptied;
of each stage's seconds (per microbatch, forward and backward) what the ``"backward"`` pass takes; and once a step, how long
gradients of weights are synchronised and weights updated behind the last backward pass (``"sync"``), and how long gradients
are synchronised while it runs (``"hidden"``). A stage on a mesh has, where ``"device"`` lists the members of the mesh row by
row::

    "mesh": {"name": "mesh", "axes": {"x": 2, "y": 2}},
    "seconds": {..., "collectives": 0.0004},
    "ops": {"h": {"x": "n", "y": "b0"}, "a": {"x": "d1", "y": "d0"}},
    "weights": {"fc1.weight": {"x": "S(1)", "y": "R"}},
    "outputs": {"a": {"x": "S(1)", "y": "S(0)"}}

and, in training, ``"sync": {"fc1.weight": "sfb", "fc1.bias": "ps(1)"}`` of weights whose gradients are not summed by
all-reduce: ``reduce_scatter``, ``sfb``, or ``ps`` through the member at that place of the axis. That is, per axis the strategy
of each op, a name of its layout rule, and how each weight is kept and each result of the model leaves: ``S(d)`` a shard of
dimension d, ``R`` replicated. Where members get unequal parts, ``mesh`` has ``shares`` too, ``{"x": [3, 1], "y": [1, 1]}``. How
all else lies follows; ``plan.ir`` shows it. Where collectives of another stage, or what passes between others, cross a link
too, the seconds have ``"shared": {"bus": 0.0003}``: how long the stage's own keep it busy.

Replaying (``dnnc compile MODEL -t TOPOLOGY --plan plan.json``) reads ``objective``, ``comm``, ``sharding``, ``microbatches``,
``flush``, and of each stage ``device``, ``ops``, axes and shares of its mesh, ``weights``, ``outputs`` and ``sync``; where a
stage says ``sync``, weights without a line are summed by all-reduce. ``bound`` is kept where ``certificate.problem`` says that
it was proven for the same model and topology, and on meshes for the same stages. To move an op, move its line; to move a stage,
change its device; to split an op otherwise, change its strategy. A stage without ``device`` is placed by the compiler, unless
the plan splits tensors; a weight or result that is not listed lies as costs least. An empty stage is an error, as is an op that
is not listed or not known. Everything else is computed again. ``dnnc.plan/1`` is read where no stage is on a mesh.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ir.core.diagnostics import Diagnostic, InvalidInput, visible_json
from ir.core.facets import SEPARATOR, SYNCS, StageSet, sync_of
from ir.core.limits import LIMITS
from ir.core.module import Module, Plan, PlanStage, Schedule, Stage
from ir.core.objectives import OBJECTIVES, THROUGHPUT, names
from ir.core.ranges import MOST_MEMORY, MOST_MICROBATCHES, is_seconds
from ir.core.topology import Topology
from ir.system.files import read_input_text
from ir.text.json_text import parse_json
from passes.model.graph import cuts_of, is_sharded
from passes.model.spmd.decided import odd_reshard
from passes.model.spmd.notation import read_placements, read_sync, sync_text
from passes.model.spmd.reshard_ops import plain
from passes.model.spmd.undecided import copied, undifferentiated
from passes.model.timeline.workload import workload
from passes.replay.assign import AssignPass

if TYPE_CHECKING:
    from passes.model.spmd.plan.parts import StagePart
    from passes.replay.meshes import ReplayPass

SCHEMA = "dnnc.plan/2"
MOST_MEMBERS = 1 << 16
"""Of a mesh along one axis."""
READ = (SCHEMA, "dnnc.plan/1")
"""Schemas that can be read."""


def plan_to_json(module: Module) -> dict[str, Any]:
    """``plan.json`` of a module that holds a plan and, on its entry function's ops, the stages. Raises ValueError without."""
    plan = module.first(Plan)
    if plan is None:
        raise ValueError(f"module {module.name} has no plan")
    topology = module.first(Topology)
    forward = undifferentiated(module)
    members = ops_of_stages(forward, plan)
    attributes = {key: attribute.value for key, attribute in module.entry.attributes}
    original = copied(forward.entry)
    sharding: dict[str, Any] = {}
    decisions: dict[int, dict[str, Any]] = {}
    if "shard.uneven" in attributes:
        from passes.model.spmd.plan.parts import stage_parts

        sharding["uneven"] = bool(attributes.get("shard.uneven"))
        if "shard.memory" in attributes:
            sharding["memory"] = attributes["shard.memory"]
        parts = [part for part in stage_parts(forward) if len(part.mesh.devices) > 1]
        decisions = {part.index: _decisions(forward, part, plan, original) for part in parts}
    return {
        "schema": SCHEMA,
        "objective": plan.objective,
        "comm": plan.comm,
        **({"sharding": sharding} if sharding else {}),
        "topology": bare(topology.name) if topology else "",
        "value": _number(plan.value),
        "port_value": _number(plan.port_value),
        "bound": _number(plan.bound),
        "gap": _number(plan.gap),
        "status": plan.status,
        "single": _number(plan.single),
        "stages": [
            {**_stage(stage, members[stage.index], plan.in_steps), **decisions.get(stage.index, {})} for stage in plan.stages
        ],
        "cuts": _cuts(module, plan, topology),
        "certificate": dict(plan.certificate),
        **({"microbatches": plan.microbatches} if plan.minimises.trains else {}),
        **({"flush": False} if not plan.flush else {}),
    }


def ops_of_stages(module: Module, plan: Plan) -> dict[int, list[str]]:
    """The ops of each stage by their names, in the order in which they stand; one that runs in several stages is in each."""
    members: dict[int, list[str]] = {stage.index: [] for stage in plan.stages}
    original = copied(module.entry)  # a stage's own copy of an op is listed by the op's name
    for op in plain(module).entry.ops:
        for index in op.facet(StageSet, StageSet(())).stages:
            members.setdefault(index, []).append(bare(original.get(op.id, op.id)))
    return members


def plan_text(data: Any, indent: str = "\n") -> str:
    """JSON to edit: what has a line of its own (an op of a list, the strategies of an op) is one line."""
    deeper = indent + " "
    if isinstance(data, dict) and any(isinstance(value, dict | list) for value in data.values()):
        rows = (f"{_json(key)}: {plan_text(value, deeper)}" for key, value in data.items())
        return f"{{{deeper}{f',{deeper}'.join(rows)}{indent}}}"
    if isinstance(data, list) and data:
        return f"[{deeper}{f',{deeper}'.join(plan_text(value, deeper) for value in data)}{indent}]"
    return _json(data)


def _json(data: Any) -> str:
    return visible_json(json.dumps(data, ensure_ascii=False, allow_nan=False))


def plan_from_json(data: Any, where: str = "plan.json") -> Plan:
    """The plan that ``plan_to_json`` wrote. Raises InvalidInput with the path of the entry that is wrong."""
    reader = _Reader(where)
    root = reader.schema(data)
    stages = []
    for position, entry in enumerate(reader.items(root, "stages", "")):
        at = f"stages[{position}]"
        item = reader.mapping(entry, at)
        seconds, memory = (reader.mapping(item.get(key, {}), f"{at}.{key}") for key in ("seconds", "memory"))
        devices = reader.devices(item, at)
        stages.append(
            PlanStage(
                index=reader.integer(item, "index", at),
                device_type=reader.text(item, "device_type", at, ""),
                devices=devices,
                replicas=1 if "mesh" in item else max(1, len(devices)),
                mesh="@" + reader.text(reader.mapping(item["mesh"], f"{at}.mesh"), "name", f"{at}.mesh", "")
                if "mesh" in item
                else "",
                collectives=reader.seconds({"collectives": 0.0, **seconds}, "collectives", f"{at}.seconds"),
                backward=reader.seconds({"backward": 0.0, **seconds}, "backward", f"{at}.seconds"),
                sync=reader.seconds({"sync": 0.0, **seconds}, "sync", f"{at}.seconds"),
                hidden=reader.seconds({"hidden": 0.0, **seconds}, "hidden", f"{at}.seconds"),
                ops=len(reader.items(item, "ops", at, mapping=isinstance(item.get("ops"), dict))),
                compute=reader.seconds(seconds, "compute", f"{at}.seconds"),
                receive=reader.seconds(seconds, "receive", f"{at}.seconds"),
                send=reader.seconds(seconds, "send", f"{at}.seconds"),
                weights=reader.integer(memory, "weights", f"{at}.memory", 0),
                workspace=reader.integer(memory, "workspace", f"{at}.memory", 0),
                buffers=reader.integer(memory, "buffers", f"{at}.memory", 0),
            )
        )
    certificate = reader.mapping(root.get("certificate", {}), "certificate")
    return Plan(
        name="@plan",
        objective=reader.objective(root),
        comm=reader.text(root, "comm", "", "sum"),
        value=reader.seconds(root, "value", ""),
        port_value=reader.seconds(root, "port_value", ""),
        bound=reader.seconds(root, "bound", ""),
        status=reader.text(root, "status", "", "feasible"),
        single=reader.seconds(root, "single", ""),
        stages=tuple(stages),
        certificate=tuple(sorted((str(key), str(value)) for key, value in certificate.items())),
        microbatches=reader.microbatches(root),
        flush=reader.flag({"flush": True, **root}, "flush", ""),
    )


def read_plan(path: str | Path) -> tuple[AssignPass | ReplayPass, str]:
    """The edited plan in ``path``, a plan.json or a plan.ir, as the pass that replays it, and the schedule of a plan.ir as
    text, empty where it has none. Raises InvalidInput: not a file, not JSON (or IR text), not a plan."""
    if Path(path).suffix == ".ir":
        data, schedule = _stated_in_text(Path(path))
        return replay_from_json(data, str(path)), schedule
    text = read_input_text(path, "a plan.json or plan.ir", LIMITS.document_bytes)
    data = parse_json(text, str(path), hint="check the commas of the lists that were edited")
    return replay_from_json(data, str(path)), ""


def _stated_in_text(path: Path) -> tuple[dict[str, Any], str]:
    """What plan.json would say of the module in a plan.ir, its stages, devices and layouts, and its schedule; the programs of
    its stages are made again. Raises InvalidInput, also where its layouts are not those that its strategies, kept weights and
    outputs lead to: an edit of one must not be lost."""
    from dnnc.onnx import DIALECTS
    from ir import load_module, print_symbol, read_text
    from passes.model.folding import expand

    stated = load_module(read_text(path), str(path), dialects=DIALECTS)
    module = expand(stated.without(Stage))  # stages follow from what is stated
    if module.first(Plan) is None:
        raise InvalidInput("the module has no plan", where=str(path), hint="plan.ir of a build has one")
    module = undifferentiated(module)
    if is_sharded(module) and (odd := odd_reshard(module)):
        hint = "plan.json holds the decisions alone: edit it, and all layouts follow"
        raise InvalidInput(f"the strategies of the ops lead to other changes of layout: {odd}", where=str(path), hint=hint)
    schedule = module.first(Schedule)
    return plan_to_json(module), print_symbol(schedule) if schedule is not None else ""


def replay_from_json(data: Any, where: str = "plan.json") -> AssignPass | ReplayPass:
    """The pass that gives a model the stages and devices of a plan, and of one that splits tensors the strategies. Raises
    InvalidInput with the path of the wrong entry."""
    reader = _Reader(where)
    root = reader.schema(data)
    splits = "sharding" in root
    told = _Told()
    seen = set()
    for position, entry in enumerate(reader.items(root, "stages", "")):
        at = f"stages[{position}]"
        item = reader.mapping(entry, at)
        index = reader.integer(item, "index", at, position)
        if index in seen:
            reader.fail(f"index {index} is used twice", at)
        seen.add(index)
        if "mesh" in item and not splits:
            hint = "plans of schema dnnc.plan/1 are replayed without meshes only: compile with the mesh again"
            reader.fail("the stage is on a mesh, and the plan has no 'sharding'", f"{at}.mesh", hint)
        told.devices += [f"{index}:{name}" for name in reader.devices(item, at)]
        if not item.get("ops"):
            reader.items({"ops": [], **item}, "ops", at, mapping="mesh" in item)
            reader.fail("the stage has no op", f"{at}.ops", hint="remove the stage and number the others 0, 1, ...")
        if "mesh" in item:
            _read_mesh_stage(reader, item, index, at, told)
        else:
            for number, name in enumerate(reader.items(item, "ops", at)):
                if not isinstance(name, str) or not name:
                    reader.fail(f"expected the name of an op, found {_shown(name)}", f"{at}.ops[{number}]")
                told.ops.append(f"{index}:{name}")
                told.strategies.append("")
    if not seen:
        reader.fail("there is no stage", "stages")
    if seen != set(range(len(seen))):
        reader.fail(f"stages are numbered {_shown(sorted(seen))}, expected 0 to {len(seen) - 1}", "stages")
    certificate = reader.mapping(root.get("certificate", {}), "certificate")
    bound, value = reader.seconds(root, "bound", ""), reader.seconds({"value": 0.0, **root}, "value", "")
    problem = reader.text(certificate, "problem", "certificate", "") if math.isfinite(bound) else ""
    objective, comm = reader.objective(root), reader.text(root, "comm", "", "sum")
    if not splits:
        return AssignPass(
            ops=tuple(told.ops),
            devices=tuple(told.devices),
            objective=objective,
            comm=comm,
            bound=bound if problem else 0.0,
            proof=reader.text(certificate, "bound", "certificate", "stated by the plan") if problem else "",
            problem=problem,
            microbatches=reader.microbatches(root) if "microbatches" in root else 0,
            flush=reader.flag({"flush": True, **root}, "flush", ""),
            source=where,
        )
    from passes.replay.meshes import ReplayPass

    if comm != "sum":
        reader.fail(f"comm '{_shown(comm)}' found; of plans that split tensors, 'sum' expected", "comm")
    sharding = reader.mapping(root["sharding"], "sharding")
    texts = {key: reader.text(certificate, key, "certificate", "") for key in sorted(certificate)} if problem else {}
    return ReplayPass(
        ops=tuple(told.ops),
        devices=tuple(told.devices),
        objective=objective,
        bound=bound if problem else 0.0,
        source=where,
        strategies=tuple(told.strategies),
        axes=tuple(told.axes),
        weights=tuple(told.weights),
        outputs=tuple(told.outputs),
        syncs=tuple(told.syncs),
        uneven=reader.flag(sharding, "uneven", "sharding"),
        memory=reader.limit(sharding, "memory", "sharding"),
        microbatches=reader.microbatches(root),
        value=value if math.isfinite(value) else 0.0,
        certificate=tuple(f"{key}={text}" for key, text in texts.items()),
    )


@dataclass(slots=True)
class _Told:
    """What stages state, as the options of the passes spell it."""

    ops: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    syncs: list[str] = field(default_factory=list)


def _read_mesh_stage(reader: _Reader, item: Mapping[str, Any], index: int, at: str, told: _Told) -> None:
    """Axes, ops with their strategies, weights and outputs of a stage on a mesh."""
    mesh = reader.mapping(item["mesh"], f"{at}.mesh")
    sizes = reader.mapping(mesh.get("axes"), f"{at}.mesh.axes")
    shares = reader.mapping(mesh.get("shares", {}), f"{at}.mesh.shares")
    for axis in shares:
        if axis not in sizes:
            reader.fail(f"the mesh has no axis '{_shown(axis)}'; it has {', '.join(sizes)}", f"{at}.mesh.shares")
    for axis in sizes:
        size = reader.integer(sizes, axis, f"{at}.mesh.axes")
        if not 1 <= size <= MOST_MEMBERS:
            reader.fail(f"axis '{_shown(axis)}' has {size} members, expected 1 to {MOST_MEMBERS}", f"{at}.mesh.axes")
        along = reader.items(shares, axis, f"{at}.mesh.shares") if shares else [size]
        numbers = [reader.integer({axis: share}, axis, f"{at}.mesh.shares") for share in along]
        if shares and len(numbers) != size:
            reader.fail(f"{len(numbers)} shares along '{_shown(axis)}', an axis of {_shown(size)}", f"{at}.mesh.shares")
        if shares and 0 in numbers:
            reader.fail(f"a share along '{_shown(axis)}' is 0, expected 1 or more", f"{at}.mesh.shares")
        told.axes.append(f"{index}:{','.join(map(str, numbers))}:{axis}")

    def by_axis(key: str, name: str, row: Any) -> list[str]:
        """A text per axis, in their order."""
        here = f"{at}.{key}.{_shown(name)}"
        found = reader.mapping(row, here)
        if not name:
            reader.fail("a name is empty", f"{at}.{key}")
        for axis in found:
            if axis not in sizes:
                reader.fail(f"the mesh has no axis '{_shown(axis)}'; it has {', '.join(sizes)}", here)
        for axis in sizes:
            if axis not in found:
                reader.fail(f"nothing is said of axis '{_shown(axis)}'", here)
        return [reader.text(found, axis, here, "") for axis in sizes]

    for name, row in reader.mapping(item.get("ops"), f"{at}.ops").items():
        told.ops.append(f"{index}:{name}")
        told.strategies.append(SEPARATOR.join(by_axis("ops", name, row)))
    for key, layouts in (("weights", told.weights), ("outputs", told.outputs)):
        for name, row in reader.mapping(item.get(key, {}), f"{at}.{key}").items():
            text = ", ".join(by_axis(key, name, row))
            try:
                read_placements(text)
            except InvalidInput as error:
                reader.fail(error.diagnostics[0].message[:200], f"{at}.{key}.{_shown(name)}")
            layouts.append(f"{index}:{text}:{name}")
    methods = reader.mapping(item.get("sync", {}), f"{at}.sync")
    for name in methods:
        text = reader.text(methods, name, f"{at}.sync", "")
        if not name:
            reader.fail("a name is empty", f"{at}.sync")
        try:
            read_sync(text)
        except InvalidInput as error:
            reader.fail(error.diagnostics[0].message, f"{at}.sync.{_shown(name)}")
        told.syncs.append(f"{index}:{text}:{name}")


def _quoted(value: object) -> str:
    return _shown(repr(value))


def _shown(value: object) -> str:
    """A value for a message: not longer than a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def bare(name: str) -> str:
    """A name without its sigil."""
    return name[1:] if name[:1] in "%@" else name


def _stage(stage: PlanStage, ops: list[str], training: bool) -> dict[str, Any]:
    return {
        "index": stage.index,
        "device": stage.devices[0] if len(stage.devices) == 1 else list(stage.devices),
        "device_type": stage.device_type,
        "seconds": {
            "compute": _number(stage.compute),
            **({"collectives": _number(stage.collectives)} if stage.mesh else {}),
            **({"backward": stage.backward, "sync": stage.sync} if training else {}),
            **({"hidden": stage.hidden} if stage.hidden else {}),
            "receive": _number(stage.receive),
            "send": _number(stage.send),
            **({"shared": dict(stage.shared)} if stage.shared else {}),
        },
        "memory": {"weights": stage.weights, "workspace": stage.workspace, "buffers": stage.buffers},
        "ops": ops,
    }


def _decisions(module: Module, part: StagePart, plan: Plan, original: Mapping[str, str]) -> dict[str, Any]:
    """What a stage on a mesh has besides."""
    from passes.model.spmd.layouts import is_kept

    axes = [axis.name for axis in part.mesh.axes]
    training = plan.minimises.trains
    own = {name for name, resource in module.resources.items() if is_kept(resource.type, training=training)}

    def by_axis(row: Iterable[object]) -> dict[str, str]:
        return dict(zip(axes, map(str, row), strict=True))

    decided = part.decisions
    methods = {name: sync_of(module.resources[name].facets) for name in decided.kept if name in own}
    synced = {bare(name): sync_text(sync) for name, sync in methods.items() if sync.method != SYNCS[0]}
    return {
        "mesh": {
            "name": bare(plan.stages[part.index].mesh),
            "axes": {axis.name: axis.size for axis in part.mesh.axes},
            **({"shares": {axis.name: list(axis.shares) for axis in part.mesh.axes}} if part.mesh.shares else {}),
        },
        "ops": {bare(original.get(name, name)): by_axis(names) for name, names in decided.strategies.items()},
        "weights": {bare(name): by_axis(lies) for name, lies in decided.kept.items() if name in own},
        "outputs": {bare(name): by_axis(lies) for name, lies in decided.outputs.items()},
        **({"sync": synced} if synced else {}),
    }


def _cuts(module: Module, plan: Plan, topology: Topology | None) -> list[dict[str, Any]]:
    """Tensors between stages; seconds of one message on its route once the stages have devices."""
    cuts = cuts_of(module.entry)
    placed = topology is not None and all(stage.devices for stage in plan.stages)
    seconds = [max(wire.send, wire.receive) for wire in workload(module).wires] if placed else [math.inf] * len(cuts)
    return [
        {"tensor": bare(c.name), "from": c.source, "to": c.target, "bytes": c.nbytes, "seconds": _number(spent)}
        for c, spent in zip(cuts, seconds, strict=False)  # behind these are gradients that are not written out
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Reader:
    """Reads checked values out of decoded JSON; a wrong one is an InvalidInput naming file and entry."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, message: str, at: str, hint: str = "") -> NoReturn:
        place = f"{self.where}: {at}" if at else self.where
        raise InvalidInput(
            Diagnostic(message, where=place, hint=hint or "the file's form is that of plan.json in a build directory")
        )

    def schema(self, data: Any) -> Mapping[str, Any]:
        root = self.mapping(data, "")
        if root.get("schema") not in READ:
            self.fail(f"schema {_quoted(root.get('schema'))} found, '{SCHEMA}' expected", "")
        return root

    def mapping(self, value: Any, at: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"expected an object, found {type(value).__name__}", at)
        return value

    def items(self, parent: Mapping[str, Any], key: str, at: str, *, mapping: bool = False) -> list[Any]:
        """A list, or with ``mapping`` the keys of an object."""
        value = parent.get(key)
        if not isinstance(value, dict if mapping else list):
            wanted = "object" if mapping else "list"
            self.fail(f"expected the {wanted} '{key}', found {'nothing' if value is None else type(value).__name__}", at)
        return list(value)

    def flag(self, parent: Mapping[str, Any], key: str, at: str) -> bool:
        value = parent.get(key, False)
        if not isinstance(value, bool):
            self.fail(f"expected '{key}' as true or false, found {_shown(value)}", at)
        return value

    def integer(self, parent: Mapping[str, Any], key: str, at: str, default: int | None = None) -> int:
        value = parent.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST_MEMORY:
            self.fail(f"expected '{key}' as a whole number, found {_quoted(value)}", at)
        return value

    def objective(self, root: Mapping[str, Any]) -> str:
        name = self.text(root, "objective", "", THROUGHPUT.name)
        if name not in (objective.name for objective in OBJECTIVES):
            self.fail(f"objective is '{_shown(name)}', expected {names(OBJECTIVES)}", "objective")
        return name

    def microbatches(self, parent: Mapping[str, Any]) -> int:
        """Microbatches of a training step, 0 of a stream; 1 where nothing is said."""
        value = self.integer(parent, "microbatches", "", 1)
        if not 0 <= value <= MOST_MICROBATCHES:
            self.fail(f"expected 'microbatches' from 0 to {MOST_MICROBATCHES}, found {value}", "microbatches")
        return value

    def limit(self, parent: Mapping[str, Any], key: str, at: str) -> int:
        """Bytes; -1: no limit, 0: the one that there is anyway."""
        return -1 if parent.get(key) == -1 else self.integer(parent, key, at, 0)

    def seconds(self, parent: Mapping[str, Any], key: str, at: str) -> float:
        value = parent.get(key)
        if value is None:
            return math.inf
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_seconds(value):
            self.fail(f"expected '{key}' in seconds, found {_shown(value)}", at)
        return float(value)

    def text(self, parent: Mapping[str, Any], key: str, at: str, default: str) -> str:
        value = parent.get(key, default)
        if not isinstance(value, str):
            self.fail(f"expected '{key}' as text, found {_quoted(value)}", at)
        return str(value)

    def devices(self, parent: Mapping[str, Any], at: str) -> tuple[str, ...]:
        value = parent.get("device", [])
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            self.fail(f"expected 'device' as a name or a list of names, found {_quoted(value)}", at)
        return tuple(names)
