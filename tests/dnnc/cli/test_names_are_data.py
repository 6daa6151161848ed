"""Names of models, machines, workloads and paths are data: no command shows one as what a terminal would obey."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnc.cli import main
from dnnc.onnx import DIALECTS
from ir import load_module, print_module
from ir.core.diagnostics import Diagnostic, Span, visible, visible_json
from ir.core.names import quote_text, unquote_text

EVIL = "a\x1b]0;title\x07\x1b[31m\u202e\u2066\x9b31m\u200b\ufeff\r\x7f\nerror: forged"
QUOTED = json.dumps(EVIL)

MODEL = f"""module @m {{opset.onnx = 20}} {{
  resource @{QUOTED} : tensor<4x4xf32> = random(normal, seed = 1)
  func @main(%{QUOTED} : tensor<4x4xf32>) -> (%y : tensor<4x4xf32>) {{
    %h = onnx.MatMul(%{QUOTED}, @{QUOTED}) : tensor<4x4xf32> loc("main", {QUOTED})
    %y = onnx.Relu(%h) : tensor<4x4xf32> loc({QUOTED})
  }}
}}
"""
TOPOLOGY = f"""version = 1
[types.{QUOTED}]
kind = {QUOTED}
rates = {{ f32 = "1 TFLOP/s" }}
memory_bandwidth = "1 GB/s"
source = {QUOTED}
[[devices]]
name = "d{{0..1}}"
type = {QUOTED}
[[links]]
mesh = "d*"
bandwidth = "1 GB/s"
""".replace("\\u007f", "\\u007F")
WORKLOAD = {
    "maxFPGAs": 2,
    "maxCPUs": 0,
    "nodes": [
        {"id": EVIL, "fpgaLatency": 2.0, "name": EVIL},
        {"id": 1, "fpgaLatency": 2.0},
    ],
    "edges": [{"sourceId": EVIL, "destId": 1, "cost": 1.0}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.ir").write_text(MODEL)
    (tmp_path / "bad.ir").write_text(MODEL.replace("%h, ", "").replace("(%h)", f"(%{json.dumps(EVIL + 'x')})"))
    (tmp_path / "t.toml").write_text(TOPOLOGY)
    (tmp_path / "bad.toml").write_text(TOPOLOGY.replace('"1 GB/s"', QUOTED))
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD))
    (tmp_path / "bad.json").write_text(json.dumps({**WORKLOAD, "edges": [{"sourceId": EVIL, "destId": EVIL, "cost": EVIL}]}))
    plan = {"schema": "dnnc.plan/2", "stages": [{"index": 0, "device": EVIL, "ops": [EVIL, "y"]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "m.ir"], 0),
        (["inspect", "m.ir", "--json"], 0),
        (["inspect", "bad.ir"], 3),
        (["import", "m.ir"], 0),
        (["opt", "m.ir", "--passes", "canonicalize,cost"], 0),
        (["opt", "m.ir", "--passes", EVIL], 2),
        (["topology", "show", "t.toml"], 0),
        (["topology", "show", "t.toml", "--ir"], 0),
        (["topology", "show", "t.toml", "--toml"], 0),
        (["topology", "show", "t.toml", "--json"], 0),
        (["topology", "validate", "bad.toml"], 3),
        (["compile", "m.ir", "-t", "t.toml", "-o", "build", "--weights", "none"], 0),
        (["compile", "m.ir", "-t", "t.toml", "-o", "build", "--plan-only", "--json"], 0),
        (["compile", "m.ir", "-t", "preset:cpu-2", "-o", "build", "--mesh", "2", "--plan-only", "--explain"], 0),
        (["compile", "m.ir", "-t", "t.toml", "-o", "build", "--plan", "plan.json"], 3),
        (["compile", "m.ir", "-t", "t.toml", "-o", "build", "--pin", f"{EVIL}=d0", "--plan-only"], 0),
        (["compile", EVIL, "-t", EVIL, "-o", EVIL], 3),
        (["solve", "w.json"], 0),
        (["solve", "w.json", "--json"], 0),
        (["solve", "bad.json"], 3),
        (["run", EVIL], 3),
        (["inspect", EVIL], 3),
        ([EVIL], 2),
        ([f"--{EVIL}"], 2),
        (["compile", f"--{EVIL}"], 2),
        (["solve", "w.json", "--memory", EVIL], 2),
    ],
    ids=lambda value: " ".join(value).replace(EVIL, "EVIL") if isinstance(value, list) else "",
)
def test_what_a_terminal_would_obey_is_shown(
    folder: Path, arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(arguments) == code
    for text in capfd.readouterr():
        assert visible(text, lines=True) == text
        assert not any(line.startswith("error: forged") for line in text.splitlines())


def test_printed_ir_parses_back_equal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["import", "m.ir"]) == 0
    module = load_module(MODEL, dialects=DIALECTS)
    text = capsys.readouterr().out
    assert load_module(text, dialects=DIALECTS) == module
    assert print_module(module) == text


def test_json_says_the_names_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["solve", "w.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert EVIL in [node for device in told["devices"] for node in device["nodes"]]


@pytest.mark.parametrize("text", [EVIL, "plain", "é 漢 😀", "\x7f", "\u2028"])
def test_quoting_keeps_the_meaning(text: str) -> None:
    quoted = quote_text(text)
    assert visible(quoted) == quoted
    assert unquote_text(quoted) == text
    assert json.loads(visible_json(json.dumps([text], ensure_ascii=False))) == [text]


def test_a_name_never_begins_a_line() -> None:
    """Neither in a message, which may have lines of its own, nor in a hint."""
    found = Diagnostic("no 'a\nerror: forged'; it has:\n  b", "w\nerror: forged", hint="did you mean 'a\nerror: forged'?")
    assert str(found).splitlines() == [
        r"w\nerror: forged: error: no 'a\nerror: forged'; it has:",
        "  b",
        r"  hint: did you mean 'a\nerror: forged'?",
    ]


def test_the_caret_stands_under_what_it_means() -> None:
    line = "ab\x1bcd\u202eef = wrong"
    told = str(Diagnostic("no", "x", Span(1, line.index("wrong") + 1, 5, line))).splitlines()
    assert told[1].index("wrong") == told[2].index("^^^^^")
    told = str(Diagnostic("no", "x", Span(1, 3, 1, line))).splitlines()
    assert told[1][told[2].index("^") :][: told[2].count("^")] == "\\x1b"


def test_a_long_message_is_cut() -> None:
    assert len(str(Diagnostic("x" * 1_000_000, "y" * 1_000_000, hint="z" * 1_000_000))) < 13_000
