"""Faults of plans on meshes: options that do not fit, and why no plan on a mesh does. Codes 33.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class MicrobatchesMisfit(Fault, code="E3302"):
    """Microbatches are of a training step, 1 or more."""

    message = "microbatches is {microbatches}, {expected}"
    microbatches: int
    expected: str


class SharesOfOneMesh(Fault, code="E3303"):
    """Shares are stated for the members of one mesh, and the plan is to have several."""

    message = "shares is for one mesh, and stages is {stages}"
    hint = "set stages to 1"
    stages: str


class TooFewDevices(Fault, code="E3304"):
    """The stages on their meshes have more places than there are devices."""

    message = "{stages} stages on meshes {mesh} need {needed} devices, the topology has {devices}"
    hint = "use fewer stages, a smaller mesh or more devices"
    stages: int
    mesh: str
    needed: int
    devices: int


class NoPlanFits(Fault, code="E3305"):
    """The search found plans, and each needs more memory than there is."""

    message = "no plan that fits was found: {reason}"
    hint = "use more devices, a smaller batch, or another number of stages"
    reason: str


class NoPlanOfStages(Fault, code="E3306"):
    """The weights do not fit the devices in so many stages, or the model has too few places where it may be cut: two calls of
    one batch normalisation that training moves share a stage."""

    message = "no plan of {stages} stages was found: the weights do not fit, or the model cannot be cut so often"
    hint = "use more devices, or another number of stages"
    stages: str


class CannotRun(Fault, code="E3307"):
    """A type of device states no time for an operator."""

    message = "{who} run {op} (device types: {types})"
    who: str
    op: str
    types: tuple[str, ...]


class NamedPlanMisfit(Fault, code="E3308"):
    """The strategy that was asked for by name cannot be applied to this model."""

    message = "no plan '{strategy}': {reason}"
    hint = "leave the strategy to the search"
    strategy: str
    reason: str


class MeshOverMemory(Fault, code="E3309"):
    """The plan on a mesh that comes nearest needs more memory than a device has."""

    message = (
        "no plan that fits was found: on mesh {mesh} {what} needs {needed} bytes on {device} ({parts}), "
        "{over} more than there are"
    )
    hint = "use more devices, or a smaller batch"
    mesh: str
    what: str
    needed: int
    device: str
    parts: str
    over: int


class WeightsOverMesh(Fault, code="E3310"):
    """What each device of a mesh must hold at least is more than its memory."""

    message = "{held} need {needed} bytes per device on mesh {mesh}, {over} more than there are"
    hint = "use more devices"
    held: str
    needed: int
    mesh: str
    over: int
