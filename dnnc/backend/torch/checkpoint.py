"""Checkpoints: one safetensors file of whole tensors by weight name, whatever plan they were trained by.

A build's ``weights.safetensors`` is the checkpoint of step 0. Optimizer state has names of its own (``fc.weight.exp_avg``). The
header says the step and the seed of the data. A file appears under its name when it is whole: it is written under another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ir.diagnostics import InvalidInput
from ir.files import open_input
from ir.scratch import PARTIAL, locked_folder, remove_dead, umask
from ir.signals import termination_raises

INITIAL = "weights.safetensors"
OTHER_MODEL = "is it of another model?"


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: steps that were done, and the seed of its data."""

    step: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor of this type and shape: start and length by dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]


def from_array(array: Any) -> torch.Tensor:
    """A tensor on the elements of a numpy array, of ``ml_dtypes`` too. Raises InvalidInput for a type that torch lacks."""
    if array.dtype.isbuiltin == 1:
        return torch.as_tensor(array)
    found = getattr(torch, array.dtype.name, None)
    if found is None:
        raise InvalidInput(f"torch has no element type {array.dtype.name}")
    return torch.as_tensor(array.view(f"u{array.dtype.itemsize}")).view(found)


def write_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], position: Position) -> None:
    """Write ``path`` whole or not at all; what a killed writer of another checkpoint left beside it goes. Raises InvalidInput
    where the disk refuses."""
    kept = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_dead(path.parent.glob(f".*{path.suffix}.*{PARTIAL}"))
        with termination_raises(), locked_folder(path.parent, f".{path.name}.", PARTIAL) as folder:
            whole = folder / path.name  # safetensors writes it under a name of its own first
            save_file(kept, str(whole), {"step": str(position.step), "seed": str(position.seed)})
            with whole.open("rb") as file:
                os.fsync(file.fileno())
            whole.chmod(0o666 & ~umask())
            os.replace(whole, path)
    except OSError as error:
        raise InvalidInput(f"it cannot be written: {error.strerror or error}", where=str(path)) from error
    except SafetensorError as error:
        raise InvalidInput(f"it cannot be written: {error}", where=str(path)) from error


def position(path: Path) -> Position:
    """Where the training of a checkpoint stands. Raises InvalidInput for what is none."""
    with _opened(path) as file:
        header = file.metadata() or {}
    said = header.get("step", "0"), header.get("seed", "0")
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in said):
        raise InvalidInput("its header does not say the step and the seed in numbers", where=str(path))
    return Position(int(said[0]), int(said[1]))


def names(path: Path) -> tuple[str, ...]:
    """The weights of a checkpoint. Raises InvalidInput."""
    with _opened(path) as file:
        return tuple(file.keys())


def read_parts(path: Path, parts: Mapping[str, Part], optional: Iterable[str] = ()) -> dict[str, torch.Tensor]:
    """A part of each tensor; nothing else is read. What is ``optional`` may be missing. Raises InvalidInput for a tensor that
    is missing, or of another type or shape."""
    optional = set(optional)
    found: dict[str, torch.Tensor] = {}
    with _opened(path) as file:
        stored = set(file.keys())
        for name, part in parts.items():
            if name not in stored:
                if name in optional:
                    continue
                raise InvalidInput(f"it holds no weight '{name}'", where=str(path), hint=OTHER_MODEL)
            piece = file.get_slice(name)
            shape = tuple(piece.get_shape())
            fits = shape == part.shape
            tensor = piece[tuple(slice(start, start + length) for start, length in part.box)] if fits and part.box else None
            tensor = file.get_tensor(name) if tensor is None else tensor
            if not fits or tensor.dtype != part.dtype:
                message = f"its weight '{name}' is {_words(tensor.dtype, shape)}; expected {_words(part.dtype, part.shape)}"
                raise InvalidInput(message, where=str(path), hint=OTHER_MODEL)
            found[name] = tensor
    return found


def _words(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def read_whole(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint. Raises InvalidInput."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def _opened(path: Path) -> Any:
    open_input(path, "a checkpoint", hint="checkpoints are called stepN.safetensors").close()
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"it cannot be read as safetensors: {error}", where=str(path)) from error


__all__ = [
    "INITIAL",
    "OTHER_MODEL",
    "Part",
    "Position",
    "from_array",
    "names",
    "position",
    "read_parts",
    "read_whole",
    "write_checkpoint",
]
