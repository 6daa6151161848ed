"""Lower: stage programs compute what the entry computes, talk only through channels, and refuse what cannot be a pipeline."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

import ir
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import InvalidInput
from ir.core.facets import StageSet
from ir.core.module import Declared, Func, Module, Resource, Stage
from ir.core.ops import Location, Op
from passes.framework.base import PassContext
from passes.graph.graph import cuts_of
from passes.programs.lower import LowerPass
from tests.passes.meshes.members import local_programs, localized
from tests.passes.staging import VECTOR, chain, devices, entry_outputs, op, planned, staged_modules, staged_outputs, value


def lowered(module: Module) -> Module:
    return LowerPass().run(module, PassContext())


def stages_of(module: Module) -> list[Stage]:
    return list(lowered(module).of_type(Stage))


def names(ops: tuple[Op, ...]) -> list[str]:
    return [o.name.removeprefix("onnx.") for o in ops]


@given(staged_modules())
@settings(deadline=None)
def test_the_stages_compute_what_the_entry_computes(module: Module) -> None:
    assert staged_outputs(lowered(module)) == entry_outputs(module)


@given(staged_modules(replicate=False))
@settings(deadline=None)
def test_stages_in_order_without_comm_are_the_entry_in_another_order(module: Module) -> None:
    result = lowered(module)
    joined = [o for stage in result.of_type(Stage) for o in stage.ops if o.dialect != "comm"]
    assert Counter(joined) == Counter(module.entry.ops)
    for stage in result.of_type(Stage):
        own = [o for o in stage.ops if o.dialect != "comm"]
        assert own == [o for o in module.entry.ops if stage.index in o.facet(StageSet, StageSet(())).stages]


@given(staged_modules())
@settings(deadline=None)
def test_lowered_modules_verify(module: Module) -> None:
    assert ir.verify(lowered(module), dialects=DIALECTS) == []


@given(staged_modules())
@settings(deadline=None)
def test_channels_are_numbered_once_and_lead_forward(module: Module) -> None:
    sent, received = {}, {}
    for stage in stages_of(module):
        body = [o for o in stage.ops if o.dialect == "comm"]
        first = next((i for i, o in enumerate(stage.ops) if o.name != "comm.recv"), len(stage.ops))
        assert all(o.name != "comm.recv" for o in stage.ops[first:]), "receives stand first"
        for o in body:
            table = sent if o.name == "comm.send" else received
            assert o.get("channel") not in table
            table[o.get("channel")] = (stage.index, o.get("peer"))
    assert sorted(sent) == sorted(received) == list(range(len(sent)))
    assert all(received[c] == (peer, own) and own < peer for c, (own, peer) in sent.items())
    assert len(sent) == len(cuts_of(module.entry))


def test_sends_stand_right_behind_their_producer() -> None:
    first, second = stages_of(chain([0, 0, 1]))
    assert names(first.ops) == ["Relu", "Relu", "comm.send"]
    assert names(second.ops) == ["comm.recv", "Relu"]


def test_a_tensor_for_two_stages_has_two_channels() -> None:
    func = Func(
        "@main",
        (value("%x"),),
        (value("%c"),),
        (op("onnx.A", ["%x"], ["%a"], (0,)), op("onnx.B", ["%a"], ["%b"], (1,)), op("onnx.C", ["%a", "%b"], ["%c"], (2,))),
    )
    assert [(c.tensor.name, c.source, c.target, c.nbytes) for c in cuts_of(func)] == [
        ("%a", 0, 1, 1024),
        ("%a", 0, 2, 1024),
        ("%b", 1, 2, 1024),
    ]


def test_a_replicated_op_sends_from_its_latest_copy() -> None:
    func = Func(
        "@main", (value("%x"),), (value("%c"),), (op("onnx.A", ["%x"], ["%a"], (0, 1)), op("onnx.B", ["%a"], ["%c"], (2,)))
    )
    assert [(c.source, c.target) for c in cuts_of(func)] == [(1, 2)]


def test_outputs_that_are_arguments_or_resources_leave_stage_0() -> None:
    func = Func(
        "@main", (value("%x"), value("%unused")), (value("%x"), value("@w"), value("%v")), (op("onnx.A", ["%x"], ["%v"], (0,)),)
    )
    (stage,) = stages_of(Module("@m", (Resource("@w", VECTOR, Declared()), func)))
    assert [v.name for v in stage.results] == ["%x", "@w", "%v"]
    assert [v.name for v in stage.args] == ["%x"], "an argument that nobody reads reaches no stage"


def test_a_function_without_ops_is_one_stage() -> None:
    (stage,) = stages_of(Module("@m", (Func("@main", (value("%x"),), (value("%x"),), ()),)))
    assert (stage.index, stage.ops, [v.name for v in stage.results]) == (0, (), ["%x"])


def test_devices_come_from_the_plan_and_symbols_keep_their_order() -> None:
    module = planned(chain([0, 1]), devices(2), {0: ("d1",), 1: ("d0",)})
    result = lowered(module)
    assert [stage.devices for stage in result.of_type(Stage)] == [("d1",), ("d0",)]
    assert [type(s).__name__ for s in result.symbols] == ["Func", "Topology", "Stage", "Stage", "Plan"]
    assert lowered(result) == result, "lowering again changes nothing"


def test_a_stage_gets_another_name_where_a_resource_has_its_own() -> None:
    module = chain([0])
    module = Module("@m", (Resource("@stage0", VECTOR, Declared()), *module.symbols))
    assert [stage.name for stage in stages_of(module)] == ["@stage0_1"]


def test_a_tensor_that_is_sent_twice_leaves_a_program_once() -> None:
    func = Func(
        "@main",
        (value("%x"),),
        (value("%a"), value("%c")),
        (op("onnx.A", ["%x"], ["%a"], (0,)), op("onnx.B", ["%a"], ["%b"], (1,)), op("onnx.C", ["%a", "%b"], ["%c"], (2,))),
    )
    module = localized(lowered(Module("@m", (func,))))
    first, _, last = (local_programs(module, stage)[0] for stage in module.of_type(Stage))
    assert first.results == ("%a",)
    assert [part.name for part in last.receives] == ["%a", "%b"]


@pytest.mark.parametrize(
    ("stages", "message", "where"),
    [
        ([(0,), (2,)], "stage 1 has no op, but stage 2 has", "@main"),
        ([(0,), (10**9,)], "stages 1 to 999999999 have no op, but stage 1000000000 has", "@main"),
        ([(0,), ()], "the op is in no stage", "main/second (%v1)"),
        ([(1,), (0,)], "stage 0 reads %v0, which stage 1 makes (main/first (%v0))", "main/second (%v1)"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused_with_its_place(stages: list[tuple[int, ...]], message: str, where: str) -> None:
    ops = []
    for i, (of_op, node) in enumerate(zip(stages, ("first", "second"), strict=True)):
        o = op("onnx.Relu", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], of_op)
        ops.append(Op(o.name, o.operands, o.results, facets=o.facets, location=Location("main", node)))
    func = Func("@main", (value("%x"),), (value("%v1"),), tuple(ops))
    with pytest.raises(InvalidInput) as raised:
        lowered(Module("@m", (func,)))
    assert [(d.message, d.where) for d in raised.value.diagnostics] == [(message, where)]
