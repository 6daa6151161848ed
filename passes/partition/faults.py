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
    """All devices together have less memory than every plan holds."""

    message = "the {held} alone are {bytes} bytes, {owners} {memory}: {lacking} bytes short"
    hint = "{advice}"
    held: str
    bytes: int
    devices: int
    memory: int
    lacking: int
    advice: str

    @property
    def owners(self) -> str:
        return "the one device has" if self.devices == 1 else f"all {self.devices} devices have"


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


class CutJoined(Fault, code="E3220"):
    """The two ops on the sides of a cut can only be in one stage."""

    message = "{maker} and {reader} must share a stage, so no cut falls between them"
    hint = (
        "a quantisation, a batch normalisation that is called twice or a value of unknown size "
        "(--inputs measures it) joins them"
    )
    maker: str
    reader: str


class PinsApart(Fault, code="E3221"):
    """Ops that can only be in one stage are pinned to different devices."""

    message = "{pins}: these ops must share a stage, hence a device"
    hint = "pin them to one device"
    pins: str


class PinsInCircle(Fault, code="E3222"):
    """Each device runs one stage and data flows forward, so data that leaves a device cannot come back to it."""

    message = "these pins close a cycle of devices, which run a stage each: {circle}"
    hint = "pin the ops between to the same device, or let data flow back and forth: --split any"
    circle: str


class CutAgainstPins(Fault, code="E3223"):
    """A cut falls between ops that are pinned to one device, which runs one stage only."""

    message = "this cut parts ops that --pin puts on {device}, which runs one stage: {ops}"
    hint = "leave out the cut, or pin them to different devices"
    device: str
    ops: str


class CutIsInput(Fault, code="E3224"):
    """A cut is a tensor that one stage makes and another reads; inputs are there from the start."""

    message = "this is an input of the model, which needs no cut"
    hint = "inputs reach any stage"


class FoldedAway(Fault, code="E3225"):
    """Simplification left out the tensor or node that an option names."""

    message = "'{name}' was folded away: {became}"
    hint = "{advice}"
    name: str
    became: str
    advice: str


class NoSuchTensor(Fault, code="E3226"):
    """No op of the model makes a tensor of this name."""

    message = "no op makes a tensor called '{tensor}'"
    hint = "{near}"
    tensor: str
    near: str


class CutUnread(Fault, code="E3227"):
    """Nothing reads this tensor, so nothing can be behind the cut."""

    message = "no op reads this tensor, so no stage can begin after it"
    hint = "name one that is read"


class PinForm(Fault, code="E3228"):
    """A pin is the name of a node, an equals sign and the name of a device."""

    message = "expected NODE=DEVICE"
    hint = "for example {example}"
    example: str


class PinnedTwice(Fault, code="E3231"):
    """One op is pinned to two devices."""

    message = "'{op}' is pinned to '{device}' as well"
    hint = "keep one of the two"
    op: str
    device: str


class NoDeviceRuns(Fault, code="E3240"):
    """No type of device states a time for an op."""

    message = "no device can run {op} (device types: {types})"
    op: str
    types: str


class MoreStagesThanDevices(Fault, code="E3241"):
    """Each stage needs a device of its own."""

    message = "{stages} stages were asked for, {topology} has {devices} devices"
    hint = "use fewer stages or more devices"
    stages: int
    topology: str
    devices: int


class MoreStagesThanOps(Fault, code="E3242"):
    """Each stage has an op at least; ops that must share a stage count as one."""

    message = "{stages} stages were asked for, the model has {ops} ops that can be told apart"
    hint = "ask for at most {ops}"
    stages: int
    ops: int


class AskedTooMuch(Fault, code="E3243"):
    """No plan satisfies all that was asked for together, memory aside."""

    message = "{claim}: {asked}"
    hint = "{advice}"
    claim: str
    asked: str
    advice: str
