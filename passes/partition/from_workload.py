"""From a workload (``dnnc.work`` ops) to PipeDream's profile: nodes that state both of their passes.

``problem_of`` (``from_ir``) is the door for inference. Node v is the op at position v of the entry function.
"""

from __future__ import annotations

import numpy as np

from ir.diagnostics import InvalidInput
from ir.facets import BackwardTime, Time
from ir.module import Module
from ir.topology import DeviceType
from passes.analyses.memory import reads, value_bytes
from passes.partition.pipedream import Profile


def profile_of(module: Module, device_type: DeviceType) -> Profile:
    """What PipeDream's planner reads: forward + backward seconds on ``device_type``, the bytes of each output (sent where an
    edge leaves, stored for the backward pass), bytes of parameters.

    Raises InvalidInput for an op that does not state both passes."""
    ops = module.entry.ops
    key = f"@{device_type.name}"
    seconds = []
    for op in ops:
        times = [dict(facet.seconds).get(key) for kind in (Time, BackwardTime) if (facet := op.facet(kind)) is not None]
        stated = [time for time in times if time is not None]
        if len(stated) < 2:
            raise InvalidInput(
                f"{op.id} does not state both of its passes on {device_type.name}",
                where=module.name,
                hint="PipeDream's objective needs a PipeDream profile, which holds forward and backward times of each node",
            )
        seconds.append(sum(stated))
    position = {value.name: v for v, op in enumerate(ops) for value in op.results}
    readers: list[set[int]] = [set() for _ in ops]
    for v, op in enumerate(ops):
        for name in reads(op):
            readers[position[name]].add(v)
    output = np.array([sum(value_bytes(value) for value in op.results) for op in ops], np.int64)
    return Profile(
        names=tuple(op.id for op in ops),
        seconds=np.array(seconds, dtype=np.float64),
        output=output,
        stored=output,
        weights=np.array([int(op.get("weight", 0)) for op in ops], np.int64),
        readers=tuple(tuple(sorted(found)) for found in readers),
    )


__all__ = ["profile_of"]
