"""What passes run with: a module with its machines, and the context that gives passes ONNX's dialects and its evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import ir
from dnnc.compile.faults import MadeForOtherMachines
from dnnc.onnx import DIALECTS
from ir.core.attributes import Dense
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Mesh, Module, Plan, Schedule, Stage
from ir.core.objectives import THROUGHPUT, objective_of
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import Type
from passes.framework.base import Pass, PassContext

Progress = Callable[[str, float | None], None]


def trains(pipeline: Iterable[Pass]) -> bool:
    """Whether a pipeline plans a training step, by a search or by replaying a plan."""
    return any(
        getattr(step, "training", False) or objective_of(getattr(step, "objective", "") or THROUGHPUT.name).trains
        for step in pipeline
    )


def with_topology(module: Module, topology: Topology, pipeline: Iterable[Pass] = ()) -> Module:
    """The module with ``topology`` in place of its own; links are those of training if the pipeline plans a training step.
    Raises InvalidInput if the module holds a mesh, plan, stage or schedule for machines that the topology lacks."""
    changed = module.without(Topology).extend([topology.trained() if trains(pipeline) else topology])
    decided = any(isinstance(symbol, Mesh | Stage | Schedule | Plan) for symbol in module.symbols)
    if decided and (faults := ir.verify(changed, dialects=DIALECTS)):
        first = faults[0]
        raise InvalidInput(MadeForOtherMachines(topology.name, first.message), where=first.where, span=first.span)
    return changed


def pass_context(
    sink: DiagnosticSink, progress: Progress = lambda label, fraction: None, clock: float = math.inf
) -> PassContext:
    """What passes may use: the dialects of ONNX, and the evaluation of operators on constants, which is loaded at its first
    use."""
    return PassContext(sink=sink, evaluate=evaluated, bodies=definition_of, progress=progress, dialects=DIALECTS, clock=clock)


def evaluated(op: Op, operands: tuple[Dense | None, ...], opsets: dict[str, int]) -> tuple[Dense, ...] | None:
    """The results of an operator on constants (``ConstantEvaluator``). The evaluator is imported at the first call."""
    from dnnc.onnx.importer.evaluate import OnnxEvaluator

    return OnnxEvaluator()(op, operands, opsets)


def definition_of(op: Op, operands: Sequence[Type | None], opsets: dict[str, int]) -> Module | None:
    """The ops that a composite operator expands to (``FunctionBodies``). Their definitions are imported at the first call."""
    from dnnc.onnx.importer.bodies import OnnxBodies

    return OnnxBodies()(op, operands, opsets)
