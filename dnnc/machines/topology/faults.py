"""What is wrong with a topology file. Codes E08.., shared with ``dnnc/machines/faults.py``."""

from __future__ import annotations

from ir.core.diagnostics import Fault

# Text and values


class NotToml(Fault, code="E0801"):
    """The text breaks the grammar of TOML."""

    message = "not valid TOML: {reason}"
    hint = "{advice}"
    reason: str
    advice: str = ""


class NotATopology(Fault, code="E0802"):
    """The text is nested too deeply, or holds a number or a text that cannot be read."""

    message = "not a topology: {reason}"
    reason: str


class LongKey(Fault, code="E0803"):
    """A dotted key has more parts than any key that means something; reading it would take the square of their number."""

    message = "a dotted key has more than {most} parts"
    most: int


class NotATopologyFile(Fault, code="E0804"):
    """A topology is a TOML or a JSON file, known by the end of its name, or a preset."""

    message = "found a file that ends in '{suffix}', expected a topology file (.toml or .json)"
    hint = "for a topology that comes with dnnc write preset:NAME; `dnnc topology presets` prints the names"
    suffix: str


class WrongValue(Fault, code="E0805"):
    """The value of a key has another type than the key takes, or lies outside its range."""

    message = "found {found}, expected {expected}"
    hint = "{advice}"
    found: str
    expected: str
    advice: str = ""


class KeyMissing(Fault, code="E0806"):
    """An entry lacks a key that each entry of its kind has."""

    message = "found no '{key}' here, expected one"
    key: str


class UnknownName(Fault, code="E0807"):
    """A key, or the name of a type, template, host, device, link or point is not one of those that there are."""

    message = "unknown {what} '{found}'{place}; {expected}"
    hint = "{advice}"
    what: str
    found: str
    owner: str
    near: str
    known: tuple[str, ...]
    advice: str = ""

    @property
    def place(self) -> str:
        return f" of {self.owner}" if self.owner else ""

    @property
    def expected(self) -> str:
        if self.near:
            return f"did you mean '{self.near}'?"
        return f"expected one of: {', '.join(self.known)}" if self.known else f"no {self.what} is defined"


class NotAProvider(Fault, code="E0808"):
    """ONNX Runtime spells its execution providers in one way: CUDAExecutionProvider, CPUExecutionProvider."""

    message = "'{found}' is no execution provider as onnxruntime spells them; {expected}"
    found: str
    near: str

    @property
    def expected(self) -> str:
        return f"did you mean '{self.near}'?" if self.near else "expected a name such as 'CUDAExecutionProvider'"


class OptionsWithoutProvider(Fault, code="E0809"):
    """Provider options are handed to the execution provider of the type, and the type names none."""

    message = "the type has provider options and no provider"
    hint = 'add provider = "CUDAExecutionProvider"'


class DeviceIdOfType(Fault, code="E0810"):
    """A device_id is the number of one device, so it stands at the device, not among the options of its type."""

    message = "found device_id as an option of the type, expected it at each device"


class PathInOption(Fault, code="E0811"):
    """Some provider options name a library to load or a file to write, so options with a path are refused."""

    message = "found {found}, expected no path: some options name a library to load or a file to write"
    found: str


