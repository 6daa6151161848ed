"""Stages of a plan on the same model of other sizes."""

from __future__ import annotations

from ir.core.facets import StageSet
from passes.plan.other_sizes import _stages
from tests.passes.stages.test_colocation import module_of, op


def test_what_a_plan_lacks_is_made_in_the_first_stage_that_has_what_it_reads() -> None:
    """The mask of a chunk, of positions that each stage has, for the attention of both."""
    positions = op("onnx.Relu", ["%x"], ["%positions"])
    mask = op("onnx.Not", ["%positions"], ["%mask"])
    first, second = (op("onnx.Where", ["%mask", "%x"], [name]) for name in ("%first", "%second"))
    known = {"%positions": (0, 1), "%first": (0,), "%second": (1,)}
    placed = {one.results[0].name: one for one in (positions, first, second)}
    planned = {name: placed[name].with_facets(StageSet(stages)) for name, stages in known.items()}
    assert _stages(module_of(positions, mask, first, second).entry, planned) == [(0, 1), (0,), (0,), (1,)]
