"""Which files of a training the ranks of a host read, and the same files as that host has them in its cache.

Programs and data go whole; of weights, and of the checkpoint that training goes on from, those bytes that the host's ranks read
(``dnnc.engines.cluster.files.parts``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnc.build.build import PROGRAM
from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step, file_name
from dnnc.data.samples import MICROBATCHES, SYNTHETIC
from dnnc.engines.cluster.files.parts import Needed, Part, part_of
from dnnc.engines.torch.files import TrainingFiles
from ir.system.digests import OpenFile
from ir.system.files import open_input


@dataclass(frozen=True, slots=True)
class HostFiles:
    """``contents``: key of each program by its name in the build; ``data``: of each file of samples by its name; ``initial``:
    of the parts of weights; ``resumed``: of those of each file of a checkpoint by its name in it, ``index``: the text of its
    index. ``parts`` and ``sources``: as ``Needed`` has them."""

    contents: Mapping[str, str]
    data: Mapping[str, str]
    initial: str
    resumed: Mapping[str, str]
    index: str
    parts: tuple[Part, ...]
    sources: Mapping[str, bytes | OpenFile]

    @property
    def needed(self) -> Needed:
        return Needed({}, {}, self.parts, self.sources)

    def to_json(self) -> dict[str, Any]:
        keys = {"contents": self.contents, "data": self.data, "initial": self.initial, "resumed": self.resumed}
        return {**keys, "index": self.index, "parts": [part.to_json() for part in self.parts]}


def host_files(files: TrainingFiles, ranks: Iterable[int], samples: Mapping[str, OpenFile]) -> HostFiles:
    """What the host with these ranks needs. ``samples``: files of data by their names. Raises InvalidInput."""
    step, parts, sources = files.step, dict[str, Part](), dict[str, bytes | OpenFile]()

    def whole(data: bytes) -> str:
        key = hashlib.sha256(data).hexdigest()
        parts[key], sources[key] = Part(key, len(data), ((0, len(data)),)), data
        return key

    def of_file(file: OpenFile, ranges: Iterable[tuple[int, int]]) -> str:
        part = part_of(file, ranges)
        parts[part.key], sources[part.key] = part, file
        return part.key

    names, initial = {PROGRAM: None}, files.initial.ranges({})[""]
    resumed = files.resumed.ranges({}) if files.resumed is not None else {}
    for rank in ranks:
        names |= dict.fromkeys(_programs(step, rank))
        boxes = {name[1:]: box for name, box in step.loaded(rank).items()}
        initial += files.initial.ranges(boxes)[""]
        for name, ranges in files.resumed.ranges(boxes).items() if files.resumed is not None else ():
            resumed[name] += ranges
    return HostFiles(
        {name: whole(files.build.read(name)) for name in names},
        {name: of_file(file, [(0, file.stamp.size)]) for name, file in samples.items()},
        of_file(files.initial.files[""].file, initial),
        {name: of_file(files.resumed.files[name].file, ranges) for name, ranges in resumed.items()} if files.resumed else {},
        files.resumed.index if files.resumed is not None else "",
        tuple(parts.values()),
        sources,
    )


def _programs(step: Step, rank: int) -> list[str]:
    """The programs of a rank, by their names in the build."""
    return [file_name(step, stage, step.program(stage, rank)[0]) for stage in step.stages_of(rank)]


def sample_files(source: str) -> dict[str, OpenFile]:
    """The files of samples that ``--data`` names, open, by their names; none for a function or random samples. Raises
    InvalidInput."""
    path = Path(source.removeprefix(MICROBATCHES))
    if source == SYNTHETIC or not (source.endswith((".npz", ".npy")) or source.startswith(MICROBATCHES) or path.is_dir()):
        return {}
    paths = sorted({*path.glob("*.npz"), *path.rglob("*.npy")}) if path.is_dir() else [path]
    return {
        one.relative_to(path).as_posix() if path.is_dir() else one.name: OpenFile(open_input(one, "samples")) for one in paths
    }


def received_files(
    command: Mapping[str, Any], folder: str, manifest: Mapping[str, Any], entries: Mapping[str, OpenFile]
) -> TrainingFiles:
    """The files of ``HostFiles.to_json``, from the open entries of the cache by key. Raises InvalidInput."""
    from dnnc.engines.torch.checkpoint import INITIAL, Checkpoint

    contents = {}
    for name, key in command["contents"].items():
        file = entries[key]
        contents[name] = os.pread(file.descriptor, file.stamp.size, 0)
    build = Snapshot(Path(folder), manifest, contents, {INITIAL: entries[command["initial"]]})
    resumed = {name: entries[key] for name, key in command["resumed"].items()}
    where, index = command["resumed_from"], command["index"]
    return TrainingFiles(build, Checkpoint.of(resumed, where, index) if resumed else None)


def data_source(source: str, data: Mapping[str, str], entries: Mapping[str, OpenFile], folder: Path) -> str:
    """``--data`` for the ranks of this host: files of samples are links in ``folder``, which this process makes, to open
    entries of the cache."""
    if not data:
        return source
    folder.mkdir()
    for name, key in data.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{entries[key].descriptor}")
    if source.startswith(MICROBATCHES):
        return f"{MICROBATCHES}{folder}"
    return str(folder / next(iter(data))) if source.endswith((".npz", ".npy")) else str(folder)
