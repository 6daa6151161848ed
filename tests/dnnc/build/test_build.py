"""Reading a build: typed channels, and what a damaged one says."""

from __future__ import annotations

from dataclasses import replace
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="dnnc.build/9"), "schema 'dnnc.build/9' found, 'dnnc.build/2' expected"),
        (lambda d: d.pop("source"), "'source' is missing or of a wrong kind"),
        (lambda d: d.update(weights=3), "'weights' is missing or of a wrong kind"),
        (lambda d: d.update(files=[]), "does not describe a build"),
        (lambda d: d["files"].update({"../x": {"bytes": 1}}), "lies outside the build directory"),
        (lambda d: d["files"].pop("stages/stage1.onnx"), "lists no file 'stages/stage1.onnx'"),
        (lambda d: d.update(given=float("inf")), "Infinity is no number"),
    ],
)
def test_a_manifest_that_lies_is_refused(folder: Path, change: Any, message: str) -> None:
    seal.change(folder, change)
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    assert message in str(raised.value)
    assert all("manifest.json" in d.where for d in raised.value.diagnostics)


STAGE = "stage @stage0 index 0 on [d0] (%x : tensor<"
SENDS, RECEIVES = "    comm.send(%d) {channel = 2, peer = 2}", "    %d = comm.recv() {channel = 2, peer = 1}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("program @program0 of @stage0 on [d0]", "program @program0 of @stage0 on []", "it is for no device"),
        ("program @program0 of @stage0 on [d0]", "program @program0 of @stage0 on [d1]", "'d1' is not a device of @stage0"),
        ("stage @stage0 index 0", "stage @stage0 index 4", "it has number 4 where 0 is next"),
        (RECEIVES, RECEIVES.replace("2, peer", "9, peer"), "channel 9 has a recv here and no send in @stage1"),
        (RECEIVES, RECEIVES.replace("peer = 1", "peer = 0"), "channel 2 names stage 0 as its peer, but its send is in @stage1"),
        (SENDS, SENDS.replace("%d", "%q"), "operand %q is used but never assigned"),
        ("{level = 0}", "{level = -1}", "attribute 'level' is at least 0"),
        ("{level = 0}", "{level = 2}", "stage 0 is on no mesh and has 1 segments, one of level 0 expected"),
        ("{level = 0}", '{file = "../../etc/passwd"}', "dnnc.segment has no attribute 'file'"),
        (STAGE + "4x32x", STAGE + "4x31x", "stage 0: it states 'x' otherwise than the model"),
        ("func @main(", "func @other() -> () {\n  }\n  func @main(", "stage 0: it states 'x' otherwise than the model"),
        ("    status = ", "    status = no_", "INV19"),
        ("    value = ", "    value = -", "INV19"),
        ("  schedule @schedule {", "  schedule @other {\n    kind = stream\n  }\n  schedule @schedule {", "INV02"),
        ("device d0 {type = ", "device d0 {type = no", "INV14"),
        ("module @", "modul @", "expected 'module @name {'"),
    ],
)
def test_a_program_that_lies_is_refused(folder: Path, old: str, new: str, message: str) -> None:
    seal.edit(folder, (old, new))
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    assert message in str(raised.value)
    assert all("plan.ir" in d.where for d in raised.value.diagnostics)


def test_plan_json_is_only_to_be_edited(folder: Path) -> None:
    """Whatever it says, as long as it is what the manifest lists: the programs of plan.ir are what runs."""
    before = Build.open(folder)
    (folder / "plan.json").write_text("{}")
    after = Build.open(seal.refresh(folder, "plan.json"))
    assert (after.plan, after.stages, after.schedule) == (before.plan, before.stages, before.schedule)


def test_a_build_of_an_older_version_has_its_programs_made_again(folder: Path) -> None:
    """``dnnc.build/1``: no programs in plan.ir, and no engine but that of training in the manifest."""
    before = Build.open(folder)
    after = Build.open(seal.older(folder))
    assert replace(after, files=before.files) == before


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
