"""A build as decoding runs it: what its stages get and send in place of the arguments and results of the step program.

A value between stages has one size in a step and another in a prompt; its place on an edge holds the larger one, in as many
parts as a prompt has tokens, and a step uses one of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnnc.build.build import Build, Channel, StageProgram, ValueInfo
from dnnc.build.decoding import Decoding, prompt_name
from dnnc.engines.onnxruntime.decoding.faults import NoDecoding
from dnnc.engines.onnxruntime.decoding.wire import CONTROL, GIVEN, LOGITS, TOKENS, WORDS
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
            )
        )
    # Each place works on the steps that it is fed, in this order: the next step of a group waits for its tokens.
    rows = tuple(
        (device, tuple(replace(action, microbatch=0) for action in actions)) for device, actions in build.schedule.rows
    )
    schedule = replace(build.schedule, rows=rows)
    inputs = (control, words, *(port for stage in stages for port in _given(stage, decoding)))
    return replace(build, stages=tuple(stages), inputs=inputs, outputs=drawn, schedule=schedule)


def role_of(build: Build, stage: StageProgram, replica: int) -> dict[str, Any]:
    """What the process of a replica of a stage is told of its states: those of the groups that it serves, in ``dnnc run`` the
    first one."""
    decoding = build.decoding
    assert decoding is not None
    assert stage.model is not None
    served = [group for group, by in enumerate(stage.serves) if by == replica] if stage.serves else [0]
    told = {**replace(decoding, states=decoding.of_stage(stage.index)).to_json(), "served": served}
    return {**told, **({"prompt": prompt_name(stage.model)} if decoding.chunk > 1 else {})}


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


__all__ = ["decoding_build", "require_decoding", "role_of"]
