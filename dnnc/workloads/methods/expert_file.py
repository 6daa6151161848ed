"""Reads the split of an expert: ``--expert FILE``.

The text decides which of three formats it is:

- the reference's result, ``{"fpgas": [{"nodes": [ids]}], "cpus": [...]}`` ("fpga" stands for any accelerator), loads ignored;
- what ``dnnc solve --json`` printed: ``devices`` with ``kind``, ``name``, ``nodes`` and ``stage``;
- a PipeDream profile with ``-- stage_id=N`` on its nodes: one accelerator per stage.

Devices that hold the same nodes are replicas of one stage. On a topology, the name of a device (``device`` in the rows of the
reference) determines its type; without a name of the topology, its ``kind`` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dnnc.workloads.methods.faults import (
    NodesOnTwoDevices,
    NoNodes,
    NoStages,
    NotAList,
    NotASplit,
    NotIds,
    UnknownKind,
    UnknownNodes,
)
from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.limits import LIMITS
from ir.system.files import read_input_text
from ir.text.json_text import parse_json

_STAGED = re.compile(r"(?P<id>\S+) -- (?P<desc>.*)\Z")
_STAGE = re.compile(r"-?[0-9]{1,9}\Z")
_DROPPED = ("Input", "__getitem__")
"""Nodes that readers of profiles leave out, by the beginning of their description."""


def read_expert(
    path: str, positions: Mapping[int | str, int], types: Mapping[str, str]
) -> list[tuple[str, tuple[int, ...], int]]:
    """Stages in the order of the file: kind of device, positions of nodes, number of devices. ``positions``: by id; ``types``:
    by name of device. Raises InvalidInput with all faults of the file."""
    text = read_input_text(path, "a split (JSON, or a PipeDream profile with stages)", LIMITS.document_bytes)
    rows = _rows(text, path) if text.lstrip("\ufeff \t\r\n").startswith("{") else _staged(text, path, positions)
    faults: list[Diagnostic] = []
    stages: dict[tuple[str, tuple[int, ...]], int] = {}
    home: dict[int, str] = {}
    known = sorted({"accelerator", "cpu"} if set(types.values()) <= {"accelerator", "cpu"} else set(types.values()))
    for name, kind, ids in rows:
        kind = types.get(name, kind)
        if kind not in known:
            raise InvalidInput(UnknownKind(name, kind, tuple(known)), where=path)
        unknown = [id_ for id_ in ids if id_ not in positions]
        if unknown:
            faults.append(UnknownNodes(name, *_some(unknown)).at(path))
        nodes = tuple(sorted({positions[id_] for id_ in ids if id_ in positions}))
        if not nodes:
            continue
        if (kind, nodes) in stages:
            stages[kind, nodes] += 1
            continue
        twice = [id_ for id_ in ids if home.setdefault(positions.get(id_, -1), name) != name]
        if twice:
            faults.append(NodesOnTwoDevices(name, *_some(twice)).at(path))
        stages[kind, nodes] = 1
    if not stages and not faults:
        faults.append(NoNodes().at(path))
    if faults:
        raise InvalidInput(faults[:20])
    return [(kind, nodes, count) for (kind, nodes), count in stages.items()]


def _rows(text: str, where: str) -> list[tuple[str, str, list[Any]]]:
    """Name, kind and node ids of each device of a result."""
    data = parse_json(text, where)
    if "devices" in data:
        listed = [
            ("devices", str(row.get("kind")) if isinstance(row, dict) else "", row) for row in _list(data, "devices", where)
        ]
        listed.sort(key=lambda item: _stage(item[2]))
    elif "fpgas" in data or "cpus" in data:
        listed = [("fpgas", "accelerator", row) for row in _list(data, "fpgas", where)]
        listed += [("cpus", "cpu", row) for row in _list(data, "cpus", where)]
    else:
        raise InvalidInput(NotASplit(), where=where)
    rows = []
    for number, (key, kind, row) in enumerate(listed):
        ids = row.get("nodes") if isinstance(row, dict) else None
        name = str(row.get("name", row.get("device", f"{key}[{number}]"))) if isinstance(row, dict) else f"{key}[{number}]"
        if not isinstance(ids, list) or not all(isinstance(id_, int | str) and not isinstance(id_, bool) for id_ in ids):
            raise InvalidInput(NotIds(name), where=where)
        rows.append((name, kind, ids))
    return rows


def _list(data: dict[str, Any], key: str, where: str) -> list[Any]:
    devices = data.get(key, [])
    if not isinstance(devices, list):
        raise InvalidInput(NotAList(key, type(devices).__name__), where=where)
    return devices


def _stage(row: Any) -> int:
    """The stage of a device; devices without one come last."""
    stage = row.get("stage") if isinstance(row, dict) else None
    return stage if isinstance(stage, int) and abs(stage) < 1 << 30 else 1 << 30


def _staged(text: str, where: str, positions: Mapping[int | str, int]) -> list[tuple[str, str, list[Any]]]:
    """One accelerator per stage of a profile, without the nodes that readers of profiles leave out."""
    stages: dict[int, list[Any]] = {}
    for line in text.splitlines():
        head, _, stage = line.rstrip().rpartition(" -- stage_id=")
        match = _STAGED.match(head)
        staged = match is not None and _STAGE.match(stage)
        if match is not None and staged and (match["id"] in positions or not match["desc"].startswith(_DROPPED)):
            stages.setdefault(int(stage), []).append(match["id"])
    if not stages:
        raise InvalidInput(NoStages(), where=where)
    return [(f"stage {stage}", "accelerator", ids) for stage, ids in sorted(stages.items())]


def _some(ids: list[Any]) -> tuple[tuple[str, ...], int]:
    """Five of the ids as a message spells them, and how many more there are."""
    return tuple(map(repr, ids[:5])), max(0, len(ids) - 5)
