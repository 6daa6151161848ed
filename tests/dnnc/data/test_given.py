"""Microbatches of a Python program, which a thread writes for the ranks."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.data.samples import Feed
from dnnc.data.samples.datasets import drawn_apart


def test_an_iterable_draws_from_the_random_numbers_of_the_caller(tmp_path: Path) -> None:
    drawn = []

    def read(number: int) -> Mapping[str, Any]:
        drawn.append(random.random())
        return {"x": np.zeros(1)}

    random.seed(7)
    with Feed(tmp_path, read, 0, 2, 1) as feed:
        assert feed.thread is not None
        feed.thread.join()
    random.seed(7)
    assert drawn == [random.random(), random.random()]


def test_epochs_draw_apart_from_the_caller() -> None:
    random.seed(7)
    items = drawn_apart((random.random() for _ in range(3)), 1, 2)
    others, own = [], []
    for item in items:
        others.append(item)
        own.append(random.random())
    random.seed(7)
    assert own == [random.random() for _ in range(3)]
    assert others == [*drawn_apart((random.random() for _ in range(3)), 1, 2)]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_any_error_of_the_thread_is_told(error: BaseException, tmp_path: Path) -> None:
    def read(number: int) -> Mapping[str, Any]:
        raise error

    with Feed(tmp_path, read, 0, 2, 1) as feed:
        assert feed.thread is not None
        feed.thread.join()
    assert type(error).__name__ in json.loads((tmp_path / "failed.json").read_text())[0]["message"]


def test_an_iterable_that_blocks_does_not_outlive_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnc.data.samples.given._ENDING", 0.05)
    goes_on = threading.Event()

    def read(number: int) -> Mapping[str, Any]:
        goes_on.wait()
        return {"x": np.zeros(1)}

    with Feed(tmp_path, read, 0, 2, 1) as feed:
        pass
    goes_on.set()
    assert feed.thread is not None
    feed.thread.join()
    assert not [*tmp_path.iterdir()]
