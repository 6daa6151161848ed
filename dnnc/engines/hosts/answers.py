"""Reads what another host answers. A field that lacks its type or range is refused by a message that names the host.

An answer is an object that JSON (of agents and processes) or Ray (of actors) has made. Whoever reads a field states its range,
so no number or name that a host has made up is used as an index, a size or a path.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnc.engines.hosts.faults import AnswerUnlike
from ir.core.diagnostics import Diagnostic, InvalidInput, Severity

MOST_LINE = 1 << 30
"""Bytes of the longest line that is kept: the events of a run of ten million actions."""
MOST_ANSWER = 1 << 24
"""Bytes of the longest line of an agent."""
MOST_TEXT = 1 << 16
"""Characters of the longest text in an answer that is no file."""
MOST_ITEMS = 1 << 16
_MOST_NUMBER = 1 << 62
_ENDPOINT = re.compile(r"tcp://(.*):([0-9]{1,5})")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_KEY, _GROUP = 40, 5
"""Characters of a key in Z85 (ZeroMQ RFC 32), and of each group of them, which stands for 32 bits."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of ``host``. ``where``: names the run in messages. Every method raises InvalidInput for what is unlike."""

    host: str
    where: str = ""

    def refuse(self, field: str, found: object, expected: str) -> InvalidInput:
        """The error that says what was found in a field, and what was expected."""
        return InvalidInput(AnswerUnlike(self.host, field, _shown(found), expected), where=self.where or f"host '{self.host}'")

    def line(self, line: bytes) -> dict[str, Any]:
        """The object that a line of JSON states."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise self.refuse("a line", line[:_KEY], "JSON") from None
        return self.table(found, "a line")

    def table(self, found: Any, field: str) -> dict[str, Any]:
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            raise self.refuse(field, found, "an object")
        return dict(found)

    def items(self, found: Any, field: str, count: int | None = None, most: int = MOST_ITEMS) -> list[Any]:
        """A list, of ``count`` items where that is stated."""
        if not isinstance(found, list | tuple) or len(found) > most or (count is not None and len(found) != count):
            raise self.refuse(field, found, f"a list of {f'at most {most}' if count is None else count} items")
        return list(found)

    def text(self, found: Any, field: str, most: int = MOST_TEXT) -> str:
        if not isinstance(found, str) or len(found) > most:
            raise self.refuse(field, found, f"a text of at most {most} characters")
        return found

    def integer(self, found: Any, field: str, least: int, most: int) -> int:
        if type(found) is not int or not least <= found <= most:
            raise self.refuse(field, found, f"a whole number from {least} to {most}")
        return found

    def real(self, found: Any, field: str, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number."""
        try:
            number = float(found) if type(found) in (int, float) else math.nan
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and least <= number <= most):
            bounds = f" from {least:g} to {most:g}" if math.isfinite(least) else ""
            raise self.refuse(field, found, f"a finite number{bounds}")
        return number

    def offer(self, found: Any, field: str, address: str, ports: Sequence[int]) -> tuple[str, str]:
        """The endpoint and the public key of a relay that listens on ``address``, at one of the ports from first to last."""
        endpoint, key = self.items(found, field, 2)
        match = _ENDPOINT.fullmatch(self.text(endpoint, field))
        host = f"[{address}]" if ":" in address else address
        if match is None or match[1] != host or not ports[0] <= int(match[2]) <= ports[1]:
            raise self.refuse(field, endpoint, f"tcp://{host}:PORT, with a port from {ports[0]} to {ports[1]}")
        if not _is_key(self.text(key, field)):
            raise self.refuse(field, key, "a public key")
        return endpoint, key

    def place(self, found: Any, field: str, address: str) -> str:
        """HOST:PORT at an address."""
        host, _, port = self.text(found, field).rpartition(":")
        expected = f"[{address}]" if ":" in address else address
        if host != expected or not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
            raise self.refuse(field, found, f"{expected}:PORT")
        return str(found)

    def diagnostics(self, found: Any, field: str = "refused", *, located: bool = True) -> list[Diagnostic]:
        """What the host refused, each ``located`` by the host, unless it names devices of all hosts itself."""
        refused = [self._diagnostic(self.table(one, field), field) for one in self.items(found, field)]
        if not refused:
            raise self.refuse(field, found, "what is refused")
        return [replace(one, where=_located(self.host, one)) for one in refused] if located else refused

    def error(self, answer: Mapping[str, Any], stages: Collection[int], field: str = "error") -> dict[str, Any]:
        """What a process says of an error: its text under ``field``, the stage among ``stages``, and the microbatch; and in its
        place what was refused."""
        stage = self.integer(answer.get("stage"), "stage", 0, _MOST_NUMBER)
        if stage not in stages:
            raise self.refuse("stage", stage, "one of the process")
        refused = answer.get("refused")
        return {
            field: self.text(answer.get(field), field, MOST_ANSWER),
            "stage": stage,
            "microbatch": self.integer(answer.get("microbatch"), "microbatch", -1, _MOST_NUMBER),
            "refused": self.diagnostics(refused) if refused is not None else [],
        }

    def _diagnostic(self, fields: Mapping[str, Any], field: str) -> Diagnostic:
        for name in ("message", "where", "note", "hint", "code"):
            self.text(fields.get(name, ""), f"{field}.{name}")
        if fields.get("severity") not in [one.value for one in Severity]:
            raise self.refuse(f"{field}.severity", fields.get("severity"), "a severity")
        for name, value in self.table(fields.get("values", {}), f"{field}.values").items():
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, str | int | float):
                    raise self.refuse(f"{field}.{name}", one, "a text or a number")
        return Diagnostic.from_json(fields)


def _located(host: str, one: Diagnostic) -> str:
    if f"host '{host}'" in f"{one.where} {one.message}":
        return one.where
    return f"host '{host}': {one.where}" if one.where else f"host '{host}'"


def _is_key(key: str) -> bool:
    """Whether a text is 32 bytes in Z85."""
    if len(key) != _KEY or not set(key) <= set(_Z85):
        return False
    groups = (key[at : at + _GROUP] for at in range(0, _KEY, _GROUP))
    return all(sum(_Z85.index(c) * 85 ** (4 - place) for place, c in enumerate(group)) < 1 << 32 for group in groups)


def _shown(found: object) -> str:
    try:
        return "nothing" if found is None else reprlib.repr(found)
    except Exception:  # whatever Ray has made of an answer
        return f"a {type(found).__name__}"
