"""The files of a build, opened once and held against its manifest."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.build import Build
from dnnc.build.snapshot import MANIFEST, Snapshot
from dnnc.build.transaction import whole_directory
from dnnc.engines.onnxruntime.write import write_build
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.onnxruntime.building import lowered, model
from tests.dnnc.sealing import change


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out")
    return tmp_path / "out"


def refused(folder: Path, name: str, words: str) -> str:
    """The build is refused for this file; what the message says to do."""
    with pytest.raises(InvalidInput) as raised:
        Build.open(folder)
    assert [d.where for d in raised.value.diagnostics] == [str(folder / name)]
    assert words in raised.value.diagnostics[0].message
    assert raised.value.diagnostics[0].hint
    return raised.value.diagnostics[0].hint


@pytest.mark.parametrize("name", ["plan.json", "plan.ir", "annotated.onnx", "stages/stage1.onnx", "stages/weights.data"])
def test_one_changed_bit_is_found_in_every_file(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    hint = refused(folder, name, "not those that were written")
    assert ("--plan" in hint) == name.startswith("plan.")  # only a plan is edited; all else is made again


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "put", "words"),
    [
        ("plan.json", link, "a symbolic link"),
        ("stages/stage1.onnx", fifo, "a FIFO"),
        ("stages/weights.data", directory, "a folder"),
        ("stages/weights.data", link, "a symbolic link"),
        (MANIFEST, fifo, "a FIFO"),
        (MANIFEST, link, "a symbolic link"),
    ],
)
def test_only_regular_files(folder: Path, name: str, put: Callable[[Path], None], words: str) -> None:
    put(folder / name)
    refused(folder, name, words)


def test_a_linked_folder_inside_is_refused_and_a_linked_build_is_not(folder: Path) -> None:
    (folder.parent / "latest").symlink_to("out")
    assert Build.open(folder.parent / "latest").stages
    (folder / "stages").rename(folder / "real")
    (folder / "stages").symlink_to("real")
    with pytest.raises(InvalidInput, match="found no directory 'stages'") as raised:
        Build.open(folder)
    assert {Path(d.where).parent for d in raised.value.diagnostics} == {folder / "stages"}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m["files"]["plan.ir"].pop("sha256"), "expected the SHA-256 digest of file 'plan.ir', found None"),
        (lambda m: m["files"]["plan.ir"].update(sha256=7), "expected the SHA-256 digest of file 'plan.ir', found 7"),
        (lambda m: m["files"]["plan.ir"].update(sha256="md5:00"), "expected the SHA-256 digest"),
        (lambda m: m["files"]["plan.ir"].update(bytes=True), "expected the bytes of file 'plan.ir', found True"),
        (lambda m: m["files"].update({"plan.ir": []}), "expected the bytes of file 'plan.ir', found None"),
        (lambda m: m["files"].update({"/etc/passwd": m["files"]["plan.ir"]}), "'/etc/passwd' lies outside"),
        (lambda m: m["files"].update({"stages/../plan.ir": m["files"]["plan.ir"]}), "lies outside"),
        (lambda m: m["files"].update({"./plan.ir": m["files"]["plan.ir"]}), "cannot be the name of a file of a build"),
        (lambda m: m["files"].update({"a\0b": m["files"]["plan.ir"]}), "cannot be the name of a file of a build"),
        (lambda m: m["files"].update({MANIFEST: m["files"]["plan.ir"]}), "cannot be the name of a file of a build"),
        (lambda m: m["files"].pop("stages/stage1.onnx"), "lists no file 'stages/stage1.onnx'"),
        (lambda m: m["files"].pop("plan.ir"), "lists no file 'plan.ir'"),
    ],
)
def test_what_a_manifest_says_of_its_files(folder: Path, edit: Callable[[dict[str, Any]], Any], words: str) -> None:
    refused(change(folder, edit), MANIFEST, words)


def test_weights_that_the_manifest_does_not_list(folder: Path) -> None:
    """Each stage model that refers to them is named."""
    change(folder, lambda manifest: manifest["files"].pop("stages/weights.data"))
    with pytest.raises(InvalidInput, match=r"it refers to 'weights\.data', which is no weights file of the build") as raised:
        Build.open(folder)
    assert {Path(d.where).suffix for d in raised.value.diagnostics} == {".onnx"}


def test_any_entry_of_the_manifest_has_its_digest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    for key in manifest.keys() - {"schema", "files", "sha256"}:
        (folder / MANIFEST).write_text(json.dumps({**manifest, key: ["other"]}))
        refused(folder, MANIFEST, "the manifest is not what was written")
    del manifest["sha256"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    refused(folder, MANIFEST, "the manifest states no digest of itself: an older dnnc wrote it, or it was edited")


@pytest.mark.parametrize("left", range(5))
def test_a_process_without_descriptors_is_no_fault_of_the_build(folder: Path, left: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(folder, os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + left, hard))
        with pytest.raises(OSError, match="Too many open files") as raised:
            Snapshot.open(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert str(raised.value.filename).startswith(str(folder))


def test_files_that_nobody_lists_are_not_read(folder: Path) -> None:
    """Notes beside a build, the trace that a run adds to."""
    os.mkfifo(folder / "notes")
    (folder / "stages/stage9.onnx").symlink_to("/dev/zero")
    (folder / "trace.json").write_text("other")
    assert "notes" not in Build.open(folder).files.contents


def test_a_build_that_was_deleted_is_still_whole(folder: Path) -> None:
    files = Snapshot.open(folder)
    stage = (folder / "stages/stage0.onnx").read_bytes()
    weights = (folder / "stages/weights.data").read_bytes()
    shutil.rmtree(folder)
    assert files.read("stages/stage0.onnx") == stage
    assert os.pread(files.weights["stages/weights.data"].descriptor, len(weights) + 1, 0) == weights
    files.confirm()


def test_weights_that_change_while_they_are_used(folder: Path) -> None:
    """In place, and so that size and time of modification stay."""
    files = Snapshot.open(folder)
    path = folder / "stages/weights.data"
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InvalidInput, match=r"weights\.data: error\[E0302\]: the file was changed while it was used"):
        files.confirm()


def test_weights_that_were_others_for_a_while(folder: Path) -> None:
    """What was read in between is not known."""
    files = Snapshot.open(folder)
    path = folder / "stages/weights.data"
    data = path.read_bytes()
    time.sleep(0.02)
    path.write_bytes(bytes(len(data)))
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"weights\.data: error\[E0302\]: the file was changed while it was used"):
        files.confirm()


@pytest.mark.parametrize("moment", [0, 2, 4, 6])
@pytest.mark.parametrize("filled", [False, True])
def test_a_build_replaced_while_it_is_opened(folder: Path, moment: int, filled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file is opened last before another build takes the place: all files are of one build. ``filled``: a directory
    that must stay itself, so that files move into it one by one."""
    if filled:
        monkeypatch.chdir(folder)
    other = folder.parent / "other"
    write_build(lowered(model(), (0, 1, 1, 1, 1, 1)), folder.parent, "zoo:small", other)
    contents = [Snapshot.open(path).contents for path in (folder, other)]
    left = [moment]
    real = os.open

    def opening(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if not flags & os.O_DIRECTORY and options.get("dir_fd") is not None:
            left[0] -= 1
            if left[0] == -1:
                with monkeypatch.context() as undone:
                    undone.setattr(os, "open", real)
                    with whole_directory(folder, lambda path: True, MANIFEST) as fresh:
                        shutil.copytree(other, fresh, dirs_exist_ok=True)
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", opening)
    found = Snapshot.open(folder)
    assert left[0] < 0, "the build was replaced"
    assert found.contents in contents
