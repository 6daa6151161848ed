"""Faults of the pass ``partition``: options that do not fit, and why no plan fits the devices. Codes 32.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class DevicesUnlike(Fault, code="E3201"):
    """Stages are dealt to devices in turns, which needs devices of one type."""

    message = "several stages on each device need devices of one type"
    hint = "leave --chunks and schedules of several stages on each device out"


class OneDevice(Fault, code="E3202"):
    """On a single device, several stages per device are one stage."""

    message = "--chunks {chunks}: there is one device"
    hint = "leave it out"
    chunks: int


class NothingFits(Fault, code="E3203"):
    """No plan fits the memory of the devices."""

    message = "no plan fits the devices' memory"


class WeightsOverMemory(Fault, code="E3204"):
    """All devices together have less memory than the weights need."""

    message = "the {held} alone are {bytes} bytes, all {devices} devices have {memory}: {lacking} bytes short"
    held: str
    bytes: int
    devices: int
    memory: int
    lacking: int


class NotProven(Fault, code="E3205"):
    """The time of the search was over before it had looked at all plans."""

    message = "the search ended before this was proven: a longer one may find a plan"
    hint = "such as --time-limit 60"


class NearestPlan(Fault, code="E3206"):
    """Of the plan that comes nearest to fit, the stage that lacks most bytes on a type of device."""

    message = (
        "{device} has {memory} bytes{part}; stage {stage} of the plan that comes nearest needs {needed} "
        "({weights} of {held}, {workspace} of workspace, {buffers} of buffers): {short} short"
    )
    hint = "{advice}"
    device: str
    memory: int
    part: str
    stage: int
    needed: int
    weights: int
    held: str
    workspace: int
    buffers: int
    short: int
    advice: str


class NotBothPasses(Fault, code="E3207"):
    """PipeDream's objective counts forward and backward times, and the workload lacks one of them."""

    message = "{op} does not state both of its passes on {type}"
    hint = "PipeDream's objective needs a PipeDream profile, which holds forward and backward times of each node"
    op: str
    type: str


class NoSplit(Fault, code="E3208"):
    """This way to split a model is not offered for this objective."""

    message = "there is no split={split} of objective={objective}{more}"
    split: str
    objective: str
    more: str = ""


class WithoutFlush(Fault, code="E3209"):
    """Schedules without a flush keep weights of several versions, and are of plain pipelines only."""

    message = "without a flush behind each step, every stage has one device, and every device one stage"
    hint = "leave --replicas, --chunks and --split out"


class ChunksSayStages(Fault, code="E3210"):
    """--chunks fixes the number of stages and their devices; another option says them too."""

    message = "--chunks {chunks} says how many stages there are, of one device each"
    hint = "leave --stages, --replicas and --split out"
    chunks: int


class NoDevice(Fault, code="E3211"):
    """The topology lists no device."""

    message = "the topology has no device"
    hint = "list at least one device"


class NotAnOption(Fault, code="E3212"):
    """An option has no meaning for the objective or the split that was chosen."""

    message = "{options}: not an option of {chosen}"
    hint = "leave it out"
    options: str
    chosen: str


class FreeTransfers(Fault, code="E3213"):
    """The latency of a model is counted with the time of its transfers, which this type of device does not pay for."""

    message = "{types}: latency of a model is of devices that pay for transfers"
    hint = "give the type no free transfers; 'dnnc solve' takes the CPUs of profiles"
    types: str
