"""``dnnc check`` of a language model: logits and tokens of its stages against the user's model, whose caches are its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dnnc.build.build import Build
from dnnc.build.decoding import Decoding
from dnnc.check.check import CheckOptions, check_build
from dnnc.check.reference import references
from dnnc.check.steps import Steps, steps_of
from dnnc.check.tokens import Answered, Judge, check_tokens, prompts_of
from dnnc.check.tokens import _compared as compared
from dnnc.cli import main
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from ir.core.diagnostics import UsageError
from tests.dnnc.compile.test_decoding import compiled
from tests.passes.prepare.states.test_attention import decoder
from tests.passes.prepare.states.test_decoding import MODELS

CONTEXT, BATCH = 12, 2


def steps(build: Path, folder: Path, *, original: bool = True) -> Steps:
    opened = Build.open(build)
    assert opened.decoding is not None
    names = (opened.decoding.logits, *(state.result for state in opened.decoding.states))
    reference = next(one for one in references(opened, names, folder) if one.original == original)
    made = steps_of(reference, opened.decoding, 1, optimize=True)
    assert made is not None
    return made


def logits_of(made: Steps, texts: list[list[int]]) -> Any:
    """The logits behind each token of texts of one length, ``[token, text, vocabulary]``."""
    made.begin()
    return np.stack([made.logits(position, list(tokens)) for position, tokens in enumerate(zip(*texts, strict=True))])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokens") / "b"
    compiled(f"zoo:gpt2,cache=concat,{MODELS['gpt2']}", out, context=CONTEXT, batch=BATCH, groups=1, chunk=4, stages=2)
    return out


def test_caches_of_the_model_and_caches_in_place_have_one_answer(gpt2: Path, tmp_path: Path) -> None:
    """The model appends to caches of a fixed length; the build's copy writes in place."""
    texts = np.random.default_rng(0).integers(0, 50, (BATCH, CONTEXT)).tolist()
    first, second = (logits_of(steps(gpt2, tmp_path, original=original), texts) for original in (True, False))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)


def test_other_tokens_and_other_logits_are_noticed(gpt2: Path, tmp_path: Path) -> None:
    """At each place of an answer, of each sequence of a group, and only there."""
    made, prompts = steps(gpt2, tmp_path), [[1, 2, 3], [7]]
    answers = []
    for prompt in prompts:
        text = list(prompt)
        logits: list[Any] = []
        while len(text) < 8:
            logits = [row[0] for row in logits_of(made, [text, text])]
            text.append(int(logits[-1].argmax()))
        answers.append(Answered(prompt, text[len(prompt) :], logits[len(prompt) - 1 :]))
    judge = Judge.of(Build.open(gpt2), made.decoding)
    assert judge.allowed == 1e-4
    assert all(share <= 1e-6 for one in judge.differences(made, answers) for share, _ in one)
    for sequence, answer in enumerate(answers):
        for place, token in enumerate(answer.tokens):
            other = [list(one.tokens) for one in answers]
            other[sequence][place] = (token + 1) % 50
            mixed = [replace(one, tokens=tokens) for one, tokens in zip(answers, other, strict=True)]
            (_, (found, number)) = judge.differences(made, mixed)[sequence]
            assert found > judge.allowed
            assert number >= place
            shifted = [row.copy() for row in answer.logits]
            shifted[place][3] += 0.01
            mixed = [replace(answer, logits=shifted) if one is answer else one for one in answers]
            found_all = judge.differences(made, mixed)
            assert found_all[sequence][0][1] == place
            assert [one[0][0] > judge.allowed for one in found_all] == [one is answer for one in answers]


def test_logits_may_differ_as_the_rounding_of_the_model_itself_does(gpt2: Path, tmp_path: Path) -> None:
    """By what its own runs differ, with onnxruntime's optimisations and without, where nobody stated a tolerance; a fault is
    larger."""
    made, prompt, build = steps(gpt2, tmp_path), [1, 2, 3], Build.open(gpt2)
    row = logits_of(made, [prompt] * BATCH)[-1, 0]
    near, far = (row + difference * np.ptp(row) * np.eye(len(row))[row.argmin()] for difference in (2e-7, 1e-3))
    for stated, logits, passes in [(False, near, True), (True, near, False), (False, far, False)]:
        answered = [Answered(prompt, [int(row.argmax())], [logits.astype(np.float32)])]
        allowed = Judge(1e-10)
        _, ((found, _),), judge, _ = compared(build, made.decoding, RunOptions(), allowed, answered, tmp_path, stated=stated)
        assert (judge == allowed) == stated
        assert (found[0] <= judge.allowed) == passes, (found, judge)


