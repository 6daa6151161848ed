"""The document of the page: its numbers are those of the plan, what repeats stands in it once, and the first screen says what
holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from dnnc.build.timeline import predicted
from dnnc.build.trace import TraceEvent, from_perfetto, to_perfetto
from dnnc.report import plan_headline, stages_table
from dnnc.report.page import page_data
from dnnc.report.page.blocks import blocks, layers_of, stage_compute
from dnnc.report.page.tracks import MOST_BARS, tracks_json
from ir import parse_module, print_module
from ir.core.module import Module, Plan
from passes.graph.folding import expand, fold
from tests.dnnc.report.page.planning import planned

NAMED = (
    {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "measured"}},
    {"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "args": {"name": "cpu0"}},
)
KINDS = ("stages", "mesh", "training", "replicas", "latency", "tokens")


def plan_of(module: Module) -> Plan:
    plan = module.first(Plan)
    assert plan is not None
    return plan


def sentences(data: dict[str, Any], question: str) -> str:
    return " ".join(next(one["sentences"] for one in data["answers"] if one["question"] == question))


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_shows_the_numbers_of_the_plan(kind: str) -> None:
    module = planned(kind)
    plan, data = plan_of(module), page_data(module)
    assert (data["value"], data["bound"], data["status"]) == (plan.value, plan.bound, plan.status)
    assert data["headline"][: len(plan_headline(plan).split("\n"))] == plan_headline(plan).split("\n")
    for stage, row in zip(plan.stages, data["stages"], strict=True):
        assert [row[key] for key in ("compute", "collectives", "receive", "send")] == [
            stage.compute, stage.collectives, stage.receive, stage.send
        ]  # fmt: skip
    json.dumps(data, allow_nan=False)


def test_caches_that_stay_are_no_outputs() -> None:
    data = page_data(planned("tokens"))
    assert [one["name"] for one in data["outputs"]] == ["logits"]
    assert [edge[3] for edge in data["edges"] if edge[2] < 0] == [0]
    assert "2 groups of 2" in sentences(data, "What is the plan?")


@pytest.mark.parametrize("kind", ["stages", "mesh", "replicas", "latency"])
def test_seconds_of_operators_add_up_to_those_of_their_stage(kind: str) -> None:
    module = expand(planned(kind))
    plan, parts = plan_of(module), blocks(module)
    handover = 150e-6 if sum(len(stage.devices) for stage in plan.stages) > 1 else 0.0  # of the device type, once per stage
    for stage in plan.stages:
        own = [layer for run in parts.runs if run.stage == stage.index for layer in run.layers]
        assert math.isclose(stage_compute(parts, stage.index) + handover, stage.compute, rel_tol=1e-9)
        assert math.isclose(sum(layer.communication for layer in own), stage.collectives, rel_tol=1e-9, abs_tol=1e-15)
        assert sum(len(layer.rows) for layer in own) == stage.ops


@pytest.mark.slow
def test_equal_layers_stand_once_with_their_number() -> None:
    few, many = (page_data(planned(f"layers {count}")) for count in (6, 14))
    assert len(few["variants"]) == len(many["variants"])
    assert max(len(run["layers"]) for run in many["runs"]) == max(len(run["layers"]) for run in few["runs"]) + 8
    ops = [
        sum(len(data["variants"][run["variant"]]["ops"]) * len(run["layers"]) for run in data["runs"]) for data in (few, many)
    ]
    assert ops == [sum(stage["ops"] for stage in data["stages"]) for data in (few, many)]
    assert len(json.dumps(many)) < 1.1 * len(json.dumps(few)), "8 more layers add names alone"


def test_the_graph_of_runs_has_no_circle() -> None:
    """The embedding and the head of a model lie in one scope, and all layers between them."""
    data = page_data(planned("mesh"))
    after: dict[int, set[int]] = {}
    for source, _, target, *_ in data["edges"]:
        if source >= 0 and target >= 0:
            after.setdefault(source, set()).add(target)
    assert all(source < target for source, targets in after.items() for target in targets)
    assert {edge[0] for edge in data["edges"] if edge[0] < 0} == {-1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folded_module_and_its_text_give_the_same_document(kind: str) -> None:
    module = planned(kind)
    text = print_module(fold(expand(module)))
    assert page_data(parse_module(text)) == page_data(module)


def test_runs_are_told_apart() -> None:
    """The parts of a scope that layers lie between have one name: their operators say which is which."""
    for kind in KINDS:
        runs = page_data(planned(kind))["runs"]
        titles = [(run["layers"][0], run["layers"][-1]) for run in runs]
        assert len(set(titles)) == len(titles)


def test_members_of_a_mesh_share_a_track() -> None:
    data = page_data(planned("mesh"))
    (track,) = data["predicted"]["tracks"]
    assert track["devices"] == "cpu0 .. cpu3 (4)"
    kinds = [data["predicted"]["kinds"][bar[2]] for bar in track["bars"]]
    assert kinds[:2] == ["F", "collective"]
    assert math.isclose(data["predicted"]["end"], max(event.end for event in predicted(planned("mesh"))), rel_tol=1e-6)


def test_a_long_timeline_is_cut() -> None:
    events = [TraceEvent("a", "F 0", "F", float(i), i + 0.5, (("stage", 0), ("microbatch", i))) for i in range(MOST_BARS + 5)]
    data = tracks_json(events, {"a": ("a",)})
    assert (len(data["tracks"][0]["bars"]), data["left_out"]) == (MOST_BARS, 5)
    assert (data["shown"], data["end"]) == (MOST_BARS - 1, MOST_BARS + 4.5)


def test_transfers_that_follow_each_other_are_one_bar() -> None:
    def event(kind: str, start: float, end: float, microbatch: int = 0) -> TraceEvent:
        return TraceEvent("a", f"{kind} {start}", kind, start, end, (("stage", 1), ("microbatch", microbatch), ("tensor", "t")))

    events = [event("F", 0, 1), event("send", 1, 2), event("send", 2, 3), event("send", 3, 4, 1), event("send", 4.5, 5, 1)]
    data = tracks_json(events, {"a": ("a",)})
    bars = [(bar[0], bar[1], data["names"][bar[5]]) for bar in data["tracks"][0]["bars"]]
    assert bars == [(0, 1, "F 0"), (1, 2, "2 x send 1.0"), (3, 1, "send 3"), (4.5, 0.5, "send 4.5")]


def test_memory_is_that_of_the_simulation() -> None:
    data = page_data(planned("training"))
    plan = plan_of(planned("training"))
    for row, stage in zip(data["memory"], plan.stages, strict=True):
        assert row["weights"] == stage.weights
        assert row["weights"] + row["buffers"] <= min(size for _, size in row["steps"])
        assert row["peak"] == max(size for _, size in row["steps"])


@pytest.mark.parametrize(
    ("kind", "question", "expected"),
    [
        ("stages", "What is the plan?", "as 2 stages on all 2 devices of cpu-2"),
        ("stages", "What limits it?", "The slowest device sets the pace: cpu"),
        ("stages", "What would help?", "Fewer options: --stages 2, --mesh none, --replicas 1 restrict the plan."),
        ("replicas", "What is the plan?", "Each of 2 devices holds the whole model, and they take samples in turn."),
        ("mesh", "What is the plan?", "split over a mesh of devices (2x2), which work on each sample together"),
        ("mesh", "What limits it?", "exchanging parts of tensors inside the mesh"),
        ("mesh", "What would help?", "Faster links: this plan would take "),
        ("training", "What is the plan?", "A training step works on 8 microbatches."),
        ("training", "What limits it?", "of a step (the bubble)"),
        ("training", "What would help?", "More microbatches per step (--microbatches, now 8)"),
        ("latency", "What is the plan?", "It is made for one sample that runs alone."),
        ("latency", "How good is it?", "for one sample alone."),
    ],
)
def test_the_first_screen_answers(kind: str, question: str, expected: str) -> None:
    assert expected in sentences(page_data(planned(kind)), question)


@pytest.mark.parametrize(
    ("bound", "status", "expected"),
    [
        (1.0, "optimal", "It is optimal"),
        (
            0.5,
            "within-gap",
            "It is at most 100.0 % above the best plan: no plan of the kinds that were searched takes less than",
        ),
        (0.0, "within-gap", "No lower bound is known"),
    ],
)
def test_what_is_said_of_the_bound_is_what_is_proven(bound: float, status: str, expected: str) -> None:
    module = planned("stages")
    plan = plan_of(module)
    changed = module.replace(plan, replace(plan, bound=plan.value * bound, status=status))
    data = page_data(changed)
    assert expected in sentences(data, "How good is it?")
    assert ("a better plan would have at most 2.00x the speed" in sentences(data, "What would help?")) == (bound == 0.5)


def test_a_plan_of_unknown_sizes_claims_nothing() -> None:
    module = planned("stages")
    plan = plan_of(module)
    unsure = replace(plan, status="within-gap", certificate=(("sizes", "3 sizes are unknown, such as that of %h"),))
    data = page_data(module.replace(plan, unsure))
    assert "How good it is cannot be said: 3 sizes are unknown, such as that of %h." in sentences(data, "How good is it?")
    assert sentences(data, "What would help?").startswith("Known sizes: 'dnnc compile --inputs FILE.npz' measures them")


def test_a_measured_timeline_stands_beside_the_predicted_one() -> None:
    module = planned("stages")
    events = [replace_end(event) for event in predicted(module)]
    data = page_data(module, from_perfetto(to_perfetto({"predicted": predicted(module), "measured": events}), "measured"))
    assert [track["devices"] for track in data["measured"]["tracks"]] == ["cpu0", "cpu1"]
    assert math.isclose(data["measured"]["end"], 2 * data["predicted"]["end"], rel_tol=1e-6)
    assert "2.00x of what was predicted" in sentences(data, "How good is it?")


def replace_end(event: TraceEvent) -> TraceEvent:
    """The event on a machine of half the speed."""
    return TraceEvent(event.track, event.name, event.kind, 2 * event.start, 2 * event.end, event.args, event.lane)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"traceEvents": 1},
        {"traceEvents": [1]},
        {"traceEvents": [{"ph": "M", "name": "process_name"}]},
        *(
            {"traceEvents": [*NAMED, {"ph": "X", "pid": 2, "tid": 1, "name": "F", "cat": "F", "args": {}, "ts": ts, "dur": 1}]}
            for ts in (-1, "1", 10**400, None)
        ),
        {"traceEvents": [*NAMED, {"ph": "X", "pid": 2, "tid": [], "ts": 1, "dur": 1}]},
    ],
)
def test_what_is_no_trace_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="event"):
        from_perfetto(data, "measured")


def test_layers_and_the_table_of_stages_are_shown_as_the_command_prints_them() -> None:
    module = planned("training")
    rows = page_data(module)["table"]["rows"]
    assert rows == [list(row) for row in stages_table(plan_of(module), {}).rows]
    assert {layer.stage for layer in layers_of(expand(module))} == {0, 1}
