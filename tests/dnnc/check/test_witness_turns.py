"""``verify-plan`` of plans whose replicas have unlike turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnc.check.witness.verify import verify_build
from tests.dnnc.check.test_witness import UNEQUAL, WIDE, compiled


@pytest.mark.parametrize("serves", [([0, 0, 1], None), ([0, 1, 0], [1, 0, 0, 0]), ([1, 0, 0], [0, 1, 1])])
def test_rounds_of_unlike_lengths_are_counted_again(tmp_path: Path, serves: tuple[list[int], list[int] | None]) -> None:
    """A stage that does not say its turns has one for each replica; the turns of both meet again after their common round."""
    text = UNEQUAL.replace('name = "a"', 'name = "a{0..1}"').replace('name = "b"', 'name = "b{0..1}"')
    text = text.replace('["a", "b"]', '["a{0..1}", "b{0..1}"]')
    (tmp_path / "four.toml").write_text(text)
    machines = str(tmp_path / "four.toml")
    first = compiled(tmp_path, WIDE, machines, "--stages", "2", "--mesh", "none", "--replicas", "1")
    plan = json.loads((first / "plan.json").read_text())
    for stage, turns, devices in zip(plan["stages"], serves, (["a0", "b0"], ["b1", "a1"]), strict=True):
        stage["device"] = devices if turns else ["b1"]
        stage.update({"serves": turns} if turns else {})
    (tmp_path / "stated.json").write_text(json.dumps(plan))
    (tmp_path / "again").mkdir()
    again = compiled(tmp_path / "again", WIDE, machines, "--plan", str(tmp_path / "stated.json"))
    found = verify_build(again)
    assert not found.violations
    assert found.value is not None, "the value is counted again"
