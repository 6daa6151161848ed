"""The microbatches of training, by number: number k is the same whatever the plan, and the same when it is asked for again.

Sources: ``synthetic`` (a pool of random microbatches in the ranges that the model needs, over and over, so that a model can
learn it),
an ``.npz`` file of samples by input, in an order shuffled anew each time all were seen, and ``module:function``, an importable
function that is called with the seed and yields a dict of arrays for each microbatch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dnnc.program.build import Port
from dnnc.runtime.generate import Demand, input_demands, random_microbatch
from dnnc.runtime.npz import read_npz
from ir.diagnostics import InvalidInput, UsageError
from ir.module import Module

POOL = 16
"""Random microbatches that training goes through over and over."""
SYNTHETIC = "synthetic"


class Data(Protocol):
    """Where microbatches come from."""

    def microbatch(self, number: int) -> Mapping[str, Any]:
        """The arrays of the model's inputs, by name. Raises InvalidInput for what does not fit the model."""
        ...


def open_data(source: str, module: Module, seed: int) -> Data:
    """The source that a person named, for the inputs of the model. Raises UsageError, InvalidInput."""
    ports = [Port.of(value.name[1:], value.type) for value in module.entry.args]
    if source == SYNTHETIC:
        return _Synthetic(ports, input_demands(module), seed)
    if source.endswith(".npz"):
        return _Samples(ports, _samples(Path(source), ports), seed)
    if ":" in source:
        return _Function(ports, source, seed)
    raise UsageError("expected synthetic, a file FILE.npz, or module:function", where=f"--data {source}")


@dataclass(frozen=True)
class _Synthetic:
    ports: list[Port]
    demands: Mapping[str, Demand]
    seed: int
    drawn: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def microbatch(self, number: int) -> Mapping[str, Any]:
        place = number % POOL
        if place not in self.drawn:
            self.drawn[place] = random_microbatch(self.ports, self.demands, self.seed * POOL + place)
        return self.drawn[place]


@dataclass(frozen=True)
class _Samples:
    """Samples stand along the first dimension of each array; an input without dimensions is the same for all."""

    ports: list[Port]
    arrays: Mapping[str, Any]
    seed: int

    def microbatch(self, number: int) -> Mapping[str, Any]:
        sizes = {port.name: int(port.shape[0]) for port in self.ports if port.shape}  # type: ignore[arg-type]
        count = min(len(self.arrays[name]) // size for name, size in sizes.items())
        epoch, place = divmod(number, count)
        samples = count * max(sizes.values())
        order = np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(samples)
        return {port.name: self._rows(port, order, place) for port in self.ports}

    def _rows(self, port: Port, order: Any, place: int) -> Any:
        array = self.arrays[port.name]
        if not port.shape:
            return array
        size = int(port.shape[0])  # type: ignore[arg-type]
        return array[order[place * size : (place + 1) * size] % len(array)]


def _samples(path: Path, ports: list[Port]) -> dict[str, Any]:
    arrays = read_npz(path)
    for port in ports:
        if port.name not in arrays:
            raise InvalidInput(
                f"it has no array '{port.name}'", where=str(path), hint=f"the model reads {', '.join(p.name for p in ports)}"
            )
        array, shape = arrays[port.name], tuple(port.shape or ())
        if array.shape[1:] != shape[1:] or array.ndim != len(shape) or (shape and len(array) < int(shape[0])):  # type: ignore[arg-type]
            wanted = (
                f"[samples, {', '.join(map(str, shape[1:]))}] with at least {shape[0]} samples" if shape else "no dimensions"
            )
            raise InvalidInput(f"array '{port.name}' has the shape {list(array.shape)}; expected {wanted}", where=str(path))
        if str(array.dtype) != port.dtype:
            raise InvalidInput(f"array '{port.name}' holds {array.dtype}; expected {port.dtype}", where=str(path))
    lengths = {port.name: len(arrays[port.name]) // int(port.shape[0]) for port in ports if port.shape}  # type: ignore[arg-type]
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise InvalidInput(f"the arrays hold different numbers of microbatches: {told}", where=str(path))
    return arrays


@dataclass
class _Function:
    """Microbatches of a function are kept only as long as the step may ask for them: it is asked in ascending order."""

    ports: list[Port]
    source: str
    seed: int
    yielded: int = 0
    kept: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    stream: Iterator[Mapping[str, Any]] | None = None

    def microbatch(self, number: int) -> Mapping[str, Any]:
        if self.stream is None or number < self.yielded - len(self.kept):
            self.stream, self.yielded = iter(self._called()), 0
            self.kept.clear()
        while self.yielded <= number:
            try:
                arrays = next(self.stream)
            except Exception as error:
                if not isinstance(error, StopIteration):
                    raise InvalidInput(f"it raised {type(error).__name__}: {error}", where=self.source) from error
                message = f"it yields {self.yielded} microbatches; training needs number {number}"
                raise InvalidInput(message, where=self.source, hint="yield without an end, or train fewer steps") from None
            self.kept[self.yielded] = self._checked(arrays)
            self.yielded += 1
            self.kept.pop(self.yielded - 4096, None)
        return self.kept[number]

    def _called(self) -> Any:
        name, _, attribute = self.source.partition(":")
        try:
            return getattr(importlib.import_module(name), attribute)(self.seed)
        except (ImportError, AttributeError) as error:
            raise UsageError(
                str(error), where=f"--data {self.source}", hint="name an importable module and its function"
            ) from error

    def _checked(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {}
        for port in self.ports:
            if port.name not in arrays:
                raise InvalidInput(f"a microbatch lacks '{port.name}'", where=self.source)
            array = np.asarray(arrays[port.name])
            if array.shape != tuple(port.shape or ()) or str(array.dtype) != port.dtype:
                got = f"{array.dtype}{list(array.shape)}"
                raise InvalidInput(f"'{port.name}' is {got}; expected {port.dtype}{list(port.shape or ())}", where=self.source)
            found[port.name] = array
        return found


__all__ = ["SYNTHETIC", "Data", "open_data"]
