"""Models that are Python objects, as files that the importer reads.

An ``onnx.ModelProto`` and a ``torch.nn.Module`` are written to a temporary folder, which lives as long as the plan: the weights
are read from there when the build is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dnnc.api.faults import ArgumentsMissing, ArgumentsOfFile, NotAModel
from ir.core.diagnostics import UsageError

FILE = "model.onnx"


@dataclass(frozen=True)
class ModelFile:
    """``spec``: what ``dnnc compile`` takes as MODEL; ``folder``: where it lies, if it was written for this."""

    spec: str
    folder: TemporaryDirectory[str] | None = None

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

        folder = TemporaryDirectory(prefix="dnnc-model-")
        return ModelFile(str(from_torch(model, args, Path(folder.name, FILE))), folder)
    if onnx is None or not isinstance(model, onnx.ModelProto):
        raise UsageError(NotAModel(type(model).__name__), where="model")
    if args is not None:
        raise UsageError(ArgumentsOfFile(), where="args")
    from dnnc.onnx.importer.model_file import save_model

    folder = TemporaryDirectory(prefix="dnnc-model-")
    save_model(model, Path(folder.name, FILE))
    return ModelFile(str(Path(folder.name, FILE)), folder)


__all__ = ["ModelFile", "model_file"]
