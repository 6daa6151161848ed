"""Writes a split in the result format of the device-placement reference (msr-fiddle/dnn-partitioning).

``{"maxLoad": x, "fpgas": [{"load": y, "nodes": [ids]}], "cpus": [...]}``: "fpga" stands for any accelerator. Devices without
nodes are left out, nodes are sorted, loads are in the unit of the file.

Under latency it is ``{"totalLatency": x, "fpgas": [{"nodes": [ids]}], "cpus": [{"nodes": [ids]}]}``: a row of "fpgas" is a
piece. Each accelerator has q consecutive rows (empty ones too), and all CPUs are one row.

On a topology, a row has the name of its ``"device"``; devices with free transfers are "cpus".

The format does not state the objective. An additional key ``"dnnc"`` states it for ``dnnc verify-plan``; other readers look
keys up by name and ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of a result: load in the unit of the file, ids of its nodes. ``name``: of a device of a topology, else empty;
    ``number``: of a device in groups, which determines its group; ``pieces``: ids of each piece, under latency."""

    cpu: bool
    load: float
    nodes: Sequence[int | str]
    name: str = ""
    number: int | None = None
    pieces: Sequence[Sequence[int | str]] = ()


def placement_result(value: float, devices: Iterable[DeviceRow], statement: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a plan with value ``value``. ``devices``: in the order of the pipeline; ``statement``: the objective and
    its parameters, empty to state none. In groups, a device has its number as ``stage`` if devices before it are unused."""
    rows: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for device in devices:
        if device.nodes:
            listed = rows["cpus" if device.cpu else "fpgas"]
            numbered = {} if device.number in (None, len(listed)) else {"stage": device.number}
            listed.append({"load": device.load, "nodes": list(device.nodes)} | numbered | _named(device))
    return {"maxLoad": value, **rows, **_stated(statement)}


def latency_result(value: float, pieces: int, devices: Iterable[DeviceRow], statement: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a plan with latency ``value`` and at most ``pieces`` pieces per accelerator; ``statement``: as above."""
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
