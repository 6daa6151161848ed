"""INV24: states, which a device keeps from one step to the next."""

from __future__ import annotations

from collections.abc import Iterator

from ir.core.facets import StageSet
from ir.core.module import Func, Resource, State
from ir.core.ops import all_reads
from ir.core.ranges import MOST_MICROBATCHES
from ir.core.types import TensorType
from ir.verifier.findings import Findings


def check_states(findings: Findings) -> None:
    """Every state of the module, against its entry function and the stages."""
    states = {one.name: one for one in findings.module.of_type(Resource) if isinstance(one.data, State)}
    if not states:
        return
    func = findings.module.first(Func)
    results = {value.name: value.type for value in func.results} if func is not None else {}
    taken: dict[str, str] = {}
    for name, state in states.items():
        assert isinstance(state.data, State)
        for fault in _own_faults(state, state.data):
            findings.add("INV24", f"of {name}: {fault}", state)
        result = f"%{state.data.result}"
        if not state.data.result:
            continue
        if func is not None and result not in results:
            findings.add("INV24", f"{name} becomes '{state.data.result}', which is no result of {func.name}", state)
        elif func is not None and results[result] != state.type:
            findings.add("INV24", f"{name} is {state.type} but becomes {results[result]}", state)
        first = taken.setdefault(state.data.result, name)
        if first != name:
            findings.add("INV24", f"{name} becomes '{state.data.result}', as {first} does", state)
    if func is not None:
        _check_places(
            findings,
            func,
            {name: f"%{one.data.result}" for name, one in states.items() if isinstance(one.data, State) and one.data.result},
        )
    _check_stages(findings, states)


def _own_faults(state: Resource, data: State) -> Iterator[str]:
    type_ = state.type
    if not isinstance(type_, TensorType) or type_.sparse or type_.shape is None:
        yield f"a state is a dense tensor of known rank, not {type_}"
    elif data.axis is not None and not 0 <= data.axis < len(type_.shape):
        yield f"axis {data.axis} is not from 0 to {len(type_.shape) - 1}"
    if not 1 <= data.sets <= MOST_MICROBATCHES:
        yield f"it has {data.sets} sets, expected 1 to {MOST_MICROBATCHES}"


def _check_places(findings: Findings, func: Func, results: dict[str, str]) -> None:
    """The ops of the entry that read a state, and the one that makes what it becomes, are in one stage, and in no other."""
    of_result = {result: name for name, result in results.items()}
    places: dict[str, tuple[int, ...]] = {}
    for op in func.ops:
        facet = op.facet(StageSet)
        if facet is None:
            continue
        names = [name for name in all_reads(op) if name in results]
        names += [of_result[value.name] for value in op.results if value.name in of_result]
        for name in dict.fromkeys(names):
            stages = places.setdefault(name, facet.stages)
            if len(facet.stages) > 1 or facet.stages != stages:
                where = ", ".join(map(str, sorted({*stages, *facet.stages})))
                findings.add("INV24", f"{name} is read and updated in stages {where}; expected one", func, op)


def _check_stages(findings: Findings, states: dict[str, Resource]) -> None:
    """After lowering, the stage that reads a state returns what it becomes."""
    for stage in findings.stages:
        returned = {value.name for value in stage.results}
        for name in dict.fromkeys(name for op in stage.ops for name in all_reads(op) if name in states):
            data = states[name].data
            if isinstance(data, State) and data.result and f"%{data.result}" not in returned:
                findings.add("INV24", f"{stage.name} reads {name} but does not return '{data.result}'", stage)
