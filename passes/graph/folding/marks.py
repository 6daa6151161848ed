"""What folding leaves in the IR so that expanding restores the module exactly: attributes of functions and of calls.

- A block's function has ``fold.copies``, the number of its copies in the expanded program. It marks the function as fold's.
- A function with decisions or layouts inside is a *variant*: ``fold.variant`` is the name of its block, without ``@``. The
  block itself, the function of copies about which nothing was decided, need not be there.
- A call has ``names``, every name that its copy assigns, and ``paths``, ``nodes``, ``scopes``, the parts of the locations of
  its ops, each in the order of the expanded body (``names.py`` says in which order within an op). A list that
  equals the body's own is left out: so the first copy has none. Where it is shorter, a call has ``rename`` in the place of all
  of them: pairs of texts that the body's own lists are renamed by (``ir/text/renaming.py``).
- Decisions that all ops of a copy hold stand on its call, in place of its ops.
- A function whose ops stood in another order than its calls expand to has ``fold.order``: pairs of position and count, which
  say where each stretch of the expanded ops stood. A body's order is that of its first copy, likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ir.core.attributes import Attribute, AttrKind
from ir.core.module import Func
from ir.core.ops import Location

COPIES = "fold.copies"
ORDER = "fold.order"
VARIANT = "fold.variant"
NAMES = "names"
RENAME = "rename"
PLACES = ("paths", "nodes", "scopes")
CALL = "dnnc.call"
CALLEE = "callee"


def is_block(func: Func) -> bool:
    """Whether fold wrote ``func``."""
    return any(key == COPIES for key, _ in func.attributes)


def copies_of(func: Func) -> int:
    """How many copies of it the expanded program has, for a function that fold wrote."""
    return int(dict(func.attributes)[COPIES].value)


def texts(values: Iterable[str]) -> Attribute:
    """A list of texts, which may be empty."""
    return Attribute(AttrKind.STRINGS, tuple(values))


def location_lists(places: Iterable[Location]) -> dict[str, tuple[str, ...]]:
    """The parts of locations by the attribute that holds them."""
    found = list(places)
    return {
        "paths": tuple([place.path for place in found]),
        "nodes": tuple([place.node for place in found]),
        "scopes": tuple([place.scope for place in found]),
    }


def stretches(positions: Iterable[int]) -> tuple[int, ...]:
    """A list of positions as pairs of first position and count."""
    found: list[int] = []
    for position in positions:
        if found and found[-2] + found[-1] == position:
            found[-1] += 1
        else:
            found += [position, 1]
    return tuple(found)


def positions(pairs: Sequence[int], count: int) -> list[int] | None:
    """The ``count`` positions that ``pairs`` spell; None when they are no permutation of ``0 .. count - 1``."""
    if len(pairs) % 2 or sum(pairs[1::2]) != count or any(number < 1 for number in pairs[1::2]):
        return None
    found = [
        first + offset for first, number in zip(pairs[::2], pairs[1::2], strict=True) for offset in range(min(number, count))
    ]
    return found if sorted(found) == list(range(count)) else None