class NotAnAmount(Fault, code="E0812"):
    """A quantity is a number with a unit in quotes, such as "80 GiB"."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str = ""


class NoBandwidth(Fault, code="E0813"):
    """A bandwidth is above 0: transfers take bytes / bandwidth seconds."""

    message = "found a bandwidth of 0, expected more than 0"


class BandwidthMissing(Fault, code="E0814"):
    """Each link states its bandwidth."""

    message = 'found no bandwidth, expected one such as "25 Gbit/s" or "1.2 TB/s"'


class NoRate(Fault, code="E0815"):
    """A rate is above 0: ops take flops / rate seconds."""

    message = "found a rate of 0, expected more than 0"
    hint = "leave out element types that the device does not compute with"


# Entries


class NoDevices(Fault, code="E0816"):
    """A topology describes at least one device."""

    message = "found no devices, expected at least one in [[devices]] or in a template of [[hosts]]"


class OtherVersion(Fault, code="E0817"):
    """A topology file states the version of its format first."""

    message = "found {found}, expected 'version = {version}', the only one this dnnc reads"
    found: str
    version: int


class IncludedTooDeep(Fault, code="E0818"):
    """Files include each other in a circle, or in a longer chain than anybody writes."""

    message = "files include each other more than {most} deep"
    hint = "does a file include itself?"
    most: int


class NoFolderToInclude(Fault, code="E0819"):
    """A preset, or a text that is no file, includes presets only: it lies in no folder."""

    message = "found '{found}', expected 'preset:NAME': this text has no folder to look in"
    found: str


class LikeItself(Fault, code="E0820"):
    """Device types refer to each other by 'like' in a circle."""

    message = "type '{name}' is like itself: {circle}"
    name: str
    circle: str


class RatesMissing(Fault, code="E0821"):
    """A device type states its arithmetic rates, or is like one that does."""

    message = "type '{name}' has no rates"
    hint = 'add at least rates = {{ f32 = "19.5 TFLOP/s" }}, or like = "preset:a100"'
    name: str


class MemoryBandwidthMissing(Fault, code="E0822"):
    """A device type states its memory bandwidth, or is like one that does."""

    message = "type '{name}' has no memory_bandwidth"
    hint = 'add memory_bandwidth = "2 TB/s"'
    name: str


class PresetOfSeveralTypes(Fault, code="E0823"):
    """The preset describes devices of several types, so it stands for no single type."""

    message = "'{preset}' has devices of several types: {types}"
    hint = "name the preset of one of them"
    preset: str
    types: tuple[str, ...]


class HostMissing(Fault, code="E0824"):
    """Where there are several hosts, or none, each device outside a template names its own."""

    message = "the device names no host, and there are {hosts} hosts"
    hint = 'add host = "NAME"'
    hosts: int


class DeviceIdWithoutProvider(Fault, code="E0825"):
    """A device_id is the number by which an execution provider knows a device, and the type names no provider."""

    message = "a device_id is the number by which a provider knows a device, and type '{type}' names none"
    hint = 'add provider = "CUDAExecutionProvider", or another, to the type'
    type: str


class CountAndPattern(Fault, code="E0826"):
    """A count and a pattern both say how many entries there are."""

    message = "both a count and a pattern, '{pattern}', say how many"
    hint = "keep one of them"
    pattern: str


class WrongPattern(Fault, code="E0827"):
    """A name, pattern or selector breaks its grammar, stands for too many names, or finds nothing."""

    message = "{reason}"
    reason: str


class NameTaken(Fault, code="E0828"):
    """Devices, hosts and switches have different names, because links join them by name."""

    message = "the name '{name}' of this {what} is already that of a {other}; names of devices, hosts and switches differ"
    name: str
    what: str
    other: str


class TooManyPoints(Fault, code="E0829"):
    """A topology has a limited number of devices, hosts and switches."""

    message = "more than {most} devices, hosts and switches"
    most: int


class LinkToItself(Fault, code="E0830"):
    """A link joins at least two different points."""

    message = "the link '{link}' needs at least two different ends; '{end}' would be joined to itself"
    link: str
    end: str


class LinkTaken(Fault, code="E0831"):
    """Two links have one name."""

    message = "the link name '{link}' is already taken"
    link: str


class TooManyLinks(Fault, code="E0832"):
    """A topology has a limited number of links and of ends of links."""

    message = "more than {links} links, or {ends} ends of links"
    hint = "join points by switches"
    links: int
    ends: int


class LinkForms(Fault, code="E0833"):
    """An entry of [[links]] states what it joins in exactly one of three ways."""

    message = (
        "found {found}, expected one of: 'ends' (one link), 'each' with 'to' (one link for each), 'mesh' (one for each pair)"
    )
    found: str


class MeshTooLarge(Fault, code="E0834"):
    """'mesh' makes a link for each pair of points, which are too many links here."""

    message = "a mesh of {points} points has too many links"
    hint = "join the points by a switch"
    points: int


class UnequalEnds(Fault, code="E0835"):
    """'each' and 'to' pair points one to one, or join all points to one."""

    message = "'each' names {points} points and 'to' {targets}; expected one target, or as many"
    points: int
    targets: int


class UnequalNames(Fault, code="E0836"):
    """A pattern as the name of links stands for as many names as there are links."""

    message = "the name stands for {names} links and the ends for {links}"
    names: int
    links: int


class NoPoints(Fault, code="E0837"):
    """A selector of points is an empty list."""

    message = 'found no points, expected names such as "gpu{{0..7}}" or "devices of h0"'


class BrokenRoute(Fault, code="E0838"):
    """The links of a route do not lead from its start to its end, one after the other."""

    message = "{reason}"
    reason: str


class RouteTaken(Fault, code="E0839"):
    """There is one route from a device to another."""

    message = "there is already a route from '{source}' to '{target}'"
    source: str
    target: str


class Unreachable(Fault, code="E0840"):
    """Every device reaches every other one, by links or by a route."""

    message = "no links join '{first}' to '{second}'; devices that reach each other: {groups}"
    hint = 'for example: [[links]] ends = ["{first}", "{second}"], bandwidth = "16 GB/s", latency = "5 us"'
    first: str
    second: str
    groups: str


class AllReserved(Fault, code="E0863"):
    """The process that runs on a device of this type takes all of its memory, so that no tensor is left room."""

    message = "'reserved' of '{name}' is {reserved}, and its 'memory' {memory}: nothing is left for tensors"
    hint = "'reserved' is the part of 'memory' that the runtime takes"
    name: str
    reserved: str
    memory: str
