"""What the members of each stage run, as terms: programs of a module, with the ONNX models that their segments are in a build.

Members whose programs and models differ by nothing but the bytes of constants are one *unit*: their terms are the same
expressions, in which a constant has bytes for each member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dnnc.check.proof.segments import Text, Unreadable, read_segment
from dnnc.check.proof.terms import (
    ABSENT,
    CONSTANT,
    Content,
    Terms,
    constant_key,
    constant_of,
    content,
    content_of,
    op_key,
    structure_of,
    unknown_of,
    version,
)
from ir.core.attributes import Dense
from ir.core.module import Mesh, Module, Program, Stage
from ir.core.names import bare
from ir.core.ops import Op, Value
from ir.core.types import TensorType, Type
from ir.ops.opdefs import SEGMENT, is_collective, module_opsets


@dataclass(frozen=True, slots=True)
class Line:
    """An op of a unit in the order of its text: the terms that it reads and makes (``ABSENT`` for none), the file that has it;
    the ``version`` of its operator; ``unknown``: why nothing can be said of it."""

    op: Op
    operands: tuple[int, ...]
    results: tuple[int, ...]
    file: str = ""
    version: int | None = None
    unknown: str = ""


@dataclass(slots=True)
class Unit:
    """Members (numbers in the mesh) that run the same text. ``terms`` and ``env``: the term of each name of the program;
    ``lines``: its ops; ``constants``: by term, the name in its model and the bytes on each member; ``parts``: by term, the
    resource that it is a part of and the type of the whole with its layout; ``types``: of the values of the program;
    ``inner``: by term that an op's layout rule makes on the way, the type that it gives it."""

    members: tuple[int, ...]
    program: Program
    terms: Terms = field(default_factory=Terms)
    env: dict[str, int] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    constants: dict[int, list[tuple[str, tuple[Content, ...]]]] = field(default_factory=dict)
    parts: dict[int, tuple[str, Type | None]] = field(default_factory=dict)
    inner: dict[int, Type] = field(default_factory=dict)
    named: dict[int, str] = field(default_factory=dict)
    """A name for each term, for messages."""


@dataclass(slots=True)
class StageText:
    """A stage: its mesh (without axes where it has none) and the units of its members."""

    stage: Stage
    mesh: Mesh
    units: list[Unit]


class Files(Protocol):
    """The files of a build: ``dnnc.build.snapshot.Snapshot``."""

    def read(self, name: str) -> bytes: ...

    def weights_for(self, model: str) -> dict[str, int]: ...


def read_stages(module: Module, files: Files | None = None) -> Iterator[StageText]:
    """The stages of a module that ``localize`` wrote, or of a build with these ``files``, whose programs consist of segments.
    Raises Unreadable."""
    meshes, resources = {mesh.name: mesh for mesh in module.of_type(Mesh)}, module.resources
    states = {
        name: type_ if isinstance(type_ := resources[name].type, TensorType) and type_.layout else None
        for name in module.states
    }
    programs: dict[str, list[Program]] = {}
    for program in module.of_type(Program):
        programs.setdefault(program.stage, []).append(program)
    for stage in module.of_type(Stage):
        mesh = meshes.get(stage.mesh, Mesh("", (), ()))
        units: list[Unit] = []
        for program in programs.get(stage.name, ()):
            members = [mesh.devices.index(device) for device in program.devices] if mesh.axes else [0]
            if files is None:
                units.append(Unit(tuple(members), program))
                Evaluation(units[-1], module_opsets(module)).run()
            else:
                units += _units(program, stage.index, members, bool(mesh.axes), files, states)
        yield StageText(stage, mesh, units)


def _units(
    program: Program, stage: int, members: Sequence[int], on_mesh: bool, files: Files, states: Mapping[str, Type | None]
) -> Iterator[Unit]:
    """The units of the members of ``program``."""
    from dnnc.build.members import model_name

    alike: dict[object, list[tuple[int, dict[int, Text]]]] = {}
    for member in members:
        texts = {}
        for op in program.ops:
            if op.name == SEGMENT:
                level = op.get("level")
                name = model_name(stage, level, member if on_mesh else None)
                texts[level] = read_segment(name, files.read(name), files.weights_for(name))
        signature = tuple((level, text.signature()) for level, text in texts.items())
        alike.setdefault(signature, []).append((member, texts))
    for same in alike.values():
        unit = Unit(tuple(member for member, _ in same), program)
        Evaluation(unit, {}, [texts for _, texts in same], states).run()
        yield unit


