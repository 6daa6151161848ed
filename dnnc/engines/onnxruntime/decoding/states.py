"""The programs of a stage with states: its step and prompt models in one process, and the states of each group beside them.

``Stateful`` is what a stage on one device and a member of a mesh have in common: groups, turns, and tokens that are drawn.

Invariants:
1. a state is read and written by the runs of its own group alone; runs of a process come one after the other;
2. a state with an axis is one buffer, input and output of a run; any other has two, which take turns in each run;
3. both models refer to the same weights. The step model keeps them packed for its products as well, the prompt model does not:
   it multiplies many rows, so packing them in each run costs little, and a second copy costs as much memory as the weights.
   Weights of few bits both keep packed (``FEW_BITS``).

Imports no third party but numpy and onnxruntime, because the process of a device must start fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dnnc.engines.onnxruntime.decoding.sampling import next_token
from dnnc.engines.onnxruntime.decoding.wire import (
    CONTROL,
    COUNT,
    GIVEN,
    GROUP,
    KIND,
    LOGITS,
    POSITION,
    RESET,
    ROW,
    SEED,
    STEP,
    TEMPERATURE,
    TOKENS,
    TOP_K,
    TOP_P,
    WORDS,
)
from dnnc.engines.onnxruntime.session.session import Settings, nodes_by_provider, open_session
from dnnc.engines.onnxruntime.transport.codec import Raw, raw_view
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NAME, BY_NUMBER, Array, nbytes
from dnnc.onnx.ort import load_onnxruntime
from dnnc.onnx.providers import ON_CUDA
from ir.core.types import DType

FEW_BITS = b"MatMulNBits"
"""The type of a product by weights of few bits, as it stands in a model's bytes. Without packed weights onnxruntime computes
it from weights that it widens first: slower, and another number than the step's, whose rows are rounded to 8 bits."""
_ELEMENT = {"float": "float32", "double": "float64"}
"""Element types that onnxruntime names otherwise than numpy."""


@dataclass(slots=True)
class _Model:
    """A session, and the tensors of its inputs and outputs by name: element and shape, which are numbers."""

    session: Any
    inputs: dict[str, ValueSpec]
    outputs: dict[str, ValueSpec]

    @classmethod
    def of(cls, session: Any) -> _Model:
        return cls(
            session, *({one.name: spec_of(one) for one in ports} for ports in (session.get_inputs(), session.get_outputs()))
        )


class Bound(NamedTuple):
    """What a step runs: ``run``, then the copies (target, source) to make, then it draws from ``logits``, None where the stage
    makes none. A source is an array, or a tensor on a GPU."""

    run: Callable[[], object]
    copies: list[tuple[Array, Any]]
    logits: Raw | None


@dataclass(slots=True)
class Binding:
    """Where a run reads and writes, and what it runs there, by program, group and turns."""

    feeds: Mapping[str, Raw]
    targets: Mapping[str, Raw]
    made: dict[tuple[int, ...], Bound] = field(default_factory=dict)


