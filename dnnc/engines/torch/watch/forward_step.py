"""The forward passes of a training step alone, as the model infers: what an evaluation runs on the ranks of the plan.

Each rank runs the forward ops of its stages on the parts of the weights that it holds, so an evaluation needs no more memory
than a step. A row takes microbatch m of stage s in place m + s: the order is that of a pipeline that is filled once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from dnnc.build.training import Step, file_name
from dnnc.engines.torch.check.batch import SampleLosses
from dnnc.engines.torch.check.unsplit import forward_only
from dnnc.engines.torch.statements.run import defined
from dnnc.engines.torch.write.stage_file import program_source, title_of
from ir.core.attributes import attributes
from ir.core.facets import FORWARD, phase_of
from ir.core.module import Action, Mesh, Program, Stage
from ir.core.ops import Op
from ir.core.types import without_layout
from ir.ops.boxes import box, delivers, placements_of
from ir.ops.grads import ASSIGN, BATCH_NORMALIZATION, MASK
from ir.ops.rows import COMPUTE, RECEIVE, SEND

_ENTROPY = "onnx.SoftmaxCrossEntropyLoss"


@dataclass(frozen=True)
class ForwardStep:
    """``step``: a step of forward passes, of the stages of the training; ``losses``: what its last stage returns; ``scored``:
    whether that also returns the scores and labels of a cross entropy."""

    step: Step
    losses: SampleLosses
    scored: bool

    @classmethod
    def of(cls, step: Step) -> ForwardStep:
        losses = SampleLosses.of(step, forward_only(step.module))
        each = losses.func.results[0].name
        op = next((op for op in losses.func.ops if op.name == _ENTROPY and op.results[0].name == each), None)
        channels = _channels(step)
        module = step.module
        for program in tuple(module.of_type(Program)):
            module = module.replace(program, _inferring(program, channels, each if losses.known else ""))
        schedule = step.schedule
        count = max(step.microbatches, len(step.devices))
        rows = tuple((device, _row(step, rank, count, channels)) for rank, device in enumerate(step.devices))
        forward = replace(schedule, kind="1f1b", rows=rows, microbatches=count, periodic=False)
        return cls(Step(module.replace(schedule, forward)), losses, op is not None)

    def functions(self, name: str) -> dict[str, Any]:
        """What the file of a program would define, by the name that it would have (``file_name``)."""
        for program in self.step.module.of_type(Program):
            stage = next(stage for stage in self.step.stages if stage.name == program.stage)
            if file_name(self.step, stage, program) == name:
                return defined(program_source(self.step.module, program, title_of(stage, program)))
        raise KeyError(name)

    def first_rows(self, stage: Stage, rank: int, microbatch: int) -> int | None:
        """The first row of the losses of a microbatch that a rank has computed and no rank before it; None where it has
        none. Of a loss that is not of samples, whether it is the one to count it."""
        if not stage.mesh or not self.losses.known:
            return 0 if self.step.takers(stage, microbatch)[0] == rank else None
        mesh: Mesh = self.step.meshes[stage.mesh]
        member, name = mesh.devices.index(self.step.devices[rank]), self.losses.func.results[0].name
        type_ = next(value.type for op in stage.ops for value in op.results if value.name == name)
        placements = placements_of(type_, mesh)
        ranges = box(without_layout(type_), placements, mesh, member)
        return (ranges[0][0] if ranges else 0) if delivers(placements, mesh, member) else None


def _channels(step: Step) -> frozenset[int]:
    """The channels of tensors that are made and read in forward passes."""
    made, read = (
        {int(op.get("channel")) for stage in step.stages for op in stage.ops if op.name == name and _is_forward(op)}
        for name in ("comm.send", "comm.recv")
    )
    return frozenset(made & read)


def _is_forward(op: Op) -> bool:
    return phase_of(op.facets) == FORWARD


def _row(step: Step, rank: int, count: int, channels: frozenset[int]) -> tuple[Action, ...]:
    """The actions of a rank for so many microbatches."""
    ends = sorted((channel for channel in step.channels.values() if channel.number in channels), key=lambda one: one.number)
    passes = [(m + stage.index, stage.index, stage, m) for stage in step.stages_of(rank) for m in range(count)]
    row = list[Action]()
    for _, index, stage, m in sorted(passes, key=itemgetter(0, 1)):
        if rank in step.takers(stage, m):
            row += [Action(RECEIVE, index, m, channel.number) for channel in ends if channel.target is stage]
            row.append(Action(COMPUTE, index, m))
            row += [Action(SEND, index, m, channel.number) for channel in ends if channel.source is stage]
    return tuple(row)


def _inferring(program: Program, channels: frozenset[int], each: str) -> Program:
    """The forward ops of a program that its results and what it sends are made of. ``each``: the losses of samples, which are
    the results of the program that makes them, with their scores and labels; empty where results stay what they are."""
    forward = [op for op in program.ops if _is_forward(op) and op.name != ASSIGN]
    crossing = ("comm.send", "comm.recv")
    ops = in_inference(op for op in forward if op.name not in crossing or int(op.get("channel")) in channels)
    values = {value.name: value for value in program.args} | {value.name: value for op in ops for value in op.results}
    results = program.results
    if each:
        made = next((op for op in ops if op.name != "comm.recv" and any(value.name == each for value in op.results)), None)
        names = () if made is None else (each, *made.operands[:2]) if made.name == _ENTROPY else (each,)
        results = tuple(values[name] for name in names)
    ops = _live(ops, [value.name for value in results])
    read = {name for op in ops for name in op.operands} | {value.name for value in results}
    args = tuple(value for value in program.args if value.name in read)
    return replace(program, args=args, results=results, ops=tuple(ops))


def _live(ops: Sequence[Op], results: Iterable[str]) -> list[Op]:
    """The ops of which the results and what is sent are made; what is received is received in any case."""
    wanted, live = set(results), list[Op]()
    for op in reversed(ops):
        if op.name in ("comm.send", "comm.recv") or any(value.name in wanted for value in op.results):
            wanted.update(op.operands)
            live.append(op)
    return live[::-1]


def in_inference(forward: Iterable[Op]) -> list[Op]:
    """The forward ops as they infer: batch normalisation by its running averages, masks of dropouts that keep all."""
    ops, named = list[Op](), dict[str, str]()
    for op in forward:
        op = replace(op, operands=tuple(named.get(name, name) for name in op.operands))
        if op.name == BATCH_NORMALIZATION and op.get("training_mode", 0):
            named.update((value.name, name) for value, name in zip(op.results[1:3], op.operands[3:5], strict=False))
            op = replace(op, results=op.results[:1], attributes=_with(op, training_mode=0))
        elif op.name == MASK:
            op = replace(op, attributes=_with(op, ratio=0.0))
        ops.append(op)
    return ops


def _with(op: Op, **changed: Any) -> Any:
    names = {name for name, _ in attributes(**changed)}
    return tuple(sorted([*(one for one in op.attributes if one[0] not in names), *attributes(**changed)]))
