"""What a certificate tells beside the proof: what restricting options cost, and what as many callers get without dnnc."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ir.core.module import Plan
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from ir.text.units import seconds_text


def with_restrictions(plan: Plan, flags: Sequence[str], topology: Topology) -> Plan:
    """The plan, whose certificate states what the restricting options ``flags`` cost, as far as that is known without a search:
    the time with the whole model on every device, in turn, if it fits and all devices are of one type. For one sample alone
    the certificate states that meshes are not searched."""
    count = len(topology.devices)
    if plan.minimises.alone and count > 1 and "plan" not in dict(plan.certificate):  # a replayed plan
        certificate = {
            **dict(plan.certificate),
            "kinds": "stages of single devices; meshes are not searched for one sample alone",
        }
        return replace(plan, certificate=tuple(sorted(certificate.items())))
    alike = len({device.type for device in topology.devices}) == 1
    handover = 0.0 if plan.minimises.trains else topology.type(topology.devices[0].type).handover
    everywhere = (plan.single + handover) / count
    if not plan.minimises.streams or not flags or not alike or everywhere >= plan.value * (1 - TIGHT):
        return plan
    text = f"by {', '.join(flags)}; without, {seconds_text(everywhere)} or less (the whole model on every device, in turn)"
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "restricted": text}.items())))


def with_callers(plan: Plan, topology: Topology) -> Plan:
    """The plan, whose certificate states what as many callers of one unsplit session get as the plan has devices: without dnnc
    they keep as many cores busy. Where the model fits one device, and all devices are one-core CPUs of one type and host."""
    used = {device for stage in plan.stages for device in stage.devices}
    devices = [device for device in topology.devices if device.name in used]
    places = {(device.type, device.host) for device in devices}
    if plan.minimises.trains or not plan.minimises.streams or len(devices) < 2 or len(places) > 1 or math.isinf(plan.single):
        return plan
    type_ = topology.type(devices[0].type)
    if type_.kind != "cpu" or type_.provider or type_.cores > 1:
        return plan
    text = f"{len(devices)} callers of one unsplit session: {seconds_text(plan.single / len(devices))}"
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "callers": text}.items())))


__all__ = ["with_callers", "with_restrictions"]
