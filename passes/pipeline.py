"""Pipeline text: ``cost,fold{min-support=2},partition{cut=[%a,%b]}`` to passes and back (``grammars/pipeline.lark``).

Options are the fields of the pass's dataclass, their types taken from its annotations: ``str``, ``int``, ``float``, ``bool``,
``tuple[str | int | float, ...]``, or one of these ``| None`` (spelled ``none``). Field ``min_support`` is option
``min-support``. All faults of a text are reported at once, each with its place and the nearest known name.

Invariant: ``parse_pipeline(pipeline_text(passes)) == passes``.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
from collections.abc import Iterable, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

import grammars
from ir.diagnostics import Diagnostic, DiagnosticSink, Span, UsageError
from passes.base import Pass
from passes.registry import PASSES, PIPELINES, default_of

_WORD = re.compile(r'[^\s,{}\[\]"=]+\Z')


def parse_pipeline(text: str, where: str = "--passes") -> tuple[Pass, ...]:
    """The passes that ``text`` names, in order; a named pipeline stands for its passes; blank text is no pass at all.

    ``where`` names the text in messages. Raises UsageError with every fault found."""
    if not text.strip():
        return ()
    reader = _Reader(text, where)
    found = reader.pipeline(_parse(text, where))
    if reader.faults.diagnostics:
        raise UsageError(reader.faults.diagnostics)
    return found


def pipeline_text(pipeline: Iterable[Pass]) -> str:
    """Canonical text: options in the order of the fields, those at their default left out."""
    return ",".join(map(pass_text, pipeline))


def pass_text(step: Pass) -> str:
    """One pass with its options."""
    options = []
    for field in dataclasses.fields(step):
        value = getattr(step, field.name)
        default = default_of(field)
        if value != default or type(value) is not type(default):
            options.append(f"{option_name(field.name)}={value_text(value)}")
    return f"{step.name}{{{','.join(options)}}}" if options else step.name


def option_name(field: str) -> str:
    return field.replace("_", "-")


def value_text(value: object) -> str:
    """How pipeline text spells an option's value."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case tuple():
            return f"[{','.join(map(value_text, value))}]"
        case str() if _WORD.match(value) and value != "none":
            return value
    return json.dumps(str(value), ensure_ascii=False)


def type_text(hint: Any) -> str:
    """An option's type for a person: ``int``, ``list of str``, ``float or none``."""
    if get_origin(hint) is tuple:
        return f"list of {type_text(get_args(hint)[0])}"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(type_text, get_args(hint)))
    return "none" if hint is type(None) else str(hint.__name__)


