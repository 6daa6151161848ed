"""The unsplit model of a build: its values, and how far rounding moves them.

It is the model that was compiled, if that still exists unchanged, else ``annotated.onnx``, the build's own copy. Values without
a name in the original are taken from the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.build.build import Build, StageProgram
from dnnc.check.compare import Precision
from dnnc.check.faults import ModelDoesNotRun, ModelRefused, UnknownInput
from dnnc.check.noise import Meter
from dnnc.engines.onnxruntime.errors import refusal
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.engines.onnxruntime.transport.wiring import output_specs
from dnnc.onnx.ort import plain_words
from ir.core.diagnostics import InvalidInput

if TYPE_CHECKING:
    from dnnc.check.reference import Reference


@dataclass(slots=True)
class Unsplit:
    """The unsplit model: its values, and how far rounding moves them. ``titles``: its name in messages; ``notes``: remarks for
    the report; ``from_original``: names of the values that the original model computed."""

    build: Build
    feeds: list[dict[str, Any]]
    threads: int
    optimize: bool
    precisions: Mapping[str, Precision]
    scratch: Path
    titles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    from_original: set[str] = field(default_factory=set)
    _whole: list[Meter] = field(default_factory=list)

    def _specs(self) -> dict[str, ValueSpec]:
        """The tensors that leave stages, by name."""
        return {spec.name: spec for index in range(len(self.build.stages)) for spec in output_specs(self.build, index)}

    def _references(self) -> Iterator[Reference]:
        """The references, opened anew: a model with its weights is held in memory only while it runs."""
        from dnnc.check.reference import references

        return references(self.build, self._specs(), self.scratch)

    def values(self) -> list[dict[str, Any]]:
        """For each sample, the values of all cut tensors and outputs. Raises InvalidInput if no reference runs."""
        specs = self._specs()
        values: list[dict[str, Any]] = [{} for _ in self.feeds]
        for reference in self._references():
            wanted = tuple(spec for name, spec in specs.items() if name in reference.present and name not in values[0])
            if not wanted:
                continue
            plain = tuple(ValueSpec(spec.name, spec.element) for spec in wanted)
            try:
                settings = Settings(threads=self.threads, optimize=self.optimize)
                program = Program(reference.model, plain, settings, reference.weights)
                for sample, of_sample in zip(self.feeds, values, strict=True):
                    of_sample.update(program.run(_pick(program, sample, reference.title)))
            except InvalidInput:
                raise
            except Exception as error:  # of onnxruntime; the next reference may run
                self.notes.append(f"{reference.title} does not run: {one_line(error)}")
                continue
            reference.confirm()
            self.titles.append(reference.title)
            if reference.original:
                self.from_original |= {spec.name for spec in wanted}
            if len(values[0]) == len(specs):
                break
        if specs and not self.titles:
            self._refuse()
        self._tell_what_it_is(specs)
        return values

    def _refuse(self) -> None:
        reason = refusal(" ".join(self.notes))
        fault = ModelRefused(reason) if reason else ModelDoesNotRun(tuple(self.notes))
        raise InvalidInput(fault, where=str(self.build.folder))

    def _tell_what_it_is(self, specs: Mapping[str, ValueSpec]) -> None:
        from dnnc.check.reference import why_not_the_original

        if specs and not self.from_original:
            self.notes.append(
                "the reference was made from the build's own weights (annotated.onnx): " + why_not_the_original(self.build)
            )
        elif len(self.titles) > 1:
            self.notes.append("values that the original does not name were compared with annotated.onnx")

    def part_meter(
        self, stage: StageProgram, rights: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
    ) -> Meter | None:
        """Measures the noise of the tensors that leave a stage, on the part of the unsplit model that computes them.
        ``rights``: inputs of that part. None if the reference has no such part."""
        from dnnc.check.reference import part

        specs = output_specs(self.build, stage.index)
        kinds = {name: kind for name in read_by(stage) if (kind := _kind_of([right.get(name) for right in rights]))}
        for reference in self._references():
            own = part(reference, kinds, [spec.name for spec in specs if spec.name in reference.present])
            if own is not None:
                feeds = [{**sample, **right} for sample, right in zip(self.feeds, rights, strict=True)]
                return self._meter(own, specs, feeds, expected)
        return None

    def whole_meter(self, name: str) -> Meter | None:
        """Measures the noise of the tensor ``name`` on the whole unsplit model; None if no reference has it."""
        if not self._whole:
            unmet = self._specs()
            for reference in self._references():
                self._whole.append(self._meter(reference, tuple(unmet.values()), self.feeds, None))
                unmet = {name: spec for name, spec in unmet.items() if name not in reference.present}
                if not unmet:
                    break
        return next((meter for meter in self._whole if name in meter.floors), None)

    def _meter(
        self,
        reference: Reference,
        specs: Sequence[ValueSpec],
        feeds: Sequence[Mapping[str, Any]],
        expected: Sequence[Mapping[str, Any]] | None,
    ) -> Meter:
        return Meter(reference, specs, feeds, expected, self.precisions, threads=self.threads, optimize=self.optimize)


def read_by(stage: StageProgram) -> list[str]:
    """Names of the inputs of a stage: inputs of the model, and tensors that other stages send."""
    return [port.name for port in stage.inputs] + [channel.tensor for channel in stage.receives]


def _kind_of(values: Sequence[Any]) -> tuple[int, tuple[int | None, ...]] | None:
    """Element type and shape of a tensor over all samples, None for a dim that differs. None if the value is no tensor."""
    first = values[0] if values else None
    if not isinstance(first, Raw) or not all(isinstance(v, Raw) and len(v.shape) == len(first.shape) for v in values):
        return None
    dims = zip(*(value.shape for value in values), strict=True)
    return first.element, tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in dims)


def _pick(program: Program, feeds: Mapping[str, Any], title: str) -> dict[str, Any]:
    missing = [name for name in program.input_names if name not in feeds]
    if missing:
        raise InvalidInput(UnknownInput(title, missing[0]))
    return {name: feeds[name] for name in program.input_names}


def one_line(error: Exception) -> str:
    return plain_words(str(error))[:300]
