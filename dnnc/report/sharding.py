"""Shows a sharded plan: stages with their meshes, collectives of each layer, one block op by op, and other plans.

``passes.plan.layers`` and ``passes.partition.alternatives`` compute the data; here it becomes tables, and JSON with
exact numbers. Layouts are written as in the IR, one placement per mesh axis: ``S(1)`` is a shard of dimension 1, ``R`` the
whole value, ``P(sum)`` a term of a sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dnnc.report.plan import plan_table
from dnnc.report.tables import Table, columns
from ir.core.module import Mesh, Module, Plan, PlanStage
from ir.core.types import Placement, Replicate
from ir.ops.opdefs import COLLECTIVES
from ir.text.units import bytes_text, percent_text, ratio_text, seconds_text
from passes.stages.load import stage_seconds

if TYPE_CHECKING:
    from passes.meshes.costs.bill import Collective
    from passes.partition.alternatives import Alternative
    from passes.plan.layers import Layer, OpRow


def mesh_axes(module: Module) -> dict[int, tuple[int, ...]]:
    """Axis sizes of each stage on a mesh."""
    plan, meshes = module.first(Plan), {mesh.name: mesh for mesh in module.of_type(Mesh)}
    stages = plan.stages if plan else ()
    return {stage.index: tuple(size for _, size in meshes[stage.mesh].axes) for stage in stages if stage.mesh}


def mesh_shares(module: Module) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Shares of the members along each axis, for each stage on a mesh with unequal shares."""
    plan, meshes = module.first(Plan), {mesh.name: mesh for mesh in module.of_type(Mesh)}
    stages = plan.stages if plan else ()
    return {stage.index: meshes[stage.mesh].shares for stage in stages if stage.mesh and meshes[stage.mesh].shares}


def shares_lines(module: Module) -> str:
    """The shares of members that get unequal parts, a line for each such stage; each line starts with a newline."""
    plan, lines = module.first(Plan), []
    devices = {stage.index: stage.devices for stage in (plan.stages if plan else ())}
    for index, along in mesh_shares(module).items():
        every = map(math.prod, itertools.product(*along))
        parts = []
        for share, held in itertools.groupby(zip(devices[index], every, strict=True), key=lambda pair: pair[1]):
            names = [device for device, _ in held]
            parts += [f"{names[0]}..{names[-1]} {share} each"] if len(names) > 2 else [f"{name} {share}" for name in names]
        lines.append(f"\nstage {index} splits in unequal parts: {', '.join(parts)}")
    return "".join(lines)


def mesh_text(stage: PlanStage, sizes: Sequence[int] = ()) -> str:
    """``2x4 gpu0..gpu7``: axis sizes and devices of a stage; only the device if there is one."""
    names = stage.devices
    span = f"{names[0]}..{names[-1]}" if len(names) > 2 else ",".join(names)
    return f"{'x'.join(map(str, sizes))} {span}" if sizes else span


def stages_table(plan: Plan, axes: Mapping[int, Sequence[int]]) -> Table:
    """One row per stage, with seconds of collectives if a stage is on a mesh. ``axes``: axis sizes by stage."""
    if not plan.on_meshes:
        return plan_table(plan)
    seconds = [stage_seconds(stage, plan.comm) for stage in plan.stages]
    slowest = max(seconds, default=0.0)
    rows = [
        (
            str(stage.index),
            mesh_text(stage, axes.get(stage.index, ())),
            str(stage.ops),
            seconds_text(total),
            seconds_text(stage.compute),
            seconds_text(stage.collectives),
            seconds_text(stage.receive + stage.send),
            bytes_text(stage.memory),
            percent_text(total / slowest) if slowest > 0 else "-",
        )
        for stage, total in zip(plan.stages, seconds, strict=True)
    ]
    return Table(columns("stage <mesh ops seconds compute collectives transfers memory share"), tuple(rows))


# -- layers ------------------------------------------------------------------------------------------------------------


def layers_table(layers: Sequence[Layer]) -> Table:
    """One row per layer; consecutive equal layers share one. Seconds of compute; number, bytes and seconds of each kind of
    collective."""
    kinds = [kind for kind in COLLECTIVES if any(kind in layer.totals() for layer in layers)]
    rows = []
    for same in _runs(layers):
        layer, totals = same[0], same[0].totals()
        cells = [_counted(*totals[kind][:2]) if kind in totals else "-" for kind in kinds]
        name = layer.name if len(same) == 1 else f"{layer.name} .. {same[-1].name}"
        rows.append(
            (
                str(layer.stage),
                name,
                str(len(same)),
                seconds_text(layer.compute),
                *cells,
                seconds_text(layer.communication),
                seconds_text(layer.compute + layer.communication),
            )
        )
    heads = " ".join(kind.replace("_", "-") for kind in kinds)
    return Table(columns(f"stage <layer layers compute {heads} collectives seconds_each"), tuple(rows))


def _counted(count: int, size: float) -> str:
    """Number of collectives and their total bytes."""
    return f"{count}, {bytes_text(size)}"


