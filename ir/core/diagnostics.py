"""What goes wrong, as data: kinds of faults, diagnostics, and the errors that carry them.

Three families. A *user fault* (``DnncError``) is an invalid input: collected, located, plain, with a documented exit code. A
*broken invariant* (``InvariantError``) is a pass that made invalid IR: it names the pass. Everything else is a bug and
leads to a reproducer. A person never sees a traceback.

A user fault is of a *kind*: a subclass of ``Fault`` in its room's ``faults.py``, with a stable code, templates of its message,
note and hint, and typed fields that fill them. ``Fault.at`` makes a ``Diagnostic`` of it: the text, and its place.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, dataclass_transform

_RAW = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""What changes a terminal, hides text or changes its order: control, format and bidirectional characters, half characters."""


def visible(text: str, *, lines: bool = False) -> str:
    """``text`` with every character that a terminal would obey written as its escape (``\\x1b``, ``\\u202e``).

    Names from models, topologies, plans and paths pass through it before they are shown. A newline is escaped too unless
    ``lines`` holds: a name must not start a line of its own, a message may."""
    shown = _RAW.sub(lambda match: match[0].encode("unicode_escape").decode(), text) if not text.isprintable() else text
    return shown if lines else shown.replace("\n", "\\n")


def visible_json(text: str) -> str:
    """JSON text with every such character in it escaped as JSON does: ``\\u202e``. What it means stays the same."""
    if text.isascii() and "\x7f" not in text:  # JSON escapes the other control characters itself
        return text
    return _RAW.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_NEWLINE_OF_A_NAME = re.compile(r"\n(?!  )")
"""A newline of a name in a message or a hint: those of dnnc are followed by an indented line."""

_LONGEST = 4000
"""Characters of one message that are shown; a name may have millions."""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 60]}... ({len(text) - _LONGEST + 60} more characters)"


def _lines(text: str) -> str:
    """A message or a hint as it is shown."""
    return _cut(_NEWLINE_OF_A_NAME.sub(r"\\n", visible(text, lines=True)))


class ExitCode(enum.IntEnum):
    """Exit codes of the command. ``INTERNAL`` is always a bug of dnnc; what the machine refuses (a full disk, no memory, no
    more descriptors) is ``INVALID_INPUT`` too; a command that SIGHUP or SIGTERM ends has 128 + the signal's number."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INVALID_INPUT = 3
    INFEASIBLE = 4
    CHECK_FAILED = 5
    INTERRUPTED = 130


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a text: 1-based line and column, ``length`` characters; ``source_line`` is that line, for the caret."""

    line: int
    column: int
    length: int = 1
    source_line: str = ""


Value = str | int | float | tuple[str, ...]
"""What a field of a fault holds; a tuple is shown with commas."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message. ``where``: a file, graph path or device, as text; ``span``: the place in it; ``note``: what explains it;
    ``hint``: what to do next; ``code`` and ``values``: the kind of fault and its fields."""

    message: str
    where: str = ""
    span: Span | None = None
    hint: str = ""
    severity: Severity = Severity.ERROR
    note: str = ""
    code: str = ""
    values: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        """``WHERE:LINE:COL: error[CODE]: MESSAGE``, then the line with a caret, the note and the hint."""
        place = _cut(visible(self.where))
        if self.span:
            place = f"{place or '<text>'}:{self.span.line}:{self.span.column}"
        kind = f"{self.severity.value}[{self.code}]" if self.code else self.severity.value
        lines = [f"{place}: {kind}: {_lines(self.message)}" if place else f"{kind}: {_lines(self.message)}"]
        if self.span and self.span.source_line:
            source = self.span.source_line.replace("\t", " ")
            start = max(0, self.span.column - 81)
            column = self.span.column - 1
            ahead, marked = visible(source[start:column]), visible(source[column : min(column + self.span.length, start + 160)])
            behind = visible(source[column + self.span.length : start + 160])
            lines += [f"  {ahead}{marked}{behind}", "  " + " " * len(ahead) + "^" * max(1, len(marked))]
        lines += [f"  {title}: {_lines(text)}" for title, text in (("note", self.note), ("hint", self.hint)) if text]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Every field that says something; ``line`` and ``column`` are 1-based."""
        fields: dict[str, Any] = {"severity": self.severity.value, "code": self.code, "message": self.message}
        place = {"line": self.span.line, "column": self.span.column, "length": self.span.length} if self.span else {}
        fields |= {"where": self.where, **place, "note": self.note, "hint": self.hint, "values": dict(self.values)}
        return {name: value for name, value in fields.items() if value not in ("", {})}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Diagnostic:
        """What ``to_json`` made of a diagnostic without a span; a list in ``values`` becomes a tuple."""
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.get("values", {}).items()}
        texts = {name: fields.get(name, "") for name in ("message", "where", "note", "hint", "code")}
        return cls(**texts, severity=Severity(fields["severity"]), values=tuple(values.items()))


@dataclass_transform(frozen_default=True)
class Fault:
    """A kind of fault. A subclass states a ``code`` whose meaning never changes (E, or W for a warning; two digits of its room;
    two of its own), a docstring that tells the cause, and its fields as annotations. ``message``, ``note`` and ``hint`` are
    templates in which ``{name}`` is a field or a property::

        class UnknownDevice(Fault, code="E0801"):
            \"""An option names a device that the topology does not have.\"""

            message = "there is no device '{device}'"
            hint = "the topology has {devices}"
            device: str
            devices: tuple[str, ...]

        raise InvalidInput(UnknownDevice("gpu:7", devices=names), where=path)

    Fields are given by position or by name; one with a value in the class has that default. Faults of one kind with equal
    fields are equal. (Not ``dataclasses``: to generate hundreds of ``__init__`` methods would slow every start of the command.)
    """

    code: ClassVar[str] = ""
    message: ClassVar[str] = ""
    note: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Fault]]] = {}
    """Every kind that is imported, by code."""
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, code: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        other = Fault.kinds.get(code)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{code} is the code of {other.__qualname__} and of {cls.__qualname__}")
        cls.code = code
        cls._fields = tuple(inspect.get_annotations(cls))
        Fault.kinds[code] = cls

    def __init__(self, *values: Value, **named: Value) -> None:
        names = self._fields
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} has {len(names)} fields, {len(values)} values are given")
        fields = dict(zip(names, values, strict=False))
        if wrong := [name for name in named if name not in names or name in fields]:
            raise TypeError(f"{type(self).__name__} takes no '{wrong[0]}' here")
        fields |= named
        for name in names:
            if name not in fields and name not in type(self).__dict__:
                raise TypeError(f"{type(self).__name__} needs '{name}'")
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Fault) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash((self.code, self.values()))

    def __str__(self) -> str:
        return self._filled(self.message)

    def values(self) -> tuple[tuple[str, Value], ...]:
        """Fields and their values, in the order of the class."""
        return tuple((name, getattr(self, name)) for name in self._fields)

    def at(self, where: str = "", span: Span | None = None) -> Diagnostic:
        """The diagnostic of this fault at a place."""
        severity = Severity.WARNING if self.code.startswith("W") else Severity.ERROR
        note, hint = self._filled(self.note), self._filled(self.hint)
        return Diagnostic(str(self), where, span, hint, severity, note, self.code, self.values())

    def _filled(self, template: str) -> str:
        return template.format_map(_Shown(self)) if template else ""


