"""``plan.json``: the decision as a person or a script reads it, and edits it.

Schema ``dnnc.plan/1``::

    {"schema": "dnnc.plan/1",
     "objective": "throughput", "comm": "sum", "topology": "cpu2",
     "value": 0.0021, "port_value": 0.0021, "bound": 0.0020, "gap": 0.05, "status": "feasible", "single": 0.0041,
     "stages": [{"index": 0, "device": "cpu0", "device_type": "core",
                 "seconds": {"compute": 0.002, "receive": 0.0, "send": 0.0001},
                 "memory": {"weights": 4096, "workspace": 1024, "buffers": 0},
                 "ops": ["h", "a"]}, ...],
     "cuts": [{"tensor": "a", "from": 0, "to": 1, "bytes": 512, "seconds": 0.0001}],
     "certificate": {...}}

A stage on a mesh has besides, where ``"device"`` lists the members of the mesh row by row::

    "mesh": {"name": "mesh", "axes": {"x": 2, "y": 2}},
    "seconds": {..., "collectives": 0.0004},
    "shardings": {"h": {"strategy": {"x": "n", "y": "d0"}, "layouts": {"h": ["S(1)", "S(0)"]}}},
    "weights": {"fc1.weight": ["S(1)", "R"]}

that is, of each op the strategy of its layout rule along each axis and how its results lie (``S(d)`` a shard of dimension d,
``R`` replicated, ``P(sum)`` terms), and how each weight is kept; where members get unequal parts, ``mesh`` has ``shares`` too,
``{"x": [3, 1], "y": [1, 1]}``. Such a plan is not replayed. One of training says how many ``"microbatches"`` a step has, of
each stage's seconds (per microbatch, forward and backward) what the ``"backward"`` pass takes, and how long gradients of
weights are synchronised once a step (``"sync"``).

Seconds are per sample, memory in bytes, ``null`` stands for infinite seconds (``single``: the model fits no single device).
``device`` is a list of names for a replicated stage. An op is named by its first result, without the sigil; an op that runs
in several stages is listed in each.

Replaying (``dnnc compile MODEL -t TOPOLOGY --plan plan.json``) reads ``objective``, ``comm`` and of each stage
``device`` and ``ops``; ``bound`` is kept where ``certificate.problem`` says that it was proven for the same model and
topology: to move an op, move its line; to move a stage, change its device; a stage without ``device`` is placed by the
compiler; an empty stage is an error, as is an op that is not listed or not known. Everything else is computed again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ir.diagnostics import Diagnostic, InvalidInput
from ir.facets import ShardRule, StageSet
from ir.module import Mesh, Module, Plan, PlanStage
from ir.topology import Topology
from ir.types import TensorType, Type
from passes.assign import AssignPass
from passes.lower import cuts_of
from passes.place import workload
from passes.sharded import SEPARATOR, kept_layouts

SCHEMA = "dnnc.plan/1"


def plan_to_json(module: Module) -> dict[str, Any]:
    """``plan.json`` of a module that holds a plan and, on its entry function's ops, the stages. Raises ValueError without."""
    plan = module.first(Plan)
    if plan is None:
        raise ValueError(f"module {module.name} has no plan")
    topology = module.first(Topology)
    members: dict[int, list[str]] = {stage.index: [] for stage in plan.stages}
    for op in module.entry.ops:
        for index in op.facet(StageSet, StageSet(())).stages:
            members.setdefault(index, []).append(bare(op.id))
    return {
        "schema": SCHEMA,
        "objective": plan.objective,
        "comm": plan.comm,
        "topology": bare(topology.name) if topology else "",
        "value": _number(plan.value),
        "port_value": _number(plan.port_value),
        "bound": _number(plan.bound),
        "gap": _number(plan.gap),
        "status": plan.status,
        "single": _number(plan.single),
        "stages": [
            {**_stage(stage, members[stage.index], plan.objective == "training"), **_sharding(module, stage)}
            for stage in plan.stages
        ],
        "cuts": _cuts(module, plan, topology),
        "certificate": dict(plan.certificate),
        **({"microbatches": plan.microbatches} if plan.objective == "training" else {}),
    }


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
                ops=len(reader.items(item, "ops", at)),
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
        objective=reader.text(root, "objective", "", "throughput"),
        comm=reader.text(root, "comm", "", "sum"),
        value=reader.seconds(root, "value", ""),
        port_value=reader.seconds(root, "port_value", ""),
        bound=reader.seconds(root, "bound", ""),
        status=reader.text(root, "status", "", "feasible"),
        single=reader.seconds(root, "single", ""),
        stages=tuple(stages),
        certificate=tuple(sorted((str(key), str(value)) for key, value in certificate.items())),
        microbatches=reader.integer(root, "microbatches", "", 1),
    )


