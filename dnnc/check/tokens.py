"""The check of a language model whose caches stay on its devices: what its stages generate, against the unsplit model.

The stages answer prompts of random tokens, of unequal lengths, in chunks and all at once, each with its most likely token. The
unsplit model reads the same tokens one by one, with caches of its own (``steps``). Each answer is compared twice:

- *logits*: of each of its tokens, over the range of the unsplit model's logits of that token;
- *tokens*: each must be the one that the unsplit model finds most likely, or one as likely up to the tolerance: rounding may
  choose between two such.

The tolerance follows from the element type, or from how far the unsplit model's own logits move by rounding (``_compared``).

The unsplit model is the user's. Where its file is gone, or onnxruntime does not run it, it is ``annotated.onnx``, whose caches
were rewritten as those of the stages were, so that a fault of the rewriting is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dnnc.build.build import Build
from dnnc.build.decoding import Decoding, State, hides
from dnnc.check.compare import CAP, EXACT, compare, roundings_of
from dnnc.check.dataflow import precisions
from dnnc.check.faults import ModelDoesNotRun
from dnnc.check.noise import FACTOR
from dnnc.check.reference import Reference, references, why_not_the_original
from dnnc.check.steps import Steps, steps_of
from dnnc.check.unsplit import one_line
from dnnc.check.verdict import LOGITS, TOKENS, CheckReport, Comparison
from dnnc.engines.hosts.options import ClusterOptions
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder
from dnnc.engines.onnxruntime.decoding.wiring import decoding_build, require_decoding
from dnnc.engines.onnxruntime.run import processes_on
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.engines.onnxruntime.transport.codec import from_user
from dnnc.onnx.elements import Array
from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.types import DType
from ir.system.scratch import scratch_folder

ANSWER = 64
"""Tokens of each answer, unless the context ends it."""
ANSWERS = 16
"""Answers that are compared of a build that has more places, or two of each group where that is more."""
CLOSE = 1e-4
"""The difference of logits that passes at least, as a share of their range: sums over a cache of full length have another
order than those over the tokens alone, and their rounding goes on into the caches of all later layers."""


def check_tokens(
    build: Build,
    options: RunOptions,
    tolerance: float | None = None,
    seed: int = 0,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
    cluster: ClusterOptions | None = None,
    warn: Callable[[Diagnostic], None] = lambda diagnostic: None,
) -> CheckReport:
    """Compares the answers of the stages, here or on a ``cluster``, with the unsplit model: logits and tokens of each
    sequence. Raises InvalidInput for a build that generates no tokens, RuntimeFailure where a stage does not run."""
    start, decoding = time.perf_counter(), require_decoding(build)
    prompts = prompts_of(decoding, seed)
    given = _given(decoding, len(prompts), seed)
    progress("generate tokens", None)
    run = decoding_build(build, logits=True)
    with processes_on(run, options, cluster, warn) as far, Decoder(build, options, far, logits=True) as decoder:
        requests = [
            Request.of(decoding, prompt, ANSWER, 0.0, 0, 1.0, 0, (), states)
            for prompt, states in zip(prompts, given, strict=True)
        ]
        answers = [(answer, list(answer)) for answer in [decoder.ask(request) for request in requests]]
    answered = [Answered(answer.request.ids, tokens, answer.logits, answer.request.given) for answer, tokens in answers]
    progress("run the unsplit model", None)
    judge = Judge.of(build, decoding, tolerance)
    with scratch_folder() as scratch:
        reference, found, judge, notes = _compared(
            build, decoding, options, judge, answered, scratch, stated=tolerance is not None
        )
    last = build.stages[-1]
    comparisons = []
    for number, (answer, differences) in enumerate(zip(answered, found, strict=True)):
        place = f"answer {number}", last.index, last.device
        for kind, (difference, token) in zip((LOGITS, TOKENS), differences, strict=True):
            good = difference <= judge.allowed
            reason = f"logits of token {token} differ" if kind == LOGITS else f"token {token} of the answer is another"
            comparisons.append(
                Comparison(
                    *place,
                    kind,
                    f"{len(answer.tokens)} tokens",
                    None,
                    difference,
                    judge.allowed,
                    judge.allowed,
                    "ok" if good else "diverges",
                    "" if good else reason,
                    original=reference.original,
                )
            )
    build.files.confirm()
    seconds = time.perf_counter() - start
    original = reference.original
    return CheckReport(
        build.folder, reference.title, original, len(prompts), True, tuple(comparisons), (), tuple(notes), seconds
    )


def prompts_of(decoding: Decoding, seed: int) -> list[list[int]]:
    """Prompts for all places, or for two of each group where those are more than ``ANSWERS``: of one token, of more than a
    chunk, and of lengths between."""
    generator = np.random.Generator(np.random.Philox(seed))
    longest = max(1, min(2 * decoding.chunk + 1, decoding.context // 2))
    count = max(2, min(decoding.batch * decoding.groups, max(ANSWERS, 2 * decoding.groups)))
    lengths = [1, longest, *generator.integers(1, longest + 1, count - 2).tolist()]
    return [generator.integers(0, decoding.vocabulary, n).tolist() for n in lengths]


def _given(decoding: Decoding, count: int, seed: int) -> list[dict[str, Array]]:
    """Random arrays for what each of ``count`` sequences is given; masks are 1."""
    generator = np.random.Generator(np.random.Philox(seed + 1))
    states = [state for state in decoding.given.values() if not hides(state.name)]

    def drawn(state: State) -> Array:
        return generator.standard_normal(state.shape[1:], np.float32).astype(DType(state.dtype).numpy_name)

    return [{state.name: drawn(state) for state in states} for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt, the tokens that the stages answered, the logits ``[vocabulary]`` that they drew each from, and what the
    sequence was given (``given_arrays``)."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    logits: Sequence[Array]
    given: Mapping[str, Array] = field(default_factory=dict)


Differences = tuple[tuple[float, int], tuple[float, int]]
"""Of logits and of tokens the largest difference, and the number of the token that it is of."""


@dataclass(frozen=True, slots=True)
class Judge:
    """``allowed``: the difference of logits that passes, as a share of their range."""

    allowed: float

    @classmethod
    def of(cls, build: Build, decoding: Decoding, tolerance: float | None = None) -> Judge:
        """The tolerance that is stated; else that of the type that logits were computed with, after the roundings of values
        between stages (``compare``: 1e-3 of f16, 1e-2 of bf16, 1/255 behind products by weights of few bits, whose rows are
        rounded to 8 bits), and at least ``CLOSE``."""
        if tolerance is not None:
            return cls(tolerance)
        module = build.program()
        roundings = len(build.stages) - 1 + sum(roundings_of(stage.collectives) for stage in build.stages)
        zeros = from_user(np.zeros(2, np.float32))
        least = compare(zeros, zeros, precisions(module).get(decoding.logits, EXACT), roundings)
        return cls(max(least.allowed, CLOSE))

    def differences(self, steps: Steps, answers: Sequence[Answered]) -> list[Differences]:
        """What differs in each answer of a group. Raises what onnxruntime raises."""
        worst: list[list[tuple[float, int]]] = [[(0.0, 0), (0.0, 0)] for _ in answers]
        for place, number, row in _rows(steps, answers):
            answer, found = answers[place], worst[place]
            scale = float(row.max() - row.min()) or 1.0
            shares = (
                compare(from_user(row), from_user(answer.logits[number])).value,
                float(row.max() - row[answer.tokens[number]]) / scale,
            )
            for kind, share in enumerate(shares):
                if not share <= found[kind][0]:
                    found[kind] = (share, number)
        return [(logits, tokens) for logits, tokens in worst]


def _rows(steps: Steps, answers: Sequence[Answered]) -> Iterator[tuple[int, int, Array]]:
    """For each token of the answers of a group: which answer, the number of the token in it, and the logits ``[vocabulary]``
    that ``steps`` gives before it. Raises what onnxruntime raises."""
    texts = [[*answer.prompt, *answer.tokens] for answer in answers]
    padded = [*texts, *[[0]] * (steps.decoding.batch - len(texts))]
    steps.begin([answer.given for answer in answers])
    for position in range(max(map(len, texts)) - 1):
        rows = steps.logits(position, [text[min(position, len(text) - 1)] for text in padded]).astype(np.float32)
        for place, (answer, row) in enumerate(zip(answers, rows, strict=False)):
            number = position + 1 - len(answer.prompt)
            if 0 <= number < len(answer.tokens):
                yield place, number, row


def _floor(first: Steps, second: Steps, groups: Sequence[Sequence[Answered]]) -> float:
    """The largest difference of the logits of two runs of the unsplit model, which differ by rounding alone."""
    pairs = (pair for group in groups for pair in zip(_rows(first, group), _rows(second, group), strict=True))
    return max((compare(from_user(one[2]), from_user(other[2])).value for one, other in pairs), default=0.0)


def _compared(
    build: Build,
    decoding: Decoding,
    options: RunOptions,
    judge: Judge,
    answered: Sequence[Answered],
    scratch: Path,
    *,
    stated: bool,
) -> tuple[Reference, list[Differences], Judge, list[str]]:
    """The first reference that runs, what differs from it in each answer, the judge of that, and remarks. Where a difference is
    larger than ``judge`` allows and no tolerance is ``stated``, the reference runs with onnxruntime's graph optimisations and
    without them, and ``FACTOR`` times what differs between these passes, as in ``noise``: its own rounding, of which the stages
    know nothing. Raises InvalidInput where none runs."""
    names = (decoding.logits, *(state.result for state in decoding.states if state.result))
    notes: list[str] = []
    for reference in references(build, names, scratch):
        try:
            steps = steps_of(reference, decoding, max(1, options.threads), optimize=options.optimize)
            if steps is None:
                notes.append("the build does not say what the inputs of the original model are: compile it again")
                continue
            groups = [answered[first : first + decoding.batch] for first in range(0, len(answered), decoding.batch)]
            found = [one for group in groups for one in judge.differences(steps, group)]
            if not stated and any(share > judge.allowed for one in found for share, _ in one):
                other = steps_of(reference, decoding, max(1, options.threads), optimize=not options.optimize)
                assert other is not None
                judge = Judge(max(judge.allowed, min(CAP, FACTOR * _floor(steps, other, groups))))
        except InvalidInput:
            raise
        except Exception as error:  # of onnxruntime; the next reference may run
            notes.append(f"{reference.title} does not run: {one_line(error)}")
            continue
        reference.confirm()
        if not reference.original and not notes:
            notes.append("the reference was made from the build's own weights (annotated.onnx): " + why_not_the_original(build))
        return reference, found, judge, notes
    fault = ModelDoesNotRun(tuple(notes) or ("annotated.onnx does not open",), "--seed draws other prompts")
    raise InvalidInput(fault, where=str(build.folder))
