"""The search for decoding plans against every plan of small problems."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.decoding import Decoding, DecodingPlan, SharedStage, best_plan, fastest_plan, search
from passes.partition.decoding.problem import Borders, Detours, dealt, on_all_devices, shared
from passes.partition.decoding.search import DecodingSearch


def problem(units: int, counts: tuple[int, ...], batches: tuple[int, ...], seed: int, groups: tuple[int, int]) -> Decoding:
    chance = np.random.default_rng(seed)
    fixed, each = chance.uniform(0.5, 2, (len(counts), units)), chance.uniform(0, 0.5, (len(counts), units))
    seconds = np.stack([fixed + size * each for size in batches])
    hops = np.stack([chance.uniform(0, 1, units) + 0.1 * size for size in batches])
    weights, caches = chance.integers(1, 5, units).astype(float), chance.integers(0, 3, units).astype(float)
    memory = tuple(float(chance.integers(4, 30)) for _ in counts)
    return Decoding(batches, seconds, weights, caches, hops, counts, memory, groups)


def with_borders(given: Decoding, seed: int) -> Decoding:
    """The problem with costs at borders that may make a longer run cheaper, a shared weight, and demands on stages."""
    chance, (batches, kinds, units) = np.random.default_rng(seed), given.seconds.shape
    crossing = chance.uniform(0, 2, (batches, kinds, units, units + 1))
    crossing[:, :, 0, units] = 0.0
    buffers = np.sort(chance.integers(0, 3, (batches, units, units + 1)).astype(float), axis=0)  # more with more sequences
    workspace = np.sort(chance.integers(0, 4, (batches, units)).astype(float), axis=0)
    found = Borders(crossing, buffers, workspace, chance.uniform(0, 1, kinds), with_detours(given, chance))
    shared = ((float(chance.integers(1, 4)), tuple(sorted({0, units // 2, units - 1}))),)
    stages, replicas = int(chance.integers(0, units + 1)), int(chance.integers(0, 3))
    return replace(given, borders=found, shared=shared, stages=stages, replicas=replicas)


def with_detours(given: Decoding, chance: np.random.Generator) -> Detours:
    """Two routes between stages, of which those of the first type alone take the first."""
    seconds, links = chance.uniform(0, 2, (2, len(given.batches), 2, len(given.counts), given.units + 1))
    for values in (seconds, links):
        values[..., 0] = values[..., -1] = 0.0
    first, every = np.arange(len(given.counts)) == 0, np.ones(len(given.counts), np.bool_)
    return Detours(seconds, links, np.array([first, every]), 1)


def one_device(given: Decoding, number: int, kind: int, run: tuple[int, int], several: bool) -> tuple[float, float]:
    """Seconds of a run on a device of a type, and its bytes without caches."""
    first, behind = run
    seconds = float(given.seconds[number, kind, first:behind].sum())
    held = float(given.weights[first:behind].sum())
    held += sum(size for size, units in given.shared if any(first <= unit < behind for unit in units))
    if (borders := given.borders) is not None:
        seconds += float(borders.crossing[number, kind, first, behind]) + (float(borders.handover[kind]) if several else 0.0)
        held += float(borders.buffers[number, first, behind]) + float(borders.workspace[number, first:behind].max())
    return seconds, held


def best_value(given: Decoding) -> float:
    """Tokens per second of the best plan, by trying all: cuts, devices of each stage, batches, groups and their shares."""
    best = 0.0
    for cuts in itertools.chain(*(itertools.combinations(range(1, given.units), k) for k in range(given.units))):
        ends = [*zip((0, *cuts), (*cuts, given.units), strict=True)]
        if given.stages and len(ends) != given.stages:
            continue
        for devices in assignments(len(ends), given.counts):
            if given.replicas and max(map(sum, devices)) > given.replicas:
                continue
            alone = [stage[0] > 0 and not any(stage[1:]) for stage in devices]
            open_to = [[0, 1] if given.borders is not None and a and b else [-1] for a, b in pairwise(alone)]
            for number, size in enumerate(given.batches):
                for groups, routes in itertools.product(
                    range(given.groups[0], given.groups[1] + 1), itertools.product(*open_to)
                ):
                    best = max(best, size / value(given, ends, devices, number, groups, routes))
    return best


def assignments(stages: int, counts: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Of each device the stage that it works for, if any; one of those that differ in names alone."""
    per_kind = [list(itertools.combinations_with_replacement(range(stages + 1), count)) for count in counts]
    for homes in itertools.product(*per_kind):
        found = tuple(tuple(own.count(stage) for own in homes) for stage in range(stages))
        if all(any(own) for own in found):
            yield found


