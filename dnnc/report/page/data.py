"""What the page shows, as one JSON document: schema ``dnnc.report/1``.

- ``model`` .. ``status``, ``certificate``: those of the plan; ``headline``, ``table``: what the command prints of the plan;
- ``answers``: the first screen in sentences; ``inputs``, ``outputs``: of the model;
- ``stages``; ``runs`` of equal layers, of which ``variants`` has each distinct one with its ops (``COLUMNS``); ``edges``
  between ops of different runs (``blocks.Edge``) as [run, position, run, position, tensor, bytes];
- ``devices``, ``links``, ``transfers``: loads; ``period``: the seconds that 100 % of a load stands for;
- ``kinds`` of events; ``predicted``, ``measured``: timelines in seconds, ``timeline``: the predicted one as text; ``memory``:
  bytes of each device over time; ``check``: what a check compared (``_check``), null without one.

Null stands for unknown or infinite. Equal modules give equal documents: nothing here depends on the machine or the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dnnc.build.trace import TraceEvent
from dnnc.report.gantt import COLOURS, NAMES
from dnnc.report.page.answers import Facts, answers
from dnnc.report.page.blocks import Blocks, Edge, Run, blocks, formula_seconds, outputs_of
from dnnc.report.page.loads import devices_json, links_json, media_seconds, transfers_json
from dnnc.report.page.texts import exact, shown, span
from dnnc.report.page.tracks import memory_json, timeline, tracks_json
from dnnc.report.plan import plan_headline
from dnnc.report.sharding import block_table, mesh_axes, mesh_text, shares_lines, stages_table
from dnnc.report.tables import Table
from dnnc.report.timeline import timeline_text
from ir.core.module import Module, Plan, PlanStage
from ir.core.names import bare
from ir.core.topology import Topology
from ir.core.types import type_bytes, without_layout
from ir.system.collector import collector_paused
from passes.graph.folding import expand
from passes.plan.layers import Layer, OpRow
from passes.stages.load import stage_seconds
from passes.timeline.workload import workload

SCHEMA = "dnnc.report/1"


@collector_paused()
def page_data(module: Module, measured: Sequence[TraceEvent] = (), check: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document of a planned module, folded or not. ``measured``: the events of a run, empty for none; ``check``: what
    ``dnnc check --json`` printed. Raises ValueError for a module without a plan or without a topology."""
    module = expand(module)
    plan, topology = module.first(Plan), module.first(Topology)
    if plan is None or topology is None:
        raise ValueError(f"module {module.name} has no plan for machines")
    parts = blocks(module)
    predicted = timeline(module, parts)
    several = len(plan.stages) > 1 and all(stage.devices for stage in plan.stages)
    load = workload(module) if several else None
    media = media_seconds(module, plan, topology, load, parts)
    summary = predicted.summary if predicted is not None else None
    limits = {device.name: topology.memory(device) for device in topology.devices}
    facts = Facts(module, plan, topology, parts, summary, media, _pace(plan, measured), _verdict(check))
    axes = mesh_axes(module)
    document: dict[str, Any] = shown(
        {
            "schema": SCHEMA,
            "model": bare(module.name),
            "topology": bare(topology.name),
            "objective": plan.objective,
            "value": plan.value,
            "bound": plan.bound,
            "gap": plan.gap,
            "status": plan.status,
            "answers": answers(facts),
            "headline": [*plan_headline(plan).split("\n"), *shares_lines(module).strip().split("\n")],
            "certificate": dict(plan.certificate),
            "table": _table(stages_table(plan, axes)),
            "stages": [_stage(stage, plan, axes.get(stage.index, ())) for stage in plan.stages],
            "inputs": [{"name": bare(v.name), "type": str(without_layout(v.type))} for v in module.entry.args],
            "outputs": [{"name": bare(v.name), "type": str(without_layout(v.type))} for v in outputs_of(module)],
            "runs": _runs(parts),
            "edges": [_edge(edge) for edge in parts.edges],
            "variants": _variants(parts, formula_seconds(module)),
            "devices": devices_json(plan, topology, summary),
            "links": links_json(topology, media),
            "transfers": transfers_json(module, plan, load) if load is not None else [],
            "period": max(plan.value if plan.minimises.streams else 0.0, *media.values(), *facts.busy.values(), 0.0),
            "kinds": {
                kind: {"name": NAMES[kind], "colour": COLOURS[kind], "backward": kind in ("B", "I", "W")} for kind in NAMES
            },
            "timeline": timeline_text(summary).split("\n") if summary is not None else [],
            "predicted": tracks_json(predicted.events, predicted.groups) if predicted is not None else None,
            "measured": tracks_json(measured, {event.track: (event.track,) for event in measured}) if measured else None,
            "check": _check(check) if check is not None else None,
            "memory": memory_json(predicted, plan, limits) if predicted is not None else [],
        }
    )
    return document


def _pace(plan: Plan, events: Sequence[TraceEvent]) -> float | None:
    """The measured seconds to compare with the plan's value: those of a whole step where the plan is of one, else the mean
    between the ends of two microbatches of a stream. None where the plan is of neither or the events do not tell."""
    ends: dict[int, float] = {}
    for event in events:
        number = dict(event.args).get("microbatch")
        if isinstance(number, int) and event.kind not in ("U", "recv"):
            ends[number] = max(ends.get(number, 0.0), event.end)
    if not ends:
        return None
    if plan.in_steps:
        return max(event.end for event in events)
    if plan.minimises.streams and len(ends) > 1:
        return (max(ends.values()) - min(ends.values())) / (len(ends) - 1)
    return None


