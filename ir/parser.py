"""The parser: text to module, with every fault at its line and column.

Three grammars: ``module.lark`` reads lines, with whole types and attribute dictionaries as single tokens, whose inside
``types.lark`` and ``attributes.lark`` read once per distinct text. After a fault of syntax the parser drops the op or symbol
it stands in and goes on at the next line that can begin one, so that one run reports several.

Limits: a text is refused before it is read when it is larger than ``MAX_BYTES``, is not UTF-8, or does not begin with
``module``. Lark is imported at the first parse.
"""

from __future__ import annotations

import bisect
import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grammars
from ir.diagnostics import Diagnostic, InvalidInput, Severity, Span
from ir.literals import AttributeReader, TypeReader
from ir.module import Module
from ir.reader import MAX_DEPTH, Reader, TextFault

if TYPE_CHECKING:
    from lark import Lark
    from lark.exceptions import UnexpectedInput

MAX_BYTES = 1 << 29
"""Files larger than this are refused: a program of a million ops is a fifth of it."""
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
    with _LOCK, _collection_paused():
        parser, reader = _module_parser()
        reader.begin()
        recovery = _Recovery(source)
        module = recovery.run(parser)
        source.positions.update(reader.positions)
        faults = [
            Diagnostic(fault.message, where, source.span_at(fault.position, fault.length), fault.hint)
            for fault in reader.faults
        ]
        reader.begin()
    diagnostics = sorted([*recovery.diagnostics, *faults], key=_place)
    if diagnostics or module is None:
        raise InvalidInput(_cut(diagnostics))
    return ParseResult(module, source)


def read_text(path: str | Path) -> str:
    """The text of an IR file. Raises InvalidInput for a file that is missing, too large, not UTF-8 text or plainly no IR,
    after reading its first bytes only."""
    path = Path(path)
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(1 << 16)
            _check_head(head, where)
            if size > MAX_BYTES:
                raise InvalidInput(f"the file has {size} bytes; IR text of more than {MAX_BYTES} bytes is refused", where=where)
            data = head + file.read()
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror or error}", where=where) from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"expected UTF-8 text but found byte 0x{data[error.start]:02x} at offset {error.start}"
        raise InvalidInput(Diagnostic(message, where, Span(line, 1), "is this a file of IR text (.ir)?")) from None


def _check_head(head: bytes, where: str) -> None:
    if b"\0" in head:
        message = f"expected IR text but found binary data (a zero byte at offset {head.index(0)})"
        raise InvalidInput(message, where=where, hint="is this a file of IR text (.ir)?")
    text = head.decode(errors="replace")
    match = _HEAD.match(text)
    start = match.end() if match else 0
    if start == len(text) < 1 << 16 or (start < len(text) and not text.startswith("module", start)):
        raise InvalidInput(_no_module(SourceMap(where, text, {}), start))


def _no_module(source: SourceMap, start: int) -> Diagnostic:
    span = source.span_at(start)
    return Diagnostic(
        "expected 'module @name {' at the start of the text", source.where, span, "is this a file of IR text (.ir)?"
    )


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
        position, message = _explain(self.text, error, _MODULE_WORDS)
        self.diagnostics.append(
            Diagnostic(message, self.source.where, self.source.span_at(position, _length(self.text, position)))
        )
        if len(self.diagnostics) >= MAX_ERRORS:
            return False
        return self.resume(error, _position(error, self.text))

    def resume(self, error: UnexpectedInput, position: int) -> bool:
        """Finds the next line that can go on, drops what is unfinished, and continues there. False at the end."""
        state = error.interactive_parser.parser_state
        states = state.parse_conf.states
        text = self.text
        line = text.rfind("\n", 0, position) + 1
        if text[line:position].strip() or line <= self.resumed_at:
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
            if kind is not None and depth == 0:
                keep = len(state.state_stack)
                while keep > 1 and not (
                    kind in states[state.state_stack[keep - 1]] and _is_list(states[state.state_stack[keep - 1]])
                ):
                    keep -= 1
                if keep > 1:
                    del state.state_stack[keep:]
                    del state.value_stack[keep - 1 :]
                    self.resumed_at = line
                    lexer_state: Any = error.interactive_parser.lexer_thread.state
                    lexer_state.line_ctr.char_pos = start.start(1) if start else line
                    return True
            if _opens(text, line):
                depth += 1
            line = _next_line(text, line)
        return False


