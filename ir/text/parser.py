"""The parser: text to module, with every fault at its line and column.

Three grammars: ``module.lark`` reads lines, with whole types and attribute dictionaries as single tokens, whose inside
``types.lark`` and ``attributes.lark`` read once per distinct text. After a fault of syntax the parser drops the op or symbol
it stands in and goes on at the next line that can begin one, so that one run reports several.

Limits: a text is refused before it is parsed when it is larger than ``LIMITS.text_bytes``, is not UTF-8, or does not begin with
``module``. Lark is imported at the first parse.
"""

from __future__ import annotations

import bisect
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import grammars
from ir.core.diagnostics import Diagnostic, Fault, InvalidInput, Severity, Span
from ir.core.faults import FileNotRead
from ir.core.limits import LIMITS
from ir.core.module import Module
from ir.system.collector import collector_paused
from ir.system.files import open_input
from ir.text import faults
from ir.text.literals import AttributeReader, TypeReader
from ir.text.reader import Reader
from ir.text.tokens import MAX_DEPTH, TextFaultError

if TYPE_CHECKING:
    from lark import Lark
    from lark.exceptions import UnexpectedInput
    from lark.parsers.lalr_parser_state import ParserState

MAX_ERRORS = 20
"""Faults reported in one run."""
_HEAD = re.compile(r"(?:\s+|//[^\n]*)*")


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Where the symbols and ops of a parsed module stand in its text, by identity."""

    where: str
    text: str
    positions: dict[int, int]
    lines: list[int] = field(default_factory=list)

    def line(self, item: object) -> int | None:
        """1-based line of an op, a symbol, or a part of one that has its own line (a link, a stage of a plan); None when it
        did not come from this text."""
        span = self.span(item)
        return span.line if span else None

    def span(self, item: object) -> Span | None:
        position = self.positions.get(id(item))
        if position is None:
            return None
        end = self.text.find("\n", position)
        return self.span_at(position, max(1, (end if end >= 0 else len(self.text)) - position))

    def span_at(self, position: int, length: int = 1) -> Span:
        """The place of ``length`` characters from ``position``."""
        if not self.lines:
            self.lines.append(0)
            self.lines.extend(match.end() for match in re.finditer("\n", self.text))
        line = bisect.bisect_right(self.lines, position)
        start = self.lines[line - 1]
        end = self.lines[line] - 1 if line < len(self.lines) else len(self.text)
        column = position - start + 1
        return Span(line, column, max(1, min(length, end - position)), self.text[start:end])


@dataclass(frozen=True, slots=True)
class ParseResult:
    """A module and where its parts stand in the text."""

    module: Module
    source_map: SourceMap


def parse_module(text: str, where: str = "") -> Module:
    """The module that ``text`` spells. Raises InvalidInput with every fault found; ``where`` names the text in them."""
    return parse(text, where).module


def parse(text: str, where: str = "") -> ParseResult:
    """As ``parse_module``, with the source map."""
    source = SourceMap(where, text, {})
    begins = _HEAD.match(text)
    start = begins.end() if begins else 0
    if not text.startswith("module", start):
        raise InvalidInput(_no_module(SourceMap(where, text[: start + (1 << 16)], {}), start))
    with _LOCK, collector_paused():
        parser, reader = _module_parser()
        reader.begin(text)
        recovery = _Recovery(source)
        module = recovery.run(parser)
        source.positions.update(reader.positions)
        faults = [finding.fault.at(where, source.span_at(finding.position, finding.length)) for finding in reader.findings]
        reader.begin()
    diagnostics = sorted([*recovery.diagnostics, *faults], key=_place)
    if diagnostics or module is None:
        raise InvalidInput(_cut(diagnostics))
    return ParseResult(module, source)


def read_text(path: str | Path) -> str:
    """The text of an IR file. Raises InvalidInput for a file that is missing, too large, not UTF-8 text or plainly no IR,
    after reading its first bytes only."""
    where = str(path)
    with open_input(path, "IR text") as file:
        return decode_text(file, where, os.fstat(file.fileno()).st_size)


def decode_text(file: BinaryIO, where: str, size: int = 0) -> str:
    """The IR text of an open file of ``size`` bytes (0: not known), as ``read_text`` reads it."""
    try:
        head = file.read(1 << 16)
        _check_head(head, where)
        data = head
        if size <= LIMITS.text_bytes:
            data += file.read(max(0, LIMITS.text_bytes + 1 - len(head)))
    except OSError as error:
        raise InvalidInput(FileNotRead(error.strerror or str(error)), where=where) from None
    if max(size, len(data)) > LIMITS.text_bytes:
        raise InvalidInput(faults.IrTooLarge(LIMITS.text_bytes), where=where)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fault = faults.IrNotUtf8(f"0x{data[error.start]:02x}", error.start)
        raise InvalidInput(fault, where=where, span=Span(line, 1)) from None


def _check_head(head: bytes, where: str) -> None:
    if b"\0" in head:
        raise InvalidInput(faults.BinaryIr(head.index(0)), where=where)
    text = head.decode(errors="replace")
    match = _HEAD.match(text)
    start = match.end() if match else 0
    if start == len(text) < 1 << 16 or (start < len(text) and not text.startswith("module", start)):
        raise InvalidInput(_no_module(SourceMap(where, text, {}), start))


def _no_module(source: SourceMap, start: int) -> Diagnostic:
    return faults.NotIr().at(source.where, source.span_at(start))


class _Recovery:
    """Called by lark at each fault of syntax: records it, and sets the parser behind the op or symbol that holds it."""

    def __init__(self, source: SourceMap) -> None:
        self.source = source
        self.text = source.text
        self.diagnostics: list[Diagnostic] = []
        self.resumed_at = -1

    def run(self, parser: Lark) -> Module | None:
        """The module, or None after a fault that ends the text."""
        from lark.exceptions import UnexpectedInput

        try:
            module: Any = parser.parse(self.text, on_error=self)
        except UnexpectedInput:
            return None
        return module if isinstance(module, Module) else None

    def __call__(self, error: UnexpectedInput) -> bool:
        accepted = _accepted(error)
        position, fault = _explain(self.text, error, accepted)
        self.diagnostics.append(fault.at(self.source.where, self.source.span_at(position, _length(self.text, position))))
        if len(self.diagnostics) >= MAX_ERRORS:
            return False
        return self.resume(error, _position(error, self.text), accepted)

    def resume(self, error: UnexpectedInput, position: int, accepted: set[str]) -> bool:
        """Finds the next line that can go on, drops what is unfinished, and continues there. False at the end."""
        state = error.interactive_parser.parser_state
        text = self.text
        line = text.rfind("\n", 0, position) + 1
        fresh = not text[line:position].strip()
        if not fresh or line <= self.resumed_at:
            depth = 1 if _opens(text, line) else 0
            line = _next_line(text, line)
        else:
            depth = 0
        while line < len(text):
            start = _START.match(text, line)
            kind = _kind(start) if start else None
            if kind in _SYMBOL_STARTS:
                depth = 0
            if depth and kind == "RBRACE":
                depth -= 1
                kind = None
            keep = 0
            if start is not None and kind is not None and depth == 0:
                keep = len(state.state_stack) if fresh and kind in accepted else _resumes(state, kind)
            if start is not None and keep:
                del state.state_stack[keep:]
                del state.value_stack[keep - 1 :]
                lexer_state: Any = error.interactive_parser.lexer_thread.state
                lexer_state.line_ctr.char_pos = start.start(1)
                self.resumed_at = line
                return True
            if _opens(text, line):
                depth += 1
            line = _next_line(text, line)
        return False


_START = re.compile(
    r"""[ \t\r]*(
    (?P<RBRACE>\}) | (?P<RESULTS>[%@_].*=) | (?P<STAGE_ROW>stage[ ]*\{) | (?P<ROUTE>route\b) | (?P<LIKE>like\b)
    | (?P<_DEVICE_TYPE>type\b)
    | (?P<KEYWORD>(?:resource|func|topology|mesh|stage|program|schedule|plan|region|yield|host|device|switch|link|row)\b)
    | (?P<OPNAME>"[^"\n]*"\(|[A-Za-z_][\w$\-]*\.\S*\() | (?P<FIELD>[A-Za-z_]\w*[ ]*=)
    )""",
    re.VERBOSE,
)
_SYMBOL_STARTS = frozenset({"_RESOURCE", "LIKE", "_FUNC", "_TOPOLOGY", "_MESH", "_STAGE", "_PROGRAM", "_SCHEDULE", "_PLAN"})
_LISTS = ("RESULTS", "_RESOURCE", "_DEVICE", "_ROW", "STAGE_ROW")


def _kind(start: re.Match[str]) -> str:
    """The terminal that begins the line."""
    kind = next(name for name, value in start.groupdict().items() if value is not None)
    return "_" + start["KEYWORD"].upper() if kind == "KEYWORD" else kind


def _resumes(state: ParserState[Any], kind: str) -> int:
    """How much of the parser's stack to keep so that a line that begins with ``kind`` goes on; 0 when it cannot.

    That is the innermost body (or the module, a topology..) that is open; only a symbol drops bodies. A state is a place to go
    on when ``kind`` is shifted there, or after the empty beginning of a list: elsewhere it would end something unfinished."""
    for keep in range(len(state.state_stack), 1, -1):
        actions = state.parse_conf.states[state.state_stack[keep - 1]]
        between = any(_begins(actions, name) for name in _LISTS)
        if _begins(actions, kind) and (between or kind in ("_REGION", "_YIELD")):
            return keep
        if between and kind not in _SYMBOL_STARTS:
            return 0
    return 0


def _begins(actions: Mapping[str, Any], name: str) -> bool:
    if name not in actions:
        return False
    argument = actions[name][1]
    return not hasattr(argument, "expansion") or not argument.expansion


_OPENS = re.compile(r"[^\n]*\{[ \t\r]*(?://[^\n]*)?$", re.MULTILINE)


def _opens(text: str, line: int) -> bool:
    """Whether a block begins at the end of the line."""
    return _OPENS.match(text, line) is not None


def _next_line(text: str, line: int) -> int:
    end = text.find("\n", line)
    return end + 1 if end >= 0 else len(text)


def _position(error: UnexpectedInput, text: str) -> int:
    token = getattr(error, "token", None)
    if token is None:
        return int(error.pos_in_stream or 0)
    return len(text.rstrip()) if token.type == "$END" else int(token.start_pos)


def _length(text: str, position: int) -> int:
    word = _FOUND.match(text, position)
    return len(word[0]) if word else 1


_FOUND = re.compile(r'[\w@%.$/\-]+|"[^"\n]*"?|->|\S')


def _accepted(error: UnexpectedInput) -> set[str]:
    """The terminals that may stand where the fault is."""
    accepted: set[str] = error.interactive_parser.accepts()  # type: ignore[no-untyped-call]
    return accepted


def _explain(text: str, error: UnexpectedInput, accepted: set[str]) -> tuple[int, Fault]:
    """The place of a fault, as narrow as possible, and the fault."""
    position = _position(error, text)
    refined = _refine(text, position, accepted)
    if refined:
        return refined
    word = _FOUND.match(text, position)
    return position, faults.UnexpectedText(_listed(accepted), f"'{word[0][:40]}'" if word else "the end of the text")


def _listed(accepted: set[str]) -> str:
    """What may stand here, in words: constructs first, then keywords, then punctuation."""
    left = set(accepted)
    words = []
    for group, word in _GROUPS:
        if group <= left:
            left -= group
            words.append(word)
    words += dict.fromkeys(word for name, word in _WORDS.items() if name in left and word[0] != "'")
    words += sorted(_keyword(name) for name in left if name not in _WORDS and name != "$END")
    words += [word for name, word in _WORDS.items() if name in left and word[0] == "'"]
    if "$END" in left:
        words.append("the end of the text")
    return ", ".join(words[:-1]) + (" or " if len(words) > 1 else "") + words[-1] if words else "nothing more"


def _keyword(name: str) -> str:
    return f"'{_KEYWORDS.get(name) or name.strip('_').lower()}'"


_KEYWORDS = {"_DEVICE_TYPE": "type", "STAGE_ROW": "stage"}
_GROUPS = (
    (frozenset({"RESULTS", "OPNAME"}), "an op"),
    (
        frozenset({"INT", "FLOAT", "STRING", "BYTES", "SYMBOL", "TYPE", "EMPTY", "LSQB", "DENSE"}),
        'a value such as 1, 1.0, "text", [1, 2] or a type',
    ),
    (frozenset({"INT", "FLOAT", "COMPLEX", "TRUTH", "STRING", "BYTES"}), "an element such as 1, 1.0 or true"),
    (frozenset({"NUMBER", "STRING", "WORD", "LSQB", "LBRACE"}), 'a value such as 1, word, "text", [a, b] or {a = 1}'),
)

_NAME = r'(?:[%@](?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[A-Za-z0-9_./:$\-]+)|_)'
_NAMES_HEAD = re.compile(rf"\(\s*(?:{_NAME}\s*,\s*)*")
_RESULTS_HEAD = re.compile(rf"{_NAME}(?:\s*,\s*{_NAME})*\s*")
_ONE_NAME = re.compile(_NAME + r"\s*")
_OPEN_QUOTE = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*(?:\n|\Z)')


def _refine(text: str, position: int, accepted: set[str]) -> tuple[int, Fault] | None:
    """The place and the fault inside a wide token. The parser fails at the token's start; a person needs the place inside."""
    first = text[position : position + 1]
    if "OPERANDS" in accepted and first == "(":
        head = _NAMES_HEAD.match(text, position)
        at = head.end() if head else position + 1
        name = _ONE_NAME.match(text, at)
        if name is None:
            return at, faults.UnexpectedText("an operand such as %x, @w or _", _what(text, at))
        return name.end(), faults.UnexpectedText("',' or ')' behind an operand", _what(text, name.end()))
    if "RESULTS" in accepted and first in ("%", "@"):
        head = _RESULTS_HEAD.match(text, position)
        if head:
            return head.end(), faults.UnexpectedText("'=' behind the results", _what(text, head.end()))
    if "TYPES" in accepted and first == ":":
        at = position + 1
        while at < len(text) and text[at] in " \t":
            at += 1
        return at, faults.UnexpectedText("a type such as tensor<8x4xf32>", _what(text, at))
    if "ATTRIBUTES" in accepted and first == "{" and "LBRACE" not in accepted:
        return position, faults.MalformedAttributes()
    if "LOCATION" in accepted and text.startswith("loc", position):
        return position, faults.MalformedLocation()
    if "FACETS" in accepted and (facet := _FACET_HEAD.match(text, position)):
        return position, faults.UnclosedFacet(facet[0])
    if _OPEN_QUOTE.match(text, position):
        return position, faults.UnclosedQuote()
    return None