class Stateful(ABC):
    """A ``Runnable`` with states. A run reads its group and its program from the table ``CONTROL``; without that table, as in
    ``dnnc run``, each run is a step of group 0."""

    turns, turn, in_place, parts = 1, 0, True, 0

    def __init__(self, told: Mapping[str, Any]) -> None:
        """``told``: ``wiring.role_of``."""
        self.told = told
        self._states = {group: [self.buffers(state) for state in told["states"]] for group in told["served"]}
        self._turns = dict.fromkeys(told["served"], 0)
        self._position = np.zeros(told["batch"], np.int64)

    @abstractmethod
    def buffers(self, state: Mapping[str, Any]) -> list[Any]:
        """The buffers of a state of one group, all zeros: one, or two that take turns (``buffer_count``)."""

    @abstractmethod
    def bound(self, binding: Binding, kind: int, group: int) -> Bound:
        """What a step of a group runs in its turn; ``kind``: of which program."""

    def turn_of(self, kind: int) -> int:
        """Which of the places of its own, other than states, the next step of a program uses."""
        return 0

    def held(self, group: int) -> dict[str, Any]:
        """The buffers that a step of a group reads, and writes, in its turn, by the names of states and of what they become."""
        turn, found = self._turns[group], dict[str, Any]()
        for state, buffers in zip(self.told["states"], self._states[group], strict=True):
            found[state["name"]] = buffers[turn % len(buffers)]
            if state["result"]:
                found[state["result"]] = buffers[(turn + 1) % len(buffers)]
        return found

    def bind(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Binding:
        return Binding(feeds, targets)

    def output_places(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Mapping[str, Raw]:
        return targets

    def run_bound(self, binding: Binding) -> None:
        """Runs the program that the control table names on the states of its group; draws tokens where they are wanted."""
        control = binding.feeds.get(CONTROL)
        table = None if control is None else control.data.reshape(-1, WORDS)
        kind, group = (STEP, 0) if table is None else (int(table[0, KIND]), int(table[0, GROUP]))
        self.parts = 1 if kind == STEP else 0
        if table is not None:
            np.copyto(self._position, table[1:, POSITION])
            new = np.flatnonzero(table[1:, RESET]).tolist()
            for sequence in new:
                self._reset(group, sequence)
            self._take_given(group, new, binding.feeds)
        key = (kind, group, self._turns[group], self.turn_of(kind))
        if key not in binding.made:
            bound = self.bound(binding, kind, group)
            binding.made[key] = bound._replace(copies=[*bound.copies, *self._leaving(binding, group)])
        run, copies, logits = binding.made[key]
        run()
        self._turns[group] ^= 1
        for target, source in copies:
            np.copyto(target, source if isinstance(source, np.ndarray) else source.numpy().reshape(-1).view(np.uint8))
        tokens = binding.targets.get(TOKENS)
        if table is not None and tokens is not None and logits is not None:
            _draw(logits, table[1:], tokens.data, binding.targets.get(LOGITS))

    def _leaving(self, binding: Binding, group: int) -> list[tuple[Array, Any]]:
        """Copies of what states become where another stage reads that, too."""
        held, copies = self.held(group), list[tuple[Array, Any]]()
        for state in self.told["states"]:
            if state["result"] in binding.targets:
                buffer, size = held[state["result"]], nbytes(BY_NAME[numpy_name(state["dtype"])], tuple(state["shape"]))
                target = binding.targets[state["result"]].data.reshape(-1).view(np.uint8)[:size]
                copies.append((target, buffer[:size] if isinstance(buffer, np.ndarray) else buffer))
        return copies

    def _reset(self, group: int, sequence: int) -> None:
        """Zeros of a sequence's recurrent states, of those that are here. A cache needs none: what another sequence has left
        there is masked."""
        for state, buffers in zip(self.told["states"], self._states[group], strict=True):
            if state["axis"] is not None or not state["result"]:
                continue
            shape, own = tuple(state["shape"]), tuple[Any, ...]()
            if state["sequences"] is not None:
                dim, first = state["sequences"]
                if not first <= sequence < first + shape[dim]:
                    continue
                own = (*(slice(None),) * dim, sequence - first)
            buffer = buffers[self._turns[group] % len(buffers)]
            if isinstance(buffer, np.ndarray):
                size = nbytes(BY_NAME[numpy_name(state["dtype"])], shape)
                buffer[:size].reshape((*shape[: len(own)], -1))[own] = 0
            else:
                values = buffer.numpy()
                values[own] = 0
                buffer.update_inplace(values)

    def _take_given(self, group: int, new: Sequence[int], feeds: Mapping[str, Raw]) -> None:
        """Writes what the ``new`` sequences of a group are given (``given.given_bytes``) into their states."""
        raw = next((value for name, value in feeds.items() if name.startswith(GIVEN)), None)
        data = np.empty(0, np.uint8) if raw is None else raw.data.reshape(-1)
        if raw is None or not data.size:
            return
        for sequence in new:
            for state, buffers in zip(self.told["states"], self._states[group], strict=True):
                if state["result"]:
                    continue
                size = nbytes(BY_NAME[numpy_name(state["dtype"])], tuple(state["shape"])) // self.told["batch"]
                if isinstance(buffers[0], np.ndarray):
                    buffers[0][sequence * size :][:size] = data[:size]
                else:
                    values = buffers[0].numpy()
                    values.reshape(-1).view(np.uint8)[sequence * size :][:size] = data[:size]
                    buffers[0].update_inplace(values)
                data = data[size:]


class StatefulProgram(Stateful):
    """The ``Loaded`` of a stage with states on one device."""

    def __init__(
        self,
        models: tuple[bytes, bytes | None],
        told: Mapping[str, Any],
        outputs: tuple[ValueSpec, ...],
        settings: Settings,
        weights: Mapping[str, int] | None,
    ) -> None:
        """``models``: the step and the prompt program; ``told``: ``wire.role_of``. Raises what ``open_session`` raises, and
        ValueError for models that are not those of the states."""
        self.outputs = outputs
        step, prompt = models
        self.models = [_Model.of(open_session(step, settings, weights))]
        if prompt is not None:
            self.models.append(_Model.of(open_session(prompt, replace(settings, packed=FEW_BITS in prompt), weights)))
        first = self.models[0]
        self.input_names = tuple(name for name in first.inputs if name not in {state["name"] for state in told["states"]})
        self._cuda = settings.provider.name in ON_CUDA
        super().__init__(told)
        self._logits = {
            kind: np.zeros(nbytes(BY_NUMBER[spec.element], spec.shape or ()), np.uint8)
            for kind, model in enumerate(self.models)
            if (spec := model.outputs.get(told["logits"])) is not None
        }

    @property
    def ops_taken(self) -> Mapping[str, int]:
        """How many nodes each provider took; empty for a program on the CPU alone."""
        return sum((nodes_by_provider(model.session) for model in self.models[1:]), nodes_by_provider(self.models[0].session))

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw] | None = None) -> dict[str, Any]:
        """Runs once into ``targets``, or into new buffers."""
        places = dict(targets or {})
        for spec in self.outputs:
            if spec.name not in places and spec.shape is not None:
                buffer = np.empty(nbytes(BY_NUMBER[spec.element], spec.shape), np.uint8)
                places[spec.name] = raw_view(spec.element, spec.shape, buffer)
        self.run_bound(self.bind(feeds, places))
        return {**places}

    def take_spans(self, start: float, end: float) -> list[tuple[str, float, float, str]]:
        return [("F", start, end, "")]

    def bound(self, binding: Binding, kind: int, group: int) -> Bound:
        """A binding of a session. Copies are of logits that the starter wants, and of inputs that are handed on, which a
        binding does not write (onnxruntime 1.32)."""
        model, copies = self.models[kind], list[tuple[Array, Any]]()
        bound, held = model.session.io_binding(), self.held(group)
        own = {self.told["position"]: self._position} if CONTROL in binding.feeds else {}
        for name, spec in model.inputs.items():
            if name in held:
                _bind(bound.bind_input, bound.bind_ortvalue_input, name, spec, held[name])
            else:
                _bind(bound.bind_input, None, name, spec, own[name] if name in own else place_of(name, spec, binding.feeds))
        logits = self._logits.get(kind)
        for name, spec in model.outputs.items():
            if name in held:
                _bind(bound.bind_output, bound.bind_ortvalue_output, name, spec, held[name])
            elif name in model.inputs:
                if name in binding.targets:
                    copies.append((place_of(name, spec, binding.targets), place_of(name, spec, binding.feeds)))
            elif logits is not None and name == self.told["logits"]:
                _bind(bound.bind_output, None, name, spec, logits)
                if name in binding.targets:
                    copies.append((place_of(name, spec, binding.targets), logits))
            elif name in binding.targets:
                _bind(bound.bind_output, None, name, spec, place_of(name, spec, binding.targets))
        drawn = None
        if logits is not None:
            spec = model.outputs[self.told["logits"]]
            drawn = raw_view(spec.element, spec.shape or (), logits)
        return Bound(lambda: model.session.run_with_iobinding(bound), copies, drawn)

    def buffers(self, state: Mapping[str, Any]) -> list[Any]:
        """Bytes, or on a GPU tensors there."""
        element = BY_NAME[numpy_name(state["dtype"])]
        spec = self.models[0].inputs.get(state["name"])
        if spec is None or (state["result"] and state["result"] not in self.models[0].outputs):
            raise ValueError(f"the program does not read '{state['name']}' and write '{state['result']}'")
        if spec.shape != tuple(state["shape"]) or spec.element != element.number:
            raise ValueError(f"state '{state['name']}' is {spec.shape} in the program, {tuple(state['shape'])} in the plan")
        if self._cuda:
            zeros = np.zeros(spec.shape, np.dtype(element.carrier))
            make = load_onnxruntime().OrtValue.ortvalue_from_numpy
            return [make(zeros, "cuda", 0) for _ in range(buffer_count(state))]
        return host_buffers(state)


