"""``dnnc generate``: what a language model answers, token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnc.cli.commands.execute import CoresOption, TimeoutOption
from dnnc.cli.console import put, put_json, show_warnings
from dnnc.cli.faults import (
    NoPrompt,
    NotTokenIds,
    TokenizerMissing,
    TokenizerNeeded,
    TokenizerOfOtherModel,
    TokenizerUnreadable,
)
from dnnc.cli.options import shared as opt
from dnnc.cli.streams import is_unread
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError, visible
from ir.core.limits import MOST

if TYPE_CHECKING:
    from dnnc.build.decoding import Decoding
    from dnnc.engines.onnxruntime.decoding.answers import Answer
    from dnnc.onnx.elements import Array

_HALF = "\ufffd"
"""What a tokenizer gives for a character of which only some bytes are there."""


def generate(
    build: opt.BuildArgument,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="TEXT", help="A text to go on with. Repeatable.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FILE", help="The model's tokenizer.json, of the library tokenizers."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--ids", metavar="N,N..", help="A prompt as token ids; without --tokenizer the answer is ids too. Repeatable."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, metavar="N", help="Tokens of an answer (default: what the context holds)."),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0, callback=opt.finite, metavar="NUMBER", help="0: the most likely token each time; else tokens are drawn."
        ),
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option(min=0, max=MOST, metavar="N", help="Draw from the N most likely tokens (0: from all).")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            max=1.0,
            callback=_above_zero,
            metavar="NUMBER",
            help="Draw from the fewest tokens that are so probable together: above 0, at most 1 (default: 1, all).",
        ),
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST, metavar="N", help="Of random numbers; the next prompt has the next.")
    ] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="N,N..",
            help="Tokens that end an answer (default: those of a config beside the model; 'none': none). Repeatable.",
        ),
    ] = None,
    states: Annotated[
        Path | None,
        typer.Option(
            "--states",
            metavar="FILE.npz",
            help="Of a decoder that reads what an encoder made: its outputs, one row for each prompt or one for all.",
        ),
    ] = None,
    threads: CoresOption = None,
    timeout: TimeoutOption = 600.0,
    cluster: opt.ClusterOption = "",
    host: opt.HostNodesOption = None,
    ports: opt.PortsOption = opt.PORTS,
    wait: opt.WaitOption = opt.WAIT,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Go on with each prompt by the language model of DIR, which was compiled with --context.

    One answer is printed as it comes; several are generated together, and printed one after the other. Where a process is
    killed, or with --cluster a host is lost, the stages are started again and the answers go on.
    """
    from dnnc.build.build import Build
    from dnnc.build.elsewhere import require_here
    from dnnc.engines.onnxruntime.decoding.answers import Request
    from dnnc.engines.onnxruntime.decoding.decoder import Decoder
    from dnnc.engines.onnxruntime.decoding.wiring import decoding_build, require_decoding
    from dnnc.engines.onnxruntime.run import processes_on
    from dnnc.engines.onnxruntime.starter.starting import RunOptions
    from ir.system.scratch import remove_dead_scratch

    if not prompt and not ids:
        raise UsageError(NoPrompt(), where="--prompt")
    if prompt and tokenizer is None:
        raise UsageError(TokenizerNeeded(), where="--prompt")
    ends = [number for text in stop or () if text != "none" for number in _numbers(text, "--stop")] if stop else None
    prompts = [_numbers(text, "--ids") for text in ids or ()]
    words = _tokenizer(tokenizer) if tokenizer is not None else None
    if words is not None:
        prompts = [words.encode(text).ids for text in prompt or ()] + prompts
    stated = opt.cluster_options(cluster, host, ports, wait)
    remove_dead_scratch()
    files = Build.open(build)
    decoding = require_decoding(files)
    if words is not None and (last := max(words.get_vocab().values(), default=0)) >= decoding.vocabulary:
        raise InvalidInput(TokenizerOfOtherModel(last, decoding.vocabulary), where=str(tokenizer))
    places = [*_places("--prompt", len(prompt or ())), *_places("--ids", len(ids or ()))]
    given = _states(decoding, states, len(prompts))
    requests = [
        Request.of(decoding, tokens, max_tokens, temperature, top_k, top_p, seed + number, ends, given[number], where=place)
        for number, (tokens, place) in enumerate(zip(prompts, places, strict=True))
    ]
    require_here(files.files, hosts=1 if stated is None else None)
    run, options = decoding_build(files), RunOptions(threads=threads or 0, timeout=timeout or None)

    def warn(diagnostic: Diagnostic) -> None:
        show_warnings([diagnostic], quiet)

    with processes_on(run, options, stated, warn) as processes:
        decoder = Decoder(files, options, processes)
        decoder.tell(warn)
        with decoder:
            answers = [decoder.ask(request) for request in requests]
            told = [_told(answer, words, stream=not json and len(answers) == 1) for answer in answers]
    if json:
        put_json("generate", {"answers": [{"prompt": list(p), **one} for p, one in zip(prompts, told, strict=True)]})
    elif len(told) > 1:
        for one in told:
            put(one.get("text", ",".join(map(str, one["ids"]))))