_FACET_HEAD = re.compile(r"[a-z_]+<")


def _what(text: str, position: int) -> str:
    while position < len(text) and text[position] in " \t":
        position += 1
    if position >= len(text):
        return "the end of the text"
    if text[position] == "\n":
        return "the end of the line"
    word = _FOUND.match(text, position)
    return f"'{word[0][:40]}'" if word else "nothing"


_WORDS = {
    "SYMBOL": "a symbol such as @main",
    "NAME": "a name such as %x",
    "RESULTS": "an op",
    "OPNAME": "an op name such as onnx.Relu",
    "OPERANDS": "operands in parentheses",
    "ATTRIBUTES": "attributes in braces",
    "TYPES": "': type'",
    "FACETS": "a facet such as cost<..>",
    "LOCATION": "a location",
    "ELEMENTS": "a list of elements",
    "BYTES": 'bytes such as hex"00ff"',
    "ALIAS": "an alias such as #cost0",
    "ACTION": "an action such as F(0, 1)",
    "FIELD": "'key ='",
    "KEY": "a key",
    "WORD": "a word",
    "STRING": "a text in double quotes",
    "NUMBER": "a number",
    "NAMES": "names such as %x, %y",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "COMMA": "','",
    "EQUAL": "'='",
    "__ANON_0": "'->'",
    "DIM": "a dimension such as 8x",
    "DTYPE": "an element type such as f32",
    "MORETHAN": "'>'",
    "LESSTHAN": "'<'",
    "STAR": "'*'",
    "INT": "an integer",
    "RANGE": "a range such as 3..30",
    "FLOAT": "a float such as 1.0",
    "TYPE": "a type",
    "TRUTH": "true or false",
    "COMPLEX": "a complex number such as (0.0, 1.0)",
    "EMPTY": "an empty list such as ints[]",
    "R": "'R'",
    "S": "'S'",
    "P": "'P'",
}


