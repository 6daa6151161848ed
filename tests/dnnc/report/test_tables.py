"""Tables line up when piped, and stay within 80 columns for plans of ordinary names."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from dnnc.report import Table, columns, idle_text, plan_headline, plan_table, print_table, table_text
from ir.core.module import Plan, PlanStage
from ir.core.topology import Device, DeviceType, Topology
from ir.text.witness import BOUND_FOR, CHOSEN, OF_THESE, ON_MESHES_FOR
from passes.stages.load import stage_seconds

STAGES = (
    PlanStage(
        0, "core", ("cpu0",), 120, compute=0.0121, receive=0.0, send=0.0011, weights=40 << 20, workspace=1 << 20, buffers=0
    ),
    PlanStage(
        1, "core", ("cpu1",), 99, compute=0.0101, receive=0.0011, send=0.0, weights=30 << 20, workspace=1 << 20, buffers=2 << 20
    ),
)
PLAN = Plan("@plan", "throughput", "sum", 0.0132, 0.0132, 0.0120, "within-gap", 0.0222, STAGES)


def test_columns_line_up_and_nothing_trails() -> None:
    table = Table(columns("<name count"), (("a", "1"), ("longer", "1000")))
    assert table_text(table) == "name    count\na           1\nlonger   1000\n"


def test_piped_table_is_plain() -> None:
    out = io.StringIO()
    print_table(plan_table(PLAN), out)
    assert out.getvalue() == table_text(plan_table(PLAN))
    assert "\x1b" not in out.getvalue()


def test_plan_table_shows_every_stage_and_fits_a_terminal() -> None:
    text = table_text(plan_table(PLAN))
    lines = text.splitlines()
    assert lines[0].split() == ["stage", "device", "ops", "seconds", "compute", "transfers", "memory", "share"]
    assert len(lines) == 3
    assert "cpu1" in lines[2]
    assert lines[1].endswith("100.0 %"), "the slowest stage is the bottleneck"
    assert max(map(len, lines)) <= 80


def test_headline_states_speedup_and_proof() -> None:
    text = plan_headline(PLAN)
    assert "13.2 ms per microbatch" in text
    assert "1.68x the speed of one device" in text
    assert "at most 10.0 % above the best plan: lower bound 12.0 ms" in text


@pytest.mark.parametrize(("hidden", "told"), [(0.0, False), (1e-19, False), (1e-3, True)])
def test_sums_that_are_hidden_are_told_where_there_are_any(hidden: float, told: bool) -> None:
    """A difference of sums in floating point had been told as 0.00 ns."""
    plan = replace(PLAN, objective="training", stages=(replace(STAGES[0], hidden=hidden),))
    assert ("travel beside the backward pass" in plan_headline(plan)) == told


def test_the_rate_is_a_number_for_people() -> None:
    plan = Plan("@plan", "throughput", "sum", 4.92e-5, 4.92e-5, 4.92e-5, "optimal", 4.92e-5, STAGES[:1])
    assert "49.2 us per microbatch (20.3 k a second), 1 stage" in plan_headline(plan)


def machines(count: int) -> Topology:
    """As many one-core workers, joined by nothing."""
    type_ = DeviceType("@core", "cpu", (("f32", 1e9),), 1e9, None)
    return Topology("@t", (type_,), (), tuple(Device(f"cpu{n}", "@core", "h") for n in range(count)))


@pytest.mark.parametrize(
    ("devices", "status", "reason", "text"),
    [
        (2, "optimal", "", ""),
        (4, "optimal", "", "  not used: cpu2, cpu3 (no plan with them is faster)"),
        (3, "within-gap", "", "  not used: cpu2 (no faster plan with it was found)"),
        (64, "optimal", "--stages 2 was asked for", "  not used: cpu2, cpu3 and 60 more (--stages 2 was asked for)"),
    ],
)
def test_devices_that_run_nothing_are_named_with_the_reason(devices: int, status: str, reason: str, text: str) -> None:
    assert idle_text(replace(PLAN, status=status), machines(devices), reason) == text


@pytest.mark.parametrize("only", [BOUND_FOR, ON_MESHES_FOR])
def test_devices_are_not_said_to_help_no_plan_where_other_groups_are_not_proven(only: str) -> None:
    groups = replace(PLAN, status="optimal", certificate=((CHOSEN, f"among 1 to 256 groups{only}2 groups of 5 alone"),))
    assert idle_text(groups, machines(3)) == "  not used: cpu2 (no plan of 2 groups of 5 with it is faster)"


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (
            ("kinds", "stages of single devices; meshes are not searched"),
            "no plan among stages of single devices with it is faster",
        ),
        (("kinds", "stages of single devices; stages that may be meshes: none below 2 s"), "no plan with it is faster"),
        (("bound", OF_THESE), "no faster plan with it was found"),
    ],
)
def test_devices_are_said_to_help_no_plan_of_those_that_were_searched(certificate: tuple[str, str], reason: str) -> None:
    """Of all plans it was said, whatever the proof was of."""
    plan = replace(PLAN, status="optimal", certificate=(certificate,))
    assert idle_text(plan, machines(3)) == f"  not used: cpu2 ({reason})"


def test_turns_are_told_by_how_many_each_device_has() -> None:
    """Devices of one number of turns together, most turns first; of a decoder, groups are told elsewhere."""
    stage = replace(STAGES[0], devices=("a", "b", "c", "d"), replicas=4, serves=(0, 1, 2, 0, 1, 3))
    plan = replace(PLAN, stages=(stage,))
    assert "\n  turns of stage 0: of 6 microbatches a, b have 2 each; c, d have 1 each\n" in plan_headline(plan)
    assert "turns of stage" not in plan_headline(replace(plan, objective="tokens"))
    assert "turns of stage" not in plan_headline(replace(plan, stages=(replace(stage, serves=()),)))


def test_headline_when_nothing_fits_one_device() -> None:
    plan = Plan("@plan", "throughput", "sum", 0.5, 0.5, 0.5, "optimal", float("inf"), STAGES)
    assert "fits no single device" in plan_headline(plan)
    assert "optimal: lower bound 500 ms, gap 0.0 %" in plan_headline(plan)


def test_transfers_add_up_as_the_cost_model_says() -> None:
    stage = PlanStage(0, "core", ("cpu0",), 1, compute=3.0, receive=1.0, send=2.5)
    assert [stage_seconds(stage, comm) for comm in ("sum", "overlap", "duplex")] == [6.5, 3.5, 3.0]
