"""The devices that stages take: neither value nor bound depends on how devices are declared; the best of all sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from passes.costs.network import network
from passes.framework.base import NoBetterPlan, needed
from passes.partition.chain import taking
from passes.partition.chain.pipeline import (
    Programme,
    Sequenced,
    Table,
    Tables,
    Transitions,
    flush,
    least,
    quicker,
    shortest,
    slowest,
)
from passes.partition.chain.submeshes import Block, Submeshes, submeshes
from passes.partition.layouts.problem.problem import Floats
from tests.passes.partition.layouts.stage_oracle import costed
from tests.passes.partition.layouts.test_stages import SEEDS, blocks_of, searched, text_of
from tests.passes.partition.on_meshes import on_meshes

Seconds: TypeAlias = dict[tuple[Block, bool, bool, bool, bool], Floats]


def redeclared(module: Module, order: Sequence[int]) -> Module:
    """With the devices of the topology in another order."""
    topology = module.first(Topology)
    assert topology is not None
    return module.replace(topology, replace(topology, devices=tuple(topology.devices[number] for number in order)))


@given(SEEDS, st.sampled_from([[4], [2, 2], [3, 1]]), st.permutations(range(4)), st.sampled_from([0, 4]))
@settings(deadline=None, max_examples=3, suppress_health_check=list(HealthCheck))
def test_the_order_in_which_devices_are_declared_changes_nothing(
    seed: int, hosts: list[int], order: list[int], microbatches: int
) -> None:
    rng = Random(seed)
    widths, speeds = [rng.choice((2, 8, 64)) for _ in range(4)], rng.sample((1, 1, 3, 3), 4)
    module = costed(text_of(widths, rng.random() < 0.5, hosts, speeds, rng.choice((1e7, 1e9)), rng.choice((1e7, 1e8))))
    bounds, values = zip(
        *(
            searched(one, blocks_of(one, replicas=1 if microbatches else 4, training=microbatches > 0), 0, microbatches)
            for one in (module, redeclared(module, order))
        ),
        strict=True,
    )
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_a_slow_device_may_be_first_whatever_the_order() -> None:
    """The first product is small, the second large: best on the slow device and the fast one, in this order."""
    for speeds in ([1, 9], [9, 1]):
        module = costed(text_of([8, 8, 64], False, [2], speeds, 1e12, 1e12))
        plan = on_meshes(mesh="1", stages=2).run(module, pass_context(DiagnosticSink())).first(Plan)
        assert plan is not None
        assert [stage.device_type for stage in plan.stages] == ["t1", "t9"]
        assert plan.status == "optimal"


def random_tables(units: int, hosts: list[int], random: Random) -> tuple[Submeshes, Seconds]:
    """Blocks on such hosts, and of each the seconds of all runs by what is beside it."""
    speeds = [random.choice((1, 3)) for _ in range(sum(hosts))]
    meshes = blocks_of(costed(text_of([8, 8], False, hosts, speeds, 1e9, 1e8)), replicas=random.choice((1, 4)))
    tables: Seconds = {}
    for block in meshes.blocks:
        for sides in itertools.product((False, True), repeat=4):
            tables[block, *sides] = seconds = np.full((units, units + 1), np.inf)
            for i, j in itertools.combinations(range(units + 1), 2):
                seconds[i, j] = random.randint(1, 9)
    return meshes, tables


def tables_of(tables: Seconds) -> Tables:
    """The same as programmes take them: the same table each time, longer for more microbatches in flight."""
    made: dict[object, Table] = {}

    def table(block: Block, before: bool, behind: bool, comes: bool, goes: bool, in_flight: int) -> Table:
        key = block, before, behind, comes and block.comes, goes and block.goes
        if (key, in_flight) not in made:
            made[key, in_flight] = Table.of(tables[key] * max(in_flight, 1))
        return made[key, in_flight]

    return table


HOSTS = st.sampled_from([[1], [2], [4], [2, 2], [2, 1]])


@given(st.integers(1, 4), HOSTS, st.integers(0, 3), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=15)
def test_tables_that_stay_are_not_copied_again(units: int, hosts: list[int], stages: int, random: Random) -> None:
    """Half of the tables change: what a programme finds is what one without a programme before it finds."""
    meshes, seconds = random_tables(units, hosts, random)
    table, held = tables_of(seconds), (1,) * stages

    def another(block: Block, *sides: Any) -> Table:
        return table(block, *sides) if block.number % 2 else Table.of(table(block, *sides).seconds + 10)

    transitions = Transitions(meshes, units)
    earlier = Programme(table, transitions, held)
    assert least(Programme(another, transitions, held)) == least(Programme(another, Transitions(meshes, units), held))
    with pytest.raises(AssertionError, match="a later programme"):
        least(earlier)


Line: TypeAlias = list[tuple[int, int, Block, bool]]
"""Of each stage of a plan the units from the first up to one, its block, and whether that is apart from the one before."""


def sequences(meshes: Submeshes, units: int, unit: int = 0, state: int = 0, last: int = taking.NO_HOST) -> Iterator[Line]:
    """All plans of the units from one on, by plain recursion over stages."""
    if unit == units:
        yield []
        return
    for source, target, number, entered, left in meshes.moves.tolist():
        if source == state:
            apart = unit > 0 and bool(meshes.taking.apart[last, entered])
            for j in range(unit + 1, units + 1):
                for rest in sequences(meshes, units, j, target, left):
                    yield [(unit, j, meshes.blocks[number], apart), *rest]


def costs(tables: Seconds, line: Line, held: tuple[int, ...] = ()) -> list[float]:
    """Seconds of each stage of a plan."""
    same = [False, *(a.shape == b.shape for (_, _, a, _), (_, _, b, _) in itertools.pairwise(line)), False]
    apart = [*(apart for *_, apart in line), False]
    times = held or (1,) * len(line)
    return [
        times[k] * float(tables[b, same[k], same[k + 1], apart[k] and b.comes, apart[k + 1] and b.goes][i, j])
        for k, (i, j, b, _) in enumerate(line)
    ]


@given(st.integers(3, 4), st.sampled_from([[2], [2, 1]]), st.sampled_from([2, 5, 40]), st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_the_quickest_step_stays_it_while_seconds_rise(units: int, hosts: list[int], microbatches: int, random: Random) -> None:
    """With what was known before the stages of a plan, or some others, took longer: as without, by all plans."""
    meshes, tables = random_tables(units, hosts, random)
    for seconds, (i, j) in itertools.product(tables.values(), itertools.combinations(range(units + 1), 2)):
        seconds[i, j] *= (j - i) ** 2  # so that more stages are quicker
    lines, transitions = [*sequences(meshes, units)], Transitions(meshes, units)
    found: Sequenced | None = None
    for step in (0.05, 0.05, 0.05, 1e-3, 1e-3, 1e-3):
        table = tables_of(tables)
        found = flush(Programme(table, transitions), microbatches, step=step, known=found)
        quickest = min((microbatches + len(line) - 1) * max(costs(tables, line)) for line in lines)
        reached = (microbatches + len(found.runs) - 1) * slowest(table, found.runs)
        assert found.value <= quickest * (1 + 1e-9)
        assert quickest <= reached * (1 + 1e-9) <= found.value * (1 + 2 * step)
        for run in found.runs if random.random() < 0.8 else ():
            for seconds in (seconds for (block, *_), seconds in tables.items() if block.number == run.block.number):
                seconds[run.first, run.behind] += random.choice((0.01, 0.5, 3))
        for seconds in tables.values() if random.random() < 0.3 else ():
            seconds[random.randrange(units), random.randint(1, units)] += 0.3


@example(4, [2, 2], 0, Random(3))  # the quickest step has two stages
@example(4, [2, 2], 0, Random(5))
@given(st.integers(1, 4), HOSTS, st.integers(0, 3), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=15)
def test_programme_is_the_least_of_all_sequences(units: int, hosts: list[int], stages: int, random: Random) -> None:
    """Against plain recursion over stages, with seconds that depend on neighbours' shapes and, if known, the stage."""
    meshes, tables = random_tables(units, hosts, random)

    held = tuple(range(stages, 0, -1))  # a stage of a stated number takes longer, the more microbatches it holds

    lines = [costs(tables, line, held) for line in sequences(meshes, units) if not stages or len(line) == stages]
    expected = min((max(line) for line in lines), default=math.inf)

    table = tables_of(tables)
    programme = Programme(table, Transitions(meshes, units), held)
    found = least(programme)
    assert found.value == expected
    if found.runs:
        used = [device for run in found.runs for device in (*run.block.mesh.devices, *run.block.others)]
        assert len(used) == len(set(used))
        for one, other in itertools.pairwise(found.runs):
            on, after = ({name[:2] for name in (*run.block.mesh.devices, *run.block.others)} for run in (one, other))
            assert not (other.apart and on & after)  # hosts
        assert slowest(table, found.runs, held) == expected
        total = min(sum(line) for line in lines if max(line) <= expected)
        assert shortest(programme, expected).value == pytest.approx(total)
        if not stages:
            total = min(sum(line) for line in lines if max(line) <= expected and len(line) == len(found.runs))
            assert shortest(programme, expected, len(found.runs)).value == pytest.approx(total)
        quickest = min((3 + len(line) - 1) * max(line) for line in lines)
        step = flush(programme, 3)
        worst = slowest(table, step.runs, held)
        assert step.value <= quickest <= (3 + len(step.runs) - 1) * worst
        assert (3 + len(step.runs) - 1) * worst <= step.value * (1 + 1e-3)
        if not stages:
            quickest = min((200 + len(line) - 1) * max(line) for line in lines)
            some = quicker(programme, 200, quickest * (1 + 1e-12), quickest)
            assert slowest(table, some.runs) <= some.value
            assert (200 + len(some.runs) - 1) * slowest(table, some.runs) <= quickest * (1 + 1e-6)
            assert quicker(programme, 200, quickest * (1 + 1e-12), quickest, few=len(some.runs)).runs == some.runs
            for than, known in itertools.product((0.5 * quickest, 0.97 * quickest), (0.99 * quickest, 1.1 * quickest)):
                none = quicker(programme, 200, than, known)
                assert not none.runs
                assert than <= none.value <= quickest
            assert quicker(programme, 200, 0.97 * quickest, 0.99 * quickest).value == 0.99 * quickest


