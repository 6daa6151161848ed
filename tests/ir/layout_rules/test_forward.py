"""Every rule against the numbers: each strategy of random small ops, run by shards on onnxruntime, joined, and compared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.layout_rules import RULES
from tests.ir.layout_rules.cases import CASES, cases
from tests.ir.layout_rules.harness import Case, check_strategies, check_two_axes

EXAMPLES = 6
NEVER_SPLIT = {"onnx.Constant", "onnx.EyeLike", "onnx.Range"}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("name", sorted(RULES))
def test_shards_make_the_whole(name: str) -> None:
    """2 and 4 members, equal and unequal shards: what they hold is what the rule says of the whole result."""
    compare(name, EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RULES))
def test_shards_make_the_whole_at_length(name: str) -> None:
    """As above, many more instances."""
    compare(name, 8 * EXAMPLES)


def compare(name: str, examples: int) -> None:
    done: set[str] = set()

    @settings(max_examples=examples, derandomize=True)
    @given(cases(name), st.integers(0, 1 << 20))
    def run(case: Case, seed: int) -> None:
        done.update(check_strategies(case, seed=seed))

    run()
    assert done or name in NEVER_SPLIT, f"no instance of {name} was ever split"


@pytest.mark.parametrize("name", sorted(RULES))
def test_axes_of_a_mesh_are_apart(name: str) -> None:
    """Over a mesh of 2 x 2, a rule is applied once per axis."""

    @settings(max_examples=2, derandomize=True)
    @given(cases(name), st.integers(0, 1 << 20))
    def run(case: Case, seed: int) -> None:
        check_two_axes(case, seed)

    run()
