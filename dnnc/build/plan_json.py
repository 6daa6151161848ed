"""``plan.json``: the decision as a person or a script reads it, and edits it.

Schema ``dnnc.plan/2``::

    {"schema": "dnnc.plan/2",
     "objective": "throughput", "comm": "sum", "topology": "cpu2",
     "value": 0.0021, "port_value": 0.0021, "bound": 0.0020, "gap": 0.05, "status": "within-gap", "single": 0.0041,
     "stages": [{"index": 0, "device": "cpu0", "device_type": "core",
                 "seconds": {"compute": 0.002, "receive": 0.0, "send": 0.0001},
                 "memory": {"weights": 4096, "workspace": 1024, "buffers": 0},
                 "ops": ["h", "a"]}, ...],
     "cuts": [{"tensor": "a", "from": 0, "to": 1, "bytes": 512, "seconds": 0.0001}],
     "certificate": {...},
     "witness": [{"plans": "replicas", "bound": 0.0020, "prices": {"core": 0.5}}]}

``witness`` is what ``dnnc verify-plan DIR`` proves the bound by: a record for each form of plans that was searched, that of
one mesh with ``"memory"``, the price of a byte, where memory binds (``dnnc.check.witness``).

Seconds are per sample, memory in bytes, ``null`` stands for infinite seconds (``single``: the model fits no single device).
``device`` is a list of names for a replicated stage. An op is named by its first result, without the sigil; an op that runs
in several stages is listed in each.

A plan that splits tensors also has ``"sharding": {"memory": 0}``: bytes that each device may hold; 0: as the topology says,
-1: no limit.

A plan for training has ``"microbatches"`` per step; ``value``, ``bound`` and ``single`` are seconds per step. With 0
microbatches it trains on a stream without steps, and they are seconds per microbatch. With ``"flush": false`` they are seconds
from the start of one step to the start of the next, because the pipeline is not emptied between steps. With ``"recompute":
"stage"`` each stage runs its forward ops again in place of keeping their results. With ``"schedule": "zb-h1"`` the work of a
step is in another order than 1F1B. The seconds of a stage (per microbatch, forward and backward) include those of its
``"backward"`` pass. Once per step come ``"sync"``, seconds after the last backward pass in which gradients are synchronised and
weights updated, and ``"hidden"``, seconds of synchronisation during that pass.

A stage on a mesh lists the members of the mesh row by row in ``"device"``, and has::

    "mesh": {"name": "mesh", "axes": {"x": 2, "y": 2}},
    "seconds": {..., "collectives": 0.0004},
    "ops": {"h": {"x": "n", "y": "b0"}, "a": {"x": "d1", "y": "d0"}},
    "weights": {"fc1.weight": {"x": "S(1)", "y": "R"}},
    "outputs": {"a": {"x": "S(1)", "y": "S(0)"}}

Each op has a strategy of its layout rule per axis. Weights, and results of the model, have a placement per axis: ``S(d)``, a
shard of dimension d, or ``R``, replicated. All other layouts follow from these; ``plan.ir`` shows them. In training, ``"sync":
{"fc1.weight": "sfb", "fc1.bias": "ps(1)"}`` names weights whose gradients are not summed by all-reduce, but by
``reduce_scatter``, ``sfb``, or ``ps(i)`` through member i of the axis. Where members get unequal parts, ``mesh`` has
``shares``, ``{"x": [3, 1], "y": [1, 1]}``. The seconds have ``"shared": {"bus": 0.0003}`` for a link that transfers of other
stages cross too: the stage's own collectives keep it busy for so long.

Replaying (``dnnc compile MODEL -t TOPOLOGY --plan plan.json``) reads ``objective``, ``comm``, ``sharding``, ``microbatches``,
``flush``, ``recompute``, ``schedule``, and of each stage ``device``, ``ops``, axes and shares of its mesh, ``weights``,
``outputs`` and ``sync``; where a stage says ``sync``, weights without a line are summed by all-reduce. ``bound`` is kept where
``certificate.problem`` says that it was proven for the same model and topology, and on meshes for the same stages. To move an
op, move its line; to move a stage, change its device; to split an op differently, change its strategy. The compiler places a
stage without ``device``, unless the plan splits tensors, and gives a weight or result that is not listed the cheapest
placement. An empty stage is an error, and so is an op that is missing or unknown. All other entries are computed again.
``dnnc.plan/1`` is read where no stage is on a mesh.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dnnc.build.decoding import STOP, Decoding, State
from ir.core.diagnostics import visible_json
from ir.core.facets import SYNCS, StageSet, sync_of
from ir.core.module import Module, Plan, PlanStage, Schedule
from ir.core.names import bare
from ir.core.ops import all_reads
from ir.core.topology import Topology
from ir.core.types import TensorType, Type
from ir.text.witness import KEY as WITNESS
from ir.text.witness import Witness, read_witness
from passes.costs.learning import RECOMPUTE
from passes.graph.graph import cuts_of
from passes.meshes.notation import sync_text
from passes.meshes.reshard_ops import plain
from passes.meshes.undecided import copied, undifferentiated
from passes.timeline.families import DEFAULT, FAMILIES
from passes.timeline.workload import workload

if TYPE_CHECKING:
    from passes.plan.parts import StagePart

SCHEMA = "dnnc.plan/2"


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
    if attributes.keys() & {"shard.memory", "shard.uneven"}:  # the second alone: of an older dnnc, within the topology's memory
        from passes.plan.parts import stage_parts

        sharding["memory"] = attributes.get("shard.memory", 0)
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
            {
                **_stage(stage, members[stage.index], training=plan.in_steps, grouped=bool(module.states)),
                **decisions.get(stage.index, {}),
            }
            for stage in plan.stages
        ],
        "cuts": _cuts(module, plan, topology),
        **_decoding(module, plan, members),
        "certificate": {key: text for key, text in plan.certificate if key != WITNESS},
        **_witness(plan),
        **({"microbatches": plan.microbatches} if plan.minimises.trains else {}),
        **({"flush": False} if not plan.flush else {}),
        **({RECOMPUTE: attributes[RECOMPUTE]} if RECOMPUTE in attributes else {}),
        **_order(module, plan),
    }


def _order(module: Module, plan: Plan) -> dict[str, Any]:
    """The entry ``schedule`` of a training step whose order is not the default."""
    schedule = module.first(Schedule)
    kind = schedule.kind if plan.in_steps and schedule is not None else DEFAULT
    return {"schedule": kind} if kind in FAMILIES and kind != DEFAULT else {}


def _decoding(module: Module, plan: Plan, members: Mapping[int, list[str]]) -> dict[str, Any]:
    """The entry ``decoding`` of a module with states (``dnnc.build.decoding``)."""
    states = module.states
    if not states:
        return {}
    entry, resources = module.entry, module.resources
    facts = {key: attribute.value for key, attribute in entry.attributes}
    shapes = {value.name: _shape(value.type) for value in (*entry.args, *entry.results)}
    stage_of = {f"%{name}": stage for stage, names in members.items() for name in names}
    makers = {value.name: stage_of[op.id] for op in plain(module).entry.ops for value in op.results if op.id in stage_of}
    ids, position, logits = (str(facts.get(f"decoding.{key}", "")) for key in ("ids", "position", "logits"))

    def read_in(name: str) -> list[int]:
        return sorted({stage for op in entry.ops if name in all_reads(op) for stage in op.facet(StageSet, StageSet(())).stages})

    told = Decoding(
        states=tuple(
            State(bare(name), state.result, stage, type_.dtype.value, _shape(type_), state.axis)
            for name, state in states.items()
            if isinstance(type_ := resources[name].type, TensorType)
            for stage in (read_in(name) if not state.result else [makers.get(f"%{state.result}", 0)])
        ),
        ids=ids,
        position=position,
        logits=logits,
        batch=shapes[f"%{ids}"][0] if ids else 1,
        context=int(facts.get("decoding.context", 0)),
        groups=max(state.sets for state in states.values()),
        chunk=int(facts.get("decoding.chunk", 1)),
        vocabulary=shapes[f"%{logits}"][-1] if logits else 0,
        serving={stage.index: stage.serves for stage in plan.stages if stage.serves},
        inputs=dict(text.rsplit("=", 1) for text in facts.get("decoding.inputs", ())) or None,
        stop=tuple(facts.get(STOP, ())),
    )
    return {"decoding": told.to_json()}


def _shape(type_: Type) -> tuple[int, ...]:
    return tuple(dim for dim in (type_.shape or () if isinstance(type_, TensorType) else ()) if isinstance(dim, int))


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


def _stage(stage: PlanStage, ops: list[str], *, training: bool, grouped: bool) -> dict[str, Any]:
    """``grouped``: whether replicas serve groups of a decoder, which ``decoding`` tells."""
    return {
        "index": stage.index,
        "device": stage.devices[0] if len(stage.devices) == 1 else list(stage.devices),
        "device_type": stage.device_type,
        **({"serves": list(stage.serves)} if stage.serves and not grouped else {}),
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
    from passes.meshes.layouts import is_kept

    axes = [axis.name for axis in part.mesh.axes]
    training = plan.minimises.trains
    resources = module.resources
    own = {name for name, resource in resources.items() if is_kept(resource.type, training=training)}

    def by_axis(row: Iterable[object]) -> dict[str, str]:
        return dict(zip(axes, map(str, row), strict=True))

    decided = part.decisions
    methods = {name: sync_of(resources[name].facets) for name in decided.kept if name in own}
    synced = {bare(name): sync_text(sync) for name, sync in methods.items() if sync.method != SYNCS[0]}
    return {
        "mesh": {
            "name": bare(plan.stages[part.index].mesh),
            "axes": {axis.name: axis.size for axis in part.mesh.axes},
            **({"shares": {axis.name: list(axis.shares) for axis in part.mesh.axes}} if part.mesh.shares else {}),
        },
        "ops": {bare(original.get(name, name)): by_axis(names) for name, names in decided.strategies.items()},
        "weights": {bare(name): by_axis(placements) for name, placements in decided.kept.items() if name in own},
        "outputs": {bare(name): by_axis(placements) for name, placements in decided.outputs.items()},
        **({"sync": synced} if synced else {}),
    }


def _witness(plan: Plan) -> dict[str, Any]:
    """What proves the bound, where the plan tells it. A text that is none stays in the plan.ir alone."""
    try:
        records = read_witness(dict(plan.certificate).get(WITNESS, ""))
    except ValueError:
        return {}
    return {"witness": [witness_row(record) for record in records]} if records else {}


def witness_row(record: Witness) -> dict[str, Any]:
    """A record as ``plan.json`` has it."""
    memory = {"memory": record.memory} if record.memory else {}
    return {"plans": record.plans, "bound": _number(record.bound), "prices": dict(record.prices), **memory}


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