@pytest.mark.parametrize(
    ("hosts", "most", "told"),
    [
        ([2, 2], 21, ""),
        ([2, 2], 11, "on one host after another"),
        ([4], 1, "of devices of a host in one order"),
        ([2, 2], 1, "on hosts in one order, of devices of a host in one order"),
    ],
)
def test_what_is_left_out_of_many_states_is_told(
    hosts: list[int], most: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of fewer states are plans of all states: their value is no better."""
    module = costed(text_of([8, 64, 8, 64], False, hosts, [1, 3, 1, 3], 1e9, 1e8))
    topology = module.first(Topology)
    assert topology is not None
    every = searched(module, blocks_of(module))
    monkeypatch.setattr(taking, "MOST_MOVES", most)
    monkeypatch.setattr(taking, "neighbours", lambda sizes: most)
    assert taking.taking(topology, network(topology), taking.Asked()).told == told
    bound, value = searched(module, blocks_of(module))
    assert every[0] <= value * (1 + 1e-9)
    assert bound <= value


def test_meshes_of_one_kind_have_no_devices_of_two() -> None:
    module = costed(text_of([8, 8], False, [4, 2], [1, 1, 1, 3, 3, 3], 1e9, 1e8))
    topology = needed(module, Topology)
    every, one_kind = (submeshes(topology, network(topology), one_kind=one) for one in (False, True))
    assert any(len({type_.name for type_ in block.mesh.types}) > 1 for block in every.blocks)
    assert {len({type_.name for type_ in block.mesh.types}) for block in one_kind.blocks} == {1}
    assert {block.size for block in one_kind.blocks} == {1, 2, 3}
    assert one_kind.taking.told.endswith(taking.ONE_KIND)
    assert not every.taking.told.endswith(taking.ONE_KIND)


def test_plans_worse_than_the_incumbent_are_not_looked_for_on_unlike_devices() -> None:
    """One mesh is searched, then stages; both are told of the incumbent."""
    module, context = costed(text_of([8, 8], False, [3], [1, 1, 3], 1e9, 1e8)), pass_context(DiagnosticSink())
    plan = needed(on_meshes(stages=0).run(module, context), Plan)
    with pytest.raises(NoBetterPlan) as raised:
        on_meshes(stages=0).run(module, replace(context, incumbent=plan))
    assert raised.value.bound <= plan.value
