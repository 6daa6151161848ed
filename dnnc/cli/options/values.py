"""Converts plain values of options without pydantic.

Some versions of typer check each value, even a default, by a pydantic model made for it. To import pydantic and make the models
of a command takes longer than most commands. Defaults, text, paths and exact names of a choice are converted here; all other
values go to typer's own check, so refusals read as before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

SLOT = "_runtime_param"
"""Where those versions keep the check of a parameter, None until its first value."""


@dataclass(frozen=True, slots=True)
class QuickValue:
    """The check of a typer parameter: typer's own, made at the first value that is not plain."""

    parameter: Any

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command is to get it. Raises typer.BadParameter."""
        if param.nargs == 1 and not param.multiple:
            plain = _plain(value, self.parameter.type_descriptor)
            if plain is not _UNKNOWN:
                return plain
        if getattr(self.parameter, SLOT) is self:
            setattr(self.parameter, SLOT, None)
        return self.parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


_UNKNOWN = object()


def _plain(value: Any, wanted: Any) -> Any:
    """The value of the type that the option is declared to have, ``_UNKNOWN`` where that takes more than a look."""
    kind, info = wanted.annotation, wanted.parameter_info
    if value is None or (kind is str and isinstance(value, str) and info.parser is None):
        return value
    if not isinstance(kind, type) or info.parser is not None:
        return _UNKNOWN
    if issubclass(kind, StrEnum):
        return kind(value) if value in list(kind) else _UNKNOWN
    if kind in (int, float) and type(value) is kind:
        return value  # a default
    checked = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type is not None
    if kind is Path and isinstance(value, str) and "\0" not in value and not checked:
        return Path(value) if os.access(value, os.R_OK) or not os.path.exists(value) else _UNKNOWN
    return _UNKNOWN


def quicken(command: Any) -> None:
    """Makes the parameters of a command, and of those below it, take plain values without pydantic."""
    declared: Callable[[Any], list[Any]] = command.get_params

    def quickened(ctx: Any) -> list[Any]:
        parameters = declared(ctx)
        for parameter in parameters:
            if getattr(parameter, SLOT, _UNKNOWN) is None:
                setattr(parameter, SLOT, QuickValue(parameter))
        return parameters

    command.get_params = quickened
    for below in getattr(command, "commands", {}).values():
        quicken(below)
