"""Names that stand for many: patterns, which make points, and selectors, which choose among those that are there.

A pattern is a name with ranges or lists in braces: ``gpu{0..7}``, ``n{a,b}.gpu{0..3}`` (the last varies fastest). A selector is
a pattern, a glob (``gpu*``), or ``devices of HOSTS`` where HOSTS is again a pattern or glob over hosts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from fnmatch import translate

from ir.core.topology import Device

_BRACES = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9_./:$\-]+\Z")


def expand(pattern: str, limit: int) -> list[str]:
    """The names that a pattern stands for, in order. Raises ValueError: not a pattern, or more than ``limit`` names."""
    pieces = _BRACES.split(pattern)
    choices: list[list[str]] = []
    total = 1
    for number, piece in enumerate(pieces):
        choices.append([piece] if number % 2 == 0 else _alternatives(piece, pattern, limit))
        total *= len(choices[-1])
        if total > limit:
            raise ValueError(f"the pattern {pattern!r} stands for more than {limit} names")
    names = ["".join(parts) for parts in itertools.product(*choices)]
    for name in names:
        if not _NAME.match(name):
            raise ValueError(
                f"found {name!r}, expected a name of letters, digits and _ . / : $ -, or a pattern such as 'gpu{{0..7}}'"
            )
    return names


def _alternatives(inside: str, pattern: str, limit: int) -> list[str]:
    found = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inside)
    if found:
        first, last = int(found[1]), int(found[2])
        if last < first:
            raise ValueError(f"the range {{{inside}}} of {pattern!r} runs backwards")
        if last - first >= limit:
            raise ValueError(f"the pattern {pattern!r} stands for more than {limit} names")
        width = len(found[1]) if found[1].startswith("0") and len(found[1]) > 1 else 0
        return [str(number).zfill(width) for number in range(first, last + 1)]
    if "," in inside and all(part.strip() for part in inside.split(",")):
        return [part.strip() for part in inside.split(",")]
    raise ValueError(f"found {{{inside}}} in {pattern!r}, expected a range {{0..7}} or a list {{a,b}}")


def match_points(
    selector: str,
    local: Mapping[str, str],
    points: Mapping[str, str],
    devices: Mapping[str, Device],
    look: Callable[[int], None] = lambda names: None,
) -> list[str]:
    """Full names of the points that ``selector`` chooses, in order of definition (a pattern: in its own order).

    ``local``: names of the host instance the selector stands in, to full names; they come before ``points`` (full name to
    what it is). ``look`` is told how many names are compared. Raises KeyError with the name that is not there, ValueError for
    a selector that is none or finds nothing.
    """
    if selector.startswith("devices of "):
        look(len(points) + len(devices))
        of_hosts = {name: what for name, what in points.items() if what == "host"}
        wanted = selector.removeprefix("devices of ").strip()
        hosts = match_points(wanted, local, of_hosts if "*" in wanted or "?" in wanted else points, devices, look)
        for host in hosts:
            if points[host] != "host":
                raise ValueError(f"{host!r} is a {points[host]}, expected a host after 'devices of'")
        wanted_hosts = set(hosts)
        chosen = [device.name for device in devices.values() if device.host in wanted_hosts]
        if not chosen:
            raise ValueError(f"found no devices of {', '.join(hosts)}")
        return chosen
    if "*" in selector or "?" in selector:
        stars = 1 + selector.count("*")
        look(len(local) * stars)
        matches = re.compile(translate(selector)).match
        chosen = [full for name, full in local.items() if matches(name)]
        if not chosen:
            look(len(points) * stars)
            chosen = [name for name in points if matches(name)]
        if not chosen:
            raise ValueError(f"found no point whose name matches {selector!r}")
        return chosen
    chosen = []
    for name in expand(selector, len(points) + 1):
        full = local.get(name, name)
        if full not in points:
            raise KeyError(name)
        chosen.append(full)
    return chosen
