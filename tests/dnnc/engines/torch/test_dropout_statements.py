"""Masks of dropouts: what part they drop, and what they depend on."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.statements.helpers import dropout_mask  # noqa: E402

SIZE = (512, 512)


def mask(seed: int = 3, number: int = 0, ratio: float = 0.3, dtype: Any = torch.float32) -> Any:
    return dropout_mask(torch.tensor(seed), number, ratio, SIZE, dtype)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_the_ratio_is_dropped_and_the_mean_stays(ratio: float) -> None:
    drawn = mask(ratio=ratio)
    count = math.prod(SIZE)
    assert drawn.shape == SIZE
    deviation = (ratio * (1 - ratio) / count) ** 0.5
    assert abs(float((drawn == 0).double().mean()) - ratio) < 5 * deviation
    assert abs(float(drawn.double().mean()) - 1) < 5 * deviation / (1 - ratio)
    assert torch.equal(drawn.unique(), torch.tensor([0.0, 1.0]).div_(1.0 - ratio))
    assert abs(float((drawn[:, 0] == 0).double().mean()) - ratio) < 5 * (ratio * (1 - ratio) / SIZE[0]) ** 0.5


def test_equal_seeds_and_numbers_make_equal_masks_and_others_do_not() -> None:
    torch.manual_seed(1)
    first = mask()
    torch.manual_seed(2)
    assert torch.equal(first, mask())
    assert torch.equal((first != 0).half() / 0.7, mask(dtype=torch.float16))
    others = [mask(seed=4), mask(number=1), mask(seed=2**63 - 1), mask(seed=-3), mask(seed=3 + 2**32), mask(seed=2, number=1)]
    for other in others:
        both = float(((first == 0) & (other == 0)).double().mean())
        assert abs(both - 0.09) < 0.005  # of independent ones
    state = torch.get_rng_state()
    mask()
    assert torch.equal(state, torch.get_rng_state())