def _places(flag: str, count: int) -> list[str]:
    """What faults call each of the ``count`` prompts of a flag."""
    return [flag] if count == 1 else [f"{flag} number {number}" for number in range(1, count + 1)]


def _above_zero(value: float, param: typer.CallbackParam) -> float:
    """A callback that refuses 0, what is below, infinity and NaN."""
    opt.finite(value, param)
    if value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0.")
    return value


def _states(decoding: Decoding, path: Path | None, count: int) -> list[dict[str, Array]]:
    """What each of ``count`` prompts is given: its row of the arrays of a file, or the only row. Raises as ``given_arrays``, at
    the file and the array."""
    from dnnc.data.npz import read_npz
    from dnnc.engines.onnxruntime.decoding.faults import WrongState
    from dnnc.engines.onnxruntime.decoding.given import given_arrays

    if path is None:
        return [given_arrays(decoding, {}, "--states")] * count
    arrays = read_npz(path)
    for name, array in arrays.items():
        if array.shape[:1] not in ((1,), (count,)):
            found = f"{array.dtype}{list(array.shape)}"
            raise InvalidInput(
                WrongState(name, found, "a first dimension of 1" if count == 1 else f"a first dimension of {count}, or of 1,"),
                where=f"{path}: {name}",
            )
    rows = [{name: array[number % len(array)][None] for name, array in arrays.items()} for number in range(count)]
    return [given_arrays(decoding, row, str(path)) for row in rows]


def _told(answer: Answer, words: Any, *, stream: bool) -> dict[str, Any]:
    """The answer as it is told: its ids, its text where there is a tokenizer, why it ended. ``stream``: printed as it comes."""
    tokens: list[int] = []
    first = shown = 0  # the text of the tokens before ``shown`` is printed; before ``first`` they do not change what follows
    for token in answer:
        tokens.append(token)
        if not stream:
            continue
        piece = f"{',' if len(tokens) > 1 else ''}{token}" if words is None else _text(words, tokens[first:], shown - first)
        if piece and not piece.endswith(_HALF):
            first, shown = shown, len(tokens)
            sys.stdout.write(visible(piece, lines=True))
            sys.stdout.flush()
            if is_unread(sys.stdout):
                answer.close()
    if stream:
        rest = _text(words, tokens[first:], shown - first) if words is not None else ""
        sys.stdout.write(visible(rest, lines=True) + "\n")
    text = {"text": words.decode(tokens)} if words is not None else {}
    return {"ids": tokens, **text, "reason": answer.reason}


def _text(words: Any, tokens: list[int], shown: int) -> str:
    """The text by which that of all these tokens is longer than that of the first ``shown``."""
    whole: str = words.decode(tokens)
    return whole[len(words.decode(tokens[:shown])) :]


def _numbers(text: str, option: str) -> list[int]:
    """Token ids of ``1,2,3``. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        raise UsageError(NotTokenIds(text[:40]), where=option)
    return list(map(int, parts))


def _tokenizer(path: Path) -> Any:
    """A tokenizer of the library ``tokenizers``. Raises UsageError where that is missing, InvalidInput for no such file."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(TokenizerMissing(), where="--tokenizer") from None
    from ir.system.files import open_input

    with open_input(path, "a tokenizer") as file:
        data = file.read()
    try:
        return Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises plain exceptions
        raise InvalidInput(TokenizerUnreadable(str(error)[:200]), where=str(path)) from None
