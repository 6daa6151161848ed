"""What a build says of decoding: the states that stay in the processes of its stages, and the arguments of its two programs.

``plan.json`` of a build with states has ``"decoding"``::

    {"ids": "input_ids", "position": "position", "logits": "logits", "batch": 8, "context": 1024, "groups": 2, "chunk": 64,
     "vocabulary": 32000,
     "states": [{"name": "past_key_values.0.key", "result": "present.0.key", "stage": 0, "dtype": "f32",
                 "shape": [8, 4, 1024, 64], "axis": 2}, ...]}

A state is an input of its stage's ONNX models, and under ``result`` an output of them; it crosses no edge. ``ids`` (int64
``[batch, n]``), ``position`` (int64 ``[batch]``: of the first of these n tokens) and ``logits`` (``[batch, n, vocabulary]``)
are arguments and result of the unsplit model, where n is 1 in the *step* program ``stages/stageK.onnx`` and ``chunk`` in the
*prompt* program ``stages/stageK.prompt.onnx``. With ``chunk`` 1 there are no prompt programs. Of a recurrent model that is no
language model ``ids``, ``position`` and ``logits`` are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ir.core.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that stays in the process of ``stage``. ``dtype`` as the IR writes it. ``axis``: along which new positions are
    written, so that input and output may be one buffer; None where each step makes the whole tensor anew."""

    name: str
    result: str
    stage: int
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """The entry ``decoding`` of ``plan.json``. ``batch``: sequences of a group; ``context``: positions of a cache; ``groups``:
    groups in flight, each with its own states; ``chunk``: tokens of a sequence that the prompt program takes at once."""

    states: tuple[State, ...]
    ids: str = ""
    position: str = ""
    logits: str = ""
    batch: int = 1
    context: int = 0
    groups: int = 1
    chunk: int = 1
    vocabulary: int = 0

    @property
    def generates(self) -> bool:
        """Whether the build is of a language model."""
        return bool(self.ids and self.position and self.logits)

    @property
    def group_bytes(self) -> int:
        """Bytes of the states of one group."""
        types = (TensorType(DType(state.dtype), state.shape) for state in self.states)
        return sum(type_.nbytes or 0 for type_ in types)

    def of_stage(self, stage: int) -> tuple[State, ...]:
        return tuple(state for state in self.states if state.stage == stage)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "states": [asdict(state) for state in self.states]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decoding:
        """Raises KeyError, TypeError and ValueError for what is no such entry."""
        ids, position, logits = (_text(data.get(name) or "", name) for name in ("ids", "position", "logits"))
        least = {"batch": 1, "context": 0, "groups": 1, "chunk": 1, "vocabulary": 0}
        numbers = {name: _number(data.get(name, low), name, low) for name, low in least.items()}
        states = []
        for state in data["states"]:
            shape = tuple(_number(dim, "shape", 0) for dim in state["shape"])
            axis = state.get("axis")
            if axis is not None and _number(axis, "axis", 0) >= len(shape):
                raise ValueError(f"state '{state['name']}' has no axis {axis}")
            texts = {name: _text(state[name], name) for name in ("name", "result", "dtype")}
            states.append(State(**texts, stage=_number(state["stage"], "stage", 0), shape=shape, axis=axis))
        if ids and numbers["context"] < numbers["chunk"]:
            raise ValueError(f"a chunk of {numbers['chunk']} tokens is longer than the context, {numbers['context']}")
        return cls(tuple(states), ids, position, logits, **numbers)


def prompt_name(model: str) -> str:
    """The name of the prompt program beside that of a step program."""
    return model.removesuffix(".onnx") + ".prompt.onnx"


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"'{name}' of 'decoding' is {value!r}, a text expected")
    return value


def _number(value: Any, name: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"'{name}' of 'decoding' is {value!r}, an integer from {least} on expected")
    return value


__all__ = ["Decoding", "State", "prompt_name"]
