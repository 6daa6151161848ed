"""What is wrong with a preset, a merge of topologies, a profile of operators, or a measurement. Codes E08..,
shared with ``dnnc/machines/topology/faults.py``."""

from __future__ import annotations

from ir.core.diagnostics import Fault


def _cores(count: int) -> str:
    return f"{count} core{'s' if count != 1 else ''}"


# Presets


class LocalIsWhole(Fault, code="E0841"):
    """preset:local is measured when it is asked for, so it can be a whole topology, but no part of a file."""

    message = "preset:local is measured when it is asked for, so it can only be a whole topology"
    hint = "write a file: dnnc topology measure -o here.toml"


class UnknownPreset(Fault, code="E0842"):
    """No machines of this name come with dnnc."""

    message = "unknown preset '{name}'; {expected}"
    hint = "`dnnc topology presets` prints the presets"
    name: str
    near: str
    known: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"did you mean 'preset:{self.near}'?" if self.near else f"expected one of: {', '.join(self.known)}"


class PresetWithoutOptions(Fault, code="E0843"):
    """Only cpu-N takes options after commas."""

    message = "found the option '{option}', but only cpu-N takes options"
    option: str


class WrongPresetOption(Fault, code="E0844"):
    """The options of a preset are cores=N and memory=NGiB for cpu-N, and devices=N for local."""

    message = "found the option '{option}', expected {expected}"
    option: str
    expected: str


class WrongPresetSize(Fault, code="E0845"):
    """A preset has at least one device, and no more than a search can place."""

    message = "found {found} devices, expected 1 to {most}"
    found: int
    most: int


class WorkersShareCores(Fault, code="W0846"):
    """The preset has more one-core workers than the machine has cores, so several workers share a core."""

    message = "{workers} workers share {counted}, so each is {factor} times slower than alone"
    hint = "choose as many workers as there are cores, or state the machine that the build is for: cpu-N,cores=M"
    workers: int
    cores: int
    factor: str

    @property
    def counted(self) -> str:
        return _cores(self.cores)


# Merging topologies


class NotALink(Fault, code="E0847"):
    """--link takes two hosts, a bandwidth and a latency."""

    message = "found '{found}', expected HOST-HOST=BANDWIDTH,LATENCY"
    hint = "for example --link a-b=10Gbit/s,50us; names with a - are joined by --"
    found: str


class WrongLinkAmount(Fault, code="E0848"):
    """The bandwidth or the latency of --link is no quantity."""

    message = "{reason}"
    hint = "for example --link a-b=10Gbit/s,50us"
    reason: str


class UnknownHostOfLink(Fault, code="E0849"):
    """--link names a host or switch that none of the topologies has."""

    message = "no host is called '{host}'"
    hint = "there are {known}"
    host: str
    known: tuple[str, ...]


class LinkWithinHost(Fault, code="E0850"):
    """--link joins two hosts, and both names are of one."""

    message = "both ends are the host {host}"
    host: str


class HostsApart(Fault, code="E0851"):
    """Every device reaches every other one, and no link leads from one topology to another."""

    message = "no links lead from {first} to {second}"
    hint = "join the hosts: --link {file}--{other}=10Gbit/s,50us"
    first: str
    second: str
    file: str
    other: str


# Measuring


class MoreDevicesThanCores(Fault, code="E0852"):
    """Each device computes on a core of its own, and there are fewer cores than devices."""

    message = "found {devices} devices, and this process may use {counted}"
    hint = "each device needs a core of its own"
    devices: int
    cores: int

    @property
    def counted(self) -> str:
        return _cores(self.cores)


class UnknownHost(Fault, code="E0853"):
    """Measured numbers belong to one host of the topology, and none has the name of this machine, or of --host."""

    message = "no host of {topology} is called '{host}'"
    hint = "add --host with the one that this machine is: {hosts}"
    topology: str
    host: str
    hosts: tuple[str, ...]


class NoCpuDevice(Fault, code="E0854"):
    """CPU devices of a host are measured, and GPUs beside them; the topology has no CPU device of this host."""

    message = "{name} has no CPU device"
    hint = "add one: GPUs are measured beside CPU devices alone"
    name: str


class ProbeEnded(Fault, code="E0855"):
    """A process that measures a device ended before it answered: it was killed, or there was not enough memory."""

    message = "a process that measures has ended"
    hint = "is there memory for it?"


class MeasuredNow(Fault, code="W0856"):
    """preset:local has measured this machine. The next plans use the same numbers."""

    message = "measured on this machine, and kept in {file} for the next plans"
    hint = "dnnc topology measure --fresh measures again, dnnc topology measure -o FILE writes a file"
    file: str


class MachineBusy(Fault, code="W0857"):
    """The measuring processes did not have their cores all the time, because something else was at work."""

    message = "the machine was busy: the measuring processes had their cores for {share} of the time, so rates are too low"
    hint = "measure again when the machine is quiet"
    share: str


# Profiles of operators


class OtherMachine(Fault, code="E0858"):
    """The seconds of a profile hold for one processor and one version of onnxruntime."""

    message = "measured on another machine: {found}, not {expected}"
    hint = "keep a profile for each machine"
    found: str
    expected: str


class WrongProfile(Fault, code="E0859"):
    """A profile of operators lacks a part, or a part has another type than it must have."""

    message = "expected {expected}"
    hint = "'dnnc profile' writes such files"
    expected: str


class UnknownProfileKey(Fault, code="E0860"):
    """A profile of operators has a key that means nothing."""

    message = "no such key: '{key}'"
    hint = "'dnnc profile' writes such files"
    key: str


class ProfiledTwice(Fault, code="E0861"):
    """A profile of operators has two rows for one operator on one device type."""

    message = "this key stands twice for its device type"
    hint = "'dnnc profile' writes such files"


class TypeNotOfTorch(Fault, code="E0862"):
    """PyTorch has no tensors of this element type, so the operator cannot be measured."""

    message = "torch has no element type {dtype}"
    dtype: str