def value(
    given: Decoding,
    ends: list[tuple[int, int]],
    devices: tuple[tuple[int, ...], ...],
    number: int,
    groups: int,
    routes: tuple[int, ...],
) -> float:
    """The definition, with all ways to deal the groups, some to each device; ``routes`` of the borders (-1: the second).
    Fewer groups for a slow device may make a longer path, so every pair of period and path counts."""
    options, several = [], sum(map(sum, devices)) > 1
    for (first, behind), own, at in zip(ends, devices, pairwise((0, *routes, 0)), strict=True):
        each = [kind for kind, count in enumerate(own) for _ in range(count)]
        found = []
        turns = len(each) if not given.loops and len(set(each)) == 1 else groups  # alike devices of a stream: one each
        for shares in dealings(turns, len(each), 1):
            caches = given.caches[first:behind].sum()
            alone = [one_device(given, number, kind, (first, behind), several) for kind in each]
            held = [own[1] + share * given.batches[number] * caches for share, own in zip(shares, alone, strict=True)]
            if any(size > given.memory[kind] for size, kind in zip(held, each, strict=True)):
                continue
            seconds = [one[0] for one in alone]
            period = max(share * one for share, one in zip(shares, seconds, strict=True)) / turns
            if given.borders is not None and (detours := given.borders.detours) is not None:
                more, links = (
                    values[number, at[0], :, first] + values[number, at[1], :, behind]
                    if summed
                    else np.maximum(values[number, at[0], :, first], values[number, at[1], :, behind])
                    for values, summed in ((detours.seconds, True), (detours.links, False))
                )
                seconds = [one + float(more[kind]) for one, kind in zip(seconds, each, strict=True)]
                busy = [links[kind] * sum(s for s, k in zip(shares, each, strict=True) if k == kind) for kind in each]
                period = max(*(share * one for share, one in zip(shares, seconds, strict=True)), *busy) / turns
            path = max(seconds)
            found.append((period, path + float(given.hops[number, first])))
        options.append(found)
    best = math.inf
    for chosen in itertools.product(*options):
        path = math.fsum(path for _, path in chosen) / groups if given.loops else 0.0
        best = min(best, max(path, *(period for period, _ in chosen)))
    return best


def dealings(groups: int, devices: int, least: int = 0) -> Iterator[tuple[int, ...]]:
    """All ways to give each device so many groups at least."""
    if devices == 1:
        if groups >= least:
            yield (groups,)
        return
    for share in range(least, groups + 1):
        for rest in dealings(groups - share, devices - 1, least):
            yield (share, *rest)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.sampled_from([(1,), (2,), (1, 1), (2, 1)]), st.sampled_from([(1,), (2, 4)]), st.integers(0, 10**6))
def test_the_plan_is_the_best_of_all(units: int, counts: tuple[int, ...], batches: tuple[int, ...], seed: int) -> None:
    asked = problem(units, counts, batches, seed, (1, 3))
    found, best = best_plan(asked, gap=1e-6), best_value(asked)
    if found is None:
        assert best == 0
        return
    assert found.tokens_per_second == pytest.approx(best, rel=2e-6)
    assert found.bound >= best * (1 - 1e-12)
    checked(asked, found)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.sampled_from([(1,), (2,), (1, 1), (2, 1)]), st.sampled_from([(1,), (2, 4)]), st.integers(0, 10**6))
