"""``losses.json``: valid whenever training ends, and one curve over several trainings that go on from each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ir.core.diagnostics import InvalidInput

pytest.importorskip("torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.watch.record import LOSSES, Losses


def curve(folder: Path) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in json.loads((folder / LOSSES).read_text())]


def written(folder: Path, done: int, *steps: int) -> list[tuple[int, float]]:
    """The curve after a training that went on after ``done``."""
    losses = Losses.open(folder, done)
    for step in steps:
        losses.add(step, step / 4)
    return curve(folder)


def test_losses_are_there_as_they_come(tmp_path: Path) -> None:
    losses = Losses.open(tmp_path / "made", 0)
    assert curve(tmp_path / "made") == []
    for step in range(1, 20):
        losses.add(step, 1 / step)
        assert curve(tmp_path / "made") == [(number, 1 / number) for number in range(1, step + 1)]
    assert os.listdir(tmp_path / "made") == [LOSSES]


def test_a_training_that_goes_on_has_one_curve(tmp_path: Path) -> None:
    """What came after the checkpoint is trained again."""
    assert [step for step, _ in written(tmp_path, 0, 1, 2, 3)] == [1, 2, 3]
    assert written(tmp_path, 2, 3, 4) == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert written(tmp_path, 4) == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert written(tmp_path, 0, 1) == [(1, 0.25)]


@pytest.mark.parametrize("text", ["", "[{]", "{}", '["step", 1, {"loss": 2}, {"step": "1", "loss": 2}]'])
def test_a_file_that_is_no_curve_is_replaced(text: str, tmp_path: Path) -> None:
    (tmp_path / LOSSES).write_text(text)
    assert written(tmp_path, 5, 6) == [(6, 1.5)]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / LOSSES).mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "taken"):
        with pytest.raises(InvalidInput) as caught:
            Losses.open(folder, 0)
        assert caught.value.diagnostics[0].where == str(folder / LOSSES)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number_is_null(loss: float, tmp_path: Path) -> None:
    Losses.open(tmp_path, 0).add(1, loss)
    assert written(tmp_path, 1, 2) == [(1, None), (2, 0.5)]
    (tmp_path / LOSSES).write_text('[{"step": 1, "loss": NaN}]')  # as it was written once
    assert written(tmp_path, 1) == [(1, None)]
    assert "NaN" not in (tmp_path / LOSSES).read_text()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path) -> None:
    """Reading a FIFO would wait for ever."""
    os.mkfifo(tmp_path / LOSSES)
    with pytest.raises(InvalidInput, match=r"losses\.json: error\[E2004\]: found a FIFO, expected losses of a training"):
        Losses.open(tmp_path, 0)
