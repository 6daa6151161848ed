"""Reads and checks a plan that a person may have edited: ``plan.json`` (its schema: ``dnnc.build.plan_json``) or ``plan.ir``.

``replay_from_json`` gives the pass that replays on a model what ``read_plan`` read. A wrong entry is an InvalidInput that names
the file and the entry (``stages[0].mesh.axes``).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dnnc.build.faults import (
    FORM,
    EmptyName,
    LayoutsContradictStrategies,
    MeshWithoutSharding,
    MissingAxis,
    ModuleWithoutPlan,
    NoStage,
    ShardedPlanNeedsSum,
    StageIndexTwice,
    StagesNotNumbered,
    StageWithoutOps,
    TurnsBesideSharding,
    UnknownAxis,
    UnknownEntry,
    WrongAxisSize,
    WrongEntry,
    WrongPlanSchema,
    WrongShareCount,
    ZeroShare,
)
from dnnc.build.plan_json import SCHEMA, plan_to_json
from ir.core.diagnostics import Fault, InvalidInput
from ir.core.facets import SEPARATOR
from ir.core.limits import LIMITS
from ir.core.module import Plan, Program, Schedule, Stage
from ir.core.objectives import OBJECTIVES, THROUGHPUT, names
from ir.core.ranges import MOST_MEMORY, MOST_MICROBATCHES, is_seconds
from ir.system.files import read_input_text
from ir.text.json_text import parse_json
from ir.text.witness import OF_BOUND
from passes.costs.learning import RECOMPUTE, RECOMPUTES
from passes.graph.graph import is_sharded
from passes.meshes.decided import odd_reshard
from passes.meshes.notation import read_placements, read_sync
from passes.meshes.undecided import undifferentiated
from passes.partition.replay.assign import AssignPass
from passes.timeline.families import FAMILIES

if TYPE_CHECKING:
    from passes.partition.replay.meshes import ReplayPass

MOST_MEMBERS = 1 << 16
"""Of a mesh along one axis."""
STAGE = frozenset(
    {"index", "device", "device_type", "serves", "seconds", "memory", "ops", "mesh", "weights", "outputs", "sync"}
)
"""What a stage says (``dnnc.build.plan_json``); another entry is a misspelt one, whose edit would be lost."""
PLAN = frozenset(
    {"schema", "objective", "comm", "sharding", "stages", "decoding", "certificate", "bound", "value"}
    | {"microbatches", "flush", "recompute", "schedule"}
)
"""What of a plan is read."""
ALIKE = 0.75
"""From which similarity on (``difflib``) another entry is a misspelt one of these."""
READ = (SCHEMA, "dnnc.plan/1")
"""Schemas that can be read."""


def read_plan(path: str | Path) -> tuple[Any, str]:
    """What a plan.json says, or would say of a plan.ir, and the schedule of a plan.ir as text, empty where it has none. Raises
    InvalidInput: not a file, not JSON (or IR text), not a plan."""
    if Path(path).suffix == ".ir":
        return _stated_in_text(Path(path))
    text = read_input_text(path, "a plan.json or plan.ir", LIMITS.document_bytes)
    return parse_json(text, str(path), hint="check the commas of the lists that were edited"), ""


def sizes_of(data: Any, where: str) -> dict[str, int]:
    """``context``, ``batch`` and ``groups`` of the decoder that a plan is of; empty for another model. Raises InvalidInput for
    a wrong entry."""
    reader = _Reader(where)
    told = reader.mapping(reader.mapping(data, "plan").get("decoding", {}), "decoding")
    found = {name: reader.integer(told, name, "decoding", 0) for name in ("context", "batch", "groups")}
    return {name: size for name, size in found.items() if size} if found["context"] else {}


def recomputation_of(data: Any, where: str) -> str:
    """What runs again in place of being kept for the backward pass: ``none``, ``stage``, or empty where nothing is said. Raises
    InvalidInput for a wrong entry."""
    reader = _Reader(where)
    told = reader.text(reader.mapping(data, "plan"), RECOMPUTE, "", "")
    if told not in ("", *RECOMPUTES):
        reader.fail(WrongEntry(" or ".join(f"'{one}'" for one in RECOMPUTES), f"'{_shown(told)}'"), RECOMPUTE)
    return told


def schedule_of(data: Any, where: str) -> str:
    """The order of work of a training step, empty where nothing is said. Raises InvalidInput for a wrong entry."""
    reader = _Reader(where)
    told = reader.text(reader.mapping(data, "plan"), "schedule", "", "")
    if told not in ("", *FAMILIES):
        reader.fail(WrongEntry(f"one of {', '.join(FAMILIES)}", f"'{_shown(told)}'"), "schedule")
    return told


def _stated_in_text(path: Path) -> tuple[dict[str, Any], str]:
    """What plan.json would say of the module in a plan.ir, its stages, devices and layouts, and its schedule; the programs of
    its stages are made again. Raises InvalidInput, also where its layouts are not those that its strategies, kept weights and
    outputs lead to: an edit of one must not be lost."""
    from dnnc.onnx import DIALECTS
    from ir import load_module, print_symbol, read_text
    from passes.graph.folding import expand

    unexpanded = load_module(read_text(path), str(path), dialects=DIALECTS)
    module = expand(unexpanded.without(Stage, Program))  # stages follow from what is stated
    if module.first(Plan) is None:
        raise InvalidInput(ModuleWithoutPlan(), where=str(path))
    module = undifferentiated(module)
    if is_sharded(module) and (odd := odd_reshard(module)):
        raise InvalidInput(LayoutsContradictStrategies(odd), where=str(path))
    schedule = module.first(Schedule)
    return plan_to_json(module), print_symbol(schedule) if schedule is not None else ""


def replay_from_json(data: Any, where: str = "plan.json") -> AssignPass | ReplayPass:
    """The pass that gives a model the stages and devices of a plan, and of one that splits tensors the strategies. Raises
    InvalidInput with the path of the wrong entry."""
    reader = _Reader(where)
    root = reader.schema(data)
    for key in root:  # others are computed again, or of another version
        if key not in PLAN and (close := difflib.get_close_matches(key[:80], sorted(PLAN), 1, ALIKE)):
            reader.fail(UnknownEntry("a plan", _shown(key), close[0]), "")
    splits = "sharding" in root
    options = _PassOptions()
    seen = set()
    for position, entry in enumerate(reader.items(root, "stages", "")):
        at = f"stages[{position}]"
        item = reader.mapping(entry, at)
        for key in item:
            if key not in STAGE:
                close = difflib.get_close_matches(key[:80], sorted(STAGE), 1)
                reader.fail(UnknownEntry("a stage", _shown(key), close[0] if close else ""), at)
        index = reader.integer(item, "index", at, position)
        if index in seen:
            reader.fail(StageIndexTwice(index), at)
        seen.add(index)
        if "mesh" in item and not splits:
            reader.fail(MeshWithoutSharding(), f"{at}.mesh")
        if "serves" in item and splits:
            reader.fail(TurnsBesideSharding(), f"{at}.serves")
        options.devices += [f"{index}:{name}" for name in reader.devices(item, at)]
        if not item.get("ops"):
            reader.items({"ops": [], **item}, "ops", at, mapping="mesh" in item)
            reader.fail(StageWithoutOps(), f"{at}.ops")
        if "mesh" in item:
            _read_mesh_stage(reader, item, index, at, options)
        else:
            for number, name in enumerate(reader.items(item, "ops", at)):
                if not isinstance(name, str) or not name:
                    reader.fail(WrongEntry("the name of an op", _shown(name)), f"{at}.ops[{number}]")
                options.ops.append(f"{index}:{name}")
                options.strategies.append("")
    if not seen:
        reader.fail(NoStage(), "stages")
    if seen != set(range(len(seen))):
        reader.fail(StagesNotNumbered(_shown(sorted(seen)), len(seen) - 1), "stages")
    certificate = reader.mapping(root.get("certificate", {}), "certificate")
    bound, value = reader.seconds(root, "bound", ""), reader.seconds({"value": 0.0, **root}, "value", "")
    problem = reader.text(certificate, "problem", "certificate", "") if math.isfinite(bound) else ""
    texts = {key: reader.text(certificate, key, "certificate", "") for key in sorted(certificate)} if problem else {}
    objective, comm = reader.objective(root), reader.text(root, "comm", "", "sum")
    if not splits:
        return AssignPass(
            ops=tuple(options.ops),
            devices=tuple(options.devices),
            objective=objective,
            comm=comm,
            bound=bound if problem else 0.0,
            proof=reader.text(certificate, "bound", "certificate", "stated by the plan") if problem else "",
            problem=problem,
            certificate=tuple(f"{key}={texts[key]}" for key in OF_BOUND if key in texts),
            microbatches=reader.microbatches(root) if "microbatches" in root else 0,
            flush=reader.flag({"flush": True, **root}, "flush", ""),
            serves=_read_serving(reader, root),
            source=where,
        )
    from passes.partition.replay.meshes import ReplayPass

    if comm != "sum":
        reader.fail(ShardedPlanNeedsSum(_shown(comm)), "comm")
    sharding = reader.mapping(root["sharding"], "sharding")
    return ReplayPass(
        ops=tuple(options.ops),
        devices=tuple(options.devices),
        objective=objective,
        bound=bound if problem else 0.0,
        source=where,
        strategies=tuple(options.strategies),
        axes=tuple(options.axes),
        weights=tuple(options.weights),
        outputs=tuple(options.outputs),
        syncs=tuple(options.syncs),
        memory=reader.limit(sharding, "memory", "sharding"),
        microbatches=reader.microbatches(root),
        value=value if math.isfinite(value) else 0.0,
        certificate=tuple(f"{key}={text}" for key, text in texts.items()),
    )


def _read_serving(reader: _Reader, root: Mapping[str, Any]) -> tuple[str, ...]:
    """Of each stage that says it, the replica that has each turn, or of a decoder the one that serves each group."""
    decoding = reader.mapping(root.get("decoding", {}), "decoding")
    serving, at = reader.mapping(decoding.get("serving", {}), "decoding.serving"), "decoding.serving"
    rows = [(stage, at, stage, reader.items(serving, stage, at)) for stage in serving]
    for position, stage in enumerate(reader.items(root, "stages", "")):
        if "serves" in stage:
            at = f"stages[{position}]"
            rows.append((str(stage.get("index", position)), at, "serves", reader.items(stage, "serves", at)))
            if not stage["serves"]:
                reader.fail(WrongEntry("a replica for each turn", "none"), f"{at}.serves")
    return tuple(
        f"{stage}:{','.join(str(reader.integer({key: replica}, key, at)) for replica in row)}" for stage, at, key, row in rows
    )


@dataclass(slots=True)
class _PassOptions:
    """What the stages state, in the notation of the options of the passes: ``INDEX:VALUE``."""

    ops: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    syncs: list[str] = field(default_factory=list)


def _read_mesh_stage(reader: _Reader, item: Mapping[str, Any], index: int, at: str, options: _PassOptions) -> None:
    """Axes, ops with their strategies, weights and outputs of a stage on a mesh."""
    mesh = reader.mapping(item["mesh"], f"{at}.mesh")
    sizes = reader.mapping(mesh.get("axes"), f"{at}.mesh.axes")
    shares = reader.mapping(mesh.get("shares", {}), f"{at}.mesh.shares")
    for axis in shares:
        if axis not in sizes:
            reader.fail(UnknownAxis(_shown(axis), tuple(sizes)), f"{at}.mesh.shares")
    for axis in sizes:
        size = reader.integer(sizes, axis, f"{at}.mesh.axes", least=1)
        if size > MOST_MEMBERS:
            reader.fail(WrongAxisSize(_shown(axis), size, MOST_MEMBERS), f"{at}.mesh.axes")
        along = reader.items(shares, axis, f"{at}.mesh.shares") if shares else [size]
        numbers = [reader.integer({axis: share}, axis, f"{at}.mesh.shares") for share in along]
        if shares and len(numbers) != size:
            reader.fail(WrongShareCount(_shown(axis), len(numbers), size), f"{at}.mesh.shares")
        if shares and 0 in numbers:
            reader.fail(ZeroShare(_shown(axis)), f"{at}.mesh.shares")
        options.axes.append(f"{index}:{','.join(map(str, numbers))}:{axis}")

    def by_axis(key: str, name: str, row: Any) -> list[str]:
        """A text per axis, in their order."""
        here = f"{at}.{key}.{_shown(name)}"
        texts = reader.mapping(row, here)
        if not name:
            reader.fail(EmptyName(), f"{at}.{key}")
        for axis in texts:
            if axis not in sizes:
                reader.fail(UnknownAxis(_shown(axis), tuple(sizes)), here)
        for axis in sizes:
            if axis not in texts:
                reader.fail(MissingAxis(_shown(axis)), here)
        return [reader.text(texts, axis, here, "") for axis in sizes]

    for name, row in reader.mapping(item.get("ops"), f"{at}.ops").items():
        options.ops.append(f"{index}:{name}")
        options.strategies.append(SEPARATOR.join(by_axis("ops", name, row)))
    for key, layouts in (("weights", options.weights), ("outputs", options.outputs)):
        for name, row in reader.mapping(item.get(key, {}), f"{at}.{key}").items():
            text = ", ".join(by_axis(key, name, row))
            try:
                read_placements(text)
            except InvalidInput as error:
                reader.refuse(error, f"{at}.{key}.{_shown(name)}")
            layouts.append(f"{index}:{text}:{name}")
    methods = reader.mapping(item.get("sync", {}), f"{at}.sync")
    for name in methods:
        text = reader.text(methods, name, f"{at}.sync", "")
        if not name:
            reader.fail(EmptyName(), f"{at}.sync")
        try:
            read_sync(text)
        except InvalidInput as error:
            reader.refuse(error, f"{at}.sync.{_shown(name)}")
        options.syncs.append(f"{index}:{text}:{name}")


class _Reader:
    """Reads checked values out of decoded JSON; a wrong one is an InvalidInput naming file and entry."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, fault: Fault, at: str) -> NoReturn:
        raise InvalidInput(fault, where=f"{self.where}: {at}" if at else self.where)

    def refuse(self, error: InvalidInput, at: str) -> NoReturn:
        """Raises what is wrong with the text of an entry, at that entry."""
        first = error.diagnostics[0]
        raise InvalidInput(replace(first, where=f"{self.where}: {at}", hint=first.hint or FORM)) from None

    def schema(self, data: Any) -> Mapping[str, Any]:
        root = self.mapping(data, "")
        if root.get("schema") not in READ:
            self.fail(WrongPlanSchema(_quoted(root.get("schema")), SCHEMA), "")
        return root

    def mapping(self, value: Any, at: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(WrongEntry("an object", type(value).__name__), at)
        return value

    def items(self, parent: Mapping[str, Any], key: str, at: str, *, mapping: bool = False) -> list[Any]:
        """A list, or with ``mapping`` the keys of an object."""
        value = parent.get(key)
        if not isinstance(value, dict if mapping else list):
            expected = f"the {'object' if mapping else 'list'} '{key}'"
            self.fail(WrongEntry(expected, "nothing" if value is None else type(value).__name__), at)
        return list(value)

    def flag(self, parent: Mapping[str, Any], key: str, at: str) -> bool:
        value = parent.get(key, False)
        if not isinstance(value, bool):
            self.fail(WrongEntry(f"'{key}' as true or false", _shown(value)), at)
        return value

    def integer(self, parent: Mapping[str, Any], key: str, at: str, default: int | None = None, least: int = 0) -> int:
        value = parent.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST_MEMORY:
            self.fail(WrongEntry(f"'{key}' as a whole number from {least}", _quoted(value)), at)
        return value

    def objective(self, root: Mapping[str, Any]) -> str:
        name = self.text(root, "objective", "", THROUGHPUT.name)
        if name not in (objective.name for objective in OBJECTIVES):
            self.fail(WrongEntry(names(OBJECTIVES), f"'{_shown(name)}'"), "objective")
        return name

    def microbatches(self, parent: Mapping[str, Any]) -> int:
        """Microbatches of a training step, 0 of a stream; 1 where nothing is said."""
        value = self.integer(parent, "microbatches", "", 1)
        if not 0 <= value <= MOST_MICROBATCHES:
            self.fail(WrongEntry(f"'microbatches' from 0 to {MOST_MICROBATCHES}", str(value)), "microbatches")
        return value

    def limit(self, parent: Mapping[str, Any], key: str, at: str) -> int:
        """Bytes; -1: no limit, 0: the one that there is anyway."""
        return -1 if parent.get(key) == -1 else self.integer(parent, key, at, 0)

    def seconds(self, parent: Mapping[str, Any], key: str, at: str) -> float:
        value = parent.get(key)
        if value is None:
            return math.inf
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_seconds(value):
            self.fail(WrongEntry(f"'{key}' in seconds", _shown(value)), at)
        return float(value)

    def text(self, parent: Mapping[str, Any], key: str, at: str, default: str) -> str:
        value = parent.get(key, default)
        if not isinstance(value, str):
            self.fail(WrongEntry(f"'{key}' as text", _quoted(value)), at)
        return str(value)

    def devices(self, parent: Mapping[str, Any], at: str) -> tuple[str, ...]:
        value = parent.get("device", [])
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            self.fail(WrongEntry("'device' as a name or a list of names", _quoted(value)), at)
        return tuple(names)


def _quoted(value: object) -> str:
    return _shown(repr(value))


def _shown(value: object) -> str:
    """A value for a message: not longer than a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
