"""The result format of the device-placement reference (msr-fiddle/dnn-partitioning), written for the scripts that read it.

``{"maxLoad": x, "fpgas": [{"load": y, "nodes": [ids]}], "cpus": [...]}``: "fpga" stands for any accelerator; devices without
nodes are left out, nodes are sorted, loads are in the file's unit.

Under latency it is ``{"totalLatency": x, "fpgas": [{"nodes": [ids]}], "cpus": [{"nodes": [ids]}]}``: a row of "fpgas" is a
piece, with q rows for each accelerator one after another (empty ones too), and all CPUs are one row.

Both name no objective. ``"dnnc"`` beside them says what was minimised, for ``dnnc verify-plan``: readers of the format look
keys up by name and pass over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CPU = "cpu"


def placement_result(
    value: float,
    devices: Iterable[tuple[str, float, Sequence[int | str]]],
    statement: Mapping[str, Any],
    numbers: Sequence[int | None] = (),
) -> dict[str, Any]:
    """The result of a plan of value ``value``; ``devices``: (kind, load, node ids) each, in the order of the pipeline;
    ``statement``: what ``value`` is of, empty for nothing said; ``numbers``: of devices in groups, which say in what group each
    is; a row has its own as ``stage`` where devices before it are left out."""
    rows: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for index, (kind, load, nodes) in enumerate(devices):
        if nodes:
            found = rows["cpus" if kind == CPU else "fpgas"]
            number = numbers[index] if numbers else None
            found.append({"load": load, "nodes": list(nodes)} | ({} if number in (None, len(found)) else {"stage": number}))
    return {"maxLoad": value, **rows, **_stated(statement)}


def latency_result(
    value: float,
    pieces: int,
    devices: Iterable[tuple[str, Sequence[int | str], Sequence[Sequence[int | str]]]],
    statement: Mapping[str, Any],
) -> dict[str, Any]:
    """The result of a plan of latency ``value``, up to ``pieces`` per accelerator; ``devices``: (kind, ids, pieces) each;
    ``statement``: as above."""
    rows: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for kind, nodes, own in devices:
        if kind == CPU:
            rows["cpus"] += [{"nodes": list(nodes)}] if nodes else []
        else:
            rows["fpgas"] += [{"nodes": list(own[i]) if i < len(own) else []} for i in range(pieces)]
    return {"totalLatency": value, **rows, **_stated(statement)}


def _stated(statement: Mapping[str, Any]) -> dict[str, Any]:
    return {"dnnc": dict(statement)} if statement else {}


def placement_text(result: dict[str, Any]) -> str:
    """The result as JSON text; raises ValueError for a number that JSON lacks."""
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


__all__ = ["latency_result", "placement_result", "placement_text"]
