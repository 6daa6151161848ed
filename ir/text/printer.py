"""The printer: a module as text that parses back equal.

Deterministic: the order of the module, sorted attributes and facets as they stand, the shortest exact numbers; nothing of the
machine, the date or the process. One op a line, its result types and facets behind it, so that a diff of two modules shows the
ops that differ. Texts of types, attributes and facets are kept per object while one module is printed: equal parts are usually
shared, and an identity is cheaper to look up than a structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ir.core.attributes import Attribute, Attributes, AttrKind, Dense
from ir.core.facets import DECISIONS, Facets
from ir.core.module import (
    Declared,
    External,
    Func,
    Inline,
    Mesh,
    Module,
    Plan,
    Program,
    Random,
    Resource,
    ResourceData,
    Schedule,
    Splat,
    Stage,
    State,
    Symbol,
    View,
)
from ir.core.names import quote_key, quote_name, quote_text, quote_word
from ir.core.ops import Op, Region, Value
from ir.core.topology import Topology
from ir.core.types import TensorType, Type
from ir.text.aliases import CALL, REST, Aliases
from ir.text.dense import bytes_text, element_texts
from ir.text.likeness import Printed
from ir.text.records import float_text, record_items, record_text, words_text
from ir.text.renaming import Renaming

WIDTH = 120
"""A signature, and the operands of a call, that are longer than this are broken into lines."""
RUN = 8
"""Numbers in ascending order without a gap that print as a range, ``3..30``."""
LONG_DATA = 120
"""Raw data of a resource that take more characters stand behind the module, or not at all in the short form."""


def print_module(module: Module, *, aliases: bool = True, short: bool = False) -> str:
    """The text of ``module``, ending in a newline. ``aliases``: what is said more than once has a name
    (``ir/text/aliases.py``); without, each op says all of itself in its line, in a form that digests rely on.
    ``short``: for reading alone; locations, facts and long data are left out, and another module is read back."""
    return _Printer(Aliases(Module("", ()) if short else module, aliases), short).module(module)


def print_symbol(symbol: Symbol) -> str:
    """The text of one symbol as it stands in its module, without the indentation."""
    printer = _Printer(Aliases(Module("", ()), False))
    printer.symbol(symbol, "")
    return "\n".join(printer.lines) + "\n"


def print_op(op: Op) -> str:
    """The text of one op, its regions included."""
    printer = _Printer(Aliases(Module("", ()), False))
    printer.ops((op,), "")
    return "\n".join(printer.lines)


class _Printer:
    """Lines of one module; texts by identity of objects, all of which the module keeps alive."""

    def __init__(self, aliases: Aliases, short: bool = False) -> None:
        self.aliases, self.short = aliases, short
        self.lines: list[str] = []
        self.types: dict[int, str] = {}
        self.attributes: dict[int, str] = {}
        self.facets: dict[int, str] = {}

    def module(self, module: Module) -> str:
        self.lines.append(f"module {quote_name(module.name)}{self.attribute_text(module.attributes)} {{")
        printed, number = Printed(), 0
        while number < len(module.symbols):
            symbol = module.symbols[number]
            number += 1
            if isinstance(symbol, Resource) and self.aliases.used:
                if like := printed.like(module.symbols, number - 1):
                    count, renaming, listed = like
                    self.like(renaming, listed, "  ")
                    number += count - 1
                    continue
                printed.add(symbol)
            self.symbol(symbol, "  ")
        self.lines.append("}")
        self.lines += self.aliases.definitions()
        return "\n".join(self.lines) + "\n"

    def symbol(self, symbol: Symbol, indent: str) -> None:
        match symbol:
            case Resource():
                self.resource(symbol, indent)
            case Func():
                self.program(f"{indent}func {quote_name(symbol.name)}", symbol, indent)
            case Stage():
                mesh = f" mesh {quote_name(symbol.mesh)}" if symbol.mesh else ""
                head = f"{indent}stage {quote_name(symbol.name)} index {symbol.index} on {words_text(symbol.devices)}{mesh} "
                self.program(head, symbol, indent)
            case Program():
                names = f"{quote_name(symbol.name)} of {quote_name(symbol.stage)}"
                self.program(f"{indent}program {names} on {words_text(symbol.devices)} ", symbol, indent)
            case Topology():
                self.topology(symbol, indent)
            case Mesh():
                axes = ", ".join(
                    f"{quote_key(axis)} = {size if max(shares) == 1 else list(shares)}"
                    for (axis, size), shares in zip(symbol.axes, symbol.shares or ((1,),) * len(symbol.axes), strict=True)
                )
                self.lines.append(f"{indent}mesh {quote_name(symbol.name)} [{axes}] on {words_text(symbol.devices)}")
            case Schedule():
                self.schedule(symbol, indent)
            case Plan():
                self.plan(symbol, indent)

    def resource(self, resource: Resource, indent: str) -> None:
        keyword = "state" if isinstance(resource.data, State) else "resource"
        digest = f" digest {quote_text(resource.digest)}" if resource.digest and not self.short else ""
        data = resource_data_text(resource.data, resource.type)
        if len(data) > LONG_DATA and isinstance(resource.data, Inline) and self.aliases.used and data.endswith('")'):
            data = f"inline({'..' if self.short else self.aliases.data(data[len('inline(') : -1])})"
        facets = self.facets_text(resource.facets)
        self.lines.append(
            f"{indent}{keyword} {quote_name(resource.name)} : {self.type(resource.type)} = {data}{digest}{facets}"
        )

    def like(self, renaming: Renaming, listed: dict[str, list[int]], indent: str) -> None:
        """A line for resources that are like others (``ir/text/likeness.py``)."""
        before, after = renaming.flat()
        head = f"{indent}like [{quote_text(before)}, {quote_text(after)}]"
        texts = [f"{key} = [{', '.join(map(str, values))}]" for key, values in listed.items()]
        self.lines.append(f"{head} {{{', '.join(texts)}}}" if listed and not self.short else head)

    def program(self, head: str, symbol: Func | Stage | Program, indent: str) -> None:
        args = [self.typed(value) for value in symbol.args]
        results = [self.typed(value) for value in symbol.results]
        tail = " {" if isinstance(symbol, Program) else f"{self.attribute_text(symbol.attributes)} {{"
        line = f"{head}({', '.join(args)}) -> ({', '.join(results)}){tail}"
        if len(line) > WIDTH and len(args) + len(results) > 1:
            line = f"{head}({self.broken(args, indent)}) -> ({self.broken(results, indent)}){tail}"
        self.lines.append(line)
        self.ops(symbol.ops, indent + "  ")
        self.lines.append(f"{indent}}}")

    def ops(self, ops: Iterable[Op], indent: str) -> None:
        lines, type_text, quote = self.lines, self.type, quote_name
        for op in ops:
            results = op.results
            if len(results) == 1:
                result = results[0]
                head = f"{indent}{quote(result.name)} = {op_name_text(op.name)}("
                tail = f" : {type_text(result.type)}"
            elif results:
                head = f"{indent}{', '.join([quote(r.name) for r in results])} = {op_name_text(op.name)}("
                tail = f" : {', '.join([type_text(r.type) for r in results])}"
            else:
                head, tail = f"{indent}{op_name_text(op.name)}(", ""
            operands = ", ".join([quote(name) for name in op.operands]) if op.name != CALL else self.call(op, head, indent)
            attributes = self.attribute_text(op.attributes) if op.attributes else ""
            facets = self.facets_text(op.facets) if op.facets else ""
            location = "" if self.short else f" {self.aliases.location(op)}"
            lines.append(f"{head}{operands}){attributes}{tail}{facets}{location}")
            for key, region in op.regions:
                self.region(key, region, indent + "  ")

    def call(self, op: Op, head: str, indent: str) -> str:
        """The operands of a call, on several lines where they are many."""
        operands = [name if name == REST else quote_name(name) for name in self.aliases.operands(op)]
        text = ", ".join(operands)
        return text if len(head) + len(text) <= WIDTH or not self.aliases.used else self.broken(operands, indent)

    def broken(self, items: list[str], indent: str) -> str:
        """The items on lines of their own, each as full as ``WIDTH`` allows; without aliases one a line."""
        lines: list[str] = []
        for item in items:
            if lines and self.aliases.used and len(lines[-1]) + len(item) < WIDTH:
                lines[-1] += f" {item},"
            else:
                lines.append(f"\n{indent}    {item},")
        return "".join(lines)[:-1]

    def region(self, key: str, region: Region, indent: str) -> None:
        args = ", ".join([self.typed(value) for value in region.args])
        self.lines.append(f"{indent}region {quote_key(key)}({args}) {{")
        self.ops(region.ops, indent + "  ")
        if region.results:
            self.lines.append(f"{indent}  yield {', '.join(map(quote_name, region.results))}")
        self.lines.append(f"{indent}}}")

    def topology(self, topology: Topology, indent: str) -> None:
        self.lines.append(f"{indent}topology {quote_name(topology.name)} {{")
        parts: list[tuple[str, Iterable[Any]]] = [
            ("type", topology.types),
            ("host", topology.hosts),
            ("device", topology.devices),
            ("switch", topology.switches),
            ("link", topology.links),
        ]
        for keyword, records in parts:
            for record in records:
                text = record_text(record, ("name",)) or ("" if keyword in ("host", "switch") else "{}")
                self.lines.append(f"{indent}  {keyword} {quote_word(record.name)}{text and ' ' + text}")
        for route in topology.routes:
            self.lines.append(f"{indent}  route {record_text(route)}")
        self.lines.append(f"{indent}}}")

    def schedule(self, schedule: Schedule, indent: str) -> None:
        self.lines.append(f"{indent}schedule {quote_name(schedule.name)} {{")
        self.lines += [f"{indent}  {item}" for item in record_items(schedule, ("name", "rows"))]
        for device, actions in schedule.rows:
            texts = []
            for action in actions:
                microbatch = "_" if action.microbatch is None else str(action.microbatch)
                channel = "" if action.channel is None else f", {action.channel}"
                texts.append(f"{quote_key(action.kind)}({action.stage}, {microbatch}{channel})")
            self.lines.append(f"{indent}  row {quote_word(device)} [{', '.join(texts)}]")
        self.lines.append(f"{indent}}}")

    def plan(self, plan: Plan, indent: str) -> None:
        self.lines.append(f"{indent}plan {quote_name(plan.name)} {{")
        self.lines += [f"{indent}  {item}" for item in record_items(plan, ("name", "stages"))]
        self.lines += [f"{indent}  stage {record_text(stage)}" for stage in plan.stages]
        self.lines.append(f"{indent}}}")

    def typed(self, value: Value) -> str:
        return f"{quote_name(value.name)} : {self.type(value.type)}"

    def type(self, type_: Type) -> str:
        text = self.types.get(id(type_))
        if text is None:
            text = self.types[id(type_)] = str(type_)
        return text

    def attribute_text(self, attributes: Attributes) -> str:
        """`` {key = value, ..}`` with its leading space; nothing when empty."""
        if not attributes:
            return ""
        text = self.attributes.get(id(attributes))
        if text is None:
            items = ", ".join([f"{quote_key(key)} = {attribute_text(attribute)}" for key, attribute in attributes])
            text = self.attributes[id(attributes)] = f" {{{items}}}"
        return text

    def facets_text(self, facets: Facets) -> str:
        """The facets, each with its leading space."""
        texts = self.facets
        line = ""
        for facet in facets:
            text = texts.get(id(facet))
            if text is None:
                left_out = self.short and not isinstance(facet, DECISIONS)
                text = texts[id(facet)] = "" if left_out else " " + self.aliases.facet(facet)
            line += text
        return line


def op_name_text(name: str) -> str:
    """An op's name; quoted where it is not ``dialect.Name`` of ordinary characters."""
    text = _OP_NAMES.get(name)
    if text is None:
        head, _, rest = name.partition(".")
        bare = _is_word(head, "_$-") and bool(rest) and all(_is_word(part, "_$:/-", "") for part in rest.split("."))
        text = name if bare else quote_text(name)
        if len(_OP_NAMES) < 1 << 14:
            _OP_NAMES[name] = text
    return text