def test_what_a_state_becomes_stays_though_a_collective_moves_it_too(tmp_path: Path) -> None:
    """Six heads on four members of whatever speed: keys are exchanged, in memory that later collectives use again."""
    (tmp_path / "slow.toml").write_text(
        'version = 1\n[types.t]\nkind = "cpu"\nrates = { f32 = "1 MFLOP/s" }\nmemory_bandwidth = "10 MB/s"\n'
        '[[devices]]\nname = "d{0..3}"\ntype = "t"\n[[links]]\nmesh = "d*"\nbandwidth = "100 GB/s"\nlatency = "1 ns"\n'
    )
    model, out = "zoo:gpt2,layers=1,hidden=36,heads=6,vocab=101,cache=concat", tmp_path / "b"
    asked = ["compile", model, "-t", str(tmp_path / "slow.toml"), "--context", "16", "--mesh", "4", "-o", str(out), "-q"]
    assert main(asked) == 0
    (stage,) = Build.open(out).stages
    becomes = {part.value for member in stage.members for part in member.states}
    assert becomes & {one.operand for one in stage.collectives}
    assert main(["check", str(out), "-q"]) == 0


@pytest.mark.parametrize(("batch", "groups", "count"), [(1, 1, 2), (2, 4, 8), (256, 2, 16), (8, 10, 20)])
def test_a_build_of_many_places_is_asked_few_prompts(gpt2: Path, batch: int, groups: int, count: int) -> None:
    decoding = Build.open(gpt2).decoding
    assert decoding is not None
    prompts = prompts_of(replace(decoding, batch=batch, groups=groups, serving={}), 0)
    assert len(prompts) == count
    assert {1, min(2 * decoding.chunk + 1, CONTEXT // 2)} <= {len(prompt) for prompt in prompts}


def test_a_check_names_its_model(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(gpt2), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["original"]
    assert [one["kind"] for one in told["comparisons"]] == ["logits", "tokens"] * 2
    assert all(one["chained"] <= 1e-6 and one["reference"] == "original" for one in told["comparisons"])
    assert main(["check", str(gpt2), "--tolerance", "0"]) == 5, "chunks round otherwise than steps"
    assert "E1222" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "flag"), [(CheckOptions(inputs=Path("nosuch.npz")), "--inputs"), (CheckOptions(samples=50), "--samples")]
)
def test_inputs_and_samples_of_a_build_that_answers_prompts_are_refused(options: CheckOptions, flag: str, gpt2: Path) -> None:
    with pytest.raises(UsageError, match=f"{flag}: error.*E1223"):
        check_build(gpt2, options)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bool mask", "inside, mask", "scatter"])
def test_growing_caches_and_caches_in_place_of_open_length(form: str, tmp_path: Path) -> None:
    """Of the user's own file, which is the reference until it changes."""
    onnx.save(decoder(form, causal=0), tmp_path / "m.onnx")
    plan, _ = compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=8, batch=3, groups=1, chunk=3, stages=1)
    roles = {"input_ids": "ids", "position_ids": "positions"}
    roles |= {"attention_mask": "mask"} if "mask" in form else {"written": "position", "lengths": "lengths"}
    assert plan["decoding"]["inputs"] == roles
    report = check_tokens(Build.open(tmp_path / "b"), RunOptions())
    assert report.passed
    assert report.original
    assert not report.notes
    changed = decoder(form, causal=0)
    changed.doc_string = "another file"
    onnx.save(changed, tmp_path / "m.onnx")
    report = check_tokens(Build.open(tmp_path / "b"), RunOptions())
    assert report.passed
    assert not report.original
    assert "has changed since" in report.notes[0]


@pytest.mark.slow
def test_prompts_round_rows_as_steps_do(tmp_path: Path) -> None:
    """Products by weights of 4 bits: of one row in a step, of several in a prompt."""
    spec = f"zoo:llama-7b,cache=inplace,weights=int4,{MODELS['llama-7b']}"
    compiled(spec, tmp_path / "b", context=32, batch=2, groups=1, chunk=8, stages=2)
    report = check_tokens(Build.open(tmp_path / "b"), RunOptions())
    assert report.passed
    assert all(one.allowed == pytest.approx(1 / 255) for one in report.comparisons)
    assert all(one.chained is not None and one.chained < 1e-4 for one in report.comparisons)


def test_roles_that_a_plan_states_are_known() -> None:
    told = {"states": [], "inputs": {"m": "mask"}}
    assert Decoding.from_json(told).inputs == {"m": "mask"}
    assert Decoding.from_json(Decoding.from_json(told).to_json()) == Decoding.from_json(told)
    assert Decoding.from_json({"states": []}).inputs is None, "of an older build"
    with pytest.raises(ValueError, match="an input has the role 'x'"):
        Decoding.from_json({"states": [], "inputs": {"m": "x"}})