def test_the_plan_is_the_best_of_all_with_borders(
    units: int, counts: tuple[int, ...], batches: tuple[int, ...], seed: int
) -> None:
    asked = with_borders(problem(units, counts, batches, seed, (1, 3)), seed)
    found, best = best_plan(asked, gap=1e-6), best_value(asked)
    assert (found is None) == (best == 0)
    if found is not None:
        assert found.bound >= best * (1 - 1e-9)
        assert found.tokens_per_second <= best * (1 + 1e-9)
        assert not asked.stages or len(found.stages) == asked.stages
        assert found.tokens_per_second == pytest.approx(best, rel=2e-6)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.sampled_from([(3,), (2, 1)]), st.integers(0, 1), st.booleans(), st.integers(0, 10**6))
def test_devices_in_bundles_make_a_plan_and_a_bound_of_all(
    units: int, counts: tuple[int, ...], replicas: int, borders: bool, seed: int
) -> None:
    asked = problem(units, counts, (1, 2), seed, (1, 3))
    asked = replace(with_borders(asked, seed) if borders else asked, replicas=replicas, stages=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_STATES", 3)
        assert not DecodingSearch(asked).all_devices
        found, fastest = best_plan(asked), fastest_plan(asked)
    best = best_value(asked)
    if found is not None:
        if not borders:
            checked(asked, found)
        assert found.tokens_per_second <= best * (1 + 1e-9)
        assert found.bound >= best * (1 - 1e-9)
    if fastest is not None and (all_devices := fastest_plan(asked)) is not None:
        assert fastest.tokens_per_second <= all_devices.tokens_per_second * (1 + 1e-9) <= fastest.bound * (1 + 1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.sampled_from([(3,), (2, 1), (2, 2)]), st.booleans(), st.integers(0, 10**6))
def test_where_stages_of_many_devices_are_not_searched_bounds_are_of_all(
    units: int, counts: tuple[int, ...], borders: bool, seed: int
) -> None:
    """Of so few pairs of a vector and a block stages have one device: the plan may have more all the same."""
    asked = problem(units, counts, (1, 2), seed, (1, 3))
    asked = replace(with_borders(asked, seed), replicas=0, stages=0) if borders else asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_TRANSITIONS", 1)
        patch.setattr(search, "FEW_STATES", 4)
        found = best_plan(asked)
    best = best_value(asked)
    if found is not None:
        assert found.tokens_per_second <= best * (1 + 1e-9)
        assert found.bound >= best * (1 - 1e-9)


def test_a_small_model_is_on_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of LLaMA on 48 devices had a third of the tokens that copies on 24 of them have: stages had three devices."""
    monkeypatch.setattr(search, "MOST_TRANSITIONS", 10)
    seconds = np.array([[[1.0, 1.0], [2.0, 2.0], [40.0, 40.0]]])
    asked = Decoding((1,), seconds, np.ones(2), np.zeros(2), np.full((1, 2), 9.0), (4, 4, 4), (9.0,) * 3, (1, 99))
    found = best_plan(asked, seconds=0.2)
    assert found is not None
    checked(asked, found)
    assert found.tokens_per_second > 0.95 * 4 * (1 / 2 + 1 / 4)
    assert len(found.stages) == 1


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([(1,), (3,), (2, 1), (1, 2, 2)]), st.integers(1, 6), st.integers(0, 8), st.integers(0, 10**6))
def test_one_stage_on_all_devices_has_the_best_number_of_groups(
    counts: tuple[int, ...], few: int, more: int, seed: int
) -> None:
    asked = problem(2, counts, (1, 3), seed, (few, few + more))
    for number in range(2):
        found = on_all_devices(asked, number)
        plans = [shared(asked, [SharedStage(0, 2, counts)], number, groups) for groups in range(few, few + more + 1)]
        best = max((plan.tokens_per_second for plan in plans if plan is not None), default=0.0)
        assert (found.tokens_per_second if found is not None else 0.0) == pytest.approx(best)


def test_many_devices_of_many_types_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far too many vectors: 33 ** 8. Bundles of few vectors are enough to see that all devices take part."""
    monkeypatch.setattr(search, "MOST_STATES", 1000)
    chance = np.random.default_rng(0)
    seconds = chance.uniform(1, 4, (1, 8, 4))
    asked = Decoding((1,), seconds, np.ones(4), np.zeros(4), np.zeros((1, 4)), (32,) * 8, (9.0,) * 8)
    assert DecodingSearch(asked).bundles.min() > 1
    found = best_plan(asked, seconds=0.2)
    assert found is not None
    checked(asked, found)
    assert found.tokens_per_second < found.bound
    assert sum(sum(stage.devices) for stage in found.stages) > 32


def checked(asked: Decoding, plan: DecodingPlan) -> None:
    """The plan is one, and is worth what it says."""
    number, path, periods = asked.batches.index(plan.batch), 0.0, []
    assert [stage.first for stage in plan.stages] == [0, *(stage.behind for stage in plan.stages)][:-1]
    assert plan.stages[-1].behind == asked.units
    for kind, count in enumerate(asked.counts):
        assert sum(stage.devices[kind] for stage in plan.stages) <= count
    for stage in plan.stages:
        assert tuple(map(len, stage.shares)) == stage.devices
        assert sum(map(sum, stage.shares)) == plan.groups
        slowest = 0.0
        for kind, shares in enumerate(stage.shares):
            seconds = float(asked.seconds[number, kind, stage.first : stage.behind].sum())
            for share in shares:
                held = share * plan.batch * asked.caches[stage.first : stage.behind].sum()
                assert not share or asked.weights[stage.first : stage.behind].sum() + held <= asked.memory[kind]
                periods.append(share * seconds / plan.groups)
                slowest = max(slowest, seconds if share else 0.0)
        path += slowest + float(asked.hops[number, stage.first])
    assert plan.value == pytest.approx(max(*periods, path / plan.groups))


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10**6), st.floats(1e-4, 0.3))
def test_the_bound_holds_at_any_gap(units: int, seed: int, gap: float) -> None:
    asked = problem(units, (2, 2), (1, 2, 8), seed, (1, 12))
    near, exact = best_plan(asked, gap), best_plan(asked, 1e-6)
    assert (near is None) == (exact is None)
    if near is not None and exact is not None:
        checked(asked, near)
        assert exact.tokens_per_second <= near.bound * (1 + 1e-9)
        assert near.gap <= gap * 1.01 + 1e-8