def near(word: str, known: Iterable[str]) -> str:
    """A hint that names what ``word`` may have meant, else all that is known."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(choices) or 'none'}"


def _parse(text: str, where: str) -> Any:
    """The parse tree of ``text``. Raises UsageError at the first place that fits no rule."""
    try:
        return grammars.load("pipeline", start="pipeline").parse(text)
    except grammars.syntax_error() as error:
        span = _fault_span(text, error)
        end = span.column > len(span.source_line)
        found = "the end" if end else f"'{span.source_line[span.column - 1 : span.column - 1 + span.length]}'"
        message = f"pipeline text cannot be read: found {found}, expected {_expected(error)}"
        raise UsageError(Diagnostic(message, where, span, "for example: cost,partition{objective=throughput}")) from None


def _fault_span(text: str, error: Any) -> Span:
    """Where the parser stopped: the token it could not use, the one character it could not read, or the end."""
    token = getattr(error, "token", None)
    lines = text.split("\n")
    if token is not None and token.type == "$END":
        return Span(len(lines), len(lines[-1]) + 1, 1, lines[-1])
    return Span(error.line, error.column, len(token) if token is not None else 1, lines[error.line - 1])


_TERMINALS = {
    "NAME": "a name",
    "WORD": "a value",
    "STRING": "a quoted value",
    "COMMA": "','",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "LSQB": "'['",
    "RSQB": "']'",
    "EQUAL": "'='",
    "$END": "the end",
}


def _expected(error: Any) -> str:
    """What could have stood there, as words."""
    names = sorted(getattr(error, "expected", None) or getattr(error, "allowed", None) or ())
    return " or ".join(_TERMINALS.get(name, name) for name in names) or "something else"


class _Reader:
    """Turns the parse tree into passes, collecting faults."""

    def __init__(self, text: str, where: str) -> None:
        self.lines = text.split("\n")
        self.where = where
        self.faults = DiagnosticSink()

    def fault(self, token: Any, message: str, hint: str = "") -> None:
        span = Span(token.line, token.column, len(token), self.lines[token.line - 1])
        self.faults.emit(Diagnostic(message, self.where, span, hint))

    def pipeline(self, tree: Any) -> tuple[Pass, ...]:
        steps: list[Pass] = []
        for node in tree.children:
            name, options = str(node.children[0]), node.children[1] if len(node.children) > 1 else None
            if name in PIPELINES:
                if options is not None:
                    self.fault(
                        node.children[0],
                        f"'{name}' is a pipeline, not a pass, and takes no options",
                        f"it is: {PIPELINES[name]}",
                    )
                steps += parse_pipeline(PIPELINES[name], name)
            elif name not in PASSES:
                self.fault(node.children[0], f"unknown pass '{name}'", near(name, {*PASSES, *PIPELINES}))
            else:
                steps += self.step(name, options.children if options is not None else ())
        return tuple(steps)

    def step(self, name: str, options: Sequence[Any]) -> list[Pass]:
        """The pass, in a list; an empty one where its options are at fault."""
        cls = PASSES[name]
        hints = get_type_hints(cls)
        fields = {option_name(field.name): field.name for field in dataclasses.fields(cls)}
        values: dict[str, object] = {}
        before = len(self.faults.diagnostics)
        for option in options:
            token, value = option.children[0], option.children[1] if len(option.children) > 1 else None
            key = option_name(str(token))
            if key not in fields:
                self.fault(token, f"pass '{name}' has no option '{token}'", near(key, fields))
            elif fields[key] in values:
                self.fault(token, f"option '{token}' is given twice")
            else:
                try:
                    values[fields[key]] = _convert(value, hints[fields[key]])
                except ValueError as error:
                    at = value if value is not None and not hasattr(value, "children") else token
                    self.fault(at, f"option '{token}' of '{name}': {error}")
        if len(self.faults.diagnostics) > before:
            return []
        try:
            return [cls(**values)]
        except ValueError as error:
            self.fault(options[0].children[0], f"pass '{name}': {error}")
            return []


def _convert(value: Any, hint: Any) -> object:
    """The Python value of type ``hint`` that a token or a list of them spells. Raises ValueError: expected, found."""
    if get_origin(hint) in (Union, types.UnionType):
        choices = get_args(hint)
        if value == "none" and type(None) in choices:
            return None
        (hint,) = (choice for choice in choices if choice is not type(None))
    if get_origin(hint) is tuple:
        # One value is a list of one: `dims=batch=8` needs no brackets.
        items = value.children if hasattr(value, "children") else [value]
        return tuple(_convert(item, get_args(hint)[0]) for item in items if item is not None)
    if value is None:
        if hint is bool:
            return True
        raise ValueError(f"expected {_WANTED[hint]}, found nothing")
    if hasattr(value, "children"):
        raise ValueError(f"expected {_WANTED[hint]}, found a list")
    text = json.loads(value) if value.startswith('"') else str(value)
    if hint is str:
        return text
    try:
        if hint is bool:
            return {"true": True, "false": False}[text]
        return int(text) if hint is int else float(text)
    except (KeyError, ValueError):
        raise ValueError(f"expected {_WANTED[hint]}, found '{text}'") from None


_WANTED = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
