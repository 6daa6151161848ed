"""Messages in the terms of Python: ``dims={"batch": 8}`` where the command line says ``--dim batch=8``.

Errors and warnings are made for the command line. What leaves the Python door has its flags turned into keywords here, by one
table: the options of ``dnnc compile``, and those of ``run``, ``check`` and ``train`` that ``Build`` has under other names.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from dnnc.compile.flags import FLAGS
from ir.core.diagnostics import Diagnostic, DnncError, Severity


class DnncWarning(UserWarning):
    """A warning of dnnc, with its code and what to do."""


_KEYWORDS = {
    **{flag.flag.split()[0]: flag.field.rpartition(".")[2] for flag in FLAGS},
    "--dim": "dims",
    "--cut": "cuts",
    "--pin": "pins",
    "--passes": "passes",
    "--topology": "machines",
    **{f"--{name.replace('_', '-')}": name for name in ("plan_only", "weights", "load_test", "report")},
    **{
        f"--{name}": name
        for name in ("threads", "timeout", "seed", "samples", "tolerance", "steps", "data", "checkpoint", "stop")
    },
    **{f"--{name}": name for name in ("every", "resume", "out", "slow", "emulate", "retries", "cluster", "ports", "wait")},
    "--host": "hosts",
    "--last-batch": "last_batch",
    **{f"--{name.replace('_', '-')}": name for name in ("eval_data", "eval_every", "patience", "log", "tensorboard")},
}
"""The keyword of each flag."""
_SWITCHES = ("--explain", "--plan-only", "--emulate", "--nesterov", "--no-decay")
_PAIRS = {"--dim": True, "--pin": False, "--host": False}
"""Flags that name a pair, and whether its second half may be a number."""
_LISTS = ("--cut", "--group", "--trainable", "--frozen")
_WORDS = ("auto", "none", "training", "latency", "throughput", "tag", "any", "data", "on", "off", "equal", "shared", "stage")
_VALUE = "|".join(
    [
        rf"(?:{'|'.join(_WORDS)})\b(?![\w:=-])",
        r"[\w./:-]+=[\w./:-]+",
        r"[\w.-]*[:/][\w./:-]*\w",
        r"\d[\w.,x]*\b(?:-\d+)?",
        r"[A-Z][A-Z0-9_.]*\b(?![a-z])",
    ]
)
"""What is a value behind a flag: a word of some option, a pair, a spelling with a colon or a slash, a number, or a name in
capitals that stands for a value. Any other word belongs to the sentence."""
_FLAG = re.compile(rf"(?<![\w-])(--[a-z]+[0-9]?(?:-[a-z]+)*|-t)(?: ({_VALUE}))?")
_PHRASES = (
    ("'dnnc inspect DIR' lists", "session.get_inputs() lists"),
    ("--inputs FILE.npz gives others; 'dnnc check' tries", "build.check(inputs) tries"),
    ("'dnnc compile MODEL -t TOPOLOGY -o DIR'", "dnnc.plan(model, machines=...).write(folder)"),
    ("--no-load-test writes", "load_test=False writes"),
    ("choose another output directory with -o", "choose another folder"),
    ("'dnnc check --json' lists every tensor for a report", "report.comparisons of the result has every tensor"),
)
"""What Python has in place of commands."""
_COMMAND = re.compile(r"('dnnc [^']*')")
_NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


def in_python(text: str) -> str:
    """The text with each flag that has a keyword as that keyword, and its value as Python writes it; commands stay as they
    are."""
    for phrase, of_session in _PHRASES:
        text = text.replace(phrase, of_session)
    parts = (part if _COMMAND.fullmatch(part) else _FLAG.sub(_keyword, part) for part in _COMMAND.split(text))
    return "".join(parts).replace("} dims={", ", ")


def _keyword(match: re.Match[str]) -> str:
    flag, value = "--topology" if match[1] == "-t" else match[1], match[2]
    keyword = _KEYWORDS.get(flag)
    if keyword is None:
        return match[0]
    if flag in _SWITCHES:
        return f"{keyword}=True" + (f" {value}" if value else "")
    if value is None:
        return keyword
    if flag in _PAIRS and "=" in value:
        name, _, bound = value.rpartition("=")
        return f"{keyword}={{{json.dumps(name)}: {_written(bound)}}}"
    return f"{keyword}=[{_written(value)}]" if flag in _LISTS else f"{keyword}={_written(value)}"


def _written(value: str) -> str:
    """A value as Python writes it. A name in capitals stands for a value, so it is left as it is."""
    if _NUMBER.fullmatch(value) or value.isupper():
        return value
    return json.dumps(value)


def _translated(diagnostic: Diagnostic, file: str = "", name: str = "model") -> Diagnostic:
    where = in_python(diagnostic.where) if diagnostic.where.startswith("--") else diagnostic.where
    texts = [where, *map(in_python, (diagnostic.message, diagnostic.note, diagnostic.hint))]
    where, message, note, hint = [text.replace(file, name) if file else text for text in texts]
    return replace(diagnostic, where=where, message=message, note=note, hint=hint)


@contextmanager
def python_terms(file: str = "", name: str = "model") -> Iterator[None]:
    """Turns the flags in the messages of errors that leave the block into keywords, and ``file``, where something was written
    that has no file of its own, into ``name``."""
    try:
        yield
    except DnncError as error:
        translate(error, file, name)
        raise


def translate(error: BaseException, file: str = "", name: str = "model") -> None:
    """Does for one error what ``python_terms`` does."""
    if isinstance(error, DnncError):
        error.diagnostics = tuple(_translated(diagnostic, file, name) for diagnostic in error.diagnostics)
        error.args = ("\n".join(map(str, error.diagnostics)),)


def warn(diagnostics: Iterable[Diagnostic], file: str = "", stacklevel: int = 3) -> None:
    """Python's warnings for those that are no errors; notes are left out."""
    for diagnostic in diagnostics:
        if diagnostic.severity is Severity.WARNING:
            warnings.warn(str(_translated(diagnostic, file)), DnncWarning, stacklevel=stacklevel)
