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


__all__ = ["change", "entry", "refresh"]
