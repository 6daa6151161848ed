"""Topology: the machines a plan may use, as part of the IR, so that one text file reproduces a plan.

A network of *points*: every device, host and switch is a point named by its bare name (names are unique across the three).
A link joins two points, or more than two when it is a shared medium (a bus). A device reaches another over a *route*: the
explicit one where given, else the route of least latency, then of greatest bandwidth, then first by name.

Units: seconds, bytes, bytes per second, flop per second. Nothing here is text with a unit; frontends convert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, islice


@dataclass(frozen=True, slots=True)
class DeviceType:
    """What devices of one kind can do.

    ``rates``: peak flop/s by element type (``f32``, ``bf16``...), sorted. A type that is missing runs at ``f32``'s rate.
    ``efficiency``: fraction of the peak that a class of ops (``Cost.kind``) reaches, sorted; a missing class reaches
    ``default``, and 1.0 without one. ``overhead``: seconds per op. ``memory``: bytes, None when unlimited;
    of these the process that runs there holds ``reserved`` itself, before it has a tensor.
    ``handover``: seconds per microbatch that a stage on the device spends besides where a plan has several devices.
    ``free_transfers``: the device pays nothing for what it sends or receives (the CPU of the placement papers).
    ``provider``: the execution provider of such devices, as ONNX Runtime spells it (``CUDAExecutionProvider``); empty where the
    type names none. ``provider_options``: what the provider is given besides the device's number, sorted.
    ``cores``: of a CPU, on which a program runs as many threads; rates and bandwidths are those of all of them.
    ``scalar_rate``: steps per second of CPU kernels that go element by element (``Cost.scalar``); 0: they take no time.

    ``launch``: seconds that the host takes to start a kernel in training, which runs kernel by kernel; longer kernels hide it,
    but for a CPU's, which start when it has computed the one before.
    ``overlap``: seconds of a sum of gradients, from 0 to 1, that go by beside one second of a backward pass; None: ``beside``
    tells by the kind.

    With ``units``, products of matrices cost what their sizes ask for (``passes.costs.products`` has the formula). ``units``:
    processors that work on a tile each; ``unit_bandwidth``: bytes per second at which all of them together load tiles, and
    ``store_bandwidth``: at which they write what they made, 0: no limit; ``cache`` bytes are read at ``cache_bandwidth``
    (on types of kind ``cpu`` by all ops);
    ``step``: seconds that a unit takes at least for each 32 of a product's inner length; ``split``: seconds to
    add up what was cut along k; ``balance``: the part of the last tiles' idle units that work is spread to, from 0 to 1.
    """

    name: str
    kind: str = "cpu"
    rates: tuple[tuple[str, float], ...] = ()
    memory_bandwidth: float = 0.0
    memory: int | None = None
    overhead: float = 0.0
    efficiency: tuple[tuple[str, float], ...] = ()
    free_transfers: bool = False
    source: str = ""
    handover: float = 0.0
    provider: str = ""
    provider_options: tuple[tuple[str, str], ...] = ()
    units: int = 0
    unit_bandwidth: float = 0.0
    store_bandwidth: float = 0.0
    cache: int = 0
    cache_bandwidth: float = 0.0
    step: float = 0.0
    split: float = 0.0
    balance: float = 0.0
    launch: float = 0.0
    reserved: int = 0
    cores: int = 1
    scalar_rate: float = 0.0
    overlap: float | None = None

    @property
    def beside(self) -> float:
        """``overlap``; unless it is stated 0 on cores, which compute and exchange by turns, and 1 on other devices."""
        return self.overlap if self.overlap is not None else 0.0 if self.on_cores else 1.0

    @property
    def on_cores(self) -> bool:
        """Whether such a device is ``cores`` of its host: a CPU that no execution provider stands for."""
        return self.kind == "cpu" and not self.provider


@dataclass(frozen=True, slots=True)
class Device:
    """One device; ``memory`` overrides its type's. ``device_id``: the number by which its type's provider knows it (1 for the
    second GPU of a host); None for the next number, from 0, that no other device of that provider on its host states."""

    name: str
    type: str
    host: str
    memory: int | None = None
    device_id: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: devices of one host share its memory and can exchange through it. ``cores`` is for runtimes that pin;
    ``address``: by which other machines reach it, empty where it is not stated."""

    name: str
    cores: int | None = None
    memory: int | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """A point that only forwards."""

    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between points. ``duplex``: ``full`` (each direction has the bandwidth) or ``half`` (both share it).
    ``shared``: all transfers that cross it at once share the bandwidth, whatever their ends (a bus, a network card); of a link
    with two ends they do in any case, of one with more that is not shared they do at each end (a crossbar). What ``start``,
    ``small`` and ``switch`` say holds for collectives: ``passes.costs.exchange`` has the formula.

    ``training_bandwidth``, ``training_latency``, ``training_start``: what these numbers are in training, where another library
    carries the tensors (gloo between the ranks on CPUs, which hand them over in shared memory at inference); 0: the same."""

    name: str
    ends: tuple[str, ...]
    bandwidth: float
    latency: float = 0.0
    duplex: str = "full"
    shared: bool = False
    start: float = 0.0
    small: float = 0.0
    switch: float = 0.0
    training_bandwidth: float = 0.0
    training_latency: float = 0.0
    training_start: float = 0.0

    def trained(self) -> Link:
        """The link with its training bandwidth, latency and start."""
        return replace(
            self,
            bandwidth=self.training_bandwidth or self.bandwidth,
            latency=self.training_latency or self.latency,
            start=self.training_start or self.start,
            training_bandwidth=0.0,
            training_latency=0.0,
            training_start=0.0,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """The links that a transfer from ``source`` to ``target`` crosses, in order."""

    source: str
    target: str
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Topology:
    """The whole network. ``name`` is the symbol (``@cpu2``). Devices are numbered in their order here."""

    name: str
    types: tuple[DeviceType, ...]
    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    routes: tuple[Route, ...] = ()

    def type(self, name: str) -> DeviceType:
        """The device type called ``name``. Raises KeyError."""
        for type_ in self.types:
            if type_.name == name:
                return type_
        raise KeyError(name)

    def device(self, name: str) -> Device:
        """The device called ``name``. Raises KeyError."""
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(name)

    def memory(self, device: Device) -> int | None:
        """Bytes of memory of ``device`` for tensors; None when unlimited."""
        type_ = self.type(device.type)
        limit = device.memory if device.memory is not None else type_.memory
        return None if limit is None else max(0, limit - type_.reserved)

    def trained(self) -> Topology:
        """The topology with the training bandwidths, latencies and starts of its links."""
        return replace(self, links=tuple(link.trained() for link in self.links))

    def device_id(self, device: Device) -> int:
        """The number by which the provider of ``device`` knows it."""
        if device.device_id is not None:
            return device.device_id
        provider = self.type(device.type).provider
        alike = [d for d in self.devices if d.host == device.host and self.type(d.type).provider == provider]
        stated = {d.device_id for d in alike}
        place = [d.name for d in alike if d.device_id is None].index(device.name)
        return next(islice((number for number in count() if number not in stated), place, None))
