"""Elimination over all layouts of one mesh: the minimum that brute force finds, a bound where tables are too wide or memory
binds, and the witness of real plans on one mesh."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.check.witness import layouts
from dnnc.check.witness.layouts import least_seconds
from dnnc.check.witness.verify import verify_build
from dnnc.cli import main
from ir.text.witness import MESH, read_witness
from passes.partition.layouts import NodeKind, ShardProblem, ValueKind, ValueNode, solve
from passes.partition.layouts.problem.graph import Graph
from tests.passes.partition.layouts.exact import brute_force
from tests.passes.partition.layouts.problems import random_graph, random_layers

TRAINING = ("--objective", "training", "--loss", "mse:y")
MODEL = "zoo:mlp,layers=4,hidden=64,inputs=64,outputs=64,batch=16"
SMALL = """
version = 1
name = "small"
switches = ["s"]
[types]
gpu = "preset:h100"
[[hosts]]
name = "h"
[[devices]]
name = "d{0..3}"
type = "gpu"
host = "h"
memory = "516 MiB"
[[links]]
each = "devices of h"
to = "s"
bandwidth = "100 GB/s"
latency = "1 us"
"""
PLANS: dict[str, tuple[str, tuple[str, ...]]] = {
    "one axis": (MODEL, ("-t", "preset:h100x4", "--mesh", "4")),
    "two axes": (MODEL, ("-t", "preset:h100x4", "--mesh", "2x2")),
    "cores": (MODEL, ("-t", "preset:cpu-4", "--mesh", "4")),
    "layers": ("zoo:bert-small,layers=2", ("-t", "preset:h100x4", "--mesh", "4")),
    "a step": (MODEL, ("-t", "preset:h100x4", "--mesh", "4", *TRAINING)),
    "a step of microbatches": (MODEL, ("-t", "preset:h100x4", "--mesh", "2x2", *TRAINING, "--microbatches", "2")),
}


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.integers(1, 7))
def test_the_minimum_is_that_of_brute_force(seed: int, nodes: int) -> None:
    problem = random_graph(seed, nodes)
    found, exact = least_seconds(problem, 0.0, None)
    assert exact
    assert found == pytest.approx(brute_force(problem))


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.floats(0, 10), st.floats(0, 40))
def test_any_price_of_memory_proves_a_bound(seed: int, price: float, memory: float) -> None:
    problem = random_graph(seed, 6)
    found, _ = least_seconds(problem, price, memory)
    assert found <= brute_force(problem, memory) + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_the_price_of_a_search_proves_its_bound(seed: int) -> None:
    """As far as a price does: what plans between two prices prove is more."""
    problem = random_graph(seed, 7)
    memory = 0.5 * (problem.memory([0] * problem.size) + sum(float(problem.node(v).memory.min()) for v in range(7)))
    plan = solve(problem, memory=memory)
    found, _ = least_seconds(problem, plan.price, memory)
    assert found <= plan.bound + 1e-9 <= plan.value + 2e-9
    assert found >= least_seconds(problem, 0.0, memory)[0] - 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_tables_that_are_too_wide_still_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_graph(seed, 7)
    best = least_seconds(problem, 0.0, None)[0]
    monkeypatch.setattr(layouts, "MOST", 16)
    found, exact = least_seconds(problem, 0.0, None)
    assert found <= best + 1e-9
    assert exact <= (abs(found - best) <= 1e-9)


def test_repeated_layers() -> None:
    problem = random_layers(3, copies=3, size=2)
    assert least_seconds(problem, 0.0, None)[0] == pytest.approx(brute_force(problem))


def test_a_node_that_reads_what_it_makes_takes_one_choice() -> None:
    """A copy that stands for another: its own layout and the one that it needs differ, and it pays that."""
    kind = NodeKind(("a", "b"), np.zeros(2), np.zeros(2), (np.array([1, 0]),), (np.array([0, 1]),))
    value = ValueKind(np.array([[0.0, 3.0], [2.0, 0.0]]), ((0,), (1,)))
    problem = ShardProblem((kind,), (value,), Graph((0,), (ValueNode(0, (0, 0), ((0, 0),)),)))
    assert least_seconds(problem, 0.0, None)[0] == 2.0


@pytest.mark.parametrize("name", PLANS)
def test_the_bound_of_a_plan_on_one_mesh_is_proven(name: str, tmp_path: Path) -> None:
    model, options = PLANS[name]
    assert main(["compile", model, "--plan-only", "-q", "-o", str(tmp_path / "plan"), *options]) == 0
    found = verify_build(tmp_path / "plan")
    assert not found.violations
    (proof,) = found.proofs
    assert proof.plans == MESH
    assert proof.part > 0.999
    assert "elimination over all layouts" in found.text()


def test_a_bound_that_memory_makes_is_proven_by_its_price(tmp_path: Path) -> None:
    """For the most part (plans between two prices are counted out by the search), and less without the price."""
    out = tmp_path / "plan"
    (tmp_path / "small.toml").write_text(SMALL)
    model = "zoo:mlp,layers=6,hidden=512,inputs=512,outputs=512,batch=512"
    assert main(["compile", model, "-t", str(tmp_path / "small.toml"), "--mesh", "4", "--plan-only", "-q", "-o", str(out)]) == 0
    found = verify_build(out)
    assert not found.violations
    assert found.proofs[0].part > 0.9
    text = (out / "plan.ir").read_text()
    told = re.search(r'witness = "([^"]*)"', text)
    assert told is not None
    (record,) = read_witness(told[1])
    assert record.memory > 0
    (out / "plan.ir").write_text(re.sub(r" \S+/byte", "", text))
    again = verify_build(out)
    assert any("'witness[0]" in violation for violation in again.violations)
    assert again.proofs[0].part < found.proofs[0].part
