"""What ``dnnc.plan`` may be asked for, beside the model and its machines: the options of ``dnnc compile`` as keywords; and the
ranges of the numbers that other functions take (``numbers``)."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypedDict, get_args, get_origin, get_type_hints

from dnnc.api.faults import NotAnOption, NotSizes, NumberOutOfRange, OptionOfWrongType, OptionOutOfBounds
from dnnc.compile.flags import BOUNDS, CompileOptions
from dnnc.compile.training import TrainingOptions
from ir.core.diagnostics import UsageError
from ir.core.limits import MOST, MOST_CORES, MOST_SECONDS
from ir.core.ranges import MOST_MICROBATCHES

PathLike: TypeAlias = str | os.PathLike[str]

AUTO = "auto"
NONE = "none"


class PlanOptions(TypedDict, total=False):
    """The options of ``dnnc compile`` (``dnnc compile --help`` has more on each). An option that is left out, or None, is
    decided by the search, or has its default.

    - What counts: ``objective``: ``"throughput"``, ``"latency"``, ``"training"``, or of a decoder ``"tokens"`` or
      ``"token-latency"``; ``time_limit`` of the search in seconds.
    - Stages: ``stages``: their number, or ``"auto"``; ``replicas``: the most devices of a stage; ``cuts``: tensors behind each
      of which a stage begins; ``pins``: ops and their devices; ``split``: ``"contiguous"`` or ``"any"``; ``pieces``: the most
      stages of a device (latency); ``comm``: how compute and transfers add up, ``"sum"``, ``"overlap"`` or ``"duplex"``.
    - Meshes: ``mesh``: the sizes of the axes (``"2x4"``), ``"auto"`` or ``"none"``; ``strategy``: a plan by its name;
      ``shares``: unequal parts, such as ``"3,1"``.
    - States: ``states``: ``"IN=OUT"`` for each input that stays on its device; of a language model with caches
      ``context``, their positions, ``batch``, the sequences of each of ``groups`` groups, either ``"auto"`` with the objective
      tokens, ``chunk``, the tokens of a prompt taken at once, ``prompt_tokens`` of the prompt whose time to the first token is
      told, and ``roles``: ``"NAME=ROLE"`` for each input of an unusual name; ``genai``: write a pipeline for onnxruntime-genai.
    - Training: ``microbatches`` of a step, or its ``samples``; ``loss``: ``"cross-entropy:OUTPUT"``, ``"mse:OUTPUT"`` or
      ``"output:NAME"``;
      ``optimizer``, ``learning_rate``, ``momentum``, ``weight_decay``, ``beta1``, ``beta2``, ``epsilon``, ``nesterov``,
      ``beta2_decay``, ``threshold``, ``epsilon1``, ``epsilon2`` as in ``torch.optim``; ``learning_rate_schedule``:
      ``"cosine,steps=1000,warmup=100"``; ``clip_norm``: the most that the norm of all gradients may be; ``ema``: the decay of
      an average of weights; ``group``: ``"GLOB,learning-rate=NUMBER,weight-decay=NUMBER"`` for each; ``no_decay`` of biases and
      norms; ``schedule``, ``chunks``, ``recompute``, ``sync``, ``batchnorm``, ``dropout``, ``dtype``, and ``loss_scale``
      of ``"f16"``; ``trainable`` and ``frozen``: globs of weights.
    - Reading: ``inputs``: an ``.npz`` of arrays that bind dimensions; ``profile``: files of ``dnnc profile``.
    - Replaying: ``plan``: a ``plan.json`` in place of the search; ``passes``: the passes, as text.
    - Writing: ``weights``: ``"shared"``, ``"per-stage"`` or ``"none"``; ``plan_only``: a plan without programs; ``load_test``:
      onnxruntime opens each program before the build is done; ``report``: the build holds the page."""

    objective: str | None
    time_limit: float | None
    stages: int | Literal["auto"] | None
    replicas: int | None
    cuts: Sequence[str]
    pins: Mapping[str, str]
    split: str | None
    pieces: int | None
    comm: str | None
    mesh: int | str | None
    strategy: str | None
    shares: str | None
    states: Sequence[str]
    roles: Sequence[str]
    context: int | None
    batch: int | Literal["auto"] | None
    groups: int | Literal["auto"] | None
    chunk: int | None
    prompt_tokens: int | None
    genai: bool
    microbatches: int | None
    samples: int | None
    loss: str | None
    optimizer: str | None
    learning_rate: float | None
    momentum: float | None
    weight_decay: float | None
    beta1: float | None
    beta2: float | None
    epsilon: float | None
    nesterov: bool
    beta2_decay: float | None
    threshold: float | None
    epsilon1: float | None
    epsilon2: float | None
    learning_rate_schedule: str | None
    clip_norm: float | None
    ema: float | None
    loss_scale: str | None
    group: str | Sequence[str]
    no_decay: bool
    schedule: str | None
    chunks: int | None
    recompute: str | None
    sync: str | None
    batchnorm: str | None
    dropout: str | None
    dtype: str | None
    trainable: Sequence[str]
    frozen: Sequence[str]
    inputs: PathLike | None
    profile: PathLike | Sequence[PathLike]
    plan: PathLike | None
    passes: str | None
    weights: Literal["shared", "per-stage", "none"] | None
    plan_only: bool
    load_test: bool
    report: bool


_RENAMED = {"passes": "pipeline"}
"""Keywords whose field of ``CompileOptions`` has another name."""
_RANGES: Mapping[str, tuple[Any, float, float]] = {
    **{"threads": (int, 0, MOST_CORES), "devices": (int | None, 1, 1 << 16), "seed": (int | None, 0, MOST)},
    **{"samples": (int, 1, MOST_MICROBATCHES), "steps": (int, 1, MOST)},
    **dict.fromkeys(("in_flight", "every", "eval_every", "patience", "retries"), (int, 0, MOST)),
    **{"tolerance": (float | None, 0, sys.float_info.max), "wait": (float, 0, MOST_SECONDS)},
}
"""Type, least and largest number of each keyword of a function other than ``dnnc.plan``."""
_SIZE = "int or range, or the name of another dimension"
_DIGITS = re.compile(r"\s*[+-]?\d[\d.]*\s*")
"""No name of a dimension."""
_OF_TRAINING = frozenset(one.name for one in fields(TrainingOptions))


def compile_options(model: str, dims: Mapping[str, int | str | range] | None, options: PlanOptions) -> CompileOptions:
    """Those options as data. Raises UsageError for one that there is not, for one of the wrong type, and for a number or a
    range that the command refuses, too."""
    sizes = sizes_of("dnnc.plan", dims)
    plain: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for name, value in options.items():
        if name not in PlanOptions.__annotations__:
            raise UsageError(NotAnOption(name, tuple(sorted(PlanOptions.__annotations__))), where="dnnc.plan")
        if value is not None:
            _require(name, value, _types()[name])
            _require_bounds(name, value)
            (training if name in _OF_TRAINING else plain)[_RENAMED.get(name, name)] = _as_field(name, _plain(value))
    if plain.get("stages") == AUTO:  # 0 is the best number of stages on meshes; without them None is
        plain["stages"] = 0 if plain.get("mesh") not in (None, "", NONE) else None
    return CompileOptions(model, dims=sizes, training=TrainingOptions(**training), **plain)


def sizes_of(where: str, dims: Mapping[str, int | str | range] | None) -> dict[str, Any]:
    """``dims`` with numbers of Python. Raises UsageError for what is no size, a number as text too."""
    _require("dims", dims, Mapping[str, int | str | range] | None, where)
    for name, size in (dims or {}).items():
        if isinstance(size, str) and _DIGITS.fullmatch(size):
            raise UsageError(OptionOfWrongType(f"dims[{name!r}]", repr(size)[:80], _SIZE), where=where)
        if isinstance(size, range) and (not size or size.step != 1 or size.start < 0):
            raise UsageError(NotSizes(name, str(size)[:80]), where=where)
    return {name: _plain(size) for name, size in (dims or {}).items()}


def numbers(where: str, **keywords: Any) -> list[Any]:
    """The values of keywords as numbers of Python, and None where a keyword may be None. Raises UsageError for a value of
    another type, and for one out of its range."""
    for name, value in keywords.items():
        type_, least, most = _RANGES[name]
        _require(name, value, type_, where)
        if value is not None and not least <= value <= most:
            kind = "finite" if isinstance(most, float) else "whole"
            to = f" to {int(most)}" if most < sys.float_info.max else ""
            raise UsageError(NumberOutOfRange(name, str(value)[:80], f"a {kind} number from {least}{to}"), where=where)
    return list(map(_plain, keywords.values()))


def one_of(where: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises UsageError for a value that is none of ``choices``, of which the empty text is the default."""
    if value not in choices:
        expected = " or ".join(map(repr, filter(None, choices)))
        raise UsageError(OptionOfWrongType(name, repr(value)[:80], expected), where=where)


