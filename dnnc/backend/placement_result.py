"""The result format of the device-placement reference (msr-fiddle/dnn-partitioning), written for the scripts that read it.

``{"maxLoad": x, "fpgas": [{"load": y, "nodes": [ids]}], "cpus": [...]}``: "fpga" stands for any accelerator; devices without
nodes are left out, nodes are sorted, loads are in the file's unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

CPU = "cpu"


def placement_result(value: float, devices: Iterable[tuple[str, float, Sequence[int | str]]]) -> dict[str, Any]:
    """The result of a plan of value ``value``; ``devices``: (kind, load, node ids) each."""
    rows: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for kind, load, nodes in devices:
        if nodes:
            rows["cpus" if kind == CPU else "fpgas"].append({"load": load, "nodes": list(nodes)})
    return {"maxLoad": value, **rows}


def placement_text(result: dict[str, Any]) -> str:
    """The result as JSON text; raises ValueError for a number that JSON lacks."""
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


__all__ = ["placement_result", "placement_text"]