_START = re.compile(
    r"""[ \t\r]*(
    (?P<RBRACE>\}) | (?P<RESULTS>(?:[%@_]).*=) | (?P<REGION>region\b) | (?P<YIELD>yield\b)
    | (?P<RESOURCE>resource\b) | (?P<FUNC>func\b) | (?P<TOPOLOGY>topology\b) | (?P<MESH>mesh\b) | (?P<STAGE_AT>stage[ ]+@)
    | (?P<SCHEDULE>schedule\b) | (?P<PLAN>plan\b) | (?P<STAGE>stage[ ]*\{) | (?P<_DEVICE_TYPE>type\b) | (?P<HOST>host\b)
    | (?P<DEVICE>device\b) | (?P<SWITCH>switch\b) | (?P<LINK>link\b) | (?P<ROUTE>route\b) | (?P<ROW>row\b)
    | (?P<OPNAME>"[^"\n]*"\(|[A-Za-z_][\w$\-]*\.\S*\() | (?P<FIELD>[A-Za-z_]\w*[ ]*=)
    )""",
    re.VERBOSE,
)
_SYMBOL_STARTS = frozenset({"RESOURCE", "FUNC", "TOPOLOGY", "MESH", "STAGE_AT", "SCHEDULE", "PLAN"})
_LISTS = ("RESULTS", "RESOURCE", "DEVICE", "ROW")


def _kind(start: re.Match[str]) -> str | None:
    kind = next((name for name, value in start.groupdict().items() if value is not None), None)
    return "STAGE" if kind == "STAGE_AT" else kind


def _is_list(actions: dict[str, Any]) -> bool:
    """Whether this parser state stands between the items of a body, of the module, of a topology, a schedule or a plan."""
    return "RBRACE" in actions and (any(name in actions for name in _LISTS) or {"FIELD", "STAGE"} <= actions.keys())


def _opens(text: str, line: int) -> bool:
    end = text.find("\n", line)
    return text[line : end if end >= 0 else len(text)].rstrip().endswith("{")


def _next_line(text: str, line: int) -> int:
    end = text.find("\n", line)
    return end + 1 if end >= 0 else len(text)


def _position(error: UnexpectedInput, text: str) -> int:
    token = getattr(error, "token", None)
    if token is None:
        return int(error.pos_in_stream or 0)
    return len(text.rstrip()) if token.type == "$END" else int(token.start_pos)


def _length(text: str, position: int) -> int:
    found = _FOUND.match(text, position)
    return len(found[0]) if found else 1


_FOUND = re.compile(r'[\w@%.$/\-]+|"[^"\n]*"?|->|\S')


def _explain(text: str, error: UnexpectedInput, words: dict[str, str]) -> tuple[int, str]:
    """Where the fault is, as narrowly as can be said, and the message."""
    position = _position(error, text)
    accepted: set[str] = error.interactive_parser.accepts()  # type: ignore[no-untyped-call]
    refined = _refine(text, position, accepted)
    if refined:
        return refined
    found = _FOUND.match(text, position)
    what = f"'{found[0][:40]}'" if found else "the end of the text"
    expected = list(dict.fromkeys(word for name, word in words.items() if name in accepted))
    expected += sorted(f"'{name.lower()}'" for name in accepted if name not in words and name != "$END")
    if "$END" in accepted:
        expected.append("the end of the text")
    listed = ", ".join(expected[:-1]) + (" or " if len(expected) > 1 else "") + expected[-1] if expected else "nothing more"
    return position, f"expected {listed} but found {what}"


_NAME = r'(?:[%@](?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[A-Za-z0-9_./:$\-]+)|_)'
_NAMES_HEAD = re.compile(rf"\(\s*(?:{_NAME}\s*,\s*)*")
_RESULTS_HEAD = re.compile(rf"{_NAME}(?:\s*,\s*{_NAME})*\s*")
_ONE_NAME = re.compile(_NAME + r"\s*")
_OPEN_QUOTE = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*(?:\n|\Z)')


