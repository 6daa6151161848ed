"""How busy the devices and the links of a plan are."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dnnc.report.page.blocks import Blocks
from dnnc.report.page.texts import span
from dnnc.report.timeline import TimelineSummary
from ir.core.module import Mesh, Module, Plan
from ir.core.names import bare
from ir.core.topology import Link, Topology
from ir.ops.opdefs import COLLECTIVES
from passes.costs.network import network
from passes.graph.graph import cuts_of
from passes.meshes.mesh import mesh_over
from passes.stages.load import seconds_on
from passes.timeline.workload import Workload


def devices_json(plan: Plan, topology: Topology, summary: TimelineSummary | None) -> list[dict[str, Any]]:
    """A row for consecutive devices that are alike and do alike: seconds per microbatch of compute, collectives and transfers,
    ``busy`` under the plan's rule for these; ``waits``, the part of the time that the device waits (None: not known);
    ``memory`` and its ``limit`` in bytes."""
    waits = {one.device: summary.waiting(one) for one in summary.devices} if summary is not None else {}
    rows = []
    for device in topology.devices:
        own = [stage for stage in plan.stages if device.name in stage.devices]
        row = {
            "type": bare(device.type),
            "stages": [stage.index for stage in own],
            "busy": sum(seconds_on(stage, device.name, plan.comm) for stage in own),
            "compute": sum(seconds_on(stage, device.name, plan.comm, stage.compute) for stage in own),
            "collectives": sum(seconds_on(stage, device.name, plan.comm, stage.collectives) for stage in own),
            "transfers": sum(seconds_on(stage, device.name, plan.comm, stage.receive + stage.send) for stage in own),
            "waits": waits.get(device.name),
            "memory": sum(stage.memory for stage in own),
            "limit": topology.memory(device),
        }
        rows.append((row, device))
    return [
        {"devices": span([device.name for device in same]), "count": len(same), "hosts": _hosts(same), **row}
        for row, same in _alike(rows)
    ]


def _hosts(devices: Sequence[Any]) -> str:
    return span(list(dict.fromkeys(device.host for device in devices)))


def _alike(rows: Sequence[tuple[dict[str, Any], Any]]) -> list[tuple[dict[str, Any], list[Any]]]:
    """Consecutive rows that are equal, as one with all that they are of."""
    return [(row, [one for _, one in same]) for row, same in itertools.groupby(rows, key=lambda pair: pair[0])]


def media_seconds(module: Module, plan: Plan, topology: Topology, load: Workload | None, blocks: Blocks) -> dict[str, float]:
    """Seconds per microbatch that what the plan sends keeps each shared medium busy (``passes.costs.network``): transfers
    between stages, and collectives of stages on meshes. ``load``: None for one stage."""
    seconds: dict[str, float] = defaultdict(float)
    for wire in load.wires if load is not None else ():
        for name, each in itertools.chain.from_iterable(wire.media):
            seconds[name] += each / len(wire.media)
    net, meshes = network(topology), {mesh.name: mesh for mesh in module.of_type(Mesh)}
    axes = {
        stage.index: {axis.name: axis for axis in mesh_over(topology, net, meshes[stage.mesh]).axes}
        for stage in plan.stages
        if stage.mesh
    }
    for run in blocks.runs:
        for layer in run.layers:
            for one in layer.collectives:
                step, axis = COLLECTIVES.get(one.kind), axes.get(run.stage, {}).get(one.axis)
                if step is not None and axis is not None:
                    for name, each in axis.busy(step, one.size).items():
                        seconds[name] += each / one.runs
    return dict(sorted(seconds.items()))


def links_json(topology: Topology, media: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for consecutive links that are alike and equally busy: ``busy`` seconds per microbatch of the medium of the link
    that is busy longest, None where nothing of the plan meets anything else on it."""
    by_link: dict[str, float] = {}
    names = sorted((link.name for link in topology.links), key=len, reverse=True)
    for medium, seconds in media.items():
        link = next((name for name in names if medium == name or medium.startswith((f"{name} from ", f"{name} to "))), medium)
        by_link[link] = max(by_link.get(link, 0.0), seconds)
    rows = [(_link_row(link, by_link.get(link.name)), link) for link in topology.links]
    return [
        {"links": span([link.name for link in same]), "count": len(same), "ends": _ends(same), **row}
        for row, same in _alike(rows)
    ]


def _link_row(link: Link, busy: float | None) -> dict[str, Any]:
    mode = link.duplex + (" shared" if link.shared else "")
    return {"bandwidth": link.bandwidth, "latency": link.latency, "mode": mode, "busy": busy}


def _ends(links: Sequence[Link]) -> str:
    ends = list(dict.fromkeys(end for link in links for end in link.ends))
    return " - ".join(ends) if len(ends) <= 3 else f"{len(ends)} points"


def transfers_json(module: Module, plan: Plan, load: Workload) -> list[dict[str, Any]]:
    """The tensors that cross from one stage to another, with the seconds of one message at the slower end."""
    return [
        {
            "tensor": bare(cut.name),
            "from": cut.source,
            "to": cut.target,
            "devices": [span(plan.stages[cut.source].devices), span(plan.stages[cut.target].devices)],
            "bytes": cut.nbytes,
            "seconds": max(wire.send, wire.receive),
        }
        for cut, wire in zip(
            cuts_of(module.entry), load.wires, strict=False
        )  # behind these are gradients that are not written out
    ]
