"""A model in an ONNX Runtime session, fed and read without copies. Knows nothing of processes, so that ``check`` uses it too.

Imports numpy, onnxruntime and the standard library only: a stage process must start fast.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnnc.engines.onnxruntime.session.session import DEFAULT, Settings, nodes_by_provider, open_session
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NUMBER, nbytes
from dnnc.onnx.ort import load_onnxruntime

_LACKING = re.compile(r"\((bfloat16|u?int[24]|float4e2m1)\)")
"""Elements of which onnxruntime makes no array of numpy. Of 8-bit floats it makes one of their bytes."""


class Program:
    """A stage model in an ONNX Runtime session.

    ``turns``: how many bindings for the same slots differ; ``turn`` is the one to come. A member of a mesh has several."""

    turns = 1

    def __init__(
        self,
        model: bytes,
        outputs: tuple[ValueSpec, ...],
        settings: Settings = DEFAULT,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """``weights``: open files that hold the external data, by the locations that the model names; without them it lies in
        the settings' folder. Raises what ``open_session`` raises, and ValueError for outputs that onnxruntime does not hand
        out."""
        self.turn = 0
        self.session = open_session(model, settings, weights)
        self.input_names = tuple(value.name for value in self.session.get_inputs())
        self.outputs = outputs
        self._value = load_onnxruntime().OrtValue
        inputs_plain = all(
            value.type.startswith("tensor(") and "string" not in value.type for value in self.session.get_inputs()
        )
        self._bound = inputs_plain and all(spec.element for spec in outputs)
        # Strings beside other tensors: numpy lacks elements that the others may have, so all are bound.
        types = {value.name: value.type for value in self.session.get_outputs()}
        asked = {spec.name: types.get(spec.name, "") for spec in outputs} or types
        self._mixed = inputs_plain and all(type_.startswith("tensor(") for type_ in asked.values())
        lost = next((name for name, type_ in asked.items() if _LACKING.search(type_)), "")
        if lost and not self._mixed:
            # There cannot be one way for all: onnxruntime (1.32) binds neither strings that are read nor sequences, maps and
            # optionals; what it hands out without a binding are arrays of numpy, which lacks these elements.
            beside = "that reads strings" if not inputs_plain else "that hands out a sequence, a map or an optional too"
            raise ValueError(f"onnxruntime does not hand out '{lost}', {types[lost]}, of a program {beside}: cast it")
        # An input that is an output too is not written by a binding (onnxruntime 1.31), so it is handed on.
        self._computed = tuple(spec.name for spec in outputs if spec.name not in self.input_names)
        self._handed = tuple(spec.name for spec in outputs if spec.name in self.input_names)

    @property
    def ops_taken(self) -> Mapping[str, int]:
        """How many nodes each provider took; empty for a program on the CPU alone, of which no account is kept."""
        return nodes_by_provider(self.session)

    @property
    def in_place(self) -> bool:
        """Whether all inputs and outputs are tensors of fixed-width elements."""
        return self._bound

    def bind(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Any:
        """A binding that reads ``feeds`` and writes ``targets`` in place, as often as it is run; None when nothing is
        computed."""
        if not self._computed:
            return None
        binding = self.session.io_binding()
        for name in self.input_names:
            raw = feeds[name]
            binding.bind_input(name, "cpu", 0, raw.element, list(raw.shape), raw.data.ctypes.data)
        for name in self._computed:
            target = targets.get(name)
            if target is None:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, "cpu", 0, target.element, list(target.shape), target.data.ctypes.data)
        return binding

    def placed(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Where every output lies once a binding with these feeds and targets has run."""
        return {name: feeds.get(name, targets[name]) for name in targets}

    def take_spans(self, start: float, end: float) -> list[tuple[str, float, float, str]]:
        """What was done from ``start`` to ``end``: action, start, end, title."""
        return [("F", start, end, "")]

    def run_bound(self, binding: Any) -> None:
        """Runs once into the places that ``bind`` was given."""
        if binding is not None:
            self.session.run_with_iobinding(binding)

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw] | None = None) -> dict[str, Any]:
        """Outputs by name. Those in ``targets`` are written there in place. Raises what onnxruntime raises."""
        return (self._run_bound if self._bound or self._mixed else self._run_plain)(feeds, targets or {})

    def run_all(self, feeds: Mapping[str, Any]) -> None:
        """Runs once on a person's values, for what a profile tells of it."""
        self.session.run(None, {name: self._plain(from_user(feeds[name])) for name in self.input_names})

    def _run_bound(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw]) -> dict[str, Any]:
        binding = self.bind(feeds, targets)
        self.run_bound(binding)
        results: dict[str, Any] = {}
        for name, value in zip(self._computed, binding.get_outputs() if binding is not None else (), strict=True):
            results[name] = targets.get(name) or (
                from_user(value.numpy()) if value.data_type() == "tensor(string)" else _raw_of(value)
            )
        return results | {name: feeds[name] for name in self._handed}

    def _run_plain(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw]) -> dict[str, Any]:
        names = [spec.name for spec in self.outputs]
        values = self.session.run(names, {name: self._plain(feeds[name]) for name in self.input_names})
        return {spec.name: _of_element(from_user(value), spec) for spec, value in zip(self.outputs, values, strict=True)}

    def _plain(self, value: Any) -> Any:
        """What ``InferenceSession.run`` takes: an OrtValue for a tensor, since numpy lacks some element types."""
        if isinstance(value, Raw):
            if BY_NUMBER[value.element].carrier == BY_NUMBER[value.element].name:
                return value.data
            return self._value.ortvalue_from_numpy_with_onnx_type(value.data, value.element)
        return [self._plain(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """The executor: each program is a session of ONNX Runtime with these settings."""

    settings: Settings = DEFAULT

    def load(self, model: bytes, outputs: tuple[ValueSpec, ...], weights: Mapping[str, int] | None = None) -> Program:
        return Program(model, outputs, self.settings, weights)


def _of_element(value: Any, spec: ValueSpec) -> Any:
    """The value as the type of its output has it: 8-bit floats leave a session as bytes."""
    return replace(value, element=spec.element) if isinstance(value, Raw) and spec.element else value


def _raw_of(value: Any) -> Raw:
    """The tensor in an OrtValue, as a view that keeps it alive."""
    element, shape = value.element_type(), tuple(value.shape())
    kind = BY_NUMBER[element]
    size = nbytes(kind, shape)
    if size == 0:
        return Raw(element, shape, np.empty(shape if kind.bits >= 6 else (0,), np.dtype(kind.carrier)))
    block: Any = (ctypes.c_uint8 * size).from_address(value.data_ptr())
    block.owner = value  # the buffer lives as long as the view
    data = np.frombuffer(block, np.dtype(kind.carrier))
    return Raw(element, shape, data if kind.bits in (2, 4) else data.reshape(shape))


__all__ = ["OnnxRuntime", "Program"]
