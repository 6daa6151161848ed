"""Running averages of replicas: each moves its own by its own microbatches, and once a step all go on from their mean.

That is no step of the unsplit model, which moves one average by all microbatches in turn. So it is checked by itself: in phase
U of a stage with R replicas, each resource that phase F assigns becomes its part of ``Split(all_reduce(Concat(..) * 1 / R))``,
where the all-reduce sums over the replicas. The ops that do so are then left out: the rest must be the step of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dnnc.build.training import Step
from dnnc.check.proof.training.units import is_replicated, mesh_of
from dnnc.onnx.weights import WeightFiles, read_resource
from ir.core.facets import FORWARD, UPDATE, phase_of
from ir.core.module import Inline, Mesh, Module, Program, Splat
from ir.core.ops import Op
from ir.ops.boxes import shape_of
from ir.ops.grads import ASSIGN


def without_averages(step: Step) -> tuple[Step, list[tuple[str, str]]]:
    """The step without the means over replicas of running averages, and what is wrong with these, each with its place."""
    module: Module = step.module
    faults: list[tuple[str, str]] = []
    rest, taken = _parted(module.entry.ops)
    if taken:
        module = module.replace(module.entry, replace(module.entry, ops=rest))
    for stage in step.stages:
        programs = [program for program in step.module.of_type(Program) if program.stage == stage.name]
        mesh = mesh_of(step, stage, programs)
        for program in programs if is_replicated(stage) else ():
            rest, taken = _parted(program.ops)
            moved = {op.operands[0] for op in program.ops if op.name == ASSIGN and phase_of(op.facets) == FORWARD}
            faults += [(program.name, fault) for fault in _Means(step, mesh, taken).faults(moved)]
            module = module.replace(program, replace(program, ops=rest)) if taken else module
    return (Step(module) if module is not step.module else step), faults


def _parted(ops: Sequence[Op]) -> tuple[tuple[Op, ...], list[Op]]:
    """The ops, and those of phase U among them that read, or assign, what phase F assigns."""
    moved = {op.operands[0] for op in ops if op.name == ASSIGN and phase_of(op.facets) == FORWARD}
    rest, taken = list[Op](), list[Op]()
    reached = set(moved)
    for op in ops:
        if phase_of(op.facets) == UPDATE and not reached.isdisjoint(op.operands):
            taken.append(op)
            reached.update(value.name for value in op.results if value.name)
        else:
            rest.append(op)
    return tuple(rest), taken


class _Means:
    """Matches the ops that set averages to their means."""

    def __init__(self, step: Step, mesh: Mesh, ops: Sequence[Op]) -> None:
        self.resources, self.mesh, self.ops = step.resources, mesh, ops
        self.left = {id(op) for op in ops}

    def faults(self, moved: set[str]) -> Iterator[str]:
        """Why not all resources in ``moved`` become their means, or something else happens to them."""
        done: list[str] = []
        for joined in [op for op in self.ops if op.name == "onnx.Concat"]:
            found = self.means(joined)
            if found is None:
                yield f"{joined.id} is not joined, summed over the replicas and divided by their number"
                return
            done += found
        if self.left or sorted(done) != sorted(moved):
            other = next((name for name in sorted(moved) if name not in done), "a running average")
            yield f"{other} does not become the mean over the replicas"

    def means(self, joined: Op) -> list[str] | None:
        """The resources that a Concat joins, if each is assigned the mean of its own part."""
        lengths = [self.length(name) for name in joined.operands]
        scaled = self.reader(joined.id, lambda op: op.name == "onnx.Mul" and self.is_share(op, joined.id))
        summed = self.reader(scaled.id, self.sums) if scaled is not None else None
        split = self.reader(summed.id, lambda op: self.cuts(op, lengths)) if summed is not None else None
        if scaled is None or summed is None or split is None or joined.get("axis") != 0 or None in lengths:
            return None
        for name, value in zip(joined.operands, split.results, strict=True):
            if self.reader(value.name, lambda op, name=name: op.name == ASSIGN and op.operands[0] == name) is None:  # type: ignore[misc]
                return None
        self.left -= {id(joined)}
        return list(joined.operands)

    def reader(self, name: str, fits: Callable[[Op], bool]) -> Op | None:
        """The one op that reads a value, if it fits."""
        readers = [op for op in self.ops if name in op.operands]
        if len(readers) != 1 or not fits(readers[0]):
            return None
        self.left -= {id(readers[0])}
        return readers[0]

    def length(self, name: str) -> int | None:
        shape = shape_of(self.resources[name].type) if name in self.resources else None
        return shape[0] if shape is not None and len(shape) == 1 else None

    def is_share(self, op: Op, name: str) -> bool:
        """Whether an op multiplies ``name`` by 1 / R."""
        others = [other for other in op.operands if other != name]
        share = self.elements(others[0]) if len(others) == 1 and len(op.operands) == 2 else None
        return share is not None and share.shape == () and bool(share == share.dtype.type(1 / len(self.mesh.devices)))

    def sums(self, op: Op) -> bool:
        where = (op.get("mesh"), op.get("axis"), op.get("reduction"))
        return op.name == "comm.all_reduce" and where == (self.mesh.name, self.mesh.axes[0][0], "sum")

    def cuts(self, op: Op, lengths: Sequence[int | None]) -> bool:
        """Whether an op splits a vector into parts of these lengths."""
        parts = self.elements(op.operands[1]) if len(op.operands) == 2 else None
        fits = op.name == "onnx.Split" and op.get("axis", 0) == 0 and len(op.results) == len(lengths)
        return fits and parts is not None and parts.tolist() == list(lengths)

    def elements(self, name: str) -> NDArray[Any] | None:
        """Of a resource that the text has."""
        resource = self.resources.get(name)
        if resource is None or not isinstance(resource.data, Inline | Splat):
            return None
        return read_resource(resource, WeightFiles(Path()))