def read_plan(path: str | Path) -> AssignPass:
    """The edited plan in ``path`` as the pass that replays it. Raises InvalidInput: not a file, not JSON, not a plan."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput("no such file; expected a plan.json", where=str(path)) from None
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise InvalidInput(
            f"not valid JSON: {error.msg}", where=where, hint="check the commas of the lists that were edited"
        ) from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, a number of too many digits
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from error
    return assign_from_json(data, str(path))


def assign_from_json(data: Any, where: str = "plan.json") -> AssignPass:
    """The pass that gives a model the stages and devices of a plan. Raises InvalidInput with the path of the wrong entry."""
    reader = _Reader(where)
    root = reader.schema(data)
    ops, devices, seen = [], [], set()
    for position, entry in enumerate(reader.items(root, "stages", "")):
        at = f"stages[{position}]"
        item = reader.mapping(entry, at)
        index = reader.integer(item, "index", at, position)
        if index in seen:
            reader.fail(f"index {index} is used twice", at)
        seen.add(index)
        if "mesh" in item:
            reader.fail("the stage is on a mesh, which is not replayed", f"{at}.mesh", hint="compile with the mesh instead")
        devices += [f"{index}:{name}" for name in reader.devices(item, at)]
        names = reader.items(item, "ops", at)
        for number, name in enumerate(names):
            if not isinstance(name, str) or not name:
                reader.fail(f"expected the name of an op, found {name!r}", f"{at}.ops[{number}]")
        ops += [f"{index}:{name}" for name in names]
        if not names:
            reader.fail("the stage has no op", f"{at}.ops", hint="remove the stage and number the others 0, 1, ...")
    if not seen:
        reader.fail("there is no stage", "stages")
    if seen != set(range(len(seen))):
        reader.fail(f"stages are numbered {sorted(seen)}, expected 0 to {len(seen) - 1}", "stages")
    certificate = reader.mapping(root.get("certificate", {}), "certificate")
    bound = reader.seconds(root, "bound", "")
    problem = reader.text(certificate, "problem", "certificate", "") if math.isfinite(bound) else ""
    return AssignPass(
        ops=tuple(ops),
        devices=tuple(devices),
        objective=reader.text(root, "objective", "", "throughput"),
        comm=reader.text(root, "comm", "", "sum"),
        bound=bound if problem else 0.0,
        proof=reader.text(certificate, "bound", "certificate", "stated by the plan") if problem else "",
        problem=problem,
        source=where,
    )


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
            "receive": _number(stage.receive),
            "send": _number(stage.send),
        },
        "memory": {"weights": stage.weights, "workspace": stage.workspace, "buffers": stage.buffers},
        "ops": ops,
    }


def _sharding(module: Module, stage: PlanStage) -> dict[str, Any]:
    """What is added for a stage on a mesh."""
    mesh = module.symbol(stage.mesh)
    if not isinstance(mesh, Mesh):
        return {}
    axes = [name for name, _ in mesh.axes]
    ops = [op for op in module.entry.ops if stage.index in op.facet(StageSet, StageSet(())).stages]
    shardings = {}
    for op in ops:
        rule = op.facet(ShardRule)
        layouts = {bare(value.name): _placements(value.type, mesh) for value in op.results if value.name}
        strategy = dict(zip(axes, rule.rule.split(SEPARATOR), strict=False)) if rule else {}
        shardings[bare(op.id)] = {"strategy": strategy, "layouts": layouts}
    kept = kept_layouts(module, stage.index, mesh)
    return {
        "mesh": {
            "name": bare(mesh.name),
            "axes": dict(mesh.axes),
            **({"shares": dict(zip(axes, map(list, mesh.cuts), strict=True))} if mesh.shares else {}),
        },
        "shardings": shardings,
        "weights": {bare(name): [str(p) for p in placements] for name, placements in kept.items()},
    }


def _placements(type_: Type, mesh: Mesh) -> list[str]:
    layout = type_.layout if isinstance(type_, TensorType) else None
    return [str(p) for p in layout.placements] if layout else ["R"] * len(mesh.axes)


def _cuts(module: Module, plan: Plan, topology: Topology | None) -> list[dict[str, Any]]:
    """Tensors between stages; seconds of one message on its route once the stages have devices."""
    cuts = cuts_of(module.entry)
    placed = topology is not None and all(stage.devices for stage in plan.stages)
    seconds = [max(wire.send, wire.receive) for wire in workload(module).wires] if placed else [math.inf] * len(cuts)
    return [
        {"tensor": bare(c.tensor.name), "from": c.source, "to": c.target, "bytes": c.nbytes, "seconds": _number(spent)}
        for c, spent in zip(cuts, seconds, strict=True)
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
        if root.get("schema") != SCHEMA:
            self.fail(f"schema {root.get('schema')!r} found, '{SCHEMA}' expected", "")
        return root

    def mapping(self, value: Any, at: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"expected an object, found {type(value).__name__}", at)
        return value

    def items(self, parent: Mapping[str, Any], key: str, at: str) -> list[Any]:
        value = parent.get(key)
        if not isinstance(value, list):
            self.fail(f"expected the list '{key}', found {'nothing' if value is None else type(value).__name__}", at)
        return value

    def integer(self, parent: Mapping[str, Any], key: str, at: str, default: int | None = None) -> int:
        value = parent.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.fail(f"expected '{key}' as a whole number, found {value!r}", at)
        return value

    def seconds(self, parent: Mapping[str, Any], key: str, at: str) -> float:
        value = parent.get(key)
        if value is None:
            return math.inf
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
            self.fail(f"expected '{key}' in seconds, found {str(value)[:80]}", at)
        return float(value)

    def text(self, parent: Mapping[str, Any], key: str, at: str, default: str) -> str:
        value = parent.get(key, default)
        if not isinstance(value, str):
            self.fail(f"expected '{key}' as text, found {value!r}", at)
        return str(value)

    def devices(self, parent: Mapping[str, Any], at: str) -> tuple[str, ...]:
        value = parent.get("device", [])
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            self.fail(f"expected 'device' as a name or a list of names, found {value!r}", at)
        return tuple(names)
