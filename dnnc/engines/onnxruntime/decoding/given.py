"""What a sequence is given where it begins: states that each of its steps reads and none changes, such as what an encoder made
of a text to translate.

Their arrays go to the stages that read them with the first step of the sequence, and once more where its caches are computed
again. They may be shorter than the build's, which was compiled for the longest: the rest is zeros, which a mask must hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnnc.build.decoding import Decoding, State, hides
from dnnc.engines.onnxruntime.decoding.faults import GivenTooShort, StateMissing, StateUnknown, WrongState
from dnnc.onnx.elements import Array
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.types import DType


def given_arrays(decoding: Decoding, states: Mapping[str, Any], where: str = "states") -> dict[str, Array]:
    """The arrays of one sequence, by name, each in the shape of its state without the batch. ``states``: arrays of that shape,
    or with a first dimension of 1, and maybe shorter in one dimension, the same length in all. A state has its own name or that
    of the output of an encoder that makes it (``present`` for ``past_key_values``). A mask that is left out is 1 for what is
    given. Raises UsageError for arrays that are missing or unknown, InvalidInput for those of other types; ``where`` says in
    the errors where the arrays are from."""
    given = decoding.given
    names = {one: name for name in given for one in (name, _of_encoder(name))}
    if unknown := [name for name in states if name not in names]:
        raise UsageError(StateUnknown(unknown[0], tuple(given)), where=f"{where}: {unknown[0]}")
    arrays = {names[name]: _one(given[names[name]], value, f"{where}: {name}") for name, value in states.items()}
    masks = [name for name in given if hides(name)]
    if missing := [name for name in given if name not in arrays and name not in masks]:
        needed = tuple(name for name in given if name not in masks)
        raise UsageError(StateMissing(missing[0], needed), where=where)
    lengths = {_length(given[name], array) for name, array in arrays.items()} - {None}
    if len(lengths) > 1:
        raise InvalidInput(WrongState(", ".join(arrays), f"lengths {sorted(map(str, lengths))}", "one"), where=where)
    if lengths and not masks:
        raise InvalidInput(GivenTooShort(next(iter(arrays))), where=where)
    for name in masks:
        if name not in arrays:
            length = next(iter(lengths), given[name].shape[-1])
            arrays[name] = np.ones((*given[name].shape[1:-1], length), _dtype(given[name]))
    return {name: _filled(array, given[name].shape[1:]) for name, array in arrays.items()}


def given_bytes(states: Sequence[State], arrays: Sequence[Mapping[str, Array]]) -> Array:
    """The bytes of what sequences are given, one sequence after the other, in the order of the ``states`` of a stage."""
    parts = [np.ascontiguousarray(of[state.name]).reshape(-1).view(np.uint8) for of in arrays for state in states]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _of_encoder(name: str) -> str:
    return name.replace("past_key_values", "present", 1)


def _dtype(state: State) -> np.dtype[Any]:
    return np.dtype(DType(state.dtype).numpy_name)


def _one(state: State, value: Any, where: str) -> Array:
    """The array of a state, without a first dimension of 1."""
    array, expected = np.asarray(value), state.shape[1:]
    if array.ndim == len(expected) + 1 and array.shape[0] == 1:
        array = array[0]
    fits = array.dtype == _dtype(state) and array.ndim == len(expected) and all(map(np.less_equal, array.shape, expected))
    if not fits or sum(map(np.not_equal, array.shape, expected)) > 1:
        told = f"{state.dtype}{list(expected)}, or shorter in one dimension"
        raise InvalidInput(WrongState(state.name, f"{array.dtype}{list(array.shape)}", told), where=where)
    return array


def _length(state: State, array: Array) -> int | None:
    """The length of an array that is shorter than its state."""
    return next((have for have, room in zip(array.shape, state.shape[1:], strict=True) if have != room), None)


def _filled(array: Array, shape: Sequence[int]) -> Array:
    whole = np.zeros(shape, array.dtype)
    whole[tuple(map(slice, array.shape))] = array
    return whole