def _runs(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Runs of consecutive layers with equal cost."""
    runs: list[list[Layer]] = []
    for layer in layers:
        key = _shape(layer)
        if runs and layer.block >= 0 and _shape(runs[-1][-1]) == key:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _shape(layer: Layer) -> tuple[object, ...]:
    return (layer.stage, layer.block, f"{layer.compute:.9e}", tuple(layer.totals().items()))


# -- one block ---------------------------------------------------------------------------------------------------------


def block_table(layer: Layer) -> Table:
    """One row per op: strategy per axis, layouts of operands and results, storage of its weights, collectives after it."""
    rows = []
    for row in layer.rows:
        rows.append(
            (
                _short(row.op.id, layer.name),
                row.op.name.partition(".")[2],
                " ; ".join(row.strategies),
                ", ".join(_lies(lies) for name, lies in row.operands if name and not _small(row, name)),
                ", ".join(_lies(lies) for _, lies in row.results),
                ", ".join(_lies(lies) for _, lies in row.kept) or "-",
                seconds_text(row.compute),
                ", ".join(_collective(one, row) for one in row.collectives) or "-",
                bytes_text(sum(one.size for one in row.collectives)) if row.collectives else "-",
                seconds_text(sum(one.seconds for one in row.collectives)) if row.collectives else "-",
            )
        )
    heads = "<op <operator <strategy <reads <makes <weight compute <collective bytes seconds"
    return Table(columns(heads), tuple(rows))


def _small(row: OpRow, name: str) -> bool:
    """Whether an operand is a constant that every device holds."""
    return name.startswith("@") and all(name != kept for kept, _ in row.kept)


def _lies(placements: Sequence[Placement]) -> str:
    """A layout as text; a single ``R`` for a value that is whole on all axes."""
    if all(isinstance(placement, Replicate) for placement in placements):
        return "R"
    return str(placements[0]) if len(placements) == 1 else f"({' '.join(map(str, placements))})"


def _collective(one: Collective, row: OpRow) -> str:
    """``all-reduce x``, marked if ``x`` is a weight or a gradient."""
    what = " weight" if any(one.value == name for name, _ in row.kept) else ""
    return f"{one.kind.replace('_', '-')} {one.axis}{what}{' backward' if one.backward else ''}"


def _short(name: str, layer: str) -> str:
    """The name of an op without the prefix of its layer."""
    return name.removeprefix("%").removeprefix(layer).lstrip("./") or name.removeprefix("%")


# -- comparison --------------------------------------------------------------------------------------------------------


def comparison_rows(plan: Plan, others: Sequence[Alternative]) -> list[dict[str, Any]]:
    """The plan, then the others: each with its ratio to the plan and whether it fits. ``missing`` says why there is none."""
    memory = max((stage.memory for stage in plan.stages), default=0)
    sums = [plan.microbatches * sum(getattr(stage, part) for stage in plan.stages) for part in ("compute", "collectives")]
    found = dict(plan.certificate).get("strategy", "")
    rows: list[dict[str, Any]] = [
        {"plan": found or "found", "seconds": plan.value, "ratio": 1.0, "compute": sums[0], "collectives": sums[1],
         "memory": memory, "fits": True, "missing": ""}
    ]  # fmt: skip
    for other in others:
        if other.name == found or other.name == "replicate":
            continue
        ratio = other.seconds / plan.value if plan.value > 0 and not other.missing else None
        rows.append(
            {
                "plan": _TITLES.get(other.name, other.name),
                "seconds": None if other.missing else other.seconds,
                "ratio": ratio,
                "compute": other.compute,
                "collectives": other.communication,
                "memory": other.memory,
                "fits": other.fits,
                "missing": other.missing,
            }
        )
    alone = math.isfinite(plan.single)
    rows.append(
        {
            "plan": "one device",
            "seconds": plan.single if alone else None,
            "ratio": plan.single / plan.value if alone and plan.value > 0 else None,
            "compute": plan.single if alone else None,
            "collectives": 0.0,
            "memory": None,
            "fits": alone,
            "missing": "" if alone else "it fits no single device",
        }
    )
    return rows


_TITLES = {
    "data": "data parallel",
    "megatron": "Megatron",
    "expert": "expert parallel",
    "equal": "equal parts",
}


def comparison_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows of ``comparison_rows`` as a table."""
    cells = []
    for row in rows:
        if row["missing"]:
            cells.append((row["plan"], "-", "-", "-", "-", "-", row["missing"]))
            continue
        ratio = ratio_text(row["ratio"]) if row["ratio"] is not None else "-"
        memory = bytes_text(row["memory"]) if row["memory"] is not None else "-"
        seconds = [seconds_text(row[key]) for key in ("seconds", "compute", "collectives")]
        cells.append((row["plan"], seconds[0], ratio, *seconds[1:], memory, "" if row["fits"] else "does not fit"))
    return Table(columns("<plan seconds ratio compute collectives memory <"), tuple(cells))


# -- JSON --------------------------------------------------------------------------------------------------------------


def layers_json(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Every layer separately, with exact numbers."""
    return [
        {
            "stage": layer.stage,
            "layer": layer.name,
            "block": layer.block if layer.block >= 0 else None,
            "ops": len(layer.rows),
            "compute": layer.compute,
            "communication": layer.communication,
            "collectives": {
                kind: {"count": count, "bytes": size, "seconds": seconds}
                for kind, (count, size, seconds) in layer.totals().items()
            },
        }
        for layer in layers
    ]


def block_json(layer: Layer) -> list[dict[str, Any]]:
    """The ops of a layer; layouts are texts per axis."""

    def lies(pairs: Sequence[tuple[str, Sequence[Placement]]]) -> dict[str, list[str]]:
        return {name: [str(placement) for placement in placements] for name, placements in pairs if name}

    return [
        {
            "op": row.op.id,
            "operator": row.op.name,
            "strategies": list(row.strategies),
            "operands": lies(row.operands),
            "results": lies(row.results),
            "weights": lies(row.kept),
            "compute": row.compute,
            "collectives": [
                {
                    "kind": one.kind,
                    "axis": one.axis,
                    "value": one.value,
                    "bytes": one.size,
                    "seconds": one.seconds,
                    "backward": one.backward,
                }
                for one in row.collectives
            ],
        }
        for row in layer.rows
    ]
