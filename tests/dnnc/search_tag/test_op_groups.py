"""Op groups: how the batch is carried, how METIS groups, and segments that depend on each other without a circle."""

from __future__ import annotations

import pytest

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.search_tag.cases import Cases, drawn, simulator_of
from dnnc.search_tag.op_groups import runs
from ir.core.diagnostics import DiagnosticSink
from tests.dnnc.search_tag.machines import simulator


@pytest.mark.parametrize("model", ["zoo:resnet50,batch=8", "zoo:bert-small,batch=8"])
def test_groups_and_segments_hold_every_op_once(model: str) -> None:
    workload = simulator_of(Cases((model,), 1, 0, pass_context(DiagnosticSink()), load_model).module(model), drawn(1)).workload
    ops = range(len(workload.module.entry.ops))
    assert 20 <= workload.count <= 40
    assert sorted(op for members in workload.members for op in members) == list(ops)
    assert sorted(op for segment in workload.segments for op in segment.ops) == list(ops)
    assert all(workload.group_of[op] == segment.group for segment in workload.segments for op in segment.ops)
    seconds = [sum(workload.mean[op] for op in members) for members in workload.members]
    assert seconds == sorted(seconds, reverse=True)
    home = {op: number for number, segment in enumerate(workload.segments) for op in segment.ops}
    assert all(home[maker] <= home[op] for op in ops for maker in workload.makers[op])
    assert all(bundle.source < reader for bundle in workload.bundles for reader in bundle.readers)
    trained = sum(gradient.size for segment in workload.segments for gradient in segment.gradients)
    assert 4 * trained == pytest.approx(sum(segment.held for segment in workload.segments), rel=0.01)


def test_a_part_of_the_batch_takes_its_part_of_the_seconds() -> None:
    """Of a device without overheads; and what is not cut with the batch is joined with those who read it."""
    workload = simulator("zoo:mlp,layers=2,hidden=16,batch=8").workload
    assert sorted(workload.batch.factors) == [0, 1, 2]
    type_ = workload.topology.types[0]
    for whole, part in zip(workload.seconds(type_, 1), workload.seconds(type_, 4), strict=True):
        assert part == pytest.approx(tuple(seconds / 4 for seconds in whole))


def test_runs_are_of_about_equal_weight() -> None:
    assert runs([1, 1, 1, 1], 2) == [0, 0, 1, 1]
    assert runs([9, 1, 1], 2) == [0, 1, 1]
    assert runs([0, 0], 3) == [0, 0]
