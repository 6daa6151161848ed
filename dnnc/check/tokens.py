"""The check of a language model whose caches stay on its devices: what its stages generate, against the unsplit model.

The stages answer prompts of random tokens, of unequal lengths, in chunks and all at once, each with its most likely token. The
unsplit model of the build (``annotated.onnx``) reads the same tokens one by one, in a session of onnxruntime, with caches of
its own. Each token of an answer must be the one that it finds most likely, or one as likely up to ``CLOSE`` of the range of its
logits: rounding may choose between two such. That a model's caches were rewritten rightly is not seen here, for both share it;
the rewriting refuses what it cannot show (``passes.prepare.states``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from dnnc.build.build import Build
from dnnc.build.decoding import Decoding
from dnnc.check.faults import ModelDoesNotRun
from dnnc.check.reference import own_copy
from dnnc.check.verdict import TOKENS, CheckReport, Comparison
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder
from dnnc.engines.onnxruntime.decoding.wiring import require_decoding
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user, to_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NAME
from ir.core.diagnostics import InvalidInput
from ir.core.types import DType, TensorType, Type

ANSWER = 64
"""Tokens of each answer, unless the context ends it."""
CLOSE = 1e-4
"""A share of the range of a token's logits: two that are nearer are equally likely."""
ROUGHLY_CLOSE = 1e-2
"""The same of logits of 16 bits, and behind products by packed weights, whose rows onnxruntime rounds to 8 bits: a last bit may
turn a rounding."""
PACKED = ("onnx.com.microsoft.MatMulNBits", "onnx.com.microsoft.QMoE")


def check_tokens(
    build: Build,
    options: RunOptions,
    tolerance: float | None = None,
    seed: int = 0,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> CheckReport:
    """Compares the answers of the stages with the unsplit model, one comparison for each sequence. Raises InvalidInput for a
    build that generates no tokens, RuntimeFailure where a stage does not run."""
    start, decoding = time.perf_counter(), require_decoding(build)
    prompts = _prompts(decoding, seed)
    progress("generate tokens", None)
    with Decoder(build, options) as decoder:
        asked = [Request.of(decoding, prompt, ANSWER, 0.0, 0, 1.0, 0, ()) for prompt in prompts]
        answers = [list(answer) for answer in [decoder.ask(request) for request in asked]]
    progress("run the unsplit model", None)
    whole = Whole(build, decoding, options.threads, tolerance)
    last = build.stages[-1]
    comparisons = []
    for first in range(0, len(prompts), decoding.batch):
        group = slice(first, first + decoding.batch)
        for number, (found, token) in enumerate(whole.differences(prompts[group], answers[group])):
            good = found <= whole.allowed
            comparisons.append(
                Comparison(
                    f"answer {first + number}",
                    last.index,
                    last.device,
                    TOKENS,
                    f"{len(answers[first + number])} tokens",
                    None,
                    found,
                    whole.allowed,
                    whole.allowed,
                    "ok" if good else "diverges",
                    "" if good else f"token {token} of the answer is another",
                    original=False,
                )
            )
    build.files.confirm()
    seconds = time.perf_counter() - start
    return CheckReport(build.folder, whole.title, False, len(prompts), True, tuple(comparisons), (), (), seconds)


def _prompts(decoding: Decoding, seed: int) -> list[list[int]]:
    """A prompt for each place: of one token, of more than a chunk, and of lengths between."""
    generator = np.random.Generator(np.random.Philox(seed))
    longest = max(1, min(2 * decoding.chunk + 1, decoding.context // 2))
    lengths = [1, longest, *generator.integers(1, longest + 1, decoding.batch * decoding.groups).tolist()]
    return [generator.integers(0, decoding.vocabulary, n).tolist() for n in lengths[: max(2, decoding.batch * decoding.groups)]]


class Whole:
    """The unsplit model, a token at a time."""

    def __init__(self, build: Build, decoding: Decoding, threads: int = 1, tolerance: float | None = None) -> None:
        names = (decoding.logits, *(state.result for state in decoding.states))
        reference = own_copy(build, names)
        if reference is None:
            raise InvalidInput(ModelDoesNotRun(("annotated.onnx does not open",)), where=str(build.folder))
        self.title, self.decoding = reference.title, decoding
        outputs = tuple(ValueSpec(name, 0) for name in names)
        self.program = Program(reference.model, outputs, Settings(threads=threads), reference.weights)
        entry = build.program().entry
        narrow = any(v.name == f"%{decoding.logits}" and _is_narrow(v.type) for v in entry.results)
        rough = narrow or any(op.name in PACKED for op in entry.ops)
        self.allowed = tolerance if tolerance is not None else ROUGHLY_CLOSE if rough else CLOSE

    def differences(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[tuple[float, int]]:
        """For each sequence of a group: by how much a token of its answer is less likely than the likeliest, at most, as a
        share of the range of logits, and the number of the token that is off most."""
        decoding = self.decoding
        states = {state.name: _zeros(state.dtype, state.shape) for state in decoding.states}
        worst = [(0.0, 0)] * len(prompts)
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        for position in range(max(map(len, texts)) - 1):
            ids = np.zeros((decoding.batch, 1), np.int64)
            for place, text in enumerate(texts):
                ids[place, 0] = text[min(position, len(text) - 1)]
            feeds = {decoding.ids: from_user(ids), decoding.position: from_user(np.full(decoding.batch, position, np.int64))}
            results = self.program.run({**feeds, **states})
            states = {state.name: results[state.result] for state in decoding.states}
            logits = np.asarray(to_user(results[decoding.logits])).astype(np.float64)[:, 0]
            for place, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
                if len(prompt) - 1 <= position < len(text) - 1:
                    row, token = logits[place], text[position + 1]
                    share = float(row.max() - row[token]) / (float(row.max() - row.min()) or 1.0)
                    if not share <= worst[place][0]:
                        worst[place] = (share, position + 1 - len(prompt))
        return worst


def _is_narrow(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.bits <= 16


def _zeros(dtype: str, shape: Sequence[int]) -> Raw:
    kind = BY_NAME[DType(dtype).numpy_name]
    return Raw(kind.number, tuple(shape), np.zeros(shape, np.dtype(kind.carrier)))


__all__ = ["ANSWER", "Whole", "check_tokens"]
