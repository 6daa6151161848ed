"""Builds that somebody changed after they were written: refused with exit 3, or what they compute is what they computed.

The manifest's digests are not signed: no case changes a file together with its digest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from tests.fuzz.harness import Surface
from tests.fuzz.mutate import mutate_bytes, mutate_text, mutate_tree
from tests.fuzz.onnx_mutate import mutate_message
from tests.fuzz.verdict import Result

BUILDS: tuple[tuple[str, ...], ...] = (
    ("zoo:mlp,layers=3,hidden=8,inputs=8,batch=2", "--stages", "2"),
    ("zoo:mlp,layers=3,hidden=8,inputs=8,batch=2,seed=1", "--stages", "2"),
    ("zoo:mlp,layers=3,hidden=8,inputs=8,batch=2", "--stages", "2", "--weights", "per-stage"),
    ("zoo:mlp,layers=3,hidden=8,inputs=8,batch=2", "--mesh", "2"),
    ("zoo:mlp,layers=3,hidden=8,inputs=8,batch=2", "--stages", "2", "--plan-only"),
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", "b", "--inputs", "x.npz", "--outputs", "y.npz", "-q"),
    ("check", "b", "--inputs", "x.npz"),
    ("simulate", "b", "--json"),
    ("inspect", "b"),
    ("inspect", "b", "--json"),
    ("report", "b", "--json"),
)


def prepare(base: Path) -> None:
    """The builds, an input, and what the untouched builds answer."""
    from dnnc.cli import main

    os.chdir(base)
    np.savez(base / "x.npz", x=np.linspace(-1, 1, 3 * 2 * 8, dtype=np.float32).reshape(3, 2, 8))
    for number, (model, *options) in enumerate(BUILDS):
        folder = base / str(number)
        if main(["compile", model, "-t", "preset:cpu-2", *options, "-q", "-o", str(folder)]):
            raise SystemExit(f"build {number} cannot be made")
        if "--plan-only" not in options and main(
            ["run", str(folder), "--inputs", "x.npz", "--outputs", f"y{number}.npz", "--trace", "-q"]
        ):
            raise SystemExit(f"build {number} does not run")


# --- what may be done to a build -----------------------------------------------------------------------------------------

Tamper = Callable[[Random, Path, Path], None]


def _files(build: Path) -> list[Path]:
    return sorted(path for path in build.rglob("*") if path.is_file() and not path.is_symlink()) or [build / "plan.json"]


def bytes_(rng: Random, build: Path, other: Path) -> None:
    path = rng.choice(_files(build))
    path.write_bytes(mutate_bytes(rng, path.read_bytes()))


def flipped_bit(rng: Random, build: Path, other: Path) -> None:
    path = rng.choice(_files(build))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def swapped(rng: Random, build: Path, other: Path) -> None:
    """Two files of the build change places."""
    first, second = rng.choice(_files(build)), rng.choice(_files(build))
    held, moved = first.read_bytes(), second.read_bytes()
    first.write_bytes(moved)
    second.write_bytes(held)


def of_another(rng: Random, build: Path, other: Path) -> None:
    """A file of another build of the same shape, its manifest too at times."""
    path = rng.choice(_files(other))
    target = build / path.relative_to(other)
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(path, target)


def deleted(rng: Random, build: Path, other: Path) -> None:
    rng.choice(_files(build)).unlink(missing_ok=True)


def added(rng: Random, build: Path, other: Path) -> None:
    (build / rng.choice(("extra", "stages.bak", "trace.json", "\x1b[31m", ".hidden"))).write_bytes(b"x")


def linked(rng: Random, build: Path, other: Path) -> None:
    """A file becomes a link: to its own content elsewhere, another's, an endless device, itself, nothing."""
    path = rng.choice(_files(build))
    copy = build.parent / "copy"
    shutil.copyfile(path, copy)
    target = rng.choice(
        (copy, other / path.relative_to(build), Path("/dev/zero"), Path("/dev/stdin"), path, Path("nowhere"), build)
    )
    path.unlink()
    path.symlink_to(target)


def special(rng: Random, build: Path, other: Path) -> None:
    """A file becomes a FIFO, a folder, or empty."""
    path = rng.choice(_files(build))
    path.unlink()
    match rng.randrange(3):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.touch()


def graph(rng: Random, build: Path, other: Path) -> None:
    """A stage's model with changed nodes, names or weights."""
    path = rng.choice([path for path in _files(build) if path.suffix == ".onnx"] or _files(build))
    model = onnx.load(str(path), load_external_data=False) if path.suffix == ".onnx" else onnx.ModelProto()
    mutate_message(rng, model)
    path.write_bytes(model.SerializeToString())


def documents(rng: Random, build: Path, other: Path) -> None:
    """The manifest or the plan with changed values."""
    path = build / rng.choice(("manifest.json", "manifest.json", "plan.json", "trace.json"))
    if not path.is_file():
        return
    tree = json.loads(path.read_text(encoding="utf-8"))
    before = tree.get("files") if isinstance(tree, dict) else None
    tree = mutate_tree(rng, tree)
    if path.name == "manifest.json" and rng.random() < 0.5 and isinstance(tree, dict):
        tree["files"] = before
    path.write_text(json.dumps(tree), encoding="utf-8")


def texts(rng: Random, build: Path, other: Path) -> None:
    path = build / rng.choice(("manifest.json", "plan.json", "plan.ir"))
    if path.is_file():
        path.write_bytes(mutate_text(rng, path.read_text(encoding="utf-8")).encode("utf-8", "surrogatepass"))


TAMPERS: tuple[Tamper, ...] = (
    bytes_,
    flipped_bit,
    swapped,
    of_another,
    deleted,
    added,
    linked,
    special,
    graph,
    documents,
    documents,
    texts,
)


def _case(tamper: Tamper | None) -> Callable[[Random, Path, Path], list[str]]:
    """A case of one way to tamper, or of a few."""

    def make(rng: Random, folder: Path, base: Path) -> list[str]:
        number = rng.randrange(len(BUILDS))
        build = folder / "b"
        shutil.copytree(base / str(number), build)
        shutil.copyfile(base / "x.npz", folder / "x.npz")
        (folder / "number").write_text(str(number))
        for change in [tamper] if tamper else rng.choices(TAMPERS, k=rng.choice((1, 1, 1, 2))):
            if build.is_dir() and all(
                not path.is_symlink() and path.is_file() for path in build.rglob("*") if not path.is_dir()
            ):
                try:
                    change(rng, build, base / str(rng.choice([n for n in range(4) if n != number])))
                except (ValueError, DecodeError):  # a change before this one made the file unreadable
                    continue
        command = list(rng.choice(COMMANDS))
        if command[0] not in ("inspect", "report") and "--plan-only" in BUILDS[number] and rng.random() < 0.8:
            command = ["inspect", "b"]
        return command

    return make


def judge(folder: Path, base: Path, result: Result) -> str:
    """A run that was not refused must give what the untouched build gives."""
    if result.arguments[0] != "run":
        return ""
    expected = np.load(base / f"y{(folder / 'number').read_text()}.npz")
    found = np.load(folder / "y.npz")
    same = expected.files == found.files and all(np.array_equal(expected[n], found[n]) for n in expected.files)
    return "" if same else "ran, with other numbers"


SURFACE = Surface("build", _case(None), tuple(map(_case, TAMPERS)), prepare, judge, quick=2)