def test_unlike_devices_share_a_stage_in_proportion_to_speed() -> None:
    alone = Decoding((1,), np.array([[[1.0], [2.0]]]), np.ones(1), np.zeros(1), np.zeros((1, 1)), (1, 1), (9.0, 9.0), (6, 6))
    found = best_plan(alone)
    assert found is not None
    assert found.stages[0].shares == ((4,), (2,))
    assert found.tokens_per_second == pytest.approx(1.5)


def test_caches_bound_groups_and_batches() -> None:
    # A step takes as long for 4 sequences as for one; the device has room for the caches of 6.
    asked = Decoding((1, 2, 4), np.ones((3, 1, 1)), np.ones(1), np.ones(1), np.zeros((3, 1)), (1,), (7.0,), (1, 8))
    found = best_plan(asked)
    assert found is not None
    assert (found.batch, found.groups) == (4, 1)
    none = replace(asked, memory=(1.5,))
    assert best_plan(none) is None


def test_one_user_goes_through_the_fastest_devices() -> None:
    seconds = np.array([[[1.0, 1.0, 5.0], [3.0, 3.0, 1.0]]])
    asked = Decoding((1,), seconds, np.ones(3), np.zeros(3), np.full((1, 3), 0.5), (1, 1), (9.0, 9.0))
    found = fastest_plan(asked)
    assert found is not None
    assert found.value == pytest.approx(4.0)
    assert [(stage.first, stage.behind, stage.devices) for stage in found.stages] == [(0, 2, (1, 0)), (2, 3, (0, 1))]


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=4), st.integers(1, 7))
def test_groups_are_dealt_so_that_the_slowest_is_fastest(seconds: list[float], groups: int) -> None:
    shares = dealt(seconds, [groups] * len(seconds), groups)
    assert shares is not None
    worst = max(share * one for share, one in zip(shares, seconds, strict=True))
    ways = dealings(groups, len(seconds))
    assert worst == pytest.approx(min(max(s * one for s, one in zip(way, seconds, strict=True)) for way in ways))
