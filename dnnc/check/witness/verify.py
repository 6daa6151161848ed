"""The claims of ``plan.json`` and of the plan in ``plan.ir`` against what is counted again: every violation, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnnc.build.build import PLAN, PROGRAM
from dnnc.build.plan_json import plan_text, plan_to_json
from dnnc.check.witness.bound import proven
from dnnc.check.witness.facts import CLOSE, Facts, facts_of, stated_memory
from dnnc.check.witness.value import Counted, Stages
from ir.core.diagnostics import InvalidInput
from ir.core.facets import StageSet
from ir.core.limits import LIMITS
from ir.core.module import Schedule
from ir.core.outcomes import translated
from ir.system.files import read_input_text
from ir.text.json_text import parse_json
from ir.text.units import seconds_text
from ir.text.witness import CHOSEN, FORMS, KEY, MESH, MESHES, REPLICAS, TURNS, Witness, read_witness


@dataclass(slots=True)
class Proof:
    """What is known of one form of plans. Seconds: ``claimed`` by its record, ``proven`` by its prices, ``by_layouts`` by the
    price of memory, ``searched`` by a plain search, None where there was none; ``note``: why."""

    plans: str
    claimed: float
    proven: float
    searched: float | None = None
    by_layouts: float = 0.0
    note: str = ""

    @property
    def least(self) -> float:
        return max(self.proven, self.by_layouts, self.searched or 0.0)

    def text(self) -> str:
        """For a person."""
        note = f" ({self.note})" if self.note else ""
        if self.claimed == math.inf:
            return f"{self.plans}: the search found that none fits{note}"
        by = "the prices"
        if self.by_layouts >= self.proven > 0:
            by = "elimination over all layouts"
        if self.searched is not None and self.searched >= self.proven:
            by = "a plain search"
        rest = "" if self.part >= 1 - CLOSE else ", the rest rests on the search"
        return f"{self.plans}: none below {seconds_text(self.claimed)}, {_percent(self.part)} of it proven by {by}{rest}{note}"

    @property
    def part(self) -> float:
        """Of the claimed bound, the part that is proven here."""
        return 1.0 if self.claimed <= 0 else min(1.0, self.least / self.claimed) if self.claimed < math.inf else 0.0


@dataclass(slots=True)
class Verified:
    """``value``: counted again, None where it is not, for the reason ``uncounted``; ``claimed``, ``bound``, ``gap``: of the
    plan; ``proofs``: of each form of plans; ``rests``: how the search reached the bound; ``violations``: empty where all that
    is claimed holds."""

    claimed: float
    bound: float
    gap: float
    rests: str
    value: float | None = None
    uncounted: str = ""
    proofs: list[Proof] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def proven(self) -> float:
        """Seconds that no plan of any form is below, as far as it is proven here."""
        return min((proof.least for proof in self.proofs), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.violations,
            "value": self.value,
            "uncounted": self.uncounted,
            "claimed": {"value": _number(self.claimed), "bound": _number(self.bound), "gap": _number(self.gap)},
            "proven": _number(self.proven),
            "rests": self.rests,
            "proofs": [
                {
                    "plans": proof.plans,
                    "bound": _number(proof.claimed),
                    "proven": _number(max(proof.proven, proof.by_layouts)),
                    "searched": None if proof.searched is None else _number(proof.searched),
                    "note": proof.note,
                }
                for proof in self.proofs
            ],
            "violations": self.violations,
        }

    def text(self) -> str:
        """For a person: a line on the value, one for each form of plans, and what the rest rests on."""
        counted = "counted again" if self.value is not None else f"not counted again: {self.uncounted}"
        part = min(1.0, self.proven / self.bound) if self.bound > 0 else 1.0
        lines = [f"ok: value {seconds_text(self.claimed)}, {counted}", f"gap {self.gap:.2%} above the bound"]
        if self.proofs:
            lines.append(
                f"bound {seconds_text(self.bound)}, {_percent(part)} of it proven here: none below {seconds_text(self.proven)}"
            )
        else:
            lines.append(f"bound {seconds_text(self.bound)}, nothing of it proven here: the plan has no witness")
        lines += [f"  {proof.text()}" for proof in self.proofs]
        if part < 1 - CLOSE and self.rests:
            lines.append(f"  the search, in its own words: {self.rests}")
        return "\n".join(lines)


def verify_build(directory: Path, *, search: bool = False) -> Verified:
    """What the plan of a directory claims, against what is counted again; with ``search`` also by a plain search, where that is
    small. Raises InvalidInput for files that cannot be read."""
    from dnnc.onnx import DIALECTS
    from ir import load_module, read_text

    claims = parse_json(read_input_text(directory / PLAN, "a plan.json", LIMITS.document_bytes), str(directory / PLAN))
    module = load_module(read_text(directory / PROGRAM), str(directory / PROGRAM), dialects=DIALECTS)
    return verified(facts_of(module, str(directory / PROGRAM)), claims, where=str(directory / PLAN), search=search)


def verified(facts: Facts, claims: object, *, where: str = "plan.json", search: bool = False) -> Verified:
    """The same of a module and what its plan.json says. Raises InvalidInput where that is no plan."""
    from dnnc.check.faults import PlanMalformed

    if not isinstance(claims, dict) or not isinstance(claims.get("stages"), list):
        raise InvalidInput(PlanMalformed(), where=where)
    plan = facts.plan
    found = Verified(plan.value, plan.bound, plan.gap, dict(plan.certificate).get("bound", ""))
    found.violations += _divided(facts)
    if not found.violations:  # else there are no stages to count
        found.value, found.uncounted = _value(facts, found.violations)
    found.violations += _told(facts, claims)
    found.violations += _claims(facts, found.value)
    _bounds(facts, found, search)
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percent(part: float) -> str:
    return "100 %" if part >= 1 - CLOSE else f"{100 * part:.1f} %"


def same(one: float, other: float) -> bool:
    return one == other or (math.isfinite(one - other) and abs(one - other) <= CLOSE * max(abs(one), abs(other)))


def _divided(facts: Facts) -> Iterator[str]:
    """Where the stages of the ops are none of the plan, flow backward, or hold devices that are not there or too small."""
    plan, names = facts.plan, {device.name for device in facts.topology.devices}
    count = len(plan.stages)
    for op in facts.ops:
        stages = op.facet(StageSet, StageSet(())).stages
        if not stages or not all(0 <= index < count for index in stages):
            yield f"op {op.id} is in stage {', '.join(map(str, stages)) or 'none'}, of {count} stages"
    homes = [set(op.facet(StageSet, StageSet(())).stages) for op in facts.ops]
    for tensor in facts.tensors:
        for reader in tensor.readers:
            late = [index for index in homes[reader] if homes[tensor.maker] and index < min(homes[tensor.maker])]
            if late:
                yield f"{tensor.name} flows backward, from stage {min(homes[tensor.maker])} to stage {late[0]}"
    holder: dict[str, int] = {}
    stated = stated_memory(facts.module)
    for stage in plan.stages:
        if not facts.stages[stage.index] if stage.index < count else True:
            yield f"stage {stage.index} has no op"
        if not stage.devices or len(stage.devices) < max(1, stage.replicas):
            yield f"stage {stage.index} is on {len(stage.devices)} devices, expected {max(1, stage.replicas)}"
        for name in stage.devices:
            if name not in names:
                yield f"stage {stage.index} is on {name}, which is no device of the machines"
                continue
            other = holder.setdefault(name, stage.index)
            if other < count and plan.stages[other].devices != stage.devices:
                yield f"device {name} is of stage {other} and of stage {stage.index}"
            needed = sum(one.memory for one in plan.stages if one.devices == stage.devices) - facts.unheld(stage, name)
            limit = facts.topology.memory(facts.device(name)) if stated is None else stated
            if limit is None or not 0 <= limit < needed:  # -1: no limit
                continue
            needed -= sum(facts.spare(one) for one in plan.stages if one.devices == stage.devices and one.index < count)
            if limit < needed:
                yield f"device {name} needs {needed} bytes, and has {limit}"


def _told(facts: Facts, claims: Mapping[str, Any]) -> Iterator[str]:
    """Where plan.json says something else than what is written for plan.ir."""
    status = claims.get("status")
    told = {**claims, "status": translated(status) if isinstance(status, str) else status}
    if isinstance(sharding := claims.get("sharding"), dict):
        told["sharding"] = {"memory": sharding.get("memory", 0)}  # older plans say more, or leave it out
    yield from _differences(told, parse_json(plan_text(plan_to_json(facts.whole)), PLAN), "")


def _differences(told: Any, own: Any, path: str) -> Iterator[str]:
    """Where two documents differ: numbers by more than ``CLOSE``, anything else at all. ``path``: the keys that lead here."""
    if isinstance(told, dict) and isinstance(own, dict):
        for key in dict.fromkeys((*own, *told)):
            yield from _differences(told.get(key), own.get(key), f"{path}.{key}" if path else key)
    elif isinstance(told, list) and isinstance(own, list):
        if len(told) != len(own):
            yield f"plan.json: '{path}' has {len(told)} entries, in plan.ir {len(own)}"
        for number, (one, other) in enumerate(zip(told, own, strict=False)):
            for difference in _differences(one, other, f"{path}[{number}]"):
                yield difference
                if len(told) != len(own):
                    return  # what follows has moved
    elif not _equal(told, own):
        yield f"plan.json: '{path}' is {told!r}, in plan.ir {own!r}"


def _equal(told: Any, own: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (told, own))
    return same(float(told), float(own)) if numbers else type(told) is type(own) and told == own


def _records(facts: Facts) -> tuple[Witness, ...] | None:
    """The records of the plan; None for a text that is none."""
    try:
        return read_witness(dict(facts.plan.certificate).get(KEY, ""))
    except ValueError:
        return None


def _value(facts: Facts, violations: list[str]) -> tuple[float | None, str]:
    """The value counted again, or why it is not. Adds what the rows of the stages say that is otherwise."""
    plan, schedule = facts.plan, facts.whole.first(Schedule)
    shared = len({d for stage in plan.stages for d in stage.devices}) < sum(len(stage.devices) for stage in plan.stages)
    if plan.minimises.trains and not plan.in_steps:
        return None, "it is of a profile that trains as a stream"
    if plan.on_meshes:
        if plan.in_steps:
            return _step_on_mesh(facts, violations)
        from dnnc.check.witness.meshes import OnMeshes

        meshes = OnMeshes(facts)
        counted = meshes.counted()
        violations += _rows(facts, counted)
        return meshes.value(counted), ""
    stages = Stages(facts)
    counted = stages.counted()
    violations += _rows(facts, counted)
    if plan.in_steps and schedule is not None and (shared or schedule.kind != "1f1b" or not plan.flush):
        if not same(schedule.period, plan.value):
            violations.append(f"the value is {plan.value!r}, the rows of the schedule take {schedule.period!r}")
        return None, f"it is of the rows of the schedule {schedule.kind}"
    if plan.in_steps and shared:
        return None, "its stages share devices, and no rows say in which order they work"
    return stages.value(counted), ""


def _step_on_mesh(facts: Facts, violations: list[str]) -> tuple[float | None, str]:
    """The value of a training step on one mesh, with what is hidden beside its last backward pass as the plan says."""
    from dnnc.check.witness.meshes import microbatch_seconds

    plan, schedule = facts.plan, facts.whole.first(Schedule)
    plain = plan.flush and (schedule is None or schedule.kind == "1f1b")
    if len(plan.stages) > 1 or not plan.stages[0].mesh or not plain:
        return None, "it is of a training step in stages on meshes, or of the rows of a schedule"
    (stage,), microbatches = plan.stages, plan.microbatches
    seconds = microbatch_seconds(facts)
    if seconds is None:
        return None, "it is of a training step whose gradients are not all summed by all-reduce"
    told = stage.compute + stage.collectives + stage.hidden / microbatches
    if not same(told, seconds):
        violations.append(f"stage 0: compute, collectives and what is hidden are {told!r} s, counted {seconds!r} s")
    return microbatches * seconds - stage.hidden, ""


def _rows(facts: Facts, counted: Sequence[Counted]) -> Iterator[str]:
    """Where the row of a stage differs from what is counted."""
    for stage, own in zip(facts.plan.stages, counted, strict=True):
        pairs = (
            ("compute", stage.compute, own.compute),
            ("receive", stage.receive, own.receive),
            ("send", stage.send, own.send),
            ("collectives", stage.collectives, own.collectives),
        )
        for name, told, seconds in pairs:
            if not same(told, seconds) and abs(told - seconds) > CLOSE * (own.compute + own.receive + own.send):
                yield f"stage {stage.index}: {name} is {told!r} s, counted {seconds!r} s"
        if stage.steps and not all(map(same, stage.steps, own.steps)):
            yield f"stage {stage.index}: steps are {list(stage.steps)!r} s, counted {list(own.steps)!r} s"
        sizes = (("weights", stage.weights, own.weights), ("buffers", stage.buffers, own.buffers))
        for name, stated, size in (*sizes, ("workspace", stage.workspace, own.workspace)):
            if size is not None and stated != size:
                yield f"stage {stage.index}: {name} are {stated} bytes, counted {size}"


def _claims(facts: Facts, value: float | None) -> Iterator[str]:
    """Contradictions among value, bound, gap and status."""
    plan = facts.plan
    if value is not None and not same(value, plan.value):
        yield f"the value is {plan.value!r} s, counted {value!r} s"
    if plan.bound > plan.value * (1 + CLOSE):
        yield f"the bound {plan.bound!r} is above the value {plan.value!r}"
    if plan.status == "optimal" and plan.value > plan.bound * (1 + CLOSE):
        yield f"the status is optimal, but the bound {plan.bound!r} is below the value {plan.value!r}"
    if plan.status in ("infeasible", "undecided"):
        yield f"the status is {plan.status}, but there is a plan"


def _bounds(facts: Facts, found: Verified, search: bool) -> None:
    """What is proven of the bound of each form of plans, and where the records contradict each other."""
    plan, records = facts.plan, _records(facts)
    if records is None:
        found.violations.append("the witness is no text of a witness")
        return
    if not records:
        return
    of_plan = {MESH, MESHES} if plan.on_meshes else {*FORMS}
    if any(stage.replicas > 1 for stage in plan.stages):
        of_plan &= {REPLICAS} if plan.minimises.trains else {REPLICAS, TURNS, MESHES}
    if any(stage.serves for stage in plan.stages) and not plan.minimises.decodes:
        of_plan &= {TURNS}
    if not of_plan & {record.plans for record in records}:
        found.violations.append(f"the plan is on {' and '.join(sorted(of_plan))}, of which the witness has no record")
    least = min(record.bound for record in records)
    if not same(least, plan.bound):
        found.violations.append(f"the bound is {plan.bound!r}, the least of the witness {least!r}")
    names = {type_.name for type_ in facts.types}
    for record in records:
        for name, _ in record.prices:
            if name not in names:
                found.violations.append(f"the witness has a price of {name}, which is no type of the devices")
        proof = Proof(record.plans, record.bound, proven(facts, record))
        if plan.minimises.decodes and CHOSEN in dict(plan.certificate):
            proof.note = "for the batch and groups of the plan; that no others have more tokens was not verified here"
            if record.plans == MESHES:
                proof.note = "for the batch and groups of the plan alone"
        if record.plans == MESH:
            if len(plan.stages) != 1 or not (plan.stages[0].mesh or len(plan.stages[0].devices) == 1):
                found.violations.append("the witness is of one mesh, and the plan is not on one")
                continue
            from dnnc.check.witness.meshes import proven_on

            proof.by_layouts = proven_on(facts, record.memory)
        if record.plans in of_plan and proof.proven > plan.value * (1 + CLOSE):
            found.violations.append(f"the prices prove {proof.proven!r} s, above the value {plan.value!r}")
        if search:
            from dnnc.check.witness.exhaustive import searched

            proof.searched, why = searched(facts, record)
            proof.note = "; ".join(filter(None, (proof.note, why)))
            if proof.searched is not None and record.bound < math.inf and record.bound > proof.searched * (1 + CLOSE):
                found.violations.append(
                    f"no plan on {record.plans} is claimed below {record.bound!r} s; a plain search finds {proof.searched!r} s"
                )
        found.proofs.append(proof)
