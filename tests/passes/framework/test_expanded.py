"""Passes that look at ops one by one, in pipelines behind ``fold``: they get the module expanded, once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from ir import Module, parse_module
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import Cost
from ir.core.module import Func
from passes import PassManager, parse_pipeline
from passes.framework.registry import PIPELINES
from passes.graph.folding import expand, is_block

REPEATED = "zoo:bert-base,layers=4,hidden=32,seq=8,vocab=100"


@pytest.fixture(scope="module")
def module() -> Module:
    topology = load_topology("preset:cpu-2,cores=2", DiagnosticSink())
    return load_model(REPEATED, {}, DiagnosticSink()).module.extend([topology])


def ran(module: Module, pipeline: str, **options: object) -> Module:
    context = pass_context(DiagnosticSink())
    return PassManager(parse_pipeline(pipeline), **options).run(module, context)  # type: ignore[arg-type]


def blocks(module: Module) -> int:
    return sum(map(is_block, module.of_type(Func)))


@pytest.mark.parametrize("mesh", ["any", "auto"])
def test_a_plan_on_blocks_is_the_plan_without_them(module: Module, mesh: str) -> None:
    """What repeats is found before the plan is made, and the plan and its programs are the same."""
    text = PIPELINES["default-inference"].replace("mesh=any", f"mesh={mesh}")
    assert "cost,fold," in text
    without = ran(module, text.replace("fold,", ""))
    folded = ran(module, text)
    assert blocks(folded) > 0 == blocks(without)
    assert expand(folded) == expand(without)
    assert ran(module, text, expanded=True) == expand(without)


def test_between_such_passes_the_module_is_printed_folded(module: Module, tmp_path: Path) -> None:
    pipeline = "canonicalize,cost,fold,partition,place"
    printed = ran(module, pipeline, print_folder=tmp_path)
    for name in ("30-fold", "40-partition", "50-place"):
        assert blocks(parse_module((tmp_path / f"{name}.ir").read_text())) > 0
    assert printed == ran(module, pipeline)


def test_equal_ops_of_copies_share_one_cost(module: Module) -> None:
    """Counted once per block: as many facets as there are different ones."""
    costed = ran(module, "canonicalize,cost")
    facets = [op.facet(Cost) for op in costed.entry.ops]
    matmuls = [facet for facet in facets if facet is not None and facet.kind == "matmul"]
    assert len(matmuls) > 4 * len({id(facet) for facet in matmuls}) / 2


def test_an_operand_that_is_read_twice_is_another_op() -> None:
    """The same name and types, but a value less to read, or a weight: not the same cost."""
    text = """module @m {opset.onnx = 20} {
      resource @w : tensor<8xf32> = splat(1.0)
      func @main(%x: tensor<8xf32>, %z: tensor<8xf32>) -> (%c: tensor<8xf32>) {
        %a = onnx.Add(%x, %z) : tensor<8xf32> loc(?)
        %b = onnx.Add(%a, %a) : tensor<8xf32> loc(?)
        %c = onnx.Add(%b, @w) : tensor<8xf32> loc(?)
      }
    }
    """
    costed = ran(parse_module(text), "cost")
    costs = [op.facet(Cost, Cost()) for op in costed.entry.ops]
    assert [(cost.read, cost.weight) for cost in costs] == [(64, 0), (32, 0), (64, 32)]
