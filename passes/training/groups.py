"""Parameter groups: weights, chosen by name, with a learning rate or a weight decay of their own, as those of torch.optim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ir.core.module import Resource
from ir.core.types import TensorType

_KEYS = ("learning-rate", "weight-decay")


@dataclass(frozen=True, slots=True)
class Group:
    """``numbers``: ``learning_rate``, ``weight_decay`` or both."""

    glob: str
    numbers: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> Group:
        """The group that ``text`` spells, ``GLOB,learning-rate=NUMBER,weight-decay=NUMBER``. Raises ValueError with what was
        expected."""
        glob, *items = (part.strip() for part in text.split(","))
        numbers: dict[str, float] = {}
        for item in items:
            key, equals, value = (part.strip() for part in item.partition("="))
            if key not in _KEYS or not equals:
                raise ValueError(f"a group has {' and '.join(f'{name}=NUMBER' for name in _KEYS)}, not '{item}'")
            name = key.replace("-", "_")
            if name in numbers:
                raise ValueError(f"{key} is given twice")
            try:
                number = float(value)
            except ValueError:
                raise ValueError(f"{key} is a number, not '{value}'") from None
            if not 0 <= number < math.inf:
                raise ValueError(f"{key} is a finite number of at least 0, not {value}")
            numbers[name] = number
        if not glob or not numbers:
            raise ValueError(f"a group is GLOB,learning-rate=NUMBER,weight-decay=NUMBER (one number or both), not '{text}'")
        return cls(glob, tuple(numbers.items()))


def numbers_of_group(resource: Resource, groups: Iterable[Group], *, no_decay: bool) -> dict[str, float]:
    """The numbers of the last group of a weight. ``no_decay``: one of fewer than two dimensions has no weight decay, unless its
    group says how much."""
    type_ = resource.type
    flat = isinstance(type_, TensorType) and type_.shape is not None and len(type_.shape) < 2
    numbers = {"weight_decay": 0.0} if no_decay and flat else {}
    matching = [group for group in groups if fnmatchcase(resource.name[1:], group.glob)]
    return {**numbers, **dict(matching[-1].numbers)} if matching else numbers
