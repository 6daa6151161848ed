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

_WHERE: dict[str, str] = {
    "training": "passes.training:TrainingPass",
    "canonicalize": "passes.canonicalize:CanonicalizePass",
    "unfuse": "passes.canonicalize.unfuse:UnfusePass",
    "cost": "passes.cost:CostPass",
    "fold": "passes.fold:FoldPass",
    "expand": "passes.fold:ExpandPass",
    "contract": "passes.contract:ContractPass",
    "shard": "passes.shard:ShardPass",
    "partition": "passes.partition:PartitionPass",
    "assign": "passes.replay.assign:AssignPass",
    "replay": "passes.replay.meshes:ReplayPass",
    "place": "passes.place:PlacePass",
    "differentiate": "passes.differentiate:DifferentiatePass",
    "schedule": "passes.schedule:SchedulePass",
    "lower": "passes.lower:LowerPass",
    "localize": "passes.localize:LocalizePass",
    "validate": "passes.validate:ValidatePass",
}

PIPELINES: dict[str, str] = {
    "default-inference": "canonicalize,cost,fold,contract,partition{replicas=0},place,schedule,lower,localize",
    "profiled": "partition{replicas=0},place,schedule",
    "sharded-inference": "canonicalize,unfuse,cost,fold,shard,schedule,lower,localize",
    "default-training": "training,canonicalize,cost,partition{objective=training,replicas=0},place,differentiate,"
    "schedule,lower,localize",
    "sharded-training": "training,canonicalize,cost,shard{training=true},differentiate,schedule,lower,localize",
}
"""Pipeline text by name; a name stands for its passes wherever pipeline text is read."""


class _Registry(Mapping[str, type[Pass]]):
    """Pass classes by name, imported at the first access of each."""

    def __getitem__(self, name: str) -> type[Pass]:
        module, _, cls = _WHERE[name].partition(":")
        found = getattr(importlib.import_module(module), cls)
        assert isinstance(found, type), f"{module}:{cls} is no class"
        assert issubclass(found, Pass), f"{module}:{cls} is no pass"
        if found.name != name:
            raise AssertionError(f"{module}:{cls} is pass {found.name}, listed as {name}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)

    def __contains__(self, name: object) -> bool:
        return name in _WHERE


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


def describe(name: str) -> PassInfo:
    """Help and options of the pass called ``name``. Raises KeyError."""
    cls = PASSES[name]
    hints = get_type_hints(cls)
    options = tuple(
        OptionInfo(option_name(field.name), type_text(hints[field.name]), value_text(default_of(field)))
        for field in dataclasses.fields(cls)
    )
    return PassInfo(name, (cls.__doc__ or "").strip().split("\n")[0], options)
