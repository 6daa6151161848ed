"""Models with states, compiled for two stages: what they compute is what onnxruntime computes of the unsplit model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import dnnc
from dnnc.build.build import Build
from dnnc.cli import main
from ir.core.diagnostics import InvalidInput
from tests.dnnc.check.test_check import break_stage
from tests.dnnc.engines.onnxruntime.attention_models import (
    CONTEXT,
    HEADS,
    VOCABULARY,
    WIDTH,
    decoder,
    greedy,
    greedy_in_place,
    recurrent,
    remembered,
)


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "values"), [("BTHD", "BTHD"), ("BHDT", "BHTD"), ("BDHT", "BHDT")])
@pytest.mark.parametrize(("batch", "groups", "chunk"), [(2, 2, None), (HEADS, 1, 5), (1, 1, 1)])
def test_caches_with_dimensions_in_any_order(
    keys: str, values: str, batch: int, groups: int, chunk: int | None, tmp_path: Path
) -> None:
    """Several prompts of unlike lengths, more than places, up to the longest context."""
    model = decoder(keys, values)
    onnx.save(model, tmp_path / "decoder.onnx")
    sizes = {"context": CONTEXT, "batch": batch, "groups": groups, "chunk": chunk}
    plan = dnnc.plan(tmp_path / "decoder.onnx", machines="preset:cpu-2", stages=2, report=False, **sizes)
    random = np.random.default_rng(1)
    lengths = {1: 6, 5: CONTEXT - 5, CONTEXT - 1: 1, CONTEXT // 2: 7, 9: 1}
    prompts = [random.integers(0, VOCABULARY, length).tolist() for length in lengths]
    with plan.write(tmp_path / "build").start() as session:
        answers = [session.generate(prompt, max_tokens=count) for prompt, count in zip(prompts, lengths.values(), strict=True)]
        for prompt, answer, count in zip(prompts, answers, lengths.values(), strict=True):
            assert list(answer) == greedy(model, prompt, count)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b,kv_heads=2,weights=int4", "llama-7b,kv_heads=2,weights=int4"])
def test_models_of_the_zoo(model: str, tmp_path: Path) -> None:
    """More requests than places, prompts of one and several chunks, up to the longest context."""
    spec = f"zoo:{model},layers=2,hidden=64,heads=4,vocab=211,ffn=128,cache=inplace,context={CONTEXT}"
    assert main(["zoo", "export", f"{spec},batch=1,seq=1", "-o", str(tmp_path / "whole.onnx"), "-q"]) == 0
    sizes = {"context": CONTEXT, "batch": 2, "groups": 2, "chunk": 5}
    plan = dnnc.plan(spec, machines="preset:cpu-2", stages=2, report=False, **sizes)
    counts = {1: 5, 3: 9, CONTEXT - 1: 1, 7: CONTEXT - 7, 12: 4, 2: 1}
    prompts = [np.random.default_rng(length).integers(0, 211, length).tolist() for length in counts]
    with plan.write(tmp_path / "build").start() as session:
        answers = [session.generate(prompt, max_tokens=counts[len(prompt)]) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            assert list(answer) == greedy_in_place(tmp_path / "whole.onnx", prompt, counts[len(prompt)], CONTEXT)


@pytest.mark.parametrize("keys", ["HBDT", "TBHD", "DBHT"])
@pytest.mark.parametrize("batch", [2, HEADS])
def test_a_cache_that_does_not_begin_with_the_batch_is_refused(keys: str, batch: int, tmp_path: Path) -> None:
    """Though another dimension of it may be as large as the batch."""
    onnx.save(decoder(keys, "BHTD"), tmp_path / "decoder.onnx")
    with pytest.raises(InvalidInput, match=r"E4106.*key cannot be kept in place: its first dimension is"):
        dnnc.plan(tmp_path / "decoder.onnx", machines="preset:cpu-2", context=CONTEXT, batch=batch, report=False)


def test_a_recurrent_state_that_the_next_stage_reads(tmp_path: Path) -> None:
    """It stays in its stage and crosses the cut; a check compares what it becomes in one step."""
    model = recurrent()
    onnx.save(model, tmp_path / "recurrent.onnx")
    states = tuple(f"h{layer}=h{layer}.next" for layer in range(3))
    plan = dnnc.plan(
        tmp_path / "recurrent.onnx", machines="preset:cpu-2", dims={"batch": 2}, stages=2, states=states, report=False
    )
    inputs = [np.random.default_rng(n).normal(0, 1, (2, WIDTH)).astype(np.float32) for n in range(5)]
    build = plan.write(tmp_path / "build")
    with build.start() as session:
        for x, expected in zip(inputs, remembered(model, inputs), strict=True):
            np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], expected)
    result = build.check(samples=2)
    assert result.passed
    assert {comparison.tensor for comparison in result.report.comparisons} >= {"h0.next", "h1.next", "h2.next", "y"}
    break_stage(Build.open(tmp_path / "build"), 0)
    assert not build.check().passed
