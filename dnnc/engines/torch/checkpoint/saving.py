"""The ranks of a training write a checkpoint beside its steps: each copies what it owns, and a thread writes the copy.

Each rank writes parts that it holds, and each part is written by one, so no rank has, sends or receives the whole model. Rank 0
makes the folder, under a hidden name, and gives it its own once every rank has put its file there; it learns so from the
folder, which all ranks share. Where ranks share none (the hosts of a cluster), each writes into a folder of its host, whose
files are collected by whoever started the hosts.

A rank holds its copy until it is written: as many bytes again as the weights and the optimizer's state that it owns. It
begins with a checkpoint once the one before is whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dnnc.build.training import Step, tensor_type
from dnnc.engines.torch.checkpoint.stored import Checkpoint, file_of, publish
from dnnc.engines.torch.checkpoint.tensors import Box, Part, Position, write_tensors
from dnnc.engines.torch.faults import FileNotWritten, FolderNotShared, WeightNotFinite
from dnnc.engines.torch.launch.job import UNFINISHED
from ir.core.diagnostics import DnncError, InvalidInput
from ir.core.facets import FORWARD, phase_of
from ir.core.types import DType
from ir.ops.grads import ASSIGN
from ir.ops.optimizers import AVERAGED, COUNTED
from ir.system.scratch import PARTIAL, locked_folder, remove_dead

if TYPE_CHECKING:  # whoever starts the hosts of a training needs ``owned`` alone
    import torch

_LOOK = 0.02
"""Seconds between two looks for the files of other ranks, and for the end of a thread."""
_NAME_BYTES = 256


def changed(step: Step) -> set[str]:
    """The resources that training changes: weights, the optimizer's state, running averages. (A stage that keeps another part
    of a weight than its resource has assigns to a value, and another stage to the resource.)"""
    return {op.operands[0] for stage in step.stages for op in stage.ops if op.name == ASSIGN} & step.resources.keys()


def kept(step: Step, resumed: Checkpoint | None) -> set[str]:
    """The resources that a checkpoint holds: what training changes, and what the checkpoint holds that training goes on from,
    also where this plan does not train it: the build only has it as it was before the first step."""
    held = {f"@{name}" for name in resumed.names} if resumed is not None else set[str]()
    return changed(step) | (held & step.resources.keys())


def counted(step: Step) -> dict[str, int]:
    """The counts of microbatches that PyTorch keeps beside running averages, by name, with how often one microbatch moves
    each."""
    moved = [op.operands[0] for op in step.module.entry.ops if op.name == ASSIGN and phase_of(op.facets) == FORWARD]
    means = [name.removesuffix(AVERAGED) for name in moved if name[0] == "@" and name.endswith(f".{AVERAGED}")]
    return {f"{name[1:]}{COUNTED}": means.count(name) for name in means}


def owned(step: Step, names: Iterable[str]) -> dict[int, dict[str, Part]]:
    """What each rank writes of these resources, by its name in a checkpoint. Of ranks that hold the same part, the one with the
    fewest bytes so far writes it. Rank 0 writes a file in any case."""
    parts: dict[int, dict[str, Part]] = {0: {}}
    held = [step.held(rank) for rank in range(len(step.devices))]
    bytes_of = [0] * len(held)
    for name in sorted(names):
        type_ = tensor_type(step.resources[name].type)
        shape = tuple(int(dim) for dim in type_.shape or ())  # type: ignore[arg-type]
        holders: dict[Box, list[int]] = {}
        for rank, boxes in enumerate(held):
            if name in boxes:
                holders.setdefault(boxes[name], []).append(rank)
        for box, ranks in holders.items():
            if not any(_inside(box, other) for other in holders if other != box):
                writer, part = min(ranks, key=lambda rank: (bytes_of[rank], rank)), Part(type_.dtype, shape, box)
                parts.setdefault(writer, {})[name[1:]] = part
                bytes_of[writer] += part.nbytes
    return parts


def _inside(box: Box, other: Box) -> bool:
    ends = zip(box, other, strict=True)
    return all(first <= start and start + length <= first + count for (start, length), (first, count) in ends)


def remove_unfinished(folder: Path) -> None:
    """Removes what killed ranks left of checkpoints in this folder."""
    remove_dead(path for pattern in UNFINISHED for path in folder.glob(pattern))


class Saver:
    """Writes the checkpoints of a training as one of its ranks. ``resumed``: the one that it goes on from; ``apart``: ranks of
    other hosts write into other folders; ``mark``: hears what the rank does while it waits. All ranks call ``save`` for the
    same steps. Used as a context, it waits for what was begun, also where an error ends the training, unless ``hopeless`` says
    that other ranks are lost."""

    def __init__(
        self,
        step: Step,
        rank: int,
        folder: Path,
        mark: Callable[[str], None] = lambda doing: None,
        *,
        resumed: Checkpoint | None = None,
        apart: bool = False,
        hopeless: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        self.step, self.rank, self.folder, self.mark, self.apart, self.hopeless = step, rank, folder, mark, apart, hopeless
        self.resumed = resumed
        self._stack = ExitStack()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._fraction = 0.0

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.wait()
        elif not (isinstance(error, Exception) and self.hopeless(error)):
            self.mark = lambda doing: None  # what the rank did when it failed is told
            with suppress(DnncError):
                self.wait()

    @cached_property
    def _owned(self) -> dict[int, dict[str, Part]]:
        return owned(self.step, kept(self.step, self.resumed))

    def save(self, weights: Mapping[str, torch.Tensor], position: Position, *, name: str = "", finite: bool = True) -> None:
        """Begin to write what this rank owns of its ``weights``, once the checkpoint before is whole. ``name``: of its folder,
        ``stepN`` unless stated; ``finite``: raises InvalidInput for a weight that is not, and writes nothing. Raises what the
        thread of the checkpoint before raised."""
        self.wait()
        self.mark("copying a checkpoint")
        parts = self._owned.get(self.rank, {})
        for weight in parts if finite else ():
            require_finite(weight, weights[weight], f"step {position.step}")
        copies = {weight: weights[weight].detach().to("cpu", copy=True) for weight in parts}
        if self.rank == 0:
            copies |= self._counts(position.step)
            parts = {**parts, **{name: Part.whole(DType.I64, ()) for name in copies if name not in parts}}
        target = self.folder / (name or f"step{position.step}")
        folder = target if self.apart else self._shared(target)
        self._fraction = 0.0
        self._thread = threading.Thread(target=self._write, args=(folder, target, parts, copies, position), daemon=True)
        self._thread.start()

    def _counts(self, done: int) -> dict[str, torch.Tensor]:
        """The counts of microbatches behind ``done`` steps; without those that an older checkpoint does not tell."""
        import torch

        before, base = self.resumed, dict.fromkeys(counted(self.step), 0)
        if before is not None and before.position.step:
            base = {name: int(before.tensor(name)) for name in base if name in before.names}
        since = (done - (before.position.step if before is not None else 0)) * self.step.microbatches
        return {name: torch.tensor(base[name] + since * moved) for name, moved in counted(self.step).items() if name in base}

    def look(self) -> None:
        """Raises what the thread raised, if it has ended so; does not wait."""
        if self._error is not None:
            self.wait()

    def wait(self) -> None:
        """Wait until what was begun is a checkpoint; where ranks are apart, until this rank has written its part. Raises
        InvalidInput where it cannot be."""
        while self._thread is not None and self._thread.is_alive():
            self.mark(f"writing a checkpoint, {self._fraction:.0%}")  # who waits for long is not taken for one that hangs
            self._thread.join(1.0)
        self._thread = None
        self._stack.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _shared(self, target: Path) -> Path:
        """A new folder for the files of all ranks, which rank 0 makes. Raises InvalidInput where it cannot be made, or is not
        there for this rank, which has a file to put there: rank 0 does not wait for a rank without one, so the folder may
        have its own name before such a rank looks."""
        import torch
        import torch.distributed as dist

        text = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
        if self.rank == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                remove_unfinished(self.folder)
                folder = self._stack.enter_context(locked_folder(self.folder, f".{target.name}.", PARTIAL))
            except OSError as error:
                raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(target)) from error
            name = folder.name.encode()
            text[: len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        if len(self.step.devices) > 1:
            dist.broadcast(text, 0)
        folder = self.folder / bytes(text.tolist()).rstrip(b"\0").decode()
        if self.rank in self._owned and not folder.is_dir():
            raise InvalidInput(FolderNotShared(), where=str(self.folder))
        return folder

    def _write(
        self,
        folder: Path,
        target: Path,
        parts: Mapping[str, Part],
        copies: dict[str, torch.Tensor],
        position: Position,
    ) -> None:
        """Thread: write the parts; where ranks share the folder, wait until rank 0 has made a checkpoint of all."""

        def progress(fraction: float) -> None:
            self._fraction = fraction

        try:
            if self.rank in self._owned:
                write_tensors(folder / file_of(self.rank), parts, copies.pop, position, progress)
            if self.apart:
                return
            if self.rank == 0:
                names = [file_of(rank) for rank in self._owned]
                while not all((folder / name).exists() for name in names):
                    time.sleep(_LOOK)
                publish(folder, names, target)
            while folder.exists():  # it has its own name once rank 0 has found all files
                time.sleep(_LOOK)
        except BaseException as error:
            self._error = error


def require_finite(name: str, tensor: torch.Tensor, where: str) -> None:
    """Raises InvalidInput where a weight holds NaN or an infinity."""
    import torch

    if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        wrong = tensor[~torch.isfinite(tensor)].flatten()[0].item()
        raise InvalidInput(WeightNotFinite(name, f"{wrong:g}"), where=where)