_OP_NAMES: dict[str, str] = {}


def _is_word(text: str, extra: str, not_first: str = "0123456789-$") -> bool:
    return bool(text) and text.isascii() and text[0] not in not_first and all(c.isalnum() or c in extra for c in text)


def single_text(value: float) -> str:
    """The shortest text that reads back as the same IEEE single."""
    from ir.core.attributes import single

    if value != value or value in (float("inf"), float("-inf")):
        return float_text(value)
    for digits in (6, 7, 8, 9):
        text = f"{value:.{digits}g}"
        if single(float(text)) == value:
            return repr(float(text))
    return repr(value)


def attribute_text(attribute: Attribute) -> str:
    """The text of one attribute's value."""
    kind, value = attribute.kind, attribute.value
    listed = _ELEMENT_KIND.get(kind)
    if kind is AttrKind.INTS:
        return f"[{', '.join(_integer_texts(value))}]" if value else "ints[]"
    if listed is not None:
        texts = [attribute_value_text(listed, item) for item in value]
        return f"[{', '.join(texts)}]" if texts else f"{kind.value}[]"
    return attribute_value_text(kind, value)


def _integer_texts(values: tuple[int, ...]) -> Iterator[str]:
    start = 0
    while start < len(values):
        end = start + 1
        while end < len(values) and values[end] == values[end - 1] + 1:
            end += 1
        if end - start >= RUN:
            yield f"{int(values[start])}..{int(values[end - 1])}"
        else:
            yield from (str(int(value)) for value in values[start:end])
        start = end


