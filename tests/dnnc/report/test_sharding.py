"""Tables of sharded plans: layers of equal cost share a row, layouts read as in the IR, plans that there are not say why."""

from __future__ import annotations

import math
from dataclasses import replace

from dnnc.report import block_table, comparison_rows, comparison_table, layers_json, layers_table, mesh_text, stages_table
from ir.core.module import Plan, PlanStage
from ir.core.ops import Op, Value
from ir.core.types import Partial, Replicate, Shard
from passes.meshes.costs.bill import Collective
from passes.partition.alternatives import Alternative
from passes.plan.layers import Layer, OpRow

STAGE = PlanStage(0, "@gpu", ("a", "b", "c", "d"), 4, 2e-3, 0.0, 0.0, mesh="@mesh", collectives=1e-3)
PLAN = Plan("@plan", "throughput", "sum", 3e-3, 3e-3, 3e-3, "optimal", 9e-3, (STAGE,))


def row(name: str, *collectives: Collective) -> OpRow:
    return OpRow(
        Op("onnx.MatMul", ("%x", "@w"), (Value(f"%{name}.dense"),)),
        ("b0", "k"),
        (("%x", (Shard(0), Shard(2))), ("@w", (Replicate(), Shard(0)))),
        ((f"%{name}.dense", (Shard(0), Partial("sum"))),),
        (("@w", (Replicate(), Shard(0))),),
        1e-3,
        collectives,
    )


def layer(number: int) -> Layer:
    name = f"h.{number}"
    return Layer(name, 0, 1, (row(name, Collective("all_reduce", "y", f"%{name}.dense", 2048.0, 5e-4)),))


def cells(table: object) -> list[dict[str, str]]:
    heads = [column.header for column in table.columns]  # type: ignore[attr-defined]
    return [dict(zip(heads, line, strict=True)) for line in table.rows]  # type: ignore[attr-defined]


def test_equal_layers_share_a_row() -> None:
    lines = cells(layers_table([layer(0), layer(1), layer(2), replace(layer(3), block=-1)]))
    assert [(line["layer"], line["layers"]) for line in lines] == [("h.0 .. h.2", "3"), ("h.3", "1")]
    assert lines[0]["all-reduce"] == "1, 2 KiB"
    assert lines[0]["seconds each"] == "1.50 ms"
    assert "all-gather" not in lines[0], "kinds that nothing needs have no column"
    assert [one["collectives"] for one in layers_json([layer(0)])] == [
        {"all_reduce": {"count": 1, "bytes": 2048.0, "seconds": 5e-4}}
    ]


def test_a_row_of_a_block() -> None:
    (line,) = cells(block_table(layer(7)))
    assert line["op"] == "dense"
    assert line["strategy"] == "b0 ; k"
    assert (line["reads"], line["makes"], line["weight"]) == ("(S(0) S(2)), (R S(0))", "(S(0) P(sum))", "(R S(0))")
    assert (line["collective"], line["bytes"], line["seconds"]) == ("all-reduce y", "2 KiB", "500 us")


def test_comparison() -> None:
    others = (
        Alternative("data", missing="the batch of 1 cannot be split"),
        Alternative("megatron", 6e-3, 4e-3, 2e-3, 1 << 20, fits=False),
        Alternative("replicate", 9e-3, 9e-3),
    )
    lines = {line["plan"]: line for line in cells(comparison_table(comparison_rows(PLAN, others)))}
    assert list(lines) == ["found", "data parallel", "Megatron", "one device"]
    assert lines["found"]["ratio"] == "1.00x"
    assert (lines["Megatron"]["ratio"], lines["Megatron"][""]) == ("2.00x", "does not fit")
    assert lines["data parallel"][""] == "the batch of 1 cannot be split"
    assert lines["one device"]["ratio"] == "3.00x"
    rows = comparison_rows(replace(PLAN, single=math.inf), others)
    assert rows[-1]["seconds"] is None
    assert not rows[-1]["fits"]


def test_stages_on_meshes_and_devices() -> None:
    (line,) = cells(stages_table(PLAN, {0: (2, 2)}))
    assert (line["mesh"], line["seconds"], line["collectives"]) == ("2x2 a..d", "3.00 ms", "1.00 ms")
    assert mesh_text(replace(STAGE, devices=("a", "b")), (2,)) == "2 a,b"
    alone = replace(STAGE, mesh="", collectives=0.0, devices=("a",))
    (line,) = cells(stages_table(replace(PLAN, stages=(alone,)), {}))
    assert line["device"] == "a"
