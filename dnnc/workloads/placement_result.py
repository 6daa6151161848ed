"""The result format of the device-placement reference (msr-fiddle/dnn-partitioning), written for the scripts that read it.

``{"maxLoad": x, "fpgas": [{"load": y, "nodes": [ids]}], "cpus": [...]}``: "fpga" stands for any accelerator; devices without
nodes are left out, nodes are sorted, loads are in the file's unit.

Under latency it is ``{"totalLatency": x, "fpgas": [{"nodes": [ids]}], "cpus": [{"nodes": [ids]}]}``: a row of "fpgas" is a
piece, with q rows for each accelerator one after another (empty ones too), and all CPUs are one row.

On the devices of a topology a row also says ``"device"``, which names one; those with free transfers are "cpus".

Both name no objective. ``"dnnc"`` beside them says what was minimised, for ``dnnc verify-plan``: readers of the format look
keys up by name and pass over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of a result: loads in the file's unit, ids of its nodes. ``name``: of a device of a topology, else empty;
    ``number``: of a device in groups, which says in what group it is; ``pieces``: of latency, ids of each."""

    cpu: bool
    load: float
    nodes: Sequence[int | str]
    name: str = ""
    number: int | None = None
    pieces: Sequence[Sequence[int | str]] = ()


def placement_result(value: float, devices: Iterable[DeviceRow], statement: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a plan of value ``value``; ``devices``: in the order of the pipeline; ``statement``: what ``value`` is of,
    empty for nothing said. A device in groups has its own number as ``stage`` where devices before it are left out."""
    rows: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for device in devices:
        if device.nodes:
            found = rows["cpus" if device.cpu else "fpgas"]
            numbered = {} if device.number in (None, len(found)) else {"stage": device.number}
            found.append({"load": device.load, "nodes": list(device.nodes)} | numbered | _named(device))
    return {"maxLoad": value, **rows, **_stated(statement)}


def latency_result(value: float, pieces: int, devices: Iterable[DeviceRow], statement: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a plan of latency ``value``, up to ``pieces`` per accelerator; ``statement``: as above."""
    rows: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for device in devices:
        if device.cpu:
            rows["cpus"] += [{"nodes": list(device.nodes)} | _named(device)] if device.nodes else []
        else:
            own = [*device.pieces, *[()] * (pieces - len(device.pieces))]
            rows["fpgas"] += [{"nodes": list(nodes)} | _named(device) for nodes in own]
    return {"totalLatency": value, **rows, **_stated(statement)}


def _named(device: DeviceRow) -> dict[str, str]:
    return {"device": device.name} if device.name else {}


def _stated(statement: Mapping[str, Any]) -> dict[str, Any]:
    return {"dnnc": dict(statement)} if statement else {}


def placement_text(result: dict[str, Any]) -> str:
    """The result as JSON text; raises ValueError for a number that JSON lacks."""
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


__all__ = ["DeviceRow", "latency_result", "placement_result", "placement_text"]