def attribute_value_text(kind: AttrKind, value: Any) -> str:
    match kind:
        case AttrKind.INT:
            return str(int(value))
        case AttrKind.FLOAT:
            return single_text(value)
        case AttrKind.STRING:
            return quote_text(value)
        case AttrKind.BYTES:
            return bytes_text(value)
        case AttrKind.TENSOR:
            return dense_text(value)
        case AttrKind.SYMBOL:
            return quote_name(value)
    return str(value)


_ELEMENT_KIND = {
    AttrKind.INTS: AttrKind.INT,
    AttrKind.FLOATS: AttrKind.FLOAT,
    AttrKind.STRINGS: AttrKind.STRING,
    AttrKind.TENSORS: AttrKind.TENSOR,
    AttrKind.TYPES: AttrKind.TYPE,
}


def dense_text(dense: Dense) -> str:
    """``dense(tensor<2xf32>, [1.0, 2.0])``, or raw bytes where there are many elements or no exact text."""
    return f"dense({dense.type}, {elements_text(dense.type, dense.data)})"


def elements_text(type_: Type, data: bytes | tuple[bytes, ...]) -> str:
    if isinstance(type_, TensorType):
        texts = element_texts(type_.dtype, data, type_.elements)
        if texts is not None:
            return f"[{', '.join(texts)}]"
    if isinstance(data, tuple):
        return f"[{', '.join(bytes_text(item) for item in data)}]"
    return bytes_text(data)


def resource_data_text(data: ResourceData, type_: Type) -> str:
    """What stands behind the ``=`` of a resource."""
    match data:
        case External(file, offset, length):
            return f"external({quote_text(file)}, offset = {offset}, length = {length})"
        case Inline(inline):
            return f"inline({elements_text(type_, inline)})"
        case Splat(value):
            return f"splat({str(int(value)) if isinstance(value, int) else float_text(value)})"
        case Random():
            return f"random({quote_word(data.distribution)}, {', '.join(record_items(data, ('distribution',)))})"
        case Declared():
            return "declared"
        case State(result):
            return f"{quote_text(result)} {record_text(data, ('result',))}".rstrip()
        case View(whole):
            return f"view({', '.join([resource_data_text(whole, _whole_type(data, type_)), *record_items(data)])})"


def _whole_type(view: View, type_: Type) -> Type:
    """The type of what ``view`` is a part of."""
    return replace(type_, shape=view.shape) if isinstance(type_, TensorType) else type_
