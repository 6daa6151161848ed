"""The page as a file: one text that fetches nothing, equal for equal plans, in which names stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from dnnc.cli import main
from dnnc.report.page import frame, page, page_data
from tests.dnnc.report.page.planning import planned

HOSTILE = "</script><img src=x onerror=alert(1)>"
MODEL = f"""module @m {{opset.onnx = 20}} {{
  resource @{json.dumps(HOSTILE + "w")} : tensor<4x4xf32> = random(normal, seed = 1)
  func @main(%{json.dumps(HOSTILE)} : tensor<4x4xf32>) -> (%y : tensor<4x4xf32>) {{
    %{json.dumps(HOSTILE + "h")} = onnx.MatMul(%{json.dumps(HOSTILE)}, @{json.dumps(HOSTILE + "w")}) : tensor<4x4xf32>
      loc("main", {json.dumps(HOSTILE)})
    %y = onnx.Relu(%{json.dumps(HOSTILE + "h")}) : tensor<4x4xf32> loc({json.dumps(HOSTILE)})
  }}
}}
"""
TOPOLOGY = f"""version = 1
[types.{json.dumps(HOSTILE)}]
kind = "cpu"
rates = {{ f32 = "1 GFLOP/s" }}
memory_bandwidth = "1 GB/s"
[[devices]]
name = "d{{0..1}}"
type = {json.dumps(HOSTILE)}
[[links]]
mesh = "*"
bandwidth = "1 GB/s"
"""


def data_of(text: str) -> dict[str, Any]:
    """The document inside a page."""
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    return dict(json.loads(block[1]))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "mlp"
    options = ["--stages", "2", "--quiet"]
    assert main(["compile", "zoo:mlp,hidden=32,batch=4", "-t", "preset:cpu-2,cores=2", "-o", str(folder), *options]) == 0
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    (tmp_path / "m.ir").write_text(MODEL)
    (tmp_path / "t.toml").write_text(TOPOLOGY)
    options = ["--plan-only", "--quiet", "--mesh", "none", "--replicas", "1", "--stages", "2"]
    assert main(["compile", str(tmp_path / "m.ir"), "-t", str(tmp_path / "t.toml"), "-o", str(tmp_path / "b"), *options]) == 0
    return tmp_path / "b" / "report.html"


def test_the_page_holds_the_document_and_both_licences() -> None:
    text = page(planned("mesh"))
    assert data_of(text) == json.loads(json.dumps(page_data(planned("mesh"))))
    assert "Mike Bostock" in text
    assert "Chris Pettitt" in text


def test_only_its_own_scripts_and_style_may_run() -> None:
    text = page(planned("stages"))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = dict(part.partition(" ")[::2] for part in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'" for part in parts]
        assert allowed[source].split() == digests


def test_the_page_refers_to_nothing_outside() -> None:
    """Namespaces and comments of the libraries are no addresses that a browser asks."""
    text = page(planned("stages"))
    assert "sourceMappingURL" not in text
    rest = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=|href=[\"'](?!#)|@import|url\(|\son\w+=", rest)


def test_hostile_names_stay_text(hostile: Path) -> None:
    text = hostile.read_text(encoding="utf-8")
    assert "<img" not in text
    data = data_of(text)
    assert data["inputs"][0]["name"] == HOSTILE
    assert data["devices"][0]["type"] == HOSTILE
    assert "<img" not in frame(text).replace("&lt;img", "")


def test_compile_writes_the_page_that_report_writes(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = (build / "report.html").read_bytes()
    assert main(["report", str(build), "-o", str(tmp_path / "r.html")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'r.html'}; open it in a browser\n"
    assert (tmp_path / "r.html").read_bytes() == written
    assert str(build.parent).encode() not in written


def test_equal_plans_give_equal_pages(build: Path, tmp_path: Path) -> None:
    options = ["--stages", "2", "--quiet"]
    assert (
        main(["compile", "zoo:mlp,hidden=32,batch=4", "-t", "preset:cpu-2,cores=2", "-o", str(tmp_path / "b"), *options]) == 0
    )
    assert (tmp_path / "b" / "report.html").read_bytes() == (build / "report.html").read_bytes()


def test_a_build_without_the_page(tmp_path: Path, build: Path) -> None:
    options = ["--stages", "2", "--quiet", "--no-report"]
    assert (
        main(["compile", "zoo:mlp,hidden=32,batch=4", "-t", "preset:cpu-2,cores=2", "-o", str(tmp_path / "b"), *options]) == 0
    )
    assert not (tmp_path / "b" / "report.html").exists()
    assert (tmp_path / "b" / "manifest.json").read_bytes() == (build / "manifest.json").read_bytes()


def test_a_run_adds_what_it_measured(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(build), "-m", "3", "--trace", "--quiet"]) == 0
    assert main(["report", str(build), "--quiet"]) == 0
    measured = data_of((build / "report.html").read_text(encoding="utf-8"))["measured"]
    assert [track["devices"] for track in measured["tracks"]] == ["cpu0", "cpu1"]
    assert main(["check", str(build), "--quiet"]) == 0, "a build with another page is still whole"
    capsys.readouterr()
    assert main(["report", str(build), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "dnnc.report/1"
    assert data["measured"] == measured


@pytest.mark.parametrize(("text", "reason"), [("[]", "no list of events"), ('{"traceEvents": []}', "the predicted one alone")])
def test_what_is_no_timeline_is_refused(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (tmp_path / "t.json").write_text(text)
    assert main(["report", str(build), "--trace", str(tmp_path / "t.json"), "-o", str(tmp_path / "r.html")]) == 3
    error = capsys.readouterr().err
    assert f"{tmp_path / 't.json'}: error[E1412]" in error
    assert reason in error
    assert not (tmp_path / "r.html").exists()


def test_a_check_is_shown_and_stands_in_the_node_data(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Model Explorer finds a node by the name of a tensor that it makes."""
    assert main(["check", str(build), "--json"]) == 0
    (tmp_path / "check.json").write_text(capsys.readouterr().out)
    assert main(["report", str(build), "--check", str(tmp_path / "check.json"), "-o", str(tmp_path / "r.html")]) == 0
    rows = data_of((tmp_path / "r.html").read_text(encoding="utf-8"))["check"]
    nodes = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "r.nodes").iterdir()}
    assert sorted(nodes) == ["bytes", "device", "error", "seconds", "stage"]
    tensors = {name for node in onnx.load(str(build / "annotated.onnx")).graph.node for name in node.output}
    assert nodes["stage"]["results"].keys() == tensors
    assert {one["value"] for one in nodes["device"]["results"].values()} == {"cpu0", "cpu1"}
    assert {row[2]: {"value": row[4]} for row in rows} == nodes["error"]["results"]
    assert main(["report", str(build), "--quiet"]) == 0
    assert not (build / "report.nodes" / "error.json").exists(), "nothing was compared"


@pytest.mark.parametrize(
    "text", ["[]", '{"schema": "dnnc.check/1"}', '{"schema": "dnnc.check/1", "verdict": "", "comparisons": [{}]}']
)
def test_what_is_no_check_is_refused(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    assert main(["report", str(build), "--check", str(tmp_path / "c.json"), "-o", str(tmp_path / "r.html")]) == 3
    assert f"{tmp_path / 'c.json'}: error[E1413]" in capsys.readouterr().err