def _refine(text: str, position: int, accepted: set[str]) -> tuple[int, str] | None:
    """The fault inside a wide token: the token fails as a whole at its start, a person needs the place inside."""
    first = text[position : position + 1]
    if "OPERANDS" in accepted and first == "(":
        head = _NAMES_HEAD.match(text, position)
        at = head.end() if head else position + 1
        name = _ONE_NAME.match(text, at)
        if name is None:
            return at, f"expected an operand such as %x, @w or _ but found {_what(text, at)}"
        return name.end(), f"expected ',' or ')' behind an operand but found {_what(text, name.end())}"
    if "RESULTS" in accepted and first in ("%", "@"):
        head = _RESULTS_HEAD.match(text, position)
        if head:
            return head.end(), f"expected '=' behind the results but found {_what(text, head.end())}"
    if "TYPES" in accepted and first == ":":
        at = position + 1
        while at < len(text) and text[at] in " \t":
            at += 1
        return at, f"expected a type such as tensor<8x4xf32> but found {_what(text, at)}"
    if "ATTRIBUTES" in accepted and first == "{" and "LBRACE" not in accepted:
        return position, "expected attributes such as {axis = 1, mode = \"linear\"}, closed by '}'"
    if "LOCATION" in accepted and text.startswith("loc", position):
        return position, 'expected a location: loc(?) or loc("graph path", "node", "scope")'
    if "FACETS" in accepted and (facet := _FACET_HEAD.match(text, position)):
        return position, f"expected the facet {facet[0]}..> to end in '>' on its line"
    if _OPEN_QUOTE.match(text, position):
        return position, "a text in double quotes does not end on its line"
    return None


_FACET_HEAD = re.compile(r"[a-z_]+<")


def _what(text: str, position: int) -> str:
    while position < len(text) and text[position] in " \t":
        position += 1
    if position >= len(text):
        return "the end of the text"
    if text[position] == "\n":
        return "the end of the line"
    found = _FOUND.match(text, position)
    return f"'{found[0][:40]}'" if found else "nothing"


_MODULE_WORDS = {
    "SYMBOL": "a symbol such as @main",
    "NAME": "a name such as %x",
    "RESULTS": "an op",
    "OPNAME": "an op",
    "OPERANDS": "operands in parentheses",
    "ATTRIBUTES": "attributes in braces",
    "TYPES": "': type'",
    "FACETS": "a facet such as cost<..>",
    "LOCATION": "a location",
    "ELEMENTS": "a list of elements",
    "BYTES": 'bytes such as hex"00ff"',
    "ACTION": "an action such as F(0, 1)",
    "FIELD": "'key ='",
    "KEY": "a key",
    "WORD": "a word",
    "STRING": "a text in double quotes",
    "NUMBER": "a number",
    "NAMES": "names such as %x, %y",
    "_DEVICE_TYPE": "'type'",
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
    "FLOAT": "a float such as 1.0",
    "TYPE": "a type",
    "TRUTH": "true or false",
    "COMPLEX": "a complex number such as (0.0, 1.0)",
    "EMPTY": "an empty list such as ints[]",
    "R": "'R'",
    "S": "'S'",
    "P": "'P'",
}


@cache
def _module_parser() -> tuple[Lark, Reader]:
    types = _inner("types", "types", TypeReader())
    attribute_reader = AttributeReader(types)
    attributes = _inner("attributes", "attributes", attribute_reader)
    elements = _inner("attributes", "elements", attribute_reader)
    reader = Reader(types, attributes, elements)
    return grammars.load("module", "module", transformer=reader), reader


def _inner(name: str, start: str, transformer: Any) -> Callable[[str], Any]:
    """The reader of the inside of a token: by distinct text, short texts remembered. Raises TextFault."""
    starts = ("attributes", "elements") if name == "attributes" else ("types", "type")
    parser = grammars.load(name, starts, transformer=transformer)

    def read(text: str) -> Any:
        from lark.exceptions import UnexpectedInput

        try:
            if name == "types" and text.count("<") > MAX_DEPTH + text.count(","):
                raise TextFault(f"types nested more than {MAX_DEPTH} deep")
            return parser.parse(text, start=start)
        except UnexpectedInput as error:
            offset, message = _explain(text, error, _MODULE_WORDS)
            raise TextFault(message, offset, _length(text, offset)) from None
        except TextFault:
            raise
        except ValueError as error:
            raise TextFault(str(error), 0, len(text)) from None

    remembered = lru_cache(maxsize=1 << 14)(read)
    return lambda text: remembered(text) if len(text) <= 400 else read(text)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Parsing makes many objects and no garbage cycles: the cycle collector would walk them all again and again, which makes
    the time per op grow with the text."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_LOCK = threading.Lock()
"""The readers hold the state of one text at a time."""


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span else (0, 0)


def _cut(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    if len(diagnostics) <= MAX_ERRORS:
        return diagnostics
    more = Diagnostic(f"{len(diagnostics) - MAX_ERRORS} more errors", diagnostics[0].where, severity=Severity.NOTE)
    return [*diagnostics[:MAX_ERRORS], more]
