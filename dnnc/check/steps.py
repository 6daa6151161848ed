"""A decoder that is not split, run token by token in one session of onnxruntime, with caches of its own.

It is the user's model, whose caches are what they are there, not what ``passes.prepare.states`` makes of them. The declared
shape of a cache tells its kind:

- *growing*: its length is open and another one after the step. It begins empty, and each step returns a longer one;
- *in place*: its length is the same after the step;
- *appended*: its length is a number, one less than after the step. Attention does not ask for an order, so token j of a
  sequence is kept in slot j, and what the step appends is moved from the last slot to the token's own.

Everything else that a step reads follows from its position, by the role of the input (``dnnc.build.decoding.ROLES``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dnnc.build.decoding import Decoding, State
from dnnc.check.reference import Reference
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.engines.onnxruntime.transport.codec import Raw, to_raw, to_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NAME, BY_NUMBER, Array

GROWING, IN_PLACE, APPENDED = "growing", "in place", "appended"
_ELEMENT = {"float": "float32", "double": "float64"}
"""Element types that onnxruntime names otherwise than numpy."""


@dataclass(slots=True)
class _Cache:
    """A state and its tensor now. ``kind``: one of the above; empty for a state that is new in each step."""

    state: State
    kind: str
    value: Raw

    def take(self, result: Raw, position: int) -> None:
        """``result``: the tensor after the step at ``position``."""
        if self.kind != APPENDED:
            self.value = result
            return
        assert self.state.axis is not None
        slots, new = (np.moveaxis(raw.data, self.state.axis, 0) for raw in (self.value, result))
        if position < len(slots):
            slots[position] = new[-1]


class Steps:
    """The steps of ``reference`` for groups of sequences that are all equally long. ``inputs``: the roles of its inputs."""

    def __init__(
        self, reference: Reference, decoding: Decoding, inputs: Mapping[str, str], threads: int = 1, *, optimize: bool = True
    ) -> None:
        """Raises what onnxruntime raises."""
        self.decoding, self.inputs = decoding, inputs
        names = (decoding.logits, *(state.result for state in decoding.states if state.result))
        outputs = tuple(ValueSpec(name) for name in names)
        self.program = Program(reference.model, outputs, Settings(threads=threads, optimize=optimize), reference.weights)
        session = self.program.session
        self.ports = {port.name: port for port in session.get_inputs()}
        self.after = {port.name: port.shape for port in session.get_outputs()}
        self.caches: list[_Cache] = []
        self.sizes: dict[str, int] = {}

    def begin(self, given: Sequence[Mapping[str, Array]] = ()) -> None:
        """Empties all states; ``given``: what each sequence is given (``given_arrays``)."""
        self.caches = [self._empty(state) for state in {state.name: state for state in self.decoding.states}.values()]
        for cache in self.caches:
            for row, arrays in enumerate(given if not cache.state.result else ()):
                cache.value.data[row] = arrays[cache.state.name]

    def logits(self, position: int, tokens: Sequence[int]) -> Array:
        """The logits ``[batch, vocabulary]`` behind these tokens, one of each sequence, all at ``position``. Raises what
        onnxruntime raises."""
        feeds = {cache.state.name: cache.value for cache in self.caches}
        for name in self.ports:
            if name not in feeds:
                feeds[name] = self._fed(name, position, tokens)
        results = self.program.run(feeds)
        for cache in self.caches:
            if cache.state.result:
                cache.take(results[cache.state.result], position)
        logits = np.asarray(to_user(results[self.decoding.logits]))
        return logits[:, 0] if logits.ndim == 3 else logits

    def _empty(self, state: State) -> _Cache:
        declared, shape, kind = self.ports[state.name].shape, list(state.shape), ""
        if state.axis is not None:
            before, after = declared[state.axis], self.after[state.result][state.axis]
            if isinstance(before, int):
                kind = IN_PLACE if before == shape[state.axis] else APPENDED
                shape[state.axis] = before
            else:
                kind = IN_PLACE if before == after else GROWING
                shape[state.axis] = shape[state.axis] if kind == IN_PLACE else 0
        self.sizes.update({dim: size for dim, size in zip(declared, shape, strict=True) if isinstance(dim, str)})
        element = BY_NUMBER[self._element(state.name)]
        return _Cache(state, kind, Raw(element.number, tuple(shape), np.zeros(shape, np.dtype(element.carrier))))

    def _fed(self, name: str, position: int, tokens: Sequence[int]) -> Raw:
        """An input that is no state."""
        role, batch = self.inputs.get(name), self.decoding.batch
        value: Array
        if role == "ids":
            value = np.array(tokens).reshape(batch, 1)
        elif role == "mask":
            value = np.tile(self._seen(self.ports[name].shape[1], position), (batch, 1))
        elif role == "positions":
            value = np.full((batch, 1), position)
        elif role in ("position", "lengths"):
            value = np.full(batch, position + (role == "lengths"))
        elif role == "branch":
            value = np.ones(1)
        else:  # no op reads it, or it would have a role
            value = np.zeros([dim if isinstance(dim, int) else self.sizes.get(dim, 1) for dim in self.ports[name].shape])
        return to_raw(value.astype(BY_NUMBER[self._element(name)].carrier))

    def _seen(self, length: int | str, position: int) -> Array:
        """The mask of a step: 1 for each slot with a token."""
        if not isinstance(length, int):
            length = self.decoding.context if any(cache.kind == IN_PLACE for cache in self.caches) else position + 1
        slots = np.arange(length)
        if any(cache.kind == APPENDED for cache in self.caches):
            last: Array = np.logical_or(slots < position, slots == length - 1)
            return last
        seen: Array = np.less_equal(slots, position)
        return seen

    def _element(self, name: str) -> int:
        element: str = self.ports[name].type.removeprefix("tensor(").removesuffix(")")
        return BY_NAME[_ELEMENT.get(element, element)].number


def steps_of(reference: Reference, decoding: Decoding, threads: int, *, optimize: bool) -> Steps | None:
    """The steps of a reference; None where the build does not say what the inputs of the user's model are. Raises what
    onnxruntime raises."""
    if not reference.original:
        return Steps(reference, decoding, {decoding.ids: "ids", decoding.position: "position"}, threads, optimize=optimize)
    if decoding.inputs is None:
        return None
    return Steps(reference, decoding, decoding.inputs, threads, optimize=optimize)
