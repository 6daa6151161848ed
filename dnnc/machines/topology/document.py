"""A topology document: its data, the places of all of it, and typed reads that report a fault instead of failing.

Each read takes the path of the value and the table that holds it; a fault is recorded at that place and the default is
returned, so that one run finds every fault.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from dnnc.machines.topology.faults import (
    BandwidthMissing,
    DeviceIdOfType,
    KeyMissing,
    LongKey,
    NoBandwidth,
    NoRate,
    NotAnAmount,
    NotAProvider,
    NotATopology,
    NotATopologyFile,
    NotToml,
    OptionsWithoutProvider,
    PathInOption,
    UnknownName,
    WrongValue,
)
from dnnc.machines.topology.quantities import Quantity, parse_memory, parse_quantity
from dnnc.onnx.providers import PACKAGES
from ir.core.diagnostics import Diagnostic, DiagnosticSink, Fault, InvalidInput, Span
from ir.core.limits import LIMITS
from ir.core.ranges import LARGEST, MOST_MEMORY, SMALLEST, is_amount
from ir.core.types import DType
from ir.system.files import read_input_text
from ir.text.json_text import parse_json
from ir.text.positions import Path, Positions, positions
from ir.verifier.machines import LEAST_EFFICIENCY, OPTION, PROVIDER

MOST_FAULTS = 100
"""Reading ends with so many: each costs a look at what was meant."""
MOST_PARTS = 16
"""Of a dotted key; the deepest that means something has four."""
_COMPARED = 1000
"""Names among which the nearest to a wrong one is looked for, and characters of that."""
_LISTED = 12
"""Names that a message lists."""
_RANGE = f"from {SMALLEST:g} to {LARGEST:g}"
_UNIT = {Quantity.BANDWIDTH: "bytes/s", Quantity.TIME: "seconds", Quantity.RATE: "FLOP/s", Quantity.MEMORY: "bytes"}
_UNLIMITED = 'a device without a limit has memory = "unlimited"'
_DTYPES = tuple(dtype.value for dtype in DType)


@dataclass(slots=True)
class Document:
    """Parsed data with positions; ``where`` is the file as the user named it."""

    data: dict[str, Any]
    places: Positions
    where: str
    faults: DiagnosticSink = field(default_factory=DiagnosticSink)

    def fault(self, path: Path, fault: Fault | Diagnostic, *, key: bool = False) -> None:
        """Records a fault at a value, or at its key. Raises InvalidInput once there are ``MOST_FAULTS``."""
        span = (self.places.key(path) if key else self.places.value(path)) if path else None
        diagnostic = fault.at() if isinstance(fault, Fault) else fault
        self.faults.emit(replace(diagnostic, where=self.where, span=span))
        if len(self.faults.diagnostics) >= MOST_FAULTS:
            self.faults.raise_errors()

    def unknown(
        self, path: Path, what: str, found: str, known: Iterable[str], *, of: str = "", hint: str = "", key: bool = False
    ) -> None:
        """A name that is not there; suggests the nearest one, unless that differs by its number only."""
        known = list(itertools.islice(dict.fromkeys(known), _COMPARED))
        near = difflib.get_close_matches(found[:_COMPARED], known, n=1)
        if near and re.sub(r"[0-9]+", "#", near[0]) == re.sub(r"[0-9]+", "#", found):
            near = []
        listed = (*known[:_LISTED], *(["..."] if len(known) > _LISTED else []))
        self.fault(path, UnknownName(what, found, of, near[0] if near else "", listed, hint), key=key)

    def keys(self, path: Path, table: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
        """Reports keys of ``table`` that are not allowed."""
        for key in table:
            if key not in allowed:
                self.unknown((*path, key), "key", key, allowed, of=what, key=True)

    # structure

    def as_table(self, path: Path, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.fault(path, WrongValue(describe(value), "a table"))
        return {}

    def table(self, path: Path, holder: Mapping[str, Any]) -> dict[str, Any]:
        key = str(path[-1])
        return self.as_table(path, holder[key]) if key in holder else {}

    def tables(self, path: Path, holder: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A list of tables; a faulty item reads as an empty one, so that indices stay those of the file."""
        value = holder.get(str(path[-1]), [])
        if not isinstance(value, list):
            self.fault(path, WrongValue(describe(value), f"a list of tables: [[{path[-1]}]]"))
            return []
        return [self.as_table((*path, number), item) for number, item in enumerate(value)]

    def strings(self, path: Path, holder: Mapping[str, Any]) -> list[str]:
        """Text or a list of text; empty when absent."""
        value = holder.get(str(path[-1]), [])
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            self.fault(path, WrongValue(describe(value), "text or a list of text"))
            return []
        for number, item in enumerate(value):
            if not isinstance(item, str):
                self.fault((*path, number), WrongValue(describe(item), "text"))
        return [item for item in value if isinstance(item, str)]

    # values

    def text(self, path: Path, holder: Mapping[str, Any], default: str | None = None) -> str:
        """Text that is not empty; a fault when absent and there is no default."""
        key = str(path[-1])
        if key not in holder:
            if default is None and isinstance(holder, dict):
                self.fault(path, KeyMissing(key))
            return default or ""
        value = holder[key]
        if isinstance(value, str) and value:
            return value
        self.fault(path, WrongValue(describe(value), "text"))
        return default or ""

    def choice(self, path: Path, holder: Mapping[str, Any], allowed: Sequence[str]) -> str:
        """One of a few words; the first is the default."""
        value = self.text(path, holder, default=allowed[0])
        if value not in allowed:
            self.fault(path, WrongValue(repr(value), " or ".join(map(repr, allowed))))
            return allowed[0]
        return value

    def flag(self, path: Path, holder: Mapping[str, Any], default: bool = False) -> bool:
        value = holder.get(str(path[-1]), default)
        if isinstance(value, bool):
            return value
        self.fault(path, WrongValue(describe(value), "true or false"))
        return default

    def whole(
        self, path: Path, holder: Mapping[str, Any], default: int | None = None, *, least: int = 1, most: int
    ) -> int | None:
        """A whole number from ``least`` to ``most``."""
        value = holder.get(str(path[-1]), default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
            return value
        self.fault(path, WrongValue(describe(value), f"a whole number from {least} to {most}"))
        return default

    def provider(self, path: Path, holder: Mapping[str, Any], default: str) -> str:
        """The name of an execution provider of ONNX Runtime."""
        name = self.text(path, holder, default)
        if not name or PROVIDER.fullmatch(name):
            return name
        near = [known for known in PACKAGES if known.lower().startswith(name.lower())]
        near = near or difflib.get_close_matches(name[:_COMPARED], PACKAGES, n=1)
        self.fault(path, NotAProvider(name, near[0] if near else ""))
        return default

    def provider_options(self, path: Path, holder: Mapping[str, Any], provider: str) -> dict[str, str]:
        """What a provider is given: text by name, as onnxruntime's documentation of that provider has it."""
        table = self.table(path, holder)
        if table and not provider:
            self.fault(path, OptionsWithoutProvider())
        options = {}
        for key, value in table.items():
            if key == "device_id":
                self.fault((*path, key), DeviceIdOfType())
            elif isinstance(value, str) and OPTION.fullmatch(value):
                options[key] = value
            elif isinstance(value, str):
                self.fault((*path, key), PathInOption(describe(value)))
            else:
                self.fault((*path, key), WrongValue(describe(value), "text, as onnxruntime takes its options"))
        return options

    def _quantity(self, path: Path, holder: Mapping[str, Any], kind: Quantity, default: float) -> float:
        if path[-1] not in holder:
            return default
        try:
            value = parse_quantity(holder[str(path[-1])], kind)
        except ValueError as error:
            self.fault(path, NotAnAmount(str(error)))
            return default
        if not is_amount(value):
            self.fault(path, WrongValue(describe(holder[str(path[-1])]), f"0 or {_RANGE} {_UNIT[kind]}"))
            return default
        return value

    def bandwidth(self, path: Path, holder: Mapping[str, Any], default: float = 0.0, required: bool = False) -> float:
        """Bytes per second, more than none."""
        if path[-1] in holder:
            before = len(self.faults.diagnostics)
            value = self._quantity(path, holder, Quantity.BANDWIDTH, default)
            if not value and len(self.faults.diagnostics) == before:
                self.fault(path, NoBandwidth())
            return value
        if required:
            self.fault(path, BandwidthMissing())
        return default

    def seconds(self, path: Path, holder: Mapping[str, Any], default: float = 0.0) -> float:
        return self._quantity(path, holder, Quantity.TIME, default)

    def rate(self, path: Path, holder: Mapping[str, Any], default: float = 0.0) -> float:
        return self._quantity(path, holder, Quantity.RATE, default)

    def memory(self, path: Path, holder: Mapping[str, Any], default: int | None = None) -> int | None:
        """Bytes; None for ``unlimited``."""
        if path[-1] not in holder:
            return default
        value = holder[str(path[-1])]
        if value == "unlimited":
            return None
        try:
            size = parse_memory(value)
        except ValueError as error:
            self.fault(path, NotAnAmount(str(error), _UNLIMITED))
            return default
        if size >= MOST_MEMORY:
            self.fault(path, WrongValue(describe(value), f"less than {MOST_MEMORY} bytes", _UNLIMITED))
            return default
        return size

    def rates(self, path: Path, holder: Mapping[str, Any]) -> dict[str, float]:
        """Flop per second by element type."""
        rates: dict[str, float] = {}
        for dtype, value in self.table(path, holder).items():
            place = (*path, dtype)
            if dtype not in _DTYPES:
                self.unknown(place, "element type", dtype, _DTYPES, key=True)
                continue
            try:
                rates[dtype] = parse_quantity(value, Quantity.RATE)
                if not rates[dtype]:
                    self.fault(place, NoRate())
                elif not is_amount(rates[dtype]):
                    self.fault(place, WrongValue(describe(value), f"{_RANGE} {_UNIT[Quantity.RATE]}"))
            except ValueError as error:
                self.fault(place, NotAnAmount(str(error)))
        return rates

    def fractions(self, path: Path, holder: Mapping[str, Any]) -> dict[str, float]:
        """Efficiencies by class of ops: more than 0, at most 1."""
        fractions: dict[str, float] = {}
        for kind, value in self.table(path, holder).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST_EFFICIENCY <= value <= 1:
                expected = f"a fraction: at least {LEAST_EFFICIENCY:g}, at most 1"
                self.fault((*path, kind), WrongValue(describe(value), expected))
            else:
                fractions[kind] = float(value)
        return fractions

    def fraction(self, path: Path, holder: Mapping[str, Any], default: float | None) -> float | None:
        """From 0 to 1."""
        if path[-1] not in holder:
            return default
        value = holder[str(path[-1])]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self.fault(path, WrongValue(describe(value), "a fraction from 0 to 1"))
            return default
        return float(value)


def describe(value: object) -> str:
    """A value as a message shows it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, str):
        return repr(value if len(value) <= 200 else f"{value[:197]}...")
    return repr(value) if isinstance(value, int | float) else f"{value} (a date)"


def parse_document(text: str, where: str, syntax: str) -> Document:
    """The data of a text with the places of all of it. Raises InvalidInput on a syntax error, with its line."""
    try:
        data = parse_json(text, where) if syntax == "json" else _toml(text, where)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(_toml_fault(str(error), text, where)) from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInput(NotATopology(reason), where=where) from None
    if not isinstance(data, dict):
        raise InvalidInput(WrongValue(f"{describe(data)} at the top", "a table of keys"), where=where)
    return Document(data, positions(text, syntax), where)


_TOML_TOKEN = re.compile(
    r'''(?P<skip>"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"{3,5}|'{3}(?:[^']|'{1,2}(?!'))*+'{3,5}|#[^\n]*)'''
    r"""|(?P<part>"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[A-Za-z0-9_-]++)|(?P<dot>[ \t]*+\.[ \t]*+)""",
    re.DOTALL,
)


_UNQUOTED = re.compile(r"=[^\"'#=]*$")
_WORD = re.compile(r"[^\s=,\[\]{}#]")


def _toml(text: str, where: str) -> dict[str, Any]:
    """The data of a TOML text. Raises InvalidInput for a key of too many parts, which take the square of their number."""
    parts, end = 0, -1
    for token in _TOML_TOKEN.finditer(text):
        parts = 0 if token["skip"] or token.start() != end else parts + (token["dot"] is not None)
        end = token.end()
        if parts >= MOST_PARTS:
            span = Positions(text).span(token.start(), token.end())
            raise InvalidInput(LongKey(MOST_PARTS), where=where, span=span)
    return tomllib.loads(text)


def _toml_fault(message: str, text: str, where: str) -> Diagnostic:
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if found is None:
        return NotToml(message).at(where)
    lines = text.split("\n")
    line = int(found[1]) if found[1] else len(lines)
    column = int(found[2]) if found[2] else len(lines[-1]) + 1
    source = lines[line - 1] if line <= len(lines) else ""
    # A word in a value without quotes: behind ``=``, or where a value of a list over several lines should begin.
    behind = "Invalid value" in message or _UNQUOTED.search(source, 0, column - 1)
    hint = 'quantities and names are text in quotes: memory = "80 GiB"' if behind and _WORD.match(source, column - 1) else ""
    return NotToml(message[: found.start()], hint).at(where, Span(line, column, 1, source))


def file_syntax(file: FilePath) -> str:
    suffix = file.suffix.lower()
    if suffix not in (".toml", ".json"):
        raise InvalidInput(NotATopologyFile(suffix), where=str(file))
    return suffix[1:]


def read_file(file: FilePath) -> str:
    file_syntax(file)
    hint = "for a topology that comes with dnnc write preset:NAME, such as preset:cpu-2"
    return read_input_text(file, "a topology file", LIMITS.topology_bytes, hint=hint).replace("\r\n", "\n")
