"""Runs a model in an ONNX Runtime session, with inputs and outputs in place where possible. ``dnnc run`` and ``check`` use it.

Imports no third party but numpy and onnxruntime, because the process of a device must start fast.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnnc.engines.onnxruntime.session.pinned import pin
from dnnc.engines.onnxruntime.session.session import DEFAULT, Settings, nodes_by_provider, open_session
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NUMBER, nbytes
from dnnc.onnx.ort import load_onnxruntime
from dnnc.onnx.providers import ON_CUDA

_NO_NUMPY = re.compile(r"\((bfloat16|u?int[24]|float4e2m1)\)")
"""Element types of which onnxruntime makes no numpy array. Of 8-bit floats it makes one of their bytes."""


class Program:
    """A model in an ONNX Runtime session: a ``Loaded`` of the engine. It has one turn, because it takes part in no
    collectives."""

    turns, parts = 1, 0

    def __init__(
        self,
        model: bytes,
        outputs: tuple[ValueSpec, ...],
        settings: Settings = DEFAULT,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """``outputs``: the wanted ones, none for all; ``weights`` as in ``open_session``. Raises what ``open_session`` raises,
        and ValueError for an output that onnxruntime cannot return."""
        self.turn = 0
        self.session = open_session(model, settings, weights)
        self.input_names = tuple(value.name for value in self.session.get_inputs())
        self.outputs = outputs
        self._value = load_onnxruntime().OrtValue
        self._on_cuda = settings.provider.name in ON_CUDA
        numeric_inputs = all(
            value.type.startswith("tensor(") and "string" not in value.type for value in self.session.get_inputs()
        )
        types = {value.name: value.type for value in self.session.get_outputs()}
        wanted = {spec.name: types.get(spec.name, "") for spec in outputs} or types
        self._in_place = numeric_inputs and all(spec.element for spec in outputs)
        # Tensors of strings can be outputs of a binding too, though not in place.
        self._bindable = numeric_inputs and all(type_.startswith("tensor(") for type_ in wanted.values())
        unreadable = next((name for name, type_ in wanted.items() if _NO_NUMPY.search(type_)), "")
        if unreadable and not self._bindable:
            # onnxruntime (1.32) binds no inputs of strings, and no sequences, maps and optionals. Without a binding it returns
            # numpy arrays, which lack these element types.
            beside = "that reads strings" if not numeric_inputs else "that hands out a sequence, a map or an optional too"
            name = f"'{unreadable}', {types[unreadable]}"
            raise ValueError(f"onnxruntime does not hand out {name}, of a program {beside}: cast it")
        # A binding does not write an output that is also an input (onnxruntime 1.31), so such an output is passed through here.
        self._computed = tuple(spec.name for spec in outputs if spec.name not in self.input_names)
        self._passed_through = tuple(spec.name for spec in outputs if spec.name in self.input_names)

    @property
    def ops_taken(self) -> Mapping[str, int]:
        """How many nodes each provider took; empty for a program on the CPU alone."""
        return nodes_by_provider(self.session)

    @property
    def in_place(self) -> bool:
        """Whether all inputs and outputs are tensors of fixed-width elements."""
        return self._in_place

    def bind(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Any:
        """A binding that reads ``feeds`` and writes ``targets`` in place, each time that it is run. onnxruntime allocates
        outputs without a target. None when no output is computed."""
        if not self._computed:
            return None
        if self._on_cuda:
            for raw in (*feeds.values(), *targets.values()):
                pin(raw.data)
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

    def output_places(self, feeds: Mapping[str, Raw], targets: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Every output after a binding with these feeds and targets has run: in its target, or the feed that it passes
        through."""
        return {name: feeds.get(name, targets[name]) for name in targets}

    def take_spans(self, start: float, end: float) -> list[tuple[str, float, float, str]]:
        """The spans of the last run, from ``start`` to ``end``: action, start, end, title."""
        return [("F", start, end, "")]

    def run_bound(self, binding: Any) -> None:
        """Runs a binding once."""
        if binding is not None:
            self.session.run_with_iobinding(binding)

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw] | None = None) -> dict[str, Any]:
        """Runs once; returns the outputs by name. A result is the target of its name if it could be written in place. Raises
        what onnxruntime raises."""
        return (self._run_bound if self._in_place or self._bindable else self._run_unbound)(feeds, targets or {})

    def run_all(self, feeds: Mapping[str, Any]) -> None:
        """Runs once on a user's values and drops all outputs: for a profile."""
        self.session.run(None, {name: self._ort_input(from_user(feeds[name])) for name in self.input_names})

    def _run_bound(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw]) -> dict[str, Any]:
        binding = self.bind(feeds, targets)
        self.run_bound(binding)
        results: dict[str, Any] = {}
        for name, value in zip(self._computed, binding.get_outputs() if binding is not None else (), strict=True):
            results[name] = targets.get(name) or (
                from_user(value.numpy()) if value.data_type() == "tensor(string)" else _raw_from_ort(value)
            )
        return results | {name: feeds[name] for name in self._passed_through}

    def _run_unbound(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw]) -> dict[str, Any]:
        names = [spec.name for spec in self.outputs]
        values = self.session.run(names, {name: self._ort_input(feeds[name]) for name in self.input_names})
        return {spec.name: _with_element(from_user(value), spec) for spec, value in zip(self.outputs, values, strict=True)}

    def _ort_input(self, value: Any) -> Any:
        """``value`` as ``InferenceSession.run`` takes it: a tensor is an OrtValue where numpy lacks its element type."""
        if isinstance(value, Raw):
            if BY_NUMBER[value.element].carrier == BY_NUMBER[value.element].name:
                return value.data
            return self._value.ortvalue_from_numpy_with_onnx_type(value.data, value.element)
        return [self._ort_input(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """The executor: each program is a session of ONNX Runtime with these settings."""

    settings: Settings = DEFAULT

    def load(self, model: bytes, outputs: tuple[ValueSpec, ...], weights: Mapping[str, int] | None = None) -> Program:
        return Program(model, outputs, self.settings, weights)


def _with_element(value: Any, spec: ValueSpec) -> Any:
    """``value`` with the element type of its output: a session returns 8-bit floats as bytes."""
    return replace(value, element=spec.element) if isinstance(value, Raw) and spec.element else value


def _raw_from_ort(value: Any) -> Raw:
    """The tensor in an OrtValue, as a view that keeps the OrtValue alive."""
    element, shape = value.element_type(), tuple(value.shape())
    kind = BY_NUMBER[element]
    size = nbytes(kind, shape)
    if size == 0:
        return Raw(element, shape, np.empty(shape if kind.bits >= 6 else (0,), np.dtype(kind.carrier)))
    block: Any = (ctypes.c_uint8 * size).from_address(value.data_ptr())
    block.owner = value  # the buffer lives as long as the view
    data = np.frombuffer(block, np.dtype(kind.carrier))
    return Raw(element, shape, data if kind.bits in (2, 4) else data.reshape(shape))
