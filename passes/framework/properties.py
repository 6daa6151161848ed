"""Properties of a module that passes need and establish, each with the predicate that finds it in the module itself.

The registry says of each pass which of them it needs, establishes and destroys; ``order`` judges pipelines by that. A predicate
reads facets and symbols and looks through the calls of folded blocks; it does not check that what they say is right, which is
the verifier's and the passes' own work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from ir.core.facets import Cost, OptimizerState, Phase, StageSet, Time
from ir.core.module import Func, Module, Plan, Program, Resource, Schedule, Stage
from ir.core.ops import Op
from ir.core.topology import Topology


class Property(StrEnum):
    """What a module may have."""

    TOPOLOGY = "topology"
    TRAINABLE = "trainable"
    COSTED = "costed"
    STAGED = "staged"
    PLANNED = "planned"
    PLACED = "placed"
    SHARDED = "sharded"
    DIFFERENTIATED = "differentiated"
    SCHEDULED = "scheduled"
    LOWERED = "lowered"
    LOCALIZED = "localized"


MEANING: Mapping[Property, str] = {
    Property.TOPOLOGY: "the module describes machines",
    Property.TRAINABLE: "a weight says by which optimizer it is trained",
    Property.COSTED: "each op has its cost, or its seconds by type of device",
    Property.STAGED: "each op is in a stage",
    Property.PLANNED: "the module has a plan",
    Property.PLACED: "each stage of the plan has devices",
    Property.SHARDED: "a stage of the plan is on a mesh",
    Property.DIFFERENTIATED: "the entry has ops of a backward pass",
    Property.SCHEDULED: "the module has a schedule",
    Property.LOWERED: "the module has the programs of stages",
    Property.LOCALIZED: "the module has the programs of members",
}
"""What the predicate of each looks at."""


def holds(property_: Property, module: Module) -> bool:
    """Whether the module has the property."""
    return _PREDICATES[property_](module)


def _each_op(module: Module, *facets: type) -> bool:
    """Whether every op of the entry has one of the facets: an op of the module, or all those of the block that it calls.
    Communication costs nothing by itself and is left out."""
    from passes.graph.folding.marks import CALL, CALLEE

    funcs = {func.name: func for func in module.of_type(Func)}
    known: dict[str, bool] = {}

    def has(op: Op) -> bool:
        if op.name.startswith("comm.") or any(op.facet(facet) is not None for facet in facets):
            return True
        callee = op.get(CALLEE) if op.name == CALL else None
        return isinstance(callee, str) and callee in funcs and body(funcs[callee])

    def body(func: Func) -> bool:
        if func.name not in known:
            known[func.name] = False  # a block that calls itself has nothing
            known[func.name] = all(map(has, func.ops))
        return known[func.name]

    return body(module.entry)


def _has(symbol: type) -> Callable[[Module], bool]:
    return lambda module: module.first(symbol) is not None


def _placed(module: Module) -> bool:
    plan = module.first(Plan)
    return plan is not None and all(stage.devices for stage in plan.stages)


def _sharded(module: Module) -> bool:
    plan = module.first(Plan)
    return plan is not None and plan.on_meshes


def _trainable(module: Module) -> bool:
    return any(isinstance(facet, OptimizerState) for resource in module.of_type(Resource) for facet in resource.facets)


def _differentiated(module: Module) -> bool:
    return any(op.facet(Phase) is not None for op in module.entry.ops)


_PREDICATES: Mapping[Property, Callable[[Module], bool]] = {
    Property.TOPOLOGY: _has(Topology),
    Property.TRAINABLE: _trainable,
    Property.COSTED: lambda module: _each_op(module, Cost, Time),
    Property.STAGED: lambda module: _each_op(module, StageSet),
    Property.PLANNED: _has(Plan),
    Property.PLACED: _placed,
    Property.SHARDED: _sharded,
    Property.DIFFERENTIATED: _differentiated,
    Property.SCHEDULED: _has(Schedule),
    Property.LOWERED: _has(Stage),
    Property.LOCALIZED: _has(Program),
}
