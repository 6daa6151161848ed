"""Opening an ONNX file: its model without the weights, or an error that says what the file seems to be instead; and saving one.

The structure of the file is walked without reading large tensors (``wire``), which stay in the file. The model that is returned
is well formed (``wellformed``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, overload

import onnx

from dnnc.onnx.importer.faults import (
    MODEL_FILES,
    EmptyFile,
    GraphTooLarge,
    InvalidText,
    ModelNotDecoded,
    NotAModel,
    NotAModelBut,
    NotAModelButText,
    TextNestedTooDeep,
    TruncatedModel,
)
from dnnc.onnx.importer.wellformed import check_form
from dnnc.onnx.protobuf.wire import WireError, skeleton
from ir.core.diagnostics import Fault, InvalidInput
from ir.core.limits import LIMITS, Limits
from ir.system.digests import OpenFile
from ir.system.files import decode_input, open_input

if TYPE_CHECKING:
    import onnx_ir

IN_ONE_FILE = 1 << 30
"""From this many bytes on, weights are written to a file beside the model: a protobuf file holds 2 GiB at most."""
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
_NESTED_BRACKETS = 300
"""onnx's text parser recurses at each bracket and would overflow its stack; protobuf messages nest at most 100 deep anyway."""

_BLOCK = 1 << 16
"""Bytes of a model that are read at once."""

_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|#[^\n]*|=>|[(\[{<)\]}>]', re.DOTALL)
_OPENING = frozenset("([{<")


def save_model(model: onnx.ModelProto | onnx_ir.Model, file: Path) -> list[str]:
    """Writes the model and returns the names of its files. Large weights are in ``NAME.data``, which is named first: it must be
    in place before the model that refers to it. Raises OSError."""
    import onnx_ir  # only those who write a model wait for it

    if isinstance(model, onnx.ModelProto):
        model = onnx_ir.from_proto(model)
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    beside = f"{file.name}.data" if weights >= IN_ONE_FILE else None
    onnx_ir.save(model, file, external_data=beside)
    return [*filter(None, (beside,)), file.name]


def open_model(path: Path, limits: Limits = LIMITS) -> tuple[onnx.ModelProto, OpenFile]:
    """The model of an ONNX file, its large tensors replaced by references into the file (``wire.SELF``), which stays open.

    Raises InvalidInput for a path that cannot be read, and for anything that is not a whole, well-formed ONNX model.
    """
    where = str(path)
    hint = _folder_hint(path) if path.is_dir() else MODEL_FILES
    text = path.suffix == TEXT_SUFFIX
    file = OpenFile(open_input(path, "ONNX text" if text else "a model file", hint=hint))
    if text:
        model = parse_text(decode_input(file.file, where, "ONNX text", limits.text_bytes, hint=hint), where)
    else:
        model = _parse(_skeleton(file, where, limits), where)
    check_form(model, where)
    return model, file


class _Bytes:
    """The bytes of an open file, read in blocks on demand. Not mapped: a mapped file that somebody truncates would kill the
    process."""

    def __init__(self, file: OpenFile) -> None:
        self._file, self._size = file, file.stamp.size
        self._start, self._block = 0, b""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> bytes: ...

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            start, end, _ = key.indices(self._size)
            return self._read(start, max(0, end - start))
        if not self._start <= key < self._start + len(self._block):
            self._start, self._block = key, self._read(key, min(_BLOCK, self._size - key))
        return self._block[key - self._start]

    def _read(self, start: int, length: int) -> bytes:
        pieces = []
        while length and (piece := os.pread(self._file.descriptor, length, start)):
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
        if length:
            raise WireError("the file was cut off while it was read", start, truncated=True)
        return b"".join(pieces)


def _skeleton(file: OpenFile, where: str, limits: Limits) -> bytes:
    """The serialised model without its large tensors."""
    if not file.stamp.size:
        raise InvalidInput(EmptyFile(), where=where)
    buffer = _Bytes(file)
    try:
        stripped = skeleton(buffer)
    except WireError as error:
        raise InvalidInput(_not_a_model(os.pread(file.descriptor, 512, 0), error), where=where) from None
    if len(stripped) > limits.graph_bytes:
        raise InvalidInput(GraphTooLarge(len(stripped), limits.graph_bytes), where=where)
    return stripped


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, of a package without types
        raise InvalidInput(ModelNotDecoded(), where=where) from None
    return model


def _folder_hint(path: Path) -> str:
    models = sorted(item.name for item in path.glob("*.onnx"))[:3]
    return f"it holds {', '.join(models)}" if models else MODEL_FILES


def _not_a_model(head: bytes, error: WireError) -> Fault:
    """What a file seems to be, by its first bytes, where its walk ended with ``error``."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return NotAModelBut(kind)
    printable = sum(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
    if printable > 0.95 * len(head):
        return NotAModelButText()
    if error.truncated:
        return TruncatedModel(error.offset, str(error))
    return NotAModel(error.offset, str(error))


def parse_text(text: str, where: str) -> onnx.ModelProto:
    """The model of ONNX's text syntax. Raises InvalidInput, with the parser's position where it tells one."""
    from onnx import parser

    if (depth := _nesting(text)) > _NESTED_BRACKETS:
        raise InvalidInput(TextNestedTooDeep(depth, _NESTED_BRACKETS), where=where)
    try:
        return parser.parse_model(text)
    except MemoryError:
        raise
    except Exception as error:  # beside its own errors, whatever C++'s number parsing and protobuf throw (IndexError: stoll)
        reason = _parser_words(error) if isinstance(error, parser.ParseError) else f"a number or a name in it ({error})"
        raise InvalidInput(InvalidText(reason), where=where) from None


def _parser_words(error: Exception) -> str:
    """What onnx's parser says, which it gives as bytes: the position, and the text around it on lines of its own."""
    words = error.args[0] if error.args else ""
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    return text.strip().replace("\n", "\n  ")


def _nesting(text: str) -> int:
    """How deep brackets are nested in ONNX text, outside its strings and comments: the parser recurses as deep."""
    depth = deepest = 0
    for match in _BRACKET.finditer(text):
        token = match[0]
        if token in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif len(token) == 1:
            depth -= 1
    return deepest
