"""Runs all members of a mesh in one process, level by level: how ``dnnc check`` runs a stage on a mesh.

Collectives use the arithmetic of a run (``collectives.combine``), so results are equal bit for bit. One session is open at a
time. Several cases (samples, or inputs of different origin) go through it, so each model is loaded once. At each level first
the segments of all members run, then the collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.build.build import Build, StageProgram
from dnnc.build.members import Local, MemberProgram, Part
from dnnc.engines.onnxruntime.session.needs import executor_of
from dnnc.engines.onnxruntime.transport.codec import Raw
from dnnc.engines.onnxruntime.transport.collectives import combine
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.engines.onnxruntime.transport.parts import assemble, neutral, part_of
from dnnc.onnx.elements import BY_NAME, BY_NUMBER

Values = dict[str, Any]
"""The values of one member, by the names that its models use."""


class MemberError(Exception):
    """The segment of ``member`` at a level does not run; the text says why."""

    def __init__(self, member: int, level: int, error: Exception) -> None:
        super().__init__(f"segment {level} of member {member}: {error}")
        self.member = member


def run_members(
    build: Build, stage: StageProgram, cases: Sequence[Sequence[Values]], *, threads: int = 1, optimize: bool = True
) -> list[list[Values]]:
    """Runs every case: a list of the input values of each member (``fed``). Of each case the result is, for each member, its
    inputs and all outputs of its segments and collectives. Raises MemberError."""
    values = [[dict(member) for member in case] for case in cases]
    levels = {segment.level for member in stage.members for segment in member.segments}
    levels |= {collective.level for collective in stage.collectives}
    for level in sorted(levels):
        for number, member in enumerate(stage.members):
            for segment in (segment for segment in member.segments if segment.level == level):
                try:
                    outputs = tuple(map(_spec, segment.outputs))
                    model, weights = build.model(segment.model)
                    program = executor_of(build, member.device, threads, optimize).load(model, outputs, weights)
                    for case in values:
                        case[number] |= program.run({name: case[number][name] for name in program.input_names})
                except Exception as error:  # whatever onnxruntime raises
                    raise MemberError(number, level, error) from error
        for collective in (collective for collective in stage.collectives if collective.level == level):
            for case in values:
                operands = [member[collective.operand].data for member in case]
                carrier = BY_NUMBER[collective.element].carrier
                for number in range(len(case)):
                    result = np.empty(collective.results[number], np.dtype(carrier))
                    combine(collective, number, [operands[peer] for peer in collective.group_of(number)], result)
                    case[number][collective.result] = Raw(collective.element, result.shape, result)
    return values


def _spec(value: Local) -> ValueSpec:
    """What to ask onnxruntime for; it reports the shape itself."""
    return ValueSpec(value.name, BY_NAME[value.dtype].number if value.dtype in BY_NAME else 0)


def fed(member: MemberProgram, values: Mapping[str, Any], ready: Mapping[int, Any] | None = None) -> Values:
    """The inputs of a member, cut from whole tensors: ``values`` by name in the unsplit model. ``ready``: by channel, parts to
    take instead. Of a tensor that arrives as terms of a reduction, one member gets the whole and the others the neutral
    element."""
    inputs = {name: values[name] for name in member.inputs}
    for part in member.receives:
        if ready and part.channel in ready:
            inputs[part.value] = ready[part.channel]
            continue
        whole = values[part.name]
        if part.reduction and part.term:
            whole = neutral(whole, part.reduction)
        inputs[part.value] = part_of(whole, part.box) if isinstance(whole, Raw) else whole
    return inputs


@dataclass(frozen=True, slots=True)
class Border:
    """A tensor that leaves a stage, as an output of the model (``channel`` -1) or through a channel; ``parts``: by member."""

    name: str
    channel: int
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def whole(self, values: Sequence[Values]) -> Raw:
        """The tensor, assembled from the parts of the members that deliver it. ``values``: by member."""
        pieces = [(part, member[part.value]) for part, member in zip(self.parts, values, strict=True) if part.delivers]
        return assemble(self.shape, pieces)

    def of_members(self, values: Sequence[Values]) -> list[tuple[int, Part, Any]]:
        """(Member, part, value) of each member that holds a part of the tensor and no term of a reduction."""
        held = zip(range(len(self.parts)), self.parts, values, strict=True)
        return [(number, part, member[part.value]) for number, part, member in held if not part.reduction]


def borders(stage: StageProgram) -> tuple[Border, ...]:
    """The tensors that leave a stage on a mesh: outputs, then channels."""
    shapes = [(port.name, -1, port.shape) for port in stage.outputs] + [(c.tensor, c.id, c.shape) for c in stage.sends]
    tensors = []
    for name, channel, shape in shapes:
        every = [part for member in stage.members for part in (*member.outputs, *member.sends)]
        parts = tuple(part for part in every if (part.name, part.channel) == (name, channel))
        tensors.append(Border(name, channel, tuple(dim for dim in shape or () if isinstance(dim, int)), parts))
    return tuple(tensors)