class _Shown:
    """Fields and properties of a fault as its templates show them."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __getitem__(self, name: str) -> object:
        value = getattr(self._fault, name)
        return ", ".join(value) if isinstance(value, tuple) else value


class DnncError(Exception):
    """A fault of the input. Carries every diagnostic found; ``exit_code`` is what the command returns."""

    exit_code: ExitCode = ExitCode.INVALID_INPUT

    def __init__(
        self, diagnostics: Fault | Diagnostic | Iterable[Diagnostic], *, where: str = "", span: Span | None = None
    ) -> None:
        if isinstance(diagnostics, Fault):
            diagnostics = diagnostics.at(where, span)
        if isinstance(diagnostics, Diagnostic):
            diagnostics = (diagnostics,)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also of another process, are made of the diagnostics, not of their text."""
        return type(self), (self.diagnostics,), self.__dict__


class InvalidInput(DnncError):
    """A model, topology, IR text or plan that is not valid: exit 3."""


class UsageError(DnncError):
    """An option or argument that makes no sense: exit 2."""

    exit_code = ExitCode.USAGE


class Infeasible(DnncError):
    """No plan satisfies the limits; the message says which device, by how many bytes: exit 4. ``proven``: False when the search
    ended without finding one, and there may be one; its value is not below ``bound`` then. ``needs``: of a plan that was found
    and is refused, by device that has less: the bytes that the plan holds, and those that its search counted."""

    exit_code = ExitCode.INFEASIBLE
    proven: bool = True
    bound: float = 0.0
    needs: Mapping[str, tuple[int, int]] = MappingProxyType({})


class CheckFailed(DnncError):
    """The stages do not compute what the model computes: exit 5."""

    exit_code = ExitCode.CHECK_FAILED


class InvariantError(Exception):
    """The IR breaks an invariant of the verifier. ``culprit`` names the pass that made it, when one did."""

    def __init__(self, diagnostics: Iterable[Diagnostic], culprit: str = "") -> None:
        self.diagnostics = tuple(diagnostics)
        self.culprit = culprit
        prefix = f"after pass '{culprit}': " if culprit else ""
        super().__init__(prefix + "\n".join(map(str, self.diagnostics)))


@dataclass(slots=True)
class DiagnosticSink:
    """Collects diagnostics during a run; errors are raised together by ``raise_errors``."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def emit(self, diagnostic: Diagnostic) -> None:
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def error(self, fault: Fault, *, where: str = "", span: Span | None = None) -> None:
        self.emit(fault.at(where, span))

    def warn(self, fault: Fault, *, where: str = "", span: Span | None = None) -> None:
        self.emit(replace(fault.at(where, span), severity=Severity.WARNING))

    def raise_errors(self) -> None:
        """Raises InvalidInput with every error collected, if there is one."""
        errors = [d for d in self.diagnostics if d.severity is Severity.ERROR]
        if errors:
            raise InvalidInput(errors)
