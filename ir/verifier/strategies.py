"""INV21: in a stage on a mesh, an op reads its operands in the layouts that its strategy wants, and makes results in those that
it gives. An op without a strategy runs whole on every member, and so does what a region reads from around it; a call or
``dnnc.take`` stands for ops that say theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ir.core.facets import SEPARATOR, WHOLE, ShardRule
from ir.core.module import Mesh, Resource, Stage
from ir.core.ops import Op, Value, all_reads
from ir.core.types import Replicate, Type, without_layout
from ir.ops.boxes import Placements, placements_of
from ir.ops.opdefs import module_opsets
from ir.verifier.findings import Findings

if TYPE_CHECKING:
    from ir.layout_rules import LayoutRule, Strategy, Surroundings


def check_strategies(findings: Findings) -> None:
    """Every stage that is on a mesh of the module."""
    for stage in findings.stages:
        mesh = findings.meshes.get(stage.mesh) if stage.mesh else None
        if mesh is not None and mesh.axes:
            for op, fault in _Stage(findings, stage, mesh).faults():
                findings.add("INV21", f"in {stage.name}: {fault}", stage, op, about=op.id)


class _Stage:
    """Checks the ops of one stage in order; ``around`` has types without layouts, ``types`` those with."""

    def __init__(self, findings: Findings, stage: Stage, mesh: Mesh) -> None:
        from ir.layout_rules import Surroundings

        self.stage, self.mesh = stage, mesh
        resources = list(findings.module.of_type(Resource))
        self.around: Surroundings = Surroundings(resources, module_opsets(findings.module))
        self.types: dict[str, Type] = {resource.name: resource.type for resource in resources}
        self.types.update((arg.name, arg.type) for arg in stage.args)
        self.around.types.update((name, without_layout(type_)) for name, type_ in self.types.items())
        self.known: dict[tuple[int, int], tuple[LayoutRule, Mapping[str, Strategy]]] = {}

    def faults(self) -> Iterator[tuple[Op, str]]:
        for op in self.stage.ops:
            plain = replace(op, results=tuple([Value(value.name, without_layout(value.type)) for value in op.results]))
            facet = op.facet(ShardRule)
            names = facet.rule.split(SEPARATOR) if facet else [WHOLE] * len(self.mesh.axes)
            if len(names) == len(self.mesh.axes) and (facet or op.dialect not in ("comm", "dnnc")):
                for fault in self.of_op(op, names, self.around.rule(plain) if set(names) != {WHOLE} else None):
                    yield op, fault
            self.around.see(plain)
            if op.dialect == "comm" and op.operands and op.results and op.operands[0] in self.around.numbers:
                self.around.numbers[op.results[0].name] = self.around.numbers[op.operands[0]]
            self.types.update((value.name, value.type) for value in op.results)

    def of_op(self, op: Op, names: list[str], rule: LayoutRule | None) -> Iterator[str]:
        """What is wrong with an op that has these strategies, one for each axis."""
        strategies = []
        for name, (axis, size) in zip(names, self.mesh.axes, strict=True):
            if set(names) == {WHOLE}:
                continue
            options = self.options(rule, size)
            if name not in options:
                known = ", ".join(f"'{option}'" for option in options or (WHOLE,))
                yield f"{op.id} has no strategy '{name}' on axis {axis} of {size}; it has {known}"
                return
            strategies.append(options[name])
        whole: Placements = (Replicate(),) * len(self.mesh.axes)
        said = f"'{SEPARATOR.join(names)}'" if op.facet(ShardRule) else "an op without a strategy"
        for number, name in enumerate(op.operands):
            wanted = tuple([s.operands[number] for s in strategies]) or whole
            if name in self.types and (lies := placements_of(self.types[name], self.mesh)) != wanted:
                yield f"{op.id} reads {name} as [{_text(lies)}], but {said} wants it as [{_text(wanted)}]"
        for name in dict.fromkeys(all_reads(op)) if op.regions else ():
            if name not in op.operands and name in self.types and (lies := placements_of(self.types[name], self.mesh)) != whole:
                yield f"a region of {op.id} reads {name} as [{_text(lies)}], but regions run whole"
        for number, value in enumerate(op.results):
            made = tuple([s.results[number] for s in strategies]) or whole
            if value.name and (lies := placements_of(value.type, self.mesh)) != made:
                yield f"{value.name} lies as [{_text(lies)}], but {said} makes it as [{_text(made)}]"

    def options(self, rule: LayoutRule | None, size: int) -> Mapping[str, Strategy]:
        """The strategies of a rule by name; equal ops share a rule, so they are made once."""
        if rule is None:
            return {}
        entry = self.known.get((id(rule), size))
        if entry is None:
            entry = self.known[id(rule), size] = rule, {strategy.name: strategy for strategy in rule.strategies(size)}
        return entry[1]


def _text(placements: Placements) -> str:
    return ", ".join(map(str, placements))
