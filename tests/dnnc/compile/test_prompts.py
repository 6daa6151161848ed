"""Prompt programs: their memory, and what is told of the time to the first token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnc.compile.driver import compile_model, plan_model
from ir.core.diagnostics import DiagnosticSink, Infeasible, Severity
from tests.dnnc.compile.test_decoding import summing
from tests.dnnc.compile.test_tokens import machines, options, planned

T5 = "zoo:t5-base,cache=inplace,version=1.1,layers=1,hidden=32,heads=2,ffn=48,vocab=61,seq=5"


def tokens_told(topology: Path, **more: Any) -> str:
    """What the certificate tells of tokens."""
    return dict(planned(topology, **{"batch": 2, "groups": 1, **more}).certificate)["tokens"]


def first_token(told: str) -> str:
    """The time to the first token, as the certificate tells it."""
    return next(part for part in told.split("; ") if "to the first token" in part).split(" to ")[0]


@pytest.mark.parametrize(
    ("objective", "groups"),
    [
        pytest.param("tokens", 2, marks=pytest.mark.slow),
        ("token-latency", 1),
        pytest.param("throughput", 2, marks=pytest.mark.slow),
    ],
)
def test_the_prompt_program_fits_too(objective: str, groups: int, tmp_path: Path) -> None:
    """A step needs 351 KiB with two groups; 32 less with one; a chunk of 31 tokens 90 more, of 15 tokens 35 more."""
    for memory, chunk in ((600, 31), (420, 15), (352, 1)):
        limit = memory - 32 * (2 - groups)
        core, sink = machines(tmp_path / "t.toml", ("core", 1, 1, limit)), DiagnosticSink()
        found = plan_model(options(core, objective=objective, batch=2, groups=groups), sink=sink)
        assert (found.prompt.chunk if found.prompt is not None else 1) == chunk
        for stage in (*found.plan.stages, *(found.prompt.stages if found.prompt is not None else ())):
            assert stage.memory <= 1024 * limit
        notes = [(one.code, one.severity) for one in sink.diagnostics]
        assert notes == ([("W1061", Severity.NOTE)] if chunk < 31 else [])


def test_the_prompt_program_fits_a_mesh_too(tmp_path: Path) -> None:
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 250))
    prompt = plan_model(options(two, objective="", mesh="2", stages=1, batch=4, groups=1), sink=DiagnosticSink()).prompt
    assert prompt is not None
    assert [stage.mesh for stage in prompt.stages] == ["@mesh"]
    assert prompt.chunk == 15
    assert prompt.stages[0].memory <= 250 * 1024


def test_a_chunk_takes_a_mesh_longer_than_a_step(tmp_path: Path) -> None:
    """Of its 31 tokens each is as much to compute as that of a step, and two devices compute half of it each."""
    two = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    seconds = {}
    for mesh in ("none", "2"):
        found = plan_model(options(two, objective="", mesh=mesh, stages=1, batch=2, groups=1), sink=DiagnosticSink())
        assert found.prompt is not None
        assert found.prompt.chunk == 31
        seconds[mesh] = found.prompt.stages[0].working
        assert seconds[mesh] > 3 * found.plan.stages[0].working
    assert seconds["none"] / 2 < seconds["2"] < seconds["none"]


def test_a_stated_chunk_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    core = machines(tmp_path / "t.toml", ("core", 1, 1, 420))
    with pytest.raises(
        Infeasible, match=r"16 tokens at once does not fit: stage 0: it needs [0-9]+ bytes on core0, which has 430080"
    ):
        planned(core, objective="", batch=3, groups=2, chunk=16)
    compile_model(options(core, tmp_path / "b", batch=2, groups=2, plan_only=False, load_test=False), sink=DiagnosticSink())
    assert json.loads((tmp_path / "b" / "plan.json").read_text())["decoding"]["chunk"] == 15


def test_the_time_to_the_first_token_is_of_the_program_that_is_written(tmp_path: Path) -> None:
    """States that a sequence is given do not keep a prompt from going in chunks; a recurrent state does."""
    core = machines(tmp_path / "t.toml", ("core", 1, 1, 4000))
    chunks, single = (tokens_told(core, model=T5, chunk=chunk) for chunk in (None, 1))
    assert "of a prompt of 16, in chunks of 31" in chunks
    assert "of a prompt of 16, token by token" in single
    assert first_token(chunks) != first_token(single)
    summing(tmp_path / "m.onnx")
    assert "of a prompt of 16, token by token" in tokens_told(core, model=str(tmp_path / "m.onnx"), states=("h0=hN",))
