"""Models that are Python objects, as files that the importer reads.

An ``onnx.ModelProto`` and a ``torch.nn.Module`` are written to a temporary folder, which lives as long as the plan: the weights
are read from there when the build is written.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnc.api.faults import ArgumentsMissing, ArgumentsOfFile, NotAModel
from ir.core.diagnostics import UsageError
from ir.system.scratch import SCRATCH, locked_folder, temporary_directory

FILE = "model.onnx"


@dataclass(frozen=True)
class ModelFile:
    """``spec``: what ``dnnc compile`` takes as MODEL; ``folder``: where it lies, if it was written for this, which goes with
    this object."""

    spec: str
    folder: Path | None = None

    @property
    def hidden(self) -> str:
        """The path that no message should name, since a person did not write it; empty for a file of a person's."""
        return self.spec if self.folder is not None else ""


def model_file(model: Any, args: Sequence[Any] | Mapping[str, Any] | None) -> ModelFile:
    """The model as a file. ``args``: example arguments of a module. Raises UsageError for what is no model, and what
    ``from_torch`` raises."""
    if isinstance(model, str | os.PathLike):
        if args is not None:
            raise UsageError(ArgumentsOfFile(), where="args")
        return ModelFile(os.fspath(model))
    torch, onnx = sys.modules.get("torch"), sys.modules.get("onnx")  # who has an object of theirs has imported them
    if torch is not None and isinstance(model, torch.nn.Module):
        if args is None:
            raise UsageError(ArgumentsMissing(), where="args")
        from dnnc.engines.torch.module.from_module import from_torch

        return _written(lambda path: from_torch(model, args, path))
    if onnx is None or not isinstance(model, onnx.ModelProto):
        raise UsageError(NotAModel(type(model).__name__), where="model")
    if args is not None:
        raise UsageError(ArgumentsOfFile(), where="args")
    from dnnc.onnx.importer.model_file import save_model

    return _written(lambda path: save_model(model, path))


def _written(write: Callable[[Path], object]) -> ModelFile:
    """The file that ``write`` makes in a folder of its own."""
    with ExitStack() as stack:
        folder = stack.enter_context(locked_folder(temporary_directory(), SCRATCH))
        write(folder / FILE)
        file = ModelFile(str(folder / FILE), folder)
        weakref.finalize(file, stack.pop_all().close)
        return file
