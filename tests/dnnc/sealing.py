"""Builds that were changed on purpose and still are what their manifest says: for tests of what lies behind verification."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dnnc.build.snapshot import MANIFEST, sealed
from ir.system.digests import digest_file


def entry(path: Path) -> dict[str, Any]:
    """What a manifest says of the file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": digest_file(file)}


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """Edits the manifest."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(sealed(manifest)))
    return folder


def refresh(folder: Path, *names: str) -> Path:
    """Makes the manifest state the bytes that these files have now."""
    return change(folder, lambda manifest: manifest["files"].update({name: entry(folder / name) for name in names}))


def edit(folder: Path, *edits: tuple[str, str], name: str = "plan.ir") -> Path:
    """Replaces texts in a file of the build, each of which stands there."""
    text = (folder / name).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return refresh(folder, name)


def older(folder: Path) -> Path:
    """Makes of a build for ONNX Runtime what dnnc wrote before: a ``dnnc.build/1``, whose plan.ir has no programs."""
    text = (folder / "plan.ir").read_text()
    edit(folder, (text[text.index("  program @") : text.index("  schedule @")], ""))

    def first(manifest: dict[str, Any]) -> None:
        manifest.update(schema="dnnc.build/1", stages=[{"index": 0}])
        del manifest["engine"]

    return change(folder, first)