def prepare() -> None:
    """Builds the parser, which the first text otherwise does: before a process forks others that parse."""
    _module_parser()


@cache
def _module_parser() -> tuple[Lark, Reader]:
    types = _inner("types", "types", TypeReader())
    attribute_reader = AttributeReader(types)
    attributes = _inner("attributes", "attributes", attribute_reader)
    elements = _inner("attributes", "elements", attribute_reader)
    reader = Reader(types, attributes, elements, attribute_reader.begin)
    return grammars.load("module", "module", transformer=reader), reader


def _inner(name: str, start: str, transformer: Any) -> Callable[[str], Any]:
    """The reader of the inside of a token: by distinct text, short texts remembered. Raises TextFaultError."""
    starts = ("attributes", "elements") if name == "attributes" else ("types", "type")
    parser = grammars.load(name, starts, transformer=transformer)

    def read(text: str) -> Any:
        from lark.exceptions import UnexpectedInput

        try:
            if name == "types" and text.count("<") > MAX_DEPTH and _nesting(text) > MAX_DEPTH:
                raise TextFaultError(faults.TypesTooDeep(MAX_DEPTH))
            return parser.parse(text, start=start)
        except UnexpectedInput as error:
            offset, fault = _explain(text, error, _accepted(error))
            raise TextFaultError(fault, offset, _length(text, offset)) from None
        except TextFaultError:
            raise
        except ValueError as error:
            raise TextFaultError(faults.InvalidLiteral(str(error)), 0, len(text)) from None

    remembered = lru_cache(maxsize=1 << 14)(read)
    return lambda text: remembered(text) if len(text) <= 400 else read(text)


_ANGLE = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[<>]')


def _nesting(text: str) -> int:
    """How deep the angle brackets of a text nest; those in quotes are none."""
    depth = deepest = 0
    for mark in _ANGLE.findall(text):
        depth += {"<": 1, ">": -1}.get(mark, 0)
        deepest = max(deepest, depth)
    return deepest


_LOCK = threading.Lock()
"""The readers hold the state of one text at a time."""


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span else (0, 0)


def _cut(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    if len(diagnostics) <= MAX_ERRORS:
        return diagnostics
    more = Diagnostic(f"{len(diagnostics) - MAX_ERRORS} more errors", diagnostics[0].where, severity=Severity.NOTE)
    return [*diagnostics[:MAX_ERRORS], more]