def time_span(where: str, name: str, value: Any) -> float:
    """``value``, seconds, as a float. Raises UsageError for what is no number, and for one that is not above 0, or endless."""
    _require(name, value, float, where)
    if not 0 < value <= MOST_SECONDS:
        expected = f"a number of seconds above 0, at most {MOST_SECONDS:g}"
        raise UsageError(NumberOutOfRange(name, str(value)[:80], expected), where=where)
    return float(value)


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(PlanOptions)


def _require(name: str, value: Any, type_: Any, where: str = "dnnc.plan") -> None:
    if not _is(value, type_):
        raise UsageError(OptionOfWrongType(name, repr(value)[:80], _spelled(type_)), where=where)


def _require_bounds(name: str, value: Any) -> None:
    if name in BOUNDS and value != AUTO:
        least, most = BOUNDS[name]
        if not least <= value <= most:
            raise UsageError(OptionOutOfBounds(name, str(value)[:80], least, most), where="dnnc.plan")


def _is(value: Any, type_: Any) -> bool:
    """Whether a value is of an annotated type; numbers of numpy are numbers."""
    of, parts = get_origin(type_) or type_, get_args(type_)
    if of is Literal:
        return any(value == part for part in parts)
    if of in (int, float):
        return isinstance(value, Integral if of is int else Real) and not isinstance(value, bool)
    if of is Sequence:
        return isinstance(value, Sequence) and all(isinstance(value, str) or _is(one, parts[0]) for one in value)
    if of is Mapping:
        return isinstance(value, Mapping) and all(_is(k, parts[0]) and _is(v, parts[1]) for k, v in value.items())
    return isinstance(value, of) if isinstance(of, type) and of is not UnionType else any(_is(value, part) for part in parts)


def _spelled(type_: Any) -> str:
    """A type in words, without None."""
    of, parts = get_origin(type_) or type_, get_args(type_)
    if of is Literal:
        return " or ".join(map(repr, parts))
    if of is Sequence:
        return f"a sequence of ({_spelled(parts[0])})" if get_args(parts[0]) else f"a sequence of {_spelled(parts[0])}"
    if of is Mapping:
        return f"a mapping of {_spelled(parts[0])} to {_spelled(parts[1])}"
    if isinstance(of, type) and of is not UnionType:
        return of.__name__
    return " or ".join(_spelled(part) for part in parts if part is not NoneType)


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python; another value as it is."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return operator.index(value) if isinstance(value, Integral) else float(value)


def _as_field(name: str, value: Any) -> Any:
    """The value as its field of ``CompileOptions`` holds it."""
    if name in ("inputs", "plan"):
        return Path(value)
    if name == "profile":
        return (Path(value),) if isinstance(value, str | os.PathLike) else tuple(map(Path, value))
    if name in ("cuts", "group", "trainable", "frozen"):
        return (value,) if isinstance(value, str) else tuple(value)
    if name == "pins":
        return dict(value)
    return str(value) if name == "mesh" else value
