"""What a build says of decoding: the states that stay in the processes of its stages, and the arguments of its two programs.

``plan.json`` of a build with states has ``"decoding"``::

    {"ids": "input_ids", "position": "position", "logits": "logits", "batch": 8, "context": 1024, "groups": 2, "chunk": 64,
     "vocabulary": 32000, "inputs": {"input_ids": "ids", "attention_mask": "mask", "position_ids": "positions"},
     "states": [{"name": "past_key_values.0.key", "result": "present.0.key", "stage": 0, "dtype": "f32",
                 "shape": [8, 4, 1024, 64], "axis": 2}, ...],
     "stop": [2], "serving": {"1": [0, 1, 0, 0]}}

A state is an input of its stage's ONNX models, and under ``result`` an output of them; it crosses no edge. ``ids`` (int64
``[batch, n]``), ``position`` (int64 ``[batch]``: of the first of these n tokens) and ``logits`` (``[batch, n, vocabulary]``)
are arguments and result of the unsplit model, where n is 1 in the *step* program ``stages/stageK.onnx`` and ``chunk`` in the
*prompt* program ``stages/stageK.prompt.onnx``. With ``chunk`` 1 there are no prompt programs. Of a recurrent model that is no
language model ``ids``, ``position`` and ``logits`` are empty. ``inputs``: what the inputs of the user's model are that are no
states (``ROLES``), for ``dnnc check``, which runs that model; an older build has no such entry. ``stop``: the tokens that end a
text, where files beside the model say so.

``serving`` says of a stage with replicas which of them serves each group: the one whose process has the group's states. Left
out, group g is served by replica g modulo their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ir.core.types import DType, TensorType

ROLES = ("ids", "mask", "positions", "position", "lengths", "given", "branch")
"""What an input of a decoder is to a step of s tokens in each of B sequences: token ids [B, s], the mask of all positions
[B, T], the position of each token [B, s], that of the first one [B], the count of filled positions behind the step [B], and
what a sequence is given where it begins: a state without a result; and what is true in each step, [1]: with caches."""

STOP = "decoding.stop"
"""The attribute of an entry function that lists the tokens which end a text."""


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that stays in the process of ``stage``. ``dtype`` as the IR writes it. ``axis``: along which new positions are
    written, so that input and output may be one buffer; None where each step makes the whole tensor anew. ``result``: empty
    of a state ``[batch, ..]`` that is given where a sequence begins, and is in each stage that reads it."""

    name: str
    result: str
    stage: int
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """The entry ``decoding`` of ``plan.json``. ``batch``: sequences of a group; ``context``: positions of a cache; ``groups``:
    groups in flight, each with its own states; ``chunk``: tokens of a sequence that the prompt program takes at once;
    ``serving``: by stage, of each group the number of the replica that serves it; ``inputs``: roles by name, None where the
    build does not say; ``stop``: tokens that end a text."""

    states: tuple[State, ...]
    ids: str = ""
    position: str = ""
    logits: str = ""
    batch: int = 1
    context: int = 0
    groups: int = 1
    chunk: int = 1
    vocabulary: int = 0
    serving: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, str] | None = None
    stop: tuple[int, ...] = ()

    @property
    def generates(self) -> bool:
        """Whether the build is of a language model."""
        return bool(self.ids and self.position and self.logits)

    @property
    def group_bytes(self) -> int:
        """Bytes of the states of one group."""
        types = (TensorType(DType(state.dtype), state.shape) for state in self.states)
        return sum(type_.nbytes or 0 for type_ in types)

    @property
    def given(self) -> dict[str, State]:
        """The states that a sequence is given where it begins, by name; of one in several stages, that of the first."""
        states = [state for state in self.states if not state.result]
        return {state.name: next(one for one in states if one.name == state.name) for state in states}

    def of_stage(self, stage: int) -> tuple[State, ...]:
        return tuple(state for state in self.states if state.stage == stage)

    def serves(self, stage: int, replicas: int) -> tuple[int, ...]:
        """The replica of a stage that serves each group."""
        return self.serving.get(stage) or tuple(group % replicas for group in range(self.groups))

    def require_served(self, replicas: Sequence[int]) -> None:
        """Raises ValueError where groups are not shared by the replicas of a stage, of which there are so many by stage."""
        for stage, count in enumerate(replicas):
            if count > 1 and not self.generates:
                raise ValueError(f"stage {stage} has states and {count} replicas; one expected of a model without tokens")
            serves = self.serves(stage, count)
            if len(serves) != self.groups or set(serves) != set(range(count)):
                raise ValueError(
                    f"the {count} replicas of stage {stage} serve groups {list(serves)}; one of them expected for each of "
                    f"{self.groups} groups, and each for one at least"
                )
        if unknown := [stage for stage in self.serving if not 0 <= stage < len(replicas)]:
            raise ValueError(f"'serving' of 'decoding' names stage {unknown[0]} of {len(replicas)}")

    def to_json(self) -> dict[str, Any]:
        told = {**asdict(self), "states": [asdict(state) for state in self.states]}
        told = {key: value for key, value in told.items() if value is not None}
        for name in ("serving", "stop"):
            del told[name]
        told |= {"stop": list(self.stop)} if self.stop else {}
        serving = {str(stage): list(serves) for stage, serves in sorted(self.serving.items())}
        return {**told, "serving": serving} if serving else told

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
        serving = {
            int(stage): tuple(_number(replica, "serving", 0) for replica in serves)
            for stage, serves in dict(data.get("serving") or {}).items()
        }
        if ids and numbers["context"] < numbers["chunk"]:
            raise ValueError(f"a chunk of {numbers['chunk']} tokens is longer than the context, {numbers['context']}")
        inputs = data.get("inputs")
        if inputs is not None and (wrong := [role for role in dict(inputs).values() if role not in ROLES]):
            raise ValueError(f"an input has the role {wrong[0]!r}, expected one of {', '.join(ROLES)}")
        stop = tuple(_number(token, "stop", 0) for token in data.get("stop") or ())
        return cls(tuple(states), ids, position, logits, **numbers, serving=serving, inputs=inputs, stop=stop)


PROMPT = "prompt.ir"
"""The file of a build with the module of the prompt program, as ``plan.ir`` is of the step."""


def hides(name: str) -> bool:
    """Whether a state that a sequence is given is the mask of others: left out, it shows all of them."""
    return "mask" in name


def prompt_name(model: str) -> str:
    """The name of the prompt program beside that of a step program."""
    return model.removesuffix(".onnx") + ".prompt.onnx"


def open_name(model: str) -> str:
    """The name of the program with all sizes open, for onnxruntime-genai, beside that of a step program."""
    return model.removesuffix(".onnx") + ".open.onnx"


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"'{name}' of 'decoding' is {value!r}, a text expected")
    return value


def _number(value: Any, name: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"'{name}' of 'decoding' is {value!r}, an integer from {least} on expected")
    return value
