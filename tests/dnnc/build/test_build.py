"""Reading a build: typed channels, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.build import Build, Channel, ValueInfo
from dnnc.engines.onnxruntime.write import write_build
from ir.core.diagnostics import InvalidInput
from ir.core.types import DType, SeqType, TensorType
from tests.dnnc import sealing as seal
from tests.dnnc.engines.onnxruntime.building import lowered, model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out")
    return tmp_path / "out"


def test_stages_channels_and_ports(folder: Path) -> None:
    build = Build.open(folder)
    assert [(c.id, c.tensor, c.source, c.target) for c in build.channels] == [(0, "b", 0, 1), (1, "b", 0, 2), (2, "d", 1, 2)]
    assert build.channels[0] == Channel(0, "b", "float32", (4, 32), 0, 1, 512, "tensor<4x32xf32>")
    assert [port.name for port in build.inputs] == ["x", "unused"]
    assert [port.name for port in build.outputs] == ["y", "b", "x"]
    assert [[p.name for p in stage.inputs] for stage in build.stages] == [["x"], [], []]
    assert [stage.device for stage in build.stages] == ["d0", "d1", "d2"]
    assert [stage.model for stage in build.stages] == ["stages/stage0.onnx", "stages/stage1.onnx", "stages/stage2.onnx"]
    assert [stage.devices for stage in build.plan.stages] == [("d0",), ("d1",), ("d2",)]


def test_ports_of_other_types() -> None:
    assert ValueInfo.of("n", TensorType(DType.BF16, ("batch", 3, None))) == ValueInfo(
        "n", "bfloat16", ("batch", 3, None), "tensor<batch x 3 x ? x bf16>"
    )
    assert ValueInfo.of("n", SeqType(TensorType(DType.F32, (1,)))).dtype == ""
    assert Channel.of(0, "s", TensorType(DType.STRING, (3,)), 0, 1).nbytes is None
    assert Channel.of(0, "i", TensorType(DType.I4, (3,)), 0, 1).nbytes == 2
    assert Channel.of(0, "d", TensorType(DType.F32, ("n",)), 0, 1).nbytes is None


def test_every_element_type_has_a_numpy_name() -> None:
    from dnnc.onnx.arrays import numpy_dtype

    assert all(numpy_dtype(dtype).name == dtype.numpy_name for dtype in DType if dtype is not DType.STRING)


def test_changed_bytes_are_found(folder: Path) -> None:
    data = bytearray((folder / "stages/weights.data").read_bytes())
    data[100] ^= 1
    (folder / "stages/weights.data").write_bytes(data)
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    (fault,) = raised.value.diagnostics
    assert fault.where == str(folder / "stages/weights.data")
    assert (fault.code, fault.message) == ("E0307", "its bytes are not those that were written")
    assert "make it again" in fault.hint


def swap_channel(data: dict[str, Any]) -> None:
    data["stages"][1]["receives"][0]["id"] = 9


def reverse_channel(data: dict[str, Any]) -> None:
    for side in (data["stages"][0]["sends"][0], data["stages"][1]["receives"][0]):
        side["source"], side["target"] = side["target"], side["source"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="dnnc.build/9"), "schema 'dnnc.build/9' found, 'dnnc.build/1' expected"),
        (lambda d: d.pop("inputs"), "'inputs' is missing"),
        (lambda d: d["stages"][0].update(index=4), "stages are numbered [4, 1, 2]"),
        (lambda d: d["stages"][0].update(devices=[]), "a stage has no device"),
        (lambda d: d["stages"][0].update(model="../../etc/passwd"), "lists no file '../../etc/passwd'"),
        (lambda d: d.update(stages=3), "does not describe a build"),
        (lambda d: d.update(files=[]), "does not describe a build"),
        (lambda d: d["files"].update({"../x": {"bytes": 1}}), "lies outside the build directory"),
        (lambda d: d["stages"][0].update(index=float("inf")), "Infinity is no number"),
        (lambda d: d["inputs"][0].update(dtype="nope"), "there is no element type 'nope'"),
        (lambda d: d["inputs"][0].update(shape=["a"]), "stage 0 states 'x' otherwise than the model"),
        (lambda d: d["outputs"].pop(0), "stage 2 states 'y' otherwise than the model"),
        (swap_channel, "channel 9 does not pair up"),
        (reverse_channel, "channel 0 does not pair up"),
    ],
)
def test_a_manifest_that_lies_is_refused(folder: Path, change: Any, message: str) -> None:
    seal.change(folder, change)
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    assert message in str(raised.value)
    assert all("manifest.json" in d.where for d in raised.value.diagnostics)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["stages"].pop(), "plan.json has 2 stages, the manifest 3"),
        (lambda d: d.update(value=10**400), "expected 'value' in seconds, found 1000"),
        (lambda d: d.update(bound=float("nan")), "NaN is no number"),
        (lambda d: d["stages"][0]["seconds"].update(compute=-1.0), "expected 'compute' in seconds, found -1.0"),
    ],
)
def test_a_plan_that_lies_is_refused(folder: Path, change: Any, message: str) -> None:
    path = folder / "plan.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    seal.refresh(folder, "plan.json")
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    assert message in str(raised.value)


def test_missing_and_cut_files_are_all_named(folder: Path) -> None:
    (folder / "stages/stage1.onnx").unlink()
    (folder / "stages/weights.data").write_bytes(b"")
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    assert [(Path(d.where).name, d.message) for d in raised.value.diagnostics] == [
        ("stage1.onnx", "no such file; expected a file of the build"),
        ("weights.data", "0 bytes found, the manifest states 8192"),
    ]


def test_what_is_no_build(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such directory"):
        Build.open(tmp_path / "absent")
    with pytest.raises(InvalidInput, match=r"no manifest\.json"):
        Build.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InvalidInput, match="not valid JSON"):
        Build.open(tmp_path)
    (tmp_path / "manifest.json").write_text("9" * 5000)
    with pytest.raises(InvalidInput, match="not valid JSON"):
        Build.open(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(InvalidInput, match="schema None found"):
        Build.open(tmp_path)