def spec_of(port: Any) -> ValueSpec:
    """The tensor of an input or output of a session. Raises ValueError where a dimension is no number."""
    element = port.type.removeprefix("tensor(").removesuffix(")")
    if not all(isinstance(dim, int) for dim in port.shape):
        raise ValueError(f"'{port.name}' has shape {port.shape}: all dimensions of a program with states are numbers")
    return ValueSpec(port.name, BY_NAME[_ELEMENT.get(element, element)].number, tuple(port.shape))


def buffer_count(state: Mapping[str, Any]) -> int:
    """The buffers of a state: one where new positions are written beside others or none are written, else two, which take
    turns."""
    return 1 if state["axis"] is not None or not state["result"] else 2


def host_buffers(state: Mapping[str, Any]) -> list[Array]:
    """The bytes of a state in memory of the host, all zeros."""
    size = nbytes(BY_NAME[numpy_name(state["dtype"])], tuple(state["shape"]))
    return [np.zeros(max(size, 1), np.uint8) for _ in range(buffer_count(state))]


def numpy_name(dtype: str) -> str:
    """Numpy's name of an element type of the IR."""
    return DType(dtype).numpy_name


def place_of(name: str, spec: ValueSpec, places: Mapping[str, Raw]) -> Array:
    """The bytes of a value at the begin of its place. Raises ValueError where there is none or it is too small."""
    raw, size = places.get(name), spec.size or 0
    if raw is None or raw.data.nbytes < size:
        raise ValueError(f"'{name}', of {size} bytes, has a place of {0 if raw is None else raw.data.nbytes}")
    return raw.data.reshape(-1).view(np.uint8)[:size]


