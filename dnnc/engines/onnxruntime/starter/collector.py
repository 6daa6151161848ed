"""Collects the outputs of microbatches, which arrive in parts from several places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnnc.build.build import Build
from dnnc.build.members import Part
from dnnc.engines.onnxruntime.starter.starting import StarterEnd
from dnnc.engines.onnxruntime.transport.codec import Raw, to_user
from dnnc.engines.onnxruntime.transport.parts import assemble
from dnnc.engines.onnxruntime.transport.wiring import Place


class Collector:
    """Collects the outputs of one microbatch."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.outputs: dict[str, Any] = {}
        self._parts: dict[str, dict[int, tuple[Part, Raw]]] = defaultdict(dict)

    def collect(self, sink: StarterEnd) -> None:
        """Takes the values that one place sent. Raises EOFError when its process has ended."""
        slot = sink.side.take()
        self.take(sink.place, sink.side.values(slot))
        sink.side.release(slot)

    def take(self, place: Place, values: Mapping[str, Any]) -> None:
        """Copies the values that ``place`` sent, because their slot is used again; assembles an output once all parts are
        there."""
        stage = self.build.stages[place.stage]
        if not stage.members:
            self.outputs.update((name, to_user(value)) for name, value in values.items())
            return
        for part in stage.members[place.position].outputs:
            if not part.delivers:
                continue
            parts, value = self._parts[part.name], values[part.value]
            copy = Raw(value.element, value.shape, value.data.copy()) if isinstance(value, Raw) else value
            parts[place.position] = part, copy
            delivering = [
                i for i, member in enumerate(stage.members) if any(p.name == part.name and p.delivers for p in member.outputs)
            ]
            if len(parts) == len(delivering):
                shape = next(port.shape for port in stage.outputs if port.name == part.name)
                self.outputs[part.name] = to_user(assemble(_numbers(shape), [parts[i] for i in delivering]))
                del self._parts[part.name]


@dataclass(slots=True)
class Progress:
    """What a run has got. ``completed``: by microbatch, seconds from ``begin`` to its last output, 0 before."""

    build: Build
    count: int
    begin: float
    collectors: list[Collector] = field(init=False)
    completed: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.collectors, self.completed = [Collector(self.build) for _ in range(self.count)], [0.0] * self.count

    def unanswered(self) -> list[int]:
        return [number for number, seconds in enumerate(self.completed) if not seconds]

    def forget(self) -> None:
        """Forgets outputs of microbatches that lack others."""
        for number in self.unanswered():
            self.collectors[number] = Collector(self.build)


def _numbers(shape: Sequence[int | str | None] | None) -> tuple[int, ...]:
    return tuple(dim for dim in shape or () if isinstance(dim, int))
