"""Opening an ONNX file: what kind of file it is, whether it is whole, and its model without the weights.

Nothing is read that is not needed: the file is mapped, its structure is walked (``wire``), large payloads stay where they are.
Every fault raises InvalidInput that says what the file seems to be.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import onnx

from dnnc.frontends.wire import WireError, skeleton
from ir.diagnostics import InvalidInput

TEXT_SUFFIX = ".onnxtxt"
"""Files of this suffix hold ONNX's own text syntax (``onnx.parser``)."""

_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"PK\x03\x04", "a ZIP archive (a PyTorch checkpoint or an archive of the model)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89HDF", "an HDF5 file (a Keras model)"),
    (b"GGUF", "a GGUF file (llama.cpp)"),
    (b"%PDF", "a PDF"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer: the model itself has not been downloaded (git lfs pull)"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
)
_HINT = "give an ONNX file (.onnx), ONNX text (.onnxtxt), IR text (.ir) or zoo:NAME"


def open_model(path: Path) -> onnx.ModelProto:
    """The model of an ONNX file, its large tensors replaced by references into the file (``wire.SELF``).

    Raises InvalidInput for a path that cannot be read, and for anything that is not a whole ONNX model.
    """
    where = str(path)
    check_readable(path)
    if path.suffix == TEXT_SUFFIX:
        return parse_text(path.read_bytes(), where)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise InvalidInput("the file is empty; a model was expected", where=where, hint="export or download it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            try:
                stripped = skeleton(mapped)
            except WireError as error:
                raise _not_a_model(mapped, error, where) from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(stripped)
        return model
    except Exception:  # protobuf's DecodeError, of a package without types
        raise InvalidInput("not a valid ONNX model: a field of it cannot be decoded", where=where, hint=_HINT) from None


def check_readable(path: Path) -> None:
    """Raises InvalidInput unless ``path`` is a file that this user may read."""
    where = str(path)
    try:
        if path.is_dir():
            raise InvalidInput("a folder; a model file was expected", where=where, hint=_folder_hint(path))
        if not path.exists():
            raise InvalidInput("there is no such file", where=where, hint=_HINT)
        with path.open("rb"):
            pass
    except PermissionError:
        raise InvalidInput("no permission to read it", where=where, hint=f"chmod u+r {path.name}") from None
    except OSError as error:
        raise InvalidInput(f"it cannot be read: {error.strerror or error}", where=where) from None


def _folder_hint(path: Path) -> str:
    models = sorted(item.name for item in path.glob("*.onnx"))[:3]
    return f"it holds {', '.join(models)}" if models else _HINT


def _not_a_model(buffer: mmap.mmap, error: WireError, where: str) -> InvalidInput:
    head = buffer[:512]
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return InvalidInput(f"not an ONNX model but {kind}", where=where, hint=_HINT)
    printable = sum(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
    if printable > 0.95 * len(head):
        return InvalidInput("not an ONNX model but text", where=where, hint=_HINT + "; rename it if it is one of these texts")
    if error.truncated:
        message = f"the file ends too early: at byte {error.offset}, {error}"
        return InvalidInput(message, where=where, hint="it is truncated (copy or download it again), or no ONNX model at all")
    return InvalidInput(f"not an ONNX model: at byte {error.offset}, {error}", where=where, hint=_HINT)


def parse_text(text: bytes, where: str) -> onnx.ModelProto:
    """The model of ONNX's text syntax. Raises InvalidInput with the parser's position."""
    from onnx import parser

    try:
        return parser.parse_model(text.decode())
    except (parser.ParseError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not valid ONNX text: {str(error).strip()}", where=where) from None


__all__ = ["TEXT_SUFFIX", "check_readable", "open_model", "parse_text"]
