"""Layouts in which values cross, tried one by one for few microbatches in flight: none twice, none beyond the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from passes.partition.chain.solved import SolvedStages, StageSolver
from passes.solvers.work import now
from tests.passes.partition.layouts.test_stages import MODES, claimed_of_chain

FEW_IN_FLIGHT = MODES[2]


def test_none_is_tried_once_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    original, late = StageSolver.solved, list[bool]()

    def solved(self: StageSolver, sequence: Any, stated: Mapping[str, int]) -> SolvedStages | int:
        if stated:
            late.append(now() >= self.until)
            self.until = now()
        return original(self, sequence, stated)

    monkeypatch.setattr(StageSolver, "solved", solved)
    claimed_of_chain(134, FEW_IN_FLIGHT)
    assert late
    assert not any(late)


def test_the_layout_at_hand_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    original, better = StageSolver.solved, StageSolver.with_better_borders
    at_hand, tried = dict[str, int](), list[tuple[int, int]]()

    def solved(self: StageSolver, sequence: Any, stated: Mapping[str, int]) -> SolvedStages | int:
        tried.extend((at_hand[name], layout) for name, layout in stated.items())
        return original(self, sequence, stated)

    def with_better_borders(
        self: StageSolver, sequence: Any, found: SolvedStages, worth: Callable[[Sequence[float]], float]
    ) -> SolvedStages:
        for one in found.stages:
            at_hand.update((name, one.stage.made(one.plan.choices, name)) for name in one.stage.border.send)
        return better(self, sequence, found, lambda seconds: 1.0)  # none is better

    monkeypatch.setattr(StageSolver, "solved", solved)
    monkeypatch.setattr(StageSolver, "with_better_borders", with_better_borders)
    claimed_of_chain(134, FEW_IN_FLIGHT)
    assert tried
    assert all(own != layout for own, layout in tried)
