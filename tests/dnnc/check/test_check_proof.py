"""What a passed check claims: only what was compared, with the model that was compiled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.check.check import CheckOptions, check_build
from dnnc.cli import main
from ir.core.diagnostics import CheckFailed
from tests.dnnc.check.test_check import CHAIN, break_stage, chain, compiled, save, weights

NOTHING = {
    "random": ("g (float[4,8] x) => (float[4,8] y) { r = RandomNormalLike(x)  y = Add(x, r) }", "depends on random"),
    "no elements": ("g (float[4,8] x) => (float[0,8] y) <int64[1] a = {0}> { y = Slice(x, a, a, a) }", "no finite element"),
    "not a number": (
        "g (float[4,8] x) => (float[4,8] y) { n = Abs(x)  m = Neg(n)  l = Log(m)  y = Tanh(l) }",
        "no finite element",
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_comparison_of_nothing_fails(tmp_path: Path, name: str) -> None:
    text, reason = NOTHING[name]
    report = check_build(compiled(save(tmp_path, text), tmp_path / "build", 1))
    assert not report.passed
    assert not report.to_json()["passed"]
    assert report.verdict == ""
    with pytest.raises(CheckFailed, match=f"nothing was compared, so nothing is proven: output 'y': .*{reason}") as caught:
        raise report.error() or AssertionError
    assert caught.value.diagnostics[0].where == str(tmp_path / "build")


def test_nothing_compared_is_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(save(tmp_path, NOTHING["random"][0]), tmp_path / "build", 1)
    assert main(["check", str(tmp_path / "build")]) == 5
    captured = capsys.readouterr()
    assert "nothing was compared" in captured.err
    assert "passed" not in captured.out


def test_the_last_line_names_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """g (float[4,8] x) => (float[4,8] y, float[4,8] z) {
        a = Tanh(x)  r = RandomNormalLike(a)  b = Add(a, r)  y = Relu(b)  c = Neg(a)  z = Abs(c) }"""
    compiled(save(tmp_path, text), tmp_path / "build", 1)
    assert main(["check", str(tmp_path / "build")]) == 0
    left_out, verdict = capsys.readouterr().out.splitlines()[-2:]
    assert left_out == "not compared: output 'y': it depends on random numbers"
    assert verdict.startswith("passed: ")
    assert "(1 of 2 tensors on 1 x random inputs)" in verdict


def test_cuts_alone_are_no_outputs(tmp_path: Path) -> None:
    text = """g (float[4,8] x) => (float[4,8] y) { a = Tanh(x)  b = Sin(a)  r = RandomNormalLike(b)  y = Add(b, r) }"""
    report = check_build(compiled(save(tmp_path, text), tmp_path / "build", 2))
    assert report.passed
    assert "no output of the model is among them" in report.verdict


@pytest.mark.parametrize("fate", ["gone", "changed", "broken"])
def test_the_build_is_held_against_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str], fate: str) -> None:
    """Which says less than a comparison with the original: the word is not the same."""
    build = chain(tmp_path)
    model = tmp_path / "model.onnx"
    if fate == "gone":
        model.unlink()
    elif fate == "changed":
        onnx.save(
            onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y) {y=Abs(x)}'), model
        )
    else:
        model.write_bytes(b"\x08")
    assert main(["check", str(build.folder)]) == 0
    captured = capsys.readouterr()
    last = captured.out.splitlines()[-1]
    assert "passed" not in captured.out
    assert "the stages agree with the build's own copy of the model, not with the original" in last
    assert "the reference was made from the build's own weights" in captured.err
    assert ("is gone" if fate == "gone" else "has changed since") in captured.err
    assert main(["check", str(build.folder), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert not fields["original"]
    assert fields["verdict"] == last
    assert {c["reference"] for c in fields["comparisons"]} == {"build"}


@pytest.mark.parametrize("fate", ["there", "changed", "gone"])
def test_weights_beside_the_original_belong_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], fate: str) -> None:
    """Other weights beside the same model file are another model, and no fault of the build."""
    model = save(tmp_path, CHAIN.replace(" <float[8,8] w1, float[8,8] w2, float[8,8] w3>", ""), **weights("w1", "w2", "w3"))
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="model.data", size_threshold=0)
    build = compiled(model, tmp_path / "build", 2)
    assert list(build.source.data) == ["model.data"]
    data = tmp_path / "model.data"
    if fate == "changed":
        data.write_bytes(bytes(data.stat().st_size))
    elif fate == "gone":
        data.unlink()
    assert main(["check", str(build.folder)]) == 0
    captured = capsys.readouterr()
    if fate == "there":
        assert captured.out.splitlines()[-1].startswith("passed: ")
        return
    reason = "have changed since" if fate == "changed" else "are gone: no such file"
    assert f"the weights of the original in {data} {reason}" in captured.err
    assert "passed" not in captured.out


def test_ir_text_is_an_original_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain(tmp_path)
    capsys.readouterr()
    assert main(["import", str(tmp_path / "model.onnx")]) == 0
    (tmp_path / "model.ir").write_text(capsys.readouterr().out)
    build = compiled(tmp_path / "model.ir", tmp_path / "of_ir", 2)
    report = check_build(build)
    assert report.passed
    assert report.original
    build = break_stage(build, 1)
    assert not check_build(build).passed


def test_the_hint_is_one_that_helps(tmp_path: Path) -> None:
    """Another compile gives the same build."""
    build = chain(tmp_path)
    build = break_stage(build, 1)
    error = check_build(build).error()
    assert error is not None
    assert "compile" not in error.diagnostics[0].hint
    assert "--tolerance" in error.diagnostics[0].hint


def test_tolerance_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = chain(tmp_path)
    build = break_stage(build, 2)
    wrong = max(c.alone or 0.0 for c in check_build(build).comparisons)
    assert wrong > 0.1
    assert main(["check", str(build.folder), "--tolerance", str(wrong * 1.01), "-q"]) == 0
    assert main(["check", str(build.folder), "--tolerance", str(wrong * 0.99), "-q"]) == 5
    capsys.readouterr()
    report = check_build(build, CheckOptions(tolerance=0.0))
    assert not report.passed
    assert {c.allowed for c in report.comparisons} == {0.0}
    assert {c.verdict for c in report.comparisons if c.stage < 2} == {"ok"}
    assert np.isfinite([c.alone or 0.0 for c in report.comparisons]).all()
