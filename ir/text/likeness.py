"""Copies of the resources of an earlier layer in one line: ``like ["h.0", "h.1"] {seed = [7, 8, 9]}``.

The line copies the resources before it that are written in full and whose names begin with the prefix ``h.0``, in their order,
with ``h.1`` in its place. The table lists the seeds of all copies with random elements, and the offsets of all copies that lie
in a file; all else is equal. ``h.1`` is no prefix of ``h.10``: a number counts as a whole (``ir.text.renaming``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ir.core.module import External, Random, Resource
from ir.text.renaming import Renaming

LEAST = 3
"""The fewest resources for which a line ``like`` is printed."""
LISTED = {"seed": Random, "offset": External}
"""The fields in which copies may differ, which the table lists, and the data that have them."""
_NUMBER = re.compile("[0-9]+")


class Printed:
    """The resources that are already printed in full. ``like`` finds following resources that can be printed as copies of them.

    Each beginning of a name that ends in a number may be a prefix: of ``@h.0.w1`` these are ``h.0`` and ``h.0.w1``."""

    def __init__(self) -> None:
        self._first_prefix: dict[tuple[str, str], str] = {}  # by what is before and behind the prefix's last number
        self._by_prefix: dict[str, list[Resource]] = {}

    def add(self, resource: Resource) -> None:
        """Notes a resource that is printed in full."""
        name = resource.name
        for number in _NUMBER.finditer(name):
            prefix = name[1 : number.end()]
            self._first_prefix.setdefault((name[: number.start()], name[number.end() :]), prefix)
            self._by_prefix.setdefault(prefix, []).append(resource)

    def like(self, symbols: Sequence[object], at: int) -> tuple[int, Renaming, dict[str, list[int]]] | None:
        """The line ``like`` that can be printed for ``symbols`` from position ``at``, where a resource is: how many symbols it
        stands for, the pair of prefixes, and the table (``LISTED``). None where the symbols are no copies of all resources
        with an earlier prefix, or these are fewer than ``LEAST``."""
        first = symbols[at]
        assert isinstance(first, Resource)
        for number in _NUMBER.finditer(first.name):
            rest, prefix = first.name[number.end() :], first.name[1 : number.end()]
            earlier = self._first_prefix.get((first.name[: number.start()], rest))
            models = self._by_prefix[earlier] if earlier is not None and earlier != prefix else []
            if len(models) >= LEAST and models[0].name == f"@{earlier}{rest}":
                renaming = Renaming((earlier or "", prefix))
                listed = _listed(models, symbols[at : at + len(models)], renaming)
                if listed is not None:
                    return len(models), renaming, listed
        return None


def with_prefix(resources: Sequence[Resource], prefix: str) -> list[Resource]:
    """The ``resources`` whose names, without ``@``, begin with ``prefix``, by the rule of ``Renaming`` for numbers."""
    without = Renaming((prefix, ""))
    return [one for one in resources if one.name.startswith(prefix, 1) and without.renamed(one.name[1:]) != one.name[1:]]


def copies_of(models: Sequence[Resource], renaming: Renaming, listed: dict[str, list[int]]) -> list[Resource]:
    """Copies of ``models``, renamed, with the seeds and offsets of ``listed``; a key that is not listed stays as in the model.
    Raises ValueError where ``listed`` has too few or too many numbers of a key."""
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
    """The table of a line ``like`` that stands for ``others``; None where they are no copies of ``models``."""
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
    return listed if copies_of(models, renaming, listed) == list(others) else None