def _verdict(check: Mapping[str, Any] | None) -> str:
    """The verdict of a check in one line; empty without a check."""
    if check is None:
        return ""
    first = check.get("first_diverging_stage")
    return check["verdict"] or (
        f"failed: stage {first} is the first that diverges" if first is not None else "compared nothing"
    )


def _check(check: Mapping[str, Any]) -> list[list[Any]]:
    """Stage, device, tensor, differences alone and chained, the one that is allowed, and the verdict of each comparison."""
    keys = ("stage", "device", "tensor", "alone", "chained", "allowed_chained", "verdict")
    return [[one[key] for key in keys] for one in check["comparisons"]]


def _table(table: Table) -> dict[str, Any]:
    return {
        "columns": [{"name": column.header, "number": column.number} for column in table.columns],
        "rows": [list(row) for row in table.rows],
    }


def _stage(stage: PlanStage, plan: Plan, axes: Sequence[int]) -> dict[str, Any]:
    return {
        "index": stage.index,
        "devices": mesh_text(stage, axes) if stage.mesh else span(stage.devices) or f"({stage.device_type})",
        "mesh": "x".join(map(str, axes)),
        "replicas": stage.replicas,
        "ops": stage.ops,
        "seconds": stage_seconds(stage, plan.comm),
        "compute": stage.compute,
        "collectives": stage.collectives,
        "receive": stage.receive,
        "send": stage.send,
        "backward": stage.backward,
        "sync": stage.sync,
        "weights": stage.weights,
        "workspace": stage.workspace,
        "buffers": stage.buffers,
    }


def _runs(parts: Blocks) -> list[dict[str, Any]]:
    """The runs; layers of one name, such as the parts of a scope, are told apart by their operators."""
    names = Counter(_title(layer) for run in parts.runs for layer in run.layers)
    return [
        _run(run, [f"{name}: {_ops(layer)}" if names[name] > 1 else name for layer, name in _titled(run)]) for run in parts.runs
    ]


def _titled(run: Run) -> list[tuple[Layer, str]]:
    return [(layer, _title(layer)) for layer in run.layers]


def _run(run: Run, titles: Sequence[str]) -> dict[str, Any]:
    return {
        "stage": run.stage,
        "variant": run.variant,
        "layers": list(titles),
        "loops": run.loops,
        "compute": exact(sum(layer.compute for layer in run.layers)),
        "collectives": exact(sum(layer.communication for layer in run.layers)),
    }


def _title(layer: Layer) -> str:
    """The name of a layer or, where its ops name no scope, those of its first and last op."""
    if layer.block < 0 and layer.name != "model":
        return layer.name
    if layer.block >= 0 and not layer.name.startswith("block "):
        return layer.name
    return _ops(layer)


def _ops(layer: Layer) -> str:
    """The first and the last op of a layer."""
    first, last = (_short(row, layer.name) for row in (layer.rows[0], layer.rows[-1]))
    return first if first == last else f"{first} .. {last}"


def _edge(edge: Edge) -> list[Any]:
    return [*edge.source, *edge.target, bare(edge.tensor), edge.size]


COLUMNS = ("name", "operator", "compute", "collectives", "bytes", "weights", "type", "strategy", "exchange", "formula")
"""What the list of an op of a variant holds: its name and operator, seconds of compute and of collectives, bytes of its
results, number of its weights, type of its first result, strategy on a mesh, kinds and axes of its collectives; seconds
of compute by formulas, where a profile told those of ``compute``."""


def _variants(parts: Blocks, formulas: Mapping[tuple[int, str], float]) -> list[dict[str, Any]]:
    rows = []
    for layer, inner in zip(parts.variants, parts.inner, strict=True):
        prefix = layer.name if layer.block >= 0 else ""
        split = any(row.strategies for row in layer.rows)
        rows.append(
            {
                "ops": [_op(row, prefix, formulas.get((layer.stage, row.op.id))) for row in layer.rows],
                "edges": [list(pair) for pair in inner],
                "layouts": _table(block_table(layer)) if split else None,
            }
        )
    return rows


def _short(row: OpRow, prefix: str) -> str:
    """The name of an op without that of its layer."""
    return bare(row.op.id).removeprefix(prefix).lstrip("./") or bare(row.op.id)


def _op(row: OpRow, prefix: str, formula: float | None) -> list[Any]:
    """An op as ``COLUMNS`` says, its name without the layer's ``prefix``."""
    op = row.op
    weights = {name for name in op.operands if name.startswith("@")}
    kinds = dict.fromkeys(f"{one.kind.replace('_', '-')} {one.axis}" for one in row.collectives)
    return [
        _short(row, prefix),
        op.name.partition(".")[2],
        exact(row.compute),
        exact(sum(one.seconds for one in row.collectives)),
        sum(type_bytes(value.type) or 0 for value in op.results),
        len(weights),
        str(without_layout(op.results[0].type)) if op.results else "",
        " ; ".join(row.strategies),
        ", ".join(kinds),
        exact(formula) if formula is not None else None,
    ]
