"""What a training reads of a build, and of the checkpoint that it goes on from: files that were opened and verified once.

``dnnc train`` opens them and hands them to its ranks, as memory that has no name and descriptors: a rank opens no path of the
build. The programs, Python by whoever made the build, are compiled from the bytes that were verified, so nothing else that lies
in the folder is imported or looked at. A rank that somebody starts by hand opens and verifies the build itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from dnnc.build.build import PROGRAM, read_program
from dnnc.build.snapshot import Snapshot
from dnnc.engines.onnxruntime.transport.edges import anonymous_memory, read_memory, write_memory
from dnnc.engines.torch.faults import InitialWeightsMissing, ProgramNotImported
from ir.core.diagnostics import InvalidInput
from ir.system.digests import OpenFile

if TYPE_CHECKING:  # torch takes seconds, and who hands files over needs none of it
    from dnnc.build.training import Step
    from dnnc.engines.torch.checkpoint import Checkpoint

_LENGTH = 8
"""Bytes of the length of the description at the beginning of the memory."""


@dataclass(frozen=True)
class TrainingFiles:
    """``build``: its files, verified; ``resumed``: the checkpoint that training goes on from."""

    build: Snapshot
    resumed: Checkpoint | None = None

    @cached_property
    def step(self) -> Step:
        """Raises InvalidInput for a text that is no plan of a training step."""
        return read_step(self.build)

    @cached_property
    def initial(self) -> Checkpoint:
        """The weights before the first step. Raises InvalidInput."""
        from dnnc.engines.torch.checkpoint import INITIAL, Checkpoint

        if INITIAL not in self.build.weights:
            raise InvalidInput(InitialWeightsMissing(INITIAL), where=str(self.build.folder))
        return Checkpoint.of({"": self.build.weights[INITIAL]}, self.build.where(INITIAL))

    def functions(self, name: str) -> dict[str, Any]:
        """What the program called ``name`` in the build defines. Raises InvalidInput where it cannot be run."""
        source = self.build.read(name)
        module = ModuleType(f"dnnc_build_{Path(name).stem}")
        try:
            exec(compile(source, _title(name), "exec", dont_inherit=True), vars(module))
        except Exception as error:  # a build may be anybody's
            raise InvalidInput(ProgramNotImported(f"{type(error).__name__}: {error}"), where=self.build.where(name)) from error
        return vars(module)

    def place(self, trace: TracebackType | None) -> str:
        """The innermost line of a program of the build on the way to an error; empty where there is none."""
        titles, found = {_title(name): name for name in self.build.contents}, ""
        while trace is not None:
            name = titles.get(trace.tb_frame.f_code.co_filename)
            found, trace = f"{name}:{trace.tb_lineno}" if name else found, trace.tb_next
        return found

    def confirm(self) -> None:
        """Raises InvalidInput where weights were written to since they were verified. To be asked once they have been read."""
        self.build.confirm()
        if self.resumed is not None:
            self.resumed.confirm()

    @contextmanager
    def handed(self) -> Iterator[tuple[int, list[int]]]:
        """A descriptor by which another process gets these files (``received``), and all that it must inherit, that one among
        them. Raises OSError."""
        texts = list(self.build.contents.items())
        weights = {name: file.descriptor for name, file in self.build.weights.items()}
        description = {
            "folder": str(self.build.folder),
            "manifest": dict(self.build.manifest),
            "texts": [(name, len(text)) for name, text in texts],
            "weights": weights,
            "resumed": None,
        }
        more: list[int] = []
        if (resumed := self.resumed) is not None:
            opened = {name: file.file.descriptor for name, file in resumed.files.items()}
            description["resumed"] = {"files": opened, "where": resumed.where, "index": resumed.index}
            more = [*opened.values()]
        head = json.dumps(description).encode()
        pieces = [len(head).to_bytes(_LENGTH, "little"), head, *(text for _, text in texts)]
        memory = anonymous_memory(sum(map(len, pieces)))
        try:
            write_memory(memory, pieces)
            yield memory, [memory, *weights.values(), *more]
        finally:
            os.close(memory)

    @classmethod
    def received(cls, memory: int) -> TrainingFiles:
        """What another process handed over. Raises InvalidInput for a checkpoint that is none."""
        from dnnc.engines.torch.checkpoint import Checkpoint

        length = int.from_bytes(read_memory(memory, 0, _LENGTH), "little")
        description = json.loads(read_memory(memory, _LENGTH, length))
        contents, offset = {}, _LENGTH + length
        for name, size in description["texts"]:
            contents[name] = read_memory(memory, offset, size)
            offset += size
        listed = description["manifest"]["files"]
        weights = {name: _opened(number, listed[name]["sha256"]) for name, number in description["weights"].items()}
        resumed = description["resumed"]
        return cls(
            Snapshot(Path(description["folder"]), description["manifest"], contents, weights),
            None
            if resumed is None
            else Checkpoint.of(
                {name: _opened(number) for name, number in resumed["files"].items()}, resumed["where"], resumed["index"]
            ),
        )


def read_step(files: Snapshot) -> Step:
    """The training step of a build. Raises InvalidInput for a text that is no plan of one."""
    from dnnc.build.training import Step
    from dnnc.onnx import DIALECTS
    from passes.graph.folding import expand

    return Step.of(expand(read_program(files)), DIALECTS, files.where(PROGRAM))


def _title(name: str) -> str:
    """The file name of a program's code: none that anybody would read lines of it from."""
    return f"<{name}>"


def _opened(descriptor: int, digest: str | None = None) -> OpenFile:
    return OpenFile(os.fdopen(descriptor, "rb"), digest)