class Evaluation:
    """The terms of a unit. ``opsets``: of ops in the program itself; ``texts``: the models of each member, by level;
    ``states``: which the runtime gives to each model that has an input of that name; the type of the whole where a member has
    the part that its layout says."""

    def __init__(
        self,
        unit: Unit,
        opsets: Mapping[str, int],
        texts: Sequence[Mapping[int, Text]] = (),
        states: Mapping[str, Type | None] | None = None,
    ) -> None:
        self.unit, self.opsets, self.texts, self.states = unit, opsets, texts, states or {}

    def run(self) -> None:
        unit, program = self.unit, self.unit.program
        for value in program.args:
            self.define(value, unit.terms.number(("input", value.name)))
        for op in program.ops:
            if op.name == SEGMENT:
                self.segment(op, [texts[op.get("level")] for texts in self.texts])
            elif op.name in ("comm.part", "comm.member") or op.name == CONSTANT:
                self.held(op)
            elif op.dialect == "comm":
                self.message(op)
            else:
                results = self.op(op, "", self.opsets, self.read)
                for value, term in zip(op.results, results, strict=True):
                    self.define(value, term)

    def held(self, op: Op) -> None:
        """A part of a resource, or a constant."""
        unit, value = self.unit, op.results[0]
        if op.name == "comm.part":
            self.define(value, self.part(op.operands[0], op.get("of")))
            return
        listed = op.get("values") if op.name == "comm.member" else constant_of(op)
        if listed is None:
            raise Unreadable(f"{unit.program.name} has the constant {value.name} in a form that is not known")
        contents = (content_of(listed),) * len(unit.members) if op.name == CONSTANT else _by_member(listed)
        term = unit.terms.number(constant_key(contents))
        unit.constants.setdefault(term, []).append((bare(value.name), contents))
        self.define(value, term)

    def message(self, op: Op) -> None:
        """A send, a receive or a collective."""
        unit = self.unit
        operands = tuple(self.read(name) for name in op.operands)
        kind = "collective" if is_collective(op) else op.name
        results = tuple(unit.terms.number((kind, op.get("channel"))) for _ in op.results)
        for value, term in zip(op.results, results, strict=True):
            self.define(value, term)
        unit.lines.append(Line(op, operands, results))

    def part(self, name: str, of: Type | None) -> int:
        """The part of a resource that ``of`` says; all of it for None."""
        term = self.unit.terms.number(("part", name, of))
        self.unit.parts[term] = name, of
        self.unit.named.setdefault(term, name)
        return term

    def define(self, value: Value, term: int) -> None:
        self.unit.env[value.name] = term
        self.unit.types[value.name] = value.type
        self.unit.named.setdefault(term, value.name)

    def read(self, name: str) -> int:
        if name[:1] == "@" and name not in self.unit.env:
            return self.part(name, None)
        if name not in self.unit.env:
            raise Unreadable(f"{self.unit.program.name} reads {name}, which nothing before it makes")
        return self.unit.env[name]

    def segment(self, call: Op, texts: Sequence[Text]) -> None:
        """The ops of a model in place of the ``dnnc.segment`` that runs it."""
        unit, text = self.unit, texts[0]
        given = {name: self.part(f"@{name}", self.states[f"@{name}"]) for name in text.inputs if f"@{name}" in self.states}
        given |= {bare(name): self.read(name) for name in call.operands}
        if missing := [name for name in text.inputs if name not in given]:
            raise Unreadable(f"{text.name} has the input '{missing[0]}', which {unit.program.name} does not give it")
        env = {name: given[name] for name in text.inputs}
        for name in text.constants:
            contents = tuple(one.constants[name] for one in texts)
            term = env[name] = unit.terms.number(constant_key(contents))
            unit.constants.setdefault(term, []).append((name, contents))
            unit.named.setdefault(term, name)
        for op in text.ops:
            results = self.op(op, text.name, text.opsets, env.__getitem__)
            env.update(zip([value.name for value in op.results], results, strict=True))
        for value in call.results:
            output = text.outputs.get(bare(value.name))
            if output is None:
                raise Unreadable(f"{text.name} does not make '{bare(value.name)}', which {unit.program.name} reads of it")
            self.define(value, env[output])

    def op(self, op: Op, file: str, opsets: Mapping[str, int], read: Callable[[str], int]) -> Iterable[int]:
        """The results of an op. ``file``: that has it; ``read``: the term of a name."""
        unit = self.unit
        structure, captured, inside = structure_of(op, opsets, read)
        operands = (*(read(name) if name else ABSENT for name in op.operands), *captured)
        known = version(op, opsets)
        key = op_key(op, known, operands, structure)
        if unknown := unknown_of(op, known, inside):
            key = (*key, "line", len(unit.lines))  # equal to nothing
        application = unit.terms.number(key)
        results = tuple(unit.terms.number(("result", application, place)) for place in range(len(op.results)))
        for value, term in zip(op.results, results, strict=True):
            unit.named.setdefault(term, value.name)
        unit.lines.append(Line(op, operands, results, file, known, unknown))
        return results


def _by_member(listed: Dense) -> tuple[Content, ...]:
    """The constants of members that a tensor lists along its first dimension."""
    count, *shape = (dim for dim in listed.type.shape or () if isinstance(dim, int))
    data = listed.data if isinstance(listed.data, bytes) else b""
    size = len(data) // max(1, count)
    pieces = (data[place * size : (place + 1) * size] for place in range(count))
    return tuple(content(listed.type.dtype, shape, piece) for piece in pieces)
