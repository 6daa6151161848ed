"""What is told of a sharded plan adds up to the plan, whatever the mesh and the stages."""

from __future__ import annotations

from functools import lru_cache

import pytest

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from dnnc.report.sharding import comparison_rows
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module, Plan
from passes import parse_pipeline
from passes.framework.manager import PassManager
from passes.meshes.reshard_ops import plain
from passes.meshes.undecided import undecided
from passes.partition.alternatives import alternatives
from passes.plan.layers import layers, typical_block

WIDE = "zoo:bert-base,layers=3,hidden=64,heads=8,vocab=128,seq=16,batch=8"
"""For meshes of two axes."""
SPEC = "zoo:t5-base,layers=2,hidden=128,heads=8,ffn=256,vocab=512,seq=32,batch=4"


@lru_cache(maxsize=32)
def run(pipeline: str, spec: str = SPEC, topology: str = "preset:h100x8") -> Module:
    sink = DiagnosticSink()
    module = with_topology(load_model(spec, {}, sink).module, load_topology(topology, sink))
    return PassManager(parse_pipeline(pipeline)).run(module, pass_context(sink))


def planned(options: str, spec: str = SPEC, topology: str = "preset:h100x8") -> tuple[Module, Plan]:
    module = run(f"canonicalize,cost,partition{{{options}}}", spec, topology)
    plan = module.first(Plan)
    assert plan is not None
    return module, plan


@pytest.mark.parametrize(
    "options",
    [
        "mesh=4,stages=1",
        pytest.param("mesh=2x2,stages=1", marks=pytest.mark.slow),
        pytest.param("mesh=4,stages=1,strategy=megatron", marks=pytest.mark.slow),
        "mesh=2,stages=2",
        pytest.param("mesh=auto,stages=3", marks=pytest.mark.slow),
        "mesh=4,stages=1,objective=training",
    ],
)
def test_layers_add_up_to_the_plan(options: str) -> None:
    """Every op once, every second and every collective in one layer, stage by stage."""
    module, plan = planned(options, WIDE if "x" in options else SPEC)
    told = layers(module)
    assert sorted(row.op.id for layer in told for row in layer.rows) == sorted(op.id for op in plain(module).entry.ops)
    for stage in plan.stages:
        mine = [layer for layer in told if layer.stage == stage.index]
        updated = stage.sync / plan.microbatches  # of no layer; what is synchronised is among it
        assert stage.compute - updated <= sum(layer.compute for layer in mine) * (1 + 1e-9)
        assert sum(layer.compute for layer in mine) <= stage.compute * (1 + 1e-9)
        assert sum(layer.communication for layer in mine) == pytest.approx(stage.collectives)
        assert sum(len(layer.rows) for layer in mine) == stage.ops


def test_layers_are_called_as_in_the_model() -> None:
    module, _ = planned("mesh=4,stages=1")
    names = [layer.name for layer in layers(module)]
    for stack in ("encoder", "decoder"):
        assert [name for name in names if name.startswith(f"{stack}.block")] == [f"{stack}.block.{i}" for i in range(2)]
    block = typical_block(layers(module))
    assert block is not None
    assert block.name.startswith("decoder.block.")


@pytest.mark.slow
def test_rows_say_how_weights_are_kept_and_what_follows() -> None:
    module, _ = planned("mesh=4,stages=1,strategy=megatron")
    block = typical_block(layers(module))
    assert block is not None
    rows = {row.op.id.removeprefix(f"%{block.name}."): row for row in block.rows}
    assert [str(lies[0]) for _, lies in rows["ff.wi"].kept] == ["S(1)"]
    assert [str(lies[0]) for _, lies in rows["ff.wo"].kept] == ["S(0)"]
    assert str(rows["ff.wo"].results[0][1][0]) == "P(sum)"
    assert [one.kind for one in rows["ff.wo"].collectives] == ["all_reduce"]
    assert {name: count for name, (count, _, _) in block.totals().items()} == {"all_reduce": 3}


def test_the_block_that_is_shown_is_whole() -> None:
    """Where a stage ends inside a layer, another is shown; what is kept are weights."""
    module, _ = planned("mesh=1,stages=3", WIDE, "preset:h100x4")
    told = layers(module)
    block = typical_block(told)
    assert block is not None
    assert len(block.rows) == max(len(layer.rows) for layer in told if layer.block == block.block)
    assert all(name in module.resources for layer in told for row in layer.rows for name, _ in row.kept)


def test_nothing_repeats() -> None:
    module, _ = planned("mesh=4,stages=1", "zoo:mlp,layers=2", "preset:h100x8")
    assert typical_block(layers(module)) is None
    assert layers(module)


def test_alternatives_are_no_better_than_the_plan() -> None:
    module, plan = planned("mesh=4,stages=1")
    others = {other.name: other for other in alternatives(module)}
    assert list(others) == ["data", "megatron", "expert", "replicate"]
    for other in others.values():
        assert other.missing or other.seconds >= plan.value * (1 - 1e-9)
        assert other.missing or other.seconds == pytest.approx(other.compute + other.communication)
    assert "experts" in others["expert"].missing
    assert others["replicate"].communication == 0
    by_name, named = planned("mesh=4,stages=1,strategy=data")
    assert others["data"].seconds == pytest.approx(named.value)
    found = alternatives(by_name)[0]
    assert found.name == "found"
    assert found.seconds == pytest.approx(plan.value)
    assert all(other.fits for other in others.values())


def test_alternatives_of_a_training_step_are_told_per_step() -> None:
    module, plan = planned("mesh=2,stages=2,objective=training,microbatches=3", WIDE, "preset:h100x4")
    told = [other for other in alternatives(module) if not other.missing]
    assert {"data", "replicate"} <= {other.name for other in told}
    for other in told:
        assert other.seconds == pytest.approx(other.compute + other.communication)
    found = comparison_rows(plan, told)[0]
    assert found["compute"] == pytest.approx(3 * sum(stage.compute for stage in plan.stages))


@pytest.mark.parametrize("options", ["mesh=2x2,stages=1", "mesh=2,stages=2"])
def test_undecided_is_the_module_before(options: str) -> None:
    spec = WIDE if "x" in options else SPEC
    assert undecided(planned(options, spec)[0]) == run("canonicalize,cost", spec)


def test_layers_need_a_plan() -> None:
    with pytest.raises(ValueError, match="plan"):
        layers(run("canonicalize,cost"))


def test_a_backward_pass_that_is_written_is_told_once() -> None:
    """A build's module has it as ops, which what is told counts with the forward ops that they are of."""
    first = 'training{loss="mse:y",optimizer=sgd},canonicalize,cost,partition{objective=training,stages=1,mesh=2}'
    spec, machines = "zoo:mlp,layers=3,hidden=64,batch=8", "preset:h100x2"
    before, behind = run(first, spec, machines), run(f"{first},place,differentiate", spec, machines)
    assert len(behind.entry.ops) > len(before.entry.ops)
    assert layers(behind) == layers(before)
    assert alternatives(behind) == alternatives(before)
