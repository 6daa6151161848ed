"""What a certificate tells beside the proof: what restricting options cost, what as many callers get without dnnc, which
workers share cores, and which seconds were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dnnc.compile.flags import CompileOptions
from ir.core.module import Plan
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from ir.text.units import seconds_text
from passes.framework.base import PassContext

CORES = "cores"
"""The key of which workers share cores."""


def noted(plan: Plan, /, **notes: str) -> Plan:
    """The plan with the ``notes`` that are not empty in its certificate."""
    added = {key: text for key, text in notes.items() if text}
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), **added}.items())))


def with_restrictions(plan: Plan, flags: Sequence[str], topology: Topology) -> Plan:
    """The plan, whose certificate states what the restricting options ``flags`` cost, as far as that is known without a search:
    the time with the whole model on every device, in turn, if it fits and all devices are of one type. For one sample alone
    the certificate states where meshes are not searched."""
    count = len(topology.devices)
    if plan.minimises.decodes:
        return plan
    if plan.minimises.alone and count > 1 and not {"plan", "kinds"} & dict(plan.certificate).keys():  # of one that is replayed
        return plan if plan.on_meshes else noted(plan, kinds="stages of single devices; meshes are not searched")
    alike = len({device.type for device in topology.devices}) == 1
    handover = 0.0 if plan.minimises.trains else topology.type(topology.devices[0].type).handover
    everywhere = (plan.single + handover) / count
    if not plan.minimises.streams or not flags or not alike or everywhere >= plan.value * (1 - TIGHT):
        return plan
    text = f"by {', '.join(flags)}; without, {seconds_text(everywhere)} or less (the whole model on every device, in turn)"
    return noted(plan, restricted=text)


def with_callers(plan: Plan, topology: Topology) -> Plan:
    """The plan, whose certificate states what as many callers of one unsplit session get as the plan has devices: without dnnc
    they keep as many cores busy. Where the model fits one device, and all devices are one-core CPUs of one type and host."""
    used = {device for stage in plan.stages for device in stage.devices}
    devices = [device for device in topology.devices if device.name in used]
    places = {(device.type, device.host) for device in devices}
    if plan.minimises.decodes or not plan.minimises.streams or len(devices) < 2 or len(places) > 1 or math.isinf(plan.single):
        return plan
    type_ = topology.type(devices[0].type)
    if type_.kind != "cpu" or type_.provider or type_.cores > 1:
        return plan
    text = f"{len(devices)} callers of one unsplit session: {seconds_text(plan.single / len(devices))}"
    return noted(plan, callers=text)


def with_cores(plan: Plan, spec: str) -> Plan:
    """The plan, noted where its devices are workers of a preset that share cores. ``single`` is the time of one worker with a
    core to itself."""
    from dnnc.machines import is_local
    from dnnc.machines.presets import find_preset

    used = len({device for stage in plan.stages for device in stage.devices})
    preset = find_preset(spec.removeprefix("preset:")) if spec.startswith("preset:") and not is_local(spec) else None
    if preset is None or not preset.cores or used <= preset.cores:
        return plan
    text = f"{used} workers share {preset.cores} core{'s' if preset.cores != 1 else ''}"
    return noted(replace(plan, single=plan.single * preset.cores / used), **{CORES: text})


def with_a_core_each(options: CompileOptions, plan: Plan) -> CompileOptions | None:
    """The options with as many workers as there are cores, where a plan for one sample alone is slower than one worker with a
    core to itself because its workers share cores; None elsewhere, and where options ask for the plan or for devices of it."""
    from dnnc.machines.presets import find_preset

    shared = CORES in dict(plan.certificate) and plan.value > plan.single
    asked = options.plan is not None or options.pipeline or options.stages or options.mesh or options.replicas or options.pins
    if not (shared and plan.minimises.alone) or asked:
        return None
    preset = find_preset(options.topology.removeprefix("preset:"))
    return replace(options, topology=options.topology.replace(f"cpu-{preset.workers}", f"cpu-{preset.cores}", 1))


def origins(context: PassContext) -> str:
    """The share of the model's seconds that was measured, by device type; empty without a profile."""
    counted = context.statistics.get("cost", {})
    texts = {key.removeprefix("profile "): text for key, text in counted.items() if key.startswith("profile ")}
    return "; ".join(f"{text} on {name}" for name, text in texts.items())
