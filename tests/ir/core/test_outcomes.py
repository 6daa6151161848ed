"""Searches end with one of four words, in the IR and in the code; words of earlier versions are read, never written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ir import InvalidInput, load_module, print_module
from ir.core.module import Module, Plan
from ir.core.outcomes import OUTCOMES, outcome, read_outcome
from ir.verifier import verify

EARLIER = {"feasible": "within-gap", "uncertain": "within-gap", "unknown": "undecided", "unfit": "undecided"}

TEXT = """module @m {
  func @main() -> () {
  }
  plan @plan {
    objective = throughput
    comm = sum
    value = 2.0
    port_value = 2.0
    bound = 1.0
    status = STATUS
    single = 3.0
  }
}
"""


def _stated(word: str) -> Plan:
    plan = load_module(TEXT.replace("STATUS", word), "plan.ir").first(Plan)
    assert plan is not None
    return plan


@pytest.mark.parametrize("word", OUTCOMES)
def test_each_outcome_reads_back(word: str) -> None:
    module = load_module(TEXT.replace("STATUS", word), "plan.ir")
    assert f"    status = {word}\n" in print_module(module)
    assert load_module(print_module(module), "plan.ir") == module


@pytest.mark.parametrize(("word", "today"), EARLIER.items())
def test_a_plan_of_an_earlier_version_is_read(word: str, today: str) -> None:
    assert _stated(word).status == read_outcome(word) == today


def test_another_word_in_a_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match=f"unknown status 'good'; expected one of {', '.join(OUTCOMES)}"):
        _stated("good")


@pytest.mark.parametrize("word", ["good", *EARLIER])
def test_the_verifier_refuses_a_plan_with_another_word(word: Any) -> None:
    plan = replace(_stated("optimal"), status=word, bound=2.0)
    found = [str(fault) for fault in verify(Module("@m", (plan,)))]
    assert any(f"unknown status '{word}'; expected one of {', '.join(OUTCOMES)}" in fault for fault in found), found


def test_a_plan_is_optimal_where_its_value_meets_the_bound() -> None:
    assert [outcome(2.0, bound, 1e-9) for bound in (2.0, 2.0 - 1e-12, 1.0, 0.0)] == ["optimal"] * 2 + ["within-gap"] * 2
    assert outcome(0.0, 0.0, 1e-9) == "optimal"
