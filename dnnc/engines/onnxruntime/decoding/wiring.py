"""A build as decoding runs it: what its stages get and send in place of the arguments and results of the step program.

A value between stages has one size in a step and another in a prompt; its place on an edge holds the larger one, in as many
parts as a prompt has tokens, and a step uses one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from dnnc.build.build import Build, Channel, StageProgram, ValueInfo
from dnnc.build.decoding import Decoding, State, prompt_name
from dnnc.build.members import Box, MemberProgram, Part
from dnnc.engines.onnxruntime.decoding.faults import NoDecoding
from dnnc.engines.onnxruntime.decoding.wire import CONTROL, GIVEN, LOGITS, TOKENS, WORDS
from dnnc.onnx.elements import BY_NAME, nbytes
from ir.core.diagnostics import InvalidInput


def require_decoding(build: Build) -> Decoding:
    """What the build says of decoding. Raises InvalidInput for one that does not generate."""
    decoding = build.decoding
    if decoding is None or not decoding.generates:
        raise InvalidInput(NoDecoding(), where=str(build.folder))
    return decoding


def decoding_build(build: Build, logits: bool = False) -> Build:
    """The build with the inputs, outputs and messages of decoding in place of those of its step program. ``logits``: those of
    each token are an output too. Raises as ``require_decoding``."""
    decoding = require_decoding(build)
    ids = decoding.batch * decoding.chunk
    control, words = _port(CONTROL, "int64", (1 + decoding.batch, WORDS)), _port(decoding.ids, "int64", (ids,), decoding.chunk)
    tokens = _port(TOKENS, "int64", (decoding.batch,))
    drawn = (tokens, *([_port(LOGITS, "float32", (decoding.batch, decoding.vocabulary))] if logits else ()))
    stages: list[StageProgram] = []
    for stage in build.stages:
        reads = any(port.name == decoding.ids for port in stage.inputs)
        draws = any(port.name == decoding.logits for port in stage.outputs)
        stages.append(
            replace(
                stage,
                inputs=(control, *((words,) if reads else ()), *_given(stage, decoding)),
                outputs=drawn if draws else (),
                receives=tuple(_longest(channel, decoding) for channel in stage.receives),
                sends=tuple(_longest(channel, decoding) for channel in stage.sends),
                serves=decoding.serves(stage.index, 1 if stage.members else len(stage.devices)),
                members=tuple(_member(member, stage, decoding, drawn) for member in stage.members),
            )
        )
    # Each place works on the steps that it is fed, in this order: the next step of a group waits for its tokens.
    rows = tuple(
        (device, tuple(replace(action, microbatch=0) for action in actions)) for device, actions in build.schedule.rows
    )
    schedule = replace(build.schedule, rows=rows)
    inputs = (control, words, *(port for stage in stages for port in _given(stage, decoding)))
    return replace(build, stages=tuple(stages), inputs=inputs, outputs=drawn, schedule=schedule)


def _member(member: MemberProgram, stage: StageProgram, decoding: Decoding, drawn: Sequence[ValueInfo]) -> MemberProgram:
    """The member with the inputs and messages of decoding. The member that delivers logits draws tokens from them, and sends
    what is ``drawn``; they are whole (``passes.partition.layouts.problem``)."""
    channels = {channel.id: channel for channel in (*stage.receives, *stage.sends)}
    logits = [part for part in member.outputs if part.name == decoding.logits]
    shapes = {port.name: [dim for dim in port.shape or () if isinstance(dim, int)] for port in drawn}
    sent = [Part(name, name, tuple((0, dim) for dim in shape)) for name, shape in shapes.items()]

    def longest(part: Part) -> Part:
        size = nbytes(BY_NAME[channels[part.channel].dtype], part.shape) * decoding.chunk
        return replace(part, box=((0, size),))

    return replace(
        member,
        inputs=(CONTROL, *(name for name in member.inputs if name == decoding.ids), *(p.name for p in _given(stage, decoding))),
        receives=tuple(map(longest, member.receives)),
        sends=tuple(map(longest, member.sends)),
        outputs=(*(sent if any(part.delivers for part in logits) else ()), *(replace(part, delivers=False) for part in logits)),
    )


def role_of(build: Build, stage: StageProgram, position: int) -> dict[str, Any]:
    """What the process of a replica, or of a member, of a stage is told of its states: its parts of those of the groups that it
    serves, in ``dnnc run`` of the first one."""
    decoding = build.decoding
    assert decoding is not None
    replica = 0 if stage.members else position
    served = [group for group, by in enumerate(stage.serves) if by == replica] if stage.serves else [0]
    parts = {part.name: part.box for part in (stage.members[position].states if stage.members else ())}
    told = {**decoding.to_json(), "served": served}
    told["states"] = [_state_of(state, decoding.batch, parts.get(state.result, ())) for state in decoding.of_stage(stage.index)]
    if stage.members:
        every = [stage, *([build.prompt[stage.index]] if build.prompt else [])]
        return {**told, "values": [_values(one.members[position], stage.members[position]) for one in every]}
    return {**told, **({"prompt": prompt_name(stage.model or "")} if decoding.chunk > 1 else {})}


def _values(member: MemberProgram, step: MemberProgram) -> dict[str, str]:
    """The name that a value which arrives, leaves or stays has in a program of a member, by its name at the ends of edges,
    which are those of the step program, and by that of the tensor."""
    names: dict[str, str] = {}
    for parts, outer in ((member.receives, step.receives), (member.sends, step.sends)):
        own = {part.name: part.value for part in parts}
        names.update((part.value, own[part.name]) for part in outer)
    names.update((part.name, part.value) for part in (*member.outputs, *member.states))
    return names


def _state_of(state: State, batch: int, box: Box) -> dict[str, Any]:
    """What a process is told of its part of a state, which is in ``box``, all of it without ranges. ``sequences``: the
    dimension of the batch of a recurrent state (the pass ``states`` refuses others), and the first sequence that is here; None
    where there is one sequence, which is all of it."""
    box = box or tuple((0, dim) for dim in state.shape)
    dim = state.shape.index(batch) if batch in state.shape else 0
    sequences = [dim, box[dim][0]] if box and batch > 1 else None
    return {**asdict(state), "shape": [length for _, length in box], "sequences": sequences}


def _given(stage: StageProgram, decoding: Decoding) -> tuple[ValueInfo, ...]:
    """The input of a stage that reads what sequences are given: as many bytes as new sequences need."""
    if all(state.result for state in decoding.of_stage(stage.index)):
        return ()
    return (ValueInfo(f"{GIVEN}.{stage.index}", "uint8", (None,), "tensor<?xu8>"),)


def _longest(channel: Channel, decoding: Decoding) -> Channel:
    """The channel with room for a prompt's value: as many bytes for each of its tokens as a step's has."""
    if channel.nbytes is None:
        return channel
    size = channel.nbytes * decoding.chunk
    return replace(channel, dtype="uint8", shape=(size,), nbytes=size, type=f"tensor<{size}xu8>", parts=decoding.chunk)


def _port(name: str, dtype: str, shape: tuple[int, ...], parts: int = 1) -> ValueInfo:
    return ValueInfo(name, dtype, shape, f"tensor<{'x'.join(map(str, shape))}x{dtype}>", parts=parts)
