"""Whether links lead where they must: from every device to every other one, and along a route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dnnc.machines.topology.document import Document
from dnnc.machines.topology.faults import Unreachable
from ir.core.topology import Link, Topology


def require_reachable(topology: Topology, points: Iterable[str], doc: Document) -> None:
    """Records a fault in ``doc`` unless links join every device to every other one. ``points``: devices, hosts and switches."""
    parent = {name: name for name in points}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for link in topology.links:
        for end in link.ends[1:]:
            parent[root(end)] = root(link.ends[0])
    islands: dict[str, list[str]] = {}
    for device in topology.devices:
        islands.setdefault(root(device.name), []).append(device.name)
    groups = list(islands.values())
    if len(groups) > 1:
        listed = "; ".join(map(_some, groups[:6])) + ("; ..." if len(groups) > 6 else "")
        place = next((key for key in ("links", "devices", "hosts") if key in doc.data), "version")
        doc.fault((place,), Unreachable(groups[0][0], groups[1][0], listed))


def why_broken(links: Mapping[str, Link], source: str, target: str, way: Iterable[str]) -> str:
    """Why the links do not lead from ``source`` to ``target``; empty when they do."""
    if source == target:
        return f"the route leads from {source!r} to itself"
    reached = {source}
    for name in way:
        ends = set(links[name].ends)
        if not reached & ends:
            return f"the route breaks before the link {name!r}: it does not touch {' or '.join(sorted(reached))!r}"
        reached = ends - reached if len(ends) == 2 else ends - {source}
    return "" if target in reached else f"the route ends at {' or '.join(sorted(reached))!r}, expected {target!r}"


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
