"""Bad input through the command: a plain, located message, the right exit code, and nothing written."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnc.cli import main

FLOAT = TensorProto.FLOAT
Maker = Callable[[Path], None]


def save(
    path: Path, nodes: list[onnx.NodeProto], *, shape: tuple[object, ...] = (4, 8), weights: tuple[onnx.TensorProto, ...] = ()
) -> None:
    """A model of ``nodes`` from input ``x`` to output ``y``."""
    inputs = [helper.make_tensor_value_info("x", FLOAT, list(shape))]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(model.SerializeToString())


def relu(source: str, target: str) -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=f"relu_{target}")


def external(location: str, length: int | None = 256) -> onnx.TensorProto:
    """A weight of 8 x 8 floats (256 bytes) that lies in another file."""
    tensor = numpy_helper.from_array(np.zeros((8, 8), np.float32), "w")
    onnx.external_data_helper.set_external_data(tensor, location, offset=0, length=length)
    tensor.ClearField("raw_data")
    return tensor


def matmul(path: Path, location: str) -> None:
    save(path, [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], weights=(external(location),))


def noise(path: Path) -> None:
    """A gigabyte; all but the first and last pieces are holes, so that making it costs nothing."""
    generator = random.Random(7)
    with path.open("wb") as file:
        file.write(generator.randbytes(1 << 20))
        file.seek((1 << 30) - (1 << 20))
        file.write(generator.randbytes(1 << 20))


def short_data(path: Path) -> None:
    matmul(path, "w.bin")
    (path.parent / "w.bin").write_bytes(b"\0" * 100)


def truncated(path: Path) -> None:
    save(path, [relu("x", "h"), relu("h", "y")])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


MODELS: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "absent": (lambda path: None, ("No such file",)),
    "empty": (lambda path: path.write_bytes(b"") and None, ("empty",)),
    "a folder": (lambda path: path.mkdir(), ("folder",)),
    "truncated": (truncated, ("ONNX",)),
    "not ONNX": (lambda path: path.write_text("hello, I am text\n" * 50) and None, ("ONNX",)),
    "a gigabyte of noise": (noise, ("ONNX",)),
    "cyclic": (
        lambda path: save(path, [helper.make_node("Add", ["x", "b"], ["a"], name="first"), relu("a", "b"), relu("b", "y")]),
        ("cycle", "first"),
    ),
    "dangling": (lambda path: save(path, [helper.make_node("Add", ["x", "nowhere"], ["y"], name="sum")]), ("nowhere", "sum")),
    "unknown op": (lambda path: save(path, [helper.make_node("Frobnicate", ["x"], ["y"], name="odd")]), ("Frobnicate", "odd")),
    "missing external data": (lambda path: matmul(path, "w.bin"), ("w.bin",)),
    "short external data": (short_data, ("w.bin", "256")),
    "external data outside the folder": (lambda path: matmul(path, "../w.bin"), ("../w.bin",)),
    "external data at an absolute path": (lambda path: matmul(path, "/etc/hostname"), ("/etc/hostname",)),
    "unbound dim": (lambda path: save(path, [relu("x", "y")], shape=("batch", 8)), ("batch", "--dim batch=")),
}


@pytest.mark.parametrize("case", MODELS)
def test_bad_models(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = MODELS[case]
    path = tmp_path / "model.onnx"
    make(path)
    code = main(["compile", str(path), "-t", "preset:cpu-2", "-o", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert code == 3, err
    assert out == ""
    assert "error[E" in err
    assert "Traceback" not in err
    assert "model.onnx" in err or case == "unbound dim", "the message names the file"
    for word in words:
        assert word.lower() in err.lower()
    assert not (tmp_path / "out").exists()


TOPOLOGY = """
version = 1
name = "two"
[types.core]
rates = { f32 = "1 GFLOP/s" }
memory_bandwidth = "1 GB/s"
memory = "1 GiB"
[[hosts]]
name = "h"
[[devices]]
name = "d{0..1}"
type = "core"
host = "h"
[[links]]
name = "bus"
ends = ["d0", "d1"]
bandwidth = "BANDWIDTH"
latency = "LATENCY"
"""


def topology(folder: Path, bandwidth: str = "1 GB/s", latency: str = "1 us", name: str = "t.toml") -> Path:
    path = folder / name
    path.write_text(TOPOLOGY.replace("BANDWIDTH", bandwidth).replace("LATENCY", latency))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.replace('"BANDWIDTH"', '"1 kg"'), ("kg", "bandwidth")),
        (lambda t: t.replace('"BANDWIDTH"', '"-1 GB/s"'), ("-1 GB/s", "bandwidth")),
        (lambda t: t.replace('"LATENCY"', '"1 GB/s"'), ("latency", "1 GB/s")),
        (lambda t: t.replace('type = "core"', 'type = "cor"'), ("cor", "core")),
        (lambda t: t.replace("[[links]]", "[[links"), ("t.toml:14:",)),
    ],
)
def test_bad_topologies(
    change: Callable[[str], str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(change(TOPOLOGY).replace("BANDWIDTH", "1 GB/s").replace("LATENCY", "1 us"))
    code = main(["compile", "zoo:mlp,hidden=8", "-t", str(path), "-o", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert code == 3, err
    assert out == ""
    assert str(path) in err
    for word in words:
        assert word in err
    assert not (tmp_path / "out").exists()


COMPILE = ["compile", "zoo:mlp,hidden=8", "-t", "preset:cpu-2"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compile", "zoo:mlq", "-t", "preset:cpu-2"], 3, ("mlq", "mlp")),
        (["compile", "zoo:mlp,hidden=big", "-t", "preset:cpu-2"], 3, ("hidden", "big")),
        (["compile", "zoo:mlp", "-t", "preset:cpux"], 3, ("cpux",)),
        (["compile", "zoo:mlp", "-t", "none.toml"], 3, ("none.toml",)),
        ([*COMPILE, "--pin", "fc1=cpu7"], 3, ("cpu7", "cpu0")),
        ([*COMPILE, "--pin", "fc9=cpu0"], 3, ("fc9",)),
        ([*COMPILE, "--cut", "nothing"], 3, ("nothing",)),
        ([*COMPILE, "--stages", "3"], 4, ("3", "2")),
        ([*COMPILE, "--dim", "rows=4"], 2, ("rows",)),
        ([*COMPILE, "--time-limit", "inf"], 2, ("--time-limit", "1000000")),
        ([*COMPILE, "--sync", "rings"], 2, ("'--sync': 'rings' is not one of 'all_reduce'",)),
        ([*COMPILE, "--profile", "none.json"], 3, ("none.json: error[E2001]: no such file; expected a profile of operators",)),
        ([*COMPILE, "--plan", "none.json"], 3, ("none.json",)),
        ([*COMPILE, "--plan", "none.json", "--stages", "2"], 2, ("--plan", "--stages")),
        ([*COMPILE, "--passes", "canonicalise"], 2, ("canonicalise", "canonicalize")),
        ([*COMPILE, "--passes", "cost{"], 2, ("--passes", "^")),
        ([*COMPILE, "--passes", "canonicalize,cost"], 2, ("plan",)),
        ([*COMPILE, "--passes", "canonicalize", "--stages", "2"], 2, ("--stages", "partition")),
    ],
)
def test_bad_options(
    arguments: list[str], code: int, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "-o", str(tmp_path / "out")]) == code
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err
    assert "fault inside" not in err
    assert list(tmp_path.iterdir()) == []


def test_memory_that_cannot_suffice_says_how_much_there_is_and_how_much_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnnc.cli.console._objects", [])
    path = tmp_path / "small.toml"
    path.write_text(TOPOLOGY.replace("1 GiB", "1 KiB").replace("BANDWIDTH", "1 GB/s").replace("LATENCY", "1 us"))
    assert main(["compile", "zoo:mlp,hidden=64", "-t", str(path), "-o", str(tmp_path / "out"), "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "infeasible"
    assert "all 2 devices have 2048" in err
    assert "bytes short" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"module @m {\n  nonsense\n}\n", ("bad.ir:2:", "^")),
        (b"", ("bad.ir",)),
        (b"\x00\xff\xfe" * 100, ("bad.ir", "IR text")),
        (b"module @m {", ("bad.ir:1:",)),
    ],
)
def test_unparsable_ir(text: bytes, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.ir"
    path.write_bytes(text)
    for command in (["opt", str(path), "--passes", "cost"], ["inspect", str(path)]):
        assert main(command) == 3
        out, err = capsys.readouterr()
        assert out == ""
        for word in words:
            assert word in err


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_inspect_prints_nothing_of_a_broken_build(
    json: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut short, not verified, without its plan or its function: found before the first line is printed."""
    for plan_only in ((), ("--plan-only",)):
        folder = tmp_path / "".join(("build", *plan_only))
        common = ("-t", "preset:cpu-2,cores=2", "--stages", "2", "-q")
        assert main(["compile", "zoo:mlp,hidden=16,inputs=8,batch=1", "-o", str(folder), *common, *plan_only]) == 0
        path = folder / "plan.ir"
        text = path.read_text()
        assert main(["inspect", str(folder), *json]) == 0
        assert capsys.readouterr().out
        whole = text[: text.index("  plan @")] + "}\n"
        for broken in (text[:300], text.replace("index = 1", "index = 7"), whole, "module @m {\n}\n"):
            path.write_text(broken)
            assert main(["inspect", str(folder), *json]) == 3
            out, err = capsys.readouterr()
            assert out == ""
            assert "plan.ir" in err


