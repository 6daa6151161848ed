"""The prompt program of a decoder: the model at several tokens of each sequence, cut at the same ops as its step.

It runs on the devices of the step, beside the same weights and caches, and needs more workspace. Its chunk is as long as
``--chunk`` says, or the longest of 64, 32, .. tokens for which each stage fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dnnc.compile.decoding.steps import chunk_of, read_at
from dnnc.compile.faults import ChunkOverMemory, NoPromptProgram, RoundedTogether, SmallerChunk
from dnnc.compile.flags import CompileOptions
from ir.core.attributes import attributes
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput, Severity
from ir.core.module import Func, Module, Plan, PlanStage, Stage
from ir.core.topology import Topology
from ir.core.types import TensorType
from passes.costs.memory.footprint import overfull
from passes.framework.base import Pass, PassContext, needed
from passes.framework.registry import PASSES
from passes.graph.folding import expand
from passes.graph.positional import spread
from passes.meshes.undecided import undecided
from passes.partition.place import PlacePass
from passes.plan.other_sizes import cut_alike
from passes.prepare.states.faults import MaskTooLarge
from passes.programs.localize import LocalizePass
from passes.programs.lower import LowerPass

_ROUNDED_TOGETHER = {"onnx.DynamicQuantizeLinear", "onnx.com.microsoft.DynamicQuantizeMatMul"}
"""Ops whose scale is computed from all elements of a tensor, those of other sequences too."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt program of ``chunk`` tokens at once: the module of its programs, and what each stage takes and holds."""

    module: Module
    chunk: int
    stages: tuple[PlanStage, ...]


def prompt_of(
    planned: Module, options: CompileOptions, pipeline: Sequence[Pass], context: PassContext, read: Func | None = None
) -> Prompt | None:
    """The prompt program for the planned module of a step, expanded; None where there is none. Its chunk is halved until each
    stage fits its devices, with a note; raises Infeasible for a stated ``--chunk`` that does not fit. Warns where the model
    cannot be written at several tokens, and where it rounds several sequences together. ``read``: as of ``sized``."""
    asked = chunk_of(options)
    if options.context is None or "decoding.context" not in dict(planned.entry.attributes):
        return None
    rounding = next((op.id for op in planned.entry.ops if op.name in _ROUNDED_TOGETHER), None)
    if rounding is not None and (batch := _batch(planned)) > 1:
        context.sink.warn(RoundedTogether(rounding, batch), where=rounding)
    if asked <= 1:
        return None
    if rounding is not None:
        reason = f"{rounding} rounds all tokens by their largest value, so that tokens beside a chunk would change it"
        context.sink.warn(NoPromptProgram(asked, reason), where="--chunk")
        return None
    if recurrent := [state.result for state in planned.states.values() if state.axis is None and state.result]:
        reason = f"{recurrent[0]} is new in each step, so that tokens beside a chunk would change it"
        context.sink.warn(NoPromptProgram(asked, reason), where="--chunk")
        return None
    inside = replace(context, sink=DiagnosticSink(), statistics={})
    chunk, missing = asked, ""
    try:
        while chunk > 1:
            try:
                staged = _staged(planned, options, chunk, pipeline, inside, read)
            except InvalidInput as error:
                if options.chunk is not None or error.diagnostics[0].code != MaskTooLarge.code:
                    raise
                chunk //= 2  # its masks are smaller
                continue
            if reason := _of_one_token(staged, chunk):
                context.sink.warn(NoPromptProgram(asked, reason), where="--chunk")
                return None
            stages, over = _placed(staged, needed(planned, Plan), inside)
            if not over:
                break
            missing = missing or over
            if options.chunk is not None:
                raise Infeasible(ChunkOverMemory(chunk, missing), where="--chunk")
            chunk //= 2
        if missing:
            context.sink.emit(replace(SmallerChunk(max(chunk, 1), asked, missing).at("--chunk"), severity=Severity.NOTE))
        if chunk <= 1:
            return None
        module = expand(LocalizePass().run(expand(LowerPass().run(staged, inside)), inside))
    except InvalidInput as error:
        context.sink.warn(NoPromptProgram(chunk, error.diagnostics[0].message), where="--chunk")
        return None
    if other := _crossing(expand(LowerPass().run(planned, inside))) ^ _crossing(module):
        reason = f"other values cross between its stages, such as {sorted(other)[0][0]}"
        context.sink.warn(NoPromptProgram(chunk, reason), where="--chunk")
        return None
    return Prompt(with_chunk(module, chunk), chunk, stages)


def _batch(planned: Module) -> int:
    """Sequences of a group."""
    name = f"%{dict(planned.entry.attributes)['decoding.position'].value}"
    position = next(arg.type for arg in planned.entry.args if arg.name == name)
    assert isinstance(position, TensorType)
    assert position.shape is not None
    batch = position.shape[0]
    assert isinstance(batch, int)
    return batch


def _staged(
    planned: Module, options: CompileOptions, chunk: int, pipeline: Sequence[Pass], context: PassContext, read: Func | None
) -> Module:
    """The model at ``chunk`` tokens in the stages of the plan. Raises InvalidInput."""
    module = read_at(options, chunk, pipeline, context, read)
    if not _on_mesh(planned):
        return spread(cut_alike(planned, module))
    if not {op.id for op in undecided(planned).entry.ops} <= {op.id for op in module.entry.ops}:
        for name in ("unfuse", "cost"):  # as the search on meshes does
            module = expand(PASSES[name]().run(module, context))
    from passes.partition.replay.other_sizes import laid_alike

    return laid_alike(planned, module, context)


def _of_one_token(staged: Module, chunk: int) -> str:
    """Why the logits of several tokens are not all there, or nothing."""
    name = dict(staged.entry.attributes)["decoding.logits"].value
    shapes = [
        value.type.shape or ()
        for value in staged.entry.results
        if value.name == f"%{name}" and isinstance(value.type, TensorType)
    ]
    return "" if all(len(shape) == 3 and shape[1] == chunk for shape in shapes) else f"{name} is of the last token alone"


def _placed(staged: Module, plan: Plan, context: PassContext) -> tuple[tuple[PlanStage, ...], str]:
    """The stages on the devices of ``plan``, and a sentence on what does not fit, or none."""
    if _on_mesh(staged):
        return needed(staged, Plan).stages, overfull(staged, needed(staged, Topology))[2]
    costed = PASSES["cost"]().run(staged, context)  # each op has the facts of a step
    costed = costed.replace(needed(costed, Plan), replace(plan, bound=0.0))
    try:
        return needed(PlacePass().run(costed, context), Plan).stages, ""
    except Infeasible as error:
        first = error.diagnostics[0]
        return (), f"{first.where}: {first.message}"


def _on_mesh(module: Module) -> bool:
    return any(stage.mesh for stage in needed(module, Plan).stages)


def with_chunk(module: Module, chunk: int) -> Module:
    """The module, which states the tokens of its prompt program."""
    entry = module.entry
    facts: Mapping[str, object] = {**dict(entry.attributes), "decoding.chunk": chunk}
    return module.replace(entry, replace(entry, attributes=attributes(facts)))


def _crossing(module: Module) -> set[tuple[str, int, int, str]]:
    """The values that cross between stages, each with both of them, and how it lies."""
    found = set()
    for stage in module.of_type(Stage):
        layouts = {v.name: getattr(v.type, "layout", None) for op in stage.ops for v in op.results}
        sent = (op for op in stage.ops if op.name == "comm.send")
        found |= {(op.operands[0], stage.index, int(op.get("peer")), str(layouts.get(op.operands[0]))) for op in sent}
    return found
