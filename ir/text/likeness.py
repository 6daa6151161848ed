"""Copies of the resources of an earlier layer in one line: ``like ["h.0", "h.1"] {seed = [7, 8, 9]}``.

The line copies all resources before it whose names begin with ``h.0``, in their order, under names that begin with ``h.1``. The
table lists the seeds of random elements, or the offsets in a file, of the copies; all else is equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ir.core.module import External, Random, Resource
from ir.text.renaming import Renaming

LEAST = 3
"""A line ``like`` is printed for at least so many resources."""
LISTED = {"seed": Random, "offset": External}
_NUMBER = re.compile("[0-9]+")


class Printed:
    """The resources that are already printed. ``like`` finds following resources that can be printed as copies of them."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._beginning: dict[str, list[Resource]] = {}

    def add(self, resource: Resource) -> None:
        name = resource.name
        for number in _NUMBER.finditer(name):
            begins = name[1 : number.end()]
            self._first.setdefault((name[: number.start()], name[number.end() :]), begins)
            self._beginning.setdefault(begins, []).append(resource)

    def like(self, symbols: Sequence[object], at: int) -> tuple[int, Renaming, dict[str, list[int]]] | None:
        """How many of ``symbols`` from position ``at`` are copies of printed resources, their renaming, and the listed numbers;
        None for no copies."""
        first = symbols[at]
        assert isinstance(first, Resource)
        for number in _NUMBER.finditer(first.name):
            rest, after = first.name[number.end() :], first.name[1 : number.end()]
            begins = self._first.get((first.name[: number.start()], rest))
            models = self._beginning[begins] if begins is not None and begins != after else []
            if len(models) >= LEAST and models[0].name == f"@{begins}{rest}":
                renaming = Renaming((begins or "", after))
                listed = _listed(models, symbols[at : at + len(models)], renaming)
                if listed is not None:
                    return len(models), renaming, listed
        return None


def of_beginning(resources: Sequence[Resource], begins: str) -> list[Resource]:
    """The ``resources`` whose names, without sigil, begin with ``begins``, a number at its end being whole."""
    beginning = Renaming((begins, ""))
    return [one for one in resources if one.name.startswith(begins, 1) and beginning.renamed(one.name[1:]) != one.name[1:]]


def alike(models: Sequence[Resource], renaming: Renaming, listed: dict[str, list[int]]) -> list[Resource]:
    """Copies of ``models``. Raises ValueError where ``listed`` has too few or too many numbers."""
    numbers = {key: iter(values) for key, values in listed.items()}
    copies = []
    for model in models:
        data = model.data
        for key, kind in LISTED.items():
            if isinstance(data, Random | External) and isinstance(data, kind) and key in numbers:
                value = next(numbers[key], None)
                if value is None:
                    raise ValueError(f"{key} lists too few numbers for the resources that these are like")
                data = replace(data, seed=value) if isinstance(data, Random) else replace(data, offset=value)
        copies.append(replace(model, name=renaming.name(model.name), data=data))
    for key, values in numbers.items():
        if next(values, None) is not None:
            raise ValueError(f"{key} lists too many numbers for the resources that these are like")
    return copies


def _listed(models: Sequence[Resource], others: Sequence[object], renaming: Renaming) -> dict[str, list[int]] | None:
    """The numbers in which ``others`` differ from the renamed ``models``; None where they differ in more than these."""
    if len(others) < len(models):
        return None
    listed: dict[str, list[int]] = {}
    for model, other in zip(models, others, strict=True):
        if not isinstance(other, Resource):
            return None
        if type(model.data) is not type(other.data):
            return None
        for key, kind in LISTED.items():
            if isinstance(other.data, kind):
                listed.setdefault(key, []).append(getattr(other.data, key))
    return listed if alike(models, renaming, listed) == list(others) else None


__all__ = ["LISTED", "Printed", "alike", "of_beginning"]
