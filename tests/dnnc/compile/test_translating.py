"""A decoder that reads what an encoder made: the same tokens as of the whole model in one session."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnc
from dnnc import zoo
from dnnc.build.build import Build
from dnnc.check.tokens import check_tokens
from dnnc.cli import main
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from passes.graph.folding import expand
from tests.dnnc.compile.test_decoding import compiled
from tests.passes.prepare.states.test_decoding import session

SIZES = "version=1.1,layers=2,hidden=64,heads=4,ffn=96,vocab=100,seq=10"
CONTEXT = 24


def padded(ids: list[int]) -> dict[str, Any]:
    row = np.zeros((1, 10), np.int64)
    row[0, : len(ids)] = ids
    return {"input_ids": row, "attention_mask": (np.arange(10) < len(ids)).astype(np.int64)[None]}


def whole(text: list[int], prompt: list[int], count: int, running: Any) -> list[int]:
    """The most likely tokens behind a prompt, of the model without caches."""
    kept = list(prompt)
    for _ in range(count):
        ids = np.zeros((1, CONTEXT), np.int64)
        ids[0, : len(kept)] = kept
        logits = running.run(["logits"], {**padded(text), "decoder_input_ids": ids})[0]
        kept.append(int(logits[0, len(kept) - 1].argmax()))
    return kept[len(prompt) :]


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["concat", "inplace"])
def test_tokens_are_those_of_the_whole_model(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More requests than places, texts of unequal lengths, prompts of one and of several chunks, two stages."""
    monkeypatch.chdir(tmp_path)  # where ``session`` looks for weights
    built = partial(compiled, batch=2, groups=2, chunk=8, context=CONTEXT)
    plan, sink = built(f"zoo:t5-base,cache={cache},{SIZES}", tmp_path / "d", stages=2)
    assert not sink.diagnostics
    assert plan["decoding"]["chunk"] == 8
    given = [(state["name"], state["stage"]) for state in plan["decoding"]["states"] if not state["result"]]
    assert sorted(given) == [
        ("encoder_attention_mask", 0),
        ("encoder_attention_mask", 1),
        *((f"past_key_values.{layer}.encoder.{part}", layer) for layer in (0, 1) for part in ("key", "value")),
    ]
    compiled(f"zoo:t5-base,cache=cross,{SIZES}", tmp_path / "e", stages=1)
    running = session(expand(zoo.build(f"zoo:t5-base,{SIZES},target_seq={CONTEXT},batch=1")))
    random = np.random.default_rng(0)
    texts = [random.integers(0, 100, n).tolist() for n in (10, 10, 7, 1, 4, 10)]
    prompts = [[0], random.integers(0, 100, 12).tolist(), [3, 4], [0], [0], random.integers(0, 100, 20).tolist()]
    made = []
    with dnnc.load(tmp_path / "e").start() as encoder:
        for text in texts:
            arrays = dict(zip([one.name for one in encoder.get_outputs()], encoder.run(None, padded(text)), strict=True))
            made.append({name: array[:, :, : len(text)] for name, array in arrays.items()})
    with dnnc.load(tmp_path / "d").start() as decoder:
        asked = [decoder.generate(p, max_tokens=8, states=states) for p, states in zip(prompts, made, strict=True)]
        answers = [list(answer) for answer in asked]
    counts = [min(8, CONTEXT - len(prompt)) for prompt in prompts]
    expected = [whole(*one, running) for one in zip(texts, prompts, counts, strict=True)]
    assert answers == expected
    assert len({tuple(answer) for answer in answers}) == len(answers), "no two of them are alike"
    report = check_tokens(Build.open(tmp_path / "d"), RunOptions())
    assert report.passed
    assert report.original
    np.savez(tmp_path / "states.npz", **made[0])
    options = ["--ids", "0", "--max-tokens", "8", "--states", str(tmp_path / "states.npz")]
    assert main(["generate", str(tmp_path / "d"), *options]) == 0
    assert capsys.readouterr().out == ",".join(map(str, expected[0])) + "\n"
