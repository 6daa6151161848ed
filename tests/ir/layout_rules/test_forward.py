"""Every rule against the numbers: each strategy of random small ops, run by shards on onnxruntime, joined, and compared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.layout_rules.cases import CASES, RUN, cases
from tests.ir.layout_rules.harness import Case, check_strategies, check_two_axes

EXAMPLES = 4
FLOATS = [np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32) for shape in ((4, 4, 5), (8, 4, 3), (8,), (1, 8))]
NEVER_SPLIT = {"onnx.Constant", "onnx.EyeLike", "onnx.Range"}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RUN)


@pytest.mark.parametrize("name", RUN)
def test_shards_make_the_whole(name: str) -> None:
    """2 and 4 members, equal and unequal shards: what they hold is what the rule says of the whole result."""
    compare(name, EXAMPLES)


@pytest.mark.parametrize(
    ("case", "strategies"),
    [
        (Case("onnx.Conv", [FLOATS[0], FLOATS[1], FLOATS[2]]), {"batch", "in", "out", "sum of 0, 2", "sum of 1, 2"}),
        (Case("onnx.Tile", [FLOATS[3], np.array([4, 1])], constants=(1,)), {"d0", "d1", "sum of 0", "max of 0"}),
        (Case("onnx.Gemm", [FLOATS[3].T, FLOATS[3], FLOATS[2]]), {"m", "n", "sum of 0, 2", "sum of 1, 2"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_these_are_offered_and_right(case: Case, strategies: set[str]) -> None:
    """What random instances meet only now and then."""
    assert set(check_strategies(case)) == strategies


def need_torch(name: str) -> None:
    """What runs kernels of ``grad``."""
    if name.startswith("grad."):
        pytest.importorskip("torch", reason="the extra 'train' is not installed")


def compare(name: str, examples: int) -> None:
    need_torch(name)
    done: set[str] = set()

    @settings(max_examples=examples, derandomize=True)
    @given(cases(name), st.integers(0, 1 << 20))
    def run(case: Case, seed: int) -> None:
        done.update(check_strategies(case, seed=seed))

    run()
    assert done or name in NEVER_SPLIT, f"no instance of {name} was ever split"


@pytest.mark.parametrize("name", RUN)
def test_axes_of_a_mesh_are_apart(name: str) -> None:
    """Over a mesh of 2 x 2, a rule is applied once per axis."""
    need_torch(name)

    @settings(max_examples=2, derandomize=True)
    @given(cases(name), st.integers(0, 1 << 20))
    def run(case: Case, seed: int) -> None:
        check_two_axes(case, seed)

    run()