def test_several_faults_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = topology(tmp_path, bandwidth="fast", latency="soon")
    assert main(["topology", "validate", str(path), "preset:cpu-2"]) == 3
    out, err = capsys.readouterr()
    assert "fast" in err
    assert "soon" in err
    assert out.startswith("preset:cpu-2: ok, ")


def test_a_foreign_directory_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any work is done."""
    (tmp_path / "thesis.tex").write_text("mine")
    assert main(["compile", "zoo:gpt2", "-t", "preset:cpu-2", "-o", str(tmp_path)]) == 2
    assert "not written by dnnc" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("command", ["run", "check", "simulate"])
def test_no_build(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        assert main([command, str(path)]) == 3
        assert "expected a build directory" in capsys.readouterr().err


def test_a_model_that_inference_gives_up_on_leaves_nothing_in_the_working_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime's own entry point writes a temporary model where the process stands."""
    odd = helper.make_node("Odd", ["x"], ["h"], domain="my.own", name="odd")
    graph = helper.make_graph(
        [odd, relu("h", "y")],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [4])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.own", 1)]
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["import", "../m.onnx"]) == 0
    out, err = capsys.readouterr()
    assert "onnx.my.own.Odd" in out
    assert "my.own.Odd" in err
    assert list((tmp_path / "here").iterdir()) == []


def test_a_model_without_its_weights_can_be_looked_at_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matmul(tmp_path / "model.onnx", "w.bin")
    model = str(tmp_path / "model.onnx")
    plan = ["compile", model, "-t", "preset:cpu-2", "-o", str(tmp_path / "out"), "--plan-only"]
    for command in (["inspect", model], ["import", model], plan):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert out
        assert "w.bin" in err
        assert "warning" in err
    assert (tmp_path / "out" / "plan.json").is_file()
