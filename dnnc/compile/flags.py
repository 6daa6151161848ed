"""The options of a compilation in one table: flag, field, the pass that carries it out, and what excludes it.

Whatever asks which options are given, which belong to a pass, or which cannot go together, asks this table. A field's default
is that of its class; an option is given where its value is another.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from dnnc.compile.training import TrainingOptions

if TYPE_CHECKING:
    from dnnc.compile.options import CompileOptions

SEARCHES = ("certified", "tag")
"""Whose search plans: dnnc's own, with a bound, or TAG's (``dnnc.search_tag``)."""
TAG = SEARCHES[1]


class Excluder(Enum):
    """What excludes options."""

    PLAN = "--plan"
    MESH = "--mesh"
    TAG = "--search tag"
    PROFILE = "a profiled workload"


PLAN, MESH, TAG_SEARCH, PROFILE = Excluder


@dataclass(frozen=True, slots=True)
class Flag:
    """An option. ``field``: of ``CompileOptions``, or ``training.NAME``; ``passes``: those whose field of this name it sets;
    ``excluded``: what it cannot go with."""

    flag: str
    field: str
    passes: tuple[str, ...] = ()
    excluded: tuple[Excluder, ...] = ()

    def value(self, options: CompileOptions) -> Any:
        outer, _, inner = self.field.rpartition(".")
        return getattr(options.training if outer else options, inner)

    def is_given(self, options: CompileOptions) -> bool:
        value = self.value(options)
        return value is not None and value is not False and value not in ("", (), {}, SEARCHES[0])


_OF_TRAINING = {
    "chunks": (PLAN, PROFILE),
    "recompute": (TAG_SEARCH, PROFILE),
}

FLAGS: tuple[Flag, ...] = (
    Flag("--cut", "cuts", ("partition",), (PLAN, MESH)),
    Flag("--pin", "pins", ("partition",), (PLAN, MESH)),
    Flag("--stages", "stages", ("partition", "shard"), (PLAN, TAG_SEARCH)),
    Flag("--time-limit", "time_limit", ("partition", "shard"), (PLAN, TAG_SEARCH)),
    Flag("--replicas", "replicas", ("partition",), (PLAN, MESH)),
    Flag("--pieces", "pieces", ("partition",), (PLAN, MESH)),
    Flag("--objective", "objective", ("partition",), (PLAN,)),
    Flag("--split", "split", ("partition",), (PLAN, MESH)),
    Flag("--comm", "comm", (), (MESH,)),
    Flag("--mesh", "mesh", ("shard",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--strategy", "strategy", ("shard",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--uneven", "uneven", ("shard",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--shares", "shares", ("shard",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--microbatches", "microbatches", ("partition", "shard"), (PLAN, PROFILE)),
    Flag("--explain", "explain", (), (PROFILE,)),
    Flag("--inputs", "inputs", (), (PROFILE,)),
    Flag("--plan", "plan", (), (TAG_SEARCH,)),
    Flag("--passes", "pipeline", (), (TAG_SEARCH,)),
    Flag("--search tag", "search", (), (PROFILE,)),
    Flag("--search-prior", "prior"),
    Flag("--iterations", "iterations"),
    *(
        Flag(f"--{one.name.replace('_', '-')}", f"training.{one.name}", (), _OF_TRAINING.get(one.name, (PROFILE,)))
        for one in fields(TrainingOptions)
    ),
)


def given(options: CompileOptions, flags: Collection[Flag] = FLAGS) -> tuple[str, ...]:
    """The options among ``flags`` that are given."""
    return tuple(one.flag for one in flags if one.is_given(options))


def excluded_by(options: CompileOptions, excluder: Excluder) -> tuple[str, ...]:
    """The options that are given and cannot go with ``excluder``."""
    return given(options, [one for one in FLAGS if excluder in one.excluded])


ON_MESHES = tuple(one for one in FLAGS if one.field in ("mesh", "strategy", "shares", "uneven"))
"""How tensors are split."""
OF_TAG = tuple(one for one in FLAGS if one.field in ("prior", "iterations"))
OF_TRAINING = tuple(one for one in FLAGS if one.field.startswith("training."))


def changes_of(options: CompileOptions, name: str) -> dict[str, Any]:
    """The fields of the pass ``name`` that options set, with their values."""
    return {one.field: one.value(options) for one in FLAGS if name in one.passes and one.is_given(options)}


__all__ = [
    "FLAGS",
    "MESH",
    "OF_TAG",
    "OF_TRAINING",
    "ON_MESHES",
    "PLAN",
    "PROFILE",
    "SEARCHES",
    "TAG",
    "TAG_SEARCH",
    "Excluder",
    "Flag",
    "changes_of",
    "excluded_by",
    "given",
]
