"""Which inputs of a model are its states, and the results that they become: by the names that exporters write.

A pair is *named* by a person (``IN=OUT``) or *recognised*: keys and values of optimum and of onnxruntime-genai
(``past_key_values.0.key`` and ``present.0.key``, with ``past``, ``past_key``, ``cache`` and the like in their place), those
that the function's attribute ``caches`` states, and, only where recurrent states are asked for, ``h0`` and ``hN``, ``state``
and ``stateN``. Names suggest; types decide: input and result have one element type and equal dimensions but for at most one
axis, along which a cache grows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Func
from ir.core.types import TensorType, Type
from passes.prepare.states.faults import NoPair, StateNotNamed, StateTaken, WrongPair

CACHES = "caches"
"""The attribute of a function that lists names of caches, ``IN=OUT``, which a file beside the model states."""
_CACHE_IN = re.compile(
    r"^(past_key_values|past_key_value|past_key|past_value|past_keys|past_values|past_conv|past|cache)(?=[._\d]|$)"
)
_CACHE_OUT = {"past_key": ("present_key",), "past_value": ("present_value",), "past_keys": ("present_keys",)}
_CACHE_OUT |= {"past_values": ("present_values",), "past_conv": ("present_conv",)}
_RECURRENT = (
    (r"^(.*?)0$", (r"\1N", r"\1n", r"\1_n", r"\1_out", r"\1")),
    (r"^(.*?)_?in$", (r"\1_out", r"\1out", r"\1N")),
    (r"^(.*)$", (r"\1N", r"\1_n", r"\1n", r"\1_out", r"new_\1", r"next_\1", r"\1_next", r"\1.next")),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A state: ``source``, the input that holds it before a step, and ``result``, what it becomes (names without ``%``).
    ``grows``: the axis along which the result is longer; None where both have one shape. A state that is given to a sequence
    and then read alone has no result."""

    source: str
    result: str
    grows: int | None = None

    def __str__(self) -> str:
        return f"{self.source}={self.result}"


def caches(func: Func) -> tuple[Pair, ...]:
    """The key/value caches of a decoder among the inputs of ``func``, in their order; those of its attribute ``caches`` have
    the names that it states. What passes through unchanged, as an encoder's keys and values may, is none."""
    unchanged = passing(func)
    texts = next((attribute.value for key, attribute in func.attributes if key == CACHES), ())
    stated: dict[str, str] = dict(text.split("=", 1) for text in texts)
    found = _recognised(func, lambda source: [stated[source]] if source in stated else _cache_results(source))
    return tuple(pair for pair in found if unchanged.get(f"%{pair.result}") != f"%{pair.source}")


def passing(func: Func) -> dict[str, str]:
    """The results of ``func`` that are arguments of it unchanged, with these (names with ``%``)."""
    args = {arg.name for arg in func.args}
    same = {op.results[0].name: op.operands[0] for op in func.ops if op.name == "onnx.Identity" and op.operands[0] in args}
    return {value.name: same[value.name] for value in func.results if value.name in same}


def recurrent(func: Func) -> tuple[Pair, ...]:
    """Inputs and results of one shape whose names say that the result is the input of the next step, caches aside."""
    taken = {pair.source for pair in caches(func)}
    return tuple(pair for pair in _recognised(func, _recurrent_results) if pair.source not in taken and pair.grows is None)


def named(func: Func, texts: Iterable[str]) -> tuple[Pair, ...]:
    """The pairs that ``texts`` name as ``IN=OUT``. Raises UsageError for a text of another form, InvalidInput for names that
    the model lacks or gives twice, and for types that are no state's."""
    inputs = {arg.name[1:]: arg.type for arg in func.args}
    results = {value.name[1:]: value.type for value in func.results}
    pairs: list[Pair] = []
    for text in texts:
        source, equals, result = text.partition("=")
        if not (source and equals and result):
            raise UsageError(StateNotNamed(text), where="--state")
        if source not in inputs or result not in results:
            raise InvalidInput(NoPair(text, tuple(inputs), tuple(results)), where=f"--state {text}")
        if any(source == pair.source or result == pair.result for pair in pairs):
            raise InvalidInput(StateTaken(text), where=f"--state {text}")
        if not _alike(inputs[source], results[result]):
            raise InvalidInput(WrongPair(source, str(inputs[source]), result, str(results[result])), where=f"--state {text}")
        pairs.append(Pair(source, result, _grows(inputs[source], results[result])))
    return tuple(pairs)


def _recognised(func: Func, candidates: Callable[[str], Sequence[str]]) -> Iterable[Pair]:
    results = {value.name[1:]: value.type for value in func.results}
    taken: set[str] = set()
    for arg in func.args:
        source = arg.name[1:]
        for result in candidates(source):
            if result in results and result not in taken and result != source and _alike(arg.type, results[result]):
                taken.add(result)
                yield Pair(source, result, _grows(arg.type, results[result]))
                break


def _cache_results(source: str) -> Sequence[str]:
    """Names of results that the cache ``source`` may become, the likeliest first."""
    found = _CACHE_IN.match(source)
    if found is None:
        return ()
    rest = source[found.end() :]
    words = (*_CACHE_OUT.get(found[1], ()), "present", "present_key_values", f"new_{found[1]}", f"{found[1]}_out")
    return [word + rest for word in words] + [f"{source}_out", f"{source}.out"]


def _recurrent_results(source: str) -> Sequence[str]:
    return [
        re.sub(pattern, result, source) for pattern, results in _RECURRENT if re.match(pattern, source) for result in results
    ]


def _alike(one: Type, other: Type) -> bool:
    """Whether both are dense tensors of one element type and rank that differ in one axis at most."""
    if not (isinstance(one, TensorType) and isinstance(other, TensorType)) or one.dtype is not other.dtype:
        return False
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape) or one.sparse or other.sparse:
        return False
    return sum(a != b for a, b in zip(one.shape, other.shape, strict=True)) <= 1


def _grows(one: Type, other: Type) -> int | None:
    assert isinstance(one, TensorType)
    assert isinstance(other, TensorType)
    axes = [axis for axis, (a, b) in enumerate(zip(one.shape or (), other.shape or (), strict=True)) if a != b]
    return axes[0] if axes else None