def _bind(bind: Any, bind_ortvalue: Any, name: str, spec: ValueSpec, place: Any) -> None:
    if isinstance(place, np.ndarray):
        bind(name, "cpu", 0, spec.element, list(spec.shape or ()), place.ctypes.data)
    else:
        bind_ortvalue(name, place)


def _draw(logits: Raw, rows: Array, tokens: Array, shown: Raw | None) -> None:
    """Writes the next token of each sequence that wants one, of the others -1; into ``shown`` the logits of each. ``logits``:
    ``[batch, tokens, vocabulary]``."""
    values = logits.data.reshape(logits.shape)
    tokens.fill(-1)
    for sequence in np.flatnonzero(rows[:, ROW] >= 0):
        row = rows[sequence]
        temperature, top_p = row[[TEMPERATURE, TOP_P]].view(np.float64).tolist()
        drawn_from = _float32(values[sequence, row[ROW]], logits.element)
        if shown is not None:
            shown.data[sequence] = drawn_from
        tokens[sequence] = next_token(
            drawn_from,
            temperature=temperature,
            top_k=int(row[TOP_K]),
            top_p=top_p,
            seed=int(row[SEED]),
            count=int(row[COUNT]),
        )


def _float32(row: Array, element: int) -> Array:
    if BY_NUMBER[element].name == "bfloat16":
        return (row.astype(np.uint32) << 16).view(np.float32)
    return row.astype(np.float32, copy=False)
