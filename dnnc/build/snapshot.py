"""Opens the files of a build directory once and verifies them against the manifest: what was verified is what is used.

Invariants of a ``Snapshot``:
1. every file that the manifest lists, or that was asked for alone, was opened once, below the directory that was opened once;
   no symbolic link was followed inside it;
2. the bytes of each have the size and the SHA-256 digest that the manifest states, and the manifest's other entries have the
   digest that it states of itself;
3. programs and plans are the bytes that were hashed; weights stay open and are read through these descriptors, so that a build
   that is replaced meanwhile changes nothing;
4. all is of one build: where a compile replaced it while the files were opened, they are opened again.

Files that the manifest does not list are never read. Digests are not signed: whoever changes a file and its digest makes
another build. ``confirm`` finds weights that were written to in place since they were hashed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias

from dnnc.build.faults import (
    EDITED,
    EDITED_PLAN,
    REBUILD,
    BuildNotOpened,
    BytesDiffer,
    FileChanged,
    FileOutsideBuild,
    InvalidFileEntry,
    InvalidFileName,
    InvalidManifest,
    ManifestChanged,
    ManifestTooLarge,
    ManifestWithoutDigest,
    MoreFilesDiffer,
    NoBuildDirectory,
    NoManifest,
    NotAFolderOfBuild,
    NotInManifest,
    SizeDiffers,
    WrongSchema,
)
from dnnc.build.transaction import being_written
from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.faults import NoSuchFile, NotUtf8
from ir.core.limits import LIMITS
from ir.system.digests import OpenFile, has_digest
from ir.system.files import open_input, raise_exhausted
from ir.text.json_text import parse_json

MANIFEST = "manifest.json"
SCHEMA = "dnnc.build/2"
READ = (SCHEMA, "dnnc.build/1")
"""Schemas that can be read."""
ONNXRUNTIME, TORCH = "onnxruntime", "torch"
"""Engines: what runs the programs of a build."""
_EXPECTED = "a file of the build"
_READ_WHOLE = (".onnx", ".json", ".ir", ".py", ".npz")
"""Programs, plans and arrays of inputs; every other file is held open."""
_SHOWN = 8
_TRIES, _PAUSE = 50, 0.02
"""How often a build that is being replaced is opened again, and seconds between."""

Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one build by their names in the manifest: bytes of programs and plans, and weights held open."""

    folder: Path
    manifest: Mapping[str, Any]
    contents: Mapping[str, bytes]
    weights: Mapping[str, OpenFile]

    @classmethod
    def open(
        cls,
        folder: str | Path,
        progress: Progress = lambda label, fraction: None,
        *,
        only: Collection[str] | None = None,
    ) -> Snapshot:
        """The files of the build at ``folder``, or ``only`` those of these names. Raises InvalidInput for what is no build, and
        naming each file that is not what was written."""
        folder = Path(folder)
        for attempt in range(_TRIES):
            with _Directory.at(folder) as directory:
                try:
                    return _read(directory, progress, only)
                except InvalidInput:
                    if attempt == _TRIES - 1 or not directory.is_changing():
                        raise
            time.sleep(_PAUSE)
        raise AssertionError("unreachable")

    @property
    def engine(self) -> str:
        """What runs the programs; empty for a plan alone. ONNX Runtime runs the stages, if there are any, of a ``dnnc.build/1``
        that names no engine."""
        return _engine(self.manifest)

    def read(self, name: str) -> bytes:
        """The bytes of a program or plan. Raises InvalidInput for one that the manifest does not list."""
        if name not in self.contents:
            raise InvalidInput(NotInManifest(name), where=self.where(MANIFEST))
        return self.contents[name]

    def text(self, name: str) -> str:
        """The text of a plan. Raises InvalidInput."""
        return _text(self.read(name), self.where(name))

    def json(self, name: str) -> Any:
        """A document. Raises InvalidInput."""
        return parse_json(self.text(name), self.where(name), hint=REBUILD)

    def where(self, name: str) -> str:
        return str(self.folder / name)

    def files_for(self, model: str) -> dict[str, OpenFile]:
        """The weights that the model called so may refer to, by the location that it would give."""
        beside = PurePosixPath(model).parent
        names = ((PurePosixPath(name), file) for name, file in self.weights.items())
        return {path.relative_to(beside).as_posix(): file for path, file in names if path.is_relative_to(beside)}

    def weights_for(self, model: str) -> dict[str, int]:
        """Descriptors of the weights that ``files_for`` gives."""
        return {location: file.descriptor for location, file in self.files_for(model).items()}

    def confirm(self) -> None:
        """Raises InvalidInput where weights were written to since they were hashed. Called after they were used."""
        changed = [FileChanged().at(self.where(name)) for name, file in self.weights.items() if file.was_written()]
        if changed:
            raise InvalidInput(changed)


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a digest of its entries. ``files`` is left out: each file has a digest of its own."""
    rest = {key: value for key, value in manifest.items() if key not in ("files", "sha256")}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**manifest, "sha256": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """``manifest.json`` of a build directory, without reading the files. Raises InvalidInput for another schema."""
    with _Directory.at(Path(folder)) as directory:
        return _read_manifest(directory)


class _Directory:
    """An open build directory, its open folders, and the state of its manifest."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self.descriptor = descriptor
        self.manifest: os.stat_result | None = None
        self._inner: dict[str, int] = {"": descriptor}

    @classmethod
    @contextmanager
    def at(cls, folder: Path) -> Iterator[_Directory]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            for attempt in range(_TRIES):
                try:
                    descriptor = os.open(folder, flags)
                    break
                except FileNotFoundError:
                    if attempt == _TRIES - 1 or not being_written(folder):
                        raise
                    time.sleep(_PAUSE)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise InvalidInput(NoBuildDirectory(), where=str(folder)) from None
        except OSError as error:
            raise_exhausted(error, str(folder))
            raise InvalidInput(BuildNotOpened(error.strerror or str(error)), where=str(folder)) from None
        directory = cls(folder, descriptor)
        try:
            yield directory
        finally:
            for inner in directory._inner.values():
                os.close(inner)

    def open(self, name: str) -> BinaryIO:
        """The file called ``name`` in the manifest. Raises InvalidInput."""
        path = PurePosixPath(name)
        parent = "" if len(path.parts) == 1 else path.parent.as_posix()
        where = str(self.folder / name)
        return open_input(path.name, _EXPECTED, directory=self._folder(parent, name), follow=False, where=where)

    def _folder(self, name: str, of_file: str) -> int:
        if name not in self._inner:
            parent, _, last = name.rpartition("/")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._inner[name] = os.open(last, flags, dir_fd=self._folder(parent, of_file))
            except FileNotFoundError:
                raise InvalidInput(NoSuchFile(_EXPECTED), where=str(self.folder / of_file)) from None
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    # No fault of the build: no more descriptors, no permission.
                    raise OSError(error.errno, error.strerror, str(self.folder / of_file)) from None
                raise InvalidInput(NotAFolderOfBuild(name), where=str(self.folder / of_file)) from None
        return self._inner[name]

    def is_changing(self) -> bool:
        """Whether a compile has put another build here since the directory was opened, or is about to."""
        try:
            current, opened = os.stat(self.folder), os.fstat(self.descriptor)
            if not os.path.samestat(current, opened):
                return True
            manifest = os.stat(MANIFEST, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return self.manifest is not None or being_written(self.folder)
        except OSError:
            return False
        return self.manifest is None or not os.path.samestat(manifest, self.manifest)


def _read(directory: _Directory, progress: Progress, only: Collection[str] | None) -> Snapshot:
    """Opens and verifies everything, or ``only`` these files, once. Raises InvalidInput."""
    manifest = _read_manifest(directory)
    where = str(directory.folder / MANIFEST)
    listed = {name: entry for name, entry in _listed(manifest, where).items() if only is None or name in only}
    _verify_seal(manifest, directory.folder)
    opened: dict[str, BinaryIO] = {}
    faults: list[Diagnostic] = []
    for name, (size, _) in listed.items():
        try:
            opened[name] = directory.open(name)
        except InvalidInput as error:
            faults += error.diagnostics
            continue
        actual = os.fstat(opened[name].fileno()).st_size
        if actual != size:
            faults.append(SizeDiffers(actual, size).at(str(directory.folder / name)))
    contents: dict[str, bytes] = {}
    weights: dict[str, OpenFile] = {}
    for name, file in opened.items() if not faults else ():
        size, digest = listed[name]
        if name.endswith(_READ_WHOLE):
            with file:
                contents[name] = file.read(size + 1)
            right = digest == f"sha256:{hashlib.sha256(contents[name]).hexdigest()}"
        else:
            weights[name] = OpenFile(file, digest)
            right = has_digest(file, digest, partial(progress, f"verify {name}"))
        if not right:
            faults.append(BytesDiffer().at(str(directory.folder / name)))
    if faults:
        raise InvalidInput(_with_cure(faults, directory.folder, edited=EDITED if _engine(manifest) else EDITED_PLAN))
    return Snapshot(directory.folder, manifest, contents, weights)


def _with_cure(faults: list[Diagnostic], folder: Path, edited: str) -> list[Diagnostic]:
    """The first faults; the hint of the last says what to do: ``edited`` where a plan is among them, which people edit."""
    plan = next((fault.where for fault in faults if fault.where in map(str, (folder / "plan.json", folder / "plan.ir"))), "")
    if len(faults) > _SHOWN:
        faults = [*faults[: _SHOWN - 1], MoreFilesDiffer(len(faults) - _SHOWN + 1).at(str(folder))]
    return [*faults[:-1], replace(faults[-1], hint=edited.replace("{plan}", plan) if plan else REBUILD)]


def _read_manifest(directory: _Directory) -> dict[str, Any]:
    where = str(directory.folder / MANIFEST)
    try:
        file = directory.open(MANIFEST)
    except InvalidInput as error:
        (fault,) = error.diagnostics
        if fault.code == NoSuchFile.code:
            raise InvalidInput(NoManifest(), where=str(directory.folder)) from None
        raise InvalidInput(replace(fault, hint=REBUILD)) from None
    with file:
        directory.manifest = os.fstat(file.fileno())
        data = file.read(LIMITS.document_bytes + 1)
    if len(data) > LIMITS.document_bytes:
        raise InvalidInput(ManifestTooLarge(LIMITS.document_bytes), where=where)
    manifest = parse_json(_text(data, where), where, hint=REBUILD)
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema not in READ:
        raise InvalidInput(WrongSchema(repr(schema), SCHEMA), where=where)
    return dict(manifest)


def _engine(manifest: Mapping[str, Any]) -> str:
    return str(manifest.get("engine", ONNXRUNTIME if manifest.get("stages") else ""))


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(NotUtf8(_EXPECTED, f"0x{data[error.start]:02x}", error.start, REBUILD), where=where) from None


def _listed(manifest: Mapping[str, Any], where: str) -> dict[str, tuple[int, str]]:
    """Size and digest of each file that the manifest lists, by name. Raises InvalidInput."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise InvalidInput(InvalidManifest("expected 'files' by name"), where=where)
    listed = {}
    for name, entry in sorted(files.items()):
        size, digest = (entry.get(key) for key in ("bytes", "sha256")) if isinstance(entry, dict) else (None, None)
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise InvalidInput(FileOutsideBuild(name), where=where)
        if not name.isprintable() or path.as_posix() != name or name in (".", MANIFEST):
            raise InvalidInput(InvalidFileName(name), where=where)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidInput(InvalidFileEntry("the bytes", name, repr(size)), where=where)
        if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise InvalidInput(InvalidFileEntry("the SHA-256 digest", name, repr(digest)), where=where)
        listed[name] = (size, digest)
    return listed


def _verify_seal(manifest: Mapping[str, Any], folder: Path) -> None:
    if "sha256" not in manifest:
        raise InvalidInput(ManifestWithoutDigest(), where=str(folder / MANIFEST))
    if manifest["sha256"] != sealed(manifest)["sha256"]:
        raise InvalidInput(ManifestChanged(), where=str(folder / MANIFEST))
