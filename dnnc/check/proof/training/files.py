"""The files of a training build beside ``plan.ir``: the Python of its stages, and the weights before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnc.build.build import Source, read_source
from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step, file_name
from dnnc.check.proof.explain import NOT_PROVEN, REFUTED, Failure
from dnnc.check.proof.segments import read_exactly
from dnnc.check.reference import original_weights
from dnnc.engines.torch.write.stage_file import program_source, title_of
from dnnc.onnx.arrays import to_data
from dnnc.onnx.weights import WeightFiles, read_resource
from ir.core.diagnostics import InvalidInput
from ir.core.module import External, Program, Resource, Splat, View
from ir.core.ops import all_reads
from ir.core.types import TensorType
from ir.ops.boxes import shape_of
from ir.text.json_text import parse_json

WEIGHTS = "weights.safetensors"
_HEADER_BYTES = 100_000_000


def transcription_faults(step: Step, files: Snapshot) -> Iterator[Failure]:
    """The files of stages that are not what dnnc writes of the programs."""
    for stage in step.stages:
        for program in (program for program in step.module.of_type(Program) if program.stage == stage.name):
            name = file_name(step, stage, program)
            try:
                expected = program_source(step.module, program, title_of(stage, program)).encode()
            except InvalidInput as error:
                yield Failure(NOT_PROVEN, f"{program.name} cannot be written as PyTorch: {error}", name)
                continue
            if name not in files.contents or files.read(name) != expected:
                yield Failure(
                    REFUTED, f"it is not what dnnc writes of {program.name}: it was edited, or written by another version", name
                )


@dataclass(slots=True)
class InitialWeights:
    """Compares the weights of a build with those of the model. ``own_copy``: whether they could not be, since the model's
    files are gone or have changed."""

    files: Snapshot
    source: Source
    own_copy: bool = False

    @classmethod
    def of(cls, files: Snapshot) -> InitialWeights:
        return cls(files, read_source(files))

    @property
    def folder(self) -> Path:
        return self.files.folder

    def faults(self, step: Step) -> Iterator[Failure]:
        """The resources that training reads and whose elements are not those of the model."""
        tensors = self.tensors()
        if tensors is None:
            yield Failure(NOT_PROVEN, f"{WEIGHTS} cannot be read", WEIGHTS)
            return
        originals = original_weights(self)
        read = {name for stage in step.stages for op in stage.ops for name in all_reads(op)}
        for name, resource in step.resources.items():
            if name not in read or (isinstance(resource.data, Splat) and name[1:] not in tensors):
                continue
            data = resource.data.whole if isinstance(resource.data, View) else resource.data
            if isinstance(data, External) and originals is None:
                self.own_copy = True
            elif (reason := self.differs(resource, originals, tensors)) is not None:
                yield reason

    def differs(self, resource: Resource, originals: WeightFiles | None, tensors: dict[str, Any]) -> Failure | None:
        name, type_ = resource.name, resource.type
        try:
            array = read_resource(resource, originals if originals is not None else WeightFiles(self.folder))
        except InvalidInput as error:
            return Failure(NOT_PROVEN, f"the weight {name} cannot be read: {error}", WEIGHTS)
        stated, descriptor = tensors.get(name[1:]), self.files.weights[WEIGHTS].descriptor
        if stated is None or not isinstance(type_, TensorType):
            return Failure(REFUTED, f"it lacks the weight {name}", WEIGHTS)
        begin, end = (tensors[""] + offset for offset in stated["data_offsets"])
        expected = to_data(array, type_.dtype)
        kind = stated["dtype"].replace("_", "").lower()
        if (kind, tuple(stated["shape"]), end - begin) != (type_.dtype.value, shape_of(type_), len(expected)):
            return Failure(REFUTED, f"{name} is {stated['dtype']}{stated['shape']}, the weight of the model {type_}", WEIGHTS)
        if bytes(read_exactly(descriptor, begin, end - begin) or b"") != expected:
            return Failure(REFUTED, f"{name} has other elements than the weight of the model", WEIGHTS)
        return None

    def tensors(self) -> dict[str, Any] | None:
        """Type, shape and place of each tensor by its name, as the file's header says; under the empty name, where the elements
        begin. None for a file that has no such header."""
        if WEIGHTS not in self.files.weights:
            return None
        descriptor = self.files.weights[WEIGHTS].descriptor
        length = read_exactly(descriptor, 0, 8)
        size = int.from_bytes(length or b"", "little")
        text = read_exactly(descriptor, 8, size) if 0 < size <= _HEADER_BYTES else None
        try:
            header = parse_json(bytes(text or b"").decode(), WEIGHTS)
            tensors = {name: dict(entry) for name, entry in header.items() if name != "__metadata__"}
            for entry in tensors.values():
                begin, end = entry["data_offsets"]
                if not (0 <= begin <= end and isinstance(entry["dtype"], str) and isinstance(entry["shape"], list)):
                    return None
        except (InvalidInput, ValueError, TypeError, AttributeError, LookupError):
            return None
        return {**tensors, "": 8 + size}
