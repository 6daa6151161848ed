"""Node data for Model Explorer: numbers that it shows on the nodes of ``annotated.onnx``, the unsplit model.

A file of node data is one number or text for each node, which Model Explorer finds by the name of a tensor that the node makes
(``GraphNodeData`` in its ``node_data_builder.py``). Here: the ``stage`` and ``device`` of each operator, its ``seconds`` of
compute and collectives per microbatch, the ``bytes`` that it makes, and the ``error`` of each tensor that a check compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnc.report.page.blocks import layers_of
from dnnc.report.page.texts import span
from ir.core.module import Module, Plan
from ir.core.names import bare
from ir.core.types import type_bytes
from passes.graph.folding import expand

WHITE, DARK = "#ffffff", "#c0392b"
"""The colours of the least and the largest number."""


def node_data(module: Module, errors: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The files of a planned module by name. ``errors``: by tensor; without any there is no such file. Of an operator that runs
    in several stages, the first. Raises ValueError for a module without a plan."""
    module = expand(module)
    layers, plan = layers_of(module), module.first(Plan)
    devices = {stage.index: span(stage.devices) or stage.device_type for stage in plan.stages} if plan is not None else {}
    columns: dict[str, dict[str, Any]] = {name: {} for name in ("stage", "device", "seconds", "bytes")}
    for layer in layers:
        for row in layer.rows:
            seconds = row.compute + sum(one.seconds for one in row.collectives)
            size = sum(type_bytes(value.type) or 0 for value in row.op.results)
            for value in row.op.results[:1]:
                numbers = (layer.stage, devices[layer.stage], seconds, size)
                for column, number in zip(columns.values(), numbers, strict=True):
                    column.setdefault(bare(value.name), number)
    titles = {"stage": "stage", "device": "device", "seconds": "seconds per microbatch", "bytes": "bytes made"}
    files = {name: _file(titles[name], column) for name, column in columns.items()}
    return files | ({"error": _file("largest difference over the range", errors)} if errors else {})


def _file(title: str, values: Mapping[str, Any]) -> dict[str, Any]:
    numbers = all(isinstance(value, int | float) for value in values.values())
    gradient = [{"stop": 0, "bgColor": WHITE}, {"stop": 1, "bgColor": DARK}] if numbers else []
    results = {name: {"value": value} for name, value in values.items()}
    return {"name": title, "results": results, **({"gradient": gradient} if gradient else {})}
