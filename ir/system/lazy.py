"""Names that a package exports, whose modules are imported at first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``. ``names``: by module of the package, the names it exports, separated by spaces."""
    homes = {name: f"{package}.{module}" for module, listed in names.items() for name in listed.split()}

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return attribute
