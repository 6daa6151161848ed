"""The one list of every pass and every named pipeline.

A pass is named by ``module:Class`` and imported only when it is asked for, so that listing names and starting the command stay
fast. To add a pass, see ``passes/README.md``.

Invariants: the key is the pass's ``name``; a pipeline's text parses with the passes listed here.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_type_hints

from passes.framework.base import Pass
from passes.framework.options import default_of, option_name, type_text, value_text
from passes.framework.properties import Property


@dataclass(frozen=True, slots=True)
class Listed:
    """Where a pass is, as ``module:Class``, and what its place in a pipeline depends on: properties that it ``needs``, those
    that every module has after it, and those that a module may have lost after it. Others stay as they were."""

    where: str
    needs: tuple[Property, ...] = ()
    establishes: tuple[Property, ...] = ()
    destroys: tuple[Property, ...] = ()


_TRAINS = (Property.TRAINABLE,)
_PROGRAMS = (Property.SCHEDULED, Property.LOWERED, Property.LOCALIZED)
_WHOLE = (Property.SHARDED, *_PROGRAMS)
_SEARCHED = (Property.TOPOLOGY, Property.COSTED)
_STAGED = (Property.STAGED, Property.PLANNED)
_SHARDED = (*_STAGED, Property.PLACED, Property.SHARDED)

PLANNERS = ("partition", "reference")
"""The passes that search a plan; the second by problems of the literature."""

BOUND = "bound of "
"""What the names of statistics begin with that are the bounds of all plans of a form (``ir.text.witness``)."""
NO_MESH, ANY_FORM, ANY_MESH = "none", "any", "auto"
"""What ``mesh`` of ``partition`` may be beside a shape: single devices and replicas, any stages, or stages on meshes."""

LISTED: dict[str, Listed] = {
    "training": Listed("passes.training:TrainingPass", (), _TRAINS),
    "canonicalize": Listed("passes.prepare.canonicalize:CanonicalizePass"),
    "autocast": Listed("passes.prepare.autocast:AutocastPass", destroys=(Property.COSTED,)),
    "unfuse": Listed("passes.prepare.canonicalize.unfuse:UnfusePass", destroys=(Property.COSTED,)),
    "states": Listed("passes.prepare.states:StatesPass", destroys=(Property.COSTED,)),
    "cost": Listed("passes.prepare.cost:CostPass", (), (Property.COSTED,)),
    "fold": Listed("passes.prepare.fold:FoldPass"),
    "expand": Listed("passes.prepare.fold:ExpandPass"),
    "partition": Listed("passes.partition.partition_pass:PartitionPass", _SEARCHED, _STAGED, _WHOLE),
    "reference": Listed("passes.reference.reference_pass:ReferencePass", _SEARCHED, _STAGED, _WHOLE),
    "assign": Listed("passes.partition.replay.assign:AssignPass", _SEARCHED[:1], _STAGED, _WHOLE),
    "replay": Listed("passes.partition.replay.meshes:ReplayPass", _SEARCHED, _SHARDED, _PROGRAMS),
    "place": Listed("passes.partition.place:PlacePass", (Property.TOPOLOGY, *_STAGED), (Property.PLACED,)),
    "differentiate": Listed("passes.differentiate:DifferentiatePass", _TRAINS, (Property.DIFFERENTIATED,), (Property.COSTED,)),
    "schedule": Listed("passes.programs.schedule:SchedulePass", (*_STAGED, Property.PLACED), (Property.SCHEDULED,)),
    "lower": Listed("passes.programs.lower:LowerPass", (Property.STAGED,), (Property.LOWERED,), (Property.LOCALIZED,)),
    "localize": Listed("passes.programs.localize:LocalizePass", (Property.LOWERED,), (Property.LOCALIZED,)),
    "validate": Listed("passes.programs.validate:ValidatePass", (Property.LOCALIZED,)),
}
"""Every pass by its name, in the order of a full pipeline."""

PIPELINES: dict[str, str] = {
    "default-inference": "canonicalize,cost,fold,partition{replicas=0,mesh=any},place,schedule,lower,localize",
    "profiled": "partition{replicas=0},place,schedule",
    "default-training": "training,canonicalize,cost,partition{objective=training,replicas=0,mesh=any},place,differentiate,"
    "schedule,lower,localize",
}
"""Pipeline text by name; a name stands for its passes wherever pipeline text is read."""


class _Registry(Mapping[str, type[Pass]]):
    """Pass classes by name, imported at the first access of each."""

    def __getitem__(self, name: str) -> type[Pass]:
        module, _, cls = LISTED[name].where.partition(":")
        found = getattr(importlib.import_module(module), cls)
        assert isinstance(found, type), f"{module}:{cls} is no class"
        assert issubclass(found, Pass), f"{module}:{cls} is no pass"
        if found.name != name:
            raise AssertionError(f"{module}:{cls} is pass {found.name}, listed as {name}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(LISTED)

    def __len__(self) -> int:
        return len(LISTED)

    def __contains__(self, name: object) -> bool:
        return name in LISTED


PASSES: Mapping[str, type[Pass]] = _Registry()


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option of a pass: its name as pipeline text spells it, its type's text, its default's text."""

    name: str
    type: str
    default: str


@dataclass(frozen=True, slots=True)
class PassInfo:
    """What ``dnnc passes`` tells about a pass."""

    name: str
    help: str
    options: tuple[OptionInfo, ...]
    needs: tuple[str, ...]
    establishes: tuple[str, ...]
    destroys: tuple[str, ...]


def describe(name: str) -> PassInfo:
    """Help and options of the pass called ``name``. Raises KeyError."""
    cls = PASSES[name]
    hints = get_type_hints(cls)
    options = tuple(
        OptionInfo(option_name(field.name), type_text(hints[field.name]), value_text(default_of(field)))
        for field in dataclasses.fields(cls)
    )
    listed = LISTED[name]
    words = (tuple(map(str, listed.needs)), tuple(map(str, listed.establishes)), tuple(map(str, listed.destroys)))
    return PassInfo(name, (cls.__doc__ or "").strip().split("\n")[0], options, *words)
