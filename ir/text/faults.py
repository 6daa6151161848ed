"""Why IR text, or a JSON document, does not parse. Codes E21.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

IS_IR = "is this a file of IR text (.ir)?"
ESCAPES = 'escapes are those of JSON: \\" \\\\ \\n \\t \\u00e9'

# The file.


class NotIr(Fault, code="E2101"):
    """The text does not begin as IR text does."""

    message = "expected 'module @name {{' at the start of the text"
    hint = IS_IR


class IrTooLarge(Fault, code="E2102"):
    """The file has more bytes than are read as IR text."""

    message = "it has more than {limit} bytes; IR text of so many is refused"
    limit: int


class IrNotUtf8(Fault, code="E2103"):
    """IR text is encoded in UTF-8, and this file is not."""

    message = "expected UTF-8 text but found byte {byte} at offset {offset}"
    hint = IS_IR
    byte: str
    offset: int


class BinaryIr(Fault, code="E2104"):
    """The file is binary, and IR is text."""

    message = "expected IR text but found binary data (a zero byte at offset {offset})"
    hint = IS_IR
    offset: int


# Syntax.


class UnexpectedText(Fault, code="E2105"):
    """The grammar of the IR allows something else at this place (``grammars/*.lark``)."""

    message = "expected {expected} but found {found}"
    expected: str
    found: str


class MalformedAttributes(Fault, code="E2106"):
    """Attributes in braces do not end, or an entry in them is not written as one."""

    message = "expected attributes such as {example}, closed by '}}'"

    @property
    def example(self) -> str:
        return '{axis = 1, mode = "linear"}'


class MalformedLocation(Fault, code="E2107"):
    """A location is not written as one."""

    message = 'expected a location: loc(?) or loc("graph path", "node", "scope")'


class UnclosedFacet(Fault, code="E2108"):
    """A facet begins on a line and does not end on it."""

    message = "expected the facet {facet}..> to end in '>' on its line"
    facet: str


class UnclosedQuote(Fault, code="E2109"):
    """A double quote begins a text that does not end on its line."""

    message = "a text in double quotes does not end on its line"


class TypesTooDeep(Fault, code="E2110"):
    """Types hold types more deeply than can be read."""

    message = "types nested more than {most} deep"
    most: int


class InvalidLiteral(Fault, code="E2111"):
    """A type, an attribute or an element is written as the grammar says, and its value is impossible."""

    message = "{reason}"
    reason: str


# Tokens.


class BadEscape(Fault, code="E2112"):
    """A backslash in double quotes is followed by what is no escape of JSON."""

    message = "bad escape in {place}"
    hint = ESCAPES
    place: str


class NotOneType(Fault, code="E2113"):
    """A value has one type, and several are listed."""

    message = "expected one type but found {count}"
    count: int


class InvalidFacet(Fault, code="E2114"):
    """There is no such facet, or an item of it is missing, unknown or of another kind."""

    message = "{reason}"
    reason: str


class UndefinedAlias(Fault, code="E2115"):
    """An alias (``#cost0``) is used, and no line behind the module says what it stands for."""

    message = "alias {alias} is not defined"
    hint = "define aliases behind the module: #cost0 = cost<flops = 8, kind = matmul>"
    alias: str


class LocationTooLong(Fault, code="E2116"):
    """A location has more texts than graph path, node and scope."""

    message = "a location has at most three texts (graph path, node, scope), not {count}"
    count: int


class UnknownLocationPart(Fault, code="E2117"):
    """A part of a location is neither in quotes nor the name of a rule."""

    message = "expected a text or one of {expected} in a location but found '{found}'"
    found: str
    expected: tuple[str, ...]


class LocationWithoutResult(Fault, code="E2118"):
    """A location is derived from the name of the op's first result, and the op has no result."""

    message = "'{rule}' follows from the name of an op's first result, and there is none"
    rule: str


class InvalidNumber(Fault, code="E2119"):
    """A number has more digits than any that the IR holds."""

    message = "{reason}"
    reason: str


class NotAnInteger(Fault, code="E2120"):
    """An integer is expected, and the number has a fraction or an exponent."""

    message = "expected an integer but found {found}"
    found: str


class NotANumber(Fault, code="E2121"):
    """A number is expected, and a word that is none stands there."""

    message = "expected a number but found '{found}'"
    found: str


class NotNames(Fault, code="E2122"):
    """A list holds something other than names."""

    message = "expected a list of names such as [gpu0, gpu1]"


# Aliases.


class AliasDefinedTwice(Fault, code="E2123"):
    """Two lines say what an alias stands for."""

    message = "alias {alias} is defined twice"
    alias: str


class AliasOfAlias(Fault, code="E2124"):
    """An alias stands for a facet, a location or bytes, not for another alias."""

    message = "expected what {alias} stands for but found another alias"
    alias: str


class WrongAliasKind(Fault, code="E2125"):
    """The name of an alias says what it stands for: #loc.. a location, #data.. bytes, any other a facet."""

    message = "expected a {expected} behind {alias} = but found a {found}"
    alias: str
    expected: str
    found: str


class AliasOfSeveralFacets(Fault, code="E2126"):
    """An alias stands for one facet, and several are listed."""

    message = "alias {alias} stands for one facet"
    alias: str


# Resources.


class LikeWithoutNames(Fault, code="E2127"):
    """A line ``like`` needs two texts: with what the names of existing resources begin, and of the new ones."""

    message = 'expected what names begin with, and what they shall begin with: like ["h.0", "h.1"]'


class WrongLikeTable(Fault, code="E2128"):
    """The table of a line ``like`` lists something other than the numbers in which the resources differ."""

    message = "expected {expected} = and a list of integers"
    expected: str


class NothingAlike(Fault, code="E2129"):
    """A line ``like`` copies resources by the beginning of their names, and no resource before has it."""

    message = "no resource before begins with '{begin}'"
    begin: str


class WrongLikeCount(Fault, code="E2130"):
    """The table of a line ``like`` needs one number for each resource that it makes."""

    message = "{reason}"
    reason: str


class TooManyAlike(Fault, code="E2131"):
    """Lines ``like`` of one text make more resources than a module may have."""

    message = "more than {most} resources are said to be like others"
    most: str


class InvalidData(Fault, code="E2132"):
    """The data of a resource are not bytes, or not elements of its type."""

    message = "{reason}"
    reason: str


# Ops.


class ResultTypeCount(Fault, code="E2133"):
    """An op lists one type for each of its results."""

    message = "{results} results but {types} types"
    results: int
    types: int


class ResultsWithoutTypes(Fault, code="E2134"):
    """An op names results and lists no types."""

    message = "results without their types"
    hint = "write `: type, ..` behind the operands"


class RestOutsideCall(Fault, code="E2135"):
    """``..`` repeats operands of a call, and this op is no call."""

    message = "'..' stands for operands of a call, and this is none"


class RestOfFirstCall(Fault, code="E2136"):
    """``..`` repeats the operands of the first call of a function, and this is the first."""

    message = "'..' stands for operands of the first call of this function, and there is none before"


class RegionsTooDeep(Fault, code="E2137"):
    """Regions hold regions more deeply than a module may."""

    message = "regions nested more than {most} deep"
    most: int


# Machines, schedules and plans.


class InvalidField(Fault, code="E2138"):
    """A field of a device, a link, a plan, ... is unknown, missing, stated twice, or of another kind."""

    message = "{reason}"
    reason: str


class AxisWithoutSize(Fault, code="E2139"):
    """An axis of a mesh states neither its size nor the shares of its members."""

    message = "axis '{axis}' needs its size, an integer, or the shares of its members such as [3, 1]"
    axis: str


class InvalidAction(Fault, code="E2140"):
    """An action of a schedule has a number that is too large, or a bad escape."""

    message = "bad number or escape in an action"


# JSON.


class InvalidJson(Fault, code="E2141"):
    """The document is no JSON."""

    message = "not valid JSON: {reason}"
    hint = "{advice}"
    reason: str
    advice: str = ""


class JsonKeyTwice(Fault, code="E2142"):
    """An object has one key twice. Which of the two counts is not defined, so neither is taken."""

    message = "not valid JSON: '{key}' stands twice in one object; remove one of the two"
    hint = "{advice}"
    key: str
    advice: str = ""


class JsonNotANumber(Fault, code="E2143"):
    """JSON has no NaN and no infinity."""

    message = "not valid JSON: {found} is no number"
    hint = "{advice}"
    found: str
    advice: str = ""


class JsonNumberTooLong(Fault, code="E2144"):
    """A number has more digits than are read."""

    message = "not valid JSON: a number has thousands of digits"
    hint = "{advice}"
    advice: str = ""


class JsonTooDeep(Fault, code="E2145"):
    """Objects and lists hold one another more deeply than any document of dnnc does."""

    message = "not valid JSON: objects and lists nest more than {most} deep"
    hint = "{advice}"
    most: int
    advice: str = ""


class JsonHalfCharacter(Fault, code="E2146"):
    """A text holds one half of a character that UTF-16 writes as two (a lone surrogate)."""

    message = "not valid JSON: a text holds half of a character"
    hint = "{advice}"
    advice: str = ""
