"""Pipeline text: ``cost{unknown=2},fold,partition{cut=[%a,%b]}`` to passes and back (``grammars/pipeline.lark``).

Options are the fields of the pass's dataclass (``options``). All faults of a text are reported at once, each with its place
and the nearest known name.

Invariant: ``parse_pipeline(pipeline_text(passes)) == passes``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, get_type_hints

import grammars
from ir.core.diagnostics import DiagnosticSink, Fault, Span, UsageError
from passes.framework.base import Pass
from passes.framework.earlier import LEFT_OUT, instead_of
from passes.framework.faults import (
    EarlierName,
    OptionsTogether,
    OptionTwice,
    OptionValue,
    PipelineSyntax,
    PipelineWithOptions,
    UnknownOption,
    UnknownPass,
)
from passes.framework.options import default_of, option_name, option_value, value_text
from passes.framework.registry import PASSES, PIPELINES


def parse_pipeline(text: str, where: str = "--passes", without: Collection[str] = ()) -> tuple[Pass, ...]:
    """The passes that ``text`` names, in order; a named pipeline stands for its passes; blank text is no pass at all.

    ``where`` names the text in messages; passes ``without`` are left out, and not imported. Raises UsageError with every fault
    found."""
    if not text.strip():
        return ()
    reader = _Reader(text, where, without)
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


def made_by(pipeline: Iterable[Pass]) -> str:
    """The comment lines that a printed module begins with: the passes that made it, in order, with their options. A value of
    more than 40 characters, such as the ops of a replayed plan, is ``..``; ``source``, the path of a file, and ``made_for``,
    which may be one, are left out.

    Nothing of the machine or the day is in it: the same pipeline gives the same lines."""
    lines = ["// made by"]
    for number, step in enumerate(pipeline):
        text = _short_text(step)
        if number:
            lines[-1] += ","
        if len(lines[-1]) + len(text) >= 120 and number:
            lines.append("//  ")
        lines[-1] += f" {text}"
    return "\n".join([line.rstrip() for line in lines]) + "\n" if len(lines[-1]) > len("// made by") else ""


def _short_text(step: Pass) -> str:
    fields = (field for field in dataclasses.fields(step) if field.name not in ("source", "made_for"))
    options = [(field, getattr(step, field.name)) for field in fields]
    texts = [(option_name(field.name), value_text(value)) for field, value in options if value != default_of(field)]
    words = ", ".join(f"{name}={'..' if len(text) > 40 else text}" for name, text in texts)
    return f"{step.name}{{{words}}}" if words else step.name


def near(word: str, known: Iterable[str]) -> str:
    """A hint that names what ``word`` may have meant, else all that is known."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(choices) or 'none'}"


def _parse(text: str, where: str) -> Any:
    """The parse tree of ``text``. Raises UsageError at the first place that fits no rule."""
    try:
        return grammars.load("pipeline", "pipeline").parse(text)
    except grammars.syntax_error() as error:
        span = _fault_span(text, error)
        end = span.column > len(span.source_line)
        found = "the end" if end else f"'{span.source_line[span.column - 1 : span.column - 1 + span.length]}'"
        raise UsageError(PipelineSyntax(found, _expected(error)), where=where, span=span) from None


def _written(options: Any) -> dict[str, str]:
    """The options of a pass as they are written; one without a value is true."""
    found = {}
    for option in options.children if options is not None else ():
        token, value = option.children[0], option.children[1] if len(option.children) > 1 else None
        listed = getattr(value, "children", None)
        text = ",".join(str(item) for item in listed or () if item is not None)
        found[option_name(str(token))] = f"[{text}]" if listed is not None else "true" if value is None else str(value)
    return found


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

    def __init__(self, text: str, where: str, without: Collection[str] = ()) -> None:
        self.without = without
        self.lines = text.split("\n")
        self.where = where
        self.faults = DiagnosticSink()

    def fault(self, token: Any, fault: Fault) -> None:
        span = Span(token.line, token.column, len(token), self.lines[token.line - 1])
        self.faults.error(fault, where=self.where, span=span)

    def pipeline(self, tree: Any) -> tuple[Pass, ...]:
        steps: list[Pass] = []
        for node in tree.children:
            name, options = str(node.children[0]), node.children[1] if len(node.children) > 1 else None
            if name in PIPELINES:
                if options is not None:
                    self.fault(node.children[0], PipelineWithOptions(name, PIPELINES[name]))
                steps += parse_pipeline(PIPELINES[name], name, self.without)
            elif instead := instead_of(name, _written(options)):
                self.fault(node.children[0], EarlierName(name, instead))
            elif name in LEFT_OUT:
                continue
            elif name not in PASSES:
                self.fault(node.children[0], UnknownPass(name, near(name, {*PASSES, *PIPELINES})))
            elif name not in self.without:
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
                self.fault(token, UnknownOption(name, str(token), near(key, fields)))
            elif fields[key] in values:
                self.fault(token, OptionTwice(str(token)))
            else:
                try:
                    values[fields[key]] = option_value(value, hints[fields[key]])
                except ValueError as error:
                    at = value if value is not None and not hasattr(value, "children") else token
                    self.fault(at, OptionValue(str(token), name, str(error)))
        if len(self.faults.diagnostics) > before:
            return []
        try:
            return [cls(**values)]
        except ValueError as error:
            self.fault(options[0].children[0], OptionsTogether(name, str(error)))
            return []
