"""Checkpoints: one safetensors file of whole tensors by weight name, whatever plan they were trained by.

A build's ``weights.safetensors`` is the checkpoint of step 0. Optimizer state has names of its own (``fc.weight.exp_avg``). The
header says the step and the seed of the data. A file appears under its name when it is whole: it is written under another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ir.diagnostics import InvalidInput

INITIAL = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: steps that were done, and the seed of its data."""

    step: int = 0
    seed: int = 0


def write_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], position: Position) -> None:
    """Write ``path`` whole or not at all. Raises InvalidInput where the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
        save_file(kept, str(temporary), {"step": str(position.step), "seed": str(position.seed)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidInput(f"it cannot be written: {error.strerror or error}", where=str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def position(path: Path) -> Position:
    """Where the training of a checkpoint stands. Raises InvalidInput for what is none."""
    with _opened(path) as file:
        header = file.metadata() or {}
    try:
        return Position(int(header.get("step", "0")), int(header.get("seed", "0")))
    except ValueError as error:
        raise InvalidInput("its header does not say the step and the seed in numbers", where=str(path)) from error


def read_parts(
    path: Path, boxes: Mapping[str, tuple[tuple[int, int], ...]], optional: Iterable[str] = ()
) -> dict[str, torch.Tensor]:
    """The part of each tensor that a box (start and length by dimension) says; nothing else is read. What is ``optional`` may
    be missing. Raises InvalidInput for a tensor that is missing or too small."""
    optional = set(optional)
    found: dict[str, torch.Tensor] = {}
    with _opened(path) as file:
        names = set(file.keys())
        for name, box in boxes.items():
            if name not in names:
                if name in optional:
                    continue
                raise InvalidInput(f"it holds no weight '{name}'", where=str(path), hint="is it of another model?")
            piece = file.get_slice(name)
            shape = piece.get_shape()
            if len(shape) != len(box) or any(start + length > size for (start, length), size in zip(box, shape, strict=True)):
                raise InvalidInput(
                    f"its weight '{name}' has the shape {shape}", where=str(path), hint="is it of another model?"
                )
            found[name] = piece[tuple(slice(start, start + length) for start, length in box)] if box else file.get_tensor(name)
    return found


def read_whole(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint. Raises InvalidInput."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def _opened(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"it cannot be read as safetensors: {error}", where=str(path)) from error


__all__ = ["INITIAL", "Position", "position", "read_parts", "read_whole", "write_checkpoint"]
