"""The witness of a plan's bound as text, as a certificate holds it.

A record for each form of plan, separated by ``;``: the form, the bound in seconds, on one mesh the price of memory in seconds
per byte, and the price of each type of device per second. ``dnnc.check.witness`` says what these prove::

    replicas 0.0382 core=0.5; meshes 0.0388 core=0.5
    mesh 0.0154 2.5e-13/byte h100=0.125
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

KEY = "witness"
"""The key of a plan's certificate that holds the text."""
CHOSEN = "chosen"
"""The key of a certificate whose bound is of other batches and numbers of groups, too: which, in words."""
BOUND_FOR, ON_MESHES_FOR = "; the bound is for ", "; that of plans on meshes is for "
"""In the text of ``CHOSEN`` before the groups that the bound is of, where it, or that of plans on meshes, is of no others."""
DEVICES, REPLICAS, TURNS, MESHES, MESH = "devices", "replicas", "turns", "meshes", "mesh"
"""Forms of plans: each stage on a device; each on a device or on replicas; each on a device or on replicas of which a fast one
may have more turns; each on a mesh, on a device or, at inference, on replicas; all ops on the mesh of the plan."""
OF_BOUND = ("kinds", "replicas", "restricted", "stages")
"""The keys of a certificate that say of which plans the bound is."""
OF_THESE = "search of each stage, for these stages on these meshes"
"""How a bound was reached, where it is of plans with the stages and meshes of the plan alone."""
FORMS = (DEVICES, REPLICAS, TURNS, MESHES, MESH)


@dataclass(frozen=True, slots=True)
class Witness:
    """That no plan of a form, one of ``FORMS``, is below ``bound`` seconds. ``prices``: of a second of each type of device, as
    sorted pairs; none where nobody told them. ``memory``: of one mesh, the
    price of a byte of each device in seconds."""

    plans: str
    bound: float
    prices: tuple[tuple[str, float], ...] = ()
    memory: float = 0.0


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PLAIN = r'[^\s;="]+'
_RECORD = re.compile(rf"\s*(\S+)\s+([^\s;]+)(?:\s+([^\s;=]+)/byte)?((?:\s+(?:{_QUOTED}|{_PLAIN})=[^\s;]+)*)\s*(?:;|\Z)")
_PRICE = re.compile(rf"({_QUOTED}|{_PLAIN})=([^\s;]+)")


def witness_text(records: Iterable[Witness]) -> str:
    """The text of a certificate. Odd names of types are quoted as in JSON."""
    return "; ".join(
        " ".join(
            [
                record.plans,
                repr(float(record.bound)),
                *([f"{float(record.memory)!r}/byte"] if record.memory else []),
                *(f"{_name(name)}={float(price)!r}" for name, price in record.prices),
            ]
        )
        for record in records
    )


def read_witness(text: str) -> tuple[Witness, ...]:
    """The records of a text; none of an empty one. Raises ValueError, which says what is wrong."""
    found, place = list[Witness](), 0
    while place < len(text):
        match = _RECORD.match(text, place)
        if match is None or match[1] not in FORMS:
            raise ValueError(f"expected {' or '.join(FORMS)}, a bound, and TYPE=PRICE, found {text[place : place + 60]!r}")
        prices = {json.loads(name) if name[0] == '"' else name: float(price) for name, price in _PRICE.findall(match[4])}
        memory = float(match[3] or 0.0)
        found.append(Witness(match[1], float(match[2]), tuple(sorted(prices.items())), memory))
        if not found[-1].bound >= 0 or not all(0 <= price < math.inf for price in (memory, *prices.values())):
            raise ValueError(f"expected a bound and prices of 0 or more, found {match[0].strip()!r}")
        place = match.end()
    return tuple(found)


def _name(name: str) -> str:
    return name if re.fullmatch(_PLAIN, name) else json.dumps(name)
