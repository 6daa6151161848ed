"""What passes that replay plans read alike: the ops and devices of each stage, as a plan names them, and its faults."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.core.module import Func
from ir.core.objectives import THROUGHPUT, Planned, names, objective_of, offered
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.ops.grads import written_resources
from passes.framework.base import Pass
from passes.graph.faults import AmbiguousOp, NotAChoice, UnknownDevice, UnknownOp
from passes.graph.graph import describe, listing, reads
from passes.partition.replay.faults import (
    AveragesParted,
    LossMissing,
    MoreFaults,
    OpLeftOut,
    OpTwice,
    OtherModel,
    StageColonName,
)

SHOWN = 5
"""How many faults of one kind are listed; the rest are counted."""


@dataclass(frozen=True)
class StatedPass(Pass):
    """What passes that replay plans have in common.

    ``ops``: ``STAGE:OP``, an op named by its first result (with or without ``%``) or by its node name where that is unique;
    several entries replicate it. ``devices``: ``STAGE:DEVICE``. ``bound``: what the plan states. For messages: ``source``, the
    file that all came from, and ``made_for``, the model that the plan was made for, where that is known.
    """

    ops: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    objective: str = THROUGHPUT.name
    bound: float = 0.0
    source: str = ""
    made_for: str = ""

    @property
    def training(self) -> bool:
        """Whether the plan is of training. Raises UsageError for an objective that is none."""
        return objective_of(self.objective, self.source).trains

    def _check_objective(self, planned: Planned) -> None:
        """Raises InvalidInput for an objective that plans of ``planned`` do not have."""
        known = offered(planned)
        if self.objective not in (objective.name for objective in known):
            raise InvalidInput(NotAChoice("objective", self.objective, names(known)), where=self.source)

    def _stages(self, entry: Func, problems: list[Diagnostic]) -> Mapping[str, tuple[int, ...]]:
        """Stages of each op, by the op's id. Raises InvalidInput for a plan of another model."""
        found: dict[str, set[int]] = {op.id: set() for op in entry.ops}
        listed, unknown = self._listed(entry)
        for index, name, op in listed:
            if index in found[op.id]:
                problems.append(OpTwice(name).at(self._where(index)))
            found[op.id].add(index)
        problems += shortened(unknown, "more ops are not known")
        missing = [OpLeftOut(op.id[1:]).at(f"{self.source or 'plan'}: {describe(op)}") for op in entry.ops if not found[op.id]]
        problems += shortened(missing, "more ops are in no stage")
        stages = {name: tuple(sorted(indices)) for name, indices in found.items()}
        problems += shortened([*self._parted(entry, stages)], "more ops read running averages of other stages")
        return stages

    def _parted(self, entry: Func, stages: Mapping[str, tuple[int, ...]]) -> Iterator[Diagnostic]:
        """Ops that read a running average which training moves, in other stages than the first op that reads it."""
        written = written_resources(entry.ops)
        first: dict[str, Op] = {}
        for op in entry.ops:
            own = stages[op.id]
            for name in sorted(written.intersection(reads(op)) if own else ()):
                other = first.setdefault(name, op)
                if stages[other.id] != own:
                    homes = listing(map(str, stages[other.id]))
                    yield AveragesParted(op.id[1:], name[1:], other.id[1:], homes).at(self._where(own[0]))
                    break

    def _listed(self, entry: Func) -> tuple[list[tuple[int, str, Op]], list[Diagnostic]]:
        """Stage, name and op of each entry of ``ops`` whose name is that of one op, and the faults of the others. Raises
        InvalidInput for a plan of another model, or of this one with a loss that it has not been given."""
        by_id = {op.id: op for op in entry.ops}
        by_node: dict[str, list[Op]] = {}
        for op in entry.ops:
            if op.location.node:
                by_node.setdefault(op.location.node, []).append(op)
        listed = []
        unknown: list[Diagnostic] = []
        names, absent = set(), set()
        for text in self.ops:
            index, name = self._split(text)
            names.add(name)
            matches = [by_id[name]] if name in by_id else [by_id[f"%{name}"]] if f"%{name}" in by_id else by_node.get(name, [])
            if len(matches) == 1:
                listed.append((index, name, matches[0]))
                continue
            absent |= set() if matches else {name}
            near = (
                difflib.get_close_matches(f"%{name.removeprefix('%')}", by_id, n=1, cutoff=0.6) if len(unknown) < SHOWN else []
            )
            hint = f"did you mean '{near[0][1:]}'?" if near else "ops are named by their first result after canonicalize"
            fault = AmbiguousOp(name, hint, len(matches)) if matches else UnknownOp(name, hint)
            unknown.append(fault.at(self._where(index)))
        loss = {name for name in absent if self.training and name.removeprefix("%").partition(".")[0] == "loss"}
        self._check_model("ops", names - loss, absent - loss)
        if loss:
            raise InvalidInput(LossMissing(), where=self.source)
        return listed, unknown

    def _check_model(self, kind: str, names: Collection[str], absent: Collection[str]) -> None:
        """Raises InvalidInput where the model lacks most of the ops or weights that the plan names, and more than ``SHOWN``:
        each further fault would only say again that the plan is of another model."""
        there = len(names) - len(absent)
        if len(absent) <= max(SHOWN, there):
            return
        known = f"it was made for {self.made_for}: compile that" if self.made_for else "compile the model that it was made for"
        raise InvalidInput(OtherModel(len(names), kind, there, known), where=self.source or "plan")

    def _split(self, text: str) -> tuple[int, str]:
        index, colon, name = text.partition(":")
        if not (colon and name and index.isascii() and index.isdigit()):
            raise UsageError(StageColonName(text), where=self.name)
        return int(index), name

    def _unknown_device(self, index: int, name: str, topology: Topology) -> Diagnostic:
        """The fault of a device of a stage that the topology does not have."""
        known = [device.name for device in topology.devices]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"{topology.name} has {listing(known)}"
        return UnknownDevice(name, hint).at(self._where(index))

    def _where(self, index: int) -> str:
        return f"{self.source}: stage {index}" if self.source else f"stage {index}"


def shortened(problems: list[Diagnostic], rest: str) -> list[Diagnostic]:
    """The first few of problems of one kind, the others counted."""
    if len(problems) <= SHOWN:
        return problems
    return [*problems[:SHOWN], MoreFaults(len(problems) - SHOWN, rest).at(problems[SHOWN].where)]
